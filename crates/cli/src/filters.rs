//! What HTTP filters do to calls, in words.

use std::fmt;

use mainstay_xds::resource::filter::{
    AbortStatus, DelayTime, Fault, FaultShare, FilterConfig, FilterOverrides, HttpFilter,
};
use serde::Serialize;

/// A filter, and what it does to calls.
#[derive(Debug, Serialize)]
pub(crate) struct Filter {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) effect: String,
    /// What overrides it.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    pub(crate) overridden: Option<&'static str>,
}

/// What the filters of a chain do under these overrides, the most specific first.
pub(crate) fn describe(chain: &[HttpFilter], levels: &[(&'static str, &FilterOverrides)]) -> Vec<Filter> {
    let overrides: Vec<&FilterOverrides> = levels.iter().map(|(_, overrides)| *overrides).collect();
    let one = |filter: &HttpFilter| {
        let level = levels.iter().find(|(_, overrides)| overrides.contains_key(&filter.name));
        let kind = match &filter.config {
            FilterConfig::Router => "router",
            FilterConfig::Fault(_) => "fault",
            FilterConfig::StatefulSession(_) => "stateful_session",
            FilterConfig::Rbac(_) => "rbac",
        };
        let effect = match filter.effective(&overrides) {
            None => "off".to_owned(),
            Some(FilterConfig::Router) => "sends the call".to_owned(),
            Some(FilterConfig::Fault(fault)) => faults(&fault),
            Some(FilterConfig::StatefulSession(None)) => "no cookie: does nothing".to_owned(),
            Some(FilterConfig::StatefulSession(Some(cookie))) => format!("sessions by cookie {:?}", cookie.name),
            Some(FilterConfig::Rbac(_)) => "for servers".to_owned(),
        };
        Filter { name: filter.name.clone(), kind, effect, overridden: level.map(|(level, _)| *level) }
    };
    chain.iter().map(one).collect()
}

/// Which faults are injected.
fn faults(fault: &Fault) -> String {
    let share = |share: FaultShare| {
        let part = f64::from(share.numerator) / f64::from(share.denominator.max(1)) * 100.0;
        format!("{} % of the calls", part.min(100.0))
    };
    let delay = fault.delay.as_ref().map(|delay| {
        let time = match delay.time {
            DelayTime::Fixed(time) => format!("{time:?}"),
            DelayTime::Header => "as long as a header says".to_owned(),
        };
        format!("delays {} by {time}", share(delay.share))
    });
    let abort = fault.abort.as_ref().map(|abort| {
        let status = match abort.status {
            AbortStatus::Code(code) => code.name().to_owned(),
            AbortStatus::Header => "what a header says".to_owned(),
        };
        format!("aborts {} with {status}", share(abort.share))
    });
    let parts: Vec<String> = delay.into_iter().chain(abort).collect();
    if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.effect)?;
        self.overridden.map_or(Ok(()), |by| write!(f, " (override on {by})"))
    }
}
