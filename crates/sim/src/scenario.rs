//! What a world starts from: the bootstrap, what the control planes say, and what may go wrong.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_lb::ChannelCore;
use mainstay_xds::bootstrap::{AuthorityOptions, Bootstrap, Guards, Node, ServerConfig};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::name::{Target, TargetError};
use mainstay_xds::resource::ResourceType;

use crate::mutant::Mutant;
use crate::plane::Habits;
use crate::resources::Spec;
use crate::shell::Handle;
use crate::truth::Truth;

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
    /// A deliberate bug.
    pub mutant: Option<Mutant>,
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
}

/// How closely the world is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grain {
    /// Requests arrive, responses are delivered and backends answer in the moment they are made.
    Coarse,
    /// Each of these is an event of its own.
    Fine,
}

impl Kinds {
    /// Everything.
    pub const ALL: Self = Self { kill: true, cut: true, black_hole: true, mute: true, half_open: true, garbage: true };
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
                Arc::new(Truth::of(format!("{}", number + 1), &owned(specs), &bootstrap, &server))
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
            client: ClientSettings { reconnect_spread: Duration::ZERO, ..ClientSettings::default() },
            deps: DepsSettings::default(),
            limits: Limits::default(),
            grain: Grain::Coarse,
            calm: 0,
            mutant: None,
        }
    }

    /// A setup of somebody's own, in which every server of the bootstrap serves the same resources.
    ///
    /// # Errors
    /// If the bootstrap has no place for the target.
    pub fn of_setup(
        target: &str,
        bootstrap: Bootstrap,
        resources: &[(ResourceType, String, Bytes)],
    ) -> Result<Self, TargetError> {
        let target = Target::resolve(target, &bootstrap)?;
        let authorities = bootstrap.authorities.values().flat_map(|authority| &authority.servers);
        let mut servers: Vec<Arc<ServerConfig>> = Vec::new();
        for server in bootstrap.servers.iter().chain(authorities) {
            if !servers.contains(server) {
                servers.push(server.clone());
            }
        }
        let planes = servers.into_iter().map(|server| PlaneSpec {
            editions: vec![Arc::new(Truth::new("1", resources.iter().cloned(), &bootstrap, &server))],
            server,
            habits: Habits::default(),
        });
        let planes = planes.collect();
        Ok(Self {
            name: target.canonical.to_string(),
            bootstrap: Arc::new(bootstrap),
            target,
            planes,
            client: ClientSettings { reconnect_spread: Duration::ZERO, ..ClientSettings::default() },
            deps: DepsSettings::default(),
            limits: Limits::default(),
            grain: Grain::Coarse,
            calm: 0,
            mutant: None,
        })
    }

    /// Changes what may go wrong.
    pub fn limits(mut self, set: impl FnOnce(&mut Limits)) -> Self {
        set(&mut self.limits);
        self
    }

    /// Changes how every control plane speaks.
    pub fn habits(mut self, set: impl Fn(&mut Habits)) -> Self {
        self.planes.iter_mut().for_each(|plane| set(&mut plane.habits));
        self
    }

    pub(crate) fn core(&self) -> ChannelCore<Handle> {
        let (mut client, mut deps) = (self.client.clone(), self.deps.clone());
        let mut bootstrap = self.bootstrap.clone();
        if let Some(mutant) = self.mutant {
            mutant.bend(Arc::make_mut(&mut bootstrap), &mut client, &mut deps);
        }
        ChannelCore::new(&self.target, bootstrap, client, deps)
    }

    /// The place of a server among the control planes.
    pub(crate) fn plane_of(&self, server: &ServerConfig) -> Option<usize> {
        self.planes.iter().position(|plane| *plane.server == *server)
    }
}
