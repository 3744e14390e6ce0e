use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::service::discovery::v3::{Resource as Wrapper, ResourceError};
use envoy_types::pb::google::rpc::Status as RpcStatus;
use prost::Message;
use tonic::Code;

use super::*;
use crate::protocol::{MAX_NAME_LENGTH, MAX_NAMES, READS_ERRORS};
use crate::resources;
use crate::snapshot::{Snapshot, SnapshotBuilder};

#[test]
fn a_subscription_is_answered_and_an_ack_is_not() {
    // P-27, P-35.
    let mut peer = Peer::serving(clusters(["a", "b"]));
    assert_eq!(peer.request(TypeUrl::CLUSTER, ["a"]), RequestKind::Subscribe);
    let response = peer.response();
    assert_eq!(response.names, ["a"]);
    assert_eq!(response.message.version_info, peer.version(TypeUrl::CLUSTER));
    assert_eq!(response.message.type_url, TypeUrl::CLUSTER.as_str());
    assert_eq!(peer.answer(TypeUrl::CLUSTER, ["a"], &response), RequestKind::Ack);
    peer.is_quiet();
}

#[test]
fn the_node_comes_with_the_first_message_only() {
    // P-16.
    let mut peer = Peer::new();
    assert_eq!(peer.stream.node_id(), None);
    let node = Some(Node { id: "n1".to_owned(), ..Node::default() });
    let first = DiscoveryRequest { node, ..request(TypeUrl::CLUSTER, ["a"], "") };
    peer.stream.handle_request(&first).unwrap();
    peer.request(TypeUrl::CLUSTER, ["a", "b"]);
    assert_eq!(peer.stream.node_id(), Some("n1"));
}

#[test]
fn what_a_partial_view_does_not_have_is_unknown_and_never_absent_fb3() {
    // Who reads errors is told so, and gets the rest.
    let mut peer = Peer::new();
    peer.set_partial(clusters(["a"]));
    peer.reads_errors(TypeUrl::CLUSTER, ["a", "elsewhere"]);
    let response = peer.response();
    assert_eq!(response.message.resources.len(), 1);
    let [error] = &response.message.resource_errors[..] else { panic!("{response:?}") };
    assert_eq!(error.error_detail.as_ref().unwrap().code, Code::Unavailable as i32);
    assert_eq!(peer.stream.unanswerable_listener(), None);

    // Who does not would take a response without the name for the news that there is none.
    let mut peer = Peer::new();
    peer.set_partial(clusters(["a"]));
    peer.request(TypeUrl::CLUSTER, ["a", "elsewhere"]);
    peer.is_quiet();
    peer.set_partial(clusters(["a", "elsewhere"]));
    assert_eq!(peer.response().names, ["a", "elsewhere"]);
    peer.request(TypeUrl::LISTENER, ["greeter"]);
    assert_eq!(peer.stream.unanswerable_listener(), None, "it was answered before");

    // Before the first answer a stream can be refused as a whole.
    let mut peer = Peer::new();
    peer.set_partial(clusters(["a"]));
    peer.request(TypeUrl::LISTENER, ["greeter"]);
    assert_eq!(peer.stream.unanswerable_listener(), Some("greeter"));
    peer.is_quiet();
}

#[test]
fn nothing_is_said_before_a_snapshot_is_set() {
    let mut peer = Peer::new();
    peer.request(TypeUrl::LISTENER, ["a"]);
    peer.is_quiet();
    peer.set(Snapshot::builder().listener(resources::listener("a", resources::rds("r"))));
    assert_eq!(peer.response().names, ["a"]);
}

#[test]
fn lds_and_cds_say_at_once_that_there_is_nothing_and_other_types_wait() {
    // P-40, P-44: an empty LDS or CDS response is the state of the world; an empty one of another type says nothing.
    let mut peer = Peer::serving(clusters([]));
    peer.request(TypeUrl::LISTENER, ["a"]);
    let response = peer.response();
    assert_eq!(response.type_url, TypeUrl::LISTENER);
    assert!(response.message.resources.is_empty());
    assert!(!response.message.version_info.is_empty());
    peer.answer(TypeUrl::LISTENER, ["a"], &response);
    peer.request(TypeUrl::ENDPOINTS, ["a"]);
    peer.is_quiet();
}

#[test]
fn a_new_snapshot_is_sent_only_for_types_that_changed() {
    let mut peer = Peer::serving(clusters(["a"]).endpoints(resources::endpoints("a", ["h:1"])));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    peer.request(TypeUrl::ENDPOINTS, ["a"]);
    peer.drain();
    peer.set(clusters(["a"]).endpoints(resources::endpoints("a", ["h:2"])));
    let response = peer.response();
    let version = peer.version(TypeUrl::ENDPOINTS);
    assert_eq!((response.type_url, response.message.version_info), (TypeUrl::ENDPOINTS, version));
    peer.is_quiet();
}

#[test]
fn a_change_of_what_nobody_wants_is_not_sent() {
    let mut peer = Peer::serving(clusters(["a"]));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    peer.drain();
    peer.set(clusters(["a", "b"]));
    peer.is_quiet();
}

#[test]
fn types_go_in_the_order_in_which_a_client_can_use_them() {
    // P-91.
    let mut peer = Peer::new();
    for type_url in [TypeUrl::ROUTE, TypeUrl::LISTENER, TypeUrl::ENDPOINTS, TypeUrl::CLUSTER] {
        peer.request(type_url, ["a"]);
    }
    peer.set(
        clusters(["a"])
            .endpoints(resources::endpoints("a", ["h:1"]))
            .listener(resources::listener("a", resources::rds("a")))
            .route(resources::route("a", "a")),
    );
    let order: Vec<_> = peer.drain().into_iter().map(|response| response.type_url).collect();
    assert_eq!(order, [TypeUrl::CLUSTER, TypeUrl::ENDPOINTS, TypeUrl::LISTENER, TypeUrl::ROUTE]);
}

#[test]
fn cds_responses_carry_everything_and_eds_responses_what_changed() {
    // P-44, P-49.
    let mut peer = Peer::serving(
        clusters(["a", "b"])
            .endpoints(resources::endpoints("a", ["h:1"]))
            .endpoints(resources::endpoints("b", ["h:1"])),
    );
    peer.request(TypeUrl::CLUSTER, ["a"]);
    peer.request(TypeUrl::ENDPOINTS, ["a"]);
    peer.drain();
    peer.request(TypeUrl::CLUSTER, ["a", "b"]);
    assert_eq!(peer.response().names, ["a", "b"]);
    peer.request(TypeUrl::ENDPOINTS, ["a", "b"]);
    assert_eq!(peer.response().names, ["b"]);
}

#[test]
fn a_deleted_cluster_is_absent_from_the_next_response_and_deleted_endpoints_are_not_mentioned() {
    // P-49, P-52.
    let mut peer = Peer::serving(clusters(["a", "b"]).endpoints(resources::endpoints("b", ["h:1"])));
    peer.request(TypeUrl::CLUSTER, ["a", "b"]);
    peer.request(TypeUrl::ENDPOINTS, ["b"]);
    peer.drain();
    peer.set(clusters(["a"]));
    let response = peer.response();
    assert_eq!((response.type_url, response.names), (TypeUrl::CLUSTER, vec!["a".to_owned()]));
    peer.is_quiet();
    peer.set(Snapshot::builder());
    assert!(peer.response().names.is_empty());
    peer.is_quiet();
}

#[test]
fn a_cluster_that_new_routes_replace_goes_when_its_client_names_it_no_more() {
    // P-91. Told of the cluster before the routes, a client fails the RPCs that still take the old ones.
    let mut peer = Peer::routed_to_a();
    peer.set(routes_to("b"));
    let listener = peer.response();
    assert_eq!(listener.type_url, TypeUrl::LISTENER);
    peer.answer(TypeUrl::LISTENER, ["l"], &listener);
    peer.is_quiet();
    peer.request(TypeUrl::CLUSTER, ["a", "b"]);
    let both = peer.response();
    assert_eq!(both.names, ["b", "a"]);
    let more = Peer::serving(clusters(["a", "b"])).version(TypeUrl::CLUSTER);
    assert_eq!(both.message.version_info, more, "what is in it, not what is in the view");
    assert!(peer.stream.is_waiting());
    peer.answer(TypeUrl::CLUSTER, ["b"], &both);
    assert!(!peer.stream.is_waiting());
    peer.is_quiet();
}

#[test]
fn who_takes_every_cluster_loses_one_when_it_accepted_the_routes_without_it() {
    // P-91: Envoy.
    let mut peer = Peer::with_every_cluster();
    peer.set(routes_to("b"));
    let both = peer.response();
    assert_eq!((&both.type_url, both.names.as_slice()), (&TypeUrl::CLUSTER, &["b".to_owned(), "a".to_owned()][..]));
    peer.is_quiet();
    assert!(peer.stream.is_waiting(), "routes wait for the clusters");
    peer.answer(TypeUrl::CLUSTER, [], &both);
    let listener = peer.response();
    assert_eq!(listener.type_url, TypeUrl::LISTENER);
    peer.is_quiet();
    assert!(peer.stream.is_waiting(), "the old cluster waits for the routes");
    peer.answer(TypeUrl::LISTENER, [], &listener);
    let response = peer.response();
    let version = peer.version(TypeUrl::CLUSTER);
    assert_eq!((response.names, response.message.version_info), (vec!["b".to_owned()], version));
    assert!(!peer.stream.is_waiting());
}

#[test]
fn new_routes_wait_until_the_endpoints_of_new_clusters_are_there() {
    // P-91, P-92: a cluster without endpoints is not warm.
    let mut peer = Peer::with_every_cluster();
    peer.set(routes_to("b").endpoints(resources::endpoints("b", ["h:1"])));
    let clusters = peer.response();
    peer.request(TypeUrl::ENDPOINTS, ["b"]);
    peer.answer(TypeUrl::CLUSTER, [], &clusters);
    let endpoints = peer.response();
    assert_eq!(endpoints.type_url, TypeUrl::ENDPOINTS);
    peer.is_quiet();
    peer.answer(TypeUrl::ENDPOINTS, ["b"], &endpoints);
    assert_eq!(peer.response().type_url, TypeUrl::LISTENER);
}

#[test]
fn who_rejects_the_new_routes_keeps_the_old_cluster_for_a_while() {
    let mut peer = Peer::with_every_cluster();
    peer.set(routes_to("b"));
    let both = peer.response();
    peer.answer(TypeUrl::CLUSTER, [], &both);
    let listener = peer.response();
    peer.reject(TypeUrl::LISTENER, [], &listener);
    peer.is_quiet();
    peer.stream.give_up_waiting();
    assert_eq!(peer.response().names, ["b"]);
    assert!(!peer.stream.is_waiting());
}

#[test]
fn who_answers_nothing_is_sent_everything_in_the_end() {
    let mut peer = Peer::with_every_cluster();
    peer.set(routes_to("b"));
    peer.response();
    peer.is_quiet();
    peer.stream.give_up_waiting();
    assert_eq!(peer.response().type_url, TypeUrl::LISTENER);
    peer.is_quiet();
    peer.stream.give_up_waiting();
    let response = peer.response();
    assert_eq!((response.type_url, response.names), (TypeUrl::CLUSTER, vec!["b".to_owned()]));
    assert!(!peer.stream.is_waiting());
}

#[test]
fn a_cluster_that_goes_while_the_routes_stay_is_gone_at_once() {
    let mut peer = Peer::routed_to_a();
    peer.set(Snapshot::builder().listener(routed_listener("a")));
    assert!(!peer.stream.is_waiting());
    assert!(peer.response().names.is_empty());
}

#[test]
fn a_cluster_that_comes_back_meanwhile_is_the_new_one() {
    let mut peer = Peer::routed_to_a();
    peer.set(routes_to("b"));
    assert!(peer.stream.is_waiting());
    peer.set(routes_to("a").cluster(resources::logical_dns_cluster("a", "h:1")));
    assert!(!peer.stream.is_waiting());
    let response = peer.response();
    let version = peer.version(TypeUrl::CLUSTER);
    assert_eq!((response.type_url, response.message.version_info), (TypeUrl::CLUSTER, version));
}

#[test]
fn a_nack_is_not_answered_with_the_same_again() {
    // P-39. go-control-plane sends the rejected resource again at once, for ever.
    let mut peer = Peer::serving(clusters(["a"]));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    let response = peer.response();
    assert_eq!(peer.reject(TypeUrl::CLUSTER, ["a"], &response), RequestKind::Nack);
    peer.is_quiet();
    peer.set(Snapshot::builder().cluster(resources::logical_dns_cluster("a", "h:1")));
    assert_eq!(peer.response().message.version_info, peer.version(TypeUrl::CLUSTER));
}

#[test]
fn what_a_client_may_have_dropped_with_a_nack_is_sent_again_with_the_next_change() {
    let good = resources::endpoints("good", ["h:1"]);
    let mut peer =
        Peer::serving(Snapshot::builder().endpoints(good.clone()).endpoints(resources::endpoints("bad", ["h:0"])));
    peer.request(TypeUrl::ENDPOINTS, ["bad", "good"]);
    let response = peer.response();
    peer.reject(TypeUrl::ENDPOINTS, ["bad", "good", "new"], &response);
    peer.is_quiet();
    peer.set(Snapshot::builder().endpoints(good).endpoints(resources::endpoints("bad", ["h:1"])));
    assert_eq!(peer.response().names, ["bad", "good"]);
}

#[test]
fn a_nack_that_adds_a_name_gets_that_name_only() {
    let mut peer = Peer::serving(
        Snapshot::builder()
            .endpoints(resources::endpoints("bad", ["h:0"]))
            .endpoints(resources::endpoints("new", ["h:1"])),
    );
    peer.request(TypeUrl::ENDPOINTS, ["bad"]);
    let response = peer.response();
    peer.reject(TypeUrl::ENDPOINTS, ["bad", "new"], &response);
    assert_eq!(peer.response().names, ["new"]);
}

#[test]
fn a_request_with_a_stale_nonce_is_ignored() {
    // P-46.
    let mut peer = Peer::serving(clusters(["a", "b"]));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    let first = peer.response();
    peer.set(clusters(["b"]));
    let second = peer.response();
    assert_eq!(peer.answer(TypeUrl::CLUSTER, ["a", "b"], &first), RequestKind::Stale);
    peer.is_quiet();
    assert_eq!(peer.answer(TypeUrl::CLUSTER, ["a", "b"], &second), RequestKind::Ack);
    assert_eq!(peer.response().names, ["b"]);
}

#[test]
fn a_nonce_from_an_earlier_stream_does_not_hide_the_first_request() {
    let mut peer = Peer::serving(clusters(["a"]));
    let kind = peer.stream.handle_request(&request(TypeUrl::CLUSTER, ["a"], "from another stream"));
    assert_eq!(kind, Ok(RequestKind::Subscribe));
    assert_eq!(peer.response().names, ["a"]);
}

#[test]
fn nonces_are_never_repeated() {
    let mut peer = Peer::serving(clusters(["a"]).endpoints(resources::endpoints("a", ["h:1"])));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    peer.request(TypeUrl::ENDPOINTS, ["a"]);
    let nonces: BTreeSet<_> = peer.drain().into_iter().map(|response| response.message.nonce).collect();
    assert_eq!(nonces.len(), 2);
}

#[test]
fn an_empty_list_at_first_is_a_wildcard_for_lds_and_cds_only() {
    // P-47, legacy form.
    let mut peer = Peer::serving(clusters(["a", "b"]).endpoints(resources::endpoints("a", ["h:1"])));
    peer.request(TypeUrl::CLUSTER, []);
    assert_eq!(peer.response().names, ["a", "b"]);
    peer.request(TypeUrl::ENDPOINTS, []);
    peer.is_quiet();
    peer.set(clusters(["a", "b", "c"]));
    assert_eq!(peer.response().names, ["a", "b", "c"]);
}

#[test]
fn a_star_is_a_wildcard_beside_names() {
    // P-47.
    let mut peer = Peer::serving(clusters(["a", "b"]));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    peer.drain();
    peer.request(TypeUrl::CLUSTER, ["*", "a"]);
    assert_eq!(peer.response().names, ["a", "b"]);
}

#[test]
fn an_empty_list_after_names_means_nothing() {
    // P-34, P-47.
    let mut peer = Peer::serving(clusters(["a"]));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    let response = peer.response();
    peer.answer(TypeUrl::CLUSTER, [], &response);
    peer.set(clusters(["a", "b"]));
    peer.is_quiet();
}

#[test]
fn who_unsubscribes_and_comes_back_is_sent_the_resource_again() {
    // P-43; go-control-plane issue 431.
    for type_url in [TypeUrl::CLUSTER, TypeUrl::ENDPOINTS] {
        let mut peer = Peer::serving(clusters(["a", "b"]).endpoints(resources::endpoints("a", ["h:1"])));
        peer.request(type_url.clone(), ["a"]);
        let response = peer.response();
        peer.answer(type_url.clone(), [], &response);
        peer.is_quiet();
        peer.answer(type_url.clone(), ["a"], &response);
        assert_eq!(peer.response().names, ["a"]);
    }
}

#[test]
fn errors_are_sent_once_and_beside_resources() {
    // P-59, P-61.
    let error = |b: SnapshotBuilder| b.error(TypeUrl::CLUSTER, "gone", Code::NotFound, "no such cluster");
    let mut peer = Peer::serving(error(clusters(["a"])));
    peer.request(TypeUrl::CLUSTER, ["a", "gone"]);
    let response = peer.response();
    assert_eq!(response.message.resources.len(), 1);
    let [error_sent] = response.message.resource_errors.as_slice() else { panic!("{response:?}") };
    assert_eq!(error_sent.resource_name.as_ref().unwrap().name, "gone");
    assert_eq!(error_sent.error_detail.as_ref().unwrap().code, Code::NotFound as i32);
    peer.set(error(Snapshot::builder().cluster(resources::logical_dns_cluster("a", "h:1"))));
    assert!(peer.response().message.resource_errors.is_empty());
}

#[test]
fn who_reads_errors_is_told_at_once_which_listener_is_not_here_d36() {
    let listeners = |names: &[&str]| {
        let made = names.iter().map(|name| resources::listener(*name, resources::rds("r")));
        made.fold(clusters(["a"]), SnapshotBuilder::listener)
    };
    let mut peer = Peer::serving(listeners(&["a"]));
    peer.reads_errors(TypeUrl::LISTENER, ["a", "b"]);
    let response = peer.response();
    assert_eq!((response.message.resources.len(), errors(&response)), (1, vec!["b".to_owned()]));
    peer.answer(TypeUrl::LISTENER, ["a", "b"], &response);
    peer.is_quiet();
    // Said once; and when it appears it is sent.
    peer.set(listeners(&["a", "c"]));
    peer.is_quiet();
    peer.set(listeners(&["a", "b"]));
    let response = peer.response();
    assert_eq!((response.names.as_slice(), errors(&response)), (&["a".to_owned(), "b".to_owned()][..], vec![]));
    // A deletion is told as it always was (P-49), and once.
    peer.set(listeners(&["a"]));
    let response = peer.response();
    assert_eq!((response.names.as_slice(), errors(&response)), (&["a".to_owned()][..], vec![]));
    peer.set(listeners(&["a", "c"]));
    peer.is_quiet();
    // Asked for anew, it is told anew.
    peer.answer(TypeUrl::LISTENER, ["a"], &response);
    peer.answer(TypeUrl::LISTENER, ["a", "b"], &response);
    assert_eq!(errors(&peer.response()), ["b"]);
}

#[test]
fn nothing_is_said_to_be_absent_in_the_middle_of_an_update_or_by_who_has_nothing_d36() {
    // Routes are here and their cluster is not yet.
    let mut peer = Peer::serving(routes_to("a"));
    peer.reads_errors(TypeUrl::CLUSTER, ["a", "b"]);
    let response = peer.response();
    assert_eq!((response.names.as_slice(), errors(&response)), (&["a".to_owned()][..], vec![]));
    peer.request(TypeUrl::ENDPOINTS, ["b"]);
    peer.is_quiet();

    // A process that has just begun. Its first response of a type says that it lives (P-49), and nothing of names.
    let mut peer = Peer::serving(Snapshot::builder());
    peer.reads_errors(TypeUrl::LISTENER, ["a"]);
    assert_eq!(errors(&peer.response()), Vec::<String>::new());
    peer.is_quiet();
}

#[test]
fn what_is_not_here_is_found_once_and_told_only_if_that_is_wanted() {
    let mut peer = Peer::serving(clusters(["a"]));
    peer.request(TypeUrl::ENDPOINTS, ["a", "b"]);
    peer.is_quiet();
    let absent = |name: &str| (TypeUrl::ENDPOINTS, name.to_owned());
    assert_eq!(peer.stream.take_absent(), [absent("a"), absent("b")]);
    peer.set(clusters(["a", "b"]).endpoints(resources::endpoints("b", ["h:1"])));
    assert_eq!(peer.response().names, ["b"]);
    assert_eq!(peer.stream.take_absent(), []);

    let mut peer = Peer::serving(clusters(["a"]));
    peer.stream.tell_absence(false);
    peer.reads_errors(TypeUrl::LISTENER, ["b"]);
    assert_eq!(errors(&peer.response()), Vec::<String>::new());
}

#[test]
fn streams_that_are_sent_the_same_share_its_bytes_fb37() {
    let mut one = Peer::serving(clusters(["a", "b", "c"]));
    let mut two = Peer::new();
    let mut share = |names: [&str; 2], encoded: [bool; 2]| {
        two.stream.handle_view(one.view.clone());
        let responses = [&mut one, &mut two].map(|peer| {
            peer.request(TypeUrl::CLUSTER, names);
            peer.stream.poll_response(|_| true).unwrap()
        });
        assert_eq!([responses[0].is_encoding, responses[1].is_encoding], encoded);
        assert_eq!(responses[0].message.body.as_ptr(), responses[1].message.body.as_ptr());
    };
    share(["a", "b"], [true, false]);
    share(["b", "c"], [true, false]);
    share(["a", "b"], [false, false]);
}

#[test]
fn collections_are_always_wrapped_and_other_types_on_demand() {
    // P-64, P-65.
    let snapshot = || clusters(["a"]).endpoint_collection("list", resources::endpoint_collection(["h:1"]));
    let mut peer = Peer::serving(snapshot());
    peer.request(TypeUrl::ENDPOINT_COLLECTION, ["list"]);
    let response = peer.response();
    assert_eq!(response.message.type_url, TypeUrl::ENDPOINT_COLLECTION.as_str());
    assert_eq!(unwrap(&response), ("list".to_owned(), TypeUrl::ENDPOINT_COLLECTION));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    assert_eq!(peer.response().message.resources[0].type_url, TypeUrl::CLUSTER.as_str());
    peer.set(snapshot().wrap_all());
    assert_eq!(unwrap(&peer.response()), ("a".to_owned(), TypeUrl::CLUSTER));
    peer.is_quiet();
}

#[test]
fn a_type_that_is_held_back_keeps_its_turn_and_skips_what_is_outdated() {
    let mut peer = Peer::serving(clusters(["a"]).endpoints(resources::endpoints("a", ["h:1"])));
    peer.request(TypeUrl::CLUSTER, ["a"]);
    peer.request(TypeUrl::ENDPOINTS, ["a"]);
    let response = peer.stream.poll_response(|type_url| *type_url != TypeUrl::CLUSTER).unwrap();
    assert_eq!(response.type_url, TypeUrl::ENDPOINTS);
    assert!(peer.stream.poll_response(|type_url| *type_url != TypeUrl::CLUSTER).is_none());
    peer.set(Snapshot::builder().cluster(resources::logical_dns_cluster("a", "h:1")));
    assert_eq!(peer.response().message.version_info, peer.version(TypeUrl::CLUSTER));
    peer.is_quiet();
}

#[test]
fn a_request_without_a_type_ends_the_stream() {
    let mut peer = Peer::new();
    assert_eq!(peer.stream.handle_request(&DiscoveryRequest::default()), Err(ProtocolError::NoTypeUrl));
}

#[test]
fn the_number_of_types_on_a_stream_is_bounded() {
    let mut peer = Peer::new();
    for n in 0..MAX_TYPES {
        peer.request(TypeUrl::from(format!("type.{n}")), ["a"]);
    }
    let one_more = request(TypeUrl::from("one.More"), ["a"], "");
    assert_eq!(peer.stream.handle_request(&one_more), Err(ProtocolError::TooManyTypes));
    peer.request(TypeUrl::from("type.0"), ["b"]);
}

#[test]
fn the_names_of_a_type_are_bounded_in_number_and_length_fb39() {
    let mut peer = Peer::new();
    let names = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let ask = |names| DiscoveryRequest { resource_names: names, ..request(TypeUrl::CLUSTER, [], "") };
    assert_eq!(peer.stream.handle_request(&ask(names(MAX_NAMES))), Ok(RequestKind::Subscribe));
    let too_many = Err(ProtocolError::TooManyNames(TypeUrl::CLUSTER));
    assert_eq!(peer.stream.handle_request(&ask(names(MAX_NAMES + 1))), too_many);
    assert!(peer.stream.handle_request(&ask(vec!["a".repeat(MAX_NAME_LENGTH)])).is_ok());
    let long = peer.stream.handle_request(&ask(vec!["a".repeat(MAX_NAME_LENGTH + 1)]));
    assert_eq!(long, Err(ProtocolError::LongName(MAX_NAME_LENGTH + 1)));
}

/// A response as a client reads it.
#[derive(Debug)]
struct Read {
    type_url: TypeUrl,
    names: Vec<String>,
    message: DiscoveryResponse,
}

impl From<Response> for Read {
    fn from(response: Response) -> Self {
        let mut bytes = Vec::new();
        response.message.write(&mut bytes);
        let message = DiscoveryResponse::decode(&*bytes).unwrap();
        assert_eq!(message.version_info, response.version);
        Self { type_url: response.type_url, names: response.names.to_vec(), message }
    }
}

/// A stream and the view that it is served.
struct Peer {
    stream: Sotw,
    view: Option<Arc<View>>,
    stamp: u64,
}

impl Peer {
    fn new() -> Self {
        Self { stream: Sotw::new("s.".to_owned()), view: None, stamp: 0 }
    }

    fn serving(snapshot: SnapshotBuilder) -> Self {
        let mut peer = Self::new();
        peer.set(snapshot);
        peer
    }

    /// A client that has listener `l` and its cluster `a`, named.
    fn routed_to_a() -> Self {
        Self::settled([("l", TypeUrl::LISTENER), ("a", TypeUrl::CLUSTER)].map(|(name, kind)| (kind, vec![name])))
    }

    /// A client that has listener `l` and its cluster `a`, and takes whatever there is of both types.
    fn with_every_cluster() -> Self {
        Self::settled([TypeUrl::CLUSTER, TypeUrl::LISTENER].map(|kind| (kind, Vec::new())))
    }

    fn settled(subscriptions: [(TypeUrl, Vec<&str>); 2]) -> Self {
        let mut peer = Self::serving(routes_to("a"));
        for (type_url, names) in subscriptions {
            let names = names.into_iter().map(str::to_owned).collect();
            let subscribe = DiscoveryRequest { resource_names: names, ..request(type_url, [], "") };
            peer.stream.handle_request(&subscribe).unwrap();
            let response_nonce = peer.response().message.nonce;
            let ack = DiscoveryRequest { response_nonce, ..subscribe };
            assert_eq!(peer.stream.handle_request(&ack), Ok(RequestKind::Ack));
        }
        peer.is_quiet();
        peer
    }

    fn set(&mut self, snapshot: SnapshotBuilder) {
        self.put(snapshot.build());
    }

    /// There is more elsewhere.
    fn set_partial(&mut self, snapshot: SnapshotBuilder) {
        self.put(snapshot.build().partial());
    }

    fn put(&mut self, snapshot: Snapshot) {
        self.stamp += 1;
        let previous = self.view.take().unwrap_or_default();
        self.view = Some(Arc::new(View::advance(&previous, snapshot, self.stamp)));
        self.stream.handle_view(self.view.clone());
    }

    fn request<const N: usize>(&mut self, type_url: TypeUrl, names: [&str; N]) -> RequestKind {
        self.stream.handle_request(&request(type_url, names, "")).unwrap()
    }

    /// A subscription of a client that reads `resource_errors`.
    fn reads_errors<const N: usize>(&mut self, type_url: TypeUrl, names: [&str; N]) {
        let client_features = vec![READS_ERRORS.to_owned()];
        let node = Some(Node { client_features, ..Node::default() });
        self.stream.handle_request(&DiscoveryRequest { node, ..request(type_url, names, "") }).unwrap();
    }

    fn answer<const N: usize>(&mut self, type_url: TypeUrl, names: [&str; N], response: &Read) -> RequestKind {
        self.stream.handle_request(&request(type_url, names, &response.message.nonce)).unwrap()
    }

    fn reject<const N: usize>(&mut self, type_url: TypeUrl, names: [&str; N], response: &Read) -> RequestKind {
        let error_detail = Some(RpcStatus { code: 3, message: "bad".to_owned(), details: Vec::new() });
        let request = DiscoveryRequest { error_detail, ..request(type_url, names, &response.message.nonce) };
        self.stream.handle_request(&request).unwrap()
    }

    fn response(&mut self) -> Read {
        self.stream.poll_response(|_| true).expect("a response").into()
    }

    fn drain(&mut self) -> Vec<Read> {
        std::iter::from_fn(|| self.stream.poll_response(|_| true)).map(Read::from).collect()
    }

    /// The version of a type in the view.
    fn version(&self, type_url: TypeUrl) -> String {
        self.view.as_ref().unwrap().get(&type_url).unwrap().version.clone()
    }

    fn is_quiet(&mut self) {
        let response = self.stream.poll_response(|_| true);
        assert!(response.is_none(), "{response:?}");
    }
}

fn request<const N: usize>(type_url: TypeUrl, names: [&str; N], nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names: names.map(str::to_owned).to_vec(),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    }
}

fn clusters<const N: usize>(names: [&str; N]) -> SnapshotBuilder {
    names.into_iter().map(resources::eds_cluster).fold(Snapshot::builder(), SnapshotBuilder::cluster)
}

/// Listener `l` and the one cluster to which it routes.
fn routes_to(cluster: &str) -> SnapshotBuilder {
    clusters([cluster]).listener(routed_listener(cluster))
}

fn routed_listener(cluster: &str) -> Listener {
    resources::listener("l", resources::route("r", cluster))
}

/// The names that a response says do not exist.
fn errors(response: &Read) -> Vec<String> {
    let name = |error: &ResourceError| {
        assert_eq!(error.error_detail.as_ref().unwrap().code, Code::NotFound as i32);
        error.resource_name.as_ref().unwrap().name.clone()
    };
    response.message.resource_errors.iter().map(name).collect()
}

fn unwrap(response: &Read) -> (String, TypeUrl) {
    let any = &response.message.resources[0];
    assert_eq!(any.type_url, TypeUrl::RESOURCE.as_str());
    let wrapper = Wrapper::decode(any.value.as_slice()).unwrap();
    (wrapper.name, TypeUrl::from(wrapper.resource.unwrap().type_url))
}
