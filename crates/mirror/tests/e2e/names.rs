//! Where targets come from beside the list: wildcards, and running clients (FB-14, FB-15).

use std::time::Duration;

use mainstay_control_plane::{Snapshot, SnapshotBuilder, TypeUrl};
use mainstay_mirror::Settings;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

use crate::common::{Mirrored, backend, call, channel, primary, service, settings, settings_with_files};

const ALL: &str = "classes: [{ name: all, node: { id: mirror }, default: true, all: true }]";

#[tokio::test]
async fn with_a_wildcard_everything_is_followed_that_the_primary_knows_fb14() {
    let one = backend("one").await;
    let address = one.addr().to_string();
    let primary = primary(both(&["cart", "stock"], &address)).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("mirror");
    let mirrored = Mirrored::with(settings_with_files(&primary, ALL, &directory)).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    primary.control_plane().set(both(&["cart", "desk", "stock"], &address));
    mirrored.until_equal("all", &primary, "mirror").await;
    let targets: Vec<_> = mirrored.status("all").targets.into_iter().map(|target| target.target).collect();
    assert_eq!(targets, ["xds:///cart", "xds:///desk", "xds:///stock"]);
    // One of three may go; the rest may not.
    primary.control_plane().set(both(&["cart", "stock"], &address));
    mirrored.until_equal("all", &primary, "mirror").await;
    let good = mirrored.served("all");
    primary.control_plane().set(Snapshot::builder());
    let held = mirrored.until("all", "held back", |status| status.held.is_some()).await.held.unwrap();
    assert_eq!(held.because[0], "0 of 3 Listeners would be left", "of what there was a moment ago");
    assert_eq!(mirrored.served("all"), good);
    primary.stop().await;
    let client = channel("xds:///stock", "client", &[&primary, &mirrored.server]);
    assert_eq!(call(&client).await.unwrap(), "one");
    mirrored.stop().await;
    // What was followed is followed again after a restart, though nobody tells its name now.
    let mirrored = Mirrored::with(settings_with_files(&primary, ALL, &directory)).await;
    assert_eq!(mirrored.served("all"), good);
}

#[tokio::test]
async fn what_running_clients_watch_is_followed_for_their_class_fb15() {
    let one = backend("one").await;
    let address = one.addr().to_string();
    let primary = primary(both(&["cart", "stock"], &address)).await;
    // Two clients, whose CSDS tells what they watch.
    let of_shop = channel("xds:///cart", "learn-shop-1", &[&primary]);
    let of_bank = channel("xds:///stock", "learn-bank-1", &[&primary]);
    for client in [&of_shop, &of_bank] {
        assert_eq!(call(client).await.unwrap(), "one");
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = listener.local_addr().unwrap().to_string();
    let services = tonic::transport::Server::builder().add_service(mainstay::admin::csds());
    let serving = tokio::spawn(services.serve_with_incoming(TcpIncoming::from(listener)));

    let config = r#"
classes:
  - { name: shop, node: { id: mirror-shop }, match: { id: { prefix: "learn-shop-" } } }
  - { name: bank, node: { id: mirror-bank }, match: { id: { prefix: "learn-bank-" } } }
"#;
    let settings =
        Settings { learn_from: vec![admin], learn_interval: Duration::from_millis(20), ..settings(&primary, config) };
    let mirrored = Mirrored::with(settings).await;
    let follows = |status: &mainstay_mirror::ClassStatus, target: &str| {
        status.targets.iter().any(|one| one.target == target && one.complete)
    };
    mirrored.until("shop", "learned", |status| follows(status, "xds:///cart")).await;
    mirrored.until("bank", "learned", |status| follows(status, "xds:///stock")).await;
    assert_eq!(mirrored.status("shop").targets.len(), 1, "what others watch is for others");
    let snapshot = mirrored.mirror.snapshots()["shop"].clone().unwrap();
    assert!(snapshot.contains(&TypeUrl::LISTENER, "cart") && !snapshot.contains(&TypeUrl::LISTENER, "stock"));
    serving.abort();
    // A target that was learned stays.
    primary.stop().await;
    let client = channel("xds:///cart", "learn-shop-2", &[&primary, &mirrored.server]);
    assert_eq!(call(&client).await.unwrap(), "one");
}

/// Several services at one address.
fn both(names: &[&str], address: &str) -> SnapshotBuilder {
    let all = names.iter().flat_map(|name| service(name, [address]).build().resources().collect::<Vec<_>>());
    Snapshot::builder().resources(all)
}
