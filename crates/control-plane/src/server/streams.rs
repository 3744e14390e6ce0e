//! The open streams: who is at their other end, and what an operator may tell them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::sync::mpsc;
use tonic::Status;

use crate::encoding::Encoded;
use crate::event::{StreamId, lock};
use crate::protocol::RequestKind;
use crate::type_url::TypeUrl;

/// What an operator tells a stream.
#[derive(Debug)]
pub(super) enum Command {
    /// Send this as it stands.
    Send(Raw),
    /// End with this status.
    Close(Status),
}

/// A response that no protocol made.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) type_url: TypeUrl,
    pub(super) version: String,
    pub(super) message: Encoded,
}

/// The open streams.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<BTreeMap<StreamId, Entry>>);

#[derive(Debug)]
struct Entry {
    /// Boxed: a queue has room for many of them, and is empty for most of its life.
    commands: mpsc::UnboundedSender<Box<Command>>,
    standing: Arc<Standing>,
}

impl Streams {
    pub(super) fn open(
        &self,
        id: StreamId,
        delta: bool,
        peer: SocketAddr,
    ) -> (mpsc::UnboundedReceiver<Box<Command>>, Arc<Standing>) {
        let (sender, commands) = mpsc::unbounded_channel();
        let status = ClientStatus {
            node_id: String::new(),
            user_agent: String::new(),
            peer,
            delta,
            since: SystemTime::now(),
            types: BTreeMap::new(),
        };
        let standing = Arc::new(Standing(Mutex::new(status)));
        lock(&self.0).insert(id, Entry { commands: sender, standing: Arc::clone(&standing) });
        (commands, standing)
    }

    pub(super) fn close(&self, id: StreamId) {
        lock(&self.0).remove(&id);
    }

    pub(super) fn command(&self, make: impl Fn() -> Command) {
        for stream in lock(&self.0).values() {
            // A stream that does not listen any more is about to end.
            let _ = stream.commands.send(Box::new(make()));
        }
    }

    pub(super) fn clients(&self) -> Vec<ClientStatus> {
        lock(&self.0).values().map(|entry| lock(&entry.standing.0).clone()).collect()
    }
}

/// What is known of the client of one stream.
#[derive(Debug)]
pub(super) struct Standing(Mutex<ClientStatus>);

impl Standing {
    /// A request came.
    pub(super) fn heard(&self, type_url: &TypeUrl, node: Option<&Node>, kind: RequestKind, error: Option<&str>) {
        let mut status = lock(&self.0);
        if let Some(node) = node.filter(|_| status.node_id.is_empty()) {
            status.node_id.clone_from(&node.id);
            status.user_agent.clone_from(&node.user_agent_name);
        }
        let of_type = status.types.entry(type_url.clone()).or_default();
        match kind {
            RequestKind::Ack => {
                of_type.acked.clone_from(&of_type.sent);
                of_type.rejected = None;
            }
            RequestKind::Nack => {
                let version = of_type.sent.clone().unwrap_or_default();
                of_type.rejected = Some((version, error.unwrap_or_default().to_owned()));
            }
            RequestKind::Subscribe | RequestKind::Stale => {}
        }
    }

    /// A response was sent.
    pub(super) fn sent(&self, type_url: &TypeUrl, version: &str) {
        lock(&self.0).types.entry(type_url.clone()).or_default().sent = Some(version.into());
    }
}

/// A client that has an ADS stream open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStatus {
    /// What it calls itself; empty before its first request.
    pub node_id: String,
    /// `user_agent_name` of its node.
    pub user_agent: String,
    /// Its end of the connection; unspecified for a socket in the file system.
    pub peer: SocketAddr,
    /// Whether it speaks the incremental variant.
    pub delta: bool,
    /// Since when.
    pub since: SystemTime,
    /// What it was sent and what it says about it, by type.
    pub types: BTreeMap<TypeUrl, TypeStatus>,
}

/// How a client stands with one type of resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeStatus {
    /// The version that it was sent last.
    pub sent: Option<Arc<str>>,
    /// The version that it accepted last.
    pub acked: Option<Arc<str>>,
    /// The version that it rejected, and why, if that was its last word.
    pub rejected: Option<(Arc<str>, String)>,
}
