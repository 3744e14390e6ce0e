//! The open streams, and what an operator may tell them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use tokio::sync::mpsc;
use tonic::Status;

use crate::event::{StreamId, lock};

/// What an operator tells a stream.
#[derive(Debug)]
pub(super) enum Command {
    /// Send this as it stands.
    Send(DiscoveryResponse),
    /// End with this status.
    Close(Status),
}

/// The open streams.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<BTreeMap<StreamId, mpsc::UnboundedSender<Command>>>);

impl Streams {
    pub(super) fn open(&self, id: StreamId) -> mpsc::UnboundedReceiver<Command> {
        let (sender, commands) = mpsc::unbounded_channel();
        lock(&self.0).insert(id, sender);
        commands
    }

    pub(super) fn close(&self, id: StreamId) {
        lock(&self.0).remove(&id);
    }

    pub(super) fn command(&self, make: impl Fn() -> Command) {
        for stream in lock(&self.0).values() {
            // A stream that does not listen any more is about to end.
            let _ = stream.send(make());
        }
    }
}
