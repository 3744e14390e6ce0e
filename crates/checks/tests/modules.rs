//! No modules of a crate use each other in a circle, so that each can be read alone.

use std::collections::BTreeSet;

use mainstay_checks::modules::{Knot, knots};
use mainstay_checks::{root, sources};

/// What is still tied. This list may only get shorter.
const TIED: &[(&str, &str)] = &[
    ("mainstay", "call channel"),
    ("mainstay", "connection http2 request telemetry"),
    ("mainstay", "driver hub supervisor"),
    ("sim", "loads tell world"),
    ("sim", "run swarm"),
    ("sim::oracle", "attempts record wire"),
    ("xds", "bootstrap name resource"),
    ("xds::client", "cache dump"),
    ("xds::client", "life server stream timers"),
];

#[test]
fn no_modules_use_each_other_in_a_circle() {
    let sources = sources(&root()).expect("a readable tree");
    let mut found: BTreeSet<Knot> = BTreeSet::new();
    for name in ["xds", "lb", "mainstay", "control-plane", "sim", "cli", "testservice"] {
        found.extend(knots(&sources, name, &format!("crates/{name}/src/")));
    }
    let known: BTreeSet<Knot> = TIED
        .iter()
        .map(|(parent, modules)| Knot {
            parent: (*parent).to_owned(),
            modules: modules.split(' ').map(str::to_owned).collect(),
        })
        .collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(new.is_empty(), "modules that use each other: {new:#?}");
    let untied: Vec<_> = known.difference(&found).collect();
    assert!(untied.is_empty(), "not tied any more, take them off the list: {untied:#?}");
}
