//! What is behind a new state of a connection to an endpoint, as metrics tell it (A94, A118).

use std::io::ErrorKind;

use crate::failure;
use crate::tls::Handshake;

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
pub(crate) enum Disconnect {
    /// The peer said so, with a code of HTTP/2.
    GoAway(u32),
    /// Its user has no use for it any more.
    #[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "only metrics tell of it"))]
    Shutdown,
    Reset,
    /// By the network, or a ping without an answer.
    TimedOut,
    Aborted,
    /// Something else is wrong with the socket.
    Socket,
    Unknown,
}

/// What is behind a new state of a connection.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(not(feature = "opentelemetry"), expect(dead_code, reason = "only metrics ask"))]
pub(crate) struct Cause {
    /// Why it is not connected any more.
    pub(crate) lost: Option<Disconnect>,
    /// How the TLS handshake of the attempt ended.
    pub(crate) handshake: Option<Handshake>,
}

impl Cause {
    pub(crate) fn lost(why: Disconnect) -> Self {
        Self { lost: Some(why), handshake: None }
    }
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
