//! Pings on a connection on which nothing is heard (A8).

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use crate::pulse::Pulse;

/// HTTP/2 keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeepAlive {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// Pings the peer of a connection when it has said nothing for the interval, while there are calls.
pub(crate) struct Keeper {
    settings: KeepAlive,
    /// Whether it pings while there are no calls, too.
    without_calls: bool,
    pings: PingPong,
    state: State,
    timer: Pin<Box<Sleep>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody needs the connection.
    Dormant,
    /// Until the peer has been silent for the interval.
    Listening,
    /// Until the peer has been silent for the timeout.
    Pinged,
}

impl Keeper {
    pub(crate) fn new(settings: KeepAlive, without_calls: bool, pings: PingPong) -> Self {
        let timer = Box::pin(tokio::time::sleep(settings.interval));
        Self { settings, without_calls, pings, state: State::Dormant, timer }
    }

    /// Ready when the peer is dead: it has not answered a ping, nor said anything else. Called whenever the connection is
    /// polled, as it is when a call begins.
    pub(crate) fn poll(&mut self, pulse: &Pulse, calls: usize, cx: &mut Context<'_>) -> Poll<()> {
        let is_needed = self.without_calls || calls > 0;
        loop {
            match self.state {
                State::Dormant => {
                    if !is_needed {
                        return Poll::Pending;
                    }
                    self.listen(pulse);
                }
                State::Listening => {
                    ready!(self.timer.as_mut().poll(cx));
                    let now = Instant::now();
                    if !is_needed {
                        self.state = State::Dormant;
                    } else if pulse.heard_at() + self.settings.interval > now {
                        self.listen(pulse);
                    } else if self.pings.send_ping(Ping::opaque()).is_ok() {
                        self.state = State::Pinged;
                        self.timer.as_mut().reset(now + self.settings.timeout);
                    } else {
                        return Poll::Pending; // The connection is over, and says why.
                    }
                }
                State::Pinged => {
                    if self.pings.poll_pong(cx).is_ready() {
                        self.listen(pulse);
                        continue;
                    }
                    ready!(self.timer.as_mut().poll(cx));
                    // Whatever else the peer says is a sign of life.
                    let due = pulse.heard_at() + self.settings.timeout;
                    if due <= Instant::now() {
                        return Poll::Ready(());
                    }
                    self.timer.as_mut().reset(due);
                }
            }
        }
    }

    fn listen(&mut self, pulse: &Pulse) {
        self.state = State::Listening;
        self.timer.as_mut().reset(pulse.heard_at() + self.settings.interval);
    }
}
