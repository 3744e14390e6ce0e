//! Signs of life: whether the server of a stream is there, when it owes an answer and is silent.

use std::pin::Pin;

use mainstay_xds::client::Sign;
use tokio::sync::watch;

use super::connection::{Peer, StreamPermit};
use super::exchange::check_health;
use super::wire::Heard;

/// Looks for signs of life on the connection of a stream, once it is told to.
pub(super) struct Life<'a> {
    peer: &'a Peer,
    permit: &'a StreamPermit,
    heard: watch::Receiver<Heard>,
    /// What had been heard when the last request of the stream was on the wire.
    written: Heard,
    probe: Option<Probe>,
}

/// What was told since the last probe, or the last request after it.
struct Probe {
    /// What had been heard before it.
    start: Heard,
    /// Whether a PONG alone is not enough.
    call: bool,
    pong_told: bool,
    data_told: bool,
    /// The health check under way.
    check: Option<Pin<Box<dyn Future<Output = Answer> + Send>>>,
    /// A health check was answered on another connection.
    answered_elsewhere: bool,
}

/// What became of a health check.
enum Answer {
    /// It was answered on the connection of the stream, where it was heard.
    Here,
    /// It was answered on another connection.
    Elsewhere,
    /// There will be no answer.
    None,
}

impl<'a> Life<'a> {
    pub(super) fn new(peer: &'a Peer, permit: &'a StreamPermit) -> Self {
        let heard = permit.established().wire.listen();
        let written = *heard.borrow();
        Self { peer, permit, heard, written, probe: None }
    }

    /// A request of the stream is on the wire; what had been heard until then.
    pub(super) fn wrote(&mut self, heard: Heard) {
        self.written = heard;
        if let Some(probe) = &mut self.probe {
            let check = probe.check.take();
            *probe = Probe { check, ..Probe::new(heard, probe.call) };
        }
    }

    /// Asks for a sign: by a ping, and by a call if `call`.
    pub(super) fn probe(&mut self, call: bool) {
        let check = self.probe.take().and_then(|probe| probe.check);
        let check = check.or_else(|| call.then(|| self.check()));
        self.probe = Some(Probe { check, ..Probe::new(*self.heard.borrow(), call) });
        self.permit.established().ping();
    }

    /// The next sign since the last request, if a sign is asked for. One of each kind is enough, and what shows more
    /// is told first. Nothing is lost if the future is dropped.
    pub(super) async fn next_sign(&mut self) -> Sign {
        let Self { heard, written, probe: Some(probe), .. } = self else { return std::future::pending().await };
        loop {
            let now = *heard.borrow_and_update();
            let answers_pings = now.by_stack > probe.start.by_stack;
            // An answer on another connection shows that the server is well, and a PONG that this connection is.
            if !probe.data_told && (now.data > written.data || probe.answered_elsewhere && answers_pings) {
                (probe.data_told, probe.pong_told, probe.check) = (true, true, None);
                return Sign::Data;
            }
            if !probe.pong_told && answers_pings {
                probe.pong_told = true;
                return Sign::Pong;
            }
            tokio::select! {
                answer = run(&mut probe.check) => {
                    probe.check = None;
                    probe.answered_elsewhere |= matches!(answer, Answer::Elsewhere);
                }
                Ok(()) = heard.changed(), if !probe.data_told => {}
            }
        }
    }

    /// A health check on the connection of the stream. If the server allows no more streams on it, on another one.
    fn check(&self) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let (here, peer) = (self.permit.beside(), self.peer.clone());
        Box::pin(async move {
            let (permit, answer) = match here {
                Some(permit) => (permit, Answer::Here),
                None => match peer.permit().await {
                    Ok(permit) => (permit, Answer::Elsewhere),
                    Err(_) => return Answer::None,
                },
            };
            match check_health(permit.established()).await {
                Ok(()) => answer,
                Err(_) => Answer::None,
            }
        })
    }
}

impl Drop for Life<'_> {
    /// A stream that is given up while its server owes a sign of life leaves a connection that the next one must not try.
    fn drop(&mut self) {
        if self.probe.as_ref().is_some_and(Probe::is_unanswered) {
            self.permit.retire();
        }
    }
}

impl Probe {
    fn new(start: Heard, call: bool) -> Self {
        Self { start, call, pong_told: false, data_told: false, check: None, answered_elsewhere: false }
    }

    fn is_unanswered(&self) -> bool {
        !self.data_told && (self.call || !self.pong_told)
    }
}

async fn run(check: &mut Option<Pin<Box<dyn Future<Output = Answer> + Send>>>) -> Answer {
    match check {
        Some(check) => check.await,
        None => std::future::pending().await,
    }
}
