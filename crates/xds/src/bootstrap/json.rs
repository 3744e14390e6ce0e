//! Typed reading of JSON. A fault says what was found and what was expected (B-7).

use std::time::Duration;

use serde_json::{Map, Value};

use crate::invalid::Faults;

/// Reads field `name` of `object` with `read`. Absent and `null` are the same, as in proto JSON.
pub(super) fn optional<'a, T>(
    object: &'a Map<String, Value>,
    name: &'static str,
    faults: &mut Faults,
    read: impl FnOnce(&'a Value, &mut Faults) -> Option<T>,
) -> Option<T> {
    match object.get(name) {
        None | Some(Value::Null) => None,
        Some(value) => faults.field(name, |f| read(value, f)),
    }
}

/// As [`optional`], and the field must be there.
pub(super) fn required<'a, T>(
    object: &'a Map<String, Value>,
    name: &'static str,
    faults: &mut Faults,
    read: impl FnOnce(&'a Value, &mut Faults) -> Option<T>,
) -> Option<T> {
    if !is_set(object, name) {
        faults.field(name, |f| f.add("must be set"));
    }
    optional(object, name, faults, read)
}

/// Whether field `name` is there and not `null`.
pub(super) fn is_set(object: &Map<String, Value>, name: &str) -> bool {
    object.get(name).is_some_and(|value| !value.is_null())
}

/// Reads every element of an array. The result leaves out those with faults.
pub(super) fn list<T>(
    value: &Value,
    faults: &mut Faults,
    mut read: impl FnMut(&Value, &mut Faults) -> Option<T>,
) -> Option<Vec<T>> {
    let elements = array(value, faults)?;
    Some(elements.iter().enumerate().filter_map(|(i, element)| faults.index(i, |f| read(element, f))).collect())
}

/// A JSON object.
pub(super) fn object<'a>(value: &'a Value, faults: &mut Faults) -> Option<&'a Map<String, Value>> {
    expect(value, value.as_object(), "an object", faults)
}

/// A JSON array.
pub(super) fn array<'a>(value: &'a Value, faults: &mut Faults) -> Option<&'a Vec<Value>> {
    expect(value, value.as_array(), "an array", faults)
}

/// A JSON boolean.
pub(super) fn boolean(value: &Value, faults: &mut Faults) -> Option<bool> {
    expect(value, value.as_bool(), "true or false", faults)
}

/// A JSON string.
pub(super) fn string<'a>(value: &'a Value, faults: &mut Faults) -> Option<&'a str> {
    expect(value, value.as_str(), "a string", faults)
}

/// A JSON string that is not empty.
pub(super) fn non_empty<'a>(value: &'a Value, faults: &mut Faults) -> Option<&'a str> {
    let text = string(value, faults)?;
    if text.is_empty() {
        faults.add("must not be empty");
        return None;
    }
    Some(text)
}

/// A duration as proto JSON writes it: decimal seconds and an `s`, such as `1.5s` (B-42).
pub(super) fn duration(value: &Value, faults: &mut Faults) -> Option<Duration> {
    let text = string(value, faults)?;
    let parsed = seconds(text);
    if parsed.is_none() {
        faults.add(format!(r#"found {text:?}, expected decimal seconds with the suffix s, such as "600s" or "1.5s""#));
    }
    parsed
}

/// A duration as above, or a whole number of minutes, hours or days: `30m`, `168h`, `7d`.
pub(super) fn age(value: &Value, faults: &mut Faults) -> Option<Duration> {
    let text = string(value, faults)?;
    let parsed = seconds(text).or_else(|| {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let unit = match unit {
            "m" => 60,
            "h" => 3600,
            "d" => 24 * 3600,
            _ => return None,
        };
        let number: u64 = number.parse().ok().filter(|_| number.bytes().all(|byte| byte.is_ascii_digit()))?;
        Some(Duration::from_secs(number.checked_mul(unit).filter(|seconds| *seconds <= MAX_SECONDS)?))
    });
    if parsed.is_none() {
        faults.add(format!(r#"found {text:?}, expected a number with s, m, h or d behind it, such as "168h""#));
    }
    parsed
}

fn seconds(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > NANOS_DIGITS {
        return None;
    }
    let whole = whole.parse().ok().filter(|whole| *whole <= MAX_SECONDS)?;
    // "5" is 500,000,000 ns: fill up to nine digits.
    let nanos = format!("{fraction:0<NANOS_DIGITS$}").parse().ok()?;
    Some(Duration::new(whole, nanos))
}

fn expect<T>(value: &Value, typed: Option<T>, expected: &str, faults: &mut Faults) -> Option<T> {
    if typed.is_none() {
        faults.add(format!("found {}, expected {expected}", kind(value)));
    }
    typed
}

/// What a value is, in the words of a fault.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Digits of a nanosecond count below one second.
const NANOS_DIGITS: usize = 9;

/// The longest protobuf duration: 10,000 years.
const MAX_SECONDS: u64 = 315_576_000_000;
