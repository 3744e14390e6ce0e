//! Runs many seeds and goes on after a violation: `seeds KIND FIRST COUNT` has a line for each that is at odds with its
//! judge, and one for the whole. KIND is `channels`, `clients`, `mixed`, `histories`, `lives` or `servers`, as in
//! `mainstay sim --of`, which ends at the first violation and shows it. A seed alone is told with all that happened in its history.

use std::error::Error;
use std::process::ExitCode;

use mainstay_sim::{Violation, deps, policies, servers, swarm};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let usage = "expected: seeds KIND FIRST COUNT";
    let mut args = std::env::args().skip(1);
    let kind = args.next().ok_or(usage)?;
    let first: u64 = args.next().ok_or(usage)?.parse()?;
    let count: u64 = args.next().ok_or(usage)?.parse()?;
    let run: fn(u64) -> Option<Violation> = match kind.as_str() {
        "channels" => |seed| swarm::run_seed(seed).err().and_then(|failure| failure.violation),
        "clients" => |seed| swarm::clients::run_seed(seed).err().and_then(|failure| failure.violation),
        "mixed" => |seed| swarm::mixed::run_seed(seed).err().and_then(|failure| failure.violation),
        "histories" => |seed| deps::run(seed).err(),
        "lives" => |seed| policies::run(seed).err().and_then(|failure| failure.violation),
        "servers" => |seed| servers::run(seed, None).err(),
        _ => return Err(usage.into()),
    };
    let mut violations = 0;
    for seed in first..first + count {
        if let Some(violation) = run(seed) {
            violations += 1;
            let last = violation.detail.lines().last().unwrap_or_default();
            // What happened before is told of one alone.
            let told = if count == 1 { &violation.detail } else { last };
            println!("{kind} {seed}: {:?}: {told}", violation.invariant);
        }
        if (seed + 1).is_multiple_of(EVERY) {
            eprintln!("{kind}: {} done, {violations} at odds", seed + 1 - first);
        }
    }
    println!("{kind} {first} to {}: {violations} of {count} at odds", first + count - 1);
    Ok(if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How often it says that it goes on.
const EVERY: u64 = 1_000;
