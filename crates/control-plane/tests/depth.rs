//! However deep something is nested, whoever reads or writes it says so instead of using up its stack, which is that of a
//! thread of tokio's here.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::google::protobuf::Any;
use mainstay_control_plane::{Resource, Snapshot, TypeUrl, load_directory};
use prost::Message;

/// Whether there are too many of them is for validation to say, which allows 16, not for the reader.
#[test]
fn nested_policies_are_read() {
    for count in [1, 12, 16, 17] {
        let text = cluster(&format!("\"load_balancing_policy\": {}", policies(count)));
        assert_eq!(on_a_small_stack(move || read_as("json", &text)), Ok(1), "{count} in JSON");
        let text = cluster(&format!("\"load_balancing_policy\": {}", policies(count)));
        assert_eq!(on_a_small_stack(move || read_as("yaml", &text)), Ok(1), "{count} in YAML");
    }
}

#[test]
fn what_is_too_deep_is_refused_by_the_name_of_its_field() {
    for extension in ["json", "yaml"] {
        let text = cluster(&format!("\"load_balancing_policy\": {}", policies(24)));
        let error = on_a_small_stack(move || read_as(extension, &text)).unwrap_err();
        let begin =
            "deep: load_balancing_policy.policies[0].typed_extension_config.typed_config.endpoint_picking_policy.";
        assert!(error.contains(begin) && error.ends_with(": is nested more than 100 deep"), "{error}");

        let text = cluster(&format!("\"metadata\": {{\"filter_metadata\": {{\"a\": {}}}}}", structs(110)));
        let error = on_a_small_stack(move || read_as(extension, &text)).unwrap_err();
        assert!(error.contains("metadata.filter_metadata.a.a.a.") && error.ends_with("more than 100 deep"), "{error}");
    }
}

#[test]
fn what_is_too_deep_for_a_parser_is_refused() {
    for count in [150, 100_000] {
        for extension in ["json", "yaml"] {
            let text = cluster(&format!("\"metadata\": {{\"filter_metadata\": {{\"a\": {}}}}}", structs(count)));
            let error = on_a_small_stack(move || read_as(extension, &text)).unwrap_err();
            assert!(error.contains("limit exceeded") || error.contains("Depth"), "{count} in {extension}: {error}");
        }
    }
}

/// Decoders count anew in each Any, so nothing else bounds these. A control plane may send them.
#[test]
fn what_comes_over_the_wire_is_written_up_to_a_depth() {
    let write = |count| {
        let value = Cluster { name: "x".to_owned(), ..Cluster::default() }.encode_to_vec();
        let mut any = Any { type_url: TypeUrl::CLUSTER.as_str().to_owned(), value };
        for _ in 0..count {
            any = Any { type_url: "type.googleapis.com/google.protobuf.Any".to_owned(), value: any.encode_to_vec() };
        }
        let mut cluster = Cluster { name: "deep".to_owned(), ..Cluster::default() };
        cluster.typed_extension_protocol_options.insert("a".to_owned(), any);
        let mut snapshot = Snapshot::default();
        snapshot.insert(Resource::new(TypeUrl::CLUSTER, "deep", cluster.encode_to_vec()));
        snapshot
    };
    let shallow = write(40);
    assert!(on_a_small_stack(move || shallow.to_json()).is_ok());
    let deep = write(2000);
    let (written, error) = on_a_small_stack(move || (deep.to_exact_yaml(), deep.to_yaml().unwrap_err()));
    let error = error.to_string();
    assert!(error.contains("typed_extension_protocol_options.value: is nested more than 100 deep"), "{error}");
    assert!(written.unwrap().contains("encoded:"), "its bytes are kept as they are");
}

fn read_as(extension: &str, text: &str) -> Result<usize, String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a").with_extension(extension), text).unwrap();
    let read = load_directory(directory.path());
    read.map(|snapshots| snapshots.default.resources().count()).map_err(|errors| errors.to_string())
}

fn cluster(field: &str) -> String {
    format!(r#"{{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "deep", {field}}}"#)
}

/// Policies in each other, `count` lists of them.
fn policies(count: usize) -> String {
    let policy = |name: &str, child: &str| {
        let config =
            format!(r#"{{"@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.{name}"{child}}}"#);
        format!(r#"{{"policies": [{{"typed_extension_config": {{"name": "a", "typed_config": {config}}}}}]}}"#)
    };
    (1..count).fold(policy("round_robin.v3.RoundRobin", ""), |child, _| {
        policy("wrr_locality.v3.WrrLocality", &format!(r#", "endpoint_picking_policy": {child}"#))
    })
}

fn structs(count: usize) -> String {
    format!("{}1{}", "{\"a\": ".repeat(count), "}".repeat(count))
}

fn on_a_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap().join().unwrap()
}
