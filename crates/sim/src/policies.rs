//! A second world: everything that `mainstay-lb` decides, beside a naive reference of it.
//!
//! Configurations of all kinds, connections, RPCs and time are random; the tree must do and say exactly what the
//! reference does, which is written from the rules and shares no code with it. See [`run`].

mod channel;
pub mod explained;
mod identity;
mod make;
mod naive;
mod retries;
mod shell;
mod steps;
mod tape;
mod world;

use crate::choose::Choices;
use crate::run::Failure;

/// How many seeds are worth running at every opportunity: a hundred of each kind of world.
pub const SEEDS: u64 = 100 * make::THEMES;

/// One random life of a tree of policies beside the reference: what happened.
///
/// # Errors
/// If they differ.
pub fn run(seed: u64) -> Result<Vec<String>, Box<Failure>> {
    let mut world = world::World::new(seed);
    let aside = retries::run(seed).and_then(|()| retries::race(seed)).and_then(|()| identity::run(seed));
    let aside =
        aside.and_then(|()| if seed.is_multiple_of(make::THEMES) { channel::run(seed / make::THEMES) } else { Ok(()) });
    let outcome = aside.and_then(|()| match seed % LEAKS {
        0 => world.go_round(),
        _ => world.live(EVENTS),
    });
    let transcript = world.transcript;
    match outcome {
        Ok(()) => Ok(transcript),
        Err(violation) => {
            let (violation, scenario) = (Some(violation), format!("{NAME}{seed}"));
            Err(Box::new(Failure { violation, scenario, choices: Choices::default(), transcript }))
        }
    }
}

/// What the name of such a world begins with; the seed follows.
pub(crate) const NAME: &str = "policies-";

/// Of so many lives, one goes round and round.
const LEAKS: u64 = 26;

/// How much happens in one life.
const EVENTS: usize = 150;
