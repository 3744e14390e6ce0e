//! What the primary says and must not be copied: nonsense, halves and mass removals (FB-16, FB-18, FB-19).

use std::time::Duration;

use mainstay_control_plane::{Corruption, Event, RequestKind, Server, TypeUrl, resources};
use mainstay_mirror::CommandError;

use crate::common::{Mirrored, ONE_CLASS, backend, call, channel, primary, service};

#[tokio::test]
async fn nonsense_of_the_primary_never_reaches_clients_of_the_mirror_fb16() {
    let one = backend("one").await;
    let primary = primary(service("service", [one.addr().to_string().as_str()])).await;
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    let good = mirrored.served("all");
    let client = channel("xds:///service", "client", &[&mirrored.server]);
    assert_eq!(call(&client).await.unwrap(), "one");
    let sent = sent_to(&mirrored.server);

    for type_url in [TypeUrl::LISTENER, TypeUrl::ROUTE, TypeUrl::CLUSTER, TypeUrl::ENDPOINTS] {
        let mut events = primary.events();
        primary.faults().corrupt(type_url.clone(), "service", Corruption::Bytes(vec![0xff, 0xff, 0xff]));
        let rejected = async {
            while let Some(event) = events.next().await {
                if matches!(&event, Event::Request(request) if request.kind == RequestKind::Nack) {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), rejected).await.expect("a NACK");
        assert_eq!(mirrored.served("all"), good, "{type_url} is not copied");
        primary.faults().heal();
    }
    // Valid, and wrong all the same: routes into nothing, a Listener that is gone.
    primary.faults().hold(TypeUrl::CLUSTER);
    primary.control_plane().update(|snapshot| snapshot.insert(resources::route("service", "half")));
    mirrored.until("all", "half an update", |status| status.targets[0].problem.is_some()).await;
    assert_eq!(mirrored.served("all"), good, "half an update is none: FB-18");
    primary.control_plane().update(|snapshot| {
        snapshot.remove(&TypeUrl::LISTENER, "service");
    });
    primary.faults().heal();
    let gone = |status: &mainstay_mirror::ClassStatus| {
        status.targets[0].problem.as_ref().is_some_and(|problem| problem.contains("service"))
    };
    mirrored.until("all", "without a Listener", gone).await;
    assert_eq!(mirrored.served("all"), good, "what is gone at the primary is kept for the time without it");
    assert_eq!(call(&client).await.unwrap(), "one");
    assert_eq!(sent_to(&mirrored.server), sent, "not a byte was sent to clients of the mirror");
}

#[tokio::test]
async fn a_mass_removal_is_held_back_shown_and_accepted_by_command_fb19() {
    let one = backend("one").await;
    let address = one.addr().to_string();
    let four = [address.as_str(), "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"];
    let primary = primary(service("service", four)).await;
    let mirrored = Mirrored::start(&primary, ONE_CLASS).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    assert_eq!(mirrored.mirror.accept("all").await, Err(CommandError::NothingHeld("all".to_owned())));
    assert_eq!(mirrored.mirror.refuse("none").await, Err(CommandError::NoClass("none".to_owned())));
    let good = mirrored.served("all");

    primary.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", ["127.0.0.1:2"])));
    let held = mirrored.until("all", "held back", |status| status.held.is_some()).await.held.unwrap();
    assert_eq!(
        held.because,
        ["1 of 4 endpoints would be left in all", "1 of 4 endpoints of \"service\" would be left"]
    );
    assert!(held.passes_in_s.is_some_and(|seconds| (290..=300).contains(&seconds)) && !held.refused, "{held:?}");
    assert_eq!(mirrored.served("all"), good);
    assert!(mirrored.status("all").ready, "it has something to serve");

    mirrored.mirror.refuse("all").await.unwrap();
    let held = mirrored.until("all", "refused", |status| status.held.as_ref().is_some_and(|held| held.refused)).await;
    assert_eq!(held.held.unwrap().passes_in_s, None);
    // What a primary takes back needs nobody.
    primary
        .control_plane()
        .update(|snapshot| snapshot.insert(resources::endpoints("service", [address.as_str(), "127.0.0.1:9"])));
    mirrored.until_equal("all", &primary, "mirror").await;
    assert_eq!(mirrored.status("all").held, None);

    primary.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", [""; 0])));
    mirrored.until("all", "held back", |status| status.held.is_some()).await;
    mirrored.mirror.accept("all").await.unwrap();
    mirrored.until_equal("all", &primary, "mirror").await;
    assert_eq!(mirrored.status("all").held, None);
}

#[tokio::test]
async fn what_is_held_back_passes_by_itself_when_nobody_decides_fb19() {
    let primary = primary(service("service", ["127.0.0.1:1"])).await;
    let config = format!("brake: {{ hold: 200ms }}\n{ONE_CLASS}");
    let mirrored = Mirrored::start(&primary, &config).await;
    mirrored.until_equal("all", &primary, "mirror").await;
    primary.control_plane().update(|snapshot| snapshot.insert(resources::endpoints("service", [""; 0])));
    mirrored.until("all", "held back", |status| status.held.is_some()).await;
    mirrored.until_equal("all", &primary, "mirror").await;
}

/// How many responses a server sent.
fn sent_to(server: &Server) -> u64 {
    server.stats().responses
}
