//! What servers with one bootstrap share: a driver and its `#server` client (A71, C-2).

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_channel::mpsc::{UnboundedSender, unbounded};
use tokio::runtime;

use super::member::{Member, Members};
use super::plan::ClientPlan;
use super::port::Answer;
use super::supervisor::Supervisor;
use crate::process::{self, Kind, Table};
use crate::task::Task;
use crate::xds_status::XdsStatus;

/// The client of servers with equal plans, and the driver that runs it. The last server to go closes it.
pub(super) struct ServerHub {
    plan: Arc<ClientPlan>,
    runtime: runtime::Id,
    members: Arc<Members>,
    /// Where the tasks of all addresses send their answers.
    pub(super) answers: UnboundedSender<Answer>,
    _task: Task,
}

/// Keeps a server in its hub.
pub(super) struct Membership {
    hub: Arc<ServerHub>,
    member: Arc<Member>,
}

/// Every hub of servers of the process. Like those of channels, hubs on different runtimes are never shared.
#[derive(Default)]
struct ServerHubs(Vec<Weak<ServerHub>>);

impl Table for ServerHubs {
    const KIND: Kind = Kind::ServerHubs;
}

impl ServerHub {
    /// The running hub of an equal plan, or a new one.
    pub(super) fn of(plan: &Arc<ClientPlan>, runtime: &runtime::Handle) -> Arc<Self> {
        let ServerHubs(hubs) = &mut *process::table();
        hubs.retain(|hub| hub.strong_count() > 0);
        let running =
            hubs.iter().filter_map(Weak::upgrade).find(|hub| hub.plan == *plan && hub.runtime == runtime.id());
        running.unwrap_or_else(|| {
            let hub = Arc::new(Self::start(plan.clone(), runtime));
            hubs.push(Arc::downgrade(&hub));
            hub
        })
    }

    fn start(plan: Arc<ClientPlan>, runtime: &runtime::Handle) -> Self {
        let (answers, answered) = unbounded();
        let members = Arc::new(Members::new());
        let supervisor = Supervisor { plan: plan.clone(), members: members.clone(), answers: answered };
        let _entered = runtime.enter();
        Self { plan, runtime: runtime.id(), members, answers, _task: Task::spawn(supervisor.run()) }
    }

    /// Serves the addresses of a server until the membership is dropped.
    pub(super) fn join(self: Arc<Self>, member: Member) -> Membership {
        let member = Arc::new(member);
        self.members.join(&member);
        Membership { hub: self, member }
    }

    /// How the client is doing; `None` if nobody says so.
    pub(super) async fn status(&self) -> Option<XdsStatus> {
        tokio::time::timeout(STATUS_TIMEOUT, self.members.ask_status()).await.ok()?.ok()
    }

    /// How the client of each hub is doing. None is waited for long: a runtime that nobody drives answers nothing.
    pub(super) async fn statuses() -> Vec<XdsStatus> {
        let hubs: Vec<_> = process::table::<ServerHubs>().0.iter().filter_map(Weak::upgrade).collect();
        futures_util::future::join_all(hubs.iter().map(|hub| hub.status())).await.into_iter().flatten().collect()
    }
}

impl Membership {
    /// Lets the server come to its end (SV-25).
    pub(super) fn shut_down(&self) {
        self.hub.members.shut_down(&self.member);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hub.members.leave(&self.member);
    }
}

/// A driver answers in microseconds; one that is very busy, in milliseconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
