//! Trouble with xDS servers, and falling back between them.

use super::*;

#[test]
fn a_server_starts_in_an_outage_and_serves_when_it_is_over() {
    // S-10, SV-3, SV-13
    let mut bed = Testbed::new();
    bed.down.insert("a".to_owned());
    bed.add(OURS);
    let told = bed.told();
    assert_eq!(
        told,
        ["0: NOT SERVING: Listener \"server/10.0.0.1:50051\" cannot be fetched from a (node \"node\"), which is \
          unreachable: cannot connect: refused"]
    );
    bed.down.clear();
    bed.wait(SECOND * 2);
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    assert_eq!(bed.told(), ["0: publish g1 inline=1", "0: listen", "0: SERVING"]);
}

#[test]
fn loss_of_the_control_plane_changes_nothing() {
    // SV-15, S-6
    let (mut bed, _) = Testbed::serving();
    bed.lose("a");
    bed.wait(SECOND * 1_000);
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn routes_that_cannot_be_fetched_are_broken_if_nothing_else_is_there() {
    // S-17
    let mut bed = Testbed::new();
    bed.add(OURS);
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    bed.lose("a");
    bed.wait(SECOND);
    let told = bed.told();
    assert!(
        told[0].starts_with("0: routes r are broken: RouteConfiguration \"r\" cannot be fetched from a"),
        "{told:?}"
    );
    assert_eq!(told[1..], ["0: publish g1 r=!", "0: listen", "0: SERVING"]);
    bed.reconnect("a");
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    bed.routes("a", &[("r", "1")]);
    assert_eq!(bed.told(), ["0: routes r are back", "0: publish g1 r=1"]);
}

#[test]
fn routes_that_cannot_be_fetched_are_waited_for_while_something_is_in_force() {
    // SV-11: no RPC fails for trouble with servers.
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["r", "s"]))]);
    bed.lose("a");
    bed.wait(SECOND * 1_000);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.reconnect("a");
    bed.listeners("a", &[(L, server(OURS, &["r", "s"]))]);
    bed.routes("a", &[("r", "1"), ("s", "1")]);
    assert_eq!(bed.told(), ["0: publish g2 r=1 s=1", "0: drain g1 for 600 s"]);
}

#[test]
fn the_listener_in_force_follows_its_routes_while_the_next_is_in_trouble() {
    // SV-11: a server whose silence is a passing error may be silent for ever.
    let mut bed = Testbed::of(&["a"], ServerFeatures { resource_timer_is_transient_error: true, ..Default::default() });
    bed.add(OURS);
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    bed.routes("a", &[("r", "1")]);
    bed.listeners("a", &[(L, server(OURS, &["r", "s"]))]);
    bed.told();
    bed.wait(SECOND * 10);
    bed.routes("a", &[("r", "2")]);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.wait(SECOND * 20);
    assert_eq!(bed.told(), ["0: publish g1 r=2"]);
    bed.routes("a", &[("r", "3")]);
    assert_eq!(bed.told(), ["0: publish g1 r=3"]);
    bed.routes("a", &[("r", "3"), ("s", "3")]);
    assert_eq!(bed.told(), ["0: publish g2 r=3 s=3", "0: drain g1 for 600 s"]);
}

#[test]
fn a_fallback_serves_a_server_that_starts_without_its_primary() {
    // SV-14, A71
    let mut bed = Testbed::of(&["a", "b"], ServerFeatures::default());
    bed.down.insert("a".to_owned());
    bed.add(OURS);
    bed.wait(SECOND);
    bed.listeners("b", &[(L, server(OURS, &["r"]))]);
    bed.routes("b", &[("r", "1")]);
    assert_eq!(bed.told(), ["0: publish g1 r=1", "0: listen", "0: SERVING"]);
}

#[test]
fn a_listener_and_routes_of_two_servers_are_not_mixed() {
    // SV-14, D-18: the primary comes back with another Listener and other routes, one after the other.
    let mut bed = Testbed::of(&["a", "b"], ServerFeatures::default());
    bed.down.insert("a".to_owned());
    bed.add(OURS);
    bed.wait(SECOND);
    bed.listeners("b", &[(L, server(OURS, &["r"]))]);
    bed.routes("b", &[("r", "b")]);
    bed.told();
    bed.reconnect("a");
    bed.listeners("a", &[(L, server(OURS, &["r", "r"]))]);
    assert_eq!(bed.told(), Vec::<String>::new(), "the routes are those of the fallback");
    bed.routes("a", &[("r", "a")]);
    assert_eq!(bed.told(), ["0: publish g2 r=a r=a", "0: drain g1 for 600 s"]);
}

#[test]
fn a_mixture_is_served_after_a_while() {
    // D-18
    let mut bed = Testbed::of(&["a", "b"], ServerFeatures::default());
    bed.down.insert("a".to_owned());
    bed.add(OURS);
    bed.wait(SECOND);
    bed.listeners("b", &[(L, server(OURS, &["r"]))]);
    bed.routes("b", &[("r", "b")]);
    bed.told();
    bed.reconnect("a");
    bed.listeners("a", &[(L, server(OURS, &["r", "r"]))]);
    bed.wait(SECOND * 14);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.wait(SECOND);
    assert_eq!(bed.told(), ["0: publish g2 mixed r=b r=b", "0: drain g1 for 600 s"]);
    bed.routes("a", &[("r", "b")]);
    assert_eq!(bed.told(), ["0: publish g2 r=b r=b"], "of one piece again: nothing is drained");
}
