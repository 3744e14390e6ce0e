//! The signals that ask a command to end.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGINT and SIGTERM (elsewhere: Ctrl-C), caught from the moment this exists.
#[derive(Debug)]
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
}

impl Signals {
    /// Begins to catch.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::try_listen().map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))
    }

    #[cfg(unix)]
    fn try_listen() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    #[cfg(not(unix))]
    fn try_listen() -> io::Result<Self> {
        Ok(Self {})
    }

    /// The next request to end. Cancel safe: what arrives between two waits is not lost.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// The next request to end.
    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
