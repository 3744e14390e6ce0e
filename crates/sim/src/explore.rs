//! Visits every state of a small world.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Choose;

use crate::choose::Choices;
use crate::invariant::Violation;
use crate::run::{self, Failure};
use crate::scenario::Scenario;
use crate::world::World;

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// Worlds older than this are not followed further.
    pub horizon: Duration,
    /// At most so many states.
    pub max_states: usize,
    /// From one state in so many the world is healed, and must converge; it is also ended there.
    pub converge_every: u64,
}

/// What a search has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// Different states.
    pub states: usize,
    /// Ways from one to another.
    pub events: u64,
    /// Events on the way to the farthest state.
    pub depth: usize,
    /// Worlds that were healed and ended.
    pub endings: u64,
    /// Whether every state within the horizon was visited.
    pub complete: bool,
}

impl Default for Search {
    fn default() -> Self {
        Self { horizon: Duration::from_secs(30), max_states: 2_000_000, converge_every: 64 }
    }
}

/// A coarse world draws nothing but its events.
struct NoDraws;

impl Choose for NoDraws {
    fn choose(&mut self, bound: u64) -> u64 {
        bound / 2
    }
}

impl Search {
    /// Visits the states of a world, nearest first.
    ///
    /// # Errors
    /// The first failure, with the shortest way to it.
    pub fn run(self, scenario: &Arc<Scenario>) -> Result<Visited, Box<Failure>> {
        let fail = |choices: &[u64], _: Violation| {
            run::replay(scenario, &Choices(choices.to_vec())).err().unwrap_or_else(|| Failure::unsteady(scenario))
        };
        let world = World::new(scenario.clone(), &mut NoDraws).map_err(|violation| Box::new(fail(&[], violation)))?;
        let mut visited = Visited { complete: true, ..Visited::default() };
        let mut seen = BTreeSet::from([world.fingerprint()]);
        let mut frontier = VecDeque::from([(world, Vec::new())]);
        while let Some((world, path)) = frontier.pop_front() {
            visited.states += 1;
            visited.depth = visited.depth.max(path.len());
            if (visited.states as u64).is_multiple_of(self.converge_every) {
                visited.endings += 1;
                end(world.clone()).map_err(|violation| Box::new(fail(&path, violation)))?;
            }
            if world.age() > self.horizon {
                continue;
            }
            for (index, event) in world.events().into_iter().enumerate() {
                let mut next = world.clone();
                let path: Vec<u64> = path.iter().copied().chain([index as u64]).collect();
                visited.events += 1;
                next.apply(&mut NoDraws, &event).map_err(|violation| Box::new(fail(&path, violation)))?;
                if seen.insert(next.fingerprint()) {
                    if seen.len() > self.max_states {
                        return Ok(Visited { complete: false, ..visited });
                    }
                    frontier.push_back((next, path));
                }
            }
        }
        Ok(visited)
    }
}

/// Heals and ends a world.
fn end(mut world: World) -> Result<(), Violation> {
    world.converge(&mut NoDraws)?;
    world.shut_down(&mut NoDraws).map(drop)
}
