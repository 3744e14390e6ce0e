//! Why a connection to an endpoint was lost, as metrics tell it (A94).

use std::io::ErrorKind;

use crate::failure;

/// Why a connection ended: the first thing that was wrong with it (A94, S-76).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "metrics tell them apart"))]
pub(crate) enum Disconnect {
    /// The peer said so, with a code of HTTP/2.
    GoAway(u32),
    /// Its user has no use for it any more.
    Shutdown,
    Reset,
    /// By the network, or a ping without an answer.
    TimedOut,
    Aborted,
    /// Something else is wrong with the socket.
    Socket,
    Unknown,
}

impl Disconnect {
    /// Of a connection that the peer ended without a GOAWAY.
    pub(crate) fn of(ended: Result<(), hyper::Error>) -> Self {
        let Err(error) = ended else { return Self::Unknown };
        if error.is_timeout() {
            return Self::TimedOut;
        }
        match failure::io_error(&error).map(std::io::Error::kind) {
            Some(ErrorKind::ConnectionReset) => Self::Reset,
            Some(ErrorKind::TimedOut) => Self::TimedOut,
            Some(ErrorKind::ConnectionAborted) => Self::Aborted,
            Some(_) => Self::Socket,
            None => Self::Unknown,
        }
    }
}
