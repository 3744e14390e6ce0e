//! Node classes (FB-14), and bytes as they came (FB-17).

use std::time::Duration;

use mainstay_control_plane::{ControlPlane, Snapshot, Snapshots, TypeUrl, resources};
use mainstay_mirror::StartError;
use mainstay_mirror::combine::combine;
use tonic::Code;

use crate::common::{
    Counter, Mirrored, ONE_CLASS, backend, bytes, call, channel, held, primary, service, settings, until_answered_by,
};

const TWO_CLASSES: &str = r#"
classes:
  - name: shop
    node: { id: mirror-shop, cluster: shop }
    match: { id: { prefix: "shop-" } }
    targets: ["xds:///service"]
  - name: bank
    node: { id: mirror-bank }
    match: { id: { regex: "bank-[0-9]+" } }
    targets: ["xds:///service"]
"#;

#[tokio::test]
async fn two_classes_of_nodes_have_different_answers_and_an_unknown_node_is_refused_fb14() {
    let (one, two) = (backend("one").await, backend("two").await);
    let primary = primary(Snapshot::builder()).await;
    primary.control_plane().set_for_node("mirror-shop", service("service", [one.addr().to_string().as_str()]));
    primary.control_plane().set_for_node("mirror-bank", service("service", [two.addr().to_string().as_str()]));
    let mirrored = Mirrored::start(&primary, TWO_CLASSES).await;
    mirrored.until_equal("shop", &primary, "mirror-shop").await;
    mirrored.until_equal("bank", &primary, "mirror-bank").await;
    assert!(mirrored.mirror.is_ready());
    primary.stop().await;

    let of = |node: &str| channel("xds:///service", node, &[&primary, &mirrored.server]);
    let (shop, bank) = (of("shop-17"), of("bank-4"));
    assert_eq!(call(&shop).await.unwrap(), "one");
    assert_eq!(call(&bank).await.unwrap(), "two");
    let refused = call(&of("clerk-1")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let reason = "node \"clerk-1\" of cluster \"\" is of none of the classes \"shop\", \"bank\"";
    assert!(refused.message().contains(reason), "{refused:?}");
}

#[tokio::test]
async fn at_a_switch_bytes_are_equal_and_nothing_changes_downstream_fb17() {
    let one = backend("one").await;
    let counter = Counter::before(&one).await;
    let primary = primary(service("service", [counter.addr.to_string().as_str()])).await;
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    let client = channel("xds:///service", "client", &[&primary, &mirrored.server]);
    assert_eq!(call(&client).await.unwrap(), "one");
    let before = held(&client).await;

    // The primary dies in the middle of an update: routes to a cluster that it never sent.
    primary.faults().hold(TypeUrl::CLUSTER);
    primary.control_plane().update(|snapshot| snapshot.insert(resources::route("service", "next")));
    let asked = async {
        while !held_by(&client).await.contains(&"next".to_owned()) {
            assert_eq!(call(&client).await.unwrap(), "one");
        }
    };
    tokio::time::timeout(Duration::from_secs(10), asked).await.expect("it asks for the cluster");
    primary.stop().await;
    // The mirror has the last complete one, and the client goes by it.
    let mirror = mirrored.server.addr().to_string();
    let switched = async {
        loop {
            assert_eq!(call(&client).await.unwrap(), "one", "no RPC fails on the way");
            let now = held(&client).await;
            if now.len() == before.len() && now.values().all(|(server, ..)| *server == mirror) {
                return now;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let after = tokio::time::timeout(Duration::from_secs(20), switched).await.expect("a switch");
    for (key, (server, _, encoded)) in &before {
        assert_eq!(*server, primary.addr().to_string());
        assert_eq!(after[key].2, *encoded, "{key:?} has the same bytes");
    }
    assert_eq!(counter.count(), 1, "no new connection");
}

#[tokio::test]
async fn versions_of_resources_are_those_of_the_primary_over_the_incremental_variant_fb17() {
    let snapshot = service("service", ["127.0.0.1:1"]);
    let mut given = Snapshot::default();
    for resource in snapshot.build().resources() {
        let version = format!("of-the-primary-{}", resource.type_url.short_name());
        given.insert_with_version(resource, version);
    }
    let primary = primary(given).await;
    let config = format!(
        "bootstrap: {{ xds_servers: [{{ server_uri: x, channel_creds: [{{ type: insecure }}], \
         server_features: [{DELTA}] }}] }}\n{ONE_CLASS}"
    );
    let mirrored = Mirrored::start(&primary, &config).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    // As a client of the mirror that speaks the same variant.
    let json = format!(
        r#"{{"xds_servers": [{{"server_uri": "{}", "channel_creds": [{{"type": "insecure"}}], "server_features": ["{DELTA}"]}}],
            "node": {{"id": "client"}}}}"#,
        mirrored.server.addr()
    );
    let bootstrap = mainstay::bootstrap::Bootstrap::from_json(&json).unwrap();
    let client = mainstay::Channel::builder("xds:///service").bootstrap(bootstrap).without_endpoints().build().unwrap();
    let mut configs = client.configs();
    while configs.next().await.expect("a view").recording.is_none() {}
    let versions: Vec<_> = held(&client).await.into_values().map(|(_, version, _)| version).collect();
    assert_eq!(versions, ["LDS", "RDS", "CDS", "EDS"].map(|name| format!("of-the-primary-{name}")));
}

#[tokio::test]
async fn a_target_that_is_not_followed_is_unknown_and_takes_nothing_away_fb3() {
    let one = backend("one").await;
    let address = one.addr().to_string();
    let primary = primary(service("other", [address.as_str()])).await;
    primary.control_plane().set_for_node("mirror", service("service", [address.as_str()]));
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    let client = channel("xds:///other", "client", &[&primary, &mirrored.server]);
    assert_eq!(call(&client).await.unwrap(), "one");
    // It lacks something, and the primary is gone: the mirror is asked, and knows nothing of it.
    primary.faults().hold(TypeUrl::CLUSTER);
    primary.control_plane().update(|snapshot| snapshot.insert(resources::route("other", "next")));
    while !held_by(&client).await.contains(&"next".to_owned()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    primary.stop().await;
    let mut events = mirrored.server.events();
    let asked = async {
        while let Some(event) = events.next().await {
            if matches!(event, mainstay_control_plane::Event::Request(_)) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), asked).await.expect("the mirror is asked");
    for _ in 0..100 {
        assert_eq!(call(&client).await.unwrap(), "one", "what it has stays in use");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_directory_wins_per_name_over_what_is_mirrored_fb20() {
    let (one, two) = (backend("one").await, backend("two").await);
    let primary = primary(service("service", [one.addr().to_string().as_str()])).await;
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    let own = Snapshot::builder().endpoints(resources::endpoints("service", [two.addr()]));
    let directory = Snapshots { default: own.build(), ..Snapshots::default() };
    let control_plane = ControlPlane::new();
    mirrored.mirror.classify(&control_plane);
    mirrored.mirror.put(&control_plane, Some(&directory));
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let client = channel("xds:///service", "client", &[&server]);
    until_answered_by(&client, "two").await;
    let combined = &combine(Some(&directory), &mirrored.mirror.snapshots())["all"].default;
    assert_eq!(bytes(combined).len(), 4);
}

#[tokio::test]
async fn settings_that_lead_nowhere_are_refused() {
    let primary = primary(Snapshot::builder()).await;
    let start = |config: &str| mainstay_mirror::Mirror::start(settings(&primary, config)).unwrap_err();
    let nothing = start("classes: [{ name: a, node: { id: m }, default: true }]");
    assert_eq!(nothing, StartError::Nothing("a".to_owned()));
    let wildcard = "bootstrap: { xds_servers: [{ server_uri: x, channel_creds: [{ type: tls }] }] }\n\
                    classes: [{ name: a, node: { id: m }, default: true, all: true }]";
    assert_eq!(start(wildcard), StartError::WildcardOverTls("a".to_owned()));
    let target = start("classes: [{ name: a, node: { id: m }, default: true, targets: ['xds://nowhere/x'] }]");
    assert!(matches!(&target, StartError::Target(class, target, _) if class == "a" && target == "xds://nowhere/x"));
}

/// The names of the clusters that a channel subscribes to.
async fn held_by(client: &mainstay::Channel) -> Vec<String> {
    let view = client.config().await.expect("a view");
    let clusters = view.resources.into_iter().filter(|r| r.resource.resource_type == mainstay::ResourceType::Cluster);
    clusters.map(|cluster| cluster.resource.name).collect()
}

const DELTA: &str = "mainstay_delta";
