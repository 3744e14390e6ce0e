//! Cost follows change: an answer does not look at all that it lists.

use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;

use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::client::stream::names_looked_through;
use crate::client::{Action, ClientSettings, Event, Output, StreamId, XdsClient};
use crate::resource::ResourceType;
use crate::{Choose, Time};

#[test]
fn an_answer_lists_a_thousand_names_and_looks_at_none() {
    let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("a:1")).build().unwrap();
    let mut client = XdsClient::new(Arc::new(bootstrap), ClientSettings::default());
    for n in 0..1_000 {
        client.watch(Time::ZERO, ResourceType::Endpoints, &format!("e{n:04}"));
    }
    let (stream, first) = sent(&mut client);
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].resource_names.len(), 1_000);
    let stream = stream.expect("a stream is opened");

    let before = names_looked_through();
    for nonce in ["1", "2", "3"] {
        client.handle_event(Time::ZERO, &mut First, Event::Received(stream, endpoints(nonce)));
        let (_, answers) = sent(&mut client);
        assert_eq!(answers.len(), 1);
        assert_eq!((&*answers[0].response_nonce, &*answers[0].version_info), (nonce, nonce));
        assert_eq!(answers[0].resource_names, first[0].resource_names, "P-33");
    }
    assert_eq!(names_looked_through(), before);

    // Another name is news: now all are looked at, once.
    client.watch(Time::ZERO, ResourceType::Endpoints, "another");
    let (_, asked) = sent(&mut client);
    assert_eq!(asked[0].resource_names.len(), 1_001);
    assert_eq!(asked[0].resource_names[0], "another");
    assert_eq!(names_looked_through() - before, 1_001);
}

/// What is sent until there is nothing left to do, and the stream that is opened for it.
fn sent(client: &mut XdsClient) -> (Option<StreamId>, Vec<DiscoveryRequest>) {
    let (mut opened, mut requests) = (None, Vec::new());
    while let Output::Do(action) = client.poll_output() {
        match action {
            Action::Open { stream, .. } => {
                opened = Some(stream);
                client.handle_event(Time::ZERO, &mut First, Event::Opened(stream));
            }
            Action::Send(stream, request) => {
                requests.push(DiscoveryRequest::decode(request).unwrap());
                client.handle_event(Time::ZERO, &mut First, Event::Sent(stream));
            }
            _ => {}
        }
    }
    (opened, requests)
}

/// The endpoints of one cluster.
fn endpoints(version: &str) -> Bytes {
    let resource = ClusterLoadAssignment { cluster_name: "e0500".to_owned(), ..Default::default() };
    let type_url = ResourceType::Endpoints.type_url().to_owned();
    let response = DiscoveryResponse {
        version_info: version.to_owned(),
        nonce: version.to_owned(),
        type_url: type_url.clone(),
        resources: vec![Any { type_url, value: resource.encode_to_vec() }],
        ..Default::default()
    };
    response.encode_to_vec().into()
}

/// Draws for pauses, of which there are none.
struct First;

impl Choose for First {
    fn choose(&mut self, _: u64) -> u64 {
        0
    }
}
