//! The way from a configuration to a decision, and what updates touch.

use std::time::Duration;

use mainstay_xds::deps::ConfigError;

use crate::testbed::{Testbed, eds, route, routed};
use crate::{Connectivity, Outlook};

#[test]
fn rpcs_wait_until_there_is_a_configuration() {
    let mut bed = Testbed::new();
    assert_eq!(bed.rpc(), "wait 14: waiting for the configuration", "L-30");
}

#[test]
fn rpcs_wait_while_the_cluster_connects_and_then_go_to_each_endpoint_in_turn() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    assert_eq!(bed.log(), "create 1, create 2, connect 1, connect 2", "L-103: connects to all");
    assert_eq!(
        bed.rpc(),
        "wait 14: cluster \"c\": priority 0 of 1: locality a: connecting to 2 endpoints (xDS node ID:n)",
        "L-48, L-201"
    );
    bed.connecting(1);
    bed.connecting(2);
    assert_eq!(bed.outcome(), "wait");
    bed.ready(1);
    assert_eq!(bed.ports(3), [1, 1, 1]);
    bed.ready(2);
    assert_eq!(bed.ports(4), [1, 2, 1, 2], "L-103");
}

#[test]
fn a_connection_that_died_after_the_snapshot_is_passed_over() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    bed.ready(1);
    bed.ready(2);
    bed.die_silently(1);
    assert_eq!(bed.ports(3), [2, 2, 2]);
    bed.die_silently(2);
    assert_eq!(bed.rpc(), "wait 14: cluster \"c\": connections were just lost; reconnecting (xDS node ID:n)");
}

#[test]
fn a_config_error_drops_everything_and_a_later_config_recovers() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    bed.log();
    bed.break_config(ConfigError::NotApiListener("l".into()));
    assert_eq!(bed.outcome(), "fail", "L-29");
    assert_eq!(bed.log(), "release 1");
    bed.update_endpoints("a=1");
    bed.ready(1);
    assert_eq!(bed.rpc(), "send 1", "L-29");
}

#[test]
fn an_equal_configuration_changes_nothing() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.ready(1);
    let (published, before) = (bed.published, bed.tree.clone());
    bed.log();
    bed.update_endpoints("a=1");
    assert_eq!((bed.published, bed.log()), (published, String::new()), "L-57");
    assert_eq!(bed.tree, before);
}

#[test]
fn an_update_of_one_cluster_leaves_the_picker_of_another_alone() {
    let routes = || [route("/a", "a"), route("/b", "b")];
    let mut bed = Testbed::new();
    bed.update(routed(routes(), [eds("a", "x=1,2"), eds("b", "x=3")]));
    (1..=3).for_each(|port| bed.ready(port));
    assert_eq!(bed.rpc_to("/a/m"), "send 1");
    bed.update(routed(routes(), [eds("a", "x=1,2"), eds("b", "x=3,4")]));
    assert_eq!(bed.rpc_to("/a/m"), "send 2", "the turn goes on where it was");
    assert_eq!(bed.rpc_to("/b/m"), "send 3", "L-51: each cluster has a picker of its own");
}

#[test]
fn a_channel_is_in_the_state_of_its_best_cluster() {
    let mut bed = Testbed::new();
    assert_eq!(bed.snapshot.outlook(), Outlook::Wait, "L-30");
    bed.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    assert_eq!(bed.snapshot.outlook(), Outlook::Wait, "L-48, L-52");
    bed.fail(1);
    assert_eq!(bed.snapshot.outlook(), Outlook::Wait, "L-49, L-52: one connects");
    bed.fail(2);
    assert_eq!(bed.snapshot.outlook(), Outlook::Fail, "L-49, L-52");
    bed.idle(2);
    assert_eq!(bed.snapshot.outlook(), Outlook::Fail, "L-49: until it is READY");
    bed.ready(2);
    assert_eq!(bed.snapshot.outlook(), Outlook::Send, "L-49, L-52");
}

#[test]
fn a_cluster_that_no_route_names_any_more_is_let_go() {
    let mut bed = Testbed::new();
    bed.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.log();
    bed.update(routed([route("/a", "a")], [eds("a", "x=1")]));
    assert_eq!(bed.log(), "release 2");
    assert_eq!(bed.outcome(), "drop", "L-32: no route");
}

#[test]
fn a_cluster_that_only_a_subscription_keeps_stays_connected() {
    let mut bed = Testbed::new();
    bed.update(routed([route("/a", "a"), route("/b", "b")], [eds("a", "x=1"), eds("b", "x=2")]));
    bed.log();
    bed.update(routed([route("/a", "a")], [eds("a", "x=1"), eds("b", "x=2")]));
    assert_eq!(bed.log(), "", "L-17, L-27");
}

#[test]
fn a_route_to_a_cluster_that_the_configuration_lacks_fails() {
    let mut bed = Testbed::new();
    bed.update(routed([route("", "ghost")], []));
    assert_eq!(bed.rpc(), "fail 14: cluster \"ghost\": xDS config has no entry for cluster \"ghost\"", "L-55");
}

#[test]
fn shutting_down_releases_every_subchannel_and_every_timer() {
    let mut bed = Testbed::with_endpoints("a=1,2+3|b=4");
    bed.advance(Duration::from_secs(11));
    bed.log();
    bed.call(|tree, cx| tree.shut_down(cx));
    assert_eq!(bed.log(), "release 1, release 2, release 3, release 4");
    assert_eq!(bed.tree.next_deadline(), None);
    assert_eq!(bed.rpc(), "fail 14: the channel is shut down");
}

#[test]
fn news_of_a_released_subchannel_is_ignored() {
    let mut bed = Testbed::with_endpoints("a=1,2");
    let (id, _) = bed.helper.live[&2].clone();
    bed.update_endpoints("a=1");
    bed.update_endpoints("a=1,3"); // May take the place of the one that was released, but not its id.
    let before = bed.tree.clone();
    bed.call(|tree, cx| tree.handle_connectivity(cx, id, Connectivity::Ready));
    assert_eq!(bed.tree, before);
    assert_eq!(bed.outcome(), "wait");
}

#[test]
fn one_that_is_idle_again_before_it_was_heard_connecting_is_asked_again() {
    let mut bed = Testbed::with_endpoints("a=1");
    bed.log();
    bed.idle(1);
    assert_eq!(bed.log(), "connect 1", "or it would never be asked");
}
