//! What was released is not taken away without a word.

use std::process::Command;
use std::{env, fs};

use mainstay_checks::breaking::{lost, untold};
use mainstay_checks::root;

const API: &str = "docs/public-api.txt";

/// Against the last tag, or against the commit that the environment calls `BASE`. Before the first release there is nothing to lose.
#[test]
fn breaks_since_the_last_release_are_told() {
    let base = env::var("BASE").ok().filter(|base| !base.is_empty());
    let Some(base) = base.or_else(last_release) else { return };
    let before = git(&["show", &format!("{base}:{API}")]).expect("a commit with the public API in it");
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file of ours");
    let lost = lost(&before, &read(API));
    if let Some(problem) = untold(&lost, &read("CHANGELOG.md"), base.trim_start_matches('v')) {
        panic!("{problem}");
    }
}

#[test]
fn a_planted_break_is_found() {
    let before = "pub fn a::f(x: u8)\n#[must_use] pub fn a::g()\npub struct a::S\n";
    assert_eq!(lost(before, before), [""; 0]);
    let grown = "#[must_use] pub fn a::f(x: u8)\npub fn a::g()\npub fn a::h()\npub struct a::S\n";
    assert_eq!(lost(before, grown), [""; 0], "what is new breaks nobody, nor does an attribute");
    let planted = lost(before, "pub fn a::f(x: u16)\npub fn a::g()\n");
    assert_eq!(planted, ["pub fn a::f(x: u8)", "pub struct a::S"]);

    let silent = "## [Unreleased]\n- Faster.\n\n## [0.1.0] - 2026-01-01\n- Breaking: of long ago\n";
    let problem = untold(&planted, silent, "0.1.0").expect("nobody was told");
    assert!(problem.ends_with("\npub fn a::f(x: u8)\npub struct a::S"), "{problem}");
    assert_eq!(untold(&[], silent, "0.1.0"), None);
    let told = silent.replace("- Faster.", "- Breaking: `f` takes more.");
    assert_eq!(untold(&planted, &told, "0.1.0"), None);
}

fn last_release() -> Option<String> {
    git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]).map(|tag| tag.trim().to_owned())
}

/// What git says, if it has an answer.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
