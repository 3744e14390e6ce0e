//! Keeps the driver of a server running.
//!
//! Ports, connections and what they are served by outlive a driver that panics: the next one begins anew with the control
//! plane, and takes them over.

use std::convert::Infallible;
use std::sync::Arc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use mainstay_xds::Backoff;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::driver::Driver;
use super::handle::ServerHandle;
use super::port::{Answer, ListenerTask, Order};
use crate::guard;
use crate::random::Random;
use crate::task::Task;

/// Everything that the drivers of a server need.
pub(super) struct Supervisor {
    pub(super) server: Arc<ServerHandle>,
    /// To the task of each listener.
    pub(super) orders: Vec<UnboundedSender<Order>>,
    /// From all of them.
    pub(super) answers: UnboundedReceiver<Answer>,
    /// Closed when the last of them has ended.
    pub(super) ended: mpsc::Receiver<Infallible>,
    /// Whether the application wants an end.
    pub(super) shut_down: watch::Receiver<bool>,
}

impl Supervisor {
    /// Runs until the server has been shut down. Dropping the future ends everything.
    pub(super) async fn run(mut self, tasks: Vec<ListenerTask>) {
        let _tasks: Vec<_> = tasks.into_iter().map(|task| Task::spawn(task.run())).collect();
        let mut crashes = 0;
        loop {
            let began = Instant::now();
            let Err(panic) = guard::caught(self.drive()).await else { return };
            crashes = if began.elapsed() > CALM { 0 } else { crashes };
            let client = &self.server.shared.plan.client;
            let pause = Backoff::new(client.backoff_base, client.backoff_max).delay(crashes, &mut Random);
            crashes += 1;
            tracing::error!(%panic, ?pause, "the driver of a server panicked, and is started again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn drive(&mut self) {
        let (command, commands) = unbounded();
        self.server.commands.store(Arc::new(command));
        let driver = Driver::new(self.server.clone(), &self.orders, commands);
        driver.run(&mut self.answers, &mut self.shut_down, &mut self.ended).await;
    }
}

/// A driver that has run for so long did not die of how it began.
const CALM: std::time::Duration = std::time::Duration::from_secs(60);
