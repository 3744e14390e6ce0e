//! What an RPC brings along, and what routes see of it.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

/// What is known of an RPC before it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Rpc<'a> {
    /// `/service/method`.
    pub path: &'a str,
    /// Request metadata.
    pub headers: &'a HeaderMap,
}

/// The name as requests have it; `None` if routes cannot see such a header (L-34).
pub(crate) fn visible_name(name: &str) -> Option<HeaderName> {
    let hidden = name.ends_with("-bin") || name.starts_with("grpc-") || HIDDEN.contains(&name);
    if hidden { None } else { HeaderName::from_bytes(name.as_bytes()).ok() }
}

/// The value of a header; several are joined with commas (L-34).
pub(crate) fn visible_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, str>> {
    let mut values = headers.get_all(name).iter().filter_map(|value| std::str::from_utf8(value.as_bytes()).ok());
    let first = match values.next() {
        Some(first) => first,
        None if name == http::header::CONTENT_TYPE => "application/grpc",
        None => return None,
    };
    let mut joined = Cow::Borrowed(first);
    for value in values {
        let text = joined.to_mut();
        text.push(',');
        text.push_str(value);
    }
    Some(joined)
}

/// Headers that are not the application's metadata.
const HIDDEN: [&str; 3] = ["host", "te", "user-agent"];
