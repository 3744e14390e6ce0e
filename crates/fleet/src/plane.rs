//! One control plane: the decisions of a real server, behind a queue in front of its processor and its link.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mainstay_control_plane::sans_io::{ServerCore, StreamCore, Turn};
use mainstay_control_plane::{Limits, Snapshot};
use mainstay_xds::client::StreamId;
use mainstay_xds::{Choose, Time};

use crate::fleet::ClientId;
use crate::model::Model;

/// A control plane of the fleet.
#[derive(Debug)]
pub(crate) struct Plane {
    core: ServerCore,
    model: Model,
    pub(crate) state: PlaneState,
    /// When the real clock of the core began: it knows no virtual time, and only differences count.
    epoch: Instant,
    /// When each worker is done with what it has.
    workers: Vec<Time>,
    /// When the link is.
    link: Time,
    /// Connections that wait to be accepted.
    pub(crate) backlog: usize,
    streams: BTreeMap<(ClientId, StreamId), Open>,
    opened: u64,
}

/// Whether a control plane can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaneState {
    Up,
    /// It refuses connections.
    Down,
    /// Whatever is sent to it gets lost.
    Silent,
}

/// A connection, and the stream on it once its first request was let in.
#[derive(Debug)]
struct Open {
    stream: Option<StreamCore>,
    /// Requests that wait for the stream to be let in.
    early: Vec<Bytes>,
    is_asked: bool,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nobody listens.
    Nothing,
    /// The stream is let in after this time; the request waits for that.
    Admit(Duration),
    /// The stream is refused until then.
    Refuse(Duration),
    /// It is to be worked on.
    Work,
    /// It waits for the stream to be let in.
    Wait,
}

impl Plane {
    pub(crate) fn new(model: Model, limits: Limits) -> Self {
        let epoch = Instant::now();
        Self {
            core: ServerCore::new(limits, epoch),
            state: PlaneState::Up,
            workers: vec![Time::ZERO; model.workers.max(1)],
            link: Time::ZERO,
            backlog: 0,
            streams: BTreeMap::new(),
            opened: 0,
            epoch,
            model,
        }
    }

    /// Puts an edition into force; the streams that there are must hear of it.
    pub(crate) fn set(&mut self, snapshot: Snapshot) -> Vec<(ClientId, StreamId)> {
        self.core.set(snapshot);
        self.streams.iter().filter(|(_, open)| open.stream.is_some()).map(|(key, _)| *key).collect()
    }

    /// Cuts everything off: who was connected.
    pub(crate) fn cut(&mut self) -> Vec<(ClientId, StreamId)> {
        (self.backlog, self.link) = (0, Time::ZERO);
        self.workers.fill(Time::ZERO);
        std::mem::take(&mut self.streams).into_keys().collect()
    }

    /// Takes a connection in. Whether there was room for it.
    pub(crate) fn queue_connection(&mut self) -> bool {
        let has_room = self.backlog < self.model.backlog;
        self.backlog += usize::from(has_room);
        has_room
    }

    pub(crate) fn accept(&mut self, key: (ClientId, StreamId)) {
        self.backlog = self.backlog.saturating_sub(1);
        self.streams.insert(key, Open { stream: None, early: Vec::new(), is_asked: false });
    }

    pub(crate) fn close(&mut self, key: (ClientId, StreamId)) {
        self.streams.remove(&key);
    }

    pub(crate) fn has(&self, key: (ClientId, StreamId)) -> bool {
        self.streams.contains_key(&key)
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// A request came in. The first one asks for the stream.
    pub(crate) fn hear(
        &mut self,
        now: Time,
        key: (ClientId, StreamId),
        request: &Bytes,
        choose: &mut dyn Choose,
    ) -> Heard {
        let real = self.epoch + now.since_start();
        let Some(open) = self.streams.get_mut(&key) else { return Heard::Nothing };
        if open.stream.is_some() {
            return Heard::Work;
        }
        open.early.push(request.clone());
        if std::mem::replace(&mut open.is_asked, true) {
            return Heard::Wait;
        }
        match self.core.admit(real, &mut |bound| choose.choose(bound.max(1))) {
            Turn::After(wait) => Heard::Admit(wait),
            Turn::ComeBack(after) => Heard::Refuse(after),
        }
    }

    /// Lets a stream in, of the incremental variant or not: the requests that waited for it.
    pub(crate) fn admit(&mut self, key: (ClientId, StreamId), delta: bool) -> Vec<Bytes> {
        let Some(open) = self.streams.get_mut(&key) else { return Vec::new() };
        self.opened += 1;
        open.stream = Some(StreamCore::new(self.opened, delta));
        std::mem::take(&mut open.early)
    }

    /// Works on a request: what is answered.
    pub(crate) fn serve(&mut self, key: (ClientId, StreamId), request: &Bytes) -> Vec<Bytes> {
        let Some(stream) = self.streams.get_mut(&key).and_then(|open| open.stream.as_mut()) else { return Vec::new() };
        // Requests are made by our own client: none is refused.
        let _ = stream.handle_request(&self.core, request);
        std::iter::from_fn(|| stream.poll_response()).collect()
    }

    /// Tells a stream what is in force: what is sent on it.
    pub(crate) fn push(&mut self, key: (ClientId, StreamId)) -> Vec<Bytes> {
        let Some(stream) = self.streams.get_mut(&key).and_then(|open| open.stream.as_mut()) else { return Vec::new() };
        stream.handle_news(&self.core);
        std::iter::from_fn(|| stream.poll_response()).collect()
    }

    /// When something that takes so long is done, if it is begun as soon as a worker is free.
    pub(crate) fn work(&mut self, now: Time, cost: Duration) -> Time {
        let Some(free) = self.workers.iter_mut().min() else { return now + cost };
        *free = now.max(*free) + cost;
        *free
    }

    /// When bytes that are ready now have left.
    pub(crate) fn transmit(&mut self, now: Time, bytes: usize) -> Time {
        self.link = now.max(self.link) + self.model.transmission(bytes);
        self.link
    }

    /// How long whoever comes now waits for a worker.
    pub(crate) fn queue(&self, now: Time) -> Duration {
        self.workers.iter().min().map_or(Duration::ZERO, |free| free.since(now))
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_a_worker_and_bytes_for_the_link() {
        let model = Model { workers: 2, bandwidth: 1_000, ..Model::default() };
        let mut plane = Plane::new(model, Limits::default());
        let second = Duration::from_secs(1);
        let done: Vec<_> = (0..3).map(|_| plane.work(Time::ZERO, second).since_start()).collect();
        assert_eq!(done, [second, second, second * 2]);
        assert_eq!(plane.queue(Time::ZERO), second, "one of two is free then");
        assert_eq!(plane.transmit(Time::ZERO, 500).since_start(), second / 2);
        assert_eq!(plane.transmit(Time::ZERO, 500).since_start(), second);
    }

    #[test]
    fn a_backlog_that_is_full_takes_nobody() {
        let mut plane = Plane::new(Model { backlog: 1, ..Model::default() }, Limits::default());
        assert!(plane.queue_connection());
        assert!(!plane.queue_connection());
        plane.accept((ClientId(0), StreamId(0)));
        assert!(plane.queue_connection());
    }
}
