//! What an RPC is told when its connection fails.

use std::net::SocketAddr;

use http::HeaderName;
use tonic::{Code, Status};

/// The header or trailer that ends every answer of gRPC.
pub(crate) static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The status of an RPC whose connection or stream broke.
///
/// A stream that the endpoint reset has an HTTP/2 reason, which tonic maps as the gRPC protocol
/// wants. Everything else means that the connection is gone: UNAVAILABLE, whatever tonic calls it.
pub(crate) fn transport(error: h2::Error, address: SocketAddr) -> Status {
    let mut cause = format!("http2 error: {}", describe(&error));
    if is_malformed(&error) {
        cause.push_str(" (malformed, or larger than ChannelBuilder::max_header_list_size allows)");
    }
    let mapped = Status::from_error(Box::new(error)).code();
    let code = if mapped == Code::Unknown { Code::Unavailable } else { mapped };
    Status::new(code, format!("connection to {address}: {cause}"))
}

/// Whether we turned a response down: h2 does so with headers that are no good, or too much.
fn is_malformed(error: &h2::Error) -> bool {
    error.is_library() && matches!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR | h2::Reason::ENHANCE_YOUR_CALM))
}

/// Whether the endpoint said that it did not process the request: it went away in peace, or refused the stream.
pub(crate) fn is_refusal(error: &h2::Error) -> bool {
    let went_away = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
    let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    error.is_remote() && (went_away || refused)
}

/// What was wrong with the socket, if that is the cause.
pub(crate) fn io_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<h2::Error>().and_then(h2::Error::get_io);
        if let Some(io) = io.or_else(|| cause.downcast_ref()) {
            return Some(io);
        }
        next = cause.source();
    }
    None
}

/// An error with all its causes, each once.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner")]
    struct Inner;

    #[test]
    fn causes_are_named_from_the_outside_in() {
        assert_eq!(describe(&Outer(Inner)), "outer: inner");
    }
}
