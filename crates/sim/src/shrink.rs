//! Makes the list of choices that leads to a failure short.

use std::sync::Arc;

use crate::choose::Choices;
use crate::run::{self, Failure};
use crate::scenario::Scenario;

/// The shortest list found that leads to a violation of the same invariant, with its transcript.
pub fn shrink(scenario: &Arc<Scenario>, failure: Failure) -> Failure {
    let invariant = failure.violation.as_ref().map(|violation| violation.invariant);
    let mut tries = MAX_TRIES;
    let mut fails = |choices: &Choices| -> Option<usize> {
        tries = tries.checked_sub(1)?;
        let (violation, taken) = run::retry(scenario, choices).err()?;
        (Some(violation.invariant) == invariant).then_some(taken)
    };
    let mut best = failure.choices.clone();
    match fails(&best) {
        Some(taken) => best.0.truncate(taken),
        None => return failure,
    }
    let mut chunk = best.0.len().div_ceil(2).max(1);
    loop {
        let before = best.0.len();
        let mut at = 0;
        while at < best.0.len() {
            let end = (at + chunk).min(best.0.len());
            let without = Choices([&best.0[..at], &best.0[end..]].concat());
            if let Some(taken) = fails(&without) {
                best = without;
                best.0.truncate(taken);
                continue;
            }
            if best.0[at..end].iter().any(|choice| *choice != 0) {
                let mut calm = best.clone();
                calm.0[at..end].fill(0);
                if let Some(taken) = fails(&calm) {
                    best = calm;
                    best.0.truncate(taken);
                }
            }
            at += chunk;
        }
        if chunk == 1 && best.0.len() == before {
            break;
        }
        chunk = (chunk / 2).max(1);
    }
    match run::replay(scenario, &best) {
        Err(shrunk) => shrunk,
        Ok(_) => failure,
    }
}

/// How many lists are tried.
const MAX_TRIES: usize = 4_000;
