//! Packages that are published stand alone: their metadata is whole, what they include is packed, and nothing that they need stays
//! at home.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use mainstay_checks::packages::{faults, missing_includes};
use mainstay_checks::root;
use serde_json::{Value, json};

/// What people can use from outside of the repository. `mainstay-fleet`, `mainstay-sim` and `mainstay-testservice` are here because the command line needs them.
const PUBLISHED: [&str; 11] = [
    "mainstay",
    "mainstay-check",
    "mainstay-cli",
    "mainstay-control-plane",
    "mainstay-fleet",
    "mainstay-lb",
    "mainstay-mirror",
    "mainstay-sim",
    "mainstay-sources",
    "mainstay-testservice",
    "mainstay-xds",
];

#[test]
fn published_packages_stand_alone() {
    let metadata: Value = serde_json::from_slice(&cargo(&["metadata", "--no-deps", "--format-version", "1"]))
        .expect("what cargo says is JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let names = |only_published: bool| -> BTreeSet<String> {
        let of = packages.iter().filter(|package| !only_published || package["publish"].is_null());
        of.filter_map(|package| package["name"].as_str().map(str::to_owned)).collect()
    };
    let (ours, published) = (names(false), names(true));
    assert_eq!(published.iter().map(String::as_str).collect::<Vec<_>>(), PUBLISHED);

    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| package["publish"].is_null()) {
        let name = package["name"].as_str().expect("a name");
        let list = cargo(&["package", "--list", "--allow-dirty", "--package", name]);
        let files: Vec<String> = String::from_utf8(list).expect("paths").lines().map(str::to_owned).collect();
        wrong.extend(faults(package, &files, &published, &ours));
        let directory = Path::new(package["manifest_path"].as_str().expect("a path")).parent().expect("a directory");
        let is_code = |file: &&String| file.starts_with("src/") && file.ends_with(".rs");
        for file in files.iter().filter(is_code) {
            let text = fs::read_to_string(directory.join(file)).expect("a packed file");
            let missing = missing_includes(file, &text, &files);
            wrong.extend(
                missing.iter().map(|missing| format!("{name}: {file} includes {missing}, which is not packed")),
            );
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn planted_faults_are_found() {
    let ours = BTreeSet::from(["mainstay", "mainstay-checks", "mainstay-xds"].map(str::to_owned));
    let published = BTreeSet::from(["mainstay", "mainstay-xds"].map(str::to_owned));
    let whole = json!({
        "name": "mainstay", "description": "d", "license": "Apache-2.0", "readme": "README.md", "rust_version": "1.89",
        "keywords": ["grpc"], "categories": ["asynchronous"], "targets": [{ "kind": ["lib"] }],
        "metadata": { "docs": { "rs": { "all-features": true } } },
        "dependencies": [{ "name": "mainstay-xds", "req": "^0.1.0" }],
    });
    let files = ["Cargo.toml", "LICENSE", "README.md", "src/lib.rs"].map(str::to_owned);
    assert_eq!(faults(&whole, &files, &published, &ours), [""; 0]);

    let plant = |field: &str, value: Value| {
        let mut planted = whole.clone();
        planted[field] = value;
        faults(&planted, &files, &published, &ours)
    };
    assert_eq!(plant("license", Value::Null), ["mainstay: has no license"]);
    assert_eq!(plant("keywords", json!([])), ["mainstay: has 0 keywords: 1 to 5 are wanted"]);
    assert_eq!(plant("metadata", Value::Null), ["mainstay: its documentation would not be built with all features"]);
    let unpublished = json!([{ "name": "mainstay-checks", "req": "^0.1.0" }]);
    assert_eq!(plant("dependencies", unpublished), ["mainstay: needs mainstay-checks, which is not published"]);
    let unversioned = json!([{ "name": "mainstay-xds", "req": "*" }]);
    assert_eq!(plant("dependencies", unversioned), ["mainstay: needs mainstay-xds without saying which version"]);
    assert_eq!(faults(&whole, &files[..1], &published, &ours).len(), 2, "neither README nor licence");

    let code = r#"const DATA: &str = include_str!("../data/a.json"); include!("b.rs");"#;
    assert_eq!(missing_includes("src/x/y.rs", code, &["src/x/b.rs".to_owned()]), ["src/data/a.json"]);
}

/// What cargo says on standard output.
fn cargo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO")).args(arguments).arg("--offline").current_dir(root()).output();
    let output = output.expect("cargo runs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
