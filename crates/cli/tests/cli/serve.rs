//! `mainstay serve` as its users and its clients see it.

use std::{fs, io::Write, path::Path};

use envoy_types::pb::{
    envoy::{
        config::{
            core::v3::{Locality, Node},
            endpoint::v3::{ClusterStats, UpstreamLocalityStats, cluster_stats::DroppedRequests},
        },
        service::{
            discovery::v3::{DiscoveryRequest, aggregated_discovery_service_client::AggregatedDiscoveryServiceClient},
            load_stats::v3::{LoadStatsRequest, load_reporting_service_client::LoadReportingServiceClient},
        },
    },
    google::rpc::Status,
};
use mainstay_control_plane::{Snapshot, resources};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::program::{Running, mainstay, mainstay_with_bootstrap, text};

#[test]
fn changes_of_the_files_are_told_and_wrong_files_are_rejected_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[cluster("a"), cluster("b")]);
    let mut serve = Running::start(&["serve", path(directory.path()), "--listen", "127.0.0.1:0"]);
    let first = serve.line();
    let head = format!("serving {} on 127.0.0.1:", path(directory.path()));
    assert!(first.starts_with(&head) && first.ends_with(", 2 resources"), "{first}");
    assert_eq!([serve.line(), serve.line()], ["  + CDS  a", "  + CDS  b"]);

    write(directory.path(), &[cluster("a") + "\nconnect_timeout: 3s", cluster("c")]);
    let lines = [serve.line(), serve.line(), serve.line(), serve.line()];
    assert_eq!(lines, ["reloaded, 2 resources", "  ~ CDS  a", "  + CDS  c", "  - CDS  b"]);

    write(directory.path(), &[cluster("a").replace("type:", "typ:")]);
    assert_eq!(serve.line(), "rejected, what was served before still is:");
    let reason = serve.line();
    let file = directory.path().join("clusters.yaml");
    assert!(reason.starts_with(&format!("  {}:", file.display())) && reason.contains("typ"), "{reason}");

    // Asked, it looks again and says so, though nothing changed.
    serve.signal("HUP");
    assert_eq!([serve.line(), serve.line()], ["rejected, what was served before still is:".to_owned(), reason]);
    write(directory.path(), &[cluster("a"), cluster("c")]);
    assert_eq!([serve.line(), serve.line()], ["reloaded, 2 resources", "  ~ CDS  a"]);
    serve.signal("HUP");
    assert_eq!(serve.line(), "reloaded, nothing changed, 2 resources");

    serve.signal("TERM");
    let (code, stdout, stderr) = serve.end();
    assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
}

#[test]
fn files_that_are_wrong_from_the_start_are_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &["just a text".to_owned()]);
    let output = mainstay(&["serve", path(directory.path()), "--listen", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    let file = directory.path().join("clusters.yaml");
    let head = format!("error: cannot serve {}:\n  {}:", path(directory.path()), file.display());
    assert!(stderr.starts_with(&head), "{stderr}");
    let tip = "  tip: correct the files; once it serves, wrong files are only reported. \
               An empty directory needs --allow-empty\n";
    assert!(stderr.ends_with(tip), "{stderr}");
}

#[test]
fn a_directory_without_resources_is_served_only_where_that_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["serve", path(directory.path()), "--listen", "127.0.0.1:0"];
    let output = mainstay(&args);
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(stderr.contains(&format!("\n  {}: holds no resources\n", path(directory.path()))), "{stderr}");
    let mut serve = Running::start(&[&args[..], &["--allow-empty"]].concat());
    assert!(serve.line().ends_with(", 0 resources"));
    write(directory.path(), &[cluster("a")]);
    assert_eq!([serve.line(), serve.line()], ["reloaded, 1 resource", "  + CDS  a"]);
    serve.signal("TERM");
    assert_eq!(serve.end().0, 0);
}

#[test]
fn a_change_that_deletes_most_of_it_is_refused_and_a_slow_writer_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let all: Vec<String> = ["a", "b", "c", "d", "e"].map(cluster).into();
    write(directory.path(), &all);
    let mut serve = Running::start(&["serve", path(directory.path()), "--listen", "127.0.0.1:0"]);
    (0..6).for_each(|_| drop(serve.line()));

    write(directory.path(), &all[..1]);
    assert_eq!(serve.line(), "rejected, what was served before still is:");
    let reason = format!("  {}: holds 1 resources where 5 are served: ", path(directory.path()));
    assert_eq!(serve.line(), format!("{reason}that would delete more than half of them"));

    let file = fs::canonicalize(directory.path()).unwrap().join("clusters.yaml");
    let mut writer = fs::File::create(&file).unwrap();
    assert_eq!(serve.line(), format!("waiting for files that are still being written: {}", file.display()));
    writer.write_all([&all[1..], &[cluster("f")]].concat().join("\n---\n").as_bytes()).unwrap();
    drop(writer);
    assert_eq!([serve.line(), serve.line(), serve.line()], ["reloaded, 5 resources", "  + CDS  f", "  - CDS  a"]);
    serve.signal("TERM");
    assert_eq!(serve.end().0, 0);
}

/// P-75, D-36: who asks for a Listener that is not there is told at once, over either variant, and so is who runs `serve`.
#[test]
fn a_name_that_is_not_there_is_told_to_both_sides_with_what_was_meant() {
    let directory = tempfile::tempdir().unwrap();
    let snapshot = Snapshot::builder()
        .listener(resources::listener("stock", resources::route("routes", "stock")))
        .cluster(resources::eds_cluster("stock"))
        .endpoints(resources::endpoints("stock", ["127.0.0.1:1"]))
        .build();
    fs::write(directory.path().join("stock.yaml"), snapshot.to_yaml().unwrap()).unwrap();
    let mut serve = Running::start(&["serve", path(directory.path()), "--listen", "127.0.0.1:0"]);
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 3 resources");
    for (node, features, expected) in [
        ("n1", "[]", "answered with NOT_FOUND: there is no such resource"),
        ("n2", r#"["mainstay_delta"]"#, "Listener \"stok\" does not exist on"),
    ] {
        let bootstrap = format!(
            r#"{{"node": {{"id": "{node}"}}, "xds_servers": [{{"server_uri": "{address}",
                "channel_creds": [{{"type": "insecure"}}], "server_features": {features}}}]}}"#
        );
        let begun = std::time::Instant::now();
        let output = mainstay_with_bootstrap(&bootstrap, &["get", "xds:///stok", "--timeout", "14s"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(expected), "{node}: {}", text(&output.stderr));
        assert!(begun.elapsed().as_secs() < 10, "{node}: others learn it after 15 s");
    }
    let line = serve.error_line();
    let expected = "node \"n1\" asks for Listener \"stok\", which is not here; did you mean \"stock\"?";
    assert!(line.contains("WARN") && line.ends_with(expected), "{line}");
    serve.signal("TERM");
    let (_, _, stderr) = serve.end();
    assert!(!stderr.contains("stok"), "once for each name: {stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_rejects_is_told_with_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[cluster("a")]);
    let mut serve = Running::start(&["serve", path(directory.path()), "--listen", "127.0.0.1:0"]);
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 1 resource");
    assert_eq!(serve.line(), "  + CDS  a");

    let mut client = AggregatedDiscoveryServiceClient::connect(format!("http://{address}")).await.unwrap();
    let (requests, stream) = mpsc::channel(1);
    let subscribe = DiscoveryRequest {
        node: Some(Node { id: "n1".to_owned(), ..Node::default() }),
        type_url: CLUSTER.to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(subscribe).await.unwrap();
    let mut responses = client.stream_aggregated_resources(ReceiverStream::new(stream)).await.unwrap().into_inner();
    let response = responses.message().await.unwrap().unwrap();
    assert_eq!(response.resources.len(), 1);
    assert_eq!(serve.line(), "node n1 came");

    let reject = DiscoveryRequest {
        type_url: CLUSTER.to_owned(),
        response_nonce: response.nonce,
        error_detail: Some(Status { code: 3, message: "I do not like it".to_owned(), ..Status::default() }),
        ..DiscoveryRequest::default()
    };
    requests.send(reject).await.unwrap();
    assert_eq!(serve.line(), "node n1 rejects CDS and has none: I do not like it");

    drop((requests, responses));
    assert_eq!(serve.line(), "node n1 left");
    serve.signal("INT");
    assert_eq!(serve.end().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn load_is_printed_where_it_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &[cluster("a")]);
    let flags = ["serve", path(directory.path()), "--listen", "127.0.0.1:0", "--print-load"];
    let mut serve = Running::start(&flags);
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 1 resource");
    assert_eq!(serve.line(), "  + CDS  a");

    let mut client = LoadReportingServiceClient::connect(format!("http://{address}")).await.unwrap();
    let (requests, stream) = mpsc::channel(1);
    let node = Some(Node { id: "n1".to_owned(), ..Node::default() });
    requests.send(LoadStatsRequest { node, ..LoadStatsRequest::default() }).await.unwrap();
    let mut responses = client.stream_load_stats(ReceiverStream::new(stream)).await.unwrap().into_inner();
    let wanted = responses.message().await.unwrap().unwrap();
    assert!(wanted.send_all_clusters && wanted.load_reporting_interval.is_some());

    let locality = Some(Locality { region: "r".to_owned(), zone: "z".to_owned(), ..Locality::default() });
    let stats = UpstreamLocalityStats {
        locality,
        total_issued_requests: 5,
        total_successful_requests: 3,
        total_error_requests: 1,
        total_requests_in_progress: 1,
        ..UpstreamLocalityStats::default()
    };
    let stats = ClusterStats {
        cluster_name: "a".to_owned(),
        upstream_locality_stats: vec![stats],
        total_dropped_requests: 2,
        dropped_requests: vec![DroppedRequests { category: "lb".to_owned(), dropped_count: 2 }],
        ..ClusterStats::default()
    };
    requests.send(LoadStatsRequest { node: None, cluster_stats: vec![stats] }).await.unwrap();
    assert_eq!(
        [serve.line(), serve.line()],
        [
            "load of node n1, cluster a, locality \"r/z\": 5 sent, 3 succeeded, 1 failed, 1 under way",
            "load of node n1, cluster a: 2 dropped (2 lb)"
        ]
    );
    serve.signal("INT");
    assert_eq!(serve.end().0, 0);
}

/// Replaces the file at once, so that no half of it can be read.
fn write(directory: &Path, documents: &[String]) {
    let draft = directory.join(".draft");
    fs::write(&draft, documents.join("\n---\n")).unwrap();
    fs::rename(draft, directory.join("clusters.yaml")).unwrap();
}

fn cluster(name: &str) -> String {
    format!("\"@type\": {CLUSTER}\nname: {name}\ntype: EDS\neds_cluster_config: {{ eds_config: {{ ads: {{}} }} }}")
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
