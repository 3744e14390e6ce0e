//! Why a connection to an endpoint was lost, as metrics tell it (A94).

use std::io::ErrorKind;

use crate::failure;

/// Why a connection is over, if the peer did not just close it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error(transparent)]
    Http2(#[from] h2::Error),
    #[error("keep-alive timed out")]
    KeepAlive,
}

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
    pub(crate) fn of(ended: Option<&Result<(), Lost>>) -> Self {
        let error = match ended {
            None | Some(Ok(())) => return Self::Unknown,
            Some(Err(Lost::KeepAlive)) => return Self::TimedOut,
            Some(Err(Lost::Http2(error))) => error,
        };
        match failure::io_error(error).map(std::io::Error::kind) {
            Some(ErrorKind::ConnectionReset) => Self::Reset,
            Some(ErrorKind::TimedOut) => Self::TimedOut,
            Some(ErrorKind::ConnectionAborted) => Self::Aborted,
            Some(_) => Self::Socket,
            None => Self::Unknown,
        }
    }
}
