//! Localities by weight.

use http::HeaderMap;
use mainstay_xds::resource::lb_policy::LbPolicy;

use crate::testbed::{Script, Testbed, config, eds, with_policy};
use crate::{Decision, Rpc};

#[test]
fn localities_share_exactly_by_weight() {
    let mut bed = Testbed::with_endpoints("a*1=1 b*3=2");
    bed.ready(1);
    bed.ready(2);
    bed.script.draws = (0..4).collect();
    bed.script.bounds.clear();
    assert_eq!(bed.ports(4), [1, 2, 2, 2], "L-100");
    assert_eq!(bed.script.bounds, [4; 4], "L-100: one draw each");
}

#[test]
fn only_ready_localities_are_chosen_from() {
    let mut bed = Testbed::with_endpoints("a=1 b=2 c=3");
    bed.ready(1);
    bed.fail(2);
    bed.script.bounds.clear();
    assert_eq!(bed.ports(2), [1, 1], "L-100");
    assert!(bed.script.bounds.is_empty(), "no draw where there is no choice");
}

#[test]
fn rpcs_wait_while_a_locality_may_still_connect() {
    let mut bed = Testbed::with_endpoints("a=1 b=2");
    bed.fail(1);
    assert_eq!(bed.outcome(), "wait", "L-100, L-49");
    bed.fail(2);
    assert_eq!(bed.outcome(), "fail", "L-100");
    bed.idle(1);
    bed.connecting(1);
    assert_eq!(bed.outcome(), "fail", "L-49: sticky");
}

#[test]
fn a_failed_locality_that_gets_new_endpoints_stays_failed_until_ready() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.fail(1);
    bed.update_endpoints("a=2");
    assert_eq!(bed.outcome(), "fail", "L-49");
    bed.ready(2);
    assert_eq!(bed.rpc(), "send 2");
}

#[test]
fn a_changed_weight_keeps_the_connections() {
    let mut bed = Testbed::with_endpoints("a*1=1 b*1=2");
    bed.ready(1);
    bed.ready(2);
    bed.log();
    bed.update_endpoints("a*1=1 b*2=2");
    assert_eq!(bed.log(), "");
    bed.script.draws = (0..3).collect();
    assert_eq!(bed.ports(3), [1, 2, 2], "L-100");
}

#[test]
fn a_locality_without_endpoints_is_no_target() {
    let mut bed = Testbed::with_endpoints("a= b=1");
    bed.fail(1);
    assert_eq!(
        bed.rpc(),
        "fail 14: cluster \"c\": priority 0 of 1: locality b: connections to all 1 endpoints failing; last error: \
         10.0.0.1:1: refused (xDS node ID:n)",
        "L-99"
    );
    bed.update_endpoints("a= b=");
    assert_eq!(bed.rpc(), "fail 14: cluster \"c\": priority 0 of 1: no endpoints (xDS node ID:n)", "L-100");
}

#[test]
fn a_text_names_a_few_localities_and_counts_the_rest() {
    let mut bed = Testbed::with_endpoints("a=1 b=2 c=3 d=4 e=5");
    (1..=5).for_each(|port| bed.fail(port));
    let text = bed.rpc();
    assert!(text.contains("locality c: ") && !text.contains("locality d: ") && text.contains("; and 2 more"), "{text}");
}

#[test]
fn an_endpoint_that_moves_to_another_locality_keeps_its_connection_and_rpcs_know_where_they_go() {
    for policy in [LbPolicy::WrrLocality(LbPolicy::RoundRobin.into()), LbPolicy::PickFirst { shuffle: false }] {
        let mut bed = Testbed::new();
        bed.update(config([with_policy(eds("c", "a=1"), policy.clone())]));
        bed.ready(1);
        assert_eq!(origin(&bed), ("c".to_owned(), "a".to_owned()), "S-63, S-64");
        bed.log();
        bed.update(config([with_policy(eds("c", "b=1"), policy)]));
        assert_eq!(origin(&bed), ("c".to_owned(), "b".to_owned()), "S-63");
        assert_eq!(bed.log(), "", "no RPC waits for the sake of a label");
    }
}

/// The cluster and the locality of the endpoint that the next RPC goes to.
fn origin(bed: &Testbed) -> (String, String) {
    let headers = HeaderMap::new();
    match bed.snapshot.decide(Rpc { path: "/s/m", headers: &headers }, &mut Script::default()) {
        Decision::Send(to) => (to.origin.cluster.to_string(), to.origin.locality.zone.clone()),
        other => panic!("not sent: {other:?}"),
    }
}

#[test]
fn a_removed_locality_is_let_go_at_once() {
    let mut bed = Testbed::with_endpoints("a=1 b=2");
    bed.log();
    bed.update_endpoints("a=1");
    assert_eq!(bed.log(), "release 2");
}

#[test]
fn a_locality_whose_connections_all_died_gives_its_rpcs_to_the_others() {
    let mut bed = Testbed::with_endpoints("a=1 b=2");
    bed.ready(1);
    bed.ready(2);
    bed.die_silently(2);
    bed.script.draws = [0, 1].into();
    assert_eq!(bed.ports(2), [1, 1]);
}
