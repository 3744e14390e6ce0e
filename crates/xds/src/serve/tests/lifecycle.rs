//! Serving, not serving, and what is in force.

use super::*;
use crate::target::ServerListenerError;

#[test]
fn an_address_is_not_served_before_its_listener_and_all_of_its_routes_are_there() {
    // SV-11, S-3, S-5: every chain counts, the default one too.
    let mut bed = Testbed::new();
    let id = bed.add(OURS);
    let state = bed.core.state(id).unwrap();
    let ServingState::NotServing(why) = state else { panic!("{state:?}") };
    assert_eq!(why.to_string(), "Listener \"server/10.0.0.1:50051\" has not come yet");
    bed.listeners("a", &[(L, server(OURS, &["r", "s", "t"]))]);
    bed.routes("a", &[("r", "1")]);
    bed.routes("a", &[("r", "1"), ("t", "1")]);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.routes("a", &[("r", "1"), ("s", "1"), ("t", "1")]);
    assert_eq!(bed.told(), ["0: publish g1 r=1 s=1 t=1", "0: listen", "0: SERVING"]);
    assert_eq!(bed.core.state(id), Some(&ServingState::Serving));
    assert_eq!(bed.core.serving(id).map(|serving| serving.generation), Some(Generation(1)));
}

#[test]
fn routes_inside_of_the_listener_are_not_waited_for() {
    // SV-11
    let mut bed = Testbed::new();
    bed.add(OURS);
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    assert_eq!(bed.told(), ["0: publish g1 inline=1", "0: listen", "0: SERVING"]);
    // S-13: other routes inside are another Listener.
    bed.listeners("a", &[(L, server_inline(OURS, "2"))]);
    assert_eq!(bed.told(), ["0: publish g2 inline=2", "0: drain g1 for 600 s"]);
}

#[test]
fn a_server_without_a_template_cannot_start() {
    // SV-3, S-8, B-36
    let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("a")).build().unwrap();
    let mut core = ServerCore::new(Arc::new(bootstrap), ClientSettings::default());
    let error = core.add(Time::ZERO, OURS.parse().unwrap(), ServeSettings::default());
    assert_eq!(error, Err(ServerListenerError::NoTemplate));
    assert_eq!(core.poll_output(), Output::Wait(None));
}

#[test]
fn the_name_of_a_listener_is_made_of_the_address_that_was_given() {
    // SV-9, B-36
    let mut bed = Testbed::new();
    let id = bed.add("[::]:4711");
    assert_eq!(bed.core.listener_name(id).map(|name| &**name), Some("server/[::]:4711"));
    bed.listeners("a", &[("server/[::]:4711", server("[::]:0", &["r"]))]);
    bed.routes("a", &[("r", "1")]);
    assert_eq!(bed.told(), ["0: publish g1 r=1", "0: listen", "0: SERVING"], "SV-11: port 0 is any port");
}

#[test]
fn a_listener_that_is_not_ours_stops_serving_and_says_why() {
    // S-12, R-14, SV-13
    let (mut bed, _) = Testbed::serving();
    let stopped = ["0: publish nothing", "0: stop listening", "0: drain g1 for 600 s"];
    bed.listeners("a", &[(L, client())]);
    let why = "Listener \"server/10.0.0.1:50051\" from a is for clients: expected one with an address";
    let told = bed.told();
    assert_eq!((&told[..3], &*told[3]), (&stopped.map(String::from)[..], &*format!("0: NOT SERVING: {why}")));
    bed.listeners("a", &[(L, server("10.0.0.1:50052", &["r"]))]);
    let other = "Listener \"server/10.0.0.1:50051\" from a is for 10.0.0.1:50052: expected 10.0.0.1:50051";
    assert_eq!(bed.told(), [format!("0: NOT SERVING: {other}")]);
    bed.listeners("a", &[(L, client())]);
    assert_eq!(bed.told(), [format!("0: NOT SERVING: {why}")]);
    // Back again: another generation, as the connections of the first are drained.
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    bed.routes("a", &[("r", "1")]);
    assert_eq!(bed.told(), ["0: publish g2 r=1", "0: listen", "0: SERVING"]);
}

#[test]
fn an_equal_listener_does_nothing() {
    // SV-12, S-14: in another response, and in other bytes.
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    bed.listeners("a", &[(L, listener::Listener { traffic_direction: 1, ..server(OURS, &["r"]) })]);
    bed.routes("a", &[("r", "1")]);
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn another_listener_is_another_generation_and_leaves_the_socket_alone() {
    // S-13, SV-10: what is new is published before what is old is drained.
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["r", "r"]))]);
    assert_eq!(bed.told(), ["0: publish g2 r=1 r=1", "0: drain g1 for 600 s"]);
}

#[test]
fn other_routes_are_the_same_generation() {
    // SV-6, S-13
    let (mut bed, _) = Testbed::serving();
    bed.routes("a", &[("r", "2")]);
    assert_eq!(bed.told(), ["0: publish g1 r=2"]);
}

#[test]
fn the_listener_before_stays_whole_until_the_new_one_has_its_routes() {
    // SV-11
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["r", "s"]))]);
    assert_eq!(bed.asked_for_routes("a"), ["r", "s"]);
    bed.routes("a", &[("r", "2")]);
    assert_eq!(bed.told(), Vec::<String>::new(), "routes that may be meant for the new one are not put under the old");
    bed.routes("a", &[("r", "2"), ("s", "2")]);
    assert_eq!(bed.told(), ["0: publish g2 r=2 s=2", "0: drain g1 for 600 s"]);
}

#[test]
fn routes_that_never_come_are_waited_for_until_they_do_not_exist() {
    // SV-11, S-17, S-18: the chain that names them refuses RPCs, and the log is told.
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["r", "s"]))]);
    bed.wait(SECOND * 14);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.wait(SECOND);
    let error = "RouteConfiguration \"s\" does not exist on a (node \"node\"), 15 s after it was requested";
    assert_eq!(
        bed.told(),
        [&format!("0: routes s are broken: {error}"), "0: publish g2 r=1 s=!", "0: drain g1 for 600 s"]
    );
    bed.routes("a", &[("r", "1"), ("s", "1")]);
    assert_eq!(bed.told(), ["0: routes s are back", "0: publish g2 r=1 s=1"]);
}

#[test]
fn a_listener_that_comes_back_before_the_next_was_complete_changes_nothing() {
    // SV-12
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["r", "s"]))]);
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    assert_eq!(bed.told(), Vec::<String>::new());
    assert_eq!(bed.asked_for_routes("a"), ["r"]);
    bed.routes("a", &[("r", "2")]);
    assert_eq!(bed.told(), ["0: publish g1 r=2"]);
}

#[test]
fn routes_that_only_the_old_listener_names_end_with_it() {
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[(L, server(OURS, &["s"]))]);
    assert_eq!(bed.asked_for_routes("a"), ["r", "s"], "the old one is in force");
    bed.routes("a", &[("r", "1"), ("s", "1")]);
    assert_eq!(bed.told(), ["0: publish g2 s=1", "0: drain g1 for 600 s"]);
    assert_eq!(bed.asked_for_routes("a"), ["s"]);
}

#[test]
fn bad_routes_without_older_ones_are_served_as_broken() {
    // S-17: connections are accepted all the same.
    let mut bed = Testbed::new();
    bed.add(OURS);
    bed.listeners("a", &[(L, server(OURS, &["r"]))]);
    let bad = route::RouteConfiguration {
        name: "r".to_owned(),
        virtual_hosts: vec![Default::default()],
        ..Default::default()
    };
    bed.respond("a", ResourceType::RouteConfig, vec![pack_any(bad.clone())]);
    let told = bed.told();
    assert!(told[0].starts_with("0: routes r are broken: RouteConfiguration \"r\" version \"2\" from a"), "{told:?}");
    assert_eq!(told[1..], ["0: publish g1 r=!", "0: listen", "0: SERVING"]);
    bed.routes("a", &[("r", "1")]);
    assert_eq!(bed.told(), ["0: routes r are back", "0: publish g1 r=1"]);
    bed.respond("a", ResourceType::RouteConfig, vec![pack_any(bad)]);
    assert_eq!(bed.told(), Vec::<String>::new(), "A88: what there is stays in use");
}

#[test]
fn a_bad_listener_is_a_reason_at_the_start_and_nothing_later() {
    // S-12, SV-13; grpc-java took it for a failed start (SV-3).
    let mut bed = Testbed::new();
    bed.add(OURS);
    let bad = listener::Listener { address: Some(address_of(OURS)), ..Default::default() };
    bed.listeners("a", &[(L, bad.clone())]);
    assert_eq!(
        bed.told(),
        ["0: NOT SERVING: Listener \"server/10.0.0.1:50051\" version \"1\" from a (node \"node\") was rejected: \
          filter_chains or default_filter_chain must be set"]
    );
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    assert_eq!(bed.told(), ["0: publish g1 inline=1", "0: listen", "0: SERVING"]);
    bed.listeners("a", &[(L, bad)]);
    assert_eq!(bed.told(), Vec::<String>::new());
}

#[test]
fn a_deletion_changes_nothing_unless_its_server_wants_errors_to_count() {
    // SV-15, S-7, A88
    let (mut bed, _) = Testbed::serving();
    bed.listeners("a", &[]);
    assert_eq!(bed.told(), Vec::<String>::new());

    let mut bed = Testbed::of(&["a"], ServerFeatures { fail_on_data_errors: true, ..Default::default() });
    bed.add(OURS);
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    bed.told();
    bed.listeners("a", &[]);
    assert_eq!(
        bed.told(),
        [
            "0: publish nothing",
            "0: stop listening",
            "0: drain g1 for 600 s",
            "0: NOT SERVING: Listener \"server/10.0.0.1:50051\" was deleted on a (node \"node\")"
        ]
    );
    bed.listeners("a", &[(L, server_inline(OURS, "1"))]);
    assert_eq!(bed.told(), ["0: publish g2 inline=1", "0: listen", "0: SERVING"]);
}

#[test]
fn the_same_trouble_is_told_once() {
    // SV-13: also if it comes again at another time.
    let mut bed = Testbed::new();
    bed.add(OURS);
    bed.wait(SECOND * 15);
    let missing = "0: NOT SERVING: Listener \"server/10.0.0.1:50051\" does not exist on a (node \"node\"), \
                   15 s after it was requested";
    assert_eq!(bed.told(), [missing]);
    bed.lose("a");
    bed.wait(SECOND * 100);
    let told = bed.told();
    assert!(told.len() == 2 && told[0].contains("unreachable") && told[1].ends_with("refused"), "{told:?}");
    bed.wait(SECOND * 100);
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.reconnect("a");
    bed.wait(SECOND * 15);
    assert_eq!(bed.told(), [missing]);
    bed.lose("a");
    bed.reconnect("a");
    bed.told();
    bed.wait(SECOND * 15);
    assert_eq!(bed.told(), [missing]);
}

#[test]
fn one_address_does_not_wait_for_another() {
    // SV-4 of the design: each has its own Listener, state and drain.
    let mut bed = Testbed::new();
    let (one, two) = (bed.add(OURS), bed.add("10.0.0.1:50052"));
    let other = "server/10.0.0.1:50052";
    bed.listeners("a", &[(L, server(OURS, &["r"])), (other, client())]);
    let why = "Listener \"server/10.0.0.1:50052\" from a is for clients: expected one with an address";
    assert_eq!(bed.told(), [format!("1: NOT SERVING: {why}")]);
    bed.routes("a", &[("r", "1")]);
    assert_eq!(bed.told(), ["0: publish g1 r=1", "0: listen", "0: SERVING"]);
    bed.listeners("a", &[(L, server(OURS, &["r"])), (other, server("10.0.0.1:50052", &["r"]))]);
    assert_eq!(bed.told(), ["1: publish g2 r=1", "1: listen", "1: SERVING"], "the routes are known already");
    bed.routes("a", &[("r", "2")]);
    assert_eq!(bed.told(), ["0: publish g1 r=2", "1: publish g2 r=2"]);
    bed.core.remove(bed.now, two);
    bed.settle();
    assert_eq!(bed.told(), ["1: close", "1: drain g2 for 600 s", "1: NOT SERVING: shut down by the application"]);
    assert_eq!(bed.asked_for_routes("a"), ["r"], "the first needs them");
    assert!(bed.core.state(one).is_some() && bed.core.state(two).is_none());
}

#[test]
fn a_server_that_is_shut_down_closes_drains_and_then_ends_its_watches() {
    // SV-25
    let (mut bed, id) = Testbed::serving();
    bed.core.shut_down(bed.now, id);
    bed.settle();
    let told = ["0: close", "0: drain g1 for 600 s", "0: NOT SERVING: shut down by the application"];
    assert_eq!(bed.told(), told);
    bed.routes("a", &[("r", "2")]);
    assert_eq!(bed.told(), ["0: publish g1 r=2"], "for RPCs of connections that drain");
    bed.listeners("a", &[(L, client())]);
    bed.core.shut_down(bed.now, id);
    bed.settle();
    assert_eq!(bed.told(), Vec::<String>::new());
    bed.core.remove(bed.now, id);
    bed.wait(SECOND);
    assert_eq!(bed.told(), Vec::<String>::new());
    assert!(bed.streams.is_empty() && bed.core.client().is_idle());
    assert_eq!(bed.settle(), None, "nothing is due any more");
}

#[test]
fn an_address_that_never_was_served_has_nothing_to_drain() {
    let mut bed = Testbed::new();
    let id = bed.add(OURS);
    bed.core.remove(bed.now, id);
    bed.settle();
    assert_eq!(bed.told(), ["0: close", "0: NOT SERVING: shut down by the application"]);
    assert!(bed.streams.is_empty());
}
