//! Stateful sessions: RPCs of a session go to one endpoint, as a cookie says (A55).

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::http::stateful_session::v3 as pb;
use envoy_types::pb::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use pb::stateful_session_per_route::Override;

use super::super::fields;
use super::{FilterConfig, FilterOverride, FilterType};
use crate::invalid::Faults;

/// The cookie that says where a session lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionCookie {
    /// Never empty.
    pub name: String,
    /// RPCs with other paths have no part in it; empty stands for all.
    pub path: String,
    /// How long callers are asked to keep it; zero stands for as long as they live.
    pub ttl: Duration,
}

/// Without a session state the filter does nothing, and with an override it does something else or nothing.
pub(super) static STATEFUL_SESSION: FilterType = FilterType {
    config_type: "envoy.extensions.filters.http.stateful_session.v3.StatefulSession",
    on_client: true,
    on_server: false,
    terminal: false,
    parse: |extension, _, faults| {
        let pb: pb::StatefulSession = extension.message(faults)?;
        Some(FilterConfig::StatefulSession(SessionCookie::parse(&pb, faults)))
    },
    overrides: Some((
        "envoy.extensions.filters.http.stateful_session.v3.StatefulSessionPerRoute",
        |extension, _, faults| {
            let pb: pb::StatefulSessionPerRoute = extension.message(faults)?;
            let cookie = match &pb.r#override {
                Some(Override::StatefulSession(pb)) => {
                    faults.field("stateful_session", |f| SessionCookie::parse(pb, f))
                }
                Some(Override::Disabled(_)) | None => None,
            };
            Some(FilterOverride::StatefulSession(cookie))
        },
    )),
};

impl SessionCookie {
    /// `faults` is at the StatefulSession. None if it has faults, or no session state.
    fn parse(pb: &pb::StatefulSession, faults: &mut Faults) -> Option<Arc<Self>> {
        let state = pb.session_state.as_ref()?;
        faults.field("session_state.typed_config", |f| {
            let Some(any) = &state.typed_config else {
                f.add("must be set");
                return None;
            };
            let CookieBasedSessionState { cookie } = fields::unpack(any, f)?;
            f.field("cookie", |f| {
                let Some(cookie) = cookie else {
                    f.add("must be set");
                    return None;
                };
                if cookie.name.is_empty() {
                    f.field("name", |f| f.add("must not be empty"));
                }
                let ttl = cookie.ttl.and_then(|ttl| f.field("ttl", |f| fields::duration(&ttl, f)));
                Some(Arc::new(Self { name: cookie.name, path: cookie.path, ttl: ttl.unwrap_or_default() }))
            })
        })
    }
}
