//! The open streams: who is at their other end, and what an operator may tell them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::sync::Notify;
use tonic::Status;

use crate::encoding::Encoded;
use crate::event::{StreamId, lock};
use crate::few::Few;
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
pub(super) struct Streams(Mutex<BTreeMap<StreamId, Arc<Standing>>>);

impl Streams {
    pub(super) fn open(&self, id: StreamId, delta: bool, peer: SocketAddr) -> Arc<Standing> {
        let standing = Arc::new(Standing {
            delta,
            peer,
            since: SystemTime::now(),
            said: Mutex::default(),
            commands: Mutex::default(),
            is_commanded: Notify::new(),
        });
        lock(&self.0).insert(id, Arc::clone(&standing));
        standing
    }

    pub(super) fn close(&self, id: StreamId) {
        lock(&self.0).remove(&id);
    }

    pub(super) fn command(&self, make: impl Fn() -> Command) {
        for stream in lock(&self.0).values() {
            lock(&stream.commands).push_back(make());
            stream.is_commanded.notify_one();
        }
    }

    pub(super) fn clients(&self) -> Vec<ClientStatus> {
        lock(&self.0).values().map(|stream| stream.status()).collect()
    }
}

/// What is known of the client of one stream, and what the operator tells the stream.
#[derive(Debug)]
pub(super) struct Standing {
    delta: bool,
    peer: SocketAddr,
    since: SystemTime,
    said: Mutex<Said>,
    commands: Mutex<VecDeque<Command>>,
    is_commanded: Notify,
}

/// What a client said and was told.
#[derive(Debug, Default)]
struct Said {
    node_id: Box<str>,
    user_agent: Box<str>,
    types: Few<TypeUrl, TypeStatus>,
}

impl Standing {
    /// A request came.
    pub(super) fn heard(&self, type_url: &TypeUrl, node: Option<&Node>, kind: RequestKind, error: Option<&str>) {
        let mut said = lock(&self.said);
        if let Some(node) = node.filter(|_| said.node_id.is_empty()) {
            (said.node_id, said.user_agent) = (node.id.as_str().into(), node.user_agent_name.as_str().into());
        }
        let of_type = said.types.get_or_default(type_url.clone());
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
        lock(&self.said).types.get_or_default(type_url.clone()).sent = Some(version.into());
    }

    /// The next thing that the operator tells the stream. Nothing is lost when this is dropped.
    pub(super) async fn command(&self) -> Command {
        loop {
            if let Some(command) = lock(&self.commands).pop_front() {
                return command;
            }
            self.is_commanded.notified().await;
        }
    }

    fn status(&self) -> ClientStatus {
        let said = lock(&self.said);
        ClientStatus {
            node_id: said.node_id.to_string(),
            user_agent: said.user_agent.to_string(),
            peer: self.peer,
            delta: self.delta,
            since: self.since,
            types: said.types.iter().map(|(type_url, status)| (type_url.clone(), status.clone())).collect(),
        }
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
