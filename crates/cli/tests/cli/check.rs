//! `mainstay check` as its users see it, and `serve` behind it.

use std::{fs, path::Path};

use serde_json::Value;

use crate::program::{Running, mainstay, text};

#[test]
fn a_finding_has_a_place_a_cause_and_an_exit_code() {
    // OP-9
    let file = case("MS201/fail.yaml");
    let output = mainstay(&["check", &file]);
    assert_eq!(output.status.code(), Some(1));
    let path = "virtual_hosts[0].routes[0].route.cluster";
    let line = 1 + fs::read_to_string(&file).unwrap().lines().position(|line| line.contains("canary")).unwrap();
    let head = format!(
        "{file}:{line}: error MS201: RouteConfiguration greeter-routes: {path}\n  there is no Cluster \"canary\""
    );
    assert!(text(&output.stdout).starts_with(&head), "{}", text(&output.stdout));
    assert!(text(&output.stderr).starts_with("error: 1 error"), "{}", text(&output.stderr));
}

#[test]
fn json_has_one_object_for_each_finding_with_exactly_these_keys() {
    let output = mainstay(&["check", "--json", &case("MS401/fail.yaml")]);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = lines.iter().find(|finding| finding["id"] == "MS401").unwrap();
    let keys: Vec<&String> = error.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 7);
    for key in ["id", "level", "file", "line", "resource", "path", "message"] {
        assert!(error.get(key).is_some(), "{key}");
    }
    assert_eq!((error["level"].as_str(), error["line"].is_u64()), (Some("error"), true));
}

#[test]
fn what_is_clean_or_allowed_is_exit_code_0() {
    let clean = mainstay(&["check", &case("MS201/pass.yaml")]);
    assert_eq!((clean.status.code(), text(&clean.stdout)), (Some(0), "nothing found\n"));
    assert_eq!(mainstay(&["check", &case("MS402/fail.yaml")]).status.code(), Some(0), "warnings are no errors");
    let allowed = mainstay(&["check", &case("MS201/fail.yaml"), "--allow", "ms201,MS212"]);
    assert_eq!(allowed.status.code(), Some(0), "{}", text(&allowed.stdout));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let examples = mainstay(&["check", root.to_str().unwrap()]);
    assert_eq!(examples.status.code(), Some(0), "{}", text(&examples.stdout));
}

#[test]
fn what_cannot_be_checked_is_exit_code_2() {
    let empty = tempfile::tempdir().unwrap();
    let cases: [&[&str]; 7] = [
        &["check"],
        &["check", "/no/such/directory"],
        &["check", empty.path().to_str().unwrap()],
        &["check", "--explain", "MS999"],
        &["check", "csds:nowhere"],
        &["check", "csds:127.0.0.1:1"],
        &["check", "--bootstrap", "/no/such/file", "x"],
    ];
    for args in cases {
        let output = mainstay(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("error: "), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn sarif_and_github_are_what_they_should_be() {
    let sarif = mainstay(&["check", "--format", "sarif", &case("MS302/fail.yaml")]);
    let log: Value = serde_json::from_slice(&sarif.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    let result = &run["results"][0];
    let rule = &run["tool"]["driver"]["rules"][result["ruleIndex"].as_u64().unwrap() as usize];
    assert_eq!((result["ruleId"].as_str(), &rule["id"]), (Some("MS302"), &result["ruleId"]));
    assert!(result["locations"][0]["physicalLocation"]["region"]["startLine"].is_u64());
    let github = mainstay(&["check", "--format", "github", &case("MS302/fail.yaml")]);
    assert!(text(&github.stdout).starts_with("::warning file="), "{}", text(&github.stdout));
}

#[test]
fn a_bootstrap_is_known_by_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("client.json");
    let bootstrap = r#"{
  "xds_servers": [{"server_uri": "127.0.0.1:1", "channel_creds": [{"type": "insecure"}], "server_featurs": []}]
}"#;
    fs::write(&file, bootstrap).unwrap();
    let output = mainstay(&["check", "--json", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let finding: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((finding["id"].as_str(), finding["line"].as_u64()), (Some("MS111"), Some(2)));
    assert_eq!(finding["path"], "xds_servers[0].server_featurs");
    assert!(finding["message"].as_str().unwrap().contains("did you mean \"server_features\"?"), "{finding}");
}

#[test]
fn explain_prints_the_page() {
    let output = mainstay(&["check", "--explain", "ms401"]);
    assert_eq!(output.status.code(), Some(0));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks/MS401.md");
    assert_eq!(text(&output.stdout).trim_end(), fs::read_to_string(page).unwrap().trim_end());
}

#[test]
fn serve_puts_nothing_into_force_that_has_errors() {
    // OP-11
    let directory = tempfile::tempdir().unwrap();
    let put = |case: &str| {
        let draft = directory.path().join(".draft");
        fs::copy(case, &draft).unwrap();
        fs::rename(draft, directory.path().join("resources.yaml")).unwrap();
    };
    let args = ["serve", directory.path().to_str().unwrap(), "--listen", "127.0.0.1:0"];
    put(&case("MS201/fail.yaml"));
    let refused = mainstay(&args);
    assert_eq!(refused.status.code(), Some(1));
    let stderr = text(&refused.stderr);
    assert!(stderr.contains("there is no Cluster \"canary\"") && stderr.contains("(MS201)"), "{stderr}");
    assert!(stderr.contains("--no-check"), "{stderr}");

    put(&case("MS201/pass.yaml"));
    let mut serve = Running::start(&args);
    assert!(serve.line().ends_with(", 4 resources"));
    (0..4).for_each(|_| drop(serve.line()));
    put(&case("MS201/fail.yaml"));
    assert_eq!(serve.line(), "rejected, what was served before still is:");
    let reason = serve.line();
    assert!(reason.contains("there is no Cluster \"canary\"") && reason.ends_with("(MS201)"), "{reason}");
    put(&case("MS402/fail.yaml"));
    assert_eq!(serve.line(), "reloaded, 4 resources", "warnings keep nothing from being served");
    serve.signal("TERM");
    assert_eq!(serve.end().0, 0);

    put(&case("MS201/fail.yaml"));
    let mut serve = Running::start(&[&args[..], &["--no-check"]].concat());
    assert!(serve.line().ends_with(", 4 resources"));
    serve.signal("TERM");
    assert_eq!(serve.end().0, 0);
}

#[test]
fn what_is_told_is_what_a_client_says_in_its_nack() {
    // OP-9
    let directory = tempfile::tempdir().unwrap();
    fs::copy(case("MS103/fail.yaml"), directory.path().join("resources.yaml")).unwrap();
    let path = directory.path().to_str().unwrap();
    let output = mainstay(&["check", "--json", path]);
    let finding: Value = serde_json::from_str(text(&output.stdout).lines().next().unwrap()).unwrap();
    let mut serve = Running::start(&["serve", path, "--listen", "127.0.0.1:0", "--no-check"]);
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 4 resources").to_owned();
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "{address}", "channel_creds": [{{"type": "insecure"}}]}}], "node": {{"id": "n"}}}}"#
    );
    // One that ends once it has shown what it holds may be gone before its NACK is on the wire.
    let _get = Running::start_with_bootstrap(&bootstrap, &["get", "xds:///greeter", "--watch"]);
    let nack = std::iter::repeat_with(|| serve.line()).take(20).find(|line| line.contains(" rejects EDS")).unwrap();
    assert!(nack.ends_with(finding["message"].as_str().unwrap()), "{nack}\n{finding}");
}

#[test]
fn a_running_process_is_asked_over_csds() {
    let directory = tempfile::tempdir().unwrap();
    fs::copy(case("MS402/fail.yaml"), directory.path().join("resources.yaml")).unwrap();
    let path = directory.path().to_str().unwrap();
    let mut serve = Running::start(&["serve", path, "--listen", "127.0.0.1:0"]);
    let first = serve.line();
    let address = first.rsplit_once(" on ").unwrap().1.trim_end_matches(", 4 resources").to_owned();
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "{address}", "channel_creds": [{{"type": "insecure"}}]}}], "node": {{"id": "n"}}}}"#
    );
    let load = ["load", "xds:///greeter", "--admin", "127.0.0.1:0", "--qps", "5"];
    let mut load = Running::start_with_bootstrap(&bootstrap, &load);
    let admin = load.error_line();
    let admin = format!("csds:{}", admin.rsplit_once(' ').unwrap().1);
    // The client asks for one resource after the other; what it does not have yet is told, too.
    let found = (0..200).find_map(|_| {
        let output = mainstay(&["check", "--json", &admin]);
        let findings: Vec<Value> =
            text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        findings.into_iter().find(|finding| finding["id"] == "MS402")
    });
    let found = found.expect("the locality without a weight is found in what the client holds");
    assert_eq!(found["file"], format!("{admin} xds:///greeter"));
    assert!(found["line"].is_null());
}

/// A file of the cases of `crates/check`.
fn case(name: &str) -> String {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../check/tests/cases");
    fs::canonicalize(cases.join(name)).unwrap().to_str().unwrap().to_owned()
}
