//! What a channel shows of its configuration.

use mainstay::view::{
    ClusterKind, ConfigErrorKind, ConfigView, Configs, HealthStatus, ResourceErrorKind, ResourceState, RouteAction,
    ServerState,
};
use mainstay::{Channel, ResourceType};
use mainstay_control_plane::{Server, TypeUrl, resources};

use crate::common::{backends, builder, control_plane, service};

#[tokio::test]
async fn each_resource_has_its_state_version_and_source() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let channel = viewer(&[&server]);
    let view = until(&mut channel.configs(), |view| view.config.is_some()).await;

    let config = view.config.as_ref().unwrap().as_ref().unwrap();
    assert_eq!(config.clusters.keys().collect::<Vec<_>>(), ["service"]);
    let of = |resource_type| view.resource(resource_type, "service").unwrap();
    for resource_type in
        [ResourceType::Listener, ResourceType::RouteConfig, ResourceType::Cluster, ResourceType::Endpoints]
    {
        let from = of(resource_type).value.as_ref().unwrap();
        assert_eq!(of(resource_type).state, ResourceState::Acked);
        assert_eq!(
            (&*from.version, from.server.clone()),
            (&*in_force(&server, resource_type), server.addr().to_string())
        );
        assert!(from.received_at <= view.taken_at);
    }
    assert_eq!((config.route_config.as_deref(), config.routes.len()), (Some("service"), 1));
    assert_eq!(config.routes[0].matches.to_string(), "any path");
    let RouteAction::Forward(forward) = &config.routes[0].action else { panic!("{:?}", config.routes[0]) };
    assert_eq!((forward.clusters.len(), &*forward.clusters[0].name), (1, "service"));
    let cluster = config.clusters["service"].as_ref().unwrap();
    assert!(matches!(&cluster.kind, ClusterKind::Eds { resource_name, .. } if resource_name == "service"));
    let locality = &cluster.endpoints.as_ref().unwrap().priorities[0].localities[0];
    assert_eq!(locality.endpoints[0].addresses, [one.addr()]);
    assert_eq!(locality.endpoints[0].health, HealthStatus::Healthy);
    assert_eq!(view.servers.len(), 1);
    assert_eq!(view.servers[0].state, ServerState::Ready);
    assert_eq!((&*view.target, view.node_id.as_str(), &*view.listener), ("xds:///service", "test-node", "service"));
    // A channel without endpoints connects to none.
    assert_eq!(one.open_connections(), 0);
}

#[tokio::test]
async fn every_change_is_told_also_a_rejection_that_changes_nothing() {
    // A88: the cached value stays, and the error stands beside it.
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one])).await;
    let channel = viewer(&[&server]);
    let mut configs = channel.configs();
    let before = until(&mut configs, |view| view.config.is_some()).await;

    server.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", [two.addr()])));
    let after = until(&mut configs, |view| view.config != before.config).await;
    let good = in_force(&server, ResourceType::Endpoints);
    assert_eq!(version(&after, ResourceType::Endpoints), good);
    assert_ne!(version(&before, ResourceType::Endpoints), good);
    assert_eq!(version(&after, ResourceType::Cluster), version(&before, ResourceType::Cluster));

    server.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", ["no-address:1"])));
    let endpoints = |view: &ConfigView| view.resource(ResourceType::Endpoints, "service").cloned().unwrap();
    let rejected = until(&mut configs, |view| endpoints(view).state == ResourceState::Nacked).await;
    assert_eq!(version(&rejected, ResourceType::Endpoints), good);
    let error = endpoints(&rejected).error.unwrap();
    assert_eq!(error.server, Some(server.addr().to_string()));
    let ResourceErrorKind::Rejected { version, faults, .. } = &error.kind else { panic!("{error}") };
    assert_eq!(*version, in_force(&server, ResourceType::Endpoints));
    assert!(faults[0].path.ends_with("address"), "{faults:?}");
}

#[tokio::test]
async fn an_error_in_the_place_of_a_configuration_is_shown() {
    let mut snapshot = service(&[]);
    snapshot.insert(mainstay_control_plane::Resource::error(
        TypeUrl::LISTENER,
        "service",
        tonic::Code::NotFound,
        "no such listener",
    ));
    let server = control_plane(snapshot).await;
    let channel = viewer(&[&server]);
    let view = until(&mut channel.configs(), |view| view.config.is_some()).await;
    let error = view.config.unwrap().unwrap_err();
    assert!(matches!(&error.kind, ConfigErrorKind::Resource(_)), "{error}");
    assert!(error.to_string().contains("no such listener"), "{error}");
    assert_eq!(channel.config().await.unwrap().config, Some(Err(error)));
}

#[tokio::test]
async fn views_end_with_the_channel() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let channel = viewer(&[&server]);
    let mut configs = channel.configs();
    until(&mut configs, |view| view.config.is_some()).await;
    drop(channel);
    let ended = async { while configs.next().await.is_some() {} };
    tokio::time::timeout(std::time::Duration::from_secs(10), ended).await.expect("the end");
}

fn viewer(servers: &[&mainstay_control_plane::Server]) -> Channel {
    builder(servers).without_endpoints().build().expect("a channel")
}

/// The first view that is accepted.
async fn until(configs: &mut Configs, accept: impl Fn(&ConfigView) -> bool) -> ConfigView {
    let accepted = async {
        loop {
            let view = configs.next().await.expect("a channel that lives");
            if accept(&view) {
                return view;
            }
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), accepted).await.expect("a view like that")
}

/// The version that a control plane serves.
fn in_force(server: &Server, resource_type: ResourceType) -> String {
    let type_url = TypeUrl::from(resource_type.type_url());
    server.control_plane().version(&type_url).expect("a type that is served")
}

fn version(view: &ConfigView, resource_type: ResourceType) -> String {
    let status = view.resource(resource_type, "service").expect("a watched resource");
    status.value.as_ref().expect("a value").version.clone()
}
