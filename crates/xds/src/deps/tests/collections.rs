//! LbEndpointCollections (A95).

use super::*;
use crate::deps::ResolvedEndpoints;

#[test]
fn endpoints_are_complete_when_every_collection_has_answered() {
    // L-10, A95.
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &["c1", "c2"]);
    assert_eq!(world.take(), "+EDS a +LEDS c1 +LEDS c2");
    world.collection("c2", &[3]);
    assert_eq!(world.take(), "");
    world.collection("c1", &[1, 2]);
    assert_eq!(world.take(), "{a=1,2,3}");
    assert_eq!(world.note("a"), "xDS node ID:node-1");
}

#[test]
fn a_collection_that_cannot_be_had_leaves_its_locality_empty() {
    // A95, L-15.
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &["c1", "c2"]);
    world.take();
    world.collection("c2", &[3]);
    world.fail(LEDS, "c1");
    assert_eq!(world.take(), "{a=3}");
    assert!(world.note("a").contains("LbEndpointCollection \"c1\""), "{}", world.note("a"));
    assert!(world.note("a").contains("contains empty localities: [/z0/]"), "{}", world.note("a"));
    world.collection("c1", &[1]);
    assert_eq!(world.take(), "{a=1,3}");
}

#[test]
fn an_empty_collection_is_an_answer() {
    //
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &["c1"]);
    world.take();
    world.collection("c1", &[]);
    assert_eq!(world.take(), "{a=}");
    let ClusterChildren::Endpoints(Some(resolved)) = &world.cluster_config("a").children else {
        panic!("endpoints are there")
    };
    let localities: Vec<_> = resolved.priorities().flatten().collect();
    assert_eq!(localities.len(), 1);
    assert!(localities[0].endpoints.is_empty());
}

#[test]
fn changed_collections_change_only_their_cluster() {
    let mut world = World::routed(&["a", "b"]);
    for name in ["a", "b"] {
        world.eds(name);
        world.endpoints_in(name, &[&format!("c-{name}")]);
        world.collection(&format!("c-{name}"), &[1]);
    }
    let b = world.cluster_config("b").clone();
    world.take();
    world.collection("c-a", &[2]);
    assert_eq!(world.take(), "{a=2 b=1}");
    assert!(Arc::ptr_eq(&b, world.cluster_config("b")));
    world.ambient(LEDS, "c-a");
    assert!(world.note("a").contains("LbEndpointCollection \"c-a\""));
    world.clear(LEDS, "c-a");
    assert_eq!(world.note("a"), "xDS node ID:node-1");
}

#[test]
fn collections_that_are_no_longer_named_are_let_go() {
    // L-9, P-96.
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &["c1", "c2"]);
    world.collection("c1", &[1]);
    world.collection("c2", &[2]);
    world.take();
    world.endpoints_in("a", &["c2", "c3"]);
    assert_eq!(world.take(), "+LEDS c3");
    world.collection("c3", &[3]);
    assert_eq!(world.take(), "{a=2,3} -LEDS c1");
    world.endpoints("a", &[9]);
    assert_eq!(world.take(), "{a=9} -LEDS c2 -LEDS c3");
}

#[test]
fn one_collection_may_serve_several_clusters() {
    // L-8.
    let mut world = World::routed(&["a", "b"]);
    for name in ["a", "b"] {
        world.eds(name);
        world.endpoints_in(name, &["c"]);
    }
    world.collection("c", &[1]);
    assert_eq!(world.take(), "+EDS a +LEDS c +EDS b {a=1 b=1}");
    world.inline(&["a"]);
    assert_eq!(world.take(), "{a=1} -CDS b -EDS b");
}

#[test]
fn collections_may_be_of_another_authority() {
    // A95: a switch in one authority says nothing about the other.
    let collection_name = "xdstp://edge/envoy.config.endpoint.v3.LbEndpointCollection/c";
    let mut world = World::routed(&["a"]);
    world.eds("a");
    world.endpoints_in("a", &[collection_name]);
    world.server = server("E");
    let edge = world.server.clone();
    world.manager.handle_active_server(world.now, &AuthorityKey::Named("edge".into()), &edge);
    world.collection(collection_name, &[1]);
    assert!(world.take().ends_with(" {a=1}"));
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
