//! What the whole process shares is in one file, `crates/mainstay/src/process.rs`: nowhere else is a `static` that changes.

use mainstay_checks::{Source, root, sources};

/// What makes a `static` one that changes.
const CHANGING: [&str; 7] = ["Mutex", "RwLock", "OnceLock", "LazyLock", "OnceCell", "Atomic", "ArcSwap"];

#[test]
fn process_wide_state_is_in_one_file() {
    let found = process_wide(&sources(&root()).expect("a readable tree"));
    let elsewhere: Vec<_> =
        found.iter().filter(|found| !found.starts_with("crates/mainstay/src/process.rs:")).collect();
    assert!(elsewhere.is_empty(), "move it to crates/mainstay/src/process.rs: {elsewhere:#?}");
    assert!(found.len() > 3, "only {found:?} was read");
}

#[test]
fn a_planted_static_is_found() {
    let text =
        "fn f() {\n    static SEEN: std::sync::Mutex<u32> = std::sync::Mutex::new(0);\n}\nstatic FIXED: u8 = 1;\n";
    let planted = Source { path: "crates/lb/src/planted.rs".to_owned(), text: text.to_owned() };
    assert_eq!(process_wide(&[planted]), ["crates/lb/src/planted.rs:2"]);
}

/// Where the three crates that users build have something that changes and outlives everything.
fn process_wide(sources: &[Source]) -> Vec<String> {
    const CRATES: [&str; 3] = ["crates/mainstay/src/", "crates/lb/src/", "crates/xds/src/"];
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("tests.rs");
    let ours = |path: &str| CRATES.iter().any(|prefix| path.starts_with(prefix)) && !is_test(path);
    let is_state = |line: &str| {
        let line = line.trim_start();
        let declared =
            line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) ")).or(line.strip_prefix("pub "));
        declared.unwrap_or(line).starts_with("static ") && CHANGING.iter().any(|kind| line.contains(kind))
    };
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs") && ours(&source.path)) {
        let lines = source.text.lines().zip(1..).filter(|(line, _)| is_state(line));
        found.extend(lines.map(|(_, number)| format!("{}:{number}", source.path)));
    }
    found
}
