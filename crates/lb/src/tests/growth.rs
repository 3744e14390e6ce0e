//! Cost follows change: of a snapshot, only what is different is made anew.

use std::collections::BTreeSet;

use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::picker::{RUN, entries_made};
use crate::testbed::{Testbed, config, eds, route, routed, with_policy};

const MANY: u16 = 1_000;

#[test]
fn each_change_of_a_connection_among_a_thousand_makes_one_run_of_the_picker() {
    for policy in [LbPolicy::RoundRobin, LbPolicy::LeastRequest { choices: 1 }] {
        let mut bed = Testbed::new();
        bed.update(config([with_policy(eds("c", &endpoints()), policy)]));
        let before = entries_made();
        (1..=MANY).for_each(|port| bed.ready(port));
        let connecting = entries_made() - before;
        assert!(connecting <= usize::from(MANY) * RUN, "{connecting} entries were made to connect to all");

        let before = entries_made();
        bed.idle(500);
        bed.connecting(500);
        bed.ready(500);
        let made = entries_made() - before;
        assert!(made <= 3 * RUN, "{made} entries were made");
    }
}

#[test]
fn every_endpoint_has_its_turn_after_some_were_lost_and_came_back() {
    let mut bed = Testbed::with_endpoints(&endpoints());
    (1..=MANY).for_each(|port| bed.ready(port));
    let lost = [1, 64, 65, 500, 999, 1_000];
    lost.into_iter().for_each(|port| bed.idle(port));
    let turns = bed.ports(usize::from(MANY) - lost.len());
    assert!(turns.is_sorted(), "in order");
    assert_eq!(turns.iter().collect::<BTreeSet<_>>().len(), turns.len(), "each once");
    assert!(lost.iter().all(|port| !turns.contains(port)));
    lost.into_iter().rev().for_each(|port| bed.ready(port));
    assert!(bed.ports(usize::from(MANY)).into_iter().eq(1..=MANY));
}

#[test]
fn a_cluster_of_a_thousand_that_changes_leaves_the_rest_of_the_snapshot_as_it_is() {
    let names: Vec<String> = (1..=MANY).map(|n| format!("c{n}")).collect();
    let with = |changed: Option<u16>| {
        let port = |n: u16| if changed == Some(n) { n + MANY } else { n };
        let clusters = (1..=MANY).zip(&names).map(|(n, name)| eds(name, &format!("a={}", port(n))));
        routed(names.iter().map(|name| route(&format!("/{name}/"), name)), clusters)
    };
    let mut bed = Testbed::new();
    bed.update(with(None));
    (1..=MANY).for_each(|port| bed.ready(port));

    let before = entries_made();
    bed.idle(500);
    assert_eq!(bed.rpc_to("/c500/m").split(' ').next(), Some("wait"));
    bed.ready(500);
    assert_eq!(bed.rpc_to("/c500/m"), "send 500");
    bed.update(with(Some(700)));
    bed.ready(700 + MANY);
    let made = entries_made() - before;
    assert!(made <= 10, "{made} entries were made");
    assert_eq!((&*bed.rpc_to("/c700/m"), &*bed.rpc_to("/c701/m")), ("send 1700", "send 701"));
}

/// So many in one locality.
fn endpoints() -> String {
    let ports: Vec<String> = (1..=MANY).map(|port| port.to_string()).collect();
    format!("a={}", ports.join(","))
}
