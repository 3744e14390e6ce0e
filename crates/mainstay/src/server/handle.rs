//! The servers of the process, as those see them who look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_channel::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::listener::Listener;
use super::shared::ServerShared;
use crate::process::{self, Kind, Table};
use crate::xds_status::XdsStatus;

/// A server that runs.
pub(crate) struct ServerHandle {
    pub(crate) shared: Arc<ServerShared>,
    pub(crate) listeners: Vec<Arc<Listener>>,
    /// Where commands to the present driver go.
    pub(super) commands: ArcSwap<UnboundedSender<Command>>,
}

/// A command to the driver.
pub(super) enum Command {
    /// Tell how your client is doing.
    Status(oneshot::Sender<XdsStatus>),
}

/// Every server of the process.
#[derive(Default)]
struct Servers(Vec<Weak<ServerHandle>>);

impl Table for Servers {
    const KIND: Kind = Kind::Servers;
}

impl ServerHandle {
    /// Lets those who look at the process see it.
    pub(super) fn show(self: &Arc<Self>) {
        let Servers(servers) = &mut *process::table();
        servers.retain(|server| server.strong_count() > 0);
        servers.push(Arc::downgrade(self));
    }

    /// The servers of the process that run, by ascending id.
    pub(crate) fn all() -> Vec<Arc<Self>> {
        let mut running: Vec<_> = process::table::<Servers>().0.iter().filter_map(Weak::upgrade).collect();
        running.sort_by_key(|server| server.shared.node.counters.id);
        running
    }

    /// How the XdsClient of each running server is doing. None is waited for long: a runtime that nobody drives answers
    /// nothing.
    pub(crate) async fn statuses() -> Vec<XdsStatus> {
        let asked = Self::all().into_iter().map(|server| {
            let (answer, answered) = oneshot::channel();
            // A driver that is being started again says nothing of what is over.
            let _ = server.commands.load().unbounded_send(Command::Status(answer));
            async move { tokio::time::timeout(STATUS_TIMEOUT, answered).await.ok()?.ok() }
        });
        futures_util::future::join_all(asked).await.into_iter().flatten().collect()
    }
}

/// A driver answers in microseconds; one that is very busy, in milliseconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
