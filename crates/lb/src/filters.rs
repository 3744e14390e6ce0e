//! The HTTP filters of a route: what happens to an RPC after its route is known and before it is sent (A39, L-43).

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::resource::filter::{
    AbortStatus, DelayTime, Fault, FaultShare, FilterConfig, FilterOverride, FilterOverrides, HttpFilter, SessionCookie,
};
use mainstay_xds::{Choose, Code};

use crate::rpc::Rpc;
use crate::session::Session;

/// The filters of a route or of one of its weighted clusters, overrides applied, in the order of the chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filters {
    faults: Box<[Arc<Fault>]>,
    session: Option<Arc<SessionCookie>>,
}

/// One thing that a filter does to an RPC before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Injected {
    /// What.
    pub effect: Effect,
    /// How many faults the process may have at work; with that many, this one is left out (S-54).
    pub max_active: u32,
}

/// What a fault does to an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Holds it up.
    Delay(Duration),
    /// Ends it with this gRPC status code.
    Abort(Code),
}

impl Filters {
    /// Applies overrides, the most specific first.
    pub(crate) fn new(chain: &[HttpFilter], overrides: &[&FilterOverrides]) -> Self {
        let fault = |filter: &HttpFilter| {
            let FilterConfig::Fault(fault) = &filter.config else { return None };
            match overrides.iter().find_map(|overrides| overrides.get(&filter.name)) {
                Some(FilterOverride::Fault(fault)) => Some(Arc::clone(fault)),
                Some(FilterOverride::Disabled) => None,
                // The override is for a filter of another kind.
                Some(FilterOverride::StatefulSession(_) | FilterOverride::Rbac(_)) | None => {
                    (!filter.disabled).then(|| Arc::clone(fault))
                }
            }
        };
        let session = |filter: &HttpFilter| {
            let FilterConfig::StatefulSession(cookie) = &filter.config else { return None };
            match overrides.iter().find_map(|overrides| overrides.get(&filter.name)) {
                Some(FilterOverride::StatefulSession(cookie)) => cookie.clone(),
                Some(FilterOverride::Disabled) => None,
                Some(FilterOverride::Fault(_) | FilterOverride::Rbac(_)) | None => {
                    cookie.clone().filter(|_| !filter.disabled)
                }
            }
        };
        // Of several sessions the first counts: an RPC goes to one endpoint only.
        let session = chain.iter().find_map(session);
        Self { faults: chain.iter().filter_map(fault).collect(), session }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.faults.is_empty() && self.session.is_none()
    }

    /// The session of an RPC, if there are any on its route.
    pub(crate) fn session(&self, rpc: Rpc<'_>) -> Option<Session> {
        self.session.as_ref().and_then(|cookie| Session::read(cookie, rpc))
    }

    /// What is to be done to an RPC with these headers, in order. Every share is drawn for by itself (S-51).
    pub(crate) fn inject(&self, headers: &HeaderMap, choose: &mut dyn Choose) -> Vec<Injected> {
        let mut effects = Vec::new();
        for fault in &self.faults {
            let delay = delay(fault, headers, choose).map(Effect::Delay);
            let abort = abort(fault, headers, choose).map(Effect::Abort);
            let injected = |effect| Injected { effect, max_active: fault.max_active };
            effects.extend(delay.into_iter().chain(abort).map(injected));
        }
        effects
    }
}

fn delay(fault: &Fault, headers: &HeaderMap, choose: &mut dyn Choose) -> Option<Duration> {
    let delay = fault.delay.as_ref()?;
    let (time, share) = match delay.time {
        DelayTime::Fixed(time) => (time, delay.share),
        DelayTime::Header => {
            let millis: u32 = number(headers, DELAY)?;
            (Duration::from_millis(millis.into()), lowered(delay.share, headers, DELAY_PERCENTAGE))
        }
    };
    (!time.is_zero() && draw(share, choose)).then_some(time)
}

fn abort(fault: &Fault, headers: &HeaderMap, choose: &mut dyn Choose) -> Option<Code> {
    let abort = fault.abort.as_ref()?;
    let (code, share) = match abort.status {
        AbortStatus::Code(code) => (code, abort.share),
        AbortStatus::Header => {
            let code = number::<u8>(headers, ABORT_GRPC).and_then(Code::from_number);
            let code = code.or_else(|| number(headers, ABORT_HTTP).map(Code::of_http_status))?;
            (code, lowered(abort.share, headers, ABORT_PERCENTAGE))
        }
    };
    draw(share, choose).then_some(code)
}

/// A header can lower the share and never raise it (S-53).
fn lowered(share: FaultShare, headers: &HeaderMap, name: &str) -> FaultShare {
    let wanted = number(headers, name).unwrap_or(share.numerator);
    FaultShare { numerator: share.numerator.min(wanted), ..share }
}

fn draw(share: FaultShare, choose: &mut dyn Choose) -> bool {
    share.numerator > 0 && choose.choose(share.denominator.max(1).into()) < share.numerator.into()
}

/// The first value that is a number: others are ignored (S-53).
fn number<N: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<N> {
    headers.get_all(name).iter().find_map(|value| value.to_str().ok()?.parse().ok())
}

const DELAY: &str = "x-envoy-fault-delay-request";
const DELAY_PERCENTAGE: &str = "x-envoy-fault-delay-request-percentage";
const ABORT_GRPC: &str = "x-envoy-fault-abort-grpc-request";
const ABORT_HTTP: &str = "x-envoy-fault-abort-request";
const ABORT_PERCENTAGE: &str = "x-envoy-fault-abort-request-percentage";

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use mainstay_xds::resource::filter::{FaultAbort, FaultDelay};

    use super::*;
    use crate::testbed::Script;

    #[test]
    fn delay_and_abort_are_drawn_for_independently() {
        let fault = fixed(20, 5);
        let delay = Effect::Delay(SECOND);
        let table = [
            ([19, 4], vec![delay, abort_with(10)]),
            ([19, 5], vec![delay]),
            ([20, 4], vec![abort_with(10)]),
            ([20, 5], vec![]),
        ];
        for (draws, expected) in table {
            assert_eq!(inject(&fault, &[], &draws), expected, "S-51: {draws:?}");
        }
    }

    #[test]
    fn shares_are_of_their_denominator() {
        let mut fault = fixed(0, 30);
        if let Some(abort) = &mut fault.abort {
            abort.share.denominator = 1_000_000;
        }
        assert_eq!(inject(&fault, &[], &[29]), [abort_with(10)]);
        assert_eq!(inject(&fault, &[], &[30]), [], "no draw for a delay that nobody gets");
        let all = fixed(u32::MAX, 101);
        assert_eq!(inject(&all, &[], &[99, 99]).len(), 2);
    }

    #[test]
    fn headers_control_only_what_is_left_to_them() {
        let headers = [(DELAY, "53"), (ABORT_GRPC, "3")];
        assert_eq!(
            inject(&by_header(100), &headers, &[]),
            [Effect::Delay(Duration::from_millis(53)), abort_with(3)],
            "S-53"
        );
        assert_eq!(
            inject(&fixed(100, 100), &headers, &[]),
            [Effect::Delay(SECOND), abort_with(10)],
            "S-53: the config has values of its own"
        );
        assert_eq!(inject(&by_header(100), &[], &[]), [], "S-53: no header, no fault");
    }

    #[test]
    fn header_values_are_read_or_ignored() {
        let table = [
            (&[(ABORT_GRPC, "0")][..], vec![abort_with(0)]),
            (&[(ABORT_GRPC, "17")], vec![]),
            (&[(ABORT_GRPC, "x")], vec![]),
            (&[(ABORT_HTTP, "503")], vec![abort_with(14)]),
            (&[(ABORT_HTTP, "200")], vec![abort_with(2)]),
            (&[(ABORT_HTTP, "999999")], vec![]),
            (&[(ABORT_GRPC, "17"), (ABORT_HTTP, "404")], vec![abort_with(12)]),
            (&[(ABORT_GRPC, "bad"), (ABORT_GRPC, "5")], vec![abort_with(5)]),
            (&[(DELAY, "0")], vec![]),
            (&[(DELAY, "-1")], vec![]),
            (&[(DELAY, "4294967295")], vec![Effect::Delay(Duration::from_millis(4_294_967_295))]),
        ];
        for (headers, expected) in table {
            assert_eq!(inject(&by_header(100), headers, &[]), expected, "S-52, S-53: {headers:?}");
        }
    }

    #[test]
    fn headers_lower_a_share_and_never_raise_it() {
        // Configured share, header, how many of a hundred.
        for (configured, header, expected) in
            [(50, Some("20"), 20), (50, Some("80"), 50), (50, Some("no"), 50), (50, None, 50), (50, Some("0"), 0)]
        {
            let mut headers = vec![(DELAY, "1"), (ABORT_GRPC, "3")];
            headers.extend(header.map(|value| (DELAY_PERCENTAGE, value)));
            headers.extend(header.map(|value| (ABORT_PERCENTAGE, value)));
            let hit = |draw| inject(&by_header(configured), &headers, &[draw, draw]).len();
            let hits: usize = (0..100).map(hit).sum();
            assert_eq!(hits, 2 * expected, "S-53: {header:?}");
        }
    }

    #[test]
    fn the_most_specific_override_wins() {
        let fault = |code| {
            let abort = FaultAbort { status: AbortStatus::Code(Code::ALL[code]), share: ALL };
            Arc::new(Fault { delay: None, abort: Some(abort), max_active: 7 })
        };
        let chain = |disabled| {
            let filter = |name: &str, config, disabled| HttpFilter { name: name.into(), config, disabled };
            [filter("f", FilterConfig::Fault(fault(1)), disabled), filter("r", FilterConfig::Router, false)]
        };
        let overridden = |code| FilterOverrides::from([("f".into(), FilterOverride::Fault(fault(code)))]);
        let off = FilterOverrides::from([("f".into(), FilterOverride::Disabled)]);
        let (none, two, three) = (FilterOverrides::new(), overridden(2), overridden(3));
        let code = |disabled, overrides: [&FilterOverrides; 3]| {
            let injected = Filters::new(&chain(disabled), &overrides).inject(&HeaderMap::new(), &mut Script::default());
            injected.first().map(|injected| (injected.effect, injected.max_active))
        };
        let aborted = |code| Some((abort_with(code), 7));
        assert_eq!(code(false, [&none, &none, &none]), aborted(1), "L-43");
        assert_eq!(code(false, [&none, &two, &three]), aborted(2), "L-43");
        assert_eq!(code(false, [&three, &two, &none]), aborted(3), "L-43");
        assert_eq!(code(false, [&none, &off, &three]), None, "R-24");
        assert_eq!(code(true, [&none, &none, &none]), None, "R-24");
        assert_eq!(code(true, [&none, &none, &three]), aborted(3), "R-24: an override switches it on");
    }

    fn inject(fault: &Fault, headers: &[(&'static str, &'static str)], draws: &[u64]) -> Vec<Effect> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let mut script = Script { draws: draws.iter().copied().collect(), ..Default::default() };
        let filters = Filters { faults: [Arc::new(fault.clone())].into(), session: None };
        filters.inject(&map, &mut script).into_iter().map(|injected| injected.effect).collect()
    }

    fn fixed(delay: u32, abort: u32) -> Fault {
        let share = |numerator| FaultShare { numerator, denominator: 100 };
        Fault {
            delay: Some(FaultDelay { time: DelayTime::Fixed(SECOND), share: share(delay) }),
            abort: Some(FaultAbort { status: AbortStatus::Code(Code::Aborted), share: share(abort) }),
            max_active: u32::MAX,
        }
    }

    fn by_header(numerator: u32) -> Fault {
        let share = FaultShare { numerator, denominator: 100 };
        Fault {
            delay: Some(FaultDelay { time: DelayTime::Header, share }),
            abort: Some(FaultAbort { status: AbortStatus::Header, share }),
            max_active: u32::MAX,
        }
    }

    const SECOND: Duration = Duration::from_secs(1);
    const ALL: FaultShare = FaultShare { numerator: 100, denominator: 100 };

    fn abort_with(code: usize) -> Effect {
        Effect::Abort(Code::ALL[code])
    }
}
