//! The book is whole: every page is in its table of contents, every link leads somewhere, and what is written from the code is current.

use std::fs;

use mainstay_checks::{Source, book, root, sources};

#[test]
fn every_page_is_in_the_table_of_contents() {
    let strays = book::strays(&tree());
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn no_link_is_dead() {
    let dead = book::dead_links(&tree(), |path| root().join(path).exists());
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn blocks_say_whether_they_are_run() {
    let unclear = book::unclear_blocks(&tree());
    assert!(unclear.is_empty(), "{unclear:#?}");
    let uncompiled = book::uncompiled(&tree());
    assert!(uncompiled.is_empty(), "{uncompiled:#?}");
    let foreign = book::foreign_go(&tree());
    assert!(foreign.is_empty(), "not in any file of Go that is built: {foreign:#?}");
}

#[test]
fn pages_written_from_the_code_are_current() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let parser = "crates/xds/src/bootstrap/";
    let bootstrap = book::bootstrap(
        &read(&format!("{parser}parse.rs")),
        &read(&format!("{parser}guards.rs")),
        &read("crates/check/src/bootstrap.rs"),
    );
    let differences = book::differences(
        &read("interop/MATRIX.md"),
        &read("interop/istio/MATRIX.md"),
        &read("interop/differences.txt"),
        &read("crates/check/data/verdicts.json"),
    );
    compare("docs/reference/bootstrap.md", &bootstrap.unwrap_or_else(|wrong| panic!("{wrong:#?}")));
    compare("docs/differences.md", &differences.expect("matrices"));
    compare("docs/reference/events.md", &book::events(&read("crates/mainstay/src/event.rs")));
    compare("docs/reference/metrics.md", &book::metrics(&read("crates/mainstay/src/telemetry/on/instruments.rs")));
}

/// What the front page tells people to run is run by CI; the book has `.ci/follow`.
#[test]
fn the_commands_of_the_readme_are_run() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let ci = read(".ci/run").replace(" --locked", "").replace(" --quiet", "");
    let readme = read("README.md");
    let commands: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
    assert!(!commands.is_empty());
    for command in commands {
        let command = command.split(" #").next().unwrap_or(command).trim_end();
        assert!(ci.contains(command), ".ci/run does not run {command}");
    }
}

#[test]
fn planted_faults_are_found() {
    let page = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let book = [
        page("docs/SUMMARY.md", "- [One](one.md)\n- [Gone](gone.md)\n"),
        page(
            "docs/one.md",
            "# One\n[two](two.md) [gone](x/gone.md) [out](../README.md) [a](two.md#what-is-it) [b](two.md#nothing)\n```console\n[no](link.md)\n```\n",
        ),
        page(
            "docs/two.md",
            "# Two\n## What *is* it?\n```sh\nls\n```\n```go\nfunc main() {}\n```\n```rust,ignore\n```\n```\n```\n",
        ),
        page(
            "README.md",
            "[docs](docs/two.md) `[code](nowhere.md)` [web](https://example.org/x) <img src=\"gone.png\">",
        ),
    ];
    assert_eq!(
        book::strays(&book),
        ["docs/two.md is not in docs/SUMMARY.md", "docs/SUMMARY.md names docs/gone.md, which is not there"]
    );
    let there = ["docs/one.md", "docs/two.md", "README.md"];
    assert_eq!(
        book::dead_links(&book, |path| there.contains(&path)),
        [
            "docs/SUMMARY.md:2: gone.md: is not there",
            "docs/one.md:2: x/gone.md: is not there",
            "docs/one.md:2: ../README.md: leads out of the book",
            "docs/one.md:2: two.md#nothing: there is no such heading",
            "README.md:1: gone.png: is not there",
        ]
    );
    assert_eq!(
        book::unclear_blocks(&book),
        [
            "docs/two.md:3: a block must begin with \"# needs …\", or be of \"console\"",
            "docs/two.md:9: a block is not compiled",
            "docs/two.md:11: a block has no language",
        ]
    );
    let code = [page("docs/code.md", "# Code\n```rust,no_run\nlet x = 1;\n```\n"), page("examples/src/book.rs", "")];
    assert_eq!(book::uncompiled(&code), ["docs/code.md is not in examples/src/book.rs"]);
    assert_eq!(book::foreign_go(&book), ["docs/two.md:6: func main() {}"]);
    let parser = r#"required(root, "xds_servers", f); optional(root, "novelty", f)"#;
    let wrong = book::bootstrap(parser, "", "\"xds_servers\"").expect_err("a field that nobody describes");
    assert!(wrong.contains(&"nothing is said of novelty of root".to_owned()), "{wrong:?}");
    assert!(wrong.contains(&"mainstay check does not know novelty".to_owned()), "{wrong:?}");
    let metrics = "\nmetrics! {\n told {\n // Calls (A66).\n a: Counter<u64>, on, \"grpc.a\", \"{call}\", \"Says.\";\n }\n gauges {\n b, off, \"grpc.b\", \"s\", \"Age.\";\n }\n}";
    let written = book::metrics(metrics);
    assert!(written.contains("| `grpc.a` | counter | `{call}` | on | Says. |"), "{written}");
    assert!(written.contains("| `grpc.b` | gauge | `s` | off | Age. |"), "{written}");
}

fn tree() -> Vec<Source> {
    sources(&root()).expect("a readable tree")
}

fn compare(path: &str, current: &str) {
    let file = root().join(path);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, current).expect("a writable tree");
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == current, "{path} is stale: run UPDATE=1 cargo test -p mainstay-checks --test book");
}
