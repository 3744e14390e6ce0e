//! Percent-encoding with the character sets of RFC 3986 (P-85, B-34).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};

use super::NameError;

/// Encodes what may not stand in a path. Slashes stay.
pub(crate) fn encode_path(text: &str) -> String {
    utf8_percent_encode(text, PATH).to_string()
}

/// Encodes what may not stand in an authority. Slashes do not stay.
pub(crate) fn encode_authority(text: &str) -> String {
    utf8_percent_encode(text, AUTHORITY).to_string()
}

/// Encodes one segment of a path. Slashes do not stay.
pub(super) fn encode_segment(bytes: &[u8]) -> String {
    percent_encode(bytes, SEGMENT).to_string()
}

/// Encodes key or value of a context parameter.
pub(super) fn encode_parameter(bytes: &[u8]) -> String {
    percent_encode(bytes, PARAMETER).to_string()
}

/// The bytes behind a percent-encoded part of a name.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, NameError> {
    let mut parts = text.split('%');
    parts.next();
    for part in parts {
        if !part.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(NameError::Malformed(format!("{text:?} has a % that no two hexadecimal digits follow")));
        }
    }
    Ok(percent_decode_str(text).collect())
}

/// The authority behind its percent-encoded form.
pub(crate) fn decode_authority(text: &str) -> Result<String, NameError> {
    String::from_utf8(decode(text)?).map_err(|_| {
        NameError::Malformed(format!("authority {text:?} is not UTF-8 once its percent-encoding is undone"))
    })
}

/// The text behind a part of a target; `None` if it is none. A `%` that encodes nothing stands for itself.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

/// Everything but pchar: unreserved, sub-delims, `:` and `@`.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

const PATH: &AsciiSet = &SEGMENT.remove(b'/');

const AUTHORITY: &AsciiSet = &SEGMENT.remove(b'[').remove(b']');

/// A query may have `/` and `?`; `&` and `=` part its parameters.
const PARAMETER: &AsciiSet = &PATH.remove(b'?').add(b'&').add(b'=');
