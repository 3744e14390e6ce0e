//! What the listening addresses of xDS-enabled servers serve (A36).
//!
//! A [`ServerCore`] is the `#server` client (C-2) and one machine for each address: it watches the Listener of the address
//! and every RouteConfiguration that a filter chain of it names, and says when to listen, what connections are served by,
//! and which of them to drain. Like all cores it is driven from outside: commands and `handle_*` go in, then
//! [`ServerCore::poll_output`] is drained until it answers [`Output::Wait`].
//!
//! What is in force for an address is one value, a [`Serving`], which is replaced as a whole:
//!
//! - another Listener is another [`Generation`]: connections that are accepted from then on are served by it, those before
//!   it are drained; an equal one is nothing at all (SV-12);
//! - it comes in force when every RouteConfiguration that it names has been loaded, or is known not to be had; until then
//!   the one before it stays, with its routes (SV-11);
//! - other routes are the same generation, and for running connections too (SV-6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::client::{
    self, ClientSettings, Event, Intern, Protocol, Report, ResourceError, StreamId, WatchId, XdsClient,
};
use crate::name::ResourceKey;
use crate::target::ServerListenerError;
use crate::{Choose, Time};

mod drain;
mod machine;
mod serving;
mod state;
mod timers;
mod whole;

pub use drain::Drain;
pub use serving::{Generation, RouteResult, Serving};
pub use state::{NotServing, ServingState};

use machine::{Context, Machine};
use timers::{Timer, Timers};

/// One listening address. Ids are never used twice by one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// What the driver must do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Do this, then poll again.
    Do(Action),
    /// Nothing left: wait for an event, or until this time and call [`ServerCore::handle_timeout`].
    Wait(Option<Time>),
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// See [`client::Action::Open`].
    OpenStream {
        /// Id of the attempt.
        stream: StreamId,
        /// Where to.
        server: Arc<ServerConfig>,
        /// Bound on connecting.
        connect_timeout: Duration,
        /// The variant of ADS.
        protocol: Protocol,
    },
    /// See [`client::Action::Send`].
    Send(StreamId, Bytes),
    /// See [`client::Action::Probe`].
    Probe {
        /// Of which stream.
        stream: StreamId,
        /// Whether a PONG alone would not be enough.
        call: bool,
    },
    /// See [`client::Action::Close`].
    CloseStream(StreamId),
    /// Tell whoever observes the client.
    Report(Report),
    /// Serve connections that are accepted from now on by this; nothing is accepted if absent. With the generation that
    /// was published last, only the routes are others, which hold for its running connections too.
    Publish(ListenerId, Option<Arc<Serving>>),
    /// Let the socket of the address accept connections, binding it first if it is not bound. Answered by
    /// [`ServerCore::handle_socket`].
    Listen(ListenerId),
    /// Refuse connections at the address, and keep it bound. Answered by [`ServerCore::handle_socket`].
    StopListening(ListenerId),
    /// Give the address up. Not answered.
    Close(ListenerId),
    /// Let the connections of a generation end.
    Drain(ListenerId, Drain),
    /// Tell the application whether the address is served now. In order, and never twice the same (SV-13).
    Tell(ListenerId, ServingState),
    /// Tell the log that a RouteConfiguration of what is in force cannot be had, so that RPCs of the chains that name it
    /// fail; or, without an error, that it is there again (S-18).
    TellRoutes(ListenerId, Arc<str>, Option<Arc<ResourceError>>),
}

/// Numbers that users may change, for one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServeSettings {
    /// How long connections of a replaced generation may go on (A36).
    pub drain_grace: Duration,
    /// Over how long the GOAWAYs of one update go out if there are many connections (SV-23).
    pub drain_spread: Duration,
    /// How long a switch between xDS servers may hold an update back.
    pub switch_timeout: Duration,
    /// Pause after a socket could not be made to listen (SV-7).
    pub listen_retry: Duration,
    /// Whether a Listener that asks for TLS is not served, as the credentials of the server would not follow it (TL-2).
    pub refuse_tls: bool,
}

impl Default for ServeSettings {
    fn default() -> Self {
        Self {
            drain_grace: Duration::from_secs(600),
            drain_spread: Duration::from_secs(1),
            switch_timeout: Duration::from_secs(15),
            listen_retry: Duration::from_secs(1),
            refuse_tls: false,
        }
    }
}

/// The `#server` client and all listening addresses that it configures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerCore {
    bootstrap: Arc<Bootstrap>,
    client: XdsClient,
    /// The latest time that anybody told us.
    now: Time,
    machines: BTreeMap<ListenerId, Machine>,
    /// Machines that must look again.
    stale: BTreeSet<ListenerId>,
    watches: BTreeMap<(ListenerId, ResourceKey), WatchId>,
    watched: BTreeMap<WatchId, (ListenerId, ResourceKey)>,
    timers: Timers,
    client_deadline: Option<Time>,
    out: VecDeque<Action>,
    next_listener: u64,
    next_generation: u64,
}

impl ServerCore {
    /// A core without addresses, which connects to nothing.
    pub fn new(bootstrap: Arc<Bootstrap>, settings: ClientSettings) -> Self {
        Self {
            client: XdsClient::new(Arc::clone(&bootstrap), settings),
            bootstrap,
            now: Time::ZERO,
            machines: BTreeMap::new(),
            stale: BTreeSet::new(),
            watches: BTreeMap::new(),
            watched: BTreeMap::new(),
            timers: Timers::default(),
            client_deadline: None,
            out: VecDeque::new(),
            next_listener: 0,
            next_generation: 0,
        }
    }

    /// Serves `address`, whose socket is bound and does not listen yet. The port is the one that it was given (SV-9).
    ///
    /// # Errors
    /// If there is no name for its Listener (B-36). Nothing else can make this fail (SV-3).
    pub fn add(
        &mut self,
        now: Time,
        address: SocketAddr,
        settings: ServeSettings,
    ) -> Result<ListenerId, ServerListenerError> {
        let name = self.bootstrap.server_listener_name(address)?;
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        let machine = Machine::new(address, &name, settings, self.bootstrap.guards.federation);
        let watch = machine.listener_key();
        self.machines.insert(id, machine);
        self.advance(now);
        self.watch(id, watch);
        Ok(id)
    }

    /// Takes in news of an ADS stream. Resources with equal bytes are shared through `intern`, if there is one.
    pub fn handle_event(&mut self, now: Time, choose: &mut dyn Choose, intern: Option<&mut dyn Intern>, event: Event) {
        self.advance(now);
        match intern {
            Some(intern) => self.client.handle_event_sharing(now, choose, intern, event),
            None => self.client.handle_event(now, choose, event),
        }
    }

    /// Takes in what became of [`Action::Listen`] or [`Action::StopListening`].
    pub fn handle_socket(&mut self, now: Time, id: ListenerId, outcome: Result<(), String>) {
        self.advance(now);
        self.with_machine(id, |machine, cx| machine.handle_socket(cx, outcome));
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout(&mut self, now: Time, choose: &mut dyn Choose) {
        self.advance(now);
        self.client.handle_timeout(now, choose);
        while let Some((id, timer)) = self.timers.pop_due(now) {
            match timer {
                Timer::Mixture => drop(self.stale.insert(id)),
                Timer::Socket => self.with_machine(id, Machine::retry_socket),
            }
        }
    }

    /// Stops serving an address for good: no connection is accepted any more, all of them are drained. Its resources
    /// stay watched, for the RPCs that still come, until [`ServerCore::remove`] (SV-25).
    pub fn shut_down(&mut self, now: Time, id: ListenerId) {
        self.advance(now);
        self.with_machine(id, Machine::shut_down);
    }

    /// Forgets an address; nothing is said of it any more. With the last one all streams end.
    pub fn remove(&mut self, now: Time, id: ListenerId) {
        self.advance(now);
        self.shut_down(now, id);
        self.machines.remove(&id);
        self.timers.cancel_all(id);
        let keys: Vec<_> = self.watches.keys().filter(|(of, _)| *of == id).map(|(_, key)| key.clone()).collect();
        keys.into_iter().for_each(|key| self.unwatch(id, key));
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Output {
        loop {
            self.drain_client();
            let Some(id) = self.stale.pop_first() else { break };
            self.with_machine(id, Machine::evaluate);
        }
        match self.out.pop_front() {
            Some(action) => Output::Do(action),
            None => Output::Wait(self.client_deadline.into_iter().chain(self.timers.next()).min()),
        }
    }

    /// The client, for status views.
    pub fn client(&self) -> &XdsClient {
        &self.client
    }

    /// Whether an address is served, as was told last.
    pub fn state(&self, id: ListenerId) -> Option<&ServingState> {
        self.machines.get(&id).map(Machine::state)
    }

    /// What is in force for an address.
    pub fn serving(&self, id: ListenerId) -> Option<&Arc<Serving>> {
        self.machines.get(&id)?.serving()
    }

    /// The Listener resource of an address.
    pub fn listener_name(&self, id: ListenerId) -> Option<&Arc<str>> {
        self.machines.get(&id).map(Machine::listener_name)
    }

    fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Lets a machine act, and does what it wants of the client: new watches begin before old ones end (P-96).
    fn with_machine(&mut self, id: ListenerId, act: impl FnOnce(&mut Machine, &mut Context<'_>)) {
        let Some(machine) = self.machines.get_mut(&id) else { return };
        let (mut begun, mut ended) = (Vec::new(), Vec::new());
        let mut cx = Context {
            now: self.now,
            id,
            timers: &mut self.timers,
            next_generation: &mut self.next_generation,
            out: &mut self.out,
            begun: &mut begun,
            ended: &mut ended,
        };
        act(machine, &mut cx);
        begun.into_iter().for_each(|key| self.watch(id, key));
        ended.into_iter().for_each(|key| self.unwatch(id, key));
    }

    fn watch(&mut self, id: ListenerId, key: ResourceKey) {
        let watch = self.client.watch(self.now, key.resource_type, &key.name);
        self.watches.insert((id, key.clone()), watch);
        self.watched.insert(watch, (id, key));
    }

    fn unwatch(&mut self, id: ListenerId, key: ResourceKey) {
        if let Some(watch) = self.watches.remove(&(id, key)) {
            self.watched.remove(&watch);
            self.client.unwatch(self.now, watch);
        }
    }

    /// Hands on what the client wants, and keeps what it says for the machines.
    fn drain_client(&mut self) {
        loop {
            let action = match self.client.poll_output() {
                client::Output::Do(action) => action,
                client::Output::Wait(deadline) => {
                    self.client_deadline = deadline;
                    return;
                }
            };
            let action = match action {
                client::Action::Open { stream, server, connect_timeout, protocol } => {
                    Action::OpenStream { stream, server, connect_timeout, protocol }
                }
                client::Action::Send(stream, message) => Action::Send(stream, message),
                client::Action::Probe { stream, call } => Action::Probe { stream, call },
                client::Action::Close(stream) => Action::CloseStream(stream),
                client::Action::Report(report) => Action::Report(report),
                client::Action::ActiveServer(authority, server) => {
                    for (id, machine) in &mut self.machines {
                        if machine.handle_active_server(self.now, &authority, &server) {
                            self.stale.insert(*id);
                        }
                    }
                    continue;
                }
                client::Action::Notify(watch, update) => {
                    if let Some((id, key)) = self.watched.get(&watch)
                        && let Some(machine) = self.machines.get_mut(id)
                        && machine.handle_update(key, update)
                    {
                        self.stale.insert(*id);
                    }
                    continue;
                }
            };
            self.out.push_back(action);
        }
    }
}

#[cfg(test)]
mod tests;
