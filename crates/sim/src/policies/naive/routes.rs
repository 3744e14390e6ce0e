//! Which route an RPC takes and what happens on the way, by the plain rules (L-32 to L-43, L-93, L-94, S-51 to S-54).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName};
use mainstay_lb::{Effect, Injected};
use mainstay_xds::resource::filter::{
    AbortStatus, DelayTime, Fault, FaultShare, FilterConfig, FilterOverride, FilterOverrides, HttpFilter, SessionCookie,
};
use mainstay_xds::resource::matcher::{HeaderMatch, HeaderMatcher, PathMatcher, StringMatcher};
use mainstay_xds::resource::route::{
    ClusterTarget, ForwardAction, HashPolicy, HashSource, Route, RouteAction, VirtualHost,
};
use mainstay_xds::{Choose, Code};
use xxhash_rust::xxh64::xxh64;

use super::draw::once;

/// The routes that RPCs go by.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Routes {
    /// Tells them from others, equal or not.
    pub(super) number: u64,
    pub(super) host: Arc<VirtualHost>,
    pub(super) chain: Vec<HttpFilter>,
    pub(super) default_limit: Option<Duration>,
}

/// The route of an RPC.
pub(super) struct Found<'a> {
    pub(super) forward: &'a ForwardAction,
    pub(super) cluster: Arc<str>,
    pub(super) faults: Vec<Arc<Fault>>,
    pub(super) session: Option<Arc<SessionCookie>>,
    /// Whether any way that the route may take has a filter that does something.
    pub(super) filtered: bool,
}

/// Where a cookie wants an RPC to go.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::policies) struct Session {
    cookie: Arc<SessionCookie>,
    pub(super) hosts: Vec<SocketAddr>,
    pub(super) cluster: Option<String>,
}

impl Routes {
    pub(super) fn same_way(&self, other: &Self) -> bool {
        self.host == other.host && self.chain == other.chain
    }

    /// The clusters that routes name.
    pub(super) fn clusters(&self) -> std::collections::BTreeSet<Arc<str>> {
        self.host.clusters().map(Arc::from).collect()
    }

    pub(super) fn need_channel_id(&self) -> bool {
        let hashes = |route: &Route| match &route.action {
            RouteAction::Forward(forward) => forward.hash_policies.iter().any(|p| p.source == HashSource::ChannelId),
            RouteAction::NonForwarding | RouteAction::Unsupported(_) => false,
        };
        self.host.routes.iter().any(hashes)
    }

    /// The first that matches. `Err` says why there is none: what a message must have in it.
    pub(super) fn find(
        &self,
        path: &str,
        headers: &HeaderMap,
        draws: &mut Vec<(u64, u64)>,
        chance: &mut dyn Choose,
    ) -> Result<Found<'_>, Vec<String>> {
        let mut asked = 0;
        for route in &self.host.routes {
            let matches = path_matches(&route.path, path) && route.headers.iter().all(|m| header_matches(m, headers));
            if !matches {
                continue;
            }
            if let Some(fraction) = route.fraction {
                let draw = once(draws, asked, 1_000_000, chance);
                asked += 1;
                if draw >= u64::from(fraction) {
                    continue;
                }
            }
            let RouteAction::Forward(forward) = &route.action else {
                return Err(vec!["inappropriate".into(), format!("{:?}", self.host.name), format!("{path:?}")]);
            };
            let of = |overrides: &[&FilterOverrides]| self.filters(overrides);
            let common = [&route.overrides, &self.host.overrides];
            let (cluster, (faults, session), filtered) = match &forward.target {
                ClusterTarget::Cluster(name) => {
                    let filters = of(&common);
                    let filtered = does_something(&filters);
                    (name, filters, filtered)
                }
                ClusterTarget::Weighted(choices) => {
                    let total = choices.iter().map(|choice| u64::from(choice.weight)).sum();
                    let mut draw = once(draws, asked, total, chance);
                    let mut at = 0;
                    while draw >= u64::from(choices[at].weight) {
                        draw -= u64::from(choices[at].weight);
                        at += 1;
                    }
                    let mut all: Vec<_> =
                        choices.iter().map(|choice| of(&[&choice.overrides, common[0], common[1]])).collect();
                    let filtered = all.iter().any(does_something);
                    (&choices[at].name, all.remove(at), filtered)
                }
            };
            return Ok(Found { forward, cluster: cluster.as_str().into(), faults, session, filtered });
        }
        Err(vec!["no matching route".into(), format!("{:?}", self.host.name), format!("{path:?}")])
    }

    /// What the filters do, with the most specific overrides, which come first (L-43, R-24).
    fn filters(&self, overrides: &[&FilterOverrides]) -> (Vec<Arc<Fault>>, Option<Arc<SessionCookie>>) {
        let (mut faults, mut session) = (Vec::new(), None);
        for filter in &self.chain {
            let own = overrides.iter().find_map(|overrides| overrides.get(&filter.name));
            match (&filter.config, own) {
                (_, Some(FilterOverride::Disabled)) | (FilterConfig::Router, _) => {}
                (FilterConfig::Fault(_), Some(FilterOverride::Fault(fault))) => faults.push(fault.clone()),
                (FilterConfig::Fault(fault), _) if !filter.disabled => faults.push(fault.clone()),
                (FilterConfig::StatefulSession(_), Some(FilterOverride::StatefulSession(cookie))) => {
                    session = session.or_else(|| cookie.clone());
                }
                (FilterConfig::StatefulSession(cookie), _) if !filter.disabled => {
                    session = session.or_else(|| cookie.clone());
                }
                _ => {}
            }
        }
        (faults, session)
    }
}

fn does_something((faults, session): &(Vec<Arc<Fault>>, Option<Arc<SessionCookie>>)) -> bool {
    !faults.is_empty() || session.is_some()
}

fn path_matches(matcher: &PathMatcher, path: &str) -> bool {
    let cased = |text: &str, sensitive: bool| if sensitive { text.to_owned() } else { text.to_ascii_lowercase() };
    match matcher {
        PathMatcher::Prefix { value, case_sensitive } => {
            cased(path, *case_sensitive).starts_with(&cased(value, *case_sensitive))
        }
        PathMatcher::Exact { value, case_sensitive } => cased(path, *case_sensitive) == cased(value, *case_sensitive),
        PathMatcher::Regex(pattern) => pattern.is_match(path),
    }
}

fn header_matches(matcher: &HeaderMatcher, headers: &HeaderMap) -> bool {
    let value = visible(&matcher.name).and_then(|name| value_of(headers, &name));
    if let HeaderMatch::Present(wanted) = matcher.kind {
        return (value.is_some() == wanted) != matcher.invert;
    }
    let Some(value) = value else { return false };
    let cased = |text: &str, ignore: bool| if ignore { text.to_ascii_lowercase() } else { text.to_owned() };
    let found = match &matcher.kind {
        HeaderMatch::Range { start, end } => value.parse::<i64>().is_ok_and(|n| n >= *start && n < *end),
        HeaderMatch::String(StringMatcher::Exact { value: v, ignore_case: i }) => cased(&value, *i) == cased(v, *i),
        HeaderMatch::String(StringMatcher::Prefix { value: v, ignore_case: i }) => {
            cased(&value, *i).starts_with(&cased(v, *i))
        }
        HeaderMatch::String(StringMatcher::Suffix { value: v, ignore_case: i }) => {
            cased(&value, *i).ends_with(&cased(v, *i))
        }
        HeaderMatch::String(StringMatcher::Contains { value: v, ignore_case: i }) => {
            cased(&value, *i).contains(&cased(v, *i))
        }
        HeaderMatch::String(StringMatcher::Regex(pattern)) => pattern.is_match(&value),
        HeaderMatch::Present(_) => true,
    };
    found != matcher.invert
}

/// The name of a header that routes can see (L-34).
fn visible(name: &str) -> Option<HeaderName> {
    if name.ends_with("-bin") || name.starts_with("grpc-") || ["host", "te", "user-agent"].contains(&name) {
        return None;
    }
    HeaderName::from_bytes(name.as_bytes()).ok()
}

/// All values of a header with commas between them (L-34).
pub(super) fn value_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Vec<&str> =
        headers.get_all(name).iter().filter_map(|value| std::str::from_utf8(value.as_bytes()).ok()).collect();
    match values.is_empty() {
        false => Some(values.join(",")),
        true if name == "content-type" => Some("application/grpc".into()),
        true => None,
    }
}

/// Whether a policy may have a result.
pub(super) fn can_hash(policy: &HashPolicy) -> bool {
    match &policy.source {
        HashSource::Header { name, .. } => visible(name).is_some(),
        HashSource::ChannelId => true,
    }
}

/// L-42.
pub(super) fn hash(policies: &[HashPolicy], headers: &HeaderMap, channel_id: u64) -> Option<u64> {
    let mut hash: Option<u64> = None;
    for policy in policies.iter().filter(|policy| can_hash(policy)) {
        let result = match &policy.source {
            HashSource::ChannelId => Some(channel_id),
            HashSource::Header { name, rewrite } => {
                visible(name).and_then(|name| value_of(headers, &name)).map(|value| match rewrite {
                    Some(rewrite) => xxh64(rewrite.replace(&value).as_bytes(), 0),
                    None => xxh64(value.as_bytes(), 0),
                })
            }
        };
        if let Some(result) = result {
            hash = Some(hash.map_or(result, |before| before.rotate_left(1) ^ result));
        }
        if policy.terminal && hash.is_some() {
            return hash;
        }
    }
    hash
}

/// What faults do to an RPC (S-51 to S-54).
pub(super) fn inject(faults: &[Arc<Fault>], headers: &HeaderMap, chance: &mut dyn Choose) -> Vec<Injected> {
    let mut effects = Vec::new();
    let mut hits = |share: FaultShare| {
        share.numerator > 0 && chance.choose(u64::from(share.denominator.max(1))) < u64::from(share.numerator)
    };
    for fault in faults {
        let max_active = fault.max_active;
        let lowered = |share: FaultShare, name: &str| match first_number(headers, name) {
            Some(wanted) if wanted < i128::from(share.numerator) => FaultShare { numerator: wanted as u32, ..share },
            _ => share,
        };
        if let Some(delay) = &fault.delay {
            let time = match delay.time {
                DelayTime::Fixed(time) => Some((time, delay.share)),
                DelayTime::Header => first_number(headers, "x-envoy-fault-delay-request").map(|millis| {
                    let share = lowered(delay.share, "x-envoy-fault-delay-request-percentage");
                    (Duration::from_millis(millis as u64), share)
                }),
            };
            if let Some((time, share)) = time
                && time > Duration::ZERO
                && hits(share)
            {
                effects.push(Injected { effect: Effect::Delay(time), max_active });
            }
        }
        if let Some(abort) = &fault.abort {
            let code = match abort.status {
                AbortStatus::Code(code) => Some((code, abort.share)),
                AbortStatus::Header => {
                    let grpc = first_below(headers, "x-envoy-fault-abort-grpc-request", 255).filter(|code| *code <= 16);
                    let http = || first_below(headers, "x-envoy-fault-abort-request", 65535).map(of_http);
                    let share = lowered(abort.share, "x-envoy-fault-abort-request-percentage");
                    grpc.and_then(Code::from_number).or_else(http).map(|code| (code, share))
                }
            };
            if let Some((code, share)) = code
                && hits(share)
            {
                effects.push(Injected { effect: Effect::Abort(code), max_active });
            }
        }
    }
    effects
}

fn first_number(headers: &HeaderMap, name: &str) -> Option<i128> {
    first_below(headers, name, i128::from(u32::MAX))
}

/// The first value that is a whole number from zero to `most`.
fn first_below(headers: &HeaderMap, name: &str, most: i128) -> Option<i128> {
    let number = |text: &str| text.strip_prefix('+').unwrap_or(text).parse::<i128>().ok();
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.filter_map(number).find(|number| (0..=most).contains(number))
}

/// The table of gRPC's "HTTP to gRPC status code mapping".
fn of_http(status: i128) -> Code {
    match status {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

impl Session {
    /// L-93.
    pub(super) fn read(cookie: &Arc<SessionCookie>, path: &str, headers: &HeaderMap) -> Option<Self> {
        let rest = path.strip_prefix(cookie.path.as_str())?;
        let whole = rest.is_empty() || rest.starts_with('/') || cookie.path.ends_with('/') || cookie.path.is_empty();
        if !whole {
            return None;
        }
        let mut session = Self { cookie: cookie.clone(), hosts: Vec::new(), cluster: None };
        'headers: for header in headers.get_all("cookie").iter().filter_map(|value| value.to_str().ok()) {
            for pair in header.split(';') {
                if let Some((name, value)) = pair.trim().split_once('=')
                    && name == cookie.name
                {
                    session.decode(value);
                    break 'headers;
                }
            }
        }
        Some(session)
    }

    fn decode(&mut self, value: &str) {
        let quoted = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
        let value = if quoted { &value[1..value.len() - 1] } else { value };
        if value.len() > 4096 {
            return;
        }
        let Some(text) = STANDARD.decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok()) else { return };
        let (hosts, cluster) = text.split_once(';').unwrap_or((&text, ""));
        let hosts: Vec<Option<SocketAddr>> = hosts.split(',').take(32).map(|host| host.parse().ok()).collect();
        if hosts.contains(&None) {
            return;
        }
        self.hosts = hosts.into_iter().flatten().collect();
        self.cluster = cluster.strip_prefix("cluster:").map(str::to_owned);
    }

    /// L-94.
    pub(super) fn set_cookie(&self, used: SocketAddr, endpoint: &[SocketAddr], cluster: &str) -> Option<String> {
        let mut list = vec![used];
        list.extend(endpoint.iter().filter(|address| **address != used));
        if list == self.hosts && self.cluster.as_deref() == Some(cluster) {
            return None;
        }
        let texts: Vec<String> = list.iter().map(ToString::to_string).collect();
        let value = STANDARD.encode(format!("{};cluster:{cluster}", texts.join(",")));
        let mut text = format!("{}={value}; HttpOnly", self.cookie.name);
        if !self.cookie.path.is_empty() {
            text += &format!("; Path={}", self.cookie.path);
        }
        if self.cookie.ttl > Duration::ZERO {
            text += &format!("; Max-Age={}", self.cookie.ttl.as_secs());
        }
        Some(text)
    }
}
