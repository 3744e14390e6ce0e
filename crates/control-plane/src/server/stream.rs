//! The task of one ADS stream: it moves messages between the wire and the protocol, and obeys the faults.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use crate::encoding::Encoded;
use crate::event::{Event, SeenRequest, SentResponse, StreamId};
use crate::faults::FaultState;
use crate::protocol::{Protocol, ProtocolError, Response};
use crate::server::streams::{Command, Raw};
use crate::server::{Life, Shared};
use crate::store::Store;
use crate::type_url::TypeUrl;

/// One open stream.
pub(super) struct Stream<P: Protocol> {
    id: StreamId,
    generation: u64,
    shared: Arc<Shared>,
    protocol: P,
    store: watch::Receiver<Store>,
    faults: watch::Receiver<FaultState>,
    life: watch::Receiver<Life>,
    commands: mpsc::UnboundedReceiver<Command>,
    responses: mpsc::Sender<Result<Encoded, Status>>,
    /// Told when the first response is sent.
    answered: Option<oneshot::Sender<()>>,
    /// What waits for room in `responses`: at most one of the protocol's, and whatever the operator injected.
    staged: VecDeque<Response>,
    sent: u64,
    /// When delayed types may be sent.
    due: BTreeMap<TypeUrl, Instant>,
    /// Until when the protocol may wait for the client.
    patience: Option<Instant>,
}

/// What a stream waits for.
enum Happened<R> {
    Request(Result<Option<Box<R>>, Status>),
    Room,
    NewView,
    Command(Command),
    OutOfPatience,
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
    pub(super) fn new(
        shared: Arc<Shared>,
        generation: u64,
        id: StreamId,
        responses: mpsc::Sender<Result<Encoded, Status>>,
        answered: oneshot::Sender<()>,
    ) -> Self {
        Self {
            id,
            generation,
            protocol: P::new(format!("{}.", id.0)),
            store: shared.control_plane.subscribe(),
            faults: shared.faults.subscribe(),
            life: shared.life.subscribe(),
            commands: shared.streams.open(id),
            responses,
            answered: Some(answered),
            staged: VecDeque::new(),
            sent: 0,
            due: BTreeMap::new(),
            patience: None,
            shared,
        }
    }

    /// Runs until either side ends the stream. `_alive` is dropped last.
    pub(super) async fn run(mut self, mut requests: Streaming<P::Request>, _alive: mpsc::Sender<()>) {
        let end = loop {
            if let Some(end) = self.step(&mut requests).await {
                break end;
            }
        };
        if let End::Status(status) = end {
            let generation = self.generation;
            // Whoever does not read is told only when it does; unless it is gone, or the connection is cut.
            tokio::select! {
                _ = self.responses.send(Err(status)) => {}
                _ = self.life.wait_for(|life| life.is_cut(generation)) => {}
            }
        }
    }

    /// Waits for one thing to happen and deals with it.
    async fn step(&mut self, requests: &mut Streaming<P::Request>) -> Option<End> {
        if let Some(end) = self.ending() {
            return Some(end);
        }
        self.stage();
        self.wait_in_patience();
        // While something waits for room nothing else can be sent, due or not: to wake up for it would be a busy loop.
        let next_due = self.due.values().min().copied().filter(|_| self.staged.is_empty());
        let happened = tokio::select! {
            request = requests.message() => Happened::Request(request.map(|request| request.map(Box::new))),
            Ok(_) = self.responses.reserve(), if !self.staged.is_empty() => Happened::Room,
            Ok(()) = self.store.changed() => Happened::NewView,
            Ok(()) = self.faults.changed() => Happened::NewView,
            Ok(()) = self.life.changed() => Happened::Wakeup,
            Some(command) = self.commands.recv() => Happened::Command(command),
            () = sleep_until(next_due) => Happened::Wakeup,
            () = sleep_until(self.patience) => Happened::OutOfPatience,
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
                let (names, removed, is_encoding) = (Vec::new(), Vec::new(), true);
                self.staged.push_back(Response { type_url, names, removed, version, message, is_encoding });
            }
            Happened::OutOfPatience => {
                self.patience = None;
                self.protocol.give_up_waiting();
            }
            Happened::Wakeup => {}
        }
        None
    }

    async fn handle_request(&mut self, request: Box<P::Request>) -> Option<End> {
        let kind = match self.protocol.handle_request(&request) {
            Ok(kind) => kind,
            Err(error) => return Some(End::Status(error.into())),
        };
        let said = P::read(*request);
        let type_url = TypeUrl::from(said.type_url);
        let is_deadly = self.faults.borrow().is_deadly(&type_url, &said.names);
        self.shared.journal.record(Event::Request(SeenRequest {
            stream: self.id,
            node: said.node.map(Box::new),
            type_url,
            names: said.names,
            unsubscribed: said.unsubscribed,
            claims: said.claims,
            version: said.version,
            nonce: said.nonce,
            error: said.error.map(|status| (Code::from_i32(status.code), status.message)),
            kind,
        }));
        if is_deadly {
            self.shared.kill().await;
            return Some(End::Silent);
        }
        // Which view is served may depend on the node, which the first request tells.
        self.refresh();
        None
    }

    /// Hands the newest view to the protocol.
    fn refresh(&mut self) {
        let Some(node_id) = self.protocol.node_id() else { return };
        let view = self.store.borrow_and_update().view(node_id).cloned();
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
            let content = store.view(node_id).and_then(|view| view.get(&type_url));
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
        let Some(response) = self.staged.pop_front() else { return };
        let Response { type_url, names, removed, version, message, is_encoding } = response;
        if is_encoding {
            self.shared.journal.count_encoding();
        }
        let nonce = message.nonce.clone();
        self.shared.journal.record(Event::ResponseSent(SentResponse {
            stream: self.id,
            type_url,
            names,
            removed,
            version,
            nonce,
        }));
        // It fails only if the client is gone, which the next step finds out.
        let _ = self.responses.try_send(Ok(message));
        self.sent += 1;
        if let Some(answered) = self.answered.take() {
            // Nobody waits for this unless headers are held back.
            let _ = answered.send(());
        }
    }

    fn ending(&self) -> Option<End> {
        let life = *self.life.borrow();
        if life.is_cut(self.generation) {
            return Some(End::Silent);
        }
        if life.is_ending(self.generation) {
            return Some(End::Status(Status::unavailable("the control plane is shutting down")));
        }
        self.protocol.node_id()?;
        let code = self.faults.borrow().closes_after(self.sent)?;
        Some(End::Status(Status::new(code, "closed by an injected fault")))
    }
}

impl<P: Protocol> Drop for Stream<P> {
    fn drop(&mut self) {
        self.shared.streams.close(self.id);
        self.shared.journal.record(Event::StreamClosed { stream: self.id });
    }
}

impl From<ProtocolError> for Status {
    fn from(error: ProtocolError) -> Self {
        let code = match error {
            ProtocolError::NoTypeUrl => Code::InvalidArgument,
            ProtocolError::TooManyTypes => Code::ResourceExhausted,
        };
        Status::new(code, error.to_string())
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Clients answer at once; one that takes longer than this may have to do without the safe order.
const PATIENCE: Duration = Duration::from_secs(5);
