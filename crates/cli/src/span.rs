//! Spans of time in flags and in output.

use std::time::Duration;

/// Reads `500ms`, `10s`, `1m 30s`; a bare number means seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let span = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|_| EXPECTED.to_owned())?,
        Err(_) => humantime::parse_duration(text).map_err(|_| EXPECTED.to_owned())?,
    };
    if span.is_zero() { Err("a span of no time makes no sense here".to_owned()) } else { Ok(span) }
}

/// Milliseconds with as many digits as matter.
pub(crate) fn millis(span: Duration) -> String {
    let ms = span.as_secs_f64() * 1e3;
    let digits = if ms < 10.0 { 2 } else { usize::from(ms < 1000.0) };
    format!("{ms:.digits$} ms")
}

const EXPECTED: &str = "expected a span such as 500ms, 10s or 1m 30s";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_units_and_bare_numbers_are_seconds() {
        for (text, ms) in [("500ms", 500), ("10s", 10_000), ("1m 30s", 90_000), ("2", 2_000), ("0.25", 250)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in ["", "x", "-1", "1e300", "NaN", "inf", "10 apples"] {
            assert_eq!(parse(text), Err(EXPECTED.to_owned()), "{text}");
        }
        assert!(parse("0s").is_err());
    }

    #[test]
    fn milliseconds_show_the_digits_that_matter() {
        let shown = [123, 12_345, 1_234_567].map(|us| millis(Duration::from_micros(us)));
        assert_eq!(shown, ["0.12 ms", "12.3 ms", "1235 ms"]);
    }
}
