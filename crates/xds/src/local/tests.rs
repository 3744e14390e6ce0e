//! Files of every kind of wrongness, and servers that know less than others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{
    Age, Expected, LastGoodFile, LocalServer, LocalSet, LocalValue, Refusal, Stored, file_name, servers_digest,
};
use crate::bootstrap::{Bootstrap, LastGood, ServerConfig};
use crate::client::{
    Action, ClientSettings, CloseCause, Event, Output, ResourceState, StreamId, Update, WatchId, XdsClient,
};
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource::ResourceType;
use crate::{Choose, Time};

use envoy_types::pb::envoy::config::cluster::v3 as cluster;
use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
use prost::Message;

// === Files ===

#[test]
fn a_file_is_read_as_it_was_written_fb5() {
    let file = sample();
    assert_eq!(LastGoodFile::decode(&file.encode()), Ok(file));
    let empty = LastGoodFile { resources: Vec::new(), ..sample() };
    assert_eq!(LastGoodFile::decode(&empty.encode()), Ok(empty));
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused_with_a_word() {
    let bytes = sample().encode();
    for end in 0..bytes.len() {
        let refusal = LastGoodFile::decode(&bytes[..end]).unwrap_err();
        assert!(matches!(refusal, Refusal::CutOff(_) | Refusal::Damaged), "{end}: {refusal}");
        assert!(!refusal.to_string().is_empty());
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(LastGoodFile::decode(&longer), Err(Refusal::Damaged));
    // A disk that lost what was not written yet leaves zeros.
    for end in 0..bytes.len() {
        let mut zeros = bytes.clone();
        zeros[end..].fill(0);
        assert!(LastGoodFile::decode(&zeros).is_err(), "{end}");
    }
}

#[test]
fn a_single_bit_that_flips_is_found() {
    let bytes = sample().encode();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            let refusal = LastGoodFile::decode(&flipped).unwrap_err();
            let expected = match at {
                0..8 => matches!(refusal, Refusal::NotLastGood),
                8..12 => matches!(refusal, Refusal::Format(_)),
                _ => refusal == Refusal::Damaged,
            };
            assert!(expected, "byte {at}, bit {bit}: {refusal}");
        }
    }
}

#[test]
fn a_newer_format_and_another_kind_of_file_say_so() {
    let mut bytes = sample().encode();
    bytes[11] = 2;
    let refusal = LastGoodFile::decode(&bytes).unwrap_err();
    assert_eq!(refusal.to_string(), "it has format 2, and this release reads format 1");
    let refusal = LastGoodFile::decode(b"# a note to myself").unwrap_err();
    assert_eq!(refusal.to_string(), "it is not a last-good file");
}

#[test]
fn a_file_with_a_good_checksum_and_bad_content_is_refused() {
    // Resources that are not in order, or twice: never written by us.
    let mut file = sample();
    file.resources.reverse();
    assert!(matches!(LastGoodFile::decode(&file.encode()), Err(Refusal::Malformed(_))));
    file.resources = vec![sample().resources[0].clone(), sample().resources[0].clone()];
    assert!(matches!(LastGoodFile::decode(&file.encode()), Err(Refusal::Malformed(_))));
}

#[test]
fn a_file_of_somebody_else_is_refused_with_both_names() {
    let (file, now) = (sample(), sample().created_at);
    let check = |expected: &Expected| file.check(expected, now, None).map_err(|refusal| refusal.to_string());
    assert_eq!(check(&expected()), Ok(Age::Known(Duration::ZERO)));
    let other = |change: fn(&mut Expected)| {
        let mut other = expected();
        change(&mut other);
        assert_ne!((file_name(&other), other.servers), (file_name(&expected()), expected().servers));
        check(&other).unwrap_err()
    };
    assert_eq!(other(|e| e.key = "xds:///b".to_owned()), "it is of \"xds:///shop\" and not of \"xds:///b\"");
    assert_eq!(other(|e| e.authority = "xdstp://x".to_owned()), "it is of \"\" and not of \"xdstp://x\"");
    assert_eq!(other(|e| e.node_id = "n2".to_owned()), "it is of the node \"n1\" and not of \"n2\"");
    assert!(other(|e| e.servers = [7; 32]).contains("another list of xds_servers"));
}

#[test]
fn parts_of_names_that_meet_do_not_make_the_same_file_name() {
    let named =
        |key: &str, node: &str| file_name(&Expected { key: key.to_owned(), node_id: node.to_owned(), ..expected() });
    assert_ne!(named("ab", "c"), named("b", "ca"));
    assert!(named("../../etc/passwd", "n").bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.'));
}

#[test]
fn age_has_a_limit_and_a_clock_that_was_set_back_is_told_fb9() {
    let (file, day) = (sample(), Duration::from_secs(86_400));
    let made = file.created_at;
    let check = |now, max_age| file.check(&expected(), now, max_age);
    assert_eq!(check(made + day * 7, Some(day * 7)), Ok(Age::Known(day * 7)));
    let refusal = check(made + day * 9, Some(day * 7)).unwrap_err();
    assert_eq!(refusal.to_string(), "it is 9 days old, and max_age is 7 days");
    assert_eq!(check(made + day * 9, None), Ok(Age::Known(day * 9)));
    // Nobody knows how old it is; better than nothing, and said.
    let age = check(made - day * 3, Some(day * 7)).unwrap();
    assert_eq!(age, Age::ClockSetBack(day * 3));
    assert_eq!(age.to_string(), "of unknown age, as its time is 3 days ahead: the clock was set back");
    assert_eq!(check(Duration::ZERO, Some(day)).unwrap().duration(), Duration::ZERO);
}

#[test]
fn the_list_of_servers_counts_in_its_order_and_without_the_files() {
    let of = |uris: &[&str]| {
        let servers: Vec<_> = uris.iter().map(|uri| Arc::new(ServerConfig::insecure(*uri))).collect();
        servers_digest(&servers)
    };
    assert_eq!(of(&["a", "b"]), of(&["a", "b", "last-good:///tmp/x"]));
    assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
    assert_ne!(of(&["ab"]), of(&["a", "b"]));
}

// === Servers ===

#[test]
fn a_name_that_is_not_there_is_answered_by_a_transient_error_and_takes_nothing_away_fb3() {
    let mut world = World::new(false);
    let [a, b] = [world.watch("a"), world.watch("b")];
    world.up("primary", &[("a", "1"), ("b", "1")]);
    assert_eq!(world.heard(a), "1 from primary");
    assert_eq!(world.heard(b), "1 from primary");
    // Both are cached: nothing is lost with the primary, and nobody asks the files, until there is a new need.
    world.lose("primary");
    world.refuse("primary");
    let c = world.watch("c");
    world.local(&[("a", "0")]);
    assert_eq!(world.heard(a), "0 from last-good://d");
    assert_eq!(world.state("b"), ResourceState::ReceivedError);
    assert_eq!(world.heard(b), "1 from primary", "not knowing is no deletion");
    assert!(world.heard(c).contains("UNAVAILABLE: last-good://d does not have it"), "{}", world.heard(c));
    // The primary is back with all of them, and in charge.
    world.up("primary", &[("a", "2"), ("b", "2"), ("c", "2")]);
    for watch in [a, b, c] {
        assert_eq!(world.heard(watch), "2 from primary");
    }
}

#[test]
fn what_goes_from_a_directory_is_not_spoken_of_and_what_is_new_is_told() {
    let set = |resources: &[(&str, &str)]| Arc::new(set(resources));
    let mut server = LocalServer::new("file:///d", set(&[("a", "1"), ("b", "1")]));
    let first = server.handle_request(&request(&["a", "b", "c"])).unwrap().unwrap();
    assert_eq!(told(&first), "a:1 b:1 c?14");
    assert_eq!(server.handle_request(&request(&[])), Ok(None));
    let news = server.replace(set(&[("b", "2"), ("c", "1"), ("unasked", "1")]));
    assert_eq!(news.iter().map(|news| told(news)).collect::<Vec<_>>(), ["b:2 c:1"]);
    assert!(server.replace(set(&[])).is_empty());
    assert!(server.handle_request(b"\xff").is_err());
}

#[test]
fn a_glob_collection_is_kept_member_by_member_and_read_again() {
    let name = |last: &str| format!("xdstp://x/envoy.config.endpoint.v3.LbEndpoint/zone/{last}");
    let member = endpoint::LbEndpoint::default().encode_to_vec();
    let key = |name: String| ResourceKey { resource_type: ResourceType::EndpointGlob, name: name.into() };
    let value = || LocalValue { version: "1".into(), value: member.clone().into() };
    let names = [name("a"), name("b"), "xdstp://x/envoy.config.endpoint.v3.LbEndpoint/other/c".to_owned()];
    let set = LocalSet { resources: names.into_iter().map(|name| (key(name), value())).collect() };
    let mut server = LocalServer::new("file:///d", Arc::new(set));
    let request = envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest {
        type_url: ResourceType::EndpointGlob.type_url().to_owned(),
        resource_names_subscribe: vec![name("*"), name("nothing/*")],
        ..Default::default()
    };
    let answer = server.handle_request(&request.encode_to_vec()).unwrap().unwrap();
    assert_eq!(told(&answer), format!("{}:1 {}:1 {}?14", name("a"), name("b"), name("nothing/*")));
}

// === Starting from files at once (FB-10) ===

#[test]
fn eager_files_are_in_charge_until_the_first_answer_of_another_server() {
    let mut world = World::new(true);
    let a = world.watch("a");
    assert_eq!(world.open(), ["last-good://d", "primary"]);
    world.local(&[("a", "0")]);
    assert_eq!(world.heard(a), "0 from last-good://d");
    world.up("primary", &[("a", "1")]);
    assert_eq!(world.heard(a), "1 from primary");
    assert_eq!(world.open(), ["primary"]);
}

#[test]
fn with_eager_files_and_a_dead_primary_the_next_server_is_tried_and_taken() {
    let mut world = World::with(&["primary", "second"], true);
    let a = world.watch("a");
    assert_eq!(world.open(), ["last-good://d", "primary"], "the second is left alone while the first may answer");
    world.local(&[("a", "0")]);
    world.refuse("primary");
    assert_eq!(world.open(), ["last-good://d", "second"]);
    assert_eq!(world.heard(a), "0 from last-good://d");
    world.up("second", &[("a", "1")]);
    assert_eq!(world.heard(a), "1 from second");
    assert_eq!(world.open(), ["second"]);
}

#[test]
fn eager_without_a_file_is_a_start_like_any_other() {
    let mut world = World::new(true);
    let a = world.watch("a");
    world.refuse("last-good://d");
    assert_eq!(world.open(), ["primary"]);
    world.up("primary", &[("a", "1")]);
    assert_eq!(world.heard(a), "1 from primary");
    // And if the primary is not there either, the files are the last resort as ever.
    let mut world = World::new(true);
    let a = world.watch("a");
    world.refuse("last-good://d");
    world.refuse("primary");
    assert_eq!(world.open(), ["last-good://d"]);
    world.refuse("last-good://d");
    assert!(world.heard(a).contains("last-good://d"), "{}", world.heard(a));
}

#[test]
fn without_eager_nobody_asks_the_files_while_a_server_answers_fb10() {
    let mut world = World::new(false);
    let a = world.watch("a");
    assert_eq!(world.open(), ["primary"]);
    world.up("primary", &[("a", "1")]);
    world.lose("primary");
    world.refuse("primary");
    assert_eq!(world.open(), Vec::<String>::new());
    assert_eq!(world.heard(a), "1 from primary");
}

// === What is captured ===

#[test]
fn what_came_from_a_file_is_not_captured_and_what_came_from_a_server_is_fb4() {
    let mut world = World::new(false);
    world.watch("a");
    let keys = BTreeSet::from([key("a"), key("unwatched")]);
    world.refuse("primary");
    world.local(&[("a", "0")]);
    assert_eq!(world.client.capture(&keys), Some(BTreeMap::new()));
    world.up("primary", &[("a", "1")]);
    let captures = world.client.capture(&keys).unwrap();
    let capture = &captures[&AuthorityKey::TopLevel];
    assert_eq!(capture.server.server_uri, "primary");
    assert!(capture.is_current);
    let captured: Vec<_> = capture.resources.iter().map(|r| (r.resource.clone(), &*r.version, &r.value[..])).collect();
    assert_eq!(captured, [(key("a"), "1", &cluster_bytes("a", "1")[..])]);
    world.lose("primary");
    assert!(!world.client.capture(&keys).unwrap()[&AuthorityKey::TopLevel].is_current);
}

// === A client between servers ===

struct World {
    client: XdsClient,
    now: Time,
    streams: BTreeMap<String, StreamId>,
    heard: BTreeMap<WatchId, String>,
    /// Requests that nobody has answered, by stream.
    requests: BTreeMap<StreamId, Vec<bytes::Bytes>>,
}

impl World {
    fn new(eager: bool) -> Self {
        Self::with(&["primary"], eager)
    }

    fn with(servers: &[&str], eager: bool) -> Self {
        let mut builder = Bootstrap::builder().last_good(LastGood { eager, ..LastGood::new("d") });
        for uri in servers {
            let mut server = ServerConfig::insecure(*uri);
            server.features.delta = crate::bootstrap::DeltaMode::Required;
            builder = builder.server(server);
        }
        let settings = ClientSettings { reconnect_spread: Duration::ZERO, ..ClientSettings::default() };
        let client = XdsClient::new(Arc::new(builder.build().unwrap()), settings);
        let (streams, heard, requests) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { client, now: Time::ZERO, streams, heard, requests }
    }

    fn watch(&mut self, name: &str) -> WatchId {
        let watch = self.client.watch(self.now, ResourceType::Cluster, name);
        self.settle();
        watch
    }

    /// The server opens its stream and answers everything that it is asked, from these resources.
    fn up(&mut self, uri: &str, resources: &[(&str, &str)]) {
        // It may be in a pause between attempts.
        if !self.streams.contains_key(uri) {
            self.now = self.now + Duration::from_secs(60);
            self.client.handle_timeout(self.now, &mut Lowest);
            self.settle();
        }
        let stream = self.streams[uri];
        let mut server = LocalServer::new(uri, Arc::new(set(resources)));
        self.event(Event::Opened(stream));
        while let Some(request) =
            self.requests.get_mut(&stream).and_then(|waiting| (!waiting.is_empty()).then(|| waiting.remove(0)))
        {
            self.event(Event::Sent(stream));
            if let Some(response) = server.handle_request(&request).unwrap() {
                self.event(Event::Received(stream, response));
            }
        }
    }

    fn local(&mut self, resources: &[(&str, &str)]) {
        self.up("last-good://d", resources);
    }

    fn lose(&mut self, uri: &str) {
        let stream = self.streams.remove(uri).unwrap();
        self.event(Event::Closed(stream, CloseCause::ConnectionLost("lost".to_owned())));
    }

    fn refuse(&mut self, uri: &str) {
        let stream = self.streams.remove(uri).unwrap();
        self.event(Event::Closed(stream, CloseCause::ConnectFailed("refused".to_owned())));
    }

    fn event(&mut self, event: Event) {
        self.client.handle_event(self.now, &mut Lowest, event);
        self.settle();
    }

    fn settle(&mut self) {
        while let Output::Do(action) = self.client.poll_output() {
            match action {
                Action::Open { stream, server, .. } => drop(self.streams.insert(server.server_uri.clone(), stream)),
                Action::Send(stream, request) => self.requests.entry(stream).or_default().push(request),
                Action::Close(stream) => self.streams.retain(|_, open| *open != stream),
                Action::Notify(watch, update) => {
                    let text = match update {
                        Update::Changed(_, from) | Update::Confirmed(from) => {
                            format!("{} from {}", from.version, from.server.server_uri)
                        }
                        Update::Failed(error) => error.to_string(),
                        Update::Ambient(_) => continue,
                    };
                    self.heard.insert(watch, text);
                }
                Action::Probe { .. } | Action::ActiveServer(..) | Action::Report(_) => {}
            }
        }
    }

    fn heard(&self, watch: WatchId) -> &str {
        self.heard.get(&watch).map_or("", String::as_str)
    }

    fn state(&self, name: &str) -> ResourceState {
        self.client.dump().into_iter().find(|status| *status.resource.name == *name).unwrap().state
    }

    /// The servers to which a stream is open or being opened.
    fn open(&self) -> Vec<String> {
        self.streams.keys().cloned().collect()
    }
}

struct Lowest;

impl Choose for Lowest {
    fn choose(&mut self, _: u64) -> u64 {
        0
    }
}

// === What there is ===

fn sample() -> LastGoodFile {
    let stored = |name: &str, version: &str| Stored {
        resource: key(name),
        version: version.into(),
        value: cluster_bytes(name, version).into(),
        source: "primary".into(),
        received_at: Duration::new(1_790_000_000, 5),
    };
    LastGoodFile {
        key: "xds:///shop".to_owned(),
        authority: String::new(),
        node_id: "n1".to_owned(),
        servers: expected().servers,
        created_at: Duration::new(1_790_000_100, 999_999_999),
        resources: vec![stored("a", "1"), stored("b", "2")],
    }
}

fn expected() -> Expected {
    Expected { key: "xds:///shop".to_owned(), authority: String::new(), node_id: "n1".to_owned(), servers: [1; 32] }
}

fn set(resources: &[(&str, &str)]) -> LocalSet {
    let value =
        |name: &str, version: &str| LocalValue { version: version.into(), value: cluster_bytes(name, version).into() };
    LocalSet { resources: resources.iter().map(|(name, version)| (key(name), value(name, version))).collect() }
}

fn key(name: &str) -> ResourceKey {
    ResourceKey { resource_type: ResourceType::Cluster, name: name.into() }
}

/// A cluster that is another one with each version.
fn cluster_bytes(name: &str, version: &str) -> Vec<u8> {
    let eds = cluster::cluster::EdsClusterConfig {
        eds_config: Some(envoy_types::pb::envoy::config::core::v3::ConfigSource {
            config_source_specifier: Some(
                envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier::Ads(Default::default()),
            ),
            ..Default::default()
        }),
        service_name: format!("{name}-{version}"),
    };
    cluster::Cluster {
        name: name.to_owned(),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::Type(
            cluster::cluster::DiscoveryType::Eds.into(),
        )),
        eds_cluster_config: Some(eds),
        ..Default::default()
    }
    .encode_to_vec()
}

fn request(names: &[&str]) -> Vec<u8> {
    envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest {
        type_url: ResourceType::Cluster.type_url().to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..Default::default()
    }
    .encode_to_vec()
}

/// A response in words: values with their versions, errors with their codes.
fn told(response: &[u8]) -> String {
    let response = envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse::decode(response).unwrap();
    assert!(response.removed_resources.is_empty(), "never a deletion");
    let values = response.resources.iter().map(|resource| format!("{}:{}", resource.name, resource.version));
    let errors = response.resource_errors.iter().map(|error| {
        let name = &error.resource_name.as_ref().unwrap().name;
        format!("{name}?{}", error.error_detail.as_ref().unwrap().code)
    });
    values.chain(errors).collect::<Vec<_>>().join(" ")
}
