//! RPCs of a session go to one endpoint, as a cookie says (A55, A60, A75).

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{HealthStatus, HealthStatusSet, TypedExtensionConfig};
use envoy_types::pb::envoy::config::endpoint::v3::LocalityLbEndpoints;
use envoy_types::pb::envoy::extensions::filters::http::stateful_session::v3::StatefulSession;
use envoy_types::pb::envoy::extensions::http::stateful_session::cookie::v3::CookieBasedSessionState;
use envoy_types::pb::envoy::r#type::http::v3::Cookie;
use envoy_types::pb::google::protobuf::Duration as PbDuration;
use envoy_types::util::pack_any;
use mainstay_control_plane::{Snapshot, resources};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::SimpleRequest;

use crate::common::{Client, backends, client, control_plane, in_time, service, spread, until_answered_by};

#[tokio::test]
async fn a_session_survives_updates_and_a_change_of_priority() {
    let [one, two, three] = backends(["one", "two", "three"]).await;
    let server = control_plane(with_sessions(service(&[&one, &two]))).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    let mut session = Session::default();
    let home = session.call(&mut client).await;
    let cookie = session.set.take().expect("L-94: a cookie");
    assert!(cookie.ends_with("; HttpOnly; Path=/grpc.testing.TestService; Max-Age=120"), "L-94: {cookie}");
    session.stays(&mut client, &home).await;

    // Sessions may go on where an endpoint drains, and there is another endpoint.
    let mut cluster = resources::eds_cluster("service");
    let statuses = [HealthStatus::Healthy, HealthStatus::Draining].map(i32::from).to_vec();
    cluster.common_lb_config.get_or_insert_default().override_host_status = Some(HealthStatusSet { statuses });
    server.control_plane().update(|snapshot| {
        snapshot.insert(cluster);
        snapshot.insert(resources::endpoints("service", [one.addr(), two.addr(), three.addr()]));
    });
    until_answered_by(&mut client, "three").await;
    session.stays(&mut client, &home).await;

    // Its endpoint is only the second choice now.
    let (here, other) = if home == "one" { (&one, &two) } else { (&two, &one) };
    let other_id = if home == "one" { "two" } else { "one" };
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::localities("service", [priority(0, &[other]), priority(1, &[here])]));
    });
    let moved = async { while spread(&mut client, 6).await.get(other_id) != Some(&6) {} };
    in_time(moved).await;
    session.stays(&mut client, &home).await;
    assert_eq!(here.open_connections(), 1, "A75: on the connection that it had");

    // It drains; then it is gone.
    let mut drained = priority(0, &[other, &three, here]);
    drained.lb_endpoints[2].health_status = HealthStatus::Draining.into();
    server.control_plane().update(|snapshot| snapshot.insert(resources::localities("service", [drained])));
    until_answered_by(&mut client, "three").await;
    session.stays(&mut client, &home).await;
    assert_eq!(spread(&mut client, 6).await.get(&home), None, "L-96");
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::endpoints("service", [other.addr()]));
    });
    let moved = async { while session.call(&mut client).await == home {} };
    in_time(moved).await;
    session.stays(&mut client, other_id).await;
}

#[tokio::test]
async fn a_session_stays_in_its_cluster_of_several() {
    // A60: without a session the clusters would take turns by chance.
    let [one, two] = backends(["one", "two"]).await;
    let snapshot = Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::weighted_route("service", [("blue", 1), ("green", 1)]))
        .cluster(resources::eds_cluster("blue"))
        .cluster(resources::eds_cluster("green"))
        .endpoints(resources::endpoints("blue", [one.addr()]))
        .endpoints(resources::endpoints("green", [two.addr()]))
        .build();
    let server = control_plane(with_sessions(snapshot)).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    let mut session = Session::default();
    let home = session.call(&mut client).await;
    session.stays(&mut client, &home).await;
}

/// A caller that keeps its cookie.
#[derive(Default)]
struct Session {
    cookie: Option<String>,
    /// The last `set-cookie`.
    set: Option<String>,
}

impl Session {
    /// Who answered.
    async fn call(&mut self, client: &mut Client) -> String {
        let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
        request.set_timeout(Duration::from_secs(10));
        if let Some(cookie) = &self.cookie {
            request.metadata_mut().insert("cookie", cookie.parse().unwrap());
        }
        let response = client.unary_call(request).await.unwrap();
        if let Some(set) = response.metadata().get("set-cookie") {
            let set = set.to_str().unwrap();
            self.cookie = set.split(';').next().map(str::to_owned);
            self.set = Some(set.to_owned());
        }
        response.into_inner().server_id
    }

    /// Every call is answered by `home`, and the cookie stays.
    async fn stays(&mut self, client: &mut Client, home: &str) {
        self.set = None;
        for _ in 0..10 {
            assert_eq!(self.call(client).await, home, "L-97");
        }
        assert_eq!(self.set, None, "L-94: nothing new");
    }
}

fn with_sessions(mut snapshot: Snapshot) -> Snapshot {
    let cookie = Cookie {
        name: "sticky".to_owned(),
        ttl: Some(PbDuration { seconds: 120, nanos: 0 }),
        path: "/grpc.testing.TestService".to_owned(),
        ..Cookie::default()
    };
    let state = CookieBasedSessionState { cookie: Some(cookie) };
    let session_state = TypedExtensionConfig { name: "cookie".to_owned(), typed_config: Some(pack_any(state)) };
    let filter = StatefulSession { session_state: Some(session_state), ..StatefulSession::default() };
    let listener = resources::listener("service", resources::rds("service"));
    snapshot.insert(resources::with_filter(listener, "session", pack_any(filter)));
    snapshot
}

fn priority(priority: u32, backends: &[&Backend]) -> LocalityLbEndpoints {
    let locality = resources::locality(format!("p{priority}"), backends.iter().map(|backend| backend.addr()));
    LocalityLbEndpoints { priority, ..locality }
}
