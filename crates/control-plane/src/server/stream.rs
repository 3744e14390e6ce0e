//! The task of one ADS stream: it moves messages between the wire and the protocol, and obeys the faults.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::admission::{Bucket, Limits};
use crate::encoding::Encoded;
use crate::event::{Event, SeenRequest, SentResponse, StreamId};
use crate::faults::FaultState;
use crate::protocol::{Protocol, ProtocolError, Response};
use crate::server::carrier::{Carrier, Leave, Order};
use crate::server::requests::Requests;
use crate::server::streams::{Command, Raw, Standing};
use crate::server::{Life, Shared};
use crate::store::Store;
use crate::type_url::TypeUrl;

/// One open stream.
pub(super) struct Stream<P: Protocol> {
    opened: Opened,
    shared: Arc<Shared>,
    protocol: P,
    /// What the node is of, where nodes are told apart by class.
    class: Option<String>,
    store: watch::Receiver<Store>,
    faults: watch::Receiver<FaultState>,
    life: watch::Receiver<Life>,
    orders: watch::Receiver<Order>,
    responses: Sender,
    /// Told when the first response is sent.
    answered: Option<oneshot::Sender<()>>,
    /// What waits for room in `responses`: at most one of the protocol's, and whatever the operator injected. A
    /// vector that gives its room back: it is empty nearly always.
    staged: Vec<Response>,
    sent: u64,
    /// Since when something waits for room.
    stuck_since: Option<Instant>,
    /// How much it may ask.
    requests: Bucket,
    standing: Arc<Standing>,
    /// When delayed types may be sent.
    due: BTreeMap<TypeUrl, Instant>,
    /// Until when the protocol may wait for the client.
    patience: Option<Instant>,
}

/// Where responses go. Boxed: a queue has room for many of them, whatever it may hold.
pub(super) type Sender = mpsc::Sender<Box<Result<Encoded, Status>>>;

/// How a stream came to be.
pub(super) struct Opened {
    pub(super) id: StreamId,
    /// Whether it is of the incremental variant.
    pub(super) delta: bool,
    pub(super) generation: u64,
    pub(super) carrier: Carrier,
    /// When the client asked for it.
    pub(super) at: Instant,
}

/// What a stream waits for.
enum Happened<R> {
    Request(Result<Option<Box<R>>, Status>),
    Room,
    NewView,
    Command(Command),
    OutOfPatience,
    Stuck,
    Wakeup,
}

/// How a stream ends.
enum End {
    /// The other side is gone, or the connection is: there is nobody to tell.
    Silent,
    /// With a status.
    Status(Status),
}

impl<P: Protocol> Stream<P> {
    pub(super) fn new(shared: Arc<Shared>, opened: Opened, responses: Sender, answered: oneshot::Sender<()>) -> Self {
        let Limits { requests_per_second, request_burst, .. } = shared.door.limits;
        let standing = shared.streams.open(opened.id, opened.delta, opened.carrier.peer);
        Self {
            protocol: P::new(format!("{}.", opened.id.0)),
            class: None,
            store: shared.control_plane.subscribe(),
            faults: shared.faults.subscribe(),
            life: shared.life.subscribe(),
            orders: opened.carrier.orders(),
            responses,
            answered: Some(answered),
            staged: Vec::new(),
            sent: 0,
            stuck_since: None,
            requests: Bucket::new(requests_per_second, request_burst, opened.at.into_std()),
            standing,
            due: BTreeMap::new(),
            patience: None,
            opened,
            shared,
        }
    }

    /// Runs until either side ends the stream. `_alive` is dropped last.
    pub(super) async fn run(mut self, mut requests: Requests<P::Request>, _alive: mpsc::Sender<()>) {
        let end = loop {
            if let Some(end) = self.step(&mut requests).await {
                break end;
            }
        };
        if let End::Status(status) = end {
            let (generation, slow) = (self.opened.generation, self.shared.door.limits.slow_reader);
            // Whoever does not read is told only when it does, unless it is gone, the connection is cut, or it takes too long.
            tokio::select! {
                _ = self.responses.send(Box::new(Err(status))) => {}
                _ = self.life.wait_for(|life| life.is_cut(generation)) => {}
                () = tokio::time::sleep(slow) => self.opened.carrier.cut(),
            }
        }
    }

    /// Waits for one thing to happen and deals with it.
    async fn step(&mut self, requests: &mut Requests<P::Request>) -> Option<End> {
        if let Some(end) = self.ending() {
            return Some(end);
        }
        self.stage();
        self.stuck_since =
            if self.staged.is_empty() { None } else { self.stuck_since.or_else(|| Some(Instant::now())) };
        let stuck_at = self.stuck_since.map(|since| since + self.shared.door.limits.slow_reader);
        self.wait_in_patience();
        // While something waits for room nothing else can be sent, due or not: to wake up for it would be a busy loop.
        let next_due = self.due.values().min().copied().filter(|_| self.staged.is_empty());
        let happened = tokio::select! {
            request = requests.message() => Happened::Request(request.map(|request| request.map(Box::new))),
            Ok(_) = self.responses.reserve(), if !self.staged.is_empty() => Happened::Room,
            Ok(()) = self.store.changed() => Happened::NewView,
            Ok(()) = self.faults.changed() => Happened::NewView,
            Ok(()) = self.life.changed() => Happened::Wakeup,
            Ok(()) = self.orders.changed() => Happened::Wakeup,
            command = self.standing.command() => Happened::Command(command),
            () = sleep_until(next_due) => Happened::Wakeup,
            () = sleep_until(self.patience) => Happened::OutOfPatience,
            () = sleep_until(stuck_at) => Happened::Stuck,
            () = self.responses.closed() => return Some(End::Silent),
        };
        match happened {
            Happened::Request(Ok(Some(request))) => return self.handle_request(request).await,
            // A client that will say no more will not acknowledge either: the stream is over.
            Happened::Request(Ok(None)) => return Some(End::Status(Status::ok(""))),
            Happened::Request(Err(_)) => return Some(End::Silent),
            Happened::Room => self.send(),
            Happened::NewView => self.refresh(),
            Happened::Command(Command::Close(status)) => return Some(End::Status(status)),
            Happened::Command(Command::Send(Raw { type_url, version, message })) => {
                let (names, removed, is_encoding) = (Arc::default(), Arc::default(), true);
                self.staged.push(Response { type_url, names, removed, version, message, is_encoding });
            }
            Happened::OutOfPatience => {
                self.patience = None;
                self.protocol.give_up_waiting();
            }
            // What is on its way is kept for as long as the connection is, so that goes, too (FB-38).
            Happened::Stuck => {
                self.shared.journal.record(Event::SlowReader { stream: self.opened.id });
                self.opened.carrier.cut();
                return Some(End::Silent);
            }
            Happened::Wakeup => {}
        }
        None
    }

    async fn handle_request(&mut self, request: Box<P::Request>) -> Option<End> {
        let stream = self.opened.id;
        if self.requests.take(std::time::Instant::now(), Duration::ZERO).is_none() {
            let what = "more requests than a stream may send".to_owned();
            return Some(self.asked_too_much(what));
        }
        let is_first = self.protocol.node_id().is_none();
        let kind = match self.protocol.handle_request(&request) {
            Ok(kind) => kind,
            Err(error @ ProtocolError::NoTypeUrl) => {
                return Some(End::Status(Status::invalid_argument(error.to_string())));
            }
            Err(
                error @ (ProtocolError::TooManyTypes | ProtocolError::TooManyNames(_) | ProtocolError::LongName(_)),
            ) => return Some(self.asked_too_much(error.to_string())),
        };
        let said = P::read(*request);
        let classified = if is_first { self.classify(said.node.as_ref()) } else { Ok(()) };
        let type_url = TypeUrl::from(said.type_url);
        let is_deadly = self.faults.borrow().is_deadly(&type_url, &said.names);
        let error = said.error.map(|status| (Code::from_i32(status.code), status.message));
        self.standing.heard(&type_url, said.node.as_ref(), kind, error.as_ref().map(|(_, text)| text.as_str()));
        self.shared.journal.record(Event::Request(SeenRequest {
            stream,
            node: said.node.map(Box::new),
            type_url,
            names: said.names,
            unsubscribed: said.unsubscribed,
            claims: said.claims,
            version: said.version,
            nonce: said.nonce,
            error,
            kind,
        }));
        if is_deadly {
            self.shared.kill().await;
            return Some(End::Silent);
        }
        // First responses are the work of a herd: so many are made at once (FB-32).
        let shared = Arc::clone(&self.shared);
        let _turn = match is_first {
            true => match shared.door.work().await {
                Ok(turn) => Some(turn),
                Err(status) => return Some(End::Status(status)),
            },
            false => None,
        };
        // Which view is served may depend on the node, which the first request tells.
        if let Err(status) = classified {
            return Some(End::Status(status));
        }
        self.refresh();
        if let Some(name) = self.protocol.unanswerable_listener() {
            return Some(End::Status(Status::unavailable(format!(
                "Listener {name:?} is not among what is held here, which says nothing of whether it exists"
            ))));
        }
        self.stage();
        None
    }

    /// Finds out what the node is of, and whether there is anything for it.
    fn classify(&mut self, node: Option<&Node>) -> Result<(), Status> {
        let store = self.store.borrow();
        let id = node.map(|node| node.id.as_str()).unwrap_or_default();
        let class = store.class_of(node).map_err(|reason| {
            tracing::warn!("node {id:?} is refused: {reason}");
            Status::permission_denied(reason)
        })?;
        if class.is_some() && store.view(class.as_deref(), id).is_none() {
            let class = class.unwrap_or_default();
            // Clients take silence for absence after 15 seconds: who has nothing to say says so.
            return Err(Status::unavailable(format!("there is no complete configuration for nodes of {class:?} yet")));
        }
        drop(store);
        self.class = class;
        Ok(())
    }

    /// Ends a stream that asks for more than anybody needs (FB-39).
    fn asked_too_much(&self, what: String) -> End {
        self.shared.journal.record(Event::AskedTooMuch { stream: self.opened.id, what: what.clone() });
        End::Status(Status::resource_exhausted(what))
    }

    /// Hands the newest view to the protocol.
    fn refresh(&mut self) {
        let Some(node_id) = self.protocol.node_id() else { return };
        let view = self.store.borrow_and_update().view(self.class.as_deref(), node_id).cloned();
        let faults = self.faults.borrow_and_update();
        self.protocol.tell_absence(!faults.hides_absence);
        self.protocol.handle_view(faults.distort(view));
    }

    /// Takes the next response from the protocol, if there is room for it and no fault is in the way.
    fn stage(&mut self) {
        if !self.staged.is_empty() {
            return;
        }
        let faults = self.faults.borrow();
        let due = &mut self.due;
        let now = Instant::now();
        let may_send = |type_url: &TypeUrl| {
            if faults.holds(type_url) {
                return false;
            }
            let Some(delay) = faults.delay(type_url) else { return true };
            *due.entry(type_url.clone()).or_insert(now + delay) <= now
        };
        let response = self.protocol.poll_response(may_send);
        // Nothing waits for these any more: they were sent now, or the delay was lifted.
        due.retain(|_, at| *at > now);
        self.staged.extend(response);
        for (type_url, name) in self.protocol.take_absent() {
            let node_id = self.protocol.node_id().unwrap_or_default();
            let store = self.store.borrow();
            let content = store.view(self.class.as_deref(), node_id).and_then(|view| view.get(&type_url));
            self.shared.absent.note(node_id, &type_url, &name, content.map(Arc::as_ref));
        }
    }

    /// Bounds the time for which the protocol waits for the client, from the moment at which it began to.
    fn wait_in_patience(&mut self) {
        self.patience = match self.protocol.is_waiting() {
            true => self.patience.or_else(|| Some(Instant::now() + PATIENCE)),
            false => None,
        };
    }

    /// Sends what was staged first; there is room for it.
    fn send(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let response = self.staged.remove(0);
        if self.staged.is_empty() {
            self.staged = Vec::new();
        }
        let Response { type_url, names, removed, version, message, is_encoding } = response;
        if is_encoding {
            self.shared.journal.count_encoding();
        }
        if self.sent == 0 {
            self.shared.journal.count_first_response(self.opened.at.elapsed());
        }
        self.shared.journal.count_bytes(message.body.len() + message.nonce.len());
        self.standing.sent(&type_url, &version);
        // The answer to it does not count.
        self.requests.put();
        let stream = self.opened.id;
        self.shared.journal.record_response(&type_url, || {
            let (type_url, nonce) = (type_url.clone(), message.nonce.clone());
            SentResponse { stream, type_url, names: names.to_vec(), removed: removed.to_vec(), version, nonce }
        });
        // It fails only if the client is gone, which the next step finds out.
        let _ = self.responses.try_send(Box::new(Ok(message)));
        self.sent += 1;
        if let Some(answered) = self.answered.take() {
            // Nobody waits for this unless headers are held back.
            let _ = answered.send(());
        }
    }

    fn ending(&self) -> Option<End> {
        if self.life.borrow().is_cut(self.opened.generation) {
            return Some(End::Silent);
        }
        match *self.orders.borrow() {
            Order::Stay => {}
            Order::Leave(Leave::Drain) => return Some(End::Status(self.shared.door.away(DRAINING))),
            Order::Leave(Leave::Age) => return Some(End::Status(Status::unavailable(OLD))),
            Order::Cut => return Some(End::Silent),
        }
        self.protocol.node_id()?;
        let code = self.faults.borrow().closes_after(self.sent)?;
        Some(End::Status(Status::new(code, "closed by an injected fault")))
    }
}

impl<P: Protocol> Drop for Stream<P> {
    fn drop(&mut self) {
        self.shared.streams.close(self.opened.id);
        self.shared.journal.record(Event::StreamClosed { stream: self.opened.id });
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What clients are told when the server stops.
pub(super) const DRAINING: &str = "the control plane is shutting down";
const OLD: &str = "the connection has reached its age; a new one is welcome";
/// Clients answer at once; one that takes longer than this may have to do without the safe order.
const PATIENCE: Duration = Duration::from_secs(5);
