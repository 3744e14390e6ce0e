//! The whole decision-making of one channel: XdsClient, dependency manager and LB tree in one.
//!
//! Data goes one way, from the client to the tree; this is the only place that carries it. The
//! shell feeds it inputs, calls [`ChannelCore::settle`] and does what [`ChannelCore::poll_action`]
//! says. A simulator drives the same type.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{self, Capture, ClientSettings, Protocol, Report, StreamId, WatchId, XdsClient};
use mainstay_xds::deps::{self, DependencyManager, DepsSettings, DnsName};
use mainstay_xds::lrs::{self, LrsClient};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::target::Target;

use crate::breaker::Counter;
use crate::helper::{Context, Helper, Observation};
use crate::orca::LoadSink;
use crate::owner::Wake;
use crate::snapshot::Snapshot;
use crate::subchannel::{Connectivity, Subchannel, SubchannelId, SubchannelSpec, XdsSecurity};
use crate::tree::Tree;

/// One channel's state, from the bytes of the control plane to the snapshot that RPCs use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChannelCore<S: Subchannel> {
    client: XdsClient,
    deps: DependencyManager,
    tree: Tree<S>,
    lrs: LrsClient,
    watches: BTreeMap<ResourceKey, WatchId>,
    watched: BTreeMap<WatchId, ResourceKey>,
    /// The clusters that are subscribed to because RPCs go by routes that name them (L-27).
    in_use: BTreeSet<Arc<str>>,
    actions: VecDeque<Pending>,
    client_deadline: Option<Time>,
    deps_deadline: Option<Time>,
    reresolve: bool,
}

/// What happened outside.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// News of an ADS stream.
    Xds(client::Event),
    /// News of a stream of load reports.
    Load(client::Event),
    /// The answer of a DNS lookup.
    Dns(DnsName, Result<Vec<SocketAddr>, String>),
    /// News of a connection to an endpoint.
    Connectivity(SubchannelId, Connectivity),
    /// An RPC waits for something that connects only when asked.
    Wake(Wake),
    /// A deadline may have passed.
    Timeout,
}

/// What the shell must do.
#[derive(Clone, Debug)]
pub enum Action<S: Subchannel> {
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
    Send(StreamId, bytes::Bytes),
    /// See [`client::Action::Probe`].
    Probe {
        /// Of which stream.
        stream: StreamId,
        /// Whether a PONG alone would not be enough.
        call: bool,
    },
    /// See [`client::Action::Close`].
    CloseStream(StreamId),
    /// See [`lrs::Action`].
    Load(lrs::Action),
    /// Look up a DNS name once.
    Resolve(DnsName),
    /// The answer is not wanted any more.
    StopResolving(DnsName),
    /// Tell whoever observes the channel.
    Report(Report),
    /// Let RPCs use this.
    Publish(Arc<Snapshot<S>>),
}

/// Actions that wait to be taken. Snapshots are not kept here: only the newest one counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Pending {
    Open(StreamId, Arc<ServerConfig>, Duration, Protocol),
    Send(StreamId, bytes::Bytes),
    Probe(StreamId, bool),
    Close(StreamId),
    Resolve(DnsName),
    StopResolving(DnsName),
    Report(Report),
}

/// Passes requests on to the shell, and keeps what is answered or told by the channel itself.
struct InnerHelper<'a, H> {
    shell: &'a mut H,
    reresolve: &'a mut bool,
    actions: &'a mut VecDeque<Pending>,
}

// === impl ChannelCore ===

impl<S: Subchannel> ChannelCore<S> {
    /// A channel for `target` that has done nothing yet. Call [`ChannelCore::settle`] to start it.
    pub fn new(
        target: &Target,
        bootstrap: Arc<Bootstrap>,
        client_settings: ClientSettings,
        deps_settings: DepsSettings,
    ) -> Self {
        let node_id = Arc::from(bootstrap.node.id.as_str());
        Self {
            lrs: LrsClient::new(Arc::clone(&bootstrap), client_settings.clone()),
            client: XdsClient::new(bootstrap, client_settings),
            deps: DependencyManager::new(
                target.listener.clone(),
                target.data_plane_authority.clone(),
                node_id,
                deps_settings,
            ),
            tree: Tree::new(),
            watches: BTreeMap::new(),
            watched: BTreeMap::new(),
            in_use: BTreeSet::new(),
            actions: VecDeque::new(),
            client_deadline: None,
            deps_deadline: None,
            reresolve: false,
        }
    }

    /// See [`Tree::with_security`].
    #[must_use]
    pub fn with_security(mut self, security: XdsSecurity) -> Self {
        self.tree = self.tree.with_security(security);
        self
    }

    /// See [`Tree::with_warm_switching`].
    #[must_use]
    pub fn with_warm_switching(mut self, bound: Option<Duration>) -> Self {
        self.tree = self.tree.with_warm_switching(bound);
        self
    }

    /// Takes in what happened. Several inputs may be taken in before one [`ChannelCore::settle`].
    pub fn handle<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>, input: Input) {
        match input {
            Input::Xds(event) => match cx.helper.interner() {
                Some(intern) => self.client.handle_event_sharing(cx.now, cx.choose, intern, event),
                None => self.client.handle_event(cx.now, cx.choose, event),
            },
            Input::Load(event) => self.lrs.handle_event(cx.now, cx.choose, self.tree.loads(), event),
            Input::Dns(name, answer) => self.deps.handle_dns(cx.now, cx.choose, &name, answer),
            Input::Connectivity(id, state) => {
                self.with_tree(cx, |tree, cx| tree.handle_connectivity(cx, id, state));
            }
            Input::Wake(wake) => self.with_tree(cx, |tree, cx| tree.wake(cx, wake)),
            Input::Timeout => {
                self.client.handle_timeout(cx.now, cx.choose);
                self.deps.handle_timeout(cx.now);
                self.with_tree(cx, |tree, cx| tree.handle_timeout(cx));
                self.lrs.handle_timeout(cx.now, self.tree.loads());
            }
        }
    }

    /// Carries news from the client through the dependency manager to the tree until all are quiet.
    /// Says whether another configuration is in force now.
    pub fn settle<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) -> bool {
        let mut changed = false;
        loop {
            // Only the newest configuration matters: what came in between was never in force.
            let mut config = None;
            while self.carry_from_client(cx.now) | self.carry_from_deps(cx.now, &mut config) {}
            if let Some(config) = config {
                changed = true;
                self.with_tree(cx, |tree, cx| tree.update(cx, config));
            }
            let has_moved = self.hold_clusters_in_use(cx.now);
            if std::mem::take(&mut self.reresolve) {
                self.deps.request_reresolution(cx.now);
            } else if !has_moved {
                self.lrs.follow(self.tree.loads());
                return changed;
            }
        }
    }

    /// The next thing to do; a new snapshot comes first.
    pub fn poll_action(&mut self) -> Option<Action<S>> {
        if let Some(snapshot) = self.tree.poll_snapshot() {
            return Some(Action::Publish(snapshot));
        }
        if let Some(action) = self.lrs.poll_action() {
            return Some(Action::Load(action));
        }
        Some(match self.actions.pop_front()? {
            Pending::Open(stream, server, connect_timeout, protocol) => {
                Action::OpenStream { stream, server, connect_timeout, protocol }
            }
            Pending::Send(stream, message) => Action::Send(stream, message),
            Pending::Probe(stream, call) => Action::Probe { stream, call },
            Pending::Close(stream) => Action::CloseStream(stream),
            Pending::Resolve(name) => Action::Resolve(name),
            Pending::StopResolving(name) => Action::StopResolving(name),
            Pending::Report(report) => Action::Report(report),
        })
    }

    /// When [`Input::Timeout`] is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadlines = [self.client_deadline, self.deps_deadline, self.tree.next_deadline(), self.lrs.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Keeps `cluster` in the configuration until it is released as often as subscribed (L-17, L-27).
    pub fn subscribe_cluster(&mut self, now: Time, cluster: &str) {
        self.deps.subscribe_cluster(now, cluster);
    }

    /// Releases one subscription.
    pub fn release_cluster(&mut self, now: Time, cluster: &str) {
        self.deps.release_cluster(now, cluster);
    }

    /// Ends everything: connections to endpoints are released at once, streams and lookups by the actions that
    /// follow. Nothing is due after that.
    pub fn shut_down<H: Helper<Subchannel = S>>(&mut self, cx: &mut Context<'_, H>) {
        self.with_tree(cx, |tree, cx| tree.shut_down(cx));
        self.deps.shut_down(cx.now);
        self.lrs.shut_down();
        while self.carry_from_client(cx.now) | self.carry_from_deps(cx.now, &mut None) {}
    }

    /// The client, for status views.
    pub fn client(&self) -> &XdsClient {
        &self.client
    }

    /// The configuration in force, the error in its place, or nothing yet.
    pub fn config(&self) -> Option<Result<&Arc<deps::XdsConfig>, &Arc<deps::ConfigError>>> {
        self.deps.in_force()
    }

    /// What the configuration in force is made of, by authority, if it is whole: see [`DependencyManager::whole`].
    pub fn capture(&self) -> Option<BTreeMap<AuthorityKey, Capture>> {
        self.client.capture(&self.deps.whole()?).filter(|captures| !captures.is_empty())
    }

    /// Keeps the clusters of the routes that RPCs go by in the configuration, so that they follow their endpoints until
    /// newer routes are warm. Says whether these are others now.
    fn hold_clusters_in_use(&mut self, now: Time) -> bool {
        let Some(in_use) = self.tree.poll_clusters_in_use() else { return false };
        let before = std::mem::replace(&mut self.in_use, in_use);
        self.in_use.difference(&before).for_each(|cluster| self.deps.subscribe_cluster(now, cluster));
        before.difference(&self.in_use).for_each(|cluster| self.deps.release_cluster(now, cluster));
        self.in_use != before
    }

    /// Drains the client; says whether anything happened.
    fn carry_from_client(&mut self, now: Time) -> bool {
        let mut busy = false;
        loop {
            let action = match self.client.poll_output() {
                client::Output::Do(action) => action,
                client::Output::Wait(deadline) => {
                    self.client_deadline = deadline;
                    return busy;
                }
            };
            busy = true;
            match action {
                client::Action::Open { stream, server, connect_timeout, protocol } => {
                    self.actions.push_back(Pending::Open(stream, server, connect_timeout, protocol));
                }
                client::Action::Send(stream, message) => self.actions.push_back(Pending::Send(stream, message)),
                client::Action::Probe { stream, call } => self.actions.push_back(Pending::Probe(stream, call)),
                client::Action::Close(stream) => self.actions.push_back(Pending::Close(stream)),
                client::Action::Report(report) => self.actions.push_back(Pending::Report(report)),
                client::Action::ActiveServer(authority, server) => {
                    self.deps.handle_active_server(now, &authority, &server);
                }
                client::Action::Notify(watch, update) => {
                    if let Some(key) = self.watched.get(&watch) {
                        self.deps.handle_update(now, key, update);
                    }
                }
            }
        }
    }

    /// Drains the dependency manager; says whether anything happened.
    fn carry_from_deps(&mut self, now: Time, config: &mut Option<Config>) -> bool {
        let mut busy = false;
        loop {
            let action = match self.deps.poll_output() {
                deps::Output::Do(action) => action,
                deps::Output::Wait(deadline) => {
                    self.deps_deadline = deadline;
                    return busy;
                }
            };
            busy = true;
            match action {
                deps::Action::Watch(key) => {
                    let watch = self.client.watch(now, key.resource_type, &key.name);
                    self.watches.insert(key.clone(), watch);
                    self.watched.insert(watch, key);
                }
                deps::Action::Unwatch(key) => {
                    if let Some(watch) = self.watches.remove(&key) {
                        self.watched.remove(&watch);
                        self.client.unwatch(now, watch);
                    }
                }
                deps::Action::Resolve(name) => self.actions.push_back(Pending::Resolve(name)),
                deps::Action::StopResolving(name) => self.actions.push_back(Pending::StopResolving(name)),
                deps::Action::Publish(new) => *config = Some(new),
            }
        }
    }

    fn with_tree<H: Helper<Subchannel = S>>(
        &mut self,
        cx: &mut Context<'_, H>,
        act: impl FnOnce(&mut Tree<S>, &mut Context<'_, InnerHelper<'_, H>>),
    ) {
        let mut helper =
            InnerHelper { shell: &mut *cx.helper, reresolve: &mut self.reresolve, actions: &mut self.actions };
        act(&mut self.tree, &mut Context { now: cx.now, choose: &mut *cx.choose, helper: &mut helper });
    }
}

type Config = Result<Arc<deps::XdsConfig>, Arc<deps::ConfigError>>;

// === impl InnerHelper ===

impl<H: Helper> Helper for InnerHelper<'_, H> {
    type Subchannel = H::Subchannel;

    fn create_subchannel(&mut self, id: SubchannelId, spec: &SubchannelSpec) -> Self::Subchannel {
        self.shell.create_subchannel(id, spec)
    }

    fn connect(&mut self, id: SubchannelId) {
        self.shell.connect(id);
    }

    fn release(&mut self, id: SubchannelId) {
        self.shell.release(id);
    }

    fn watch_load(&mut self, id: SubchannelId, period: Duration, sink: LoadSink) {
        self.shell.watch_load(id, period, sink);
    }

    fn request_reresolution(&mut self) {
        *self.reresolve = true;
    }

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        self.shell.circuit_breaker(cluster, eds_service)
    }

    fn observe(&mut self, observation: &Observation) {
        if let Observation::SecurityIgnored { cluster } = observation {
            self.actions.push_back(Pending::Report(Report::SecurityIgnored(Arc::clone(cluster))));
        }
        self.shell.observe(observation);
    }
}
