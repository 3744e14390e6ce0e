//! The same worlds with servers that speak both variants of ADS, or one of them, or claim to: what real ones do over
//! delta, and proxies in between.

use std::sync::Arc;

use mainstay_xds::bootstrap::{DeltaMode, ServerConfig, ServerFeatures};

use super::{Draw, clients, run_scenario};
use crate::plane::{DeltaHabits, Identity, Speech, Versions};
use crate::run::Failure;
use crate::scenario::Scenario;
use crate::world::Stats;

/// Runs the world of a seed. The same seed is the same world, event by event.
///
/// # Errors
/// If something does not hold; with a list of choices that is not made shorter yet.
pub fn run_seed(seed: u64) -> Result<Stats, Box<Failure>> {
    run_scenario(&Arc::new(scenario(seed)), seed)
}

/// The scenario of a seed; its name is `mixed-` and the seed. It is that of a channel or that of a client alone, in
/// which the servers are asked for either variant.
pub fn scenario(seed: u64) -> Scenario {
    let mut draw = Draw::new(seed ^ 0x6d69_7865_6400);
    let base = if draw.chance(2) { super::scenario(seed) } else { clients::scenario(seed) };
    let modes: Vec<_> = base.planes.iter().map(|_| draw.mode()).collect();
    let mode_of = |server: &ServerConfig| modes[base.plane_of(server).unwrap_or_default()];
    let mut scenario =
        base.clone().with_features(|server| ServerFeatures { delta: mode_of(server), ..server.features });
    for plane in &mut scenario.planes {
        plane.habits.delta = draw.delta_habits();
    }
    scenario.client.trust_versions = false; // Here are servers whose versions lie.
    Scenario { name: format!("{NAME}{seed}"), ..scenario }
}

impl Draw {
    fn mode(&mut self) -> DeltaMode {
        [DeltaMode::Off, DeltaMode::Preferred, DeltaMode::Preferred, DeltaMode::Required][self.below(4)]
    }

    pub(crate) fn delta_habits(&mut self) -> DeltaHabits {
        let forgets_absent = self.chance(5);
        let silent_absence = !forgets_absent && self.chance(3);
        DeltaHabits {
            speech: match self.below(8) {
                0 => Speech::Refuses,
                1 => Speech::Swallows,
                _ => Speech::Delta,
            },
            fickle: self.chance(6),
            drops_stale: self.chance(4),
            quiet_on_repeats: self.chance(3),
            unsubscribes_last: self.chance(3),
            silent_absence,
            forgets_absent,
            loses_watches: silent_absence && self.chance(3),
            ignores_claims: self.chance(4),
            splits: self.chance(4),
            gossips: self.chance(4),
            identity: [Identity::Stable, Identity::Stable, Identity::OfProcess, Identity::None][self.below(4)],
            versions: [Versions::Hashes, Versions::Hashes, Versions::Counted, Versions::None][self.below(4)],
        }
    }
}

/// What the names of such worlds begin with; the seed follows.
pub(crate) const NAME: &str = "mixed-";
