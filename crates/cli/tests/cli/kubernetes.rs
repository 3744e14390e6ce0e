//! `serve --kubernetes`, against an API server in this process: see [`fake`].

mod fake;

use std::{fs, net::SocketAddr, path::PathBuf, time::Duration};

use mainstay_control_plane::{ControlPlane, Intake, IntakeObserver, Told, TypeUrl};
use mainstay_sources::{
    Following,
    freshness::{Limits, Standing},
    kubernetes::{Judge, Settings, follow},
};
use mainstay_testservice::Backend;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{Running, mainstay, text};
use fake::{ApiServer, Broken, config_map, service, slice};

/// Users' view of all of it: a Service, a rollout, and an API server that dies and returns; and no call fails.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_while_pods_and_the_api_server_come_and_go_fb28_fb29() {
    let backends = [backend("one").await, backend("two").await, backend("three").await];
    let [one, two, three] = backends.each_ref().map(Backend::addr);
    let api = ApiServer::start();
    api.put(service("prod", "greeter", 50051));
    api.put(slice("prod", "greeter", "a", &[(one, true)]));
    let (home, kubeconfig) = kubeconfig(&api);
    let finer = home.path().join("finer");
    fs::create_dir(&finer).unwrap();
    fs::write(finer.join("own.yaml"), "{'@type': envoy.config.route.v3.RouteConfiguration, name: own}").unwrap();
    let flags = ["--listen", "127.0.0.1:0", "--kubernetes", "--namespace", "prod", "--kubeconfig", &kubeconfig];
    let mut serve = Running::start(&[&["serve", finer.to_str().unwrap(), "--no-check"], &flags[..]].concat());
    // Streams are refused until the first lists are there, and clients come again.
    let first = serve.line();
    assert!(first.starts_with(&format!("serving {} and Kubernetes namespaces prod on ", finer.display())), "{first}");
    let address = first.rsplit_once(" on ").unwrap().1.split(',').next().unwrap().to_owned();

    let server = json!({ "server_uri": address, "channel_creds": [{ "type": "insecure" }] });
    let bootstrap = json!({ "xds_servers": [server], "node": { "id": "n1" } }).to_string();
    let target = "xds:///greeter.prod.svc.cluster.local:50051";
    let args = ["load", target, "--qps", "100", "--json", "--wait-for-ready", "--fail-on-failed-rpc"];
    let mut load = Running::start_with_bootstrap(&bootstrap, &args);
    let mut calls = 0;
    let mut until = |who: &str| loop {
        let call: Value = serde_json::from_str(&load.line()).unwrap();
        assert_eq!(call["ok"], true, "{call}");
        calls += 1;
        if call["server_id"] == who {
            break;
        }
    };
    until("one");
    // A pod more, and the first one is terminating.
    api.put(slice("prod", "greeter", "b", &[(two, true)]));
    until("two");
    api.put(slice("prod", "greeter", "a", &[(one, false)]));
    api.delete("endpointslices", "prod", "a");
    // Without the API server nothing changes.
    api.stop().await;
    (0..50).for_each(|_| until("two"));
    // It has moved on when it returns, and what happened is not known any more.
    api.put(slice("prod", "greeter", "c", &[(three, true)]));
    api.delete("endpointslices", "prod", "b");
    api.compact();
    api.restart();
    until("three");
    load.signal("TERM");
    let (code, _, summary) = load.end();
    assert_eq!(code, 0, "{summary}");
    assert!(summary.contains(" 0 failed\n") && calls > 50, "{summary}");
    serve.signal("INT");
    assert_eq!(serve.end().0, 0);
}

#[tokio::test]
async fn pages_are_joined_and_changes_follow_kb10() {
    let api = ApiServer::start();
    api.faults(|faults| faults.page = Some(2));
    (0..5).for_each(|n| api.put(service("a", &format!("s{n}"), 80)));
    let mut replica = Replica::start(&api, |_| ()).await;
    replica.until(|names| names.len() == 5).await;
    assert_eq!((api.count("list services"), api.count("page services")), (1, 2));
    api.put(service("b", "more", 80));
    api.delete("services", "a", "s0");
    replica.until(|names| names.len() == 5 && names.contains(&"more.b:80".to_owned())).await;
    // What has no label any more is told as deleted.
    api.put(slice("a", "s1", "x", &[(address(1), true)]));
    replica.until_endpoints("s1.a:80", 1).await;
    let mut unlabelled = slice("a", "s1", "x", &[(address(1), true)]);
    unlabelled["metadata"]["labels"] = json!({});
    api.put(unlabelled);
    replica.until_endpoints("s1.a:80", 0).await;
    assert_eq!((api.count("list services"), api.count("list endpointslices")), (1, 1), "once each");
}

#[tokio::test]
async fn only_the_namespaces_that_are_named_are_asked_for_kb14() {
    let api = ApiServer::start();
    ["a", "b", "c"].into_iter().for_each(|namespace| api.put(service(namespace, "s", 80)));
    let mut replica =
        Replica::start(&api, |settings| settings.namespaces = ["c", "a", "a"].map(str::to_owned).into()).await;
    replica.until(|names| *names == ["s.a:80", "s.c:80"]).await;
    assert_eq!(api.count("list services"), 2);
}

#[tokio::test]
async fn gone_is_listed_anew_kb10() {
    for as_event in [false, true] {
        let api = ApiServer::start();
        api.faults(|faults| faults.gone_as_event = as_event);
        api.put(service("a", "old", 80));
        let mut replica = Replica::start(&api, |_| ()).await;
        replica.until(|names| *names == ["old.a:80"]).await;
        api.stop().await;
        api.put(service("a", "new", 80));
        api.delete("services", "a", "old");
        api.compact();
        api.restart();
        replica.until(|names| *names == ["new.a:80"]).await;
        assert_eq!(api.count("list services"), 2, "as an event: {as_event}");
    }
}

#[tokio::test]
async fn an_event_that_is_cut_or_broken_is_not_lost_kb11() {
    for broken in [Broken::MidLine, Broken::NoJson, Broken::NoEvent] {
        let api = ApiServer::start();
        api.put(service("a", "s", 80));
        let mut replica = Replica::start(&api, |_| ()).await;
        replica.until(|names| *names == ["s.a:80"]).await;
        api.faults(|faults| faults.next_event = Some(broken));
        api.put(service("a", "t", 80));
        replica.until(|names| *names == ["s.a:80", "t.a:80"]).await;
        assert_eq!(api.count("list services"), 1, "{broken:?}: it goes on where it was");
        assert!(api.count("watch services") > 1, "{broken:?}");
    }
}

#[tokio::test]
async fn who_may_not_read_is_told_what_is_missing_kb11() {
    for (code, expected) in [
        (403, "endpointslices of all namespaces: 403 Forbidden: endpointslices is forbidden: User \"x\" cannot list"),
        (401, "endpointslices of all namespaces: 401 Unauthorized"),
        (500, "endpointslices of all namespaces: 500 InternalError: out of order"),
    ] {
        let api = ApiServer::start();
        api.faults(|faults| faults.refuse = Some(("endpointslices", code)));
        api.put(service("a", "s", 80));
        let mut replica = Replica::start(&api, |_| ()).await;
        let mut health = replica.following.health().clone();
        let trouble = loop {
            let seen = patiently(health.changed()).await;
            if let Some(trouble) = seen.trouble {
                assert_eq!(seen.standing, Standing::Empty);
                break trouble;
            }
        };
        assert!(trouble.starts_with("http://127.0.0.1:") && trouble.contains(expected), "{trouble}");
        let refusal = health.clone().admit().await.expect_err("there is nothing to serve").to_string();
        assert!(
            refusal.starts_with("this replica has nothing to serve yet") && refusal.contains(expected),
            "{refusal}"
        );
        api.faults(|faults| faults.refuse = None);
        replica.until(|names| *names == ["s.a:80"]).await;
    }
}

#[tokio::test]
async fn a_stream_is_let_in_when_the_api_server_has_answered_since_fb27() {
    let api = ApiServer::start();
    api.put(service("a", "s", 80));
    let mut replica = Replica::start(&api, |_| ()).await;
    replica.until(|names| *names == ["s.a:80"]).await;
    let mut health = replica.following.health().clone();
    // What is there to serve comes first, and then the word that it is.
    while patiently(health.changed()).await.standing != Standing::Fresh {}
    patiently(health.clone().admit()).await.expect("it answers");
    let before = api.count("read services");
    patiently(health.admit()).await.expect("it answers");
    assert!(api.count("read services") > before, "each stream has it asked");
}

#[tokio::test]
async fn a_restart_without_the_api_server_serves_what_it_served_fb28() {
    let api = ApiServer::start();
    api.put(service("a", "s", 80));
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("view");
    let with_file = |settings: &mut Settings| {
        settings.file = Some(file.clone());
        settings.limits = Limits { behind_after: Duration::from_secs(15), stale_after: Duration::from_millis(300) };
    };
    let mut replica = Replica::start(&api, with_file).await;
    replica.until(|names| *names == ["s.a:80"]).await;
    patiently(async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    drop(replica);
    api.stop().await;
    let replica = Replica::start(&api, with_file).await;
    assert_eq!(replica.names(), ["s.a:80"], "at once");
    let mut health = replica.following.health().clone();
    while health.seen().standing != Standing::Stale {
        patiently(health.changed()).await;
    }
    assert_eq!(health.admit().await, Ok(()), "it is stale, and others are no better");
    // And it is of this cluster only.
    let elsewhere = ApiServer::start();
    let other = Replica::start(&elsewhere, with_file).await;
    assert_eq!(other.names(), Vec::<String>::new());
}

#[tokio::test]
async fn what_is_wrong_in_a_config_map_is_told_and_the_last_good_stays_kb8() {
    let api = ApiServer::start();
    let route = |name: &str| format!("{{'@type': envoy.config.route.v3.RouteConfiguration, name: {name}}}");
    api.put(config_map("a", "finer", "routes.yaml", &route("good")));
    let mut replica = Replica::start(&api, |_| ()).await;
    replica.until_served(&TypeUrl::ROUTE, "good").await;
    api.put(config_map("a", "finer", "routes.yaml", &route("bad, nonsense: 1")));
    let expected = "ConfigMap a/finer/routes.yaml:1: bad: unrecognized field name 'nonsense'";
    let reasons = loop {
        if let Told::Rejected(reasons) = patiently(replica.intake.next()).await.told {
            break reasons;
        }
    };
    assert_eq!(reasons, [expected]);
    replica.until_served(&TypeUrl::ROUTE, "good").await;
    // Other changes do not hide it.
    api.put(service("a", "s", 80));
    replica.until(|names| *names == ["s.a:80"]).await;
    assert_eq!(replica.observer.feeds()[0].problem.as_deref(), Some(expected));
    api.put(config_map("a", "finer", "routes.yaml", &route("better")));
    replica.until_served(&TypeUrl::ROUTE, "better").await;
    assert_eq!(replica.observer.feeds()[0].problem, None);
}

#[tokio::test]
async fn what_a_store_from_a_backup_has_is_the_truth_kb10() {
    let api = ApiServer::start();
    api.put(service("a", "s", 80));
    let mut replica = Replica::start(&api, |_| ()).await;
    replica.until(|names| *names == ["s.a:80"]).await;
    let restored = ApiServer::start();
    restored.put(service("a", "older", 80));
    api.become_like(&restored).await;
    replica.until(|names| *names == ["older.a:80"]).await;
}

#[test]
fn flags_that_make_no_sense_are_refused() {
    for (args, code, expected) in [
        (&["serve", "--namespace", "a"][..], 2, "--kubernetes"),
        (&["serve", "--kubernetes", "--namespace", "a/b"], 2, "expected lower-case letters, digits and hyphens"),
        (&["serve", "--kubernetes", "--etcd", "http://x"], 2, "cannot be used with"),
        (&["serve", "x", "--view-file", "v"], 2, "--etcd"),
        (&["serve", "--kubernetes", "--kubeconfig", "/no/such/file"], 1, "error: --kubernetes: /no/such/file: "),
    ] {
        let output = mainstay(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}

/// What `serve` has of Kubernetes, without a port.
struct Replica {
    following: Following,
    control_plane: ControlPlane,
    intake: Intake,
    observer: IntakeObserver,
    _home: TempDir,
}

impl Replica {
    async fn start(api: &ApiServer, change: impl FnOnce(&mut Settings)) -> Self {
        let (home, kubeconfig) = kubeconfig(api);
        let mut settings = Settings {
            kubeconfig: Some(PathBuf::from(kubeconfig)),
            namespaces: Vec::new(),
            domain: "cluster.local".to_owned(),
            region: String::new(),
            judge: Judge::new(|_| Ok(())),
            limits: Limits::default(),
            file: None,
        };
        change(&mut settings);
        let control_plane = ControlPlane::new();
        let intake = Intake::new(control_plane.clone());
        let following = follow(settings, intake.feed("kubernetes")).await.unwrap();
        let observer = intake.observer();
        Self { following, control_plane, intake, observer, _home: home }
    }

    /// The clusters that are served.
    fn names(&self) -> Vec<String> {
        let resources = self.control_plane.snapshot().unwrap_or_default();
        let clusters = resources.resources().filter(|resource| resource.type_url == TypeUrl::CLUSTER);
        clusters.map(|resource| resource.name).collect()
    }

    async fn until(&mut self, is_so: impl Fn(&Vec<String>) -> bool) {
        self.wait(|replica| is_so(&replica.names())).await;
    }

    async fn until_served(&mut self, type_url: &TypeUrl, name: &str) {
        self.wait(|replica| replica.control_plane.snapshot().is_some_and(|snapshot| snapshot.contains(type_url, name)))
            .await;
    }

    async fn until_endpoints(&mut self, cluster: &str, count: usize) {
        use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
        use mainstay_control_plane::Body;
        use prost::Message as _;
        self.wait(|replica| {
            let resources = replica.control_plane.snapshot().unwrap_or_default();
            let of_cluster = |resource: &mainstay_control_plane::Resource| {
                resource.type_url == TypeUrl::ENDPOINTS && resource.name == cluster
            };
            let Some(Body::Message(any)) = resources.resources().find(of_cluster).map(|resource| resource.body) else {
                return false;
            };
            let assignment = ClusterLoadAssignment::decode(&*any.value).unwrap();
            assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len()).sum::<usize>() == count
        })
        .await;
    }

    async fn wait(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            patiently(self.intake.next()).await;
        }
    }
}

/// So that a failing test ends.
async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.expect("it happens in time")
}

fn kubeconfig(api: &ApiServer) -> (TempDir, String) {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("kubeconfig");
    fs::write(&file, api.kubeconfig()).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (home, file)
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], 1))
}

async fn backend(id: &str) -> Backend {
    Backend::spawn("127.0.0.1:0", id).await.unwrap()
}
