//! Deadlines of RPCs: `grpc-timeout` in, `grpc-timeout` out.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

/// The header that carries the time an RPC has left.
pub(crate) static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The timeout that the caller asked for. A malformed value counts as none, as in tonic's own channel, and is not sent
/// on: the endpoint might read something into it.
pub(crate) fn requested(headers: &mut HeaderMap) -> Option<Duration> {
    let timeout = parse(headers.get(&GRPC_TIMEOUT)?.as_bytes());
    if timeout.is_none() {
        headers.remove(&GRPC_TIMEOUT);
    }
    timeout
}

/// The earlier of two deadlines.
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A point `timeout` after `start`; none if it lies beyond what the clock can say.
pub(crate) fn after(start: Instant, timeout: Duration) -> Option<Instant> {
    start.checked_add(timeout)
}

/// At most eight digits and a unit, as the gRPC protocol wants it.
fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(number * 3600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// The header value for the time that is left, in the finest unit that fits eight digits, rounded up.
pub(crate) fn header_value(left: Duration) -> HeaderValue {
    const LIMIT: u128 = 100_000_000;
    let nanos = left.as_nanos();
    let units: [(u128, char); 6] = [
        (1, 'n'),
        (1_000, 'u'),
        (1_000_000, 'm'),
        (1_000_000_000, 'S'),
        (60_000_000_000, 'M'),
        (3_600_000_000_000, 'H'),
    ];
    let (number, unit) = units
        .into_iter()
        .map(|(size, unit)| (nanos.div_ceil(size), unit))
        .find(|(number, _)| *number < LIMIT)
        .unwrap_or((LIMIT - 1, 'H'));
    HeaderValue::try_from(format!("{number}{unit}")).expect("digits and a letter are a header value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
    }

    #[test]
    fn malformed_values_count_as_none() {
        for text in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", " 1S", "1 S"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
            let mut headers = HeaderMap::from_iter([(GRPC_TIMEOUT.clone(), HeaderValue::from_static(text))]);
            assert_eq!(requested(&mut headers), None);
            assert!(headers.is_empty(), "the endpoint and the timer must agree");
        }
    }

    #[test]
    fn what_is_written_is_read_back_and_never_shorter() {
        for nanos in [0, 1, 99_999_999, 100_000_000, 123_456_789_012, 86_400_000_000_000_001, u64::MAX] {
            let left = Duration::from_nanos(nanos);
            let read = parse(header_value(left).as_bytes()).unwrap();
            assert!(read >= left, "{nanos}");
            assert!(
                read.as_nanos() <= u128::from(nanos) + u128::from(nanos) / 10_000_000 + 3_600_000_000_000,
                "{nanos}"
            );
        }
        assert_eq!(header_value(Duration::from_millis(1500)).to_str().unwrap(), "1500000u");
    }
}
