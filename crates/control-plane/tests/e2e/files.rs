//! Snapshots from files: what they say, what is wrong with them, and hot reload.

use std::fs;
use std::path::Path;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use mainstay_control_plane::{
    Body, ControlPlane, Deletions, DirectoryWatch, LoadErrors, Reload, Resource, Snapshot, TypeUrl, load_directory,
    resources,
};
use prost::Message;
use tempfile::TempDir;
use tonic::Code;

use crate::common::{Client, in_time};

#[test]
fn a_snapshot_survives_yaml_and_json() {
    let snapshot = everything();
    let yaml = snapshot.to_yaml().unwrap();
    assert_eq!(meaning(&Snapshot::from_yaml(&yaml).unwrap()), meaning(&snapshot), "{yaml}");
    assert!(!yaml.contains('>'), "{yaml}");
    let json = snapshot.to_json().unwrap();
    let directory = files([("all.json", &json)]);
    let loaded = load_directory(directory.path()).unwrap().default;
    assert_eq!(meaning(&loaded), meaning(&snapshot), "{json}");
    // What came from a file gives the same file again.
    assert_eq!(loaded.to_json().unwrap(), json);
}

#[test]
fn yaml_is_written_as_envoy_users_know_it() {
    let yaml = Snapshot::builder().cluster(resources::eds_cluster("a")).build().to_yaml().unwrap();
    let expected = "\
resources:
- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: a
  type: EDS
  eds_cluster_config:
    eds_config:
      ads: {}
      resource_api_version: V3
";
    assert_eq!(yaml, expected);
}

#[test]
fn all_forms_of_a_file_are_read() {
    let directory = files([
        (
            "list.yaml",
            "resources:\n- {'@type': envoy.config.cluster.v3.Cluster, name: list, type: EDS}\nversion_info: '1'\n",
        ),
        ("bare.yml", "name: bare\n'@type': x/envoy.config.cluster.v3.Cluster\n"),
        ("array.json", r#"[{"@type": "envoy.config.cluster.v3.Cluster", "name": "array", "lbPolicy": "RING_HASH"}]"#),
        (
            "many.yaml",
            "---\n'@type': envoy.config.cluster.v3.Cluster\nname: one\n---\n---\nresources: {two: {'@type': envoy.config.cluster.v3.Cluster, name: two}}\n",
        ),
        ("deep/er/map.yaml", "resources: {leds: {'@type': envoy.config.endpoint.v3.LbEndpointCollection}}\n"),
        ("empty.yaml", "# nothing\n"),
        ("README.md", "not a resource"),
        (".hidden.yaml", "not: a resource"),
        ("..2024/old.yaml", "not: a resource"),
    ]);
    let snapshot = load_directory(directory.path()).unwrap().default;
    let names: Vec<String> = snapshot.resources().map(|resource| resource.name).collect();
    assert_eq!(names, ["array", "bare", "list", "one", "two", "leds"]);
    let list = snapshot.resources().find(|resource| resource.name == "list").unwrap();
    assert_eq!(cluster(&list).cluster_discovery_type, Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())));
}

#[test]
fn types_inside_types_are_packed_wherever_the_type_stands() {
    let yaml = "
'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster
name: aggregate
cluster_type:
  typed_config:
    clusters: [a, b]
    '@type': type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig
  name: envoy.clusters.aggregate
lb_policy: CLUSTER_PROVIDED
";
    let snapshot = Snapshot::from_yaml(yaml).unwrap();
    let expected = Snapshot::builder().cluster(resources::aggregate_cluster("aggregate", ["a", "b"])).build();
    assert_eq!(meaning(&snapshot), meaning(&expected));
}

#[test]
fn nodes_have_their_own_files_on_top_of_the_shared_ones() {
    let directory = files([
        ("shared.yaml", &cluster_yaml("shared")),
        ("nodes/n1/own.yaml", &cluster_yaml("own")),
        ("other.yaml", &format!("node: n2\nresources:\n- {}", cluster_yaml("special"))),
    ]);
    let snapshots = load_directory(directory.path()).unwrap();
    let names = |snapshot: &Snapshot| snapshot.resources().map(|resource| resource.name).collect::<Vec<_>>();
    assert_eq!(names(&snapshots.default), ["shared"]);
    assert_eq!(names(&snapshots.nodes["n1"]), ["own", "shared"]);
    assert_eq!(names(&snapshots.nodes["n2"]), ["shared", "special"]);
}

#[test]
fn the_same_text_gives_the_same_bytes() {
    // Protobuf maps have no order of their own.
    let metadata: String = (0..20).map(|n| format!("k{n}: {{a: {n}, b: [x], c: {{d: 1, e: 2}}}}, ")).collect();
    let yaml =
        format!("{{'@type': envoy.config.cluster.v3.Cluster, name: a, metadata: {{filter_metadata: {{{metadata}}}}}}}");
    let first = Snapshot::from_yaml(&yaml).unwrap();
    assert_eq!(cluster(&first.resources().next().unwrap()).metadata.unwrap().filter_metadata.len(), 20);
    for _ in 0..5 {
        assert_eq!(Snapshot::from_yaml(&yaml).unwrap(), first);
    }
}

#[test]
fn errors_name_file_line_field_and_what_was_expected() {
    let directory = files([
        (
            "a.yaml",
            "resources:\n  - '@type': envoy.config.route.v3.RouteConfiguration\n    name: r\n    virtual_hosts:\n      - name: v\n        domains: ['*']\n        routes:\n          - match: { prefx: / }\n",
        ),
        ("b.yaml", "'@type': envoy.config.cluster.v3.Cluster\nname: b\nconnect_timeout: soon\n"),
        ("c.yaml", "resources:\n- {'@type': my.Own.Type}\n"),
        ("d.yaml", "{\n"),
        ("e.json", "{\n\"resources\": [\n}"),
        ("f.yaml", "- '@type': envoy.config.cluster.v3.Cluster\n  type: EDS\n"),
        ("g.yaml", "clusters: []\n"),
        ("h.yaml", "'@type': envoy.config.endpoint.v3.LbEndpointCollection\n"),
        (
            "i.yaml",
            "'@type': envoy.config.listener.v3.Listener\nname: i\napi_listener:\n  api_listener:\n    '@type': envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n    rds:\n      route_config_name: 7\n",
        ),
        ("j.json", "{\"@type\": \"envoy.config.cluster.v3.Cluster\",\n \"name\": \"j\",\n \"type\": \"EDSS\"}"),
        ("k.yaml", &cluster_yaml("twice")),
        ("l.yaml", &cluster_yaml("twice")),
    ]);
    let errors = load_directory(directory.path()).unwrap_err();
    let lines: Vec<String> =
        errors.to_string().lines().map(|line| line.replace(&format!("{}/", directory.path().display()), "")).collect();
    let expected = [
        "a.yaml:8: r: virtual_hosts[0].routes[0].match: unrecognized field name 'prefx'",
        "b.yaml:3: b: connect_timeout: ",
        "c.yaml:2: @type: no message type \"my.Own.Type\" is known",
        "d.yaml:",
        "e.json:3: is not JSON: ",
        "f.yaml:1: a envoy.config.cluster.v3.Cluster needs a name",
        "g.yaml:1: clusters: expected \"resources\"",
        "h.yaml:1: envoy.config.endpoint.v3.LbEndpointCollection has no name of its own",
        "i.yaml:7: i: api_listener.api_listener.rds.route_config_name: invalid type: integer `7`, expected a string",
        "j.json:3: j: type: ",
        "l.yaml:1: twice: there is already a envoy.config.cluster.v3.Cluster of this name in ",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.starts_with(expected), "{line:?} does not start with {expected:?}");
    }
}

#[test]
fn what_is_no_message_cannot_be_exported_and_says_why() {
    let snapshot = Snapshot::builder().resource(Resource::new("my.Type", "a", vec![1])).build();
    let error = snapshot.to_yaml().unwrap_err();
    assert!(error.to_string().contains("my.Type"), "{error}");
}

#[tokio::test]
async fn a_changed_file_is_served_and_only_its_type_has_a_new_version() {
    let directory = files([("c.yaml", &cluster_yaml("a")), ("e.yaml", &endpoints_yaml("a", 1))]);
    let (control_plane, mut watch) = watch(directory.path()).await;
    let server = control_plane.serve("127.0.0.1:0").await.unwrap();
    let mut client = Client::connect(server.addr()).await;
    client.subscribe(TypeUrl::CLUSTER, &["a"]);
    let first = client.response().await;
    client.subscribe(TypeUrl::ENDPOINTS, &["a"]);
    client.response().await;
    write(directory.path(), "e.yaml", &endpoints_yaml("a", 2));
    assert_eq!(applied(&mut watch).await, 2);
    let update = client.response().await;
    assert_eq!(update.type_url, TypeUrl::ENDPOINTS.as_str());
    assert_eq!(control_plane.version(&TypeUrl::CLUSTER), Some(first.version_info));
}

#[tokio::test]
async fn a_bad_file_changes_nothing_until_it_is_good_again() {
    let directory = files([("a.yaml", &cluster_yaml("a")), ("b.yaml", &cluster_yaml("b"))]);
    let (control_plane, mut watch) = watch(directory.path()).await;
    let good = control_plane.snapshot();
    // One file is good and new, the other is bad: neither may count.
    write(directory.path(), "c.yaml", &cluster_yaml("c"));
    assert_eq!(applied(&mut watch).await, 3);
    let with_c = control_plane.snapshot();
    assert_ne!(good, with_c);
    fs::remove_file(directory.path().join("c.yaml")).unwrap();
    write(directory.path(), "b.yaml", "not: right");
    let errors = rejected(&mut watch).await;
    assert_eq!(errors.0.len(), 1);
    assert_eq!(errors.0[0].file, directory.path().join("b.yaml"));
    assert_eq!(control_plane.snapshot(), with_c);
    write(directory.path(), "b.yaml", &cluster_yaml("b"));
    assert_eq!(applied(&mut watch).await, 2);
    assert_eq!(control_plane.snapshot(), good);
}

#[tokio::test]
async fn a_file_renamed_into_place_is_noticed() {
    let directory = files([("a.yaml", &cluster_yaml("a"))]);
    let (control_plane, mut watch) = watch(directory.path()).await;
    write(directory.path(), ".a.yaml.tmp", &cluster_yaml("new"));
    fs::rename(directory.path().join(".a.yaml.tmp"), directory.path().join("a.yaml")).unwrap();
    applied(&mut watch).await;
    assert!(control_plane.snapshot().unwrap().contains(&TypeUrl::CLUSTER, "new"));
}

#[tokio::test]
async fn a_file_in_a_new_subdirectory_is_noticed() {
    let directory = files([("a.yaml", &cluster_yaml("a"))]);
    let (control_plane, mut watch) = watch(directory.path()).await;
    write(directory.path(), "nodes/n1/b.yaml", &cluster_yaml("b"));
    applied(&mut watch).await;
    assert_eq!(control_plane.snapshot_for_node("n1").unwrap().len(), 2);
    assert_eq!(control_plane.snapshot().unwrap().len(), 1);
}

/// As `generate > all.yaml` does it: the shell empties the file, the generator writes it in pieces, with pauses.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn half_a_write_is_never_in_force() {
    use std::io::Write;
    let all = [cluster_yaml("a"), cluster_yaml("b"), cluster_yaml("c"), cluster_yaml("d")];
    let directory = files([("all.yaml", &all.join("---\n"))]);
    let file = fs::canonicalize(directory.path()).unwrap().join("all.yaml");
    let (control_plane, mut watch) = watch(directory.path()).await;
    let before = control_plane.snapshot();
    let mut writer = fs::File::create(&file).unwrap();
    assert_eq!(in_time(watch.next()).await, Some(Reload::Waiting(vec![file.clone()])));
    assert_eq!(control_plane.snapshot(), before, "it is empty now");
    writer.write_all(all[..2].join("---\n").as_bytes()).unwrap();
    writer.sync_all().unwrap();
    // Another file is complete. It must wait as well: both may belong together.
    write(directory.path(), ".e.yaml.draft", &cluster_yaml("e"));
    fs::rename(directory.path().join(".e.yaml.draft"), directory.path().join("e.yaml")).unwrap();
    writer.write_all(format!("---\n{}", all[2..].join("---\n")).as_bytes()).unwrap();
    assert_eq!(control_plane.snapshot(), before, "half of it is there, and valid");
    drop(writer);
    assert_eq!(in_time(watch.next()).await, Some(Reload::Applied { resources: 5 }), "the first news since");
}

/// A new file that is made first and written later, as by `cp` from a slow disk.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_new_file_is_read_when_it_is_closed() {
    use std::io::Write;
    let directory = files([("a.yaml", &cluster_yaml("a"))]);
    let file = fs::canonicalize(directory.path()).unwrap().join("b.yaml");
    let (control_plane, mut watch) = watch(directory.path()).await;
    let mut writer = fs::File::create(&file).unwrap();
    assert_eq!(in_time(watch.next()).await, Some(Reload::Waiting(vec![file])));
    assert_eq!(control_plane.snapshot().unwrap().len(), 1);
    writer.write_all(cluster_yaml("b").as_bytes()).unwrap();
    drop(writer);
    assert_eq!(in_time(watch.next()).await, Some(Reload::Applied { resources: 2 }));
}

#[tokio::test]
async fn a_file_that_was_emptied_is_an_error() {
    let directory = files([("a.yaml", &cluster_yaml("a")), ("b.yaml", &cluster_yaml("b"))]);
    let (control_plane, mut watch) = watch(directory.path()).await;
    write(directory.path(), ".draft", "\n");
    fs::rename(directory.path().join(".draft"), directory.path().join("b.yaml")).unwrap();
    let errors = rejected(&mut watch).await;
    assert!(errors.to_string().ends_with("b.yaml: is empty: expected resources, or no such file"), "{errors}");
    assert_eq!(control_plane.snapshot().unwrap().len(), 2);
    fs::remove_file(directory.path().join("b.yaml")).unwrap();
    assert_eq!(applied(&mut watch).await, 1, "a file may go");
}

#[tokio::test]
async fn a_directory_without_resources_is_an_error_unless_allowed() {
    let directory = files([("README.md", "nothing to serve")]);
    let error = ControlPlane::new().watch_directory(directory.path()).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{}: holds no resources", directory.path().display()));
    let control_plane = ControlPlane::new();
    let mut watch = control_plane.watch_directory_with(directory.path(), Deletions::Allowed).await.unwrap();
    write(directory.path(), "a.yaml", &cluster_yaml("a"));
    assert_eq!(applied(&mut watch).await, 1);
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    assert_eq!(applied(&mut watch).await, 0);
}

#[tokio::test]
async fn a_change_that_deletes_most_resources_is_an_error_unless_allowed() {
    let many: String = (0..10).map(|n| format!("{}---\n", cluster_yaml(&format!("c{n}")))).collect();
    let few = [cluster_yaml("c0"), cluster_yaml("c1"), cluster_yaml("c2"), cluster_yaml("c3")].join("---\n");
    let directory = files([("all.yaml", &many), ("nodes/n/own.yaml", &cluster_yaml("own"))]);
    let (control_plane, mut bounded) = watch(directory.path()).await;
    let free = ControlPlane::new();
    let mut allowed = free.watch_directory_with(directory.path(), Deletions::Allowed).await.unwrap();
    write(directory.path(), "all.yaml", &few);
    assert_eq!(applied(&mut allowed).await, 4);
    let errors = rejected(&mut bounded).await;
    let problem = "holds 5 resources where 11 are served: that would delete more than half of them";
    assert!(errors.to_string().ends_with(problem), "{errors}");
    assert_eq!(control_plane.snapshot().unwrap().len(), 10);
    write(directory.path(), "all.yaml", &format!("{few}---\n{}", cluster_yaml("c4")));
    assert_eq!(applied(&mut bounded).await, 5, "half of them may go");
}

#[cfg(unix)]
#[tokio::test]
async fn a_config_map_that_kubernetes_switches_is_noticed_every_time() {
    use std::os::unix::fs::symlink;
    // As the kubelet does it: the visible file is a link into `..data`, which is a link that is renamed over.
    let directory = files([("..v0/a.yaml", &cluster_yaml("v0"))]);
    symlink("..v0", directory.path().join("..data")).unwrap();
    symlink("..data/a.yaml", directory.path().join("a.yaml")).unwrap();
    let (control_plane, mut watch) = watch(directory.path()).await;
    for n in 1..4 {
        let (name, old) = (format!("v{n}"), format!("..v{}", n - 1));
        write(directory.path(), &format!("..{name}/a.yaml"), &cluster_yaml(&name));
        symlink(format!("..{name}"), directory.path().join("..data_tmp")).unwrap();
        fs::rename(directory.path().join("..data_tmp"), directory.path().join("..data")).unwrap();
        fs::remove_dir_all(directory.path().join(old)).unwrap();
        applied(&mut watch).await;
        assert!(control_plane.snapshot().unwrap().contains(&TypeUrl::CLUSTER, &name));
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_directory_behind_a_switched_link_is_noticed_every_time() {
    use std::os::unix::fs::symlink;
    let base = files([("v0/xds/a.yaml", &cluster_yaml("v0")), ("v1/xds/a.yaml", &cluster_yaml("v1"))]);
    symlink("v0", base.path().join("current")).unwrap();
    let (control_plane, mut watch) = watch(&base.path().join("current/xds")).await;
    for name in ["v1", "v0", "v1"] {
        symlink(name, base.path().join("next")).unwrap();
        fs::rename(base.path().join("next"), base.path().join("current")).unwrap();
        applied(&mut watch).await;
        assert!(control_plane.snapshot().unwrap().contains(&TypeUrl::CLUSTER, name));
    }
}

#[tokio::test]
async fn a_directory_that_goes_away_and_comes_back_is_noticed() {
    let base = files([("xds/a.yaml", &cluster_yaml("a"))]);
    let directory = base.path().join("xds");
    let (control_plane, mut watch) = watch(&directory).await;
    fs::rename(&directory, base.path().join("away")).unwrap();
    let errors = rejected(&mut watch).await;
    assert!(errors.to_string().contains("cannot be read"), "{errors}");
    assert_eq!(control_plane.snapshot().unwrap().len(), 1);
    write(base.path(), "away/b.yaml", &cluster_yaml("b"));
    fs::rename(base.path().join("away"), &directory).unwrap();
    assert_eq!(applied(&mut watch).await, 2);
}

#[tokio::test]
async fn a_directory_that_cannot_be_read_at_first_is_an_error() {
    let directory = files([("a.yaml", "nonsense")]);
    let error = ControlPlane::new().watch_directory(directory.path()).await.unwrap_err();
    assert!(error.to_string().ends_with("a.yaml:1: expected resources, found the text \"nonsense\""), "{error}");
    assert!(ControlPlane::new().watch_directory(directory.path().join("none")).await.is_err());
}

fn everything() -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("l1", resources::rds("r1")))
        .listener(resources::listener("l2", resources::weighted_route("inline", [("c1", 1), ("c2", 99)])))
        .listener(resources::server_listener("server", "[::]:8080", resources::server_route("here")))
        .route(resources::route_table("r1", [resources::prefix_route("/a", "c1"), resources::prefix_route("", "c2")]))
        .cluster(resources::eds_cluster("c1"))
        .cluster(resources::eds_cluster_named("c2", "xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/c2"))
        .cluster(resources::logical_dns_cluster("dns", "backend.example.com:443"))
        .cluster(resources::aggregate_cluster("all", ["c1", "dns"]))
        .endpoints(resources::endpoints("c1", ["10.0.0.1:80", "[::1]:80"]))
        .endpoints(resources::localities("c2", [resources::leds_locality("zone", "list")]))
        .endpoint_collection("list", resources::endpoint_collection(["10.0.0.2:80"]))
        .error(TypeUrl::CLUSTER, "gone", Code::NotFound, "no such cluster: 'gone'")
        .build()
}

/// The resources; clusters decoded, because their fields may be encoded in any order.
fn meaning(snapshot: &Snapshot) -> Vec<(Resource, Option<Cluster>)> {
    let meaning = |mut resource: Resource| match &mut resource.body {
        Body::Message(any) if resource.type_url == TypeUrl::CLUSTER => {
            let cluster = Cluster::decode(std::mem::take(&mut any.value).as_slice()).unwrap();
            (resource, Some(cluster))
        }
        _ => (resource, None),
    };
    snapshot.resources().map(meaning).collect()
}

fn cluster(resource: &Resource) -> Cluster {
    let Body::Message(any) = &resource.body else { panic!("{resource:?}") };
    Cluster::decode(any.value.as_slice()).unwrap()
}

fn cluster_yaml(name: &str) -> String {
    format!("{{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: {name}, type: EDS}}\n")
}

fn endpoints_yaml(cluster: &str, port: u16) -> String {
    Snapshot::builder()
        .endpoints(resources::endpoints(cluster, [format!("10.0.0.1:{port}")]))
        .build()
        .to_yaml()
        .unwrap()
}

fn files<const N: usize>(files: [(&str, &str); N]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        write(directory.path(), name, text);
    }
    directory
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

async fn watch(directory: &Path) -> (ControlPlane, DirectoryWatch) {
    let control_plane = ControlPlane::new();
    let watch = control_plane.watch_directory(directory).await.unwrap();
    (control_plane, watch)
}

/// Waits for good news. A reload can catch a file half written: then bad news come first.
async fn applied(watch: &mut DirectoryWatch) -> usize {
    loop {
        if let Some(Reload::Applied { resources }) = in_time(watch.next()).await {
            return resources;
        }
    }
}

async fn rejected(watch: &mut DirectoryWatch) -> LoadErrors {
    loop {
        if let Some(Reload::Rejected(errors)) = in_time(watch.next()).await {
            return errors;
        }
    }
}

#[test]
fn what_json_cannot_say_is_written_as_bytes_and_read_as_the_same() {
    // A field that nobody knows behind a good one, and fields in another order than ours.
    let mut unknown = resources::eds_cluster("unknown").encode_to_vec();
    unknown.extend([0xfa, 0xff, 0x0f, 0x01, b'x']);
    let mut snapshot = Snapshot::builder().cluster(resources::eds_cluster("plain")).build();
    snapshot.insert(Resource::new(TypeUrl::CLUSTER, "unknown", unknown));
    let text = snapshot.to_exact_yaml().unwrap();
    assert!(text.contains("\nencoded:") && text.contains("name: plain"), "{text}");
    assert_eq!(Snapshot::from_yaml(&text).unwrap(), snapshot);
    assert_ne!(Snapshot::from_yaml(&snapshot.to_yaml().unwrap()).unwrap(), snapshot, "JSON loses it");
    let wrong = "encoded: [{ type_url: envoy.config.cluster.v3.Cluster, name: a, value: '!' }]";
    let error = Snapshot::from_yaml(wrong).unwrap_err().to_string();
    assert!(error.starts_with("<text>:1: a: value: expected bytes in base64: "), "{error}");
}
