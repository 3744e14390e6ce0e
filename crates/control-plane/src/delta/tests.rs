use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::google::rpc::Status as RpcStatus;
use tonic::Code;

use super::*;
use crate::resources;
use crate::snapshot::{Snapshot, SnapshotBuilder};

#[test]
fn what_is_subscribed_is_sent_once_with_a_version_of_its_own_dx25() {
    let mut peer = Peer::serving(clusters(["a", "b"]));
    assert_eq!(peer.subscribe(TypeUrl::CLUSTER, &["a"]), RequestKind::Subscribe);
    let response = peer.response();
    assert_eq!((response.names(), response.removed()), (vec!["a"], vec![]));
    assert_eq!(response.message.resources[0].version, peer.version("a"));
    assert_eq!(response.message.control_plane.as_ref().unwrap().identifier, "mainstay");
    assert_eq!(peer.ack(&response), RequestKind::Ack);
    peer.is_quiet();
    peer.subscribe(TypeUrl::CLUSTER, &["b"]);
    assert_eq!(peer.response().names(), ["b"]);
}

#[test]
fn a_change_sends_what_changed_and_nothing_else_p74() {
    let mut peer = Peer::serving(clusters(["a", "b", "c"]));
    peer.subscribe(TypeUrl::CLUSTER, &["a", "b"]);
    peer.response();
    peer.set(clusters(["a", "c"]).cluster(resources::logical_dns_cluster("b", "h:1")));
    assert_eq!(peer.response().names(), ["b"]);
    peer.set(clusters(["a"]).cluster(resources::logical_dns_cluster("b", "h:1")));
    peer.is_quiet();
    assert_eq!(
        peer.stream.subscriptions.get(&TypeUrl::CLUSTER).unwrap().look,
        Look::default(),
        "only what changed was looked at"
    );
}

#[test]
fn who_skips_a_view_is_sent_the_difference_to_the_newest() {
    let mut peer = Peer::serving(clusters(["a", "b"]));
    peer.subscribe(TypeUrl::CLUSTER, &["a", "b", "c"]);
    peer.response();
    let before = peer.view.clone();
    peer.set(clusters(["a", "c"]));
    peer.set(clusters(["c"]));
    let after = peer.view.clone();
    // As if the stream had never seen the one in between.
    let mut other = Peer::new();
    other.stream.handle_view(before);
    other.subscribe(TypeUrl::CLUSTER, &["a", "b", "c"]);
    other.response();
    other.stream.handle_view(after);
    assert_eq!(other.response().names(), ["c"]);
    assert_eq!(other.response().removed(), ["a", "b"]);
}

#[test]
fn what_a_partial_view_does_not_have_is_unknown_and_never_removed_fb3() {
    let mut peer = Peer::new();
    peer.put(clusters(["a"]).build().partial());
    // It had "gone" from somebody else, who calls its version so.
    peer.request(DeltaDiscoveryRequest {
        initial_resource_versions: [("gone".to_owned(), "seven".to_owned())].into(),
        ..request(TypeUrl::CLUSTER, &["a", "elsewhere", "gone"])
    });
    let response = peer.response();
    assert_eq!((response.removed(), response.message.resources.len()), (vec![], 1));
    let errors = response.message.resource_errors.iter();
    let errors: Vec<_> = errors.map(|error| error.error_detail.as_ref().unwrap().code).collect();
    assert_eq!(errors, [Code::Unavailable as i32; 2]);
    // What goes from here is gone from here.
    peer.put(clusters([]).build().partial());
    assert_eq!(peer.response().removed(), ["a"]);
}

#[test]
fn a_version_of_somebody_else_is_told_and_not_believed_fb17() {
    let mut snapshot = Snapshot::default();
    snapshot.insert_with_version(resources::eds_cluster("a"), "seven");
    let mut peer = Peer::new();
    peer.put(snapshot);
    // The same word may mean something else where it comes from.
    peer.request(DeltaDiscoveryRequest {
        initial_resource_versions: [("a".to_owned(), "seven".to_owned())].into(),
        ..request(TypeUrl::CLUSTER, &["a"])
    });
    assert_eq!(peer.response().message.resources[0].version, "seven");
    peer.is_quiet();
}

#[test]
fn what_is_not_there_is_said_at_once_and_sent_when_it_appears_p75() {
    let mut peer = Peer::serving(clusters(["a"]));
    peer.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    assert_eq!(peer.response().removed(), ["a"]);
    assert_eq!(peer.stream.take_absent(), [(TypeUrl::ENDPOINTS, "a".to_owned())]);
    peer.set(clusters(["a"]).endpoints(resources::endpoints("a", ["h:1"])));
    assert_eq!(peer.response().names(), ["a"]);
    peer.set(clusters(["a"]));
    assert_eq!(peer.response().removed(), ["a"]);
    peer.is_quiet();

    let mut peer = Peer::serving(clusters(["a"]));
    peer.stream.tell_absence(false);
    peer.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    peer.is_quiet();
}

#[test]
fn who_has_nothing_at_all_says_of_nothing_that_it_is_gone_d36() {
    let mut peer = Peer::serving(Snapshot::builder());
    let initial_resource_versions = [("a".to_owned(), "7".to_owned())].into();
    peer.request(DeltaDiscoveryRequest { initial_resource_versions, ..request(TypeUrl::CLUSTER, &["a", "b"]) });
    peer.is_quiet();
    // It has read its files.
    peer.set(clusters(["c"]));
    assert_eq!(peer.response().removed(), ["b"]);
    assert_eq!(peer.response().removed(), ["a"]);
    // What was there and is taken away is gone, though it was the last.
    peer.subscribe(TypeUrl::CLUSTER, &["c"]);
    assert_eq!(peer.response().names(), ["c"]);
    peer.set(Snapshot::builder());
    assert_eq!(peer.response().removed(), ["c"]);
}

#[test]
fn a_name_subscribed_again_is_sent_again_p72() {
    let mut peer = Peer::serving(clusters(["a"]));
    for _ in 0..3 {
        peer.subscribe(TypeUrl::CLUSTER, &["a", "gone"]);
        let response = peer.response();
        assert_eq!((response.names(), response.removed()), (vec!["a"], vec!["gone"]));
        peer.is_quiet();
    }
    // And after it was unsubscribed.
    peer.request(DeltaDiscoveryRequest {
        resource_names_unsubscribe: vec!["a".to_owned()],
        ..request(TypeUrl::CLUSTER, &[])
    });
    peer.set(Snapshot::builder().cluster(resources::logical_dns_cluster("a", "h:1")));
    peer.is_quiet();
    peer.subscribe(TypeUrl::CLUSTER, &["a"]);
    assert_eq!(peer.response().names(), ["a"]);
}

#[test]
fn changes_in_a_request_with_an_outdated_nonce_count_p77() {
    let mut peer = Peer::serving(clusters(["a", "b"]));
    let nonce = "from another stream".to_owned();
    let kind = peer.request(DeltaDiscoveryRequest { response_nonce: nonce, ..request(TypeUrl::CLUSTER, &["a", "b"]) });
    assert_eq!(kind, RequestKind::Stale);
    assert_eq!(peer.response().names(), ["a", "b"]);
}

#[test]
fn what_is_claimed_and_current_is_not_sent_again_p71() {
    let mut peer = Peer::serving(clusters(["a", "b", "c"]));
    let claims = [("a", peer.version("a")), ("b", "7".to_owned()), ("gone", peer.version("a"))];
    let initial_resource_versions = claims.into_iter().map(|(name, version)| (name.to_owned(), version)).collect();
    let names = &["a", "b", "c", "gone"];
    peer.request(DeltaDiscoveryRequest { initial_resource_versions, ..request(TypeUrl::CLUSTER, names) });
    assert_eq!(peer.response().names(), ["b", "c"]);
    assert_eq!(peer.response().removed(), ["gone"]);
    peer.is_quiet();
}

#[test]
fn what_is_rejected_is_not_sent_again_before_it_changes_dx26() {
    let mut peer = Peer::serving(clusters(["a"]));
    peer.subscribe(TypeUrl::CLUSTER, &["a"]);
    let response = peer.response();
    let error_detail = Some(RpcStatus { code: 3, message: "bad".to_owned(), details: Vec::new() });
    let response_nonce = response.message.nonce.clone();
    let nack = DeltaDiscoveryRequest { error_detail, response_nonce, ..request(TypeUrl::CLUSTER, &[]) };
    assert_eq!(peer.request(nack), RequestKind::Nack);
    peer.set(clusters(["a", "b"]));
    peer.is_quiet();
    peer.set(Snapshot::builder().cluster(resources::logical_dns_cluster("a", "h:1")));
    assert_eq!(peer.response().names(), ["a"]);
}

#[test]
fn both_forms_of_a_wildcard_are_served_p76() {
    for names in [&[][..], &["*"]] {
        let mut peer = Peer::serving(clusters(["a", "b"]));
        peer.subscribe(TypeUrl::CLUSTER, names);
        assert_eq!(peer.response().names(), ["a", "b"]);
        peer.set(clusters(["b", "c"]));
        assert_eq!(peer.response().names(), ["c"]);
        assert_eq!(peer.response().removed(), ["a"]);
        // A name beside it: who unsubscribes that one learns whether it is part of the wildcard.
        peer.subscribe(TypeUrl::CLUSTER, &["b", "x"]);
        let response = peer.response();
        assert_eq!((response.names(), response.removed()), (vec![], vec!["x"]));
        for (name, here, gone) in [("b", vec!["b"], vec![]), ("x", vec![], vec!["x"])] {
            let resource_names_unsubscribe = vec![name.to_owned()];
            peer.request(DeltaDiscoveryRequest { resource_names_unsubscribe, ..request(TypeUrl::CLUSTER, &[]) });
            let response = peer.response();
            assert_eq!((response.names(), response.removed()), (here, gone));
        }
        let resource_names_unsubscribe = vec!["*".to_owned()];
        peer.request(DeltaDiscoveryRequest { resource_names_unsubscribe, ..request(TypeUrl::CLUSTER, &[]) });
        peer.set(clusters(["b", "c", "d"]));
        peer.is_quiet();
    }
    let mut peer = Peer::serving(clusters([]).endpoints(resources::endpoints("a", ["h:1"])));
    peer.subscribe(TypeUrl::ENDPOINTS, &[]);
    peer.is_quiet();
}

#[test]
fn types_go_in_order_and_removals_last_dx28() {
    let mut peer = Peer::serving(routes_to("a").endpoints(resources::endpoints("a", ["h:1"])));
    for (type_url, name) in [(TypeUrl::LISTENER, "l"), (TypeUrl::ENDPOINTS, "a"), (TypeUrl::CLUSTER, "a")] {
        peer.subscribe(type_url, &[name]);
    }
    let order: Vec<_> = peer.drain().into_iter().map(|response| response.type_url).collect();
    assert_eq!(order, [TypeUrl::CLUSTER, TypeUrl::ENDPOINTS, TypeUrl::LISTENER]);
}

#[test]
fn a_cluster_that_new_routes_replace_goes_when_its_client_unsubscribes_or_time_is_up_p91() {
    let mut peer = Peer::serving(routes_to("a"));
    peer.subscribe(TypeUrl::LISTENER, &["l"]);
    peer.subscribe(TypeUrl::CLUSTER, &["a"]);
    for response in peer.drain() {
        peer.ack(&response);
    }
    peer.set(routes_to("b"));
    let listener = peer.response();
    assert_eq!(listener.type_url, TypeUrl::LISTENER);
    peer.ack(&listener);
    peer.subscribe(TypeUrl::CLUSTER, &["b"]);
    assert_eq!(peer.response().names(), ["b"]);
    peer.is_quiet();
    assert!(peer.stream.is_waiting());
    peer.stream.give_up_waiting();
    assert_eq!(peer.response().removed(), ["a"]);
    assert!(!peer.stream.is_waiting());
}

#[test]
fn who_takes_every_cluster_loses_one_when_it_accepted_the_routes_without_it_p91() {
    let mut peer = Peer::serving(routes_to("a"));
    peer.subscribe(TypeUrl::CLUSTER, &[]);
    peer.subscribe(TypeUrl::LISTENER, &[]);
    while let Some(response) = peer.next() {
        peer.ack(&response);
    }
    peer.set(routes_to("b"));
    let clusters = peer.response();
    assert_eq!((clusters.names(), clusters.removed()), (vec!["b"], vec![]));
    peer.is_quiet();
    peer.ack(&clusters);
    let listener = peer.response();
    assert_eq!(listener.type_url, TypeUrl::LISTENER);
    peer.is_quiet();
    peer.ack(&listener);
    assert_eq!(peer.response().removed(), ["a"]);
}

#[test]
fn long_responses_are_cut_off_dx27() {
    let many: Vec<_> =
        (0..3).map(|n| resources::endpoints(format!("e{n}"), (0..45_000).map(|h| format!("h{h}:1")))).collect();
    let mut peer = Peer::serving(Snapshot::builder().resources(many));
    peer.subscribe(TypeUrl::ENDPOINTS, &["e0", "e1", "e2"]);
    let sizes: Vec<_> = peer.drain().iter().map(|response| response.names().len()).collect();
    assert!(sizes.len() > 1 && sizes.iter().sum::<usize>() == 3, "{sizes:?}");
}

#[test]
fn an_error_is_said_once_p61() {
    let error = |b: SnapshotBuilder| b.error(TypeUrl::CLUSTER, "gone", Code::NotFound, "no such cluster");
    let mut peer = Peer::serving(error(clusters(["a"])));
    peer.subscribe(TypeUrl::CLUSTER, &["a", "gone"]);
    let response = peer.response();
    assert_eq!(response.message.resource_errors.len(), 1);
    peer.set(error(clusters(["a", "b"])));
    peer.is_quiet();
}

#[test]
fn a_glob_is_its_members_and_an_empty_one_is_said_by_its_name_gc10_p90() {
    let name = |id: &str| format!("xdstp://a/envoy.config.endpoint.v3.LbEndpoint/c/{id}");
    let endpoints = |ids: &[&str]| {
        let endpoint = |id: &&str| crate::Resource::new("envoy.config.endpoint.v3.LbEndpoint", name(id), id.as_bytes());
        Snapshot::builder().resources(ids.iter().map(endpoint))
    };
    let type_url = || TypeUrl::from("envoy.config.endpoint.v3.LbEndpoint");
    let mut peer = Peer::serving(endpoints(&["1", "2"]));
    peer.subscribe(type_url(), &[&name("*")]);
    assert_eq!(peer.response().names(), [name("1"), name("2")]);
    peer.set(endpoints(&["1", "3", "deep/4"]));
    assert_eq!(peer.response().names(), [name("3")]);
    assert_eq!(peer.response().removed(), [name("2")]);
    peer.set(endpoints(&["deep/4"]));
    let gone: Vec<_> = peer.drain().iter().flat_map(|response| response.message.removed_resources.clone()).collect();
    assert_eq!(gone, [name("*"), name("1"), name("3")]);
    peer.set(endpoints(&["5"]));
    assert_eq!(peer.response().names(), [name("5")]);
    peer.is_quiet();
}

#[test]
fn streams_that_are_sent_the_same_share_its_bytes_dx29() {
    let mut one = Peer::serving(clusters(["a", "b"]));
    let mut two = Peer::new();
    two.stream.handle_view(one.view.clone());
    let responses = [&mut one, &mut two].map(|peer| {
        peer.subscribe(TypeUrl::CLUSTER, &["a", "b"]);
        peer.stream.poll_response(|_| true).unwrap()
    });
    assert_eq!([responses[0].is_encoding, responses[1].is_encoding], [true, false]);
    assert_eq!(responses[0].message.body.as_ptr(), responses[1].message.body.as_ptr());
}

#[test]
fn the_first_message_says_who_is_there_and_each_one_about_which_type() {
    let mut peer = Peer::new();
    let node = Some(Node { id: "n1".to_owned(), ..Node::default() });
    peer.request(DeltaDiscoveryRequest { node, ..request(TypeUrl::CLUSTER, &["a"]) });
    assert_eq!(peer.stream.node_id(), Some("n1"));
    assert_eq!(peer.stream.handle_request(&DeltaDiscoveryRequest::default()), Err(ProtocolError::NoTypeUrl));
    for n in 1..MAX_TYPES {
        peer.subscribe(TypeUrl::from(format!("type.{n}")), &["a"]);
    }
    let one_more = request(TypeUrl::from("one.More"), &["a"]);
    assert_eq!(peer.stream.handle_request(&one_more), Err(ProtocolError::TooManyTypes));
}

#[test]
fn the_names_of_a_type_are_bounded_over_all_requests_fb39() {
    let mut peer = Peer::new();
    let ask = |from: usize, to: usize| {
        let names = (from..to).map(|n| n.to_string()).collect();
        DeltaDiscoveryRequest { resource_names_subscribe: names, ..request(TypeUrl::CLUSTER, &[]) }
    };
    assert!(peer.stream.handle_request(&ask(0, MAX_NAMES - 1)).is_ok());
    assert!(peer.stream.handle_request(&ask(MAX_NAMES - 1, MAX_NAMES)).is_ok());
    assert!(peer.stream.handle_request(&ask(0, 1)).is_ok(), "it has that already");
    let too_many = peer.stream.handle_request(&ask(MAX_NAMES, MAX_NAMES + 1));
    assert_eq!(too_many, Err(ProtocolError::TooManyNames(TypeUrl::CLUSTER)));
}

/// A stream and the view that it is served.
struct Peer {
    stream: Delta,
    view: Option<Arc<View>>,
    stamp: u64,
}

/// A response as a client reads it.
#[derive(Debug)]
struct Read {
    type_url: TypeUrl,
    message: DeltaDiscoveryResponse,
}

impl Read {
    fn names(&self) -> Vec<&str> {
        self.message.resources.iter().map(|resource| resource.name.as_str()).collect()
    }

    fn removed(&self) -> Vec<&str> {
        self.message.removed_resources.iter().map(String::as_str).collect()
    }
}

impl Peer {
    fn new() -> Self {
        Self { stream: Delta::new("s.".to_owned()), view: None, stamp: 0 }
    }

    fn serving(snapshot: SnapshotBuilder) -> Self {
        let mut peer = Self::new();
        peer.set(snapshot);
        peer
    }

    fn set(&mut self, snapshot: SnapshotBuilder) {
        self.put(snapshot.build());
    }

    fn put(&mut self, snapshot: Snapshot) {
        self.stamp += 1;
        let previous = self.view.take().unwrap_or_default();
        self.view = Some(Arc::new(View::advance(&previous, snapshot, self.stamp)));
        self.stream.handle_view(self.view.clone());
    }

    fn request(&mut self, request: DeltaDiscoveryRequest) -> RequestKind {
        self.stream.handle_request(&request).unwrap()
    }

    fn subscribe(&mut self, type_url: TypeUrl, names: &[&str]) -> RequestKind {
        self.request(request(type_url, names))
    }

    fn ack(&mut self, response: &Read) -> RequestKind {
        let response_nonce = response.message.nonce.clone();
        self.request(DeltaDiscoveryRequest { response_nonce, ..request(response.type_url.clone(), &[]) })
    }

    fn next(&mut self) -> Option<Read> {
        let response = self.stream.poll_response(|_| true)?;
        let mut bytes = Vec::new();
        response.message.write(&mut bytes);
        let message = DeltaDiscoveryResponse::decode(&*bytes).unwrap();
        assert_eq!(response.removed.to_vec(), message.removed_resources);
        assert_eq!(response.names.len(), message.resources.len() + message.resource_errors.len());
        Some(Read { type_url: response.type_url, message })
    }

    fn response(&mut self) -> Read {
        self.next().expect("a response")
    }

    fn drain(&mut self) -> Vec<Read> {
        std::iter::from_fn(|| self.next()).collect()
    }

    fn is_quiet(&mut self) {
        let response = self.next();
        assert!(response.is_none(), "{response:?}");
    }

    fn version(&self, cluster: &str) -> String {
        self.view.as_ref().unwrap().get(&TypeUrl::CLUSTER).unwrap().resources[cluster].version.to_string()
    }
}

fn request(type_url: TypeUrl, names: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: type_url.as_str().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn clusters<const N: usize>(names: [&str; N]) -> SnapshotBuilder {
    names.into_iter().map(resources::eds_cluster).fold(Snapshot::builder(), SnapshotBuilder::cluster)
}

/// Listener `l` and the one cluster to which it routes.
fn routes_to(cluster: &str) -> SnapshotBuilder {
    clusters([cluster]).listener(resources::listener("l", resources::route("r", cluster)))
}
