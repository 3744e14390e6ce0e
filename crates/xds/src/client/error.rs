//! The texts of errors. They are made here and nowhere read.

use std::fmt;
use std::time::Duration;

use super::{CloseCause, ErrorKind, ResourceError};
use crate::Code;

impl ResourceError {
    /// URI of the server concerned.
    pub fn server_uri(&self) -> Option<&str> {
        self.server.as_ref().map(|server| &*server.server_uri)
    }
}

impl fmt::Display for ResourceError {
    /// Names the resource, the server, our node and the cause (C-30).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = &self.resource;
        let server = self.server_uri().unwrap_or("any server");
        let node = format_args!("(node {:?})", self.node_id);
        match &self.kind {
            ErrorKind::InvalidName(why) => write!(f, "{resource} is not a usable name {node}: {why}"),
            ErrorKind::UnknownAuthority(authority) => {
                write!(f, "{resource} cannot be requested {node}: authority {authority:?} is not in the bootstrap")
            }
            ErrorKind::Unreachable(cause) => {
                write!(f, "{resource} cannot be fetched from {server} {node}, which is unreachable: {cause}")
            }
            ErrorKind::DoesNotExist { after } => {
                write!(f, "{resource} does not exist on {server} {node}, {} after it was requested", Span(*after))
            }
            ErrorKind::TimedOut { after } => {
                write!(f, "{resource} was not sent by {server} {node} within {}", Span(*after))
            }
            ErrorKind::Deleted => write!(f, "{resource} was deleted on {server} {node}"),
            ErrorKind::NeedsDelta => {
                write!(
                    f,
                    "{resource} is a glob collection, which needs delta: the stream to {server} {node} does not speak it"
                )
            }
            ErrorKind::Rejected { version, invalid } => {
                write!(f, "{resource} version {version:?} from {server} {node} was rejected: {invalid}")
            }
            ErrorKind::FromServer { code, message } => {
                write!(f, "{resource}: {server} {node} answered with {}: {message}", CodeName(*code))
            }
        }
    }
}

impl std::error::Error for ResourceError {}

impl fmt::Display for CloseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConnectFailed(why) => write!(f, "cannot connect: {why}"),
            Self::ConnectionLost(why) => write!(f, "connection lost: {why}"),
            Self::Ended { code, message } | Self::Deferred { code, message, .. } if message.is_empty() => {
                write!(f, "the server ended the stream: {}", CodeName(*code))
            }
            Self::Ended { code, message } | Self::Deferred { code, message, .. } => {
                write!(f, "the server ended the stream: {}: {message}", CodeName(*code))
            }
        }
    }
}

/// A gRPC status code by its name.
struct CodeName(u16);

impl fmt::Display for CodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Code::from_number(self.0) {
            Some(code) => f.write_str(code.name()),
            None => write!(f, "status {}", self.0),
        }
    }
}

/// A duration in whole seconds if it is, else in milliseconds.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_nanos() {
            0 => write!(f, "{} s", self.0.as_secs()),
            _ => write!(f, "{} ms", self.0.as_millis()),
        }
    }
}
