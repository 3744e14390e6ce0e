//! What channels and servers had last, on disk: a restart while every control plane is down goes on with it.
//!
//! [`ChannelBuilder::last_good`](crate::ChannelBuilder::last_good) and
//! [`ServerBuilder::last_good`](crate::ServerBuilder::last_good), or `last_good` in the bootstrap, turn it on. From then on
//! each complete configuration that is in force is written to a file, off the way of RPCs, and the files are the last server
//! of every list of `xds_servers`: they are read when all servers before them are unreachable and something is missing
//! (gRFC A71), and left as soon as one of those has answered. What they do not have is unknown, never deleted.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use mainstay::last_good::LastGood;
//!
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::builder("xds:///greeter").last_good("/var/cache/greeter/xds").build()?;
//! // Or with settings:
//! let settings = LastGood::new("/var/cache/greeter/xds").max_age(Duration::from_secs(3 * 24 * 3600)).eager(true);
//! let channel = mainstay::Channel::builder("xds:///greeter").last_good(settings).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! Endpoints in a file may be gone. That is what connectivity, priorities and outlier detection are for; names of
//! LOGICAL_DNS clusters are looked up as ever.
//!
//! [`read`] and [`list`] are for tools, such as `mainstay last-good`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mainstay_xds::bootstrap::{self, Bootstrap};
use mainstay_xds::local;

use crate::names::{ResourceName, ResourceType};

mod disk;
mod error;
mod recorder;
mod store;

pub use error::LastGoodError;

pub(crate) use recorder::{Recorder, Wake};
pub(crate) use store::Store;

/// Where what was last good is kept, and when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct LastGood(bootstrap::LastGood);

/// A last-good file, as [`read`] finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastGoodFile {
    /// Where it is.
    pub path: PathBuf,
    /// The target of the channel that wrote it, or `#server`.
    pub key: String,
    /// The authority of its resources; `None` for names without one.
    pub authority: Option<String>,
    /// The id of the node that it was written for.
    pub node_id: String,
    /// When its content was last known to be what the control plane says.
    pub created_at: SystemTime,
    /// Whether it is the one before the last.
    pub is_previous: bool,
    /// Its resources, by type and name.
    pub resources: Vec<LastGoodResource>,
}

/// A resource in a last-good file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastGoodResource {
    /// The type and the name of the resource. Of a glob collection each member is one.
    pub resource: ResourceName,
    /// The version of the resource.
    pub version: String,
    /// The URI of the server that sent it.
    pub server: String,
    /// When it was received.
    pub received_at: SystemTime,
    /// The encoded protobuf message, as it was received.
    pub encoded: bytes::Bytes,
}

// === impl LastGood ===

impl LastGood {
    /// Keeps files in `directory`, which is made if it is not there, for this user only.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self(bootstrap::LastGood::new(directory))
    }

    /// Sets how old a file may be that is used; 7 days by default.
    ///
    /// A file does not age while the control plane can be reached and says the same.
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.0.max_age = max_age;
        self
    }

    /// Sets whether a file that is too old is used all the same, if there is nothing else; off by default.
    pub fn allow_expired(mut self, allow: bool) -> Self {
        self.0.allow_expired = allow;
        self
    }

    /// Sets whether the files are used at once at the start, until a control plane has answered, instead of only when none can
    /// be reached; off by default.
    ///
    /// For what must start in milliseconds, such as batch jobs and functions.
    pub fn eager(mut self, eager: bool) -> Self {
        self.0.eager = eager;
        self
    }

    /// Writes nothing of this type, such as routes whose filters hold secrets. Without it the files are of use only to
    /// who has the rest in cache.
    pub fn exclude_type(mut self, resource_type: ResourceType) -> Self {
        self.0.exclude_types.push(resource_type.core());
        self
    }

    pub(crate) fn announce(self, bootstrap: &Arc<Bootstrap>) -> Arc<Bootstrap> {
        Arc::new(Bootstrap::clone(bootstrap).with_last_good(self.0))
    }
}

impl From<&str> for LastGood {
    fn from(directory: &str) -> Self {
        Self::new(directory)
    }
}

impl From<String> for LastGood {
    fn from(directory: String) -> Self {
        Self::new(directory)
    }
}

impl From<&Path> for LastGood {
    fn from(directory: &Path) -> Self {
        Self::new(directory)
    }
}

impl From<PathBuf> for LastGood {
    fn from(directory: PathBuf) -> Self {
        Self::new(directory)
    }
}

// === Tools ===

/// Reads a last-good file, with the checks of whoever uses one but those of whose it is and how old.
///
/// # Errors
/// If somebody else could have written it, or if it is not exactly as it was written.
pub fn read(path: impl AsRef<Path>) -> Result<LastGoodFile, LastGoodError> {
    let path = path.as_ref();
    let bytes = disk::read(path)?;
    let file = local::LastGoodFile::decode(&bytes).map_err(|refusal| LastGoodError::new(path, refusal.to_string()))?;
    let at = |time: Duration| SystemTime::UNIX_EPOCH + time;
    let resources = file.resources.into_iter().map(|stored| LastGoodResource {
        resource: ResourceName::of(&stored.resource),
        version: stored.version.to_string(),
        server: stored.source.to_string(),
        received_at: at(stored.received_at),
        encoded: stored.value,
    });
    Ok(LastGoodFile {
        is_previous: path.to_string_lossy().ends_with(disk::PREVIOUS),
        path: path.to_owned(),
        key: file.key,
        authority: file.authority.strip_prefix("xdstp://").map(str::to_owned),
        node_id: file.node_id,
        created_at: at(file.created_at),
        resources: resources.collect(),
    })
}

/// Puts a file into a directory as channels do: there is always a whole one, the one before stays beside it, and only this user
/// may read either. The directory is made if it is not there.
///
/// # Errors
/// If the directory is not ours alone, or the disk takes nothing.
pub fn write(directory: impl AsRef<Path>, name: &str, bytes: &[u8]) -> Result<(), LastGoodError> {
    disk::replace(&disk::SystemDisk, directory.as_ref(), name, bytes)
}

/// Returns the paths of the last-good files in a directory, in order.
///
/// # Errors
/// If it cannot be read.
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<PathBuf>, LastGoodError> {
    disk::list(directory.as_ref())
}
