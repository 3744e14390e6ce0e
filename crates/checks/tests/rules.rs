//! Every rule that the tree cites is in `docs/rules`, and the page of those that no test cites is current.

use std::fs;

use mainstay_checks::{Source, root, rules, sources};

#[test]
fn every_cited_rule_exists() {
    let sources = sources(&root()).expect("a readable tree");
    let defined = rules::defined(&sources);
    assert!(defined.len() > 600, "only {} rules were read", defined.len());
    let cited = rules::citations(&sources, &defined);
    assert!(cited.len() > 1_000, "only {} citations were read", cited.len());
    let lost = lost(&sources);
    assert!(lost.is_empty(), "these rules are cited and not in {}:\n{}", rules::DIRECTORY, lost.join("\n"));
}

#[test]
fn a_planted_citation_of_a_rule_that_does_not_exist_is_found() {
    let mut sources = sources(&root()).expect("a readable tree");
    let nowhere = format!("P-{}", 9_999); // Not as one word, which would be a citation itself.
    let text = format!("// A line.\n// As {nowhere} wants it.\n");
    sources.push(Source { path: "crates/xds/src/planted.rs".to_owned(), text });
    assert_eq!(lost(&sources), [format!("crates/xds/src/planted.rs:2: {nowhere}")]);
}

#[test]
fn the_page_of_untested_rules_is_current() {
    let sources = sources(&root()).expect("a readable tree");
    let defined = rules::defined(&sources);
    let page = rules::untested_page(&defined, &rules::citations(&sources, &defined));
    let path = root().join(rules::UNTESTED);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).expect("a writable tree");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "{} is stale: run UPDATE=1 cargo test -p mainstay-checks", rules::UNTESTED);
}

/// Where rules are cited that do not exist.
fn lost(sources: &[Source]) -> Vec<String> {
    let defined = rules::defined(sources);
    let cited = rules::citations(sources, &defined);
    let lost = cited.iter().filter(|citation| !rules::exists(&defined, &citation.rule));
    lost.map(|citation| format!("{}:{}: {}", citation.path, citation.line, citation.rule)).collect()
}
