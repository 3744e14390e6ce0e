//! A simple fuzzer for those without a nightly compiler: `fuzz INPUTS [TARGET [SEED]]` changes inputs of the corpus at
//! random, the same ones with the same seed, and says how many it runs in a second.
//! It does not know what code an input reaches; `cargo fuzz` does. An input that breaks something is written to
//! `fuzz/artifacts`.

use std::error::Error;
use std::panic::catch_unwind;
use std::path::Path;

use mainstay_sim::{Seeded, fuzz};
use mainstay_xds::Choose;

#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "it says how fast it is")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let inputs: u64 = args.next().ok_or("expected: fuzz INPUTS [TARGET [SEED]]")?.parse()?;
    let wanted = args.next();
    let seed = args.next().map_or(Ok(u64::from(std::process::id())), |seed| seed.parse())?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    for (name, run) in fuzz::TARGETS {
        if wanted.as_deref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let files = std::fs::read_dir(root.join("corpus").join(name))?;
        let corpus = files.map(|file| std::fs::read(file?.path())).collect::<Result<Vec<_>, _>>()?;
        let (mut dice, start) = (Seeded::new(seed), std::time::Instant::now());
        for count in 0..inputs {
            let input = change(&corpus, &mut dice);
            if catch_unwind(|| run(&input)).is_err() {
                let artifact = root.join("artifacts").join(format!("{name}-{count}"));
                std::fs::create_dir_all(root.join("artifacts"))?;
                std::fs::write(&artifact, &input)?;
                return Err(format!("{name}: see {}", artifact.display()).into());
            }
        }
        let rate = inputs as f64 / start.elapsed().as_secs_f64();
        println!("{name}: {inputs} inputs, {rate:.0} a second, nothing broken");
    }
    Ok(())
}

/// An input like those of the corpus.
fn change(corpus: &[Vec<u8>], dice: &mut Seeded) -> Vec<u8> {
    let mut below = |bound: usize| usize::try_from(dice.choose(bound.max(1) as u64)).unwrap_or_default();
    let mut input = corpus[below(corpus.len())].clone();
    for _ in 0..=below(6) {
        let at = below(input.len() + 1);
        match below(6) {
            0 => input.truncate(at),
            1 => input.insert(at, below(256) as u8),
            2 if at < input.len() => drop(input.remove(at)),
            3 if at < input.len() => input[at] ^= 1 << below(8),
            4 => {
                let other = &corpus[below(corpus.len())];
                let from = below(other.len() + 1);
                input.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let length = below(32);
                let more: Vec<u8> = (0..length).map(|_| below(256) as u8).collect();
                input.splice(at..at, more);
            }
        }
    }
    input
}
