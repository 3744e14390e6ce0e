//! Scenarios by name, and what replays a world by the line that tells of it.

use std::sync::Arc;

use crate::run::replay;
use crate::scenario::Scenario;
use crate::world::Stats;
use crate::{policies, small, swarm};

/// The scenario of a name: that of a small world, or `swarm-`, `clients-` or `mixed-` and a seed.
pub fn scenario(name: &str) -> Option<Scenario> {
    if let Some(seed) = name.strip_prefix(swarm::clients::NAME) {
        return seed.parse().ok().map(swarm::clients::scenario);
    }
    if let Some(seed) = name.strip_prefix(swarm::mixed::NAME) {
        return seed.parse().ok().map(swarm::mixed::scenario);
    }
    match name.strip_prefix("swarm-") {
        Some(seed) => seed.parse().ok().map(swarm::scenario),
        None => small::all().into_iter().find(|scenario| scenario.name == name),
    }
}

/// Replays a line as [`Failure::line`](crate::Failure::line) makes it.
///
/// # Errors
/// If the line cannot be read, or if something does not hold.
pub fn replay_line(line: &str) -> Result<(Stats, Vec<String>), Box<dyn std::error::Error>> {
    let (name, choices) = line.split_once(':').ok_or("expected NAME: CHOICES")?;
    if let Some(seed) = name.trim().strip_prefix(policies::NAME) {
        return Ok(policies::run(seed.parse()?).map(|transcript| (Stats::default(), transcript))?);
    }
    let scenario = scenario(name.trim()).ok_or_else(|| format!("{:?} is not the name of a world", name.trim()))?;
    Ok(replay(&Arc::new(scenario), &choices.parse()?)?)
}
