//! The public API of `mainstay` is what `docs/public-api.txt` says, and no other crate's types are in it but those that
//! its documentation lists.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use mainstay_checks::public_api::PublicApi;
use mainstay_checks::{Source, root, rules, sources};
use serde_json::Value;

/// Where the public API is written down.
const PAGE: &str = "docs/public-api.txt";

/// The part of the crate's documentation that lists the crates whose types are in its API.
const HEADING: &str = "# Types of other crates";

/// Types to which nothing will ever be added.
const CLOSED: &[&str] = &["mainstay::WaitForReady"];

/// rustdoc with its unstable options.
const RUSTDOC: &str = env!("CARGO_BIN_EXE_unstable-rustdoc");

static MAINSTAY: LazyLock<PublicApi> = LazyLock::new(|| {
    let target = target_directory();
    let status = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--locked", "-p", "mainstay", "--lib", "--all-features", "--target-dir"])
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format=json"])
        .env("RUSTDOC", RUSTDOC)
        .env_remove("RUSTDOCFLAGS")
        .current_dir(root())
        .status()
        .expect("a cargo to run");
    assert!(status.success(), "rustdoc failed");
    read(&target.join("doc/mainstay.json"))
});

#[test]
fn the_written_api_is_current() {
    let (page, path) = (MAINSTAY.page(), root().join(PAGE));
    assert!(MAINSTAY.lines.len() > 300, "only {} lines were read", MAINSTAY.lines.len());
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).expect("a writable tree");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let before: BTreeSet<&str> = committed.lines().collect();
    let now: BTreeSet<&str> = page.lines().collect();
    let changes: Vec<String> = (before.difference(&now).map(|line| format!("- {line}")))
        .chain(now.difference(&before).map(|line| format!("+ {line}")))
        .collect();
    assert!(
        committed == page,
        "the public API is not what {PAGE} says: look at the changes and run UPDATE=1 cargo test -p mainstay-checks\n{}",
        changes.join("\n")
    );
}

#[test]
fn other_crates_are_in_the_api_only_if_its_documentation_lists_them() {
    let documented = MAINSTAY.documented("mainstay", HEADING);
    let leaks = leaks(&MAINSTAY, &documented);
    assert!(leaks.is_empty(), "not in the list {HEADING:?} of the crate's documentation:\n{}", leaks.join("\n"));
    let found: BTreeSet<String> = MAINSTAY.foreign.keys().cloned().collect();
    let gone: Vec<_> = documented.difference(&found).collect();
    assert!(gone.is_empty(), "listed in the crate's documentation, and not in the API: {gone:?}");
}

#[test]
fn every_type_in_the_api_can_be_named() {
    assert_eq!(MAINSTAY.unnameable, BTreeSet::new());
}

#[test]
fn types_can_grow_without_breaking_users() {
    let closed: BTreeSet<String> = CLOSED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(MAINSTAY.exhaustive, closed, "mark them #[non_exhaustive]");
}

#[test]
fn the_documentation_of_the_api_cites_no_rule_of_ours() {
    let cited = cited(&MAINSTAY);
    assert!(cited.is_empty(), "users have gRFCs, not our digest of them:\n{}", cited.join("\n"));
}

#[test]
fn a_planted_leak_is_found() {
    let api = sample(
        "//! A crate.\n//!\n//! # Types of other crates\n//!\n//! - `listed`: on purpose\n\
         pub use other::module; /// See P-55.\npub struct Ours(other::Inner);\n\
         impl Ours { pub fn get(&self) -> &other::Inner { &self.0 } pub fn fine(&self) -> listed::Listed { listed::Listed } }\n\
         impl From<other::Inner> for Ours { fn from(inner: other::Inner) -> Self { Self(inner) } }\n\
         mod private { pub struct Hidden; } pub fn hidden() -> private::Hidden { private::Hidden }\n\
         pub enum Open { One }",
    );
    let documented = api.documented("sample", HEADING);
    assert_eq!(documented, BTreeSet::from(["listed".to_owned()]));
    assert_eq!(
        leaks(&api, &documented),
        [
            "other: impl From<other::Inner> for sample::Ours",
            "other: pub fn sample::Ours::get(&self) -> &other::Inner",
            "other: pub use other::module",
        ]
    );
    assert_eq!(api.unnameable, BTreeSet::from(["private::Hidden".to_owned()]));
    assert_eq!(api.exhaustive, BTreeSet::from(["sample::Open".to_owned()]));
    assert_eq!(cited(&api), ["sample::Ours: P-55"]);
    assert!(api.lines.contains("pub fn sample::Ours::fine(&self) -> listed::Listed"), "{:#?}", api.lines);
}

/// The lines that name a crate that is not in the list.
fn leaks(api: &PublicApi, documented: &BTreeSet<String>) -> Vec<String> {
    let leaked = api.foreign.iter().filter(|(name, _)| !documented.contains(*name));
    leaked.flat_map(|(name, lines)| lines.iter().map(move |line| format!("{name}: {line}"))).collect()
}

/// The documentation that cites a rule.
fn cited(api: &PublicApi) -> Vec<String> {
    let defined = rules::defined(&sources(&root()).expect("a readable tree"));
    let pages: Vec<_> = api.docs.iter().map(|(path, text)| Source { path: path.clone(), text: text.clone() }).collect();
    rules::citations(&pages, &defined).iter().map(|found| format!("{}: {}", found.path, found.rule)).collect()
}

/// The API of a crate with this source, which may use the crates `other` and `listed`.
fn sample(source: &str) -> PublicApi {
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).expect("a file");
    write("other.rs", "pub mod module {} pub struct Inner;");
    write("listed.rs", "pub struct Listed;");
    write("sample.rs", source);
    let run = |program: &str, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).current_dir(directory.path()).status().expect("a compiler");
        assert!(status.success(), "{program} {arguments:?}");
    };
    for library in ["other.rs", "listed.rs"] {
        run("rustc", &["--crate-type=lib", "--edition=2024", "--emit=metadata", library]);
    }
    let edition = ["--edition=2024", "--crate-type=lib", "-L.", "--extern=other", "--extern=listed"];
    let output = ["-Zunstable-options", "--output-format=json", "--out-dir=doc", "sample.rs"];
    run(RUSTDOC, &[&edition[..], &output[..]].concat());
    read(&directory.path().join("doc/sample.json"))
}

fn read(path: &Path) -> PublicApi {
    let json: Value = serde_json::from_slice(&fs::read(path).expect("what rustdoc wrote")).expect("JSON");
    PublicApi::read(&json)
}

/// The directory that this test was built in, so that what is built for rustdoc is kept there, too.
fn target_directory() -> PathBuf {
    let test = env::current_exe().expect("a path");
    // target/debug/deps/public_api-0123456789abcdef
    test.ancestors().nth(3).expect("a directory").to_owned()
}
