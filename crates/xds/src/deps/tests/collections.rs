//! LbEndpointCollections (A95).

use super::*;
use crate::deps::ResolvedEndpoints;

#[test]
fn endpoints_are_complete_when_every_collection_has_answered() {
    // L-10, A95.
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["c1", "c2"]);
    assert_eq!(bed.take(), "+EDS a +LEDS c1 +LEDS c2");
    bed.collection("c2", &[3]);
    assert_eq!(bed.take(), "");
    bed.collection("c1", &[1, 2]);
    assert_eq!(bed.take(), "{a=1,2,3}");
    assert_eq!(bed.note("a"), "xDS node ID:node-1");
}

#[test]
fn a_collection_that_cannot_be_had_leaves_its_locality_empty() {
    // A95, L-15.
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["c1", "c2"]);
    bed.take();
    bed.collection("c2", &[3]);
    bed.fail(LEDS, "c1");
    assert_eq!(bed.take(), "{a=3}");
    assert!(bed.note("a").contains("LbEndpointCollection \"c1\""), "{}", bed.note("a"));
    assert!(bed.note("a").contains("contains empty localities: [/z0/]"), "{}", bed.note("a"));
    bed.collection("c1", &[1]);
    assert_eq!(bed.take(), "{a=1,3}");
}

#[test]
fn an_empty_collection_is_an_answer() {
    //
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["c1"]);
    bed.take();
    bed.collection("c1", &[]);
    assert_eq!(bed.take(), "{a=}");
    let ClusterChildren::Endpoints(Some(resolved)) = &bed.cluster_config("a").children else {
        panic!("endpoints are there")
    };
    let localities: Vec<_> = resolved.priorities().flatten().collect();
    assert_eq!(localities.len(), 1);
    assert!(localities[0].endpoints.is_empty());
}

#[test]
fn changed_collections_change_only_their_cluster() {
    let mut bed = Testbed::routed(&["a", "b"]);
    for name in ["a", "b"] {
        bed.eds(name);
        bed.endpoints_in(name, &[&format!("c-{name}")]);
        bed.collection(&format!("c-{name}"), &[1]);
    }
    let b = bed.cluster_config("b").clone();
    bed.take();
    bed.collection("c-a", &[2]);
    assert_eq!(bed.take(), "{a=2 b=1}");
    assert!(Arc::ptr_eq(&b, bed.cluster_config("b")));
    bed.ambient(LEDS, "c-a");
    assert!(bed.note("a").contains("LbEndpointCollection \"c-a\""));
    bed.clear(LEDS, "c-a");
    assert_eq!(bed.note("a"), "xDS node ID:node-1");
}

#[test]
fn collections_that_are_no_longer_named_are_let_go() {
    // L-9, P-96.
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &["c1", "c2"]);
    bed.collection("c1", &[1]);
    bed.collection("c2", &[2]);
    bed.take();
    bed.endpoints_in("a", &["c2", "c3"]);
    assert_eq!(bed.take(), "+LEDS c3");
    bed.collection("c3", &[3]);
    assert_eq!(bed.take(), "{a=2,3} -LEDS c1");
    bed.endpoints("a", &[9]);
    assert_eq!(bed.take(), "{a=9} -LEDS c2 -LEDS c3");
}

#[test]
fn one_collection_may_serve_several_clusters() {
    // L-8.
    let mut bed = Testbed::routed(&["a", "b"]);
    for name in ["a", "b"] {
        bed.eds(name);
        bed.endpoints_in(name, &["c"]);
    }
    bed.collection("c", &[1]);
    assert_eq!(bed.take(), "+EDS a +LEDS c +EDS b {a=1 b=1}");
    bed.inline(&["a"]);
    assert_eq!(bed.take(), "{a=1} -CDS b -EDS b");
}

#[test]
fn collections_may_be_of_another_authority() {
    // A95: a switch in one authority says nothing about the other.
    let collection_name = "xdstp://edge/envoy.config.endpoint.v3.LbEndpointCollection/c";
    let mut bed = Testbed::routed(&["a"]);
    bed.eds("a");
    bed.endpoints_in("a", &[collection_name]);
    bed.server = server("E");
    let edge = bed.server.clone();
    bed.manager.handle_active_server(bed.now, &AuthorityKey::Named("edge".into()), &edge);
    bed.collection(collection_name, &[1]);
    assert!(bed.take().ends_with(" {a=1}"));
}

#[test]
fn an_address_that_two_pieces_have_stays_with_the_first() {
    //
    let two = Endpoint {
        addresses: Addresses::Many([address(4), address(2)].into()),
        ..collection(&[9]).endpoints.remove(0)
    };
    let inline = EndpointSource::Inline(Arc::new(collection(&[3, 1])));
    let mut second = collection(&[1, 5]);
    second.endpoints.push(two);
    let named = |name: &str| EndpointSource::Collection(name.to_owned());
    let mut endpoints = localities(vec![named("c1"), named("c2"), named("gone")]);
    endpoints.priorities.push(localities(vec![inline]).priorities.remove(0));
    let resolved = ResolvedEndpoints {
        endpoints: Arc::new(endpoints),
        collections: [("c1".into(), Arc::new(collection(&[1, 2]))), ("c2".into(), Arc::new(second))].into(),
        globs: BTreeMap::new(),
    };
    let ports = |endpoint: &&Endpoint| endpoint.addresses.first().port();
    let joined: Vec<Vec<Vec<u16>>> = resolved
        .priorities()
        .map(|localities| localities.iter().map(|l| l.endpoints.iter().map(ports).collect()).collect())
        .collect();
    assert_eq!(joined, [vec![vec![1, 2], vec![5], vec![]], vec![vec![3]]]);
    let weights: Vec<_> = resolved.priorities().flatten().map(|locality| locality.weight).collect();
    assert_eq!(weights, [1, 1, 1, 1]);
}
