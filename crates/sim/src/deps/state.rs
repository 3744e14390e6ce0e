//! What was told to a manager, and what it has come to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::deps::{ConfigError, DepsSettings, DnsName, XdsConfig};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::RouteConfig;
use mainstay_xds::resource::listener::HttpConnectionManager;
use mainstay_xds::resource::route::VirtualHost;

use super::lookups::Lookup;
use super::told::Told;

/// An authority and the server behind one of its resources.
pub(super) type Source = (AuthorityKey, Arc<ServerConfig>);

/// What was told, and what follows.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub(super) settings: DepsSettings,
    /// Of every resource that is watched.
    pub(super) told: BTreeMap<ResourceKey, Told>,
    pub(super) lookups: BTreeMap<DnsName, Lookup>,
    pub(super) subscriptions: BTreeMap<Arc<str>, usize>,
    /// Name of the RouteConfiguration of the newest Listener.
    pub(super) route: Option<Arc<str>>,
    /// The newest Listener and routes that fit together.
    pub(super) unit: Option<Unit>,
    /// Notes that all clusters share.
    pub(super) notes: Vec<String>,
    /// Clusters of the newest routes, and of those in force.
    pub(super) newest: BTreeSet<Arc<str>>,
    pub(super) routed: BTreeSet<Arc<str>>,
    pub(super) in_force: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    /// The last configuration, also if an error has taken its place, and the pair that it is made of.
    pub(super) last: Option<Arc<XdsConfig>>,
    pub(super) last_unit: Option<Unit>,
    /// Servers behind what is newest, and behind what is in force.
    pub(super) mixtures: [BTreeMap<AuthorityKey, Mixture>; 2],
    /// Servers behind the clusters in force, as long as they wait for something newer.
    pub(super) held_sources: BTreeMap<Arc<str>, BTreeSet<Source>>,
    /// Aggregates that hold on to their old leaves since before.
    pub(super) holding: BTreeSet<Arc<str>>,
    /// Until when something is held back because it is a mixture.
    pub(super) held_until: Option<Time>,
    pub(super) closed: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) listener: HttpConnectionManager,
    pub(super) routes: Arc<RouteConfig>,
    pub(super) host: Arc<VirtualHost>,
    pub(super) route: Option<Arc<str>>,
    pub(super) sources: Vec<Source>,
}

/// The servers of one authority.
#[derive(Clone, Debug, Default)]
pub(super) struct Mixture {
    pub(super) servers: BTreeSet<Arc<ServerConfig>>,
    pub(super) active: Option<Arc<ServerConfig>>,
    /// When the switch began that they are a mixture by.
    pub(super) begun: Option<Time>,
    pub(super) was_mixed: bool,
}

pub(super) const NEWEST: usize = 0;
pub(super) const IN_FORCE: usize = 1;

/// Of the channel.
pub(super) const LISTENER: &str = "l";
pub(super) const AUTHORITY: &str = "svc";
pub(super) const NODE: &str = "node-1";
