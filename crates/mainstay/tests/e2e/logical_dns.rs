//! Clusters whose addresses come from DNS (A37).

use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::time::Duration;

use mainstay::{ResolveHost, SystemDns};
use mainstay_control_plane::{Server, Snapshot, resources};
use mainstay_testservice::Backend;
use tokio::sync::watch;
use tonic::Code;

use crate::common::{Client, backends, builder, call, control_plane, spread, until_answered_by};

#[tokio::test]
async fn the_systems_resolver_finds_localhost() {
    let [one] = backends(["one"]).await;
    let server = control_plane(dns_service("localhost", one.addr().port())).await;
    let mut client = Client::new(builder(&[&server]).dns(SystemDns::default()).build().unwrap());
    assert_eq!(spread(&mut client, 20).await["one"], 20);
}

#[tokio::test]
async fn an_ip_literal_needs_no_lookup() {
    let [one] = backends(["one"]).await;
    let server = control_plane(dns_service("127.0.0.1", one.addr().port())).await;
    let dns = FakeDns::new(Err("must not be asked"));
    let mut client = dns.client(&server);
    assert_eq!(spread(&mut client, 20).await["one"], 20);
    assert_eq!(dns.asked(), 0);
}

#[tokio::test]
async fn a_failed_lookup_is_named_and_tried_again() {
    // L-15.
    let [one] = backends(["one"]).await;
    let port = one.addr().port();
    let server = control_plane(dns_service("greeter.test", port)).await;
    let dns = FakeDns::new(Err("no such host"));
    let mut client = dns.client(&server);
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let expected = format!("DNS resolution failed for greeter.test:{port}: no such host");
    assert!(status.message().contains(&expected), "{}", status.message());

    dns.set(Ok(&[Ipv4Addr::LOCALHOST]));
    until_ok(&mut client).await;
    assert_eq!(spread(&mut client, 20).await["one"], 20);
}

#[tokio::test]
async fn one_endpoint_has_all_the_addresses() {
    // L-16: an address that refuses is passed over.
    let [one] = backends(["one"]).await;
    let server = control_plane(dns_service("greeter.test", one.addr().port())).await;
    let dns = FakeDns::new(Ok(&[NOBODY, Ipv4Addr::LOCALHOST]));
    assert_eq!(spread(&mut dns.client(&server), 20).await["one"], 20);
}

#[tokio::test]
async fn addresses_stay_when_a_later_lookup_fails() {
    // L-15: the end of a connection asks for a new answer, which is an error.
    let [mut one] = backends(["one"]).await;
    let server = control_plane(dns_service("greeter.test", one.addr().port())).await;
    let dns = FakeDns::new(Ok(&[Ipv4Addr::LOCALHOST]));
    let mut client = dns.client(&server);
    until_answered_by(&mut client, "one").await;

    dns.set(Err("the name server is down"));
    let mut asked = dns.asked.subscribe();
    one.stop().await;
    asked.changed().await.unwrap();
    one.restart().await.unwrap();
    until_ok(&mut client).await;
    assert_eq!(spread(&mut client, 20).await["one"], 20);
}

#[tokio::test]
async fn a_lost_connection_makes_it_look_for_new_addresses() {
    // L-18.
    let [mut one] = backends(["one"]).await;
    let port = one.addr().port();
    let _two = Backend::spawn((ELSEWHERE, port), "two").await.unwrap();
    let server = control_plane(dns_service("greeter.test", port)).await;
    let dns = FakeDns::new(Ok(&[Ipv4Addr::LOCALHOST]));
    let mut client = dns.client(&server);
    until_answered_by(&mut client, "one").await;

    dns.set(Ok(&[ELSEWHERE]));
    one.stop().await;
    until_ok(&mut client).await;
    assert_eq!(spread(&mut client, 20).await["two"], 20);
}

#[tokio::test]
async fn a_refresh_follows_the_name_without_any_failure() {
    let [one] = backends(["one"]).await;
    let port = one.addr().port();
    let _two = Backend::spawn((ELSEWHERE, port), "two").await.unwrap();
    let server = control_plane(dns_service("greeter.test", port)).await;
    let dns = FakeDns::new(Ok(&[Ipv4Addr::LOCALHOST]));
    let channel = builder(&[&server]).dns(dns.clone()).dns_refresh(Duration::from_millis(10));
    let mut client = Client::new(channel.build().unwrap());
    until_answered_by(&mut client, "one").await;
    dns.set(Ok(&[ELSEWHERE]));
    until_answered_by(&mut client, "two").await;
}

/// Calls until one succeeds.
async fn until_ok(client: &mut Client) {
    let succeeded = async {
        // A call that fails at once does not wait for anything.
        while call(client).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), succeeded).await.expect("a call that succeeds");
}

/// A resolver that answers as it is told.
#[derive(Clone, Debug)]
struct FakeDns {
    answer: watch::Sender<Result<Vec<IpAddr>, String>>,
    asked: watch::Sender<usize>,
}

impl FakeDns {
    fn new(answer: Result<&[Ipv4Addr], &str>) -> Self {
        let dns = Self { answer: watch::Sender::new(Err(String::new())), asked: watch::Sender::new(0) };
        dns.set(answer);
        dns
    }

    fn set(&self, answer: Result<&[Ipv4Addr], &str>) {
        let answer = answer.map(|ips| ips.iter().copied().map(IpAddr::V4).collect()).map_err(str::to_owned);
        self.answer.send_modify(|current| *current = answer);
    }

    fn asked(&self) -> usize {
        *self.asked.borrow()
    }

    /// A client that may ask as often as it likes.
    fn client(&self, server: &Server) -> Client {
        let channel = builder(&[server]).dns(self.clone()).min_dns_interval(Duration::ZERO);
        Client::new(channel.build().expect("a channel"))
    }
}

impl ResolveHost for FakeDns {
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        assert_eq!(host, "greeter.test");
        let answer = self.answer.borrow().clone();
        self.asked.send_modify(|asked| *asked += 1);
        Box::pin(std::future::ready(answer))
    }
}

/// Target `xds:///service` on one name and port.
fn dns_service(host: &str, port: u16) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::logical_dns_cluster("service", format!("{host}:{port}")))
        .build()
}

/// Loopback addresses on which nobody listens unless a test does.
const NOBODY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
