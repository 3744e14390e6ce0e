//! Fields of a config in JSON, as gRPC's service config has them. `None` means that there is a fault.

use std::time::Duration;

use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;

use super::super::fields::excerpt;
use crate::invalid::Faults;

/// The value of a field, if it is set to anything but null.
pub(super) fn field<'a>(config: &'a Struct, key: &'static str) -> Option<&'a Kind> {
    config.fields.get(key)?.kind.as_ref().filter(|kind| !matches!(kind, Kind::NullValue(_)))
}

/// A whole number that is not negative; as a text too, as proto JSON writes large ones.
pub(super) fn whole(config: &Struct, key: &'static str, default: u64, faults: &mut Faults) -> Option<u64> {
    let value = match field(config, key) {
        None => return Some(default),
        // Exactly those that a u64 can be made of.
        Some(Kind::NumberValue(n)) if n.fract() == 0.0 && (0.0..TWO_TO_64).contains(n) => Some(*n as u64),
        Some(Kind::StringValue(text)) => text.parse().ok(),
        Some(_) => None,
    };
    or_fault(value, key, "must be a whole number that is not negative", faults)
}

/// True or false.
pub(super) fn boolean(config: &Struct, key: &'static str, faults: &mut Faults) -> Option<bool> {
    let value = match field(config, key) {
        None => return Some(false),
        Some(Kind::BoolValue(value)) => Some(*value),
        Some(_) => None,
    };
    or_fault(value, key, "must be true or false", faults)
}

/// A text; empty if absent.
pub(super) fn text<'a>(config: &'a Struct, key: &'static str, faults: &mut Faults) -> Option<&'a str> {
    let value = match field(config, key) {
        None => return Some(""),
        Some(Kind::StringValue(value)) => Some(value.as_str()),
        Some(_) => None,
    };
    or_fault(value, key, "must be a text", faults)
}

/// A list of texts; empty if absent.
pub(super) fn texts(config: &Struct, key: &'static str, faults: &mut Faults) -> Option<Vec<String>> {
    let value = match field(config, key) {
        None => return Some(Vec::new()),
        Some(Kind::ListValue(list)) => list
            .values
            .iter()
            .map(|value| match &value.kind {
                Some(Kind::StringValue(text)) => Some(text.clone()),
                _ => None,
            })
            .collect(),
        Some(_) => None,
    };
    or_fault(value, key, "must be a list of texts", faults)
}

/// A number.
pub(super) fn number(config: &Struct, key: &'static str, default: f64, faults: &mut Faults) -> Option<f64> {
    let value = match field(config, key) {
        None => return Some(default),
        Some(Kind::NumberValue(value)) => Some(*value),
        Some(_) => None,
    };
    or_fault(value, key, "must be a number", faults)
}

/// A duration such as `"1.5s"`.
pub(super) fn duration(config: &Struct, key: &'static str, default: Duration, faults: &mut Faults) -> Option<Duration> {
    let text = match field(config, key) {
        None => return Some(default),
        Some(Kind::StringValue(text)) => text.as_str(),
        Some(_) => "",
    };
    let value = parse_duration(text);
    or_fault(value, key, &format!("must be a duration such as \"1.5s\": found {}", excerpt(text)), faults)
}

fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.strip_suffix('s')?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(seconds) || !is_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    let seconds: u64 = seconds.parse().ok()?;
    (seconds <= MAX_SECONDS).then(|| Duration::new(seconds, nanos))
}

fn or_fault<T>(value: Option<T>, key: &'static str, expected: &str, faults: &mut Faults) -> Option<T> {
    if value.is_none() {
        faults.field(key, |f| f.add(expected));
    }
    value
}

const TWO_TO_64: f64 = 18_446_744_073_709_551_616.0;

/// The bound of protobuf.
const MAX_SECONDS: u64 = 315_576_000_000;

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::Value;

    use super::*;

    #[test]
    fn durations_are_read_exactly() {
        let parse = |text: &str| parse_duration(text);
        assert_eq!(parse("10s"), Some(Duration::from_secs(10)));
        assert_eq!(parse("0.1s"), Some(Duration::from_millis(100)));
        assert_eq!(parse("1.000000001s"), Some(Duration::new(1, 1)));
        for text in ["", "s", "1", "-1s", "+1s", "1.s", ".5s", "1.0000000001s", "315576000001s", "1e3s", "ås"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers_may_be_texts() {
        let read = |kind| {
            let config = Struct { fields: [("n".to_owned(), Value { kind: Some(kind) })].into() };
            let mut faults = Faults::new();
            let value = whole(&config, "n", 7, &mut faults);
            assert_eq!(value.is_none(), !faults.is_empty());
            value
        };
        assert_eq!(read(Kind::NumberValue(3.0)), Some(3));
        assert_eq!(read(Kind::StringValue("8388608".into())), Some(8_388_608));
        assert_eq!(read(Kind::NullValue(0)), Some(7));
        for kind in [
            Kind::NumberValue(1.5),
            Kind::NumberValue(-1.0),
            Kind::NumberValue(f64::NAN),
            Kind::NumberValue(TWO_TO_64),
            Kind::StringValue("x".into()),
            Kind::BoolValue(true),
        ] {
            assert_eq!(read(kind.clone()), None, "{kind:?}");
        }
    }
}
