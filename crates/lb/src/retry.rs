//! Retries: whether an attempt that failed is followed by another one, and when (A6, A44, L-41).

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use mainstay_xds::resource::route::RetryPolicy;
use mainstay_xds::{Choose, Code};

use crate::throttle::RetryThrottle;

/// The attempts of one RPC. Made when the first one fails: most RPCs never need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Retry {
    policy: Arc<RetryPolicy>,
    /// Attempts that failed. Those that no endpoint has seen are none (A6, transparent retries).
    failed: u32,
    /// Failures since the server last said how long to wait: the backoff begins anew after that.
    in_a_row: u32,
}

/// What a server says about trying again, in `grpc-retry-pushback-ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PushBack {
    /// Nothing: the policy decides.
    None,
    /// Not before this long.
    After(Duration),
    /// Not at all.
    Never,
}

impl Retry {
    /// No attempt has failed yet.
    pub fn new(policy: Arc<RetryPolicy>) -> Self {
        Self { policy, failed: 0, in_a_row: 0 }
    }

    /// An attempt failed with the gRPC status `code`: how long to wait before the next one, or `None` if that was the
    /// last one.
    pub fn after_failure(
        &mut self,
        code: Code,
        push_back: PushBack,
        throttle: Option<&RetryThrottle>,
        choose: &mut dyn Choose,
    ) -> Option<Duration> {
        self.failed = self.failed.saturating_add(1);
        let retried = self.policy.retry_on.contains(&code);
        // Counted whether or not another attempt would follow.
        let counted = throttle.filter(|_| retried || push_back == PushBack::Never);
        let throttled = counted.is_some_and(|throttle| !throttle.note_failure());
        if !retried || throttled || self.failed >= self.max_attempts() {
            return None;
        }
        match push_back {
            PushBack::None => {
                let pause = self.backoff(choose);
                self.in_a_row += 1;
                Some(pause)
            }
            PushBack::After(pause) => {
                self.in_a_row = 0;
                Some(pause)
            }
            PushBack::Never => None,
        }
    }

    /// How many attempts failed before this one, as the next one tells its server.
    pub fn previous_attempts(&self) -> u32 {
        self.failed
    }

    /// With the first attempt.
    fn max_attempts(&self) -> u32 {
        self.policy.num_retries.saturating_add(1).min(MAX_ATTEMPTS)
    }

    /// Doubles with each failure up to the maximum, give or take a fifth (A6).
    fn backoff(&self, choose: &mut dyn Choose) -> Duration {
        let factor = 1u32.checked_shl(self.in_a_row).unwrap_or(u32::MAX);
        let nominal = self.policy.base_interval.saturating_mul(factor).min(self.policy.max_interval);
        let thousandths = 800 + choose.choose(401).min(400);
        let nanos = nominal.as_nanos() * u128::from(thousandths) / 1000;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl PushBack {
    /// Reads the trailers of an attempt. What cannot be read means that the server wants no more attempts (A6).
    pub fn of(trailers: &HeaderMap) -> Self {
        let Some(value) = trailers.get(PUSH_BACK_KEY) else { return Self::None };
        let millis = value.to_str().ok().and_then(|text| text.parse::<i32>().ok());
        match millis.map(u64::try_from) {
            Some(Ok(millis)) => Self::After(Duration::from_millis(millis)),
            Some(Err(_)) | None => Self::Never,
        }
    }
}

/// Whatever the control plane says.
const MAX_ATTEMPTS: u32 = 5;

const PUSH_BACK_KEY: &str = "grpc-retry-pushback-ms";

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::testbed::Script;

    #[test]
    fn only_the_codes_of_the_policy_are_tried_again() {
        for code in 0..=16 {
            let expected = [8, 14].contains(&code);
            assert_eq!(after(&mut retry(1), code, PushBack::None).is_some(), expected, "R-56, L-41: {code}");
        }
    }

    #[test]
    fn attempts_are_counted_and_bounded() {
        // num_retries, and how many attempts there are in all.
        for (num_retries, attempts) in [(1, 2), (3, 4), (4, 5), (5, 5), (u32::MAX, 5)] {
            let mut retry = retry(num_retries);
            let mut made = 1;
            while after(&mut retry, 14, PushBack::None).is_some() {
                assert_eq!(retry.previous_attempts(), made, "A6: grpc-previous-rpc-attempts");
                made += 1;
            }
            assert_eq!(made, attempts, "R-57: num_retries {num_retries}");
        }
    }

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut retry = retry(4);
        let pauses: Vec<_> = (0..4).map(|_| after(&mut retry, 14, PushBack::None).unwrap().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 500], "R-58");
    }

    #[test]
    fn jitter_stays_within_a_fifth() {
        // A6: times random(0.8, 1.2).
        for (draw, expected) in [(0, 80), (200, 100), (400, 120)] {
            let mut script = Script { draws: [draw].into(), ..Default::default() };
            let pause = retry(1).after_failure(Code::Unavailable, PushBack::None, None, &mut script);
            assert_eq!(pause, Some(Duration::from_millis(expected)), "A6");
        }
    }

    #[test]
    fn hostile_intervals_and_counts_do_not_overflow() {
        let policy = RetryPolicy {
            retry_on: vec![Code::Unavailable],
            num_retries: u32::MAX,
            base_interval: Duration::MAX,
            max_interval: Duration::MAX,
        };
        let mut retry = Retry { policy: Arc::new(policy), failed: 0, in_a_row: 40 };
        assert_eq!(after(&mut retry, 14, PushBack::None), Some(Duration::from_nanos(u64::MAX)));
        retry.failed = u32::MAX;
        assert_eq!(after(&mut retry, 14, PushBack::None), None);
    }

    #[test]
    fn the_server_says_when() {
        let mut retry = retry(4);
        after(&mut retry, 14, PushBack::None);
        let pause = Duration::from_secs(7);
        assert_eq!(after(&mut retry, 14, PushBack::After(pause)), Some(pause), "A6: exactly, whatever the maximum");
        assert_eq!(
            after(&mut retry, 14, PushBack::None),
            Some(Duration::from_millis(100)),
            "A6: after that the backoff begins anew"
        );
    }

    #[test]
    fn the_server_can_refuse_but_not_demand() {
        assert_eq!(after(&mut retry(4), 14, PushBack::Never), None, "A6");
        assert_eq!(after(&mut retry(4), 3, PushBack::After(Duration::ZERO)), None, "A6: the code must allow it");
        let mut last = retry(1);
        after(&mut last, 14, PushBack::None);
        assert_eq!(after(&mut last, 14, PushBack::After(Duration::ZERO)), None, "A6: attempts are used up");
    }

    #[test]
    fn push_back_is_a_number_of_milliseconds_or_a_refusal() {
        let millis = |millis| PushBack::After(Duration::from_millis(millis));
        let table = [
            (&b"0"[..], millis(0)),
            (b"12", millis(12)),
            (b"2147483647", millis(2_147_483_647)),
            (b"2147483648", PushBack::Never),
            (b"-1", PushBack::Never),
            (b"", PushBack::Never),
            (b"soon", PushBack::Never),
            (b"1.5", PushBack::Never),
            (b" 1", PushBack::Never),
            (b"\xff", PushBack::Never),
        ];
        for (value, expected) in table {
            let value = HeaderValue::from_bytes(value).unwrap();
            let trailers = HeaderMap::from_iter([(PUSH_BACK_KEY.parse().unwrap(), value.clone())]);
            assert_eq!(PushBack::of(&trailers), expected, "A6: {value:?}");
        }
        assert_eq!(PushBack::of(&HeaderMap::new()), PushBack::None);
    }

    #[test]
    fn a_throttle_counts_what_the_policy_retries_and_ends_it() {
        let throttle = RetryThrottle::new(10, 1.0).unwrap();
        let fail = |retry: &mut Retry, code, push_back| {
            retry.after_failure(Code::ALL[code], push_back, Some(&throttle), &mut Script::default()).is_some()
        };
        for _ in 0..10 {
            assert!(!fail(&mut retry(4), 3, PushBack::None), "A6: another code takes no token");
        }
        let mut first = retry(4);
        assert!(fail(&mut first, 14, PushBack::None) && fail(&mut first, 14, PushBack::None), "A6: 8 of 10");
        assert!(!fail(&mut retry(4), 3, PushBack::Never), "A6: a refusal takes one, whatever the code");
        let mut last = retry(0);
        assert!(!fail(&mut last, 14, PushBack::None), "A6: so does an attempt that is the last in any case");
        assert!(!fail(&mut first, 14, PushBack::After(Duration::ZERO)), "A6: 5 of 10 is the threshold");
        throttle.note_success();
        throttle.note_success();
        assert!(fail(&mut first, 14, PushBack::None), "A6: 6 of 10");
    }

    /// For RESOURCE_EXHAUSTED and UNAVAILABLE, 100 ms to 500 ms.
    fn retry(num_retries: u32) -> Retry {
        Retry::new(Arc::new(RetryPolicy {
            retry_on: vec![Code::ResourceExhausted, Code::Unavailable],
            num_retries,
            base_interval: Duration::from_millis(100),
            max_interval: Duration::from_millis(500),
        }))
    }

    /// Without jitter.
    fn after(retry: &mut Retry, code: usize, push_back: PushBack) -> Option<Duration> {
        let mut script = Script { draws: [200].into(), ..Default::default() };
        retry.after_failure(Code::ALL[code], push_back, None, &mut script)
    }
}
