//! What a world starts from: the bootstrap, what the control planes say, and what may go wrong.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::ChannelCore;
use mainstay_xds::bootstrap::{AuthorityOptions, Bootstrap, Guards, Node, ServerConfig, ServerFeatures};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::target::Target;

use crate::meddle::Meddling;
use crate::plane::Habits;
use crate::resources::{Policy, Spec};
use crate::shell::Handle;
use crate::truth::{Told, Truth};

/// The beginning of a world. Everything after it is choice.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name, for transcripts and regression cases.
    pub name: String,
    /// The bootstrap of the client.
    pub bootstrap: Arc<Bootstrap>,
    /// What the channel is for, such as `xds:///shop`.
    pub target: Target,
    /// The control planes.
    pub planes: Vec<PlaneSpec>,
    /// Numbers of the client.
    pub client: ClientSettings,
    /// Numbers of the dependency manager.
    pub deps: DepsSettings,
    /// What may go wrong.
    pub limits: Limits,
    /// How closely the world is looked at.
    pub grain: Grain,
    /// How much more often than any other event the one happens that a world without faults would take.
    pub calm: u64,
    /// Clusters that somebody may subscribe to.
    pub subscribable: Vec<String>,
    /// Whether outages of backends are tried at the end.
    pub drills: bool,
    /// What another client of the process may watch; without any there is no such client.
    pub side: Vec<ResourceKey>,
    /// The rule that the clients break, to see that it is noticed.
    pub meddling: Option<Meddling>,
}

/// One control plane.
#[derive(Clone, Debug)]
pub struct PlaneSpec {
    /// The server in the bootstrap.
    pub server: Arc<ServerConfig>,
    /// What it says, version after version. Never empty.
    pub editions: Vec<Arc<Truth>>,
    /// How it says it.
    pub habits: Habits,
}

/// How much may go wrong. Healing is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Faults of control planes and the network to them.
    pub faults: u32,
    /// Which faults.
    pub kinds: Kinds,
    /// How often time may pass although something is left to be delivered: a slow network.
    pub delays: u32,
    /// Faults of backends.
    pub backend_faults: u32,
}

/// Which faults may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds {
    /// A control plane stops and refuses connections.
    pub kill: bool,
    /// A stream ends.
    pub cut: bool,
    /// Packets vanish.
    pub black_hole: bool,
    /// A server takes requests and does not answer.
    pub mute: bool,
    /// A connection is dead and nobody knows.
    pub half_open: bool,
    /// A server sends nonsense.
    pub garbage: bool,
    /// A server starts afresh, and has nothing at first.
    pub restart: bool,
    /// Our own process is stopped for a while.
    pub stop: bool,
}

/// How closely the world is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grain {
    /// Requests arrive, responses are delivered and backends answer in the moment they are made.
    Coarse,
    /// Each of these is an event of its own.
    Fine,
}

impl PlaneSpec {
    /// Whether it is known what its resources say.
    pub(crate) fn is_known(&self) -> bool {
        self.editions.iter().flat_map(|truth| truth.resources.values()).all(|told| told.spec.is_some())
    }
}

impl Kinds {
    /// Everything.
    pub const ALL: Self = Self {
        kill: true,
        cut: true,
        black_hole: true,
        mute: true,
        half_open: true,
        garbage: true,
        restart: true,
        stop: true,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self { faults: 2, kinds: Kinds { kill: true, cut: true, ..Kinds::default() }, delays: 0, backend_faults: 0 }
    }
}

/// A server: its name, and the resources of each of its versions in turn.
pub type ServerHistory<'a> = (&'a str, &'a [&'a [(&'a str, Spec)]]);

impl Scenario {
    /// A world with these top-level servers, each with its editions in few words. The target is `xds:///shop`.
    pub fn new(name: &str, servers: &[ServerHistory<'_>]) -> Self {
        Self::with_authorities(name, servers, &[])
    }

    /// The same with authorities: name, servers by their place in `servers`, and whether A95's knob is set. Servers
    /// that no authority names are the top-level ones.
    pub fn with_authorities(name: &str, servers: &[ServerHistory<'_>], authorities: &[(&str, &[usize], bool)]) -> Self {
        let config = |index: &usize| ServerConfig::insecure(servers[*index].0);
        let node = Node { id: "sim".to_owned(), ..Node::default() };
        let mut builder = Bootstrap::builder().node(node).guards(Guards::default());
        let named = |index: &usize| authorities.iter().any(|(_, servers, _)| servers.contains(index));
        for index in (0..servers.len()).filter(|index| !named(index)) {
            builder = builder.server(config(&index));
        }
        for (name, servers, fallback_on_reachability_only) in authorities {
            let servers = servers.iter().map(config).collect();
            let options = AuthorityOptions {
                servers,
                fallback_on_reachability_only: *fallback_on_reachability_only,
                ..AuthorityOptions::default()
            };
            builder = builder.authority(*name, options);
        }
        let bootstrap = builder.build().expect("scenarios have good bootstraps");
        let planes = servers.iter().map(|(uri, editions)| {
            let server = Arc::new(ServerConfig::insecure(*uri));
            let owned = |specs: &[(&str, Spec)]| -> Vec<(String, Spec)> {
                specs.iter().map(|(name, spec)| ((*name).to_owned(), spec.clone())).collect()
            };
            let edition = |(number, specs): (usize, &&[(&str, Spec)])| {
                Arc::new(Truth::of(format!("{}", number + 1), &owned(specs)))
            };
            let editions = editions.iter().enumerate().map(edition).collect();
            PlaneSpec { server: server.clone(), editions, habits: Habits { short_nonces: true, ..Habits::default() } }
        });
        let planes = planes.collect();
        let target = Target::resolve("xds:///shop", &bootstrap).expect("a good target");
        Self {
            name: name.to_owned(),
            bootstrap: Arc::new(bootstrap),
            target,
            planes,
            client: ClientSettings {
                reconnect_spread: Duration::ZERO,
                trust_versions: true,
                ..ClientSettings::default()
            },
            deps: DepsSettings::default(),
            limits: Limits::default(),
            grain: Grain::Coarse,
            calm: 0,
            subscribable: Vec::new(),
            drills: false,
            side: Vec::new(),
            meddling: None,
        }
    }

    /// Changes what may go wrong.
    pub fn limits(mut self, set: impl FnOnce(&mut Limits)) -> Self {
        set(&mut self.limits);
        self
    }

    /// Changes the features of servers, everywhere.
    pub(crate) fn with_features(mut self, features: impl Fn(&ServerConfig) -> ServerFeatures) -> Self {
        let config = |server: &Arc<ServerConfig>| {
            Arc::new(ServerConfig { features: features(server), ..ServerConfig::clone(server) })
        };
        let mut bootstrap = Bootstrap::clone(&self.bootstrap);
        bootstrap.servers = bootstrap.servers.iter().map(config).collect();
        for authority in bootstrap.authorities.values_mut() {
            authority.servers = authority.servers.iter().map(config).collect();
        }
        self.bootstrap = Arc::new(bootstrap);
        self.planes.iter_mut().for_each(|plane| plane.server = config(&plane.server));
        self
    }

    /// Changes how every control plane speaks.
    pub fn habits(mut self, set: impl Fn(&mut Habits)) -> Self {
        self.planes.iter_mut().for_each(|plane| set(&mut plane.habits));
        self
    }

    pub(crate) fn core(&self) -> ChannelCore<Handle> {
        ChannelCore::new(&self.target, self.bootstrap.clone(), self.client_settings(), self.deps.clone())
    }

    /// The settings of the clients. They are those by which these are judged, but for a planted fault.
    pub(crate) fn client_settings(&self) -> ClientSettings {
        let mut settings = self.client.clone();
        if self.meddling == Some(Meddling::NoTimer) {
            (settings.resource_timeout, settings.transient_resource_timeout) = (NEVER, NEVER);
        }
        settings
    }

    /// Whether RPCs may be dropped on purpose.
    pub(crate) fn is_limited(&self) -> bool {
        let truths = self.planes.iter().flat_map(|plane| &plane.editions);
        truths.flat_map(|truth| truth.resources.values()).any(|told| match &told.spec {
            Some(Spec::Eds { lb, .. }) => lb.max_requests.is_some(),
            Some(Spec::Endpoints { drop, .. }) => *drop > 0,
            _ => false,
        })
    }

    /// The clusters that use subsets of their endpoints, in one of their versions.
    pub(crate) fn subsets(&self) -> BTreeSet<String> {
        let truths = self.planes.iter().flat_map(|plane| &plane.editions);
        let resources = truths.flat_map(|truth| truth.resources.values());
        let uses_subset = |told: &&Arc<Told>| match &told.spec {
            Some(Spec::Eds { lb, .. }) => lb.policy == Policy::Subset,
            _ => false,
        };
        resources.filter(uses_subset).map(|told| told.key.name.to_string()).collect()
    }

    /// The place of a server among the control planes.
    pub(crate) fn plane_of(&self, server: &ServerConfig) -> Option<usize> {
        self.planes.iter().position(|plane| plane.server.server_uri == server.server_uri)
    }
}

const NEVER: Duration = Duration::from_secs(100_000);
