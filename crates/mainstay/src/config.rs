//! What a channel has been told: its configuration, where each part came from, and what is wrong with it.
//!
//! ```no_run
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::builder("xds:///greeter").without_endpoints().build()?;
//! let mut configs = channel.configs();
//! while let Some(view) = configs.next().await {
//!     for resource in &view.resources {
//!         println!("{}: {:?}", resource.resource, resource.state);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

// The parts of a view.
pub use mainstay_xds::{Time, client, deps, name, resource};

use self::client::{ResourceStatus, ServerStatus};
use self::deps::{ConfigError, XdsConfig};
use self::name::ResourceKey;
use self::resource::ResourceType;
use crate::hub::{Hub, HubStatus, Inspector};

/// What a channel has been told. A plain value: it does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigView {
    /// The target in canonical form.
    pub target: Arc<str>,
    /// Who we are for the servers.
    pub node_id: String,
    /// Name of the Listener that the target stands for.
    pub listener: Arc<str>,
    /// The configuration in force, or the error in its place. `None`: none was ever complete.
    pub config: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    /// Every resource that is watched, by type and name.
    pub resources: Vec<ResourceStatus>,
    /// Every server that was ever needed.
    pub servers: Vec<ServerStatus>,
    /// When this was true.
    pub now: Time,
}

/// The views of a channel as they change, from [`Channel::configs`](crate::Channel::configs).
///
/// Each view is the newest one: changes that nobody waited for are not told one by one. Ends with the channel.
pub struct Configs {
    inspector: Inspector,
    changed: watch::Receiver<u64>,
}

// === impl ConfigView ===

impl ConfigView {
    /// What is known of a watched resource, by its name as resources write it.
    pub fn resource(&self, resource_type: ResourceType, name: &str) -> Option<&ResourceStatus> {
        let find = |name: &str| {
            let key = |status: &ResourceStatus| {
                status.resource.resource_type == resource_type && *status.resource.name == *name
            };
            self.resources.iter().find(|status| key(status))
        };
        find(name).or_else(|| {
            let (key, _) = ResourceKey::parse(resource_type, name, true).ok()?;
            find(&key.name)
        })
    }

    /// How long ago `at` was.
    pub fn age(&self, at: Time) -> Duration {
        self.now.since(at)
    }
}

impl From<HubStatus> for ConfigView {
    fn from(status: HubStatus) -> Self {
        Self {
            target: status.target,
            node_id: status.node.id,
            listener: status.listener,
            config: status.config,
            resources: status.resources,
            servers: status.servers,
            now: status.now,
        }
    }
}

// === impl Configs ===

impl Configs {
    pub(crate) fn new(hub: &Hub) -> Self {
        let mut changed = hub.shared.changed.subscribe();
        changed.mark_changed();
        Self { inspector: hub.inspector.clone(), changed }
    }

    /// The present view at first, then the next one that differs from what was told; `None` when the channel is closed.
    pub async fn next(&mut self) -> Option<ConfigView> {
        self.changed.changed().await.ok()?;
        self.inspector.status().await.map(ConfigView::from)
    }
}

impl fmt::Debug for Configs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Configs").finish_non_exhaustive()
    }
}
