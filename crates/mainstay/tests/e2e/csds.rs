//! CSDS: what an operator sees of the channels of a process (A40, C-58 to C-65).

use std::time::{Duration, SystemTime};

use crate::channelz_v1::GetTopChannelsRequest;
use crate::channelz_v1::channelz_client::ChannelzClient;
use envoy_types::pb::envoy::admin::v3::ClientResourceStatus;
use envoy_types::pb::envoy::service::status::v3::client_config::GenericXdsConfig;
use envoy_types::pb::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use envoy_types::pb::envoy::service::status::v3::{ClientConfig, ClientStatusRequest};
use envoy_types::pb::envoy::r#type::matcher::v3::NodeMatcher;
use mainstay::{Channel, ChannelBuilder};
use mainstay_control_plane::{Body, Corruption, Server, Snapshot, TypeUrl, resources};
use tokio::net::TcpListener;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;

use crate::common::{
    Client, backends, bootstrap_of, call, control_plane, fetch_status, in_time, metadata, service, status_of,
};

#[tokio::test]
async fn both_methods_show_every_resource_with_its_very_bytes() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = Client::new(builder("csds-bytes", &server).build().unwrap());
    call(&mut client).await.unwrap();

    // A real server, asked over a real socket.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let admin = tonic::transport::Server::builder().add_service(mainstay::admin::csds());
    tokio::spawn(admin.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut csds = ClientStatusDiscoveryServiceClient::connect(address).await.unwrap();
    let fetched = csds.fetch_client_status(ClientStatusRequest::default()).await.unwrap().into_inner();
    // C-58: each request is answered once.
    let requests = tokio_stream::iter([ClientStatusRequest::default(), ClientStatusRequest::default()]);
    let streamed = csds.stream_client_status(requests).await.unwrap().into_inner();
    let streamed: Vec<_> = in_time(streamed.map(Result::unwrap).collect()).await;
    assert_eq!(streamed.len(), 2);

    let served = server.control_plane().snapshot().unwrap();
    for response in [fetched, streamed[0].clone(), streamed[1].clone()] {
        let config = only("csds-bytes", response.config);
        assert_eq!(config.client_scope, "xds:///service");
        for resource in served.resources() {
            let shown = find(&config, &resource.type_url, &resource.name);
            let Body::Message(message) = resource.body else { panic!("served no errors") };
            assert_eq!(shown.xds_config.as_ref(), Some(&message));
            assert_eq!(shown.version_info, server.control_plane().version(&resource.type_url).unwrap());
            assert_eq!(shown.client_status(), ClientResourceStatus::Acked);
            assert_eq!(shown.error_state, None);
            assert!(is_recent(shown.last_updated.as_ref().unwrap()), "{shown:?}");
        }
        assert_eq!(config.generic_xds_configs.len(), served.len());
    }
}

#[tokio::test]
async fn the_node_is_the_one_that_servers_see_with_sources_and_servers_added() {
    // C-60, B-24.
    let [one] = backends(["one"]).await;
    let [primary, fallback] = [control_plane(Snapshot::default()).await, control_plane(service(&[&one])).await];
    primary.stop().await;
    let mut requests = fallback.events();
    let channel =
        short(Channel::builder("xds:///service")).bootstrap(bootstrap_of("csds-node", &[&primary, &fallback]));
    let mut client = Client::new(channel.build().unwrap());
    call(&mut client).await.unwrap();

    let config = only("csds-node", fetch_status(ClientStatusRequest::default()).await.unwrap());
    let mut node = config.node.clone().unwrap();
    assert!(node.client_features.contains(&"xds.config.resource-in-sotw".to_owned()), "{node:?}");
    let sources = metadata(&config, "mainstay.sources");
    for resource in ["Listener", "RouteConfiguration", "Cluster", "ClusterLoadAssignment"] {
        assert_eq!(sources[&format!("{resource} \"service\"")], fallback.addr().to_string());
    }
    let servers = metadata(&config, "mainstay.servers");
    assert_eq!(servers[&fallback.addr().to_string()], "READY");
    let down = &servers[&primary.addr().to_string()];
    assert!(down.starts_with("TRANSIENT_FAILURE: ") && down.contains("refused"), "{down}");

    let added = node.metadata.as_mut().unwrap();
    added.fields.retain(|name, _| !name.starts_with("mainstay."));
    let told = in_time(requests.request(TypeUrl::LISTENER)).await.unwrap().node.unwrap();
    let empty = node.metadata.take_if(|metadata| metadata.fields.is_empty());
    assert_eq!(node, *told, "apart from {empty:?}");
}

#[tokio::test]
async fn a_rejected_update_shows_the_old_value_and_what_was_wrong_with_the_new() {
    // C-62.
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = Client::new(builder("csds-nacked", &server).build().unwrap());
    call(&mut client).await.unwrap();
    let good = find(&status_of("csds-nacked").await[0], &TypeUrl::CLUSTER, "service").clone();

    let mut events = server.events();
    let mut bad = resources::eds_cluster("service");
    bad.eds_cluster_config = None;
    server.control_plane().update(|snapshot| snapshot.insert(bad));
    let nack = in_time(events.answer(TypeUrl::CLUSTER)).await.unwrap();

    let shown = find(&status_of("csds-nacked").await[0], &TypeUrl::CLUSTER, "service").clone();
    assert_eq!(shown.client_status(), ClientResourceStatus::Nacked);
    assert_eq!((&shown.xds_config, &shown.version_info), (&good.xds_config, &good.version_info));
    let error = shown.error_state.unwrap();
    let version = server.control_plane().version(&TypeUrl::CLUSTER).unwrap();
    assert_eq!(error.version_info, version);
    let expected = format!(
        "Cluster \"service\" version {version:?} from {} (node \"csds-nacked\") was rejected: eds_cluster_config",
        server.addr()
    );
    assert!(error.details.starts_with(&expected), "{}", error.details);
    assert!(nack.error.unwrap().1.contains("eds_cluster_config"));
    assert!(is_recent(&error.last_update_attempt.unwrap()));

    // C-63: the others of its type and all other types are as they were.
    server.faults().corrupt(TypeUrl::CLUSTER, "service", Corruption::Bytes(vec![0xff]));
    in_time(events.answer(TypeUrl::CLUSTER)).await.unwrap();
    let listener = find(&status_of("csds-nacked").await[0], &TypeUrl::LISTENER, "service").clone();
    assert_eq!(listener.client_status(), ClientResourceStatus::Acked);
}

#[tokio::test]
async fn what_is_asked_for_and_what_does_not_exist_is_shown_as_such() {
    let server = control_plane(Snapshot::default()).await;
    server.faults().hide_absence(true);
    let mut events = server.events();
    let channel = builder("csds-missing", &server).resource_timeout(Duration::from_millis(100)).build().unwrap();
    let mut client = Client::new(channel);
    in_time(events.request(TypeUrl::LISTENER)).await.unwrap();
    let requested = find(&status_of("csds-missing").await[0], &TypeUrl::LISTENER, "service").clone();
    assert_eq!(requested.client_status(), ClientResourceStatus::Requested);
    assert_eq!((requested.xds_config, requested.last_updated, requested.error_state), (None, None, None));

    let message = call(&mut client).await.unwrap_err().message().to_owned();
    let missing = find(&status_of("csds-missing").await[0], &TypeUrl::LISTENER, "service").clone();
    assert_eq!(missing.client_status(), ClientResourceStatus::DoesNotExist);
    let details = missing.error_state.unwrap().details;
    assert_eq!(message, format!("no usable configuration for xds:///service: {details}"));
}

#[tokio::test]
async fn an_error_from_the_server_has_a_state_of_its_own() {
    // A88, TP3.
    let server = control_plane(Snapshot::default()).await;
    server.faults().resource_error(TypeUrl::LISTENER, "service", Code::PermissionDenied, "not for you");
    let mut client = Client::new(builder("csds-error", &server).build().unwrap());
    let status = call(&mut client).await.unwrap_err();
    let text = format!(
        "Listener \"service\": {} (node \"csds-error\") answered with PERMISSION_DENIED: not for you",
        server.addr()
    );
    assert_eq!(status.message(), format!("no usable configuration for xds:///service: {text}"));
    let shown = find(&status_of("csds-error").await[0], &TypeUrl::LISTENER, "service").clone();
    assert_eq!(shown.client_status(), ClientResourceStatus::ReceivedError);
    assert_eq!(shown.error_state.unwrap().details, text);
}

#[tokio::test]
async fn contents_can_be_left_out_and_node_matchers_are_refused() {
    // C-59.
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = Client::new(builder("csds-request", &server).build().unwrap());
    call(&mut client).await.unwrap();
    let bare = ClientStatusRequest { exclude_resource_contents: true, ..Default::default() };
    let config = only("csds-request", fetch_status(bare).await.unwrap());
    assert!(
        config.generic_xds_configs.iter().all(|shown| shown.xds_config.is_none() && !shown.version_info.is_empty())
    );

    let matching = ClientStatusRequest { node_matchers: vec![NodeMatcher::default()], ..Default::default() };
    assert_eq!(fetch_status(matching).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn equal_channels_share_one_client_and_targets_have_their_own() {
    // C-1: check 1 of the client's list.
    let [one] = backends(["one"]).await;
    let mut snapshot = service(&[&one]);
    snapshot.insert(resources::listener("other", resources::route("other", "service")));
    let server = control_plane(snapshot).await;
    let bootstrap = bootstrap_of("csds-shared", &[&server]);
    let channel = |target: &str| short(Channel::builder(target)).bootstrap(bootstrap.clone()).build().unwrap();
    let (first, second) = (channel("xds:///service"), channel("xds:service"));
    for channel in [&first, &second] {
        call(&mut Client::new(channel.clone())).await.unwrap();
    }
    assert_eq!(status_of("csds-shared").await.len(), 1);
    assert_eq!((server.stats().connections, server.stats().streams), (1, 1));

    let other = channel("xds:///other");
    call(&mut Client::new(other.clone())).await.unwrap();
    let scopes: Vec<_> = status_of("csds-shared").await.into_iter().map(|config| config.client_scope).collect();
    assert_eq!(scopes, ["xds:///other", "xds:///service"]);
    assert_eq!((server.stats().connections, server.stats().streams), (1, 2));

    // The last handle of a target ends its client.
    drop(first);
    assert_eq!(status_of("csds-shared").await.len(), 2);
    drop(second);
    assert_eq!(only("csds-shared", status_of("csds-shared").await).client_scope, "xds:///other");
}

#[test]
fn a_channel_whose_runtime_nobody_drives_holds_up_no_answer() {
    let driven = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = driven.block_on(control_plane(Snapshot::default()));
    let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stuck = idle.block_on(async { builder("stuck", &server).build().unwrap() });
    driven.block_on(async {
        let channel = builder("well", &server).build().unwrap();
        let configs = in_time(fetch_status(ClientStatusRequest::default())).await.unwrap();
        let of =
            |node: &str| configs.iter().filter(|config| config.node.as_ref().is_some_and(|n| n.id == node)).count();
        assert_eq!((of("stuck"), of("well")), (0, 1));
        let mut channelz = ChannelzClient::new(mainstay::admin::channelz());
        in_time(channelz.get_top_channels(GetTopChannelsRequest::default())).await.unwrap();
        drop(channel);
    });
    drop(stuck);
}

fn builder(node: &str, server: &Server) -> ChannelBuilder {
    short(Channel::builder("xds:///service")).bootstrap(bootstrap_of(node, &[server]))
}

fn short(builder: ChannelBuilder) -> ChannelBuilder {
    builder.backoff(Duration::from_millis(20), Duration::from_millis(100))
}

fn only(node: &str, mut configs: Vec<ClientConfig>) -> ClientConfig {
    configs.retain(|config| config.node.as_ref().is_some_and(|found| found.id == node));
    assert_eq!(configs.len(), 1, "{configs:?}");
    configs.remove(0)
}

fn find<'a>(config: &'a ClientConfig, type_url: &TypeUrl, name: &str) -> &'a GenericXdsConfig {
    let is_it = |shown: &&GenericXdsConfig| shown.type_url == type_url.as_str() && shown.name == name;
    config.generic_xds_configs.iter().find(is_it).unwrap_or_else(|| panic!("no {name:?} in {config:?}"))
}

fn is_recent(time: &envoy_types::pb::google::protobuf::Timestamp) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    now.abs_diff(u64::try_from(time.seconds).unwrap()) <= 60
}
