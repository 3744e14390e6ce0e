//! What a channel or a server has been told: its configuration, where each part came from, and what is wrong with it.
//!
//! [`Channel::config`](crate::Channel::config) shows the present state, [`Channel::configs`](crate::Channel::configs)
//! every change; [`Running::config`](crate::Running::config) is for servers. A view is a copy that is made when it is asked for; RPCs never pay for it.
//!
//! ```no_run
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::builder("xds:///greeter").without_endpoints().build()?;
//! let mut configs = channel.configs();
//! while let Some(view) = configs.next().await {
//!     match &view.config {
//!         None => println!("nothing yet"),
//!         Some(Err(error)) => println!("no configuration: {error}"),
//!         Some(Ok(config)) => {
//!             for route in &config.routes {
//!                 println!("{} -> {:?}", route.matches, route.action);
//!             }
//!             for (name, cluster) in &config.clusters {
//!                 println!("cluster {name}: {cluster:?}");
//!             }
//!         }
//!     }
//!     for resource in &view.resources {
//!         println!("{}: {:?}", resource.resource, resource.state);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod cluster;
mod error;
mod held;
mod recording;
mod route;
mod server;
mod status;

pub use cluster::{
    Cluster, ClusterKind, DropCategory, Endpoint, Endpoints, HealthStatus, LocalityEndpoints, Priority, TlsContext,
};
pub use error::{ClusterError, ClusterErrorKind, ConfigError, ConfigErrorKind, ResourceError, ResourceErrorKind};
pub use held::HeldResource;
pub use recording::{RecordedResource, Recording};
pub use route::{
    ForwardAction, HashPolicy, HeaderMatch, HeaderMatchKind, PathMatch, RetryPolicy, Route, RouteAction, RouteMatch,
    WeightedCluster,
};
pub use server::{ListenerView, ServerView};
pub use status::{ResourceState, ResourceStatus, ResourceValue, ServerState, ServerStatus};

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use mainstay_xds::resource::listener::RouteSource;
use mainstay_xds::{Time, deps, name};
use tokio::sync::watch;

use crate::hub::{DriverHandle, Hub};
use crate::names::ResourceType;
use crate::shared::HubStatus;

/// What a channel has been told, at one point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigView {
    /// The target in canonical form.
    pub target: String,
    /// The id by which xDS servers know this client.
    pub node_id: String,
    /// The name of the Listener that the target stands for.
    pub listener: String,
    /// The configuration in force, or the error in its place; `None` while none was ever complete.
    pub config: Option<Result<XdsConfig, ConfigError>>,
    /// Every resource that the channel subscribes to, by type and name.
    pub resources: Vec<ResourceStatus>,
    /// What the configuration in force is made of, if it is complete, of one server in each authority and the newest; never
    /// what came from a server in this process, such as a last-good file.
    pub recording: Option<Recording>,
    /// Every xDS server that the channel has needed so far.
    pub servers: Vec<ServerStatus>,
    /// When the view was taken.
    pub taken_at: Instant,
}

/// A complete configuration of a channel: the `XdsConfig` of gRFC A74.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct XdsConfig {
    /// The name of the RouteConfiguration; `None` if the routes are part of the Listener.
    pub route_config: Option<String>,
    /// The name of the virtual host for the authority of the channel.
    pub virtual_host: String,
    /// The routes of the virtual host. The first one that matches decides.
    pub routes: Vec<Route>,
    /// The instance names of the HTTP filters, in order.
    pub http_filters: Vec<String>,
    /// The longest time of an RPC on routes that set none themselves.
    pub max_stream_duration: Option<Duration>,
    /// Every cluster that routes or aggregate clusters name, or the reason why it cannot be used.
    pub clusters: BTreeMap<String, Result<Cluster, ClusterError>>,
    /// Whether resources of one authority come from more than one server. This happens only when a switch between
    /// servers was not complete in time.
    pub mixed_sources: bool,
}

/// The views of a channel as they change, from [`Channel::configs`](crate::Channel::configs).
///
/// Each view is the newest one: changes that happen between two calls of [`next`](Configs::next) are seen together.
/// The views end with the channel.
pub struct Configs {
    driver: DriverHandle,
    changed: watch::Receiver<u64>,
}

// === impl ConfigView ===

impl ConfigView {
    /// Returns what is known of a resource, by its name as other resources write it; `None` if the channel does not
    /// subscribe to it.
    ///
    /// ```
    /// use mainstay::ResourceType;
    /// use mainstay::view::ConfigView;
    ///
    /// fn version_of_cluster(view: &ConfigView, name: &str) -> Option<String> {
    ///     let value = view.resource(ResourceType::Cluster, name)?.value.as_ref()?;
    ///     Some(value.version.clone())
    /// }
    /// ```
    pub fn resource(&self, resource_type: ResourceType, name: &str) -> Option<&ResourceStatus> {
        find(&self.resources, resource_type, name)
    }

    pub(crate) fn of(status: HubStatus) -> Self {
        let clock = Clock { start: status.xds.start };
        Self {
            target: status.xds.scope.to_string(),
            node_id: status.xds.node.id.clone(),
            listener: status.listener.to_string(),
            config: status.config.map(|config| match config {
                Ok(config) => Ok(XdsConfig::of(&config, clock)),
                Err(error) => Err(ConfigError::of(&error, clock)),
            }),
            resources: status
                .xds
                .resources
                .iter()
                .map(|r| ResourceStatus::of(r, status.xds.received_at(r), clock))
                .collect(),
            recording: status.capture.map(|captures| Recording::of(&captures, clock)),
            servers: status.xds.servers.iter().map(ServerStatus::of).collect(),
            taken_at: clock.at(status.xds.now),
        }
    }
}

// === impl XdsConfig ===

impl XdsConfig {
    fn of(core: &deps::XdsConfig, clock: Clock) -> Self {
        let cluster = |(name, result): (&std::sync::Arc<str>, &deps::ClusterResult)| {
            let cluster = match result {
                Ok(config) => Ok(Cluster::of(config)),
                Err(error) => Err(ClusterError::of(error, clock)),
            };
            (name.to_string(), cluster)
        };
        Self {
            route_config: match &core.listener.routes {
                RouteSource::Inline(_) => None,
                RouteSource::Rds(name) => Some(name.to_string()),
            },
            virtual_host: core.virtual_host.name.clone(),
            routes: core.virtual_host.routes.iter().map(Route::of).collect(),
            http_filters: core.listener.filters.iter().map(|filter| filter.name.clone()).collect(),
            max_stream_duration: core.listener.max_stream_duration,
            clusters: core.clusters.iter().map(cluster).collect(),
            mixed_sources: core.mixed_sources,
        }
    }
}

// === impl Configs ===

impl Configs {
    pub(crate) fn new(hub: &Hub) -> Self {
        let mut changed = hub.shared.changed.subscribe();
        changed.mark_changed();
        Self { driver: hub.driver.clone(), changed }
    }

    /// Waits for the next view: the present one at first, then one that differs from the last. Returns `None` when the
    /// channel is closed.
    pub async fn next(&mut self) -> Option<ConfigView> {
        self.changed.changed().await.ok()?;
        self.driver.status().await.map(ConfigView::of)
    }
}

impl fmt::Debug for Configs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configs").finish_non_exhaustive()
    }
}

/// The resource with this name, as other resources write it.
fn find<'a>(resources: &'a [ResourceStatus], resource_type: ResourceType, name: &str) -> Option<&'a ResourceStatus> {
    let find = |name: &str| {
        let is_it =
            |status: &&ResourceStatus| status.resource.resource_type == resource_type && status.resource.name == name;
        resources.iter().find(is_it)
    };
    find(name).or_else(|| {
        let (key, _) = name::ResourceKey::parse(resource_type.core(), name, true).ok()?;
        find(&key.name)
    })
}

/// Makes points in time of what the core calls time: the age of the channel.
#[derive(Clone, Copy)]
struct Clock {
    start: Instant,
}

impl Clock {
    fn at(self, time: Time) -> Instant {
        self.start + time.since_start()
    }
}
