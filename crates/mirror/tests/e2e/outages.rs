//! The primary dies, in each state (FB-18).

use std::time::Duration;

use mainstay_control_plane::{TypeUrl, resources};
use mainstay_mirror::{ClassStatus, Settings};
use tonic::Code;

use crate::common::{
    Mirrored, ONE_CLASS, backend, call, channel, primary, service, settings_with_files, until_answered_by,
};

#[tokio::test]
async fn before_anything_was_complete_clients_are_refused_and_later_served_fb18() {
    let one = backend("one").await;
    let primary = primary(service("service", [one.addr().to_string().as_str()])).await;
    primary.stop().await;
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    let status = mirrored.until("all", "told why not", |status| status.unreachable_because.is_some()).await;
    assert!(!status.ready && status.resources == 0 && !status.primary_reachable, "{status:?}");
    let client = channel("xds:///service", "client", &[&mirrored.server]);
    let refused = call(&client).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let reason = "there is no complete configuration for nodes of \"all\" yet";
    assert!(refused.message().contains(reason), "{refused:?}");
    primary.start().unwrap();
    mirrored.until_equal("all", &primary, "mirror").await;
    until_answered_by(&client, "one").await;
}

#[tokio::test]
async fn in_the_middle_of_the_first_and_of_a_later_update_the_last_whole_one_is_served_fb18() {
    let one = backend("one").await;
    let primary = primary(service("service", [one.addr().to_string().as_str()])).await;
    // It dies when it is asked for the first cluster.
    primary.faults().die_on_request(TypeUrl::CLUSTER, "service");
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    mirrored.until("all", "without a primary", |status| status.unreachable_because.is_some()).await;
    assert_eq!(mirrored.served("all"), None, "a half is not served");
    primary.faults().heal();
    primary.start().unwrap();
    mirrored.until_equal("all", &primary, "mirror").await;
    let good = mirrored.served("all");
    // And when it is asked for the next one.
    primary.faults().die_on_request(TypeUrl::CLUSTER, "next");
    primary.control_plane().update(|snapshot| {
        snapshot.insert(resources::route("service", "next"));
        snapshot.insert(resources::eds_cluster("next"));
        snapshot.insert(resources::endpoints("next", ["127.0.0.1:1"]));
    });
    let status = mirrored.until("all", "without a primary", |status| status.unreachable_because.is_some()).await;
    assert!(status.ready && status.resources == 4, "{status:?}");
    assert_eq!(mirrored.served("all"), good);
    let client = channel("xds:///service", "client", &[&primary, &mirrored.server]);
    assert_eq!(call(&client).await.unwrap(), "one");
}

#[tokio::test]
async fn a_mirror_that_starts_in_an_outage_serves_what_it_had_in_force_fb18() {
    let one = backend("one").await;
    let address = one.addr().to_string();
    let primary = primary(service("service", [address.as_str(), "127.0.0.1:2", "127.0.0.1:3"])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("mirror");
    let start = || Mirrored::with(settings_with_files(&primary, ONE_CLASS, &directory));
    let mirrored = start().await;
    mirrored.until_equal("all", &primary, "mirror").await;
    let good = mirrored.served("all");
    until_files(&directory.join("all"), 1).await;
    // A disaster comes, is held back, and then both die.
    primary.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", [""; 0])));
    mirrored.until("all", "held back", |status| status.held.is_some()).await;
    primary.stop().await;
    drop(mirrored);

    let mirrored = start().await;
    assert_eq!(mirrored.served("all"), good, "at once, and without the disaster");
    let status = mirrored.until("all", "told why not", |status| status.unreachable_because.is_some()).await;
    assert!(status.ready && !status.primary_reachable, "{status:?}");
    let client = channel("xds:///service", "client", &[&primary, &mirrored.server]);
    until_answered_by(&client, "one").await;
    // The primary returns with the disaster, which is held back as before the restart.
    primary.start().unwrap();
    mirrored.until("all", "held back", |status: &ClassStatus| status.held.is_some()).await;
    assert_eq!(mirrored.served("all"), good);
    assert_eq!(call(&client).await.map(|_| ()).map_err(|status| status.code()), Ok(()));
}

#[tokio::test]
async fn a_mirror_that_is_stopped_keeps_what_it_could_not_write_yet_fb18() {
    let one = backend("one").await;
    let address = one.addr().to_string();
    let primary = primary(service("service", [address.as_str()])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("mirror");
    // After the first write, the next one may come in a day.
    let write_interval = Duration::from_secs(86400);
    let settings = || Settings { write_interval, ..settings_with_files(&primary, ONE_CLASS, &directory) };
    let mirrored = Mirrored::with(settings()).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    until_files(&directory.join("all"), 1).await;
    primary.control_plane().update(|snapshot| {
        snapshot.insert(resources::endpoints("service", [address.as_str(), "127.0.0.1:2"]));
    });
    mirrored.until_equal("all", &primary, "mirror").await;
    let newest = mirrored.served("all");
    primary.stop().await;
    mirrored.stop().await;
    let mirrored = Mirrored::with(settings()).await;
    assert_eq!(mirrored.served("all"), newest);
}

#[tokio::test]
async fn files_that_are_damaged_or_of_another_node_are_not_used_fb18() {
    let primary = primary(service("service", ["127.0.0.1:1"])).await;
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("mirror");
    let mirrored = Mirrored::with(settings_with_files(&primary, ONE_CLASS, &directory)).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    until_files(&directory.join("all"), 1).await;
    primary.stop().await;
    drop(mirrored);
    let other = ONE_CLASS.replace("id: mirror", "id: somebody-else");
    let mirrored = Mirrored::with(settings_with_files(&primary, &other, &directory)).await;
    assert_eq!(mirrored.served("all"), None);
    drop(mirrored);
    let [file] = &mainstay::last_good::list(directory.join("all")).unwrap()[..] else { panic!("one file") };
    let mut bytes = std::fs::read(file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(file, bytes).unwrap();
    let mirrored = Mirrored::with(settings_with_files(&primary, ONE_CLASS, &directory)).await;
    assert_eq!(mirrored.served("all"), None);
}

/// Waits until there are so many files.
async fn until_files(directory: &std::path::Path, count: usize) {
    for _ in 0..2000 {
        if mainstay::last_good::list(directory).is_ok_and(|files| files.len() >= count) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no files in {}", directory.display());
}
