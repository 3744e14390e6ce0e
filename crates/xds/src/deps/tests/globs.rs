//! Glob collections (GC-2, GC-8).

use super::*;
use crate::resource::EndpointGlob;
use crate::resource::endpoint::steps_taken;

const GLOB: ResourceType = ResourceType::EndpointGlob;

#[test]
fn a_glob_is_watched_by_its_own_type_and_joined_in_order_of_names() {
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["list", NAME]);
    assert_eq!(bed.take(), format!("+EDS a +LEDS list +GLOB {NAME}"));
    bed.collection("list", &[1, 2]);
    assert_eq!(bed.take(), "");
    glob(&mut bed, &[("b", 4), ("a", 3)]);
    assert_eq!(bed.take(), "{a=1,2,3,4}");
    // an address that two pieces have stays with the first.
    glob(&mut bed, &[("a", 3), ("c", 2), ("d", 3), ("e", 5)]);
    assert_eq!(bed.take(), "{a=1,2,3,5}");
    glob(&mut bed, &[]);
    assert_eq!(bed.take(), "{a=1,2}");
    assert!(bed.note("a").contains("contains empty localities: [/z1/]"), "{}", bed.note("a"));
    bed.endpoints_in("a", &["list"]);
    assert_eq!(bed.take(), format!("{{a=1,2}} -GLOB {NAME}"));
}

#[test]
fn a_glob_that_is_absent_leaves_its_locality_empty_and_says_so() {
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &[NAME]);
    bed.deny(GLOB, NAME);
    assert!(bed.take().ends_with(" {a=}"));
    assert!(bed.note("a").contains("LbEndpoint \"xdstp://x/"), "{}", bed.note("a"));
    glob(&mut bed, &[("a", 3)]);
    assert_eq!(bed.take(), "{a=3}");
    assert_eq!(bed.note("a"), "xDS node ID:node-1");
    // What is wrong while the members stay in use.
    bed.ambient(GLOB, NAME);
    assert_eq!(bed.take(), "{a=3}");
    assert!(bed.note("a").contains("cable cut"));
}

#[test]
fn a_server_without_delta_does_not_take_away_what_is_in_force_gc2() {
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.take();
    bed.endpoints_in("a", &[NAME]);
    bed.fail_with(GLOB, NAME, ErrorKind::NeedsDelta);
    assert!(!bed.log.iter().any(|line| line.starts_with("{a=}")), "{:?}", bed.log);
    bed.take();
    assert!(bed.config().clusters["a"].as_ref().is_ok_and(|a| a.note.contains("needs delta")));

    // Without anything in force, the cluster says what it needs.
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &[NAME]);
    bed.fail_with(GLOB, NAME, ErrorKind::NeedsDelta);
    assert!(bed.take().ends_with(" {a=}"));
    assert!(bed.note("a").contains("is a glob collection, which needs delta"), "{}", bed.note("a"));
}

#[test]
fn weights_that_do_not_fit_are_left_out_r120() {
    let mut members = EndpointGlob::default();
    for (name, port, weight) in [("a", 1, u32::MAX - 1), ("b", 2, 2), ("c", 3, 1)] {
        members.insert(name.into(), Endpoint { weight, ..collection(&[port]).endpoints.remove(0) });
    }
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &[NAME]);
    bed.changed(NAME, Resource::EndpointGlob(Arc::new(members)));
    assert!(bed.take().ends_with(" {a=1,3}"));
}

#[test]
fn a_change_of_some_members_costs_these_and_not_the_others_gc8() {
    for (n, k) in [(1_000_u32, 1), (100_000, 1), (100_000, 50)] {
        let endpoint = |n: u32| {
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::from_bits(n)), 80);
            Endpoint { addresses: Addresses::One(address), ..collection(&[1]).endpoints.remove(0) }
        };
        let name = |n: u32| Arc::from(format!("{n:06}"));
        let mut members = EndpointGlob::default();
        (0..n).for_each(|n| members.insert(name(n), endpoint(n)));
        let mut bed = Testbed::routed(&["a", "b"]);
        bed.batching = true;
        for cluster in ["a", "b"] {
            bed.eds(cluster);
        }
        while let Output::Do(_) = bed.manager.poll_output() {}
        bed.endpoints("b", &[1]);
        bed.endpoints_in("a", &[NAME]);
        while let Output::Do(_) = bed.manager.poll_output() {}
        bed.changed(NAME, Resource::EndpointGlob(Arc::new(members.clone())));
        let published = |bed: &mut Testbed| {
            let mut published = None;
            while let Output::Do(action) = bed.manager.poll_output() {
                if let Action::Publish(Ok(config)) = action {
                    published = Some(config);
                }
            }
            published.expect("a configuration")
        };
        let before = published(&mut bed);

        let start = steps_taken();
        (0..k).for_each(|at| members.insert(name(at * (n / k)), endpoint(n + at)));
        bed.changed(NAME, Resource::EndpointGlob(Arc::new(members.clone())));
        let after = published(&mut bed);
        let steps = steps_taken() - start;
        let bound = u64::from(k) * 4 * u64::from(n.ilog2() + 1);
        assert!(steps <= bound, "{steps} steps for {k} of {n}: expected at most {bound}");
        let of = |config: &XdsConfig, name: &str| config.clusters[name].clone().expect("a cluster");
        assert!(Arc::ptr_eq(&of(&before, "b"), &of(&after, "b")));
        let ClusterChildren::Endpoints(Some(resolved)) = &of(&after, "a").children else { panic!("endpoints") };
        assert_eq!(resolved.globs[NAME].len(), n as usize);
        assert_eq!(resolved.globs[NAME].get("000000"), Some(&endpoint(n)));
    }
}

const NAME: &str = "xdstp://x/envoy.config.endpoint.v3.LbEndpoint/g/*";

fn glob(bed: &mut Testbed, members: &[(&str, u16)]) {
    let mut glob = EndpointGlob::default();
    for (name, port) in members {
        glob.insert((*name).into(), collection(&[*port]).endpoints.remove(0));
    }
    bed.changed(NAME, Resource::EndpointGlob(Arc::new(glob)));
}
