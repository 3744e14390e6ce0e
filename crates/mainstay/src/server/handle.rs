//! The servers of the process, as those see them who look.

use std::sync::{Arc, Weak};

use super::hub::ServerHub;
use super::listener::Listener;
use super::shared::ServerShared;
use crate::process::{self, Kind, Table};
use crate::xds_status::XdsStatus;

/// A server that runs.
pub(crate) struct ServerHandle {
    pub(crate) shared: Arc<ServerShared>,
    pub(crate) listeners: Vec<Arc<Listener>>,
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

    /// How each XdsClient of servers is doing.
    pub(crate) async fn statuses() -> Vec<XdsStatus> {
        ServerHub::statuses().await
    }
}
