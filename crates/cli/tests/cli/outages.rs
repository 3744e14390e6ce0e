//! A control plane in a process of its own, frozen as only a process can be.

use std::{fs, path::Path, time::Duration};

use mainstay::{
    Channel,
    bootstrap::{Bootstrap, ServerConfig},
    event::Event,
};
use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_testservice::{
    Backend,
    proto::{SimpleRequest, test_service_client::TestServiceClient},
};

use crate::program::Running;

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_frozen_in_mid_update_is_left_for_the_fallback_and_no_rpc_fails() {
    // SIGSTOP: the kernel keeps the connection open and takes every byte, and nobody answers.
    let (one, two) = (backend("one").await, backend("two").await);
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &chain("cluster-1", &one));
    // Routes without their cluster are what `serve` would refuse.
    let path = directory.path().to_str().unwrap();
    let mut primary = Running::start(&["serve", path, "--listen", "127.0.0.1:0", "--no-check"]);
    let first = primary.line();
    let address = first.split(" on ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let fallback = ControlPlane::new();
    fallback.set(chain("fallback-cluster", &two));
    let fallback = fallback.serve("127.0.0.1:0").await.unwrap();
    let servers = [address, fallback.addr().to_string()].map(ServerConfig::insecure);
    let bootstrap = servers.into_iter().fold(Bootstrap::builder(), |builder, server| builder.server(server));
    let channel = Channel::builder("xds:///service")
        .bootstrap(bootstrap.build().unwrap())
        .resource_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let mut client = TestServiceClient::new(channel.clone());
    assert_eq!(call(&mut client).await, "one");

    // New routes are there, and their cluster is not: in the middle of an update.
    let mut update = chain("cluster-1", &one);
    update.insert(resources::listener("service", resources::route("service", "cluster-2")));
    let mut configs = channel.configs();
    write(directory.path(), &update);
    while !configs.next().await.unwrap().resources.iter().any(|found| found.resource.name == "cluster-2") {}
    primary.signal("STOP");
    let mut events = channel.events();
    let fell_back = async {
        loop {
            match events.next().await.unwrap() {
                Event::Unreachable { cause, .. } | Event::StreamEnded { cause, .. } => return cause,
                _ => {}
            }
        }
    };
    let cause = tokio::time::timeout(Duration::from_secs(60), fell_back).await.unwrap();
    assert!(cause.contains("did not answer"), "{cause}");
    while call(&mut client).await != "two" {}
}

/// Who answers. Somebody must.
async fn call(client: &mut TestServiceClient<Channel>) -> String {
    let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..SimpleRequest::default() });
    request.set_timeout(Duration::from_secs(20));
    client.unary_call(request).await.unwrap().into_inner().server_id
}

async fn backend(id: &str) -> Backend {
    Backend::spawn("127.0.0.1:0", id).await.unwrap()
}

fn chain(cluster: &str, backend: &Backend) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", cluster)))
        .cluster(resources::eds_cluster(cluster))
        .endpoints(resources::endpoints(cluster, [backend.addr()]))
        .build()
}

/// Puts a snapshot in the place of the one before, as a whole.
fn write(directory: &Path, snapshot: &Snapshot) {
    let new = directory.join("new");
    fs::write(&new, snapshot.to_yaml().unwrap()).unwrap();
    fs::rename(new, directory.join("all.yaml")).unwrap();
}
