//! LOGICAL_DNS clusters.

use super::*;

#[test]
fn an_answer_is_one_endpoint_with_all_addresses() {
    // L-7, L-16; Java: logical DNS success.
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    assert_eq!(bed.take(), "?host:80");
    bed.answer("host", Ok(&[1, 2, 1]));
    assert_eq!(bed.take(), "{d=1,2}");
    let ClusterChildren::Endpoints(Some(resolved)) = &bed.cluster_config("d").children else {
        panic!("endpoints are there")
    };
    let priorities: Vec<_> = resolved.priorities().collect();
    let [localities] = &priorities[..] else { panic!("one priority: {priorities:?}") };
    let [locality] = &localities[..] else { panic!("one locality: {localities:?}") };
    assert_eq!((&**locality.locality, locality.weight), (&Locality::default(), 1));
    let [endpoint] = &locality.endpoints[..] else { panic!("one endpoint: {locality:?}") };
    assert_eq!(endpoint.addresses.as_slice(), [address(1), address(2)]);
    assert_eq!(endpoint.hostname().map(|name| &**name), Some("host:80")); // A81
}

#[test]
fn an_ip_literal_needs_no_lookup() {
    let mut bed = Testbed::routed(&["v4", "v6", "brackets"]);
    bed.logical_dns("v4", "192.0.2.1");
    bed.logical_dns("v6", "2001:db8::1");
    bed.logical_dns("brackets", "[2001:db8::2]");
    assert_eq!(bed.take(), "{brackets=80 v4=80 v6=80}");
    let hostname = |name| {
        let ClusterChildren::Endpoints(Some(resolved)) = &bed.cluster_config(name).children else { return None };
        let localities: Vec<_> = resolved.priorities().flatten().collect();
        localities[0].endpoints[0].hostname().map(|name| name.to_string())
    };
    assert_eq!(hostname("v4").unwrap(), "192.0.2.1:80");
    assert_eq!(hostname("v6").unwrap(), "[2001:db8::1]:80");
    assert_eq!(hostname("brackets").unwrap(), "[2001:db8::2]:80");
    bed.reresolve();
    bed.pass(seconds(1000));
    assert_eq!(bed.take(), "");
}

#[test]
fn a_failed_lookup_is_an_answer_without_endpoints_and_is_tried_again() {
    // L-15, D11; Java: no DNS provider.
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.take();
    bed.answer("host", Err("no such host"));
    assert_eq!(bed.take(), "{d=none}");
    assert_eq!(bed.note("d"), "DNS resolution failed for host:80: no such host");
    // 1 s, times 1.6 each time: nobody has to ask for it.
    for pause in [1_000, 1_600, 2_560, 4_096] {
        bed.pass(Duration::from_millis(pause - 1));
        assert_eq!(bed.take(), "");
        bed.pass(Duration::from_millis(1));
        assert_eq!(bed.take(), "?host:80");
        bed.answer("host", Err("no such host"));
        assert_eq!(bed.take(), ""); // the same note
    }
    bed.pass(seconds(7));
    bed.answer("host", Ok(&[1]));
    assert_eq!(bed.take(), "?host:80 {d=1}");
    assert_eq!(bed.note("d"), "xDS node ID:node-1");
}

#[test]
fn the_pause_after_failures_has_a_bound_and_is_spread() {
    struct Edge(bool);
    impl Choose for Edge {
        fn choose(&mut self, bound: u64) -> u64 {
            if self.0 { bound - 1 } else { 0 }
        }
    }
    for (high, pause) in [(false, 96), (true, 144)] {
        let mut bed = Testbed::routed(&["d"]);
        bed.logical_dns("d", "host");
        let name = DnsName { host: "host".to_owned(), port: 80 };
        for _ in 0..50 {
            bed.pass(seconds(200));
            bed.asked.clear();
            bed.manager.handle_dns(bed.now, &mut Edge(high), &name, Err("down".to_owned()));
        }
        assert_eq!(bed.settle(), Some(bed.now + seconds(pause)));
    }
}

#[test]
fn a_failure_after_an_answer_keeps_the_addresses_and_says_so() {
    // L-15, A37; Go: GoodToBadDNS; C-core forgets them.
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Ok(&[1]));
    bed.take();
    bed.pass(seconds(30));
    bed.reresolve();
    bed.answer("host", Err("timeout"));
    assert_eq!(bed.take(), "?host:80 {d=1}");
    assert_eq!(bed.note("d"), "DNS resolution failed for host:80: timeout");
    bed.pass(seconds(1));
    bed.answer("host", Err("refused"));
    assert_eq!(bed.note("d"), "DNS resolution failed for host:80: refused"); // D13: never the old reason
    bed.pass(seconds(2));
    bed.answer("host", Ok(&[2]));
    assert_eq!(bed.note("d"), "xDS node ID:node-1");
}

#[test]
fn an_answer_without_addresses_is_a_failure() {
    // D12.
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.take();
    bed.answer("host", Ok(&[]));
    assert_eq!(bed.take(), "{d=none}");
    assert!(bed.note("d").contains("no addresses"), "{}", bed.note("d"));
    bed.pass(seconds(1));
    assert_eq!(bed.take(), "?host:80");
}

#[test]
fn every_request_for_resolution_is_honoured_above_the_floor() {
    // L-18, D11: neither swallowed nor more often than every 30 s.
    let mut bed = Testbed::routed(&["d", "e"]);
    bed.logical_dns("d", "host");
    bed.logical_dns("e", "other");
    bed.reresolve(); // under way already
    bed.answer("host", Ok(&[1]));
    bed.answer("other", Ok(&[2]));
    bed.take();
    bed.pass(seconds(10));
    bed.reresolve();
    bed.reresolve();
    assert_eq!(bed.take(), "");
    bed.pass(seconds(20));
    assert_eq!(bed.take(), "?host:80 ?other:80"); // all names, when the floor allows
    bed.answer("host", Ok(&[1]));
    bed.answer("other", Ok(&[3]));
    assert_eq!(bed.take(), "{d=1 e=3}");
    bed.pass(seconds(100));
    assert_eq!(bed.take(), ""); // nobody asks, nothing is asked
    bed.reresolve();
    assert_eq!(bed.take(), "?host:80 ?other:80");
}

#[test]
fn a_request_for_resolution_does_not_shorten_the_backoff() {
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Err("down"));
    bed.take();
    bed.reresolve();
    assert_eq!(bed.take(), "");
    bed.pass(seconds(1));
    assert_eq!(bed.take(), "?host:80");
}

#[test]
fn names_are_refreshed_if_asked_to() {
    let settings = DepsSettings { resolution_refresh: Some(seconds(60)), ..DepsSettings::default() };
    let mut bed = Testbed::with(settings);
    bed.inline(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Ok(&[1]));
    bed.take();
    bed.pass(seconds(59));
    assert_eq!(bed.take(), "");
    bed.pass(seconds(1));
    assert_eq!(bed.take(), "?host:80");
    bed.answer("host", Ok(&[1]));
    bed.pass(seconds(40));
    bed.reresolve(); // sooner than the refresh, above the floor
    assert_eq!(bed.take(), "?host:80");
    bed.answer("host", Ok(&[1]));
    bed.pass(seconds(10));
    bed.reresolve(); // below the floor: at 30 s, before the refresh
    bed.pass(seconds(20));
    assert_eq!(bed.take(), "?host:80");
}

#[test]
fn one_lookup_serves_all_clusters_of_a_name_and_ends_with_the_last() {
    // L-8, L-9.
    let mut bed = Testbed::routed(&["d", "e"]);
    bed.logical_dns("d", "host");
    bed.logical_dns("e", "host");
    assert_eq!(bed.take(), "?host:80");
    bed.inline(&["e"]);
    assert_eq!(bed.take(), "-CDS d");
    bed.inline(&[]);
    assert_eq!(bed.take(), "{} -CDS e !host:80");
    bed.answer("host", Ok(&[1])); // too late
    bed.reresolve();
    bed.pass(seconds(1000));
    assert_eq!(bed.take(), "");
}

#[test]
fn a_name_that_is_gone_is_not_tried_again() {
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Err("down"));
    bed.inline(&[]);
    bed.take();
    bed.pass(seconds(1000));
    assert_eq!(bed.take(), "");
}

#[test]
fn a_cluster_moves_between_names_and_kinds() {
    // Go: HostnameChange, SwitchEDSAndDNS.
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Ok(&[1]));
    bed.take();
    bed.logical_dns("d", "other");
    assert_eq!(bed.take(), "?other:80");
    bed.answer("other", Ok(&[2]));
    assert_eq!(bed.take(), "{d=2}");
    bed.eds("d");
    bed.endpoints("d", &[3]);
    assert_eq!(bed.take(), "+EDS d {d=3}");
    bed.logical_dns("d", "192.0.2.1");
    assert_eq!(bed.take(), "{d=80} -EDS d");
}

#[test]
fn an_equal_answer_publishes_nothing() {
    let mut bed = Testbed::routed(&["d"]);
    bed.logical_dns("d", "host");
    bed.answer("host", Ok(&[1]));
    bed.pass(seconds(30));
    bed.reresolve();
    bed.take();
    bed.answer("host", Ok(&[1]));
    bed.answer("host", Ok(&[2])); // nobody asked
    assert_eq!(bed.take(), "");
}

#[test]
fn a_lookup_of_a_cluster_that_moves_on_and_is_dropped_at_once_is_given_up() {
    let mut bed = Testbed::routed(&["a", "b"]);
    bed.logical_dns("a", "one");
    assert_eq!(bed.take(), "?one:80");
    bed.together(|bed| {
        bed.inline(&["b"]);
        bed.logical_dns("a", "two");
    });
    assert_eq!(bed.take(), "?two:80 -CDS a !one:80 !two:80");
}
