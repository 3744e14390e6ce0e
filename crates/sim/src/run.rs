//! One world from beginning to end, by choices.

use std::fmt;
use std::sync::Arc;

use mainstay_xds::Choose;

use crate::choose::{Choices, Recorder, Replayed};
use crate::invariant::Violation;
use crate::scenario::Scenario;
use crate::world::{Event, Stats, World};

/// A world in which something did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What did not hold; `None` if a replay did not show it again.
    pub violation: Option<Violation>,
    /// Name of the scenario.
    pub scenario: String,
    /// How to get there.
    pub choices: Choices,
    /// What happened.
    pub transcript: Vec<String>,
}

/// Runs a world for so many events, heals it and ends it.
///
/// # Errors
/// If something does not hold.
pub fn run(scenario: &Arc<Scenario>, choose: &mut dyn Choose, events: usize) -> Result<Stats, Violation> {
    live(World::new(scenario.clone(), choose)?, choose, events)
        .map(|(stats, _)| stats)
        .map_err(|(violation, _)| violation)
}

/// The same without drills, for those who try very many worlds.
pub(crate) fn run_short(scenario: &Arc<Scenario>, choose: &mut dyn Choose, events: usize) -> Result<(), Violation> {
    live(World::undrilled(scenario.clone(), choose)?, choose, events).map(drop).map_err(|(violation, _)| violation)
}

/// Runs a world by a list of choices, with a transcript. After the last choice it is healed and ended.
///
/// # Errors
/// If something does not hold.
pub fn replay(scenario: &Arc<Scenario>, choices: &Choices) -> Result<(Stats, Vec<String>), Failure> {
    let fail = |violation, transcript| Failure {
        violation: Some(violation),
        scenario: scenario.name.clone(),
        choices: choices.clone(),
        transcript,
    };
    let mut choose = Recorder::new(Replayed::new(choices));
    let world = World::with_transcript(scenario.clone(), &mut choose).map_err(|v| fail(v, Vec::new()))?;
    follow(world, &mut choose, choices).map_err(|(violation, transcript)| fail(violation, transcript))
}

/// The same without a transcript. On failure also tells how many choices it took.
pub(crate) fn retry(scenario: &Arc<Scenario>, choices: &Choices) -> Result<Stats, (Violation, usize)> {
    let mut choose = Recorder::new(Replayed::new(choices));
    let outcome = match World::new(scenario.clone(), &mut choose) {
        Ok(world) => follow(world, &mut choose, choices),
        Err(violation) => Err((violation, Vec::new())),
    };
    outcome.map(|(stats, _)| stats).map_err(|(violation, _)| (violation, choose.taken().min(choices.0.len())))
}

/// A finished world, or what did not hold; and what happened.
type Outcome = Result<(Stats, Vec<String>), (Violation, Vec<String>)>;

fn follow(mut world: World, choose: &mut Recorder<Replayed<'_>>, choices: &Choices) -> Outcome {
    while choose.taken() < choices.0.len() {
        if let Err(violation) = step(&mut world, choose) {
            return Err((violation, world.transcript().to_vec()));
        }
    }
    live(world, choose, 0)
}

fn live(mut world: World, choose: &mut dyn Choose, events: usize) -> Outcome {
    for _ in 0..events {
        if let Err(violation) = step(&mut world, choose) {
            return Err((violation, world.transcript().to_vec()));
        }
    }
    if let Err(violation) = world.converge(choose) {
        return Err((violation, world.transcript().to_vec()));
    }
    let transcript = world.transcript().to_vec();
    world.shut_down(choose).map_err(|violation| (violation, transcript))
}

/// Lets one event happen.
fn step(world: &mut World, choose: &mut dyn Choose) -> Result<(), Violation> {
    let events = world.events();
    if events.is_empty() {
        choose.choose(1); // Every step is a choice, so that lists of choices end.
        return Ok(());
    }
    let event = pick(&events, world.calm(), choose);
    world.apply(choose, event)
}

/// Chooses an event. The first one, which a world without faults would take, counts `calm` times more than each other.
fn pick<'a>(events: &'a [Event], calm: u64, choose: &mut dyn Choose) -> &'a Event {
    let drawn = choose.choose(events.len() as u64 + calm).saturating_sub(calm);
    &events[usize::try_from(drawn).unwrap_or_default().min(events.len() - 1)]
}

impl Failure {
    pub(crate) fn unsteady(scenario: &Scenario) -> Self {
        Self {
            violation: None,
            scenario: scenario.name.clone(),
            choices: Choices::default(),
            transcript: vec!["a replay did not show it again: something is not deterministic".to_owned()],
        }
    }

    /// How to see it again: the argument of a replay.
    pub fn line(&self) -> String {
        format!("{}: {}", self.scenario, self.choices)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.transcript {
            writeln!(f, "{line}")?;
        }
        match &self.violation {
            Some(violation) => writeln!(f, "VIOLATION {violation}")?,
            None => writeln!(f, "no violation")?,
        }
        write!(f, "replay: {}", self.line())
    }
}

impl std::error::Error for Failure {}
