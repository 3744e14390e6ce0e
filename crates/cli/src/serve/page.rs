//! How a control plane is doing, as JSON: what `mainstay status --control-plane` asks for.

use std::{
    collections::BTreeMap,
    time::{Instant, SystemTime},
};

use mainstay_control_plane::{ClientStatus, TypeStatus};
use serde::{Deserialize, Serialize};

use crate::serve::subject::Subject;

/// A control plane and its clients.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Page {
    /// Where it serves.
    pub(crate) address: String,
    pub(crate) ready: bool,
    pub(crate) sources: Vec<SourceState>,
    pub(crate) streams: Streams,
    pub(crate) clients: Vec<Client>,
}

/// Where resources come from.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct SourceState {
    pub(crate) name: String,
    pub(crate) resources: usize,
    /// Since it brought what is served.
    pub(crate) age_ms: Option<u64>,
    pub(crate) behind_ms: Option<u64>,
    pub(crate) problem: Option<String>,
}

/// ADS streams, in numbers.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Streams {
    pub(crate) open: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    pub(crate) nacks: u64,
}

/// Who has a stream open.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Client {
    pub(crate) node: String,
    pub(crate) user_agent: String,
    pub(crate) peer: String,
    pub(crate) delta: bool,
    pub(crate) connected_ms: u64,
    /// By the short name of the type.
    pub(crate) types: BTreeMap<String, Version>,
}

/// How a client stands with one type.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Version {
    pub(crate) sent: Option<String>,
    pub(crate) acked: Option<String>,
    pub(crate) rejected: Option<String>,
    pub(crate) reason: Option<String>,
}

/// The page as it is now.
pub(super) fn json(subject: &Subject) -> String {
    let stats = subject.server.stats();
    let millis = |since: Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    let sources = subject.intake.feeds().into_iter().map(|feed| SourceState {
        resources: feed.resources,
        age_ms: feed.brought.map(millis),
        behind_ms: feed.behind.map(millis),
        problem: feed.problem,
        name: feed.name,
    });
    let page = Page {
        address: subject.server.address().to_string(),
        ready: subject.is_ready(),
        sources: sources.collect(),
        streams: Streams {
            open: stats.open_streams,
            accepted: stats.streams,
            refused: stats.refused_busy + stats.refused_draining + stats.refused_closed,
            nacks: stats.nacks,
        },
        clients: subject.server.clients().into_iter().map(client).collect(),
    };
    // Numbers and texts under names: there is nothing in it that cannot be written.
    serde_json::to_string(&page).unwrap_or_default()
}

fn client(status: ClientStatus) -> Client {
    let since = SystemTime::now().duration_since(status.since).unwrap_or_default();
    Client {
        connected_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        types: status.types.iter().map(|(url, of)| (url.short_name().to_owned(), version(of))).collect(),
        peer: status.peer.to_string(),
        node: status.node_id,
        user_agent: status.user_agent,
        delta: status.delta,
    }
}

fn version(of: &TypeStatus) -> Version {
    let (rejected, reason) = of.rejected.clone().unzip();
    Version {
        sent: of.sent.as_deref().map(str::to_owned),
        acked: of.acked.as_deref().map(str::to_owned),
        rejected: rejected.as_deref().map(str::to_owned),
        reason,
    }
}
