//! The same history told in both variants of ADS: whatever control planes say, and whenever they are down, a client ends
//! with the same configuration, and has had the same ones in between.

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::bootstrap::{Bootstrap, DeltaMode, ServerFeatures};
use mainstay_xds::deps::{ClusterConfig, XdsConfig};
use mainstay_xds::resource::Cluster;

use crate::choose::{Choices, Narrow, Replayed};
use crate::invariant::{Invariant, Violation};
use crate::plane::Habits;
use crate::scenario::{Grain, Kinds, Limits};
use crate::swarm::{self, Draw};
use crate::world::{Event, World};

/// Runs the history of a seed in both variants. Answers with how often both had a configuration.
///
/// # Errors
/// If they differ, or if something else does not hold.
pub fn run(seed: u64) -> Result<u64, Violation> {
    let mut draw = Draw::new(seed ^ 0x6571_7561_6c00);
    let habits = Habits { delta: draw.delta_habits().of_steady_servers(), short_nonces: true, ..Habits::default() };
    let mut base = swarm::scenario(seed);
    // Before A88 a deletion takes data away, and only over delta can all types be deleted (P-52, DX-13).
    let mut bootstrap = Bootstrap::clone(&base.bootstrap);
    bootstrap.guards.data_error_handling = true;
    base.bootstrap = Arc::new(bootstrap);
    let mut worlds = Vec::new();
    for mode in [DeltaMode::Off, DeltaMode::Required] {
        let features = ServerFeatures { delta: mode, ..ServerFeatures::default() };
        let mut scenario = base.clone().with_features(|_| features).habits(|known| *known = habits);
        scenario.grain = Grain::Coarse;
        scenario.side = Vec::new();
        scenario.limits = Limits { faults: u32::MAX, kinds: Kinds::default(), delays: 0, backend_faults: 0 };
        scenario.client.silent_stream_timeout = None;
        scenario.client.trust_versions = false;
        worlds.push(World::new(Arc::new(scenario), &mut no_choice(&Choices::default()))?);
    }
    let mut alike = 0;
    for _ in 0..8 + draw.below(8) {
        let plane = draw.below(base.planes.len());
        let event = [Event::Publish(plane), Event::Publish(plane), Event::Kill(plane), Event::Heal(plane)]
            [draw.below(4)]
        .clone();
        for world in &mut worlds {
            rest(world)?;
            world.apply(&mut no_choice(&Choices::default()), &event)?;
        }
        let configs: Vec<_> = worlds.iter().map(|world| world.config_in_force()).collect();
        let [sotw, delta] = &configs[..] else { continue };
        let is_same = match (sotw, delta) {
            (Some(sotw), Some(delta)) => same(sotw, delta),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        Invariant::Config.holds(is_same, || {
            format!("seed {seed}, before {event:?}: state of the world has {sotw:?}, and delta {delta:?}")
        })?;
        alike += u64::from(sotw.is_some());
    }
    Ok(alike)
}

/// Lets everything happen that is under way, and a while pass.
fn rest(world: &mut World) -> Result<(), Violation> {
    let end = world.age() + REST;
    for _ in 0..MAX_EVENTS {
        let Some(event) = world.fair_event(end) else {
            world.sleep_until(end);
            return Ok(());
        };
        world.apply(&mut no_choice(&Choices::default()), &event)?;
    }
    Err(Invariant::Work.broken(format!("no rest after {MAX_EVENTS} events")))
}

fn no_choice(choices: &Choices) -> Narrow<Replayed<'_>> {
    Narrow { source: Replayed::new(choices), limit: 0 }
}

/// Whether two configurations say the same to RPCs. What is said about errors tells how long something took.
fn same(one: &XdsConfig, other: &XdsConfig) -> bool {
    // The server that load is reported to has its variant of ADS in its settings.
    let of = |config: &ClusterConfig| Cluster { lrs_server: None, ..Cluster::clone(&config.cluster) };
    let cluster = |one: &ClusterConfig, other: &ClusterConfig| of(one) == of(other) && one.children == other.children;
    one.listener == other.listener
        && one.virtual_host == other.virtual_host
        && one.clusters.keys().eq(other.clusters.keys())
        && one.clusters.values().zip(other.clusters.values()).all(|pair| match pair {
            (Ok(one), Ok(other)) => cluster(one, other),
            (Err(_), Err(_)) => true,
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
        })
}

/// Longer than what is not there is waited for, and than any pause.
const REST: Duration = Duration::from_secs(200);

/// So many events may happen meanwhile.
const MAX_EVENTS: usize = 20_000;
