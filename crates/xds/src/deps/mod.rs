//! The dependency manager: one complete, tear-free configuration (A74).

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::Time;
use crate::bootstrap::ServerConfig;
use crate::client::{ResourceError, Update};
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::listener::HttpConnectionManager;
use crate::resource::route::VirtualHost;
use crate::resource::{Cluster, EndpointCollection, Endpoints, RouteConfig};

/// A complete configuration of a channel. Immutable; parts that did not change are shared with the one before.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct XdsConfig {
    /// The HTTP connection manager of the API listener.
    pub listener: Arc<HttpConnectionManager>,
    /// The route configuration, inline or from RDS.
    pub route_config: Arc<RouteConfig>,
    /// The virtual host chosen for the data-plane authority.
    pub virtual_host: Arc<VirtualHost>,
    /// Every cluster that routes, aggregates or subscriptions need (L-22).
    pub clusters: BTreeMap<Arc<str>, Result<Arc<ClusterConfig>, Arc<ClusterError>>>,
    /// Whether resources of one authority come from more than one server: only after a switch that was not complete in time.
    pub mixed_sources: bool,
}

/// A cluster and what its kind needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterConfig {
    /// Its name.
    pub name: Arc<str>,
    /// The CDS resource.
    pub cluster: Arc<Cluster>,
    /// Its endpoints or its leaves.
    pub children: ClusterChildren,
    /// What to add to error texts of this cluster (L-19); never empty.
    pub note: Arc<str>,
}

/// What a cluster resolves to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ClusterChildren {
    /// EDS or LOGICAL_DNS. `None`: there are none to be had, and the note says why (L-15).
    Endpoints(Option<Arc<ResolvedEndpoints>>),
    /// Aggregate: leaf clusters in order of preference, each once; never empty (L-20).
    Aggregate(Vec<Arc<str>>),
}

/// Endpoints with the collections they name (A95). A collection that cannot be had is not in the map: its locality has no endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResolvedEndpoints {
    /// The EDS resource, or the answer of DNS in its form (L-16).
    pub endpoints: Arc<Endpoints>,
    /// LbEndpointCollections by name.
    pub collections: BTreeMap<Arc<str>, Arc<EndpointCollection>>,
}

/// Why a cluster cannot be used. RPCs for it fail UNAVAILABLE with this text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClusterError {
    /// Which cluster.
    pub cluster: Arc<str>,
    /// Why.
    pub kind: ClusterErrorKind,
}

/// Why a cluster cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClusterErrorKind {
    /// The CDS resource cannot be had.
    Resource(Arc<ResourceError>),
    /// Aggregates are nested more than 16 deep.
    TooDeep,
    /// No leaf of the aggregate exists; the missing clusters with their reasons.
    NoLeaves(Vec<Arc<ResourceError>>),
}

/// Why a channel has no configuration (L-11). RPCs fail UNAVAILABLE with this text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Listener or the RouteConfiguration cannot be had.
    Resource(Arc<ResourceError>),
    /// The Listener is for servers.
    NotApiListener(Arc<str>),
    /// No virtual host matches.
    NoVirtualHost {
        /// The data-plane authority.
        authority: Arc<str>,
        /// The route configuration.
        route_config: Arc<str>,
    },
}

/// A DNS name to resolve for a LOGICAL_DNS cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsName {
    /// Host name or IP literal.
    pub host: String,
    /// Port of every address.
    pub port: u16,
}

/// What the driver must do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// Do this, then poll again.
    Do(Action),
    /// Nothing left: wait for an update, or until this time.
    Wait(Option<Time>),
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Watch a resource; its updates go to [`DependencyManager::handle_update`].
    Watch(ResourceKey),
    /// End a watch.
    Unwatch(ResourceKey),
    /// Look up a name once; the answer goes to [`DependencyManager::handle_dns`]. Retries and re-resolution come as new actions.
    Resolve(DnsName),
    /// The answer for this name is not wanted any more.
    StopResolving(DnsName),
    /// Put this configuration, or this error, in force.
    Publish(Result<Arc<XdsConfig>, Arc<ConfigError>>),
}

/// Numbers that users may change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DepsSettings {
    /// How long a switch between servers may hold an update back.
    pub switch_timeout: Duration,
    /// Least time between two lookups of one name.
    pub min_resolution_interval: Duration,
    /// Look names up again after this long; never if absent.
    pub resolution_refresh: Option<Duration>,
}

impl Default for DepsSettings {
    fn default() -> Self {
        Self {
            switch_timeout: Duration::from_secs(15),
            min_resolution_interval: Duration::from_secs(30),
            resolution_refresh: None,
        }
    }
}

/// Makes one configuration out of many resources.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DependencyManager {}

impl DependencyManager {
    /// Starts by watching `listener`. `node_id` is for notes.
    pub fn new(listener: Arc<str>, data_plane_authority: Arc<str>, node_id: Arc<str>, settings: DepsSettings) -> Self {
        let _ = (listener, data_plane_authority, node_id, settings);
        todo!()
    }

    /// Takes in news of a watched resource.
    pub fn handle_update(&mut self, now: Time, resource: &ResourceKey, update: Update) {
        let _ = (now, resource, update);
        todo!()
    }

    /// Takes in that another server is in charge of an authority.
    pub fn handle_active_server(&mut self, now: Time, authority: &AuthorityKey, server: &Arc<ServerConfig>) {
        let _ = (now, authority, server);
        todo!()
    }

    /// Takes in the answer of a lookup.
    pub fn handle_dns(
        &mut self,
        now: Time,
        choose: &mut dyn crate::Choose,
        name: &DnsName,
        answer: Result<Vec<SocketAddr>, String>,
    ) {
        let _ = (now, choose, name, answer);
        todo!()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        let _ = now;
        todo!()
    }

    /// Asks for fresh DNS answers (L-18).
    pub fn request_reresolution(&mut self, now: Time) {
        let _ = now;
        todo!()
    }

    /// Keeps `cluster` in the configuration until released as often as subscribed (L-17).
    pub fn subscribe_cluster(&mut self, now: Time, cluster: &str) {
        let _ = (now, cluster);
        todo!()
    }

    /// Releases one subscription.
    pub fn release_cluster(&mut self, now: Time, cluster: &str) {
        let _ = (now, cluster);
        todo!()
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Output {
        todo!()
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        todo!()
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = f;
        todo!()
    }
}

impl std::error::Error for ClusterError {}
impl std::error::Error for ConfigError {}
