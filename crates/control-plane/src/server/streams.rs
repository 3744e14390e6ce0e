//! The open streams, and what an operator may tell them.

use std::collections::BTreeMap;
use std::sync::Mutex;

use tokio::sync::mpsc;
use tonic::Status;

use crate::encoding::Encoded;
use crate::event::{StreamId, lock};
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
