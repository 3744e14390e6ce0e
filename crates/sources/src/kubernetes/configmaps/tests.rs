use super::*;
use mainstay_control_plane::resources;

#[test]
fn what_a_config_map_has_wins_over_what_is_made_kb8() {
    let mut maps = maps();
    maps.set(Key::new("prod", "routes"), Some(map([("a.yaml", CLUSTER), ("b.json", r#"{"resources": []}"#)])));
    let (snapshots, problems) = maps.overlay(generated());
    assert_eq!(problems, Vec::<String>::new());
    let dns = resources::logical_dns_cluster("greeter.prod:80", "example.com:80");
    assert_eq!(snapshots.default, Snapshot::builder().cluster(dns).build());
    maps.set(Key::new("prod", "routes"), None);
    assert_eq!(maps.overlay(generated()).0.default, generated());
}

#[test]
fn what_has_errors_is_named_and_the_last_good_content_stays_kb8() {
    let (mut maps, key) = (maps(), Key::new("prod", "routes"));
    maps.set(key.clone(), Some(map([("a.yaml", CLUSTER)])));
    let good = maps.overlay(generated()).0;
    for (name, text, expected) in [
        (
            "a.yaml",
            "name: greeter.prod:80\n'@type': envoy.config.cluster.v3.Cluster\ntyp: EDS",
            "ConfigMap prod/routes/a.yaml:3: greeter.prod:80: unrecognized field name 'typ'",
        ),
        ("a.yaml", " ", "ConfigMap prod/routes/a.yaml: is empty: expected resources, or no such file"),
        ("a.txt", CLUSTER, "ConfigMap prod/routes/a.txt: expected a key that ends in .yaml, .yml or .json"),
    ] {
        maps.set(key.clone(), Some(map([(name, text)])));
        assert_eq!(maps.overlay(generated()), (good.clone(), vec![expected.to_owned()]), "{text}");
    }
    maps.set(key.clone(), Some(ConfigMap { binary: vec!["b".to_owned()], ..map([("a.yaml", CLUSTER)]) }));
    let expected = "ConfigMap prod/routes/b: expected text under data, found bytes under binaryData";
    assert_eq!(maps.overlay(generated()).1, [expected]);
    maps.set(key, None);
    assert_eq!(maps.overlay(generated()), (Snapshots { default: generated(), ..Snapshots::default() }, Vec::new()));
}

#[test]
fn the_judge_is_asked_about_each_config_map_kb8() {
    let judge = Judge::new(|sources: &Sources| match sources.resources.first() {
        Some(source) => Err(LoadErrors(vec![malformed(source.location.file().to_owned(), "no")])),
        None => Ok(()),
    });
    let mut maps = ConfigMaps::new(judge);
    maps.set(Key::new("prod", "routes"), Some(map([("a.yaml", CLUSTER)])));
    assert_eq!(maps.overlay(Snapshot::default()).1, ["ConfigMap prod/routes/a.yaml: no"]);
}

#[test]
fn services_of_another_namespace_cannot_be_overridden_kb9() {
    let mut maps = maps();
    maps.set(Key::new("evil", "routes"), Some(map([("a.yaml", CLUSTER)])));
    let (snapshots, problems) = maps.overlay(generated());
    assert_eq!(snapshots.default, generated());
    let expected = "ConfigMap evil/routes/a.yaml: envoy.config.cluster.v3.Cluster greeter.prod:80: \
                    it is of a Service in namespace prod, and only ConfigMaps there win over it";
    assert_eq!(problems, [expected]);
    // Nor for a single node.
    maps.set(
        Key::new("evil", "routes"),
        Some(map([("a.yaml", &format!("node: n\nresources:\n- {}", CLUSTER.replace('\n', "\n  ")))])),
    );
    let (snapshots, problems) = maps.overlay(generated());
    assert_eq!((snapshots.nodes.len(), problems.len()), (0, 1));
}

#[test]
fn of_two_with_one_name_the_first_wins_and_the_other_is_named_kb9() {
    let mut maps = maps();
    let other = CLUSTER.replace("example.com", "example.org").replace("greeter.prod:80", "free");
    maps.set(Key::new("b", "x"), Some(map([("x.yaml", &other)])));
    maps.set(Key::new("a", "y"), Some(map([("y.yaml", &CLUSTER.replace("greeter.prod:80", "free"))])));
    let (snapshots, problems) = maps.overlay(Snapshot::default());
    let first = resources::logical_dns_cluster("free", "example.com:80");
    assert_eq!(snapshots.default, Snapshot::builder().cluster(first).build());
    assert_eq!(
        problems,
        ["ConfigMap b/x/x.yaml: envoy.config.cluster.v3.Cluster free: a/y/y.yaml has it, too, and wins"]
    );
}

#[test]
fn a_node_has_its_own_and_all_that_others_have_kb8() {
    let mut maps = maps();
    let of_node = format!("node: n\nresources:\n- {}", CLUSTER.replace("greeter.prod:80", "own").replace('\n', "\n  "));
    maps.set(Key::new("prod", "routes"), Some(map([("a.yaml", &of_node)])));
    let (snapshots, _) = maps.overlay(generated());
    assert_eq!(snapshots.default, generated());
    let own = &snapshots.nodes["n"];
    assert!(own.contains(&TypeUrl::CLUSTER, "own") && own.contains(&TypeUrl::CLUSTER, "greeter.prod:80"));
}

const CLUSTER: &str = r#""@type": envoy.config.cluster.v3.Cluster
name: greeter.prod:80
type: LOGICAL_DNS
load_assignment:
  cluster_name: greeter.prod:80
  endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: example.com, port_value: 80}}}}]}]"#;

fn maps() -> ConfigMaps {
    ConfigMaps::new(Judge::new(|_: &Sources| Ok(())))
}

fn map<const N: usize>(data: [(&str, &str); N]) -> ConfigMap {
    let data = data.into_iter().map(|(key, text)| (key.to_owned(), text.to_owned()));
    ConfigMap { data: data.collect(), ..ConfigMap::default() }
}

fn generated() -> Snapshot {
    Snapshot::builder().cluster(resources::eds_cluster("greeter.prod:80")).build()
}
