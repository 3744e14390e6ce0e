//! The signals that ask a command to end, or to look again.

use std::io;

#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGINT and SIGTERM (elsewhere: Ctrl-C), caught from the moment this exists; and SIGHUP, from the moment that somebody asks.
#[derive(Debug)]
pub(crate) struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
    #[cfg(unix)]
    hangup: Option<Signal>,
}

impl Signals {
    /// Begins to catch.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::try_listen().map_err(|error| Failure::failed(format!("cannot catch signals: {error}")))
    }

    #[cfg(unix)]
    fn try_listen() -> io::Result<Self> {
        let (interrupt, terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        Ok(Self { interrupt, terminate, hangup: None })
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

    /// Catches SIGHUP from now on, which would end the program otherwise.
    #[cfg(unix)]
    pub(crate) fn catch_hangup(&mut self) -> Result<(), Failure> {
        let caught = signal(SignalKind::hangup());
        self.hangup = Some(caught.map_err(|error| Failure::failed(format!("cannot catch SIGHUP: {error}")))?);
        Ok(())
    }

    /// There is no such signal here.
    #[cfg(not(unix))]
    pub(crate) fn catch_hangup(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// The next signal, and what it asks for. Cancel safe, too.
    pub(crate) async fn next_wish(&mut self) -> Wish {
        #[cfg(unix)]
        if let Some(hangup) = &mut self.hangup {
            return tokio::select! {
                _ = self.interrupt.recv() => Wish::End,
                _ = self.terminate.recv() => Wish::Drain,
                _ = hangup.recv() => Wish::Reload,
            };
        }
        self.next().await;
        Wish::End
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To look again at what is followed.
    Reload,
    /// To end, but not in a hurry.
    Drain,
    /// To end.
    End,
}
