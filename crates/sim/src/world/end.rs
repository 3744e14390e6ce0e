//! How a world ends: everything heals, then the channel is dropped.

use std::time::Duration;

use mainstay_lb::Context;
use mainstay_xds::Choose;
use mainstay_xds::bootstrap::DeltaMode;

use super::{Event, Stats, Who, World};
use crate::choose::{Choices, Narrow, Replayed};
use crate::invariant::{Invariant, Violation};
use crate::plane::Speech;
use crate::scenario::{Grain, PlaneSpec};

impl World {
    /// Heals everything and lets things happen without faults: all must come to be as the first servers say.
    ///
    /// # Errors
    /// If something that must hold does not.
    pub fn converge(&mut self, choose: &mut dyn Choose) -> Result<(), Violation> {
        self.note(|_| "everything works again".to_owned());
        (0..self.planes.len()).for_each(|index| self.heal(index));
        self.planes.iter_mut().for_each(|plane| plane.speech = Speech::Delta);
        self.shell.down.clear();
        self.end_rpcs();
        (self.faults_left, self.delays_left, self.backend_faults_left) = (0, 0, 0);
        let uses_delta = |plane: &PlaneSpec| plane.server.features.delta != DeltaMode::Off;
        let is_slow = self.scenario.planes.iter().any(uses_delta);
        let end = self.now + if is_slow { DELTA_CONVERGENCE } else { CONVERGENCE };
        for _ in 0..MAX_CONVERGENCE_STEPS {
            let Some(event) = self.pending().into_iter().next() else {
                if !self.is_drilled && self.are_links_quiet() && self.clone().check_converged().is_ok() {
                    return Ok(()); // Who tries very many worlds does not watch each of them being well.
                }
                match self.next_deadline() {
                    Some(next) if next <= end => self.apply(choose, &Event::Time)?,
                    _ => {
                        self.check_converged()?;
                        return if self.is_drilled { self.drill() } else { Ok(()) };
                    }
                }
                continue;
            };
            self.apply(choose, &event)?;
        }
        let left = self.pending();
        Err(Invariant::Convergence.broken(format!("no rest after {MAX_CONVERGENCE_STEPS} events; next: {left:?}")))
    }

    fn check_converged(&mut self) -> Result<(), Violation> {
        self.shell.troubled.clear();
        self.shell.failing.clear();
        self.check_traffic(&mut Narrow { source: Replayed::new(&Choices::default()), limit: 0 }, Grain::Coarse)?;
        Invariant::Convergence.holds(self.are_links_quiet(), || {
            format!("not all of {} streams are open and quiet, although everything works", self.links.len())
        })?;
        for link in self.links.values() {
            let truth = self.planes[link.plane].truth();
            let unheard = link.session.deaf().find(|key| truth.resources.contains_key(key));
            Invariant::Convergence.holds(unheard.is_none(), || {
                format!("{unheard:?} is there, and a server that had forgotten who asked was not asked again (DX-15)")
            })?;
        }
        if let Some(oracle) = &self.oracle {
            oracle.0.check_at_rest(&self.core.client().dump())?;
        }
        if let Some(side) = &self.side {
            side.oracle.check_at_rest(&side.client.dump())?;
        }
        Ok(())
    }

    /// Whether every stream is open, and nothing is on its way or owed on any.
    fn are_links_quiet(&self) -> bool {
        let quiet = [Who::Channel, Who::Side].map(|who| self.quiet_links(who).len());
        self.links.len() == quiet.iter().sum::<usize>()
    }

    /// Ends the channel: nothing may be left.
    ///
    /// # Errors
    /// If something is left.
    pub fn shut_down(mut self, choose: &mut dyn Choose) -> Result<(Stats, Vec<String>), Violation> {
        self.note(|_| "the channel is dropped".to_owned());
        self.end_rpcs();
        let mut cx = Context { now: self.now, choose, helper: &mut self.shell };
        self.core.shut_down(&mut cx);
        while let Some(action) = self.core.poll_action() {
            self.act(action)?;
        }
        self.unwatch_all();
        self.settle_side()?;
        let open = self.links.values().filter(|link| !link.closed).count();
        let side = self.side.as_ref();
        let left = [
            ("streams", open),
            ("streams of load reports", self.loads.len()),
            ("lookups", self.lookups.len()),
            ("connections", self.shell.connections.len()),
            ("timers", usize::from(self.core.next_deadline().is_some())),
            ("timers of the other client", usize::from(side.is_some_and(|side| side.deadline().is_some()))),
            ("watched resources", self.core.client().dump().len()),
            ("busy clients", usize::from(!self.core.client().is_idle())),
            ("other busy clients", usize::from(side.is_some_and(|side| !side.client.is_idle()))),
            ("counted RPCs", self.shell.counters.values().map(|counter| counter.in_flight() as usize).sum()),
        ];
        for (what, count) in left {
            Invariant::Leak.holds(count == 0, || {
                let watched: Vec<_> =
                    self.core.client().dump().iter().map(|status| status.resource.to_string()).collect();
                format!("{count} {what} are left after the channel was dropped; watched: {watched:?}")
            })?;
        }
        Ok((self.stats, self.transcript.unwrap_or_default()))
    }
}

/// How long everything may take to be well again: the longest pause between attempts, the longest bound on
/// connecting, the resource timer and the switch bound, with room to spare.
const CONVERGENCE: Duration = Duration::from_secs(240);

/// The same with servers that forget who asked them for what they did not have: these are asked again every ten minutes
/// at least (DX-15).
const DELTA_CONVERGENCE: Duration = Duration::from_secs(240 + 720);

/// How many events that may take.
const MAX_CONVERGENCE_STEPS: usize = 20_000;
