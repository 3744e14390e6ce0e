//! Retries and what bounds them, beside the plain rules (A6, R-57, R-58, L-41, L-86).

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use mainstay_lb::{Counter, InFlight, PushBack, Retry, RetryThrottle};
use mainstay_xds::{Choose, Code};

use super::make::{Maker, Plan};
use super::tape::Tape;
use crate::choose::Seeded;
use crate::invariant::{Invariant, Violation};

/// Some RPCs that fail and are tried again.
pub(super) fn run(seed: u64) -> Result<(), Violation> {
    let mut chance = Seeded::new(seed ^ 0x7e77);
    let mut tape = Tape::new(seed);
    let plan = Plan::new(seed, &mut chance);
    let mut maker = Maker { chance: &mut chance, plan: &plan };
    let (max, ratio) =
        (maker.pick(&[0, 1, 2, 4, 10, 1000, 1001]), maker.pick(&[-1.0, 0.0, 0.0009, 0.001, 0.5, 1.0, 3.0, 5000.0]));
    let throttle = RetryThrottle::new(max, ratio);
    let valid = (1..=1000).contains(&max) && ratio >= 0.001;
    Invariant::Traffic.holds(throttle.is_some() == valid, || format!("a throttle of {max} and {ratio}"))?;
    let other = RetryThrottle::new(maker.pick(&[1, 2, 4]), maker.pick(&[0.5, 1.0]));
    let again = RetryThrottle::new(max, ratio);
    Invariant::Traffic.holds(throttle == again, || "equal settings make unequal throttles".into())?;
    if let (Some(throttle), Some(other)) = (&throttle, &other) {
        let differ = format!("{throttle:?}").split("tokens").next() != format!("{other:?}").split("tokens").next();
        Invariant::Traffic.holds((throttle != other) == differ, || "unequal settings make equal throttles".into())?;
    }
    // In thousandths of a token.
    let (most, step) = (u64::from(max) * 1000, (ratio * 1000.0) as u64);
    let mut tokens = most;
    for _ in 0..6 {
        let policy = Arc::new(maker.retry());
        let mut retry = Retry::new(Arc::clone(&policy));
        let (mut failed, mut doublings) = (0_u32, 0_u32);
        for _ in 0..maker.below(8) {
            if maker.one_in(3) {
                throttle.iter().for_each(RetryThrottle::note_success);
                tokens = most.min(tokens + step);
            }
            let (trailers, push_back) = trailers(&mut maker);
            let read = PushBack::of(&trailers);
            Invariant::Traffic.holds(read == push_back, || format!("{trailers:?} was read as {read:?}"))?;
            let code = maker.pick(&[
                Code::Cancelled,
                Code::DeadlineExceeded,
                Code::ResourceExhausted,
                Code::Unavailable,
                Code::Unavailable,
            ]);
            let uses_throttle = !maker.one_in(4);
            let pause = retry.after_failure(code, push_back, throttle.as_ref().filter(|_| uses_throttle), &mut tape);
            let mut drawn = tape.play_back();
            failed += 1;
            let retried = policy.retry_on.contains(&code);
            let mut allowed = retried && failed < 5.min(policy.num_retries.saturating_add(1));
            if valid && uses_throttle && (retried || push_back == PushBack::Never) {
                tokens = tokens.saturating_sub(1000);
                allowed &= tokens > most / 2;
            }
            let expected = match push_back {
                _ if !allowed => None,
                PushBack::Never => None,
                PushBack::After(pause) => {
                    doublings = 0;
                    Some(pause)
                }
                PushBack::None => {
                    let base = policy.base_interval.saturating_mul(1 << doublings).min(policy.max_interval);
                    doublings += 1;
                    let nanos = base.as_nanos() * u128::from(800 + drawn.choose(401)) / 1000;
                    Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
                }
            };
            let what = || format!("after {failed} failures the next attempt waits {expected:?}, and not {pause:?}");
            Invariant::Traffic.holds(pause == expected, what)?;
            Invariant::Traffic.holds(retry.previous_attempts() == failed, || "attempts are not counted".into())?;
            if let Some(trouble) = drawn.trouble() {
                return Err(Invariant::Traffic.broken(trouble));
            }
        }
    }
    Ok(())
}

/// A circuit breaker that many RPCs race for: never more than the limit are in flight (L-86).
pub(super) fn race(seed: u64) -> Result<(), Violation> {
    let mut chance = Seeded::new(seed ^ 0xb4ea);
    let counter = Arc::new(Counter::new());
    let mut places: Vec<InFlight> = Vec::new();
    for _ in 0..30 {
        let (limit, before) = (chance.choose(4) as u32, places.len() as u32);
        match chance.choose(4) {
            0 => places.push(counter.acquire()),
            1 if !places.is_empty() => drop(places.swap_remove(chance.choose(places.len() as u64) as usize)),
            _ => {
                let place = counter.try_acquire(limit);
                let text = || format!("a place for one more than {before} of {limit}: {}", place.is_some());
                Invariant::Breaker.holds(place.is_some() == (before < limit), text)?;
                places.extend(place);
            }
        }
        let counted = counter.in_flight();
        Invariant::Breaker.holds(counted as usize == places.len(), || format!("{counted} in flight"))?;
    }
    Ok(())
}

/// What a server says about trying again, and what that means.
fn trailers(maker: &mut Maker<'_>) -> (HeaderMap, PushBack) {
    let text = maker.pick(&["", "", "none", "0", "12", "2147483647", "2147483648", "-1", "soon"]);
    let mut trailers = HeaderMap::new();
    if text == "none" || maker.one_in(2) {
        return (trailers, PushBack::None);
    }
    trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static(text));
    let push_back = match text {
        "0" => PushBack::After(Duration::ZERO),
        "12" => PushBack::After(Duration::from_millis(12)),
        "2147483647" => PushBack::After(Duration::from_millis(2_147_483_647)),
        _ => PushBack::Never,
    };
    (trailers, push_back)
}
