//! The server of the README is the one that a test of ours runs.

use std::fs;

use mainstay_checks::root;

#[test]
fn the_server_of_the_readme_is_run_by_a_test() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a file of the tree");
    let readme = read("README.md");
    let shown = readme.split("```rust").filter_map(|rest| rest.split("```").next()).find(|code| code.contains(BUILDER));
    let shown = steps(shown.expect("the README shows a server"));
    assert!(shown.len() >= 4, "{shown:?}");
    let test = read("crates/mainstay/tests/e2e/server/serving.rs");
    let run = steps(test.split_once("fn the_example_of_the_readme_serves()").expect("the test of that name").1);
    // The README has the bootstrap from the environment, which tests of one process cannot.
    let run: Vec<_> = run.into_iter().filter(|step| *step != "bootstrap").collect();
    assert_eq!(shown, run[..shown.len()], "what the README shows, and what the test runs");
}

#[test]
fn steps_are_found() {
    let code = "let x = Server::builder() // one line\n    .add_service(a.b(c)) // .not(this)\n    .serve_xds(address)\n    .await?;\nrest.of(it)";
    assert_eq!(steps(code), ["add_service", "serve_xds", "await"]);
}

/// The calls on the builder of a server, each of which begins a line.
fn steps(code: &str) -> Vec<&str> {
    let (_, calls) = code.split_once(BUILDER).unwrap_or_default();
    let lines = calls.lines().skip(1).map_while(|line| line.trim_start().strip_prefix('.'));
    lines.map(|call| call.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default()).collect()
}

const BUILDER: &str = "Server::builder()";
