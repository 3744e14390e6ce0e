//! One listening address: its Listener, the routes of its chains, what is in force, and its socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use super::timers::{Timer, Timers};
use super::{Action, Drain, Generation, ListenerId, NotServing, RouteResult, ServeSettings, Serving, ServingState};
use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::client::{ResourceError, Update};
use crate::deps::{Name, Source, Sources, State, Verdict, Watched, key};
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::listener::{FilterChain, RouteSource, ServerListener};
use crate::resource::{Listener, ResourceType, RouteConfig};

/// What a machine is given to act with.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) now: Time,
    pub(super) id: ListenerId,
    pub(super) timers: &'a mut Timers,
    pub(super) next_generation: &'a mut u64,
    pub(super) out: &'a mut VecDeque<Action>,
    /// Resources to watch from now on, and no longer.
    pub(super) begun: &'a mut Vec<ResourceKey>,
    pub(super) ended: &'a mut Vec<ResourceKey>,
}

/// One address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Machine {
    address: SocketAddr,
    name: Arc<str>,
    settings: ServeSettings,
    federation: bool,

    pub(super) listener: Watched<Listener>,
    /// The RouteConfigurations of the newest Listener and of the one in force, by canonical name.
    pub(super) routes: BTreeMap<Arc<str>, Watched<RouteConfig>>,
    /// The servers behind the newest Listener and its routes.
    sources: Sources,
    counted: Vec<Source>,
    pub(super) held_until: Option<Time>,

    pub(super) in_force: Option<Arc<Serving>>,
    /// The RouteConfigurations in force that cannot be had, as told.
    broken: BTreeMap<Arc<str>, Arc<ResourceError>>,
    socket: Socket,
    retry_at: Option<Time>,
    state: ServingState,
    is_shut_down: bool,
}

/// The socket of the address, as far as we were told.
///
/// ```text
///            Listen              ok
///   Bound ───────────► Opening ─────► Listening
///     ▲                                   │
///     └────────────── Closing ◄───────────┘
///            ok               StopListening
/// ```
/// What fails is tried again after a pause, unless the opposite is wanted by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Socket {
    /// Refuses connections.
    Bound,
    /// Told to listen, and nothing was heard of it.
    Opening,
    /// Accepts connections.
    Listening,
    /// Told to stop, and nothing was heard of it.
    Closing,
    /// It could not be made to listen.
    Shut,
    /// It does not listen, but could not be bound again.
    Unbound,
    /// Given up.
    Closed,
}

/// What the newest Listener comes to.
enum Newest {
    /// Nothing was heard of it yet.
    Awaited,
    /// It cannot be served.
    Unusable(NotServing),
    Listener(Arc<ServerListener>),
}

impl Machine {
    pub(super) fn new(address: SocketAddr, listener: &str, settings: ServeSettings, federation: bool) -> Self {
        let name = Name::new::<Listener>(listener, federation);
        let awaited = NotServing::Awaited { listener: name.canonical.clone() };
        Self {
            address,
            settings,
            federation,
            listener: Watched::new(name.authority),
            name: name.canonical,
            routes: BTreeMap::new(),
            sources: Sources::default(),
            counted: Vec::new(),
            held_until: None,
            in_force: None,
            broken: BTreeMap::new(),
            socket: Socket::Bound,
            retry_at: None,
            state: ServingState::NotServing(Arc::new(awaited)),
            is_shut_down: false,
        }
    }

    pub(super) fn listener_key(&self) -> ResourceKey {
        key::<Listener>(&self.name)
    }

    pub(super) fn listener_name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn state(&self) -> &ServingState {
        &self.state
    }

    pub(super) fn serving(&self) -> Option<&Arc<Serving>> {
        self.in_force.as_ref()
    }

    /// Takes in news of a resource; says whether it must look again.
    pub(super) fn handle_update(&mut self, resource: &ResourceKey, update: Update) -> bool {
        match resource.resource_type {
            ResourceType::Listener => self.listener.hear(update),
            ResourceType::RouteConfig => self.routes.get_mut(&resource.name).is_some_and(|routes| routes.hear(update)),
            // Servers have none of these.
            ResourceType::Cluster
            | ResourceType::Endpoints
            | ResourceType::EndpointCollection
            | ResourceType::EndpointGlob => false,
        }
    }

    /// Takes in that another server is in charge of an authority; says whether it must look again.
    pub(super) fn handle_active_server(
        &mut self,
        now: Time,
        authority: &AuthorityKey,
        server: &Arc<ServerConfig>,
    ) -> bool {
        self.sources.switch(now, authority, server)
    }

    // --- What is in force ---

    /// Brings everything up to date with what came in.
    pub(super) fn evaluate(&mut self, cx: &mut Context<'_>) {
        if self.is_shut_down {
            self.follow_routes(cx); // No connection will ask for another Listener.
            return;
        }
        match self.newest() {
            Newest::Awaited => {}
            Newest::Unusable(why) => self.stop(cx, why),
            Newest::Listener(listener) => self.consider(cx, listener),
        }
        self.sweep(cx);
    }

    /// The newest Listener, if it can be served.
    pub(super) fn newest_listener(&self) -> Option<Arc<ServerListener>> {
        match self.newest() {
            Newest::Listener(listener) => Some(listener),
            Newest::Awaited | Newest::Unusable(_) => None,
        }
    }

    fn newest(&self) -> Newest {
        let (listener, server) = match &self.listener.state {
            State::Waiting(None) => return Newest::Awaited,
            // Trouble with servers takes nothing away, and there is nothing.
            State::Waiting(Some(error)) | State::Failed(error) => {
                return Newest::Unusable(NotServing::Resource(Arc::clone(error)));
            }
            State::Valid(listener, server) => (listener, server),
        };
        let (name, server) = (Arc::clone(&self.name), Arc::from(server.server_uri.as_str()));
        match &**listener {
            Listener::Api(_) => Newest::Unusable(NotServing::NotForServers { listener: name, server }),
            Listener::Server(listener) if listener.is_for(self.address) => {
                let secured = listener.chains.iter().find(|chain| self.settings.refuse_tls && chain.tls.is_some());
                match secured.map(|chain| Arc::clone(&chain.name)) {
                    Some(chain) => Newest::Unusable(NotServing::SecurityNotFollowed { listener: name, server, chain }),
                    None => Newest::Listener(Arc::clone(listener)),
                }
            }
            Listener::Server(other) => Newest::Unusable(NotServing::AnotherAddress {
                listener: name,
                server,
                found: other.address,
                expected: self.address,
            }),
        }
    }

    /// Puts the newest Listener in force if it is complete and of one piece (SV-11).
    fn consider(&mut self, cx: &mut Context<'_>, listener: Arc<ServerListener>) {
        let names: BTreeSet<Arc<str>> = listener.route_names().map(|name| self.canonical(name)).collect();
        for name in &names {
            self.watch_routes(cx, name);
        }
        let is_in_force = self.in_force.as_ref().is_some_and(|serving| serving.listener == listener);
        let mixed_sources = match self.judge(cx, &names) {
            Verdict::Hold(_) => return,
            Verdict::Clean => false,
            Verdict::Mixed => true,
        };
        let Some(routes) = self.results(&listener) else { return };
        // S-17: without anything in force, routes that cannot be fetched are not waited for. With something in force
        // they are: it stays as long as only servers are in trouble.
        let in_trouble = |routes: &Watched<RouteConfig>| matches!(routes.state, State::Waiting(_));
        let is_waiting = names.iter().filter_map(|name| self.routes.get(name)).any(in_trouble);
        if !is_in_force && self.in_force.is_some() && is_waiting {
            return self.follow_routes(cx);
        }
        let generation = match &self.in_force {
            Some(serving) if is_in_force => serving.generation,
            Some(_) | None => {
                *cx.next_generation += 1;
                Generation(*cx.next_generation)
            }
        };
        self.publish(cx, Serving { generation, name: self.name.clone(), listener, mixed_sources, routes });
        self.want_listening(cx);
    }

    /// Publishes other routes of the Listener in force.
    fn follow_routes(&mut self, cx: &mut Context<'_>) {
        if let Some(serving) = self.in_force.clone()
            && let Some(routes) = self.results(&serving.listener)
        {
            self.publish(cx, Serving { routes, ..Serving::clone(&serving) });
        }
    }

    /// Puts it in force, unless it is: connections of the generation before are drained.
    fn publish(&mut self, cx: &mut Context<'_>, serving: Serving) {
        if self.in_force.as_deref() == Some(&serving) {
            return;
        }
        self.tell_routes(cx, &serving);
        let serving = Arc::new(serving);
        cx.out.push_back(Action::Publish(cx.id, Some(Arc::clone(&serving))));
        let generation = serving.generation;
        if let Some(before) = self.in_force.replace(serving)
            && before.generation != generation
        {
            self.drain(cx, before.generation);
        }
    }

    /// Takes what is in force away.
    fn stop(&mut self, cx: &mut Context<'_>, why: NotServing) {
        if let Some(before) = self.in_force.take() {
            cx.out.push_back(Action::Publish(cx.id, None));
            self.want_silence(cx);
            self.drain(cx, before.generation);
            self.broken.clear();
        }
        cx.timers.set(cx.id, Timer::Mixture, &mut self.held_until, None);
        self.tell(cx, ServingState::NotServing(Arc::new(why)));
    }

    pub(super) fn shut_down(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.is_shut_down, true) {
            return;
        }
        cx.timers.set(cx.id, Timer::Mixture, &mut self.held_until, None);
        cx.timers.set(cx.id, Timer::Socket, &mut self.retry_at, None);
        self.socket = Socket::Closed;
        cx.out.push_back(Action::Close(cx.id));
        if let Some(generation) = self.in_force.as_ref().map(|serving| serving.generation) {
            self.drain(cx, generation);
        }
        self.tell(cx, ServingState::NotServing(Arc::new(NotServing::ShutDown)));
    }

    fn drain(&self, cx: &mut Context<'_>, generation: Generation) {
        let (at, spread) = (cx.now, self.settings.drain_spread);
        let drain = Drain { generation, at, until: at + self.settings.drain_grace, spread };
        cx.out.push_back(Action::Drain(cx.id, drain));
    }

    fn tell(&mut self, cx: &mut Context<'_>, state: ServingState) {
        if !self.state.is_same(&state) {
            self.state = state.clone();
            cx.out.push_back(Action::Tell(cx.id, state));
        }
    }

    /// Tells which routes of what comes in force cannot be had, as far as that is news.
    fn tell_routes(&mut self, cx: &mut Context<'_>, serving: &Serving) {
        let failed = |(chain, result): (&Arc<FilterChain>, &RouteResult)| match (&chain.http.routes, result) {
            (RouteSource::Rds(name), Err(error)) => Some((Arc::from(name.as_str()), Arc::clone(error))),
            (RouteSource::Rds(_), Ok(_)) | (RouteSource::Inline(_), _) => None,
        };
        let broken: BTreeMap<_, _> = serving.chains().filter_map(failed).collect();
        let before = std::mem::replace(&mut self.broken, broken);
        for (name, error) in self.broken.iter().filter(|(name, error)| before.get(*name) != Some(*error)) {
            cx.out.push_back(Action::TellRoutes(cx.id, name.clone(), Some(error.clone())));
        }
        // One that no chain names any more is not fixed, but nobody suffers from it.
        for name in before.into_keys().filter(|name| !self.broken.contains_key(name)) {
            cx.out.push_back(Action::TellRoutes(cx.id, name, None));
        }
    }

    // --- Routes ---

    pub(super) fn canonical(&self, name: &str) -> Arc<str> {
        Name::new::<RouteConfig>(name, self.federation).canonical
    }

    fn watch_routes(&mut self, cx: &mut Context<'_>, name: &Arc<str>) {
        if !self.routes.contains_key(name) {
            let authority = Name::new::<RouteConfig>(name, self.federation).authority;
            self.routes.insert(name.clone(), Watched::new(authority));
            cx.begun.push(key::<RouteConfig>(name));
        }
    }

    /// The routes of each chain of a Listener, or why there are none; nothing while they are waited for and nobody knows
    /// of any trouble.
    pub(super) fn results(&self, listener: &ServerListener) -> Option<Vec<RouteResult>> {
        let result = |chain: &Arc<FilterChain>| match &chain.http.routes {
            RouteSource::Inline(routes) => Some(Ok(Arc::clone(routes))),
            RouteSource::Rds(name) => match &self.routes.get(&self.canonical(name))?.state {
                State::Valid(routes, _) => Some(Ok(Arc::clone(routes))),
                State::Failed(error) | State::Waiting(Some(error)) => Some(Err(Arc::clone(error))),
                State::Waiting(None) => None,
            },
        };
        listener.chains.iter().map(result).collect()
    }

    /// Judges whether the newest Listener and its routes are of one source, and notes until when they are held back.
    fn judge(&mut self, cx: &mut Context<'_>, names: &BTreeSet<Arc<str>>) -> Verdict {
        let routes = names.iter().filter_map(|name| self.routes.get(name)?.source());
        let sources: Vec<_> = self.listener.source().into_iter().chain(routes).collect();
        self.sources.replace(&self.counted, &sources);
        self.counted = sources;
        let verdict = self.sources.judge(cx.now, self.settings.switch_timeout);
        let until = match verdict {
            Verdict::Hold(until) => Some(until),
            Verdict::Clean | Verdict::Mixed => None,
        };
        cx.timers.set(cx.id, Timer::Mixture, &mut self.held_until, until);
        verdict
    }

    /// Ends the watches that nobody needs.
    fn sweep(&mut self, cx: &mut Context<'_>) {
        let newest = self.newest_listener();
        let in_force = self.in_force.as_ref().map(|serving| Arc::clone(&serving.listener));
        let listeners = newest.iter().chain(&in_force);
        let needed: BTreeSet<_> =
            listeners.flat_map(|listener| listener.route_names()).map(|name| self.canonical(name)).collect();
        let spare: Vec<_> = self.routes.keys().filter(|name| !needed.contains(*name)).cloned().collect();
        for name in spare {
            self.routes.remove(&name);
            cx.ended.push(key::<RouteConfig>(&name));
        }
    }

    // --- The socket ---

    fn want_listening(&mut self, cx: &mut Context<'_>) {
        match self.socket {
            Socket::Bound => self.open(cx),
            Socket::Listening => self.tell(cx, ServingState::Serving),
            // What is under way is waited for, and what failed is tried again in a while.
            Socket::Opening | Socket::Closing | Socket::Shut | Socket::Unbound | Socket::Closed => {}
        }
    }

    fn want_silence(&mut self, cx: &mut Context<'_>) {
        match self.socket {
            Socket::Listening => self.close(cx),
            Socket::Shut => {
                cx.timers.set(cx.id, Timer::Socket, &mut self.retry_at, None);
                self.socket = Socket::Bound;
            }
            Socket::Bound | Socket::Opening | Socket::Closing | Socket::Unbound | Socket::Closed => {}
        }
    }

    fn open(&mut self, cx: &mut Context<'_>) {
        self.socket = Socket::Opening;
        cx.out.push_back(Action::Listen(cx.id));
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.socket = Socket::Closing;
        cx.out.push_back(Action::StopListening(cx.id));
    }

    /// Takes in what became of the socket.
    pub(super) fn handle_socket(&mut self, cx: &mut Context<'_>, outcome: Result<(), String>) {
        let wanted = self.in_force.is_some();
        match (self.socket, outcome) {
            (Socket::Opening, Ok(())) if wanted => {
                self.socket = Socket::Listening;
                self.tell(cx, ServingState::Serving);
            }
            (Socket::Opening, Ok(())) => self.close(cx),
            (Socket::Opening, Err(error)) if wanted => {
                self.socket = Socket::Shut;
                self.retry_later(cx);
                let why = NotServing::Socket { address: self.address, error };
                self.tell(cx, ServingState::NotServing(Arc::new(why)));
            }
            (Socket::Opening, Err(_)) => self.socket = Socket::Bound,
            (Socket::Closing, Ok(())) => {
                self.socket = Socket::Bound;
                if wanted {
                    self.open(cx);
                }
            }
            (Socket::Closing, Err(_)) => {
                self.socket = Socket::Unbound;
                self.retry_later(cx);
            }
            // Nobody asked.
            (Socket::Bound | Socket::Listening | Socket::Shut | Socket::Unbound | Socket::Closed, _) => {}
        }
    }

    /// The pause after a failure is over.
    pub(super) fn retry_socket(&mut self, cx: &mut Context<'_>) {
        self.retry_at = None;
        match self.socket {
            Socket::Shut => self.open(cx),
            Socket::Unbound if self.in_force.is_some() => self.open(cx),
            Socket::Unbound => self.close(cx),
            Socket::Bound | Socket::Opening | Socket::Listening | Socket::Closing | Socket::Closed => {}
        }
    }

    fn retry_later(&mut self, cx: &mut Context<'_>) {
        let at = cx.now + self.settings.listen_retry;
        cx.timers.set(cx.id, Timer::Socket, &mut self.retry_at, Some(at));
    }
}
