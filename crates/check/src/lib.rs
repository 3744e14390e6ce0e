//! Finds what is wrong with xDS resources and bootstraps before gRPC clients do.
//!
//! **Unstable.** This crate is a part of the `mainstay` command. It makes no semver promises.
//!
//! Resources go in as bytes, with the place where each is written; [`Finding`]s come out, each with the id of a check
//! ([`Id`]), a level, a file and a line, the resource, the path of the field and a message. Resources are read by the parsers
//! of Mainstay's own client, so that what it would reject is told in the words of its NACK. Nothing here waits, reads a file
//! or opens a socket.
//!
//! ```
//! use mainstay_check::{Id, Input, Item, Origin, check};
//!
//! let listener = Item::new("envoy.config.listener.v3.Listener", "greeter", Vec::new(), Origin::new("greeter.yaml"));
//! let findings = check(&Input { items: vec![listener], ..Input::default() });
//! assert_eq!(findings[0].id, Id::MS103);
//! assert_eq!(findings[0].message, "Listener \"greeter\": api_listener or address must be set");
//! ```

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod against;
mod allow;
mod balancing;
mod bootstrap;
mod catalog;
mod csds;
mod finding;
mod format;
mod input;
mod names;
mod operation;
mod parse;
mod references;
mod routing;
mod security;
mod set;
mod verdicts;
mod walk;

use std::collections::BTreeSet;

pub use crate::against::against;
pub use crate::bootstrap::{BootstrapFile, is_bootstrap};
pub use crate::catalog::{Id, page};
pub use crate::csds::items_of_clients;
pub use crate::finding::{Finding, Level};
pub use crate::format::{github, json, sarif};
pub use crate::input::{Body, Input, Item, Lines, Origin};
pub use crate::verdicts::{Implementation, verdicts};

use crate::finding::Findings;
use crate::parse::Parser;
use crate::set::Set;

/// Everything that is wrong with these resources and bootstraps, in the order of files and lines. What comments in the files
/// allow is left out.
pub fn check(input: &Input) -> Vec<Finding> {
    let mut all = Findings::default();
    input.troubles.iter().for_each(|trouble| all.push(trouble.clone()));
    input.bootstraps.iter().for_each(|file| bootstrap::check(file, &mut all));
    let real = input.bootstrap.as_ref();
    if let Some(file) = real {
        bootstrap::check(file, &mut all);
    }
    let parsed = real.and_then(BootstrapFile::parsed);
    let parser = Parser::new(&input.items, parsed.as_ref());
    let nodes: BTreeSet<&str> = input.items.iter().filter_map(|item| item.node.as_deref()).collect();
    let everyone = Set::new(&input.items, None, &parser);
    look_at(&everyone, &parser, &mut all);
    if nodes.is_empty() {
        look_across(&everyone, &parser, &mut all);
    } else {
        let (mut at_large, mut for_nodes) = (Findings::default(), Findings::default());
        look_across(&everyone, &parser, &mut at_large);
        for node in nodes {
            let set = Set::new(&input.items, Some(node), &parser);
            look_at(&set, &parser, &mut all);
            look_across(&set, &parser, &mut for_nodes);
        }
        // What every node has of its own is missing only for nodes that nobody has named.
        at_large.list.retain(|finding| !finding.id.is_reference() || for_nodes.list.contains(finding));
        at_large.list.into_iter().chain(for_nodes.list).for_each(|finding| all.push(finding));
    }
    allow::apply(&input.texts, all.finish())
}

/// What each resource shows by itself.
fn look_at(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    parse::check(set, parser, findings);
    names::check(set, findings);
    routing::check(set, findings);
    balancing::check(set, findings);
    security::check(set, findings);
    operation::check(set, parser, findings);
}

/// What only shows among several of them.
fn look_across(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    references::check(set, parser, findings);
    routing::check_across(set, parser, findings);
    balancing::check_across(set, findings);
    security::check_across(set, findings);
}
