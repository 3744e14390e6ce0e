//! When servers are called: one attempt at a time, at those in use only, with the pauses that are due (P-13 to P-20).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{CloseCause, Protocol, Sign, StreamId};
use mainstay_xds::name::AuthorityKey;
use mainstay_xds::resource::ResourceType;

use super::delta::Manners;
use super::wire::StreamView;
use super::{Oracle, PROBE_PATIENCE};
use crate::invariant::{Invariant, Violation};

/// One server, from the client's side.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaneView {
    pub(super) attempt: Option<StreamId>,
    /// Whether the next one was told.
    announced: bool,
    /// When the next attempt may begin at the earliest, and must at the latest.
    next: Option<(Time, Time)>,
    /// Whether that is a while only because nothing is missing: a new need ends it.
    at_leisure: bool,
    /// The last attempt came to nothing, and nothing was heard since.
    pub(super) down: bool,
    failures: u32,
    ends: u32,
    /// The last version of each type that was accepted.
    pub(super) accepted: BTreeMap<ResourceType, Arc<str>>,
    /// Types of which something that this server sent is not held any more, so that its version need not be told.
    pub(super) lost_some: BTreeSet<ResourceType>,
    /// A stream that the client ended in this step, until it says why.
    pub(super) ended: Option<StreamView>,
    /// Authorities that fell back to it in this step.
    pub(super) fallbacks: BTreeSet<AuthorityKey>,
    /// Authorities that lacked something after the last step.
    pub(super) lacked: BTreeSet<AuthorityKey>,
    /// Which variant it speaks, and who it says that it is.
    pub(super) manners: Manners,
}

impl PlaneView {
    /// Nobody needs the server any more: everything about it is forgotten.
    pub(super) fn start_afresh(&mut self) {
        let (attempt, announced, lacked) = (self.attempt, self.announced, std::mem::take(&mut self.lacked));
        let manners = self.manners.afresh();
        *self = Self { attempt, announced, lacked, manners, ..Self::default() };
    }
}

impl Oracle {
    /// The client begins an attempt.
    pub(crate) fn open(
        &mut self,
        now: Time,
        plane: usize,
        stream: StreamId,
        connect_timeout: Duration,
        protocol: Protocol,
    ) -> Result<(), Violation> {
        let uri = self.rules.uri(plane).to_owned();
        let view = &mut self.planes[plane];
        Invariant::Attempts.holds(view.attempt.is_none(), || format!("a second attempt at {uri}"))?;
        if view.ended.is_some() {
            view.start_afresh(); // It was released, and is needed again in the same moment.
        }
        if let Some((earliest, latest)) = view.next.take() {
            let overslept = self.woke.is_some_and(|woke| latest < woke);
            view.at_leisure = false;
            Invariant::Backoff.holds(earliest <= now && (now <= latest || overslept), || {
                format!("an attempt at {uri} at {now:?}: expected between {earliest:?} and {latest:?}")
            })?;
        }
        let expected = self.expected_protocol(plane);
        Invariant::Attempts.holds(protocol == expected, || {
            format!("{uri} is spoken to in {protocol:?}: expected {expected:?} (DX-1 to DX-3)")
        })?;
        let view = &mut self.planes[plane];
        view.attempt = Some(stream);
        let announced = std::mem::take(&mut view.announced);
        Invariant::States.holds(announced, || format!("an attempt at {uri} begins, and nobody is told"))?;
        let settings = &self.rules.settings;
        let known = [settings.connect_timeout, settings.last_connect_timeout];
        Invariant::Attempts
            .holds(known.contains(&connect_timeout), || format!("{uri} may take {connect_timeout:?} to connect"))?;
        let taken = self.streams.insert(stream, StreamView::new(plane, connect_timeout, protocol)).is_some();
        Invariant::Attempts.holds(!taken, || format!("stream {} was opened twice", stream.0))
    }

    /// The client tells that an attempt begins.
    pub(super) fn connecting(&mut self, server: &ServerConfig) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        self.planes[plane].announced = true;
        Ok(())
    }

    /// The client tells that a stream is open.
    pub(super) fn connected(&mut self, server: &ServerConfig) -> Result<(), Violation> {
        let stream = self.stream_to(server).filter(|stream| stream.opened.is_some());
        let is_new = stream.is_some_and(|stream| !std::mem::replace(&mut stream.opening_told, true));
        Invariant::States.holds(is_new, || format!("{} is said to be connected", server.server_uri))
    }

    /// The client tells that the first response came.
    pub(super) fn has_answered(&mut self, server: &ServerConfig) -> Result<(), Violation> {
        let stream = self.stream_to(server).filter(|stream| stream.answered);
        let is_new = stream.is_some_and(|stream| !std::mem::replace(&mut stream.answer_told, true));
        Invariant::States.holds(is_new, || format!("{} is said to have answered", server.server_uri))
    }

    fn stream_to(&mut self, server: &ServerConfig) -> Option<&mut StreamView> {
        let plane = self.rules.plane(server)?;
        self.streams.get_mut(&self.planes[plane].attempt?)
    }

    /// The connection is there and the stream is open.
    pub(crate) fn opened(&mut self, now: Time, stream: StreamId) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.opened = Some(now);
        }
    }

    /// The world ends an attempt.
    pub(crate) fn lost(&mut self, now: Time, stream: StreamId, cause: &CloseCause) {
        let Some(stream) = self.streams.remove(&stream) else { return };
        let is_refusal = self.is_refusal(&stream, cause);
        let view = &mut self.planes[stream.plane];
        view.attempt = None;
        view.manners.ended(now);
        if is_refusal {
            view.manners.untold = true; // No failure: the next stream follows at once, in the other variant.
            return;
        }
        match stream.opened.filter(|_| stream.answered) {
            Some(opened) => self.ended(now, stream.plane, now.since(opened)),
            None => self.failed(now, stream.plane),
        }
    }

    /// The client ends an attempt: nobody needs the server, or it is given up.
    pub(crate) fn close(&mut self, now: Time, stream: StreamId) -> Result<(), Violation> {
        let Some(stream) = self.streams.remove(&stream) else {
            return Err(Invariant::Attempts.broken("a stream was closed that was not open"));
        };
        let view = &mut self.planes[stream.plane];
        view.attempt = None;
        view.manners.ended(now);
        if stream.estranged {
            self.left(stream.plane);
        } else {
            view.ended = Some(stream);
        }
        Ok(())
    }

    /// The client calls a server unreachable.
    pub(super) fn gave_up(&mut self, now: Time, server: &ServerConfig, pause: Duration) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        let uri = self.rules.uri(plane).to_owned();
        if let Some(stream) = self.planes[plane].ended.take() {
            // Nobody ended it but the client: it must have asked for a sign of life in vain, or waited for an answer
            // for as long as the settings allow.
            let asked = stream.probed.is_some_and(|probed| now.since(probed.at) >= PROBE_PATIENCE);
            let in_vain = stream.probed.is_some_and(|probed| !stream.is_proven_since(probed));
            let silent = self.rules.settings.silent_stream_timeout.is_some_and(|timeout| {
                !stream.answered && stream.first_sent.is_some_and(|at| now.since(at) >= timeout)
            });
            Invariant::Life.holds((asked && in_vain) || silent, || {
                format!("{uri} was given up, and nobody had asked it for a sign of life in vain for {PROBE_PATIENCE:?}")
            })?;
            self.failed(now, plane);
        }
        let view = &self.planes[plane];
        Invariant::Backoff
            .holds(view.next.is_none_or(|(earliest, latest)| (earliest..=latest).contains(&(now + pause))), || {
                format!("{uri} is told to be tried again in {pause:?}: expected {:?}", view.next)
            })
    }

    /// A sign of life came that was asked for. While another server is next in line, a PONG alone proves nothing.
    pub(crate) fn alive(&mut self, stream: StreamId, sign: Sign) {
        let has_next = self.streams.get(&stream).is_some_and(|stream| self.has_next(stream.plane));
        if let Some(stream) = self.streams.get_mut(&stream) {
            match sign {
                Sign::Pong => stream.pongs += 1,
                Sign::Data => stream.data += 1,
            }
            stream.proofs += u32::from(sign == Sign::Data || !has_next);
        }
    }

    /// The client holds a server to be up again, on a sign of life.
    pub(super) fn is_alive_again(&mut self, server: &ServerConfig) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        let stream = self.planes[plane].attempt.and_then(|id| self.streams.get(&id));
        let proven = stream.is_some_and(|stream| {
            stream.last_sent.is_some_and(|sent| stream.is_proven_since(sent)) && stream.sending.is_none()
        });
        Invariant::Life.holds(proven, || {
            format!("{} counts as alive without a sign of life since the last request", self.rules.uri(plane))
        })?;
        self.planes[plane].down = false;
        self.changed = true;
        Ok(())
    }

    /// The client is told to forget past failures: whoever waits is tried at once (C-83).
    pub(crate) fn forgive(&mut self, now: Time) {
        for view in &mut self.planes {
            (view.failures, view.ends) = (0, 0);
            if let Some(next) = &mut view.next {
                *next = (now, now);
            }
        }
    }

    /// A response came: the server is there, and past failures are forgiven (P-20).
    pub(super) fn answered(&mut self, plane: usize) {
        let view = &mut self.planes[plane];
        view.failures = 0;
        self.changed |= std::mem::take(&mut view.down);
    }

    fn failed(&mut self, now: Time, plane: usize) {
        let pause = self.pause(self.planes[plane].failures);
        let view = &mut self.planes[plane];
        view.failures += 1;
        view.down = true;
        view.at_leisure = false;
        view.next = Some(around(now, pause));
        self.changed = true;
    }

    /// An answered stream is over. The next one follows at once, or is paced if they end soon, again and again (P-18).
    fn ended(&mut self, now: Time, plane: usize, lived: Duration) {
        let pause = self.planes[plane].ends.checked_sub(1).map(|ends| self.pause(ends));
        let at_leisure = !self.is_needed(plane);
        let spread = if at_leisure { self.rules.settings.reconnect_spread } else { Duration::ZERO };
        let view = &mut self.planes[plane];
        view.at_leisure = false;
        view.next = Some(match pause {
            Some(pause) if lived < pause => {
                view.ends += 1;
                around(now, pause)
            }
            _ => {
                view.ends = 1;
                view.at_leisure = at_leisure;
                (now, now + spread)
            }
        });
    }

    /// Whether somebody waits for a server to come back: something is missing, or the authority is on a fallback, or
    /// would be soon.
    fn is_needed(&self, plane: usize) -> bool {
        self.charges.iter().any(|(authority, charge)| {
            self.rules.servers_of(authority)[..=charge.rank].contains(&plane)
                && (charge.rank > 0 || self.rules.falls_back_on_loss(authority) || self.lacks_something(authority))
        })
    }

    /// The client tells when it will come back to a server whose stream ended.
    pub(super) fn stream_ended(&mut self, now: Time, server: &ServerConfig, pause: Duration) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        let next = self.planes[plane].next;
        let is_right = next.is_none_or(|(earliest, latest)| (earliest..=latest).contains(&(now + pause)));
        Invariant::Backoff.holds(is_right || self.planes[plane].attempt.is_some(), || {
            format!("{} is told to be tried again in {pause:?}: expected {next:?}", self.rules.uri(plane))
        })
    }

    /// The pause after so many failures, without jitter (P-19).
    fn pause(&self, failures: u32) -> Duration {
        let settings = &self.rules.settings;
        let factor = 1.6f64.powi(i32::try_from(failures.min(100)).unwrap_or(100));
        let pause = settings.backoff_base.as_secs_f64() * factor;
        Duration::from_secs_f64(pause.min(settings.backoff_max.as_secs_f64()))
    }

    /// Every server in use is being tried, with the right bound; no other is.
    pub(super) fn check_attempts(&mut self, now: Time) -> Result<(), Violation> {
        for plane in 0..self.planes.len() {
            let (in_use, has_next) = (self.is_in_use(plane), self.has_next(plane));
            let is_needed = self.planes[plane].at_leisure && self.is_needed(plane);
            let uri = self.rules.uri(plane).to_owned();
            let settings = &self.rules.settings;
            let bound = if has_next { settings.connect_timeout } else { settings.last_connect_timeout };
            let view = &mut self.planes[plane];
            let ended = view.ended.take().is_some();
            Invariant::Attempts
                .holds(!view.manners.untold, || format!("{uri} does not speak delta, and nobody is told"))?;
            if !in_use {
                let idle = view.attempt.is_none();
                Invariant::Attempts.holds(idle, || format!("{uri} is not in use and has a stream"))?;
                view.start_afresh();
                continue;
            }
            Invariant::Attempts
                .holds(!ended || view.attempt.is_some(), || format!("{uri} is in use, and its stream was closed"))?;
            let waits = view.next.is_some_and(|(_, latest)| now <= latest || self.asleep);
            Invariant::Attempts.holds(view.attempt.is_some() || !is_needed, || {
                format!("{uri} is needed, and there is no attempt at it although nothing failed")
            })?;
            Invariant::Attempts.holds(view.attempt.is_some() || waits, || {
                format!("{uri} is in use, has no stream, and its next attempt is overdue or not planned")
            })?;
            let stream = view.attempt.and_then(|id| self.streams.get_mut(&id));
            if let Some(stream) = &stream {
                let told = (stream.opening_told, stream.answer_told);
                Invariant::States.holds(told == (stream.opened.is_some(), stream.answered), || {
                    format!("{uri} is connected or has answered, and what was told is {told:?}")
                })?;
            }
            if let Some(stream) = stream
                && !std::mem::replace(&mut stream.bound_checked, true)
            {
                Invariant::Attempts.holds(stream.connect_timeout == bound, || {
                    format!("{uri} may take {:?} to connect: expected {bound:?}", stream.connect_timeout)
                })?;
            }
        }
        Ok(())
    }
}

/// A fifth to either side (P-19), and a little for rounding.
fn around(now: Time, pause: Duration) -> (Time, Time) {
    let rounding = Duration::from_millis(2);
    (now + pause.mul_f64(0.8) - rounding, now + pause.mul_f64(1.2) + rounding)
}
