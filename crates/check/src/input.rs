//! What is looked at: resources, where they are written, and bootstraps.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::bootstrap::BootstrapFile;
use crate::finding::Finding;

/// Everything that is looked at together.
#[derive(Clone, Debug, Default)]
pub struct Input {
    /// The resources.
    pub items: Vec<Item>,
    /// The bootstrap of the clients that will use them, if it is known.
    pub bootstrap: Option<BootstrapFile>,
    /// Bootstraps that are looked at for their own sake.
    pub bootstraps: Vec<BootstrapFile>,
    /// What whoever read the files could not read.
    pub troubles: Vec<Finding>,
    /// Files and their texts, for the comments in them.
    pub texts: Vec<(String, String)>,
}

/// A resource, or what is in the place of one.
#[derive(Clone, Debug)]
pub struct Item {
    /// Full name of the message, such as `envoy.config.cluster.v3.Cluster`.
    pub message_name: String,
    /// The name under which clients ask for it.
    pub name: String,
    /// The node that it is for; all nodes if there is none.
    pub node: Option<String>,
    /// What there is.
    pub body: Body,
    /// Where it is written.
    pub origin: Origin,
}

/// What there is under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The encoded message.
    Message(Bytes),
    /// An error that clients are answered with.
    Error,
    /// Nothing: a running client asked for it in vain, or was told that there is none.
    Nothing {
        /// What it says about that.
        status: String,
    },
}

/// Where something is written.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file as the user knows it, or the process.
    pub file: String,
    lines: Option<Arc<dyn Lines>>,
}

/// Knows on which line a field is written.
pub trait Lines: fmt::Debug + Send + Sync {
    /// The line of a field such as `virtual_hosts[0].routes`, counted from 1; of what is not written, that of what is around
    /// it.
    fn line(&self, path: &str) -> Option<u64>;
}

impl Item {
    /// A resource for all nodes. `message_name` may be a type URL.
    pub fn new(message_name: &str, name: impl Into<String>, message: impl Into<Bytes>, origin: Origin) -> Self {
        let message_name = message_name.rsplit('/').next().unwrap_or(message_name).to_owned();
        Self { message_name, name: name.into(), node: None, body: Body::Message(message.into()), origin }
    }

    /// The last part of its type, such as `Cluster`.
    pub fn kind(&self) -> &str {
        self.message_name.rsplit('.').next().unwrap_or(&self.message_name)
    }
}

impl Origin {
    /// A file or a process of which the lines are not known.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), lines: None }
    }

    /// A file with its lines.
    pub fn with_lines(file: impl Into<String>, lines: Arc<dyn Lines>) -> Self {
        Self { file: file.into(), lines: Some(lines) }
    }

    /// The line of a field.
    pub fn line(&self, path: &str) -> Option<u64> {
        self.lines.as_ref()?.line(path)
    }
}
