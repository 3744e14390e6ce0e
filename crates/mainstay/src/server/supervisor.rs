//! Keeps the driver of servers running.
//!
//! Ports, connections and what they are served by outlive a driver that panics: the next one begins anew with the control
//! plane, and takes them over.

use std::sync::Arc;

use futures_channel::mpsc::UnboundedReceiver;
use mainstay_xds::Backoff;
use tokio::time::Instant;

use super::driver::Driver;
use super::member::Members;
use super::plan::ClientPlan;
use super::port::Answer;
use crate::guard;
use crate::random::Random;

/// Everything that the drivers of servers need.
pub(super) struct Supervisor {
    pub(super) plan: Arc<ClientPlan>,
    pub(super) members: Arc<Members>,
    /// From the tasks of all addresses.
    pub(super) answers: UnboundedReceiver<Answer>,
}

impl Supervisor {
    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) {
        let mut crashes = 0;
        loop {
            let began = Instant::now();
            let Err(panic) = guard::caught(self.drive()).await else { return };
            crashes = if began.elapsed() > CALM { 0 } else { crashes };
            let client = &self.plan.client;
            let pause = Backoff::new(client.backoff_base, client.backoff_max).delay(crashes, &mut Random);
            crashes += 1;
            tracing::error!(%panic, ?pause, "the driver of servers panicked, and is started again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn drive(&mut self) {
        let (members, commands) = self.members.begin();
        Driver::new(&self.plan, members, commands).run(&mut self.answers).await;
    }
}

/// A driver that has run for so long did not die of how it began.
const CALM: std::time::Duration = std::time::Duration::from_secs(60);
