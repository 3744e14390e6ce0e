//! The corpus of `interop/verdicts` against our own parsers and checks (OP-14): what our client was seen to take or reject is what
//! the parsers say, that is what C-core does unless `reasons.txt` says why not, and what everybody takes is no error to `check`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mainstay_check::{Finding, Input, Item, Level, Origin, check};
use mainstay_control_plane::{Body, Resource, Snapshot, resources};
use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::resource::{ParseContext, ResourceType, decode};
use serde_json::Value;

#[test]
fn there_are_enough_cases_and_all_were_measured() {
    let cases: BTreeSet<String> = cases().into_keys().collect();
    assert!(cases.len() >= 150, "{}", cases.len());
    let measured: BTreeSet<String> = measured().into_keys().collect();
    assert_eq!(cases, measured, "interop/run --only verdicts --record");
}

#[test]
fn everybody_was_asked_about_what_concerns_them() {
    for (name, case) in measured() {
        let verdicts = case["verdicts"].as_object().unwrap();
        for who in ["mainstay", "go", "cpp", "java"] {
            assert!(verdicts.get(who).is_some_and(|verdict| verdict["rpc"].is_string()), "{name}: {who}");
        }
    }
    let of_envoy: Vec<String> =
        measured().into_iter().filter(|(_, case)| !case["verdicts"]["envoy"].is_null()).map(|(name, _)| name).collect();
    assert!(of_envoy.len() >= 150 && of_envoy.iter().all(|name| !name.starts_with("listener-")), "{}", of_envoy.len());
    assert!(of_envoy.contains(&"cluster-plain".to_owned()) && of_envoy.contains(&"routes-plain".to_owned()));
}

#[test]
fn our_parsers_say_what_our_client_does() {
    for (name, case) in measured() {
        let resource = resource(&cases()[&name]);
        let said = refusal(&resource);
        let is_taken = case["verdicts"]["mainstay"]["ack"].as_bool().unwrap();
        assert_eq!(said.is_none(), is_taken, "{name}: {said:?}");
    }
}

#[test]
fn where_c_core_says_something_else_there_is_a_reason() {
    let text = fs::read_to_string(directory().join("reasons.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut reasons: BTreeMap<&str, &str> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let mut unexplained = Vec::new();
    for (name, case) in measured() {
        let (ours, theirs) = (&case["verdicts"]["mainstay"], &case["verdicts"]["cpp"]);
        let reason = reasons.remove(name.as_str());
        match (ours["ack"] == theirs["ack"], reason) {
            (false, None) => unexplained.push(format!("{name}: ours {ours}, C-core's {theirs}")),
            (true, Some(_)) => unexplained.push(format!("{name}: there is no difference to explain any more")),
            (true, None) | (false, Some(_)) => {}
        }
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(reasons.is_empty(), "no such cases: {reasons:?}");
}

#[test]
fn what_every_client_takes_and_serves_by_is_no_error() {
    let mut count = 0;
    for (name, case) in measured() {
        let verdicts = case["verdicts"].as_object().unwrap();
        // Of Envoy no RPCs were asked for, and it is no client of gRPC.
        let clients = verdicts.iter().filter(|(who, _)| *who != "envoy");
        if !clients.clone().all(|(_, verdict)| verdict["ack"] == true && verdict["rpc"] == "OK") {
            continue;
        }
        count += 1;
        let errors: Vec<Finding> =
            check(&input(&name)).into_iter().filter(|finding| finding.level() == Level::Error).collect();
        assert_eq!(errors, [], "{name}");
    }
    assert!(count > 60, "{count}");
}

/// The texts of all cases.
fn cases() -> BTreeMap<String, String> {
    let entries = fs::read_dir(directory().join("cases")).unwrap().map(|entry| entry.unwrap().path());
    let case =
        |path: PathBuf| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(path).unwrap());
    entries.map(case).collect()
}

fn measured() -> BTreeMap<String, Value> {
    let data: Value = serde_json::from_str(include_str!("../data/verdicts.json")).unwrap();
    data["cases"].as_object().unwrap().iter().map(|(name, case)| (name.clone(), case.clone())).collect()
}

/// The resource of a case, which is the last thing in its file.
fn resource(case: &str) -> Resource {
    let (_, body) = case.split_once("\nresource:\n  ").unwrap();
    let snapshot = Snapshot::from_yaml(&format!("resources:\n- {body}")).unwrap();
    snapshot.resources().next().unwrap()
}

/// Why our client rejects a resource, if it does.
fn refusal(resource: &Resource) -> Option<String> {
    let text = r#"{"xds_servers": [{"server_uri": "server:1", "channel_creds": [{"type": "insecure"}]}],
        "certificate_providers": {"good": {"plugin_name": "file_watcher", "config": {"ca_certificate_file": "/nowhere"}}}}"#;
    let bootstrap = Bootstrap::parse(text, Default::default()).unwrap();
    let Body::Message(any) = &resource.body else { panic!("{resource:?}") };
    let resource_type = ResourceType::from_type_url(resource.type_url.as_str()).unwrap();
    let cx = ParseContext { bootstrap: &bootstrap, server: &bootstrap.servers[0] };
    decode(resource_type, &any.value.clone().into(), cx).result.err().map(|invalid| invalid.to_string())
}

/// The resource of a case, and plain ones around it, as the runner serves them.
fn input(name: &str) -> Input {
    let case = &cases()[name];
    let address = || ["127.0.0.1:50051".parse::<std::net::SocketAddr>().unwrap()];
    let mut all = vec![
        resources::listener(name, resources::rds(name)).into(),
        resources::route(name, name).into(),
        resources::eds_cluster(name).into(),
        resources::endpoints(name, address()).into(),
    ];
    for other in case.lines().filter_map(|line| line.strip_prefix(&format!("  - {name}-"))) {
        let other = format!("{name}-{other}");
        all.push(resources::eds_cluster(&other).into());
        all.push(resources::endpoints(&other, address()).into());
    }
    let own = resource(case);
    all.retain(|plain: &Resource| plain.type_url != own.type_url || plain.name != own.name);
    all.push(own);
    let item = |resource: Resource| {
        let Body::Message(any) = resource.body else { panic!("{name}") };
        Item::new(&any.type_url, resource.name, any.value, Origin::new("case.yaml"))
    };
    Input { items: all.into_iter().map(item).collect(), ..Input::default() }
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/verdicts")
}
