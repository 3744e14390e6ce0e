//! RPCs, and what they would see.

use std::sync::Arc;

use mainstay_lb::{Decision, Ending, Input, Rpc};
use mainstay_xds::{Choose, Code};

use super::{World, path_of};
use crate::invariant::{Invariant, Violation};
use crate::scenario::Grain;
use crate::traffic;

impl World {
    pub(super) fn rpc(&mut self, choose: &mut dyn Choose, path: u8) {
        self.shell.lend();
        self.stats.rpcs += 1;
        let path = path_of(path);
        let headers = http::HeaderMap::new();
        let decision = self.snapshot.decide(Rpc { path, headers: &headers }, choose);
        match decision {
            Decision::Send(to) => {
                self.stats.rpcs_sent += 1;
                self.loads.picked(&to.origin.cluster);
                let (address, wake) = (to.subchannel.address, to.wake);
                self.rpcs.push_back((address, Arc::new(to.tracker)));
                if let Some(wake) = wake {
                    self.input(choose, Input::Wake(wake));
                }
            }
            Decision::Wait(_, None) | Decision::Fail(_) | Decision::Drop(_) | Decision::Inject(_) => {}
            Decision::Wait(_, Some(wake)) => self.input(choose, Input::Wake(wake)),
        }
    }

    pub(super) fn end_rpc(&mut self) {
        if let Some((_, tracker)) = self.rpcs.pop_front()
            && let Some(tracker) = Arc::into_inner(tracker)
        {
            tracker.end(Ending { code: Code::Ok, trailers: None });
        }
    }

    /// Every RPC ends well.
    pub(super) fn end_rpcs(&mut self) {
        while !self.rpcs.is_empty() {
            self.end_rpc();
        }
    }

    /// Checks what RPCs would see right now.
    pub(super) fn check_traffic(&mut self, choose: &mut dyn Choose, grain: Grain) -> Result<(), Violation> {
        let Some(oracle) = &self.oracle else { return Ok(()) };
        if let Some(picture) = &oracle.1.picture {
            let mut failing = std::mem::take(&mut self.shell.failing);
            failing.retain(|cluster| !self.shell.has_ready(&picture.addresses(cluster)));
            self.shell.failing = failing;
        }
        self.shell.lend();
        let headers = http::HeaderMap::new();
        let in_force = match self.core.config() {
            None => traffic::InForce::Nothing,
            Some(Err(_)) => traffic::InForce::Error,
            Some(Ok(_)) => traffic::InForce::Config(oracle.1.picture.as_deref()),
        };
        for path in [path_of(0), path_of(1)] {
            self.stats.rpcs += 1;
            let decision = self.snapshot.decide(Rpc { path, headers: &headers }, choose);
            traffic::check(path, &decision, in_force, &self.recent, &self.shell, grain)?;
            if let Decision::Send(to) = decision {
                self.stats.rpcs_sent += 1;
                to.tracker.withdraw(); // It was only a question.
            }
        }
        let counted: u32 = self.shell.counters.values().map(|counter| counter.in_flight()).sum();
        let in_flight = self.rpcs.len();
        Invariant::Breaker.holds(counted as usize == in_flight, || {
            format!("circuit breakers count {counted} RPCs, and {in_flight} are in flight")
        })
    }
}
