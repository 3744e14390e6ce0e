//! Every check finds what is in its failing files and nothing in its passing ones.
//!
//! `cases/ID/fail*.yaml` and `pass*.yaml` hold resources. Beside them may stand `….bootstrap.json`, the bootstrap of the
//! clients, and `….old.yaml`, the state before the change. `….csds.json` is what a running process answers, and `….hex` a
//! Cluster in bytes, where bytes matter. Those of MS109 are for all implementations that were measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use envoy_types::pb::envoy::service::status::v3::ClientStatusResponse;
use mainstay_check::{
    BootstrapFile, Finding, Id, Implementation, Input, Item, Level, Lines, Origin, against, check, items_of_clients,
    page, verdicts,
};
use mainstay_control_plane::files::{Location, Sources};
use mainstay_control_plane::{Body, LoadErrorKind, Resource, Snapshot};
use prost::Message;

#[test]
fn every_check_has_files_that_fail_and_files_that_pass() {
    let mut faults = Vec::new();
    for id in Id::ALL {
        let cases = cases(id);
        for kind in ["fail", "pass"] {
            if !cases.keys().any(|name| name.starts_with(kind)) {
                faults.push(format!("{id} has no file that must {kind}"));
            }
        }
        for (name, mut case) in cases {
            if id == Id::MS109 {
                let verdicts = case.new.items.iter().flat_map(|item| verdicts(item, &tree(item), &everybody()));
                case.new.troubles = verdicts.collect();
            }
            let findings = case.run();
            let is_found = findings.iter().any(|finding| finding.id == id);
            if is_found != name.starts_with("fail") {
                faults.push(format!("{id}/{name}: {findings:#?}"));
            }
            let has_errors = findings.iter().any(|finding| finding.level() == Level::Error);
            if name.starts_with("pass") && has_errors {
                faults.push(format!("{id}/{name} has errors: {findings:#?}"));
            }
            // Whatever is found in a file is found on a line of it, and in a field that it speaks of.
            let without_line = |finding: &&Finding| finding.file.ends_with(".yaml") && finding.line.is_none();
            if let Some(finding) = findings.iter().find(without_line).filter(|it| it.id != Id::MS614) {
                faults.push(format!("{id}/{name}: no line: {finding:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn there_are_no_cases_of_checks_that_do_not_exist() {
    let known: BTreeSet<String> = Id::ALL.into_iter().map(|id| id.name().to_owned()).collect();
    let entries = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let unknown: Vec<String> = entries.filter(|entry| !known.contains(entry)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_pages_are_those_of_the_table() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks");
    let mut pages: BTreeMap<String, String> = Id::ALL.into_iter().map(|id| (format!("{id}.md"), page(id))).collect();
    let rows: Vec<_> =
        Id::ALL.into_iter().map(|id| format!("| [{id}]({id}.md) | {} | {} |", id.level(), id.title())).collect();
    pages.insert("README.md".to_owned(), format!("{INDEX}{}\n", rows.join("\n")));
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(&docs).unwrap();
        for entry in fs::read_dir(&docs).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        pages.iter().for_each(|(name, page)| fs::write(docs.join(name), page).unwrap());
    }
    let read =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap());
    let found: BTreeMap<_, _> = fs::read_dir(&docs).unwrap().map(|entry| read(entry.unwrap())).collect();
    assert!(found == pages, "docs/checks is stale: UPDATE=1 cargo test -p mainstay-check --test cases writes it anew");
}

#[test]
fn examples_have_no_errors_and_no_warnings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let bootstrap = bootstrap(&root.join("examples/bootstrap.json"));
    let input = Input { bootstrap: Some(bootstrap), ..read(&root.join("examples/config")) };
    assert_eq!(input.items.len(), 4);
    let loud: Vec<_> = check(&input).into_iter().filter(|finding| finding.level() != Level::Note).collect();
    assert_eq!(loud, []);
}

#[test]
fn a_finding_says_where_it_is_and_what_a_client_would_say() {
    let findings = check(&read(&directory().join("MS103/fail.yaml")));
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    let text = fs::read_to_string(directory().join("MS103/fail.yaml")).unwrap();
    let line = text.lines().position(|line| line.contains("99999")).unwrap() as u64 + 1;
    assert_eq!((finding.line, finding.resource.as_str()), (Some(line), "ClusterLoadAssignment backends"));
    let path = "endpoints[0].lb_endpoints[0].endpoint.address.socket_address.port_value";
    assert_eq!(finding.path, path);
    let message = format!("ClusterLoadAssignment \"backends\": {path}: 99999 is not a port: expected at most 65535");
    assert_eq!(finding.message, message);
}

#[test]
fn only_what_a_change_brings_is_told() {
    let bad = read(&directory().join("MS201/fail.yaml"));
    assert_eq!(against(&bad, &bad), []);
    let good = read(&directory().join("MS201/pass.yaml"));
    assert!(against(&bad, &good).iter().any(|finding| finding.id == Id::MS201));
    assert_eq!(against(&good, &bad), []);
}

#[test]
fn nodes_are_served_their_own_and_what_is_for_all() {
    let mut input = read(&directory().join("MS203/pass.yaml"));
    let own = |item: &&mut Item| item.kind() == "ClusterLoadAssignment";
    input.items.iter_mut().filter(own).for_each(|item| item.node = Some("n1".to_owned()));
    let errors = |input: &Input| check(input).into_iter().filter(|it| it.level() == Level::Error).count();
    assert_eq!(errors(&input), 0, "the only node has endpoints of its own");
    let mut other = input.items[0].clone();
    other.node = Some("n2".to_owned());
    input.items.push(other);
    assert_eq!(errors(&input), 1, "another one has none");
}

/// What one name of a file stands for.
#[derive(Default)]
struct Case {
    new: Input,
    old: Option<Input>,
}

impl Case {
    fn run(&self) -> Vec<Finding> {
        match &self.old {
            Some(old) => against(&self.new, old),
            None => check(&self.new),
        }
    }
}

fn everybody() -> BTreeSet<Implementation> {
    Implementation::ALL.into_iter().collect()
}

/// A resource in the JSON of protobuf.
fn tree(item: &Item) -> serde_json::Value {
    let mainstay_check::Body::Message(bytes) = &item.body else { panic!("no resource: {item:?}") };
    let mut snapshot = Snapshot::default();
    snapshot.insert(Resource::new(item.message_name.as_str(), item.name.clone(), bytes.to_vec()));
    let mut document: serde_json::Value = serde_json::from_str(&snapshot.to_json().unwrap()).unwrap();
    document["resources"][0].take()
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

fn cases(id: Id) -> BTreeMap<String, Case> {
    let mut cases: BTreeMap<String, Case> = BTreeMap::new();
    let Ok(entries) = fs::read_dir(directory().join(id.name())) else { return cases };
    for entry in entries {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let (stem, kind) = name.split_once('.').unwrap();
        let case = cases.entry(stem.to_owned()).or_default();
        match kind {
            "yaml" => case.new = Input { bootstrap: case.new.bootstrap.take(), ..read(&path) },
            "old.yaml" => case.old = Some(read(&path)),
            "bootstrap.json" => case.new.bootstrap = Some(bootstrap(&path)),
            "csds.json" => case.new = dump(&path),
            "hex" => case.new = bytes(&path),
            "old.hex" => case.old = Some(bytes(&path)),
            other => panic!("{name}: what is .{other}?"),
        }
    }
    cases
}

fn read(path: &Path) -> Input {
    let text = if path.is_dir() { String::new() } else { fs::read_to_string(path).unwrap() };
    // What is large is written once and repeated.
    if let Some((head, tail)) = text.split_once("# repeated ") {
        let (times, rest) = tail.split_once(" times").unwrap();
        let (_, rest) = rest.split_once('\n').unwrap();
        let (line, rest) = rest.split_once('\n').unwrap();
        let lines: Vec<_> = (1..=times.parse::<usize>().unwrap()).map(|n| line.replace("$N", &n.to_string())).collect();
        let directory = std::env::temp_dir().join(format!("mainstay-check-{}-{times}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("large.yaml");
        fs::write(&file, format!("{}\n{}\n{rest}", head.trim_end(), lines.join("\n"))).unwrap();
        let input = read(&file);
        fs::remove_dir_all(directory).unwrap();
        return input;
    }
    let sources = Sources::read(path, |_, _| false).unwrap();
    let items = sources.resources.into_iter().map(|source| {
        let Body::Message(any) = source.resource.body else { panic!("no case has errors") };
        let file = source.location.file().display().to_string();
        let origin = Origin::with_lines(file, Arc::new(Written(source.location)));
        Item { node: source.node, ..Item::new(&any.type_url, source.resource.name, any.value, origin) }
    });
    let troubles = sources.errors.iter().map(|error| {
        let id = match error.kind {
            LoadErrorKind::Unreadable => Id::MS101,
            LoadErrorKind::Malformed => Id::MS102,
            LoadErrorKind::Duplicate => Id::MS104,
            LoadErrorKind::Refused | LoadErrorKind::Judged => panic!("{error}"),
        };
        Finding::in_file(id, error.file.display().to_string(), error.line, error.problem.clone())
    });
    Input {
        items: items.collect(),
        troubles: troubles.collect(),
        texts: sources.texts.into_iter().map(|(file, text)| (file.display().to_string(), text)).collect(),
        ..Input::default()
    }
}

fn bootstrap(path: &Path) -> BootstrapFile {
    let text = fs::read_to_string(path).unwrap();
    let location = Location::of_text(path, &text).unwrap();
    BootstrapFile { text, origin: Origin::with_lines(path.display().to_string(), Arc::new(Written(location))) }
}

fn dump(path: &Path) -> Input {
    let location = Location::of_text(path, &fs::read_to_string(path).unwrap()).unwrap();
    let bytes = location.encode_as("envoy.service.status.v3.ClientStatusResponse").unwrap();
    let response = ClientStatusResponse::decode(bytes.as_slice()).unwrap();
    let (items, troubles) = items_of_clients(&response, "csds:127.0.0.1:1").remove(0);
    Input { items, troubles, ..Input::default() }
}

fn bytes(path: &Path) -> Input {
    let text = fs::read_to_string(path).unwrap();
    let digits: Vec<u8> = text.trim().chars().map(|digit| digit.to_digit(16).unwrap() as u8).collect();
    let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let item = Item::new("envoy.config.cluster.v3.Cluster", "backends", bytes, Origin::new(path.display().to_string()));
    Input { items: vec![item], ..Input::default() }
}

#[derive(Debug)]
struct Written(Location);

impl Lines for Written {
    fn line(&self, path: &str) -> Option<u64> {
        self.0.line_of(path)
    }
}

const INDEX: &str = "\
# What `mainstay check` finds

Errors: clients reject something, or RPCs fail. Warnings: it works, but not as whoever wrote it would think. Notes: worth
knowing. `mainstay check --explain ID` prints a page. These pages are written from the table in `crates/check/src/catalog.rs`.

| id | level | what |
|---|---|---|
";
