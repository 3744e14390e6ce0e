//! The corpus of the fuzzers, replayed.

use std::collections::BTreeSet;
use std::path::Path;

use mainstay_sim::fuzz::TARGETS;

#[test]
fn nothing_in_the_corpus_breaks_anything() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, run) in TARGETS {
        let files = std::fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut replayed = 0;
        for file in files {
            let path = file.expect("a file").path();
            println!("{}", path.display());
            run(&std::fs::read(&path).expect("readable"));
            replayed += 1;
        }
        assert!(replayed > 1, "{name} has no corpus");
    }
}

#[test]
fn every_target_can_be_run_by_cargo_fuzz() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    let named = manifest.lines().filter_map(|line| line.strip_prefix("path = \"targets/")?.strip_suffix(".rs\""));
    assert_eq!(named.collect::<BTreeSet<_>>(), TARGETS.iter().map(|(name, _)| *name).collect());
}
