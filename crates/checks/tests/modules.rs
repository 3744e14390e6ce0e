//! No modules of a crate use each other in a circle, so that each can be read alone.

use std::collections::BTreeSet;

use mainstay_checks::modules::{Knot, knots};
use mainstay_checks::{root, sources};

#[test]
fn no_modules_use_each_other_in_a_circle() {
    let sources = sources(&root()).expect("a readable tree");
    let mut found: BTreeSet<Knot> = BTreeSet::new();
    for name in ["xds", "lb", "mainstay", "control-plane", "sim", "cli", "testservice"] {
        found.extend(knots(&sources, name, &format!("crates/{name}/src/")));
    }
    assert!(found.is_empty(), "modules that use each other: {found:#?}");
}

#[test]
fn a_circle_that_is_planted_in_the_tree_is_found() {
    let mut sources = sources(&root()).expect("a readable tree");
    let leaf = sources.iter_mut().find(|source| source.path == "crates/lb/src/rpc.rs").expect("a leaf module");
    leaf.text.push_str("\nuse crate::tree::Tree;\n");
    let found = knots(&sources, "lb", "crates/lb/src/");
    let is_it = |knot: &Knot| {
        knot.parent == "lb" && ["rpc", "tree"].iter().all(|name| knot.modules.contains(&(*name).to_owned()))
    };
    assert!(found.iter().any(is_it), "{found:#?}");
}
