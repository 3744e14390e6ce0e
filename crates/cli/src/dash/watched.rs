//! A process that is looked at, and how it is doing.

use std::sync::Arc;

use serde::Serialize;

use crate::{get::Status, inspect::Process};

/// A process that is looked at.
#[derive(Debug, Serialize)]
pub(super) struct Watched {
    pub(super) address: String,
    pub(super) health: Health,
    /// Why.
    pub(super) words: String,
    /// What it holds; of one that does not answer any more, what it held.
    #[serde(skip)]
    pub(super) held: Option<Arc<Process>>,
    /// Why it does not answer.
    pub(super) error: Option<String>,
}

/// How a process is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Health {
    /// It does not answer, or cannot send RPCs anywhere.
    Bad,
    /// On a fallback, or with an error beside its configuration.
    Warn,
    Good,
    /// Not asked yet, or without an xDS client.
    Unknown,
}

impl Watched {
    pub(super) fn unknown(address: String) -> Self {
        Self { address, health: Health::Unknown, words: "not asked yet".to_owned(), held: None, error: None }
    }

    pub(super) fn of(address: String, process: Process) -> Self {
        let (health, words) = judge(&process);
        Self { address, health, words: words.to_owned(), held: Some(Arc::new(process)), error: None }
    }

    pub(super) fn lost(&self, error: String) -> Self {
        Self {
            address: self.address.clone(),
            health: Health::Bad,
            words: "does not answer".to_owned(),
            held: self.held.clone(),
            error: Some(error),
        }
    }

    /// What is wrong, in full.
    pub(super) fn trouble(&self) -> Option<String> {
        let of_clients = || {
            let clients = self.held.iter().flat_map(|held| &held.clients);
            clients.filter_map(|client| client.trouble()).next()
        };
        self.error.clone().or_else(of_clients)
    }
}

/// How a process is doing, by the worst of its clients.
fn judge(process: &Process) -> (Health, &'static str) {
    let clients = || process.clients.iter();
    let has = |status| clients().flat_map(|client| &client.reports).any(|report| report.status == status);
    if process.clients.is_empty() {
        (Health::Unknown, "no xDS client")
    } else if has(Status::Failed) {
        (Health::Bad, "no usable configuration")
    } else if clients().any(|client| client.row.fallback == Some(true)) {
        (Health::Warn, "on fallback")
    } else if has(Status::Partial) {
        (Health::Warn, "a cluster without endpoints")
    } else if clients().any(|client| client.row.last_error.is_some()) {
        (Health::Warn, "error beside its configuration")
    } else {
        (Health::Good, "in order")
    }
}
