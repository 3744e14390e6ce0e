//! What other implementations make of a peculiarity, as measured with them (OP-12, OP-13).
//!
//! `data/verdicts.json` is written by `interop/run --only verdicts --record`: for each case of `interop/verdicts/cases` which
//! client took the resource, what it said if it did not, and whether an RPC passed. A case says by which fields its
//! peculiarity is known, so that it is found in other resources.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use serde_json::Value;

use crate::catalog::Id;
use crate::finding::Finding;
use crate::input::Item;

/// An implementation of xDS whose verdicts were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Implementation {
    /// grpc-go.
    Go,
    /// C-core, and with it C++, Python, Ruby and others.
    Cpp,
    /// grpc-java.
    Java,
    /// Envoy, of which only what it takes was measured, and not of Listeners: it takes none for clients.
    Envoy,
}

/// What was measured.
#[derive(Debug)]
struct Data {
    /// When.
    date: String,
    /// With which versions, by the name of the project.
    versions: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Debug)]
struct Case {
    name: String,
    kind: &'static str,
    about: String,
    when: Vec<Condition>,
    verdicts: BTreeMap<Implementation, Verdict>,
}

#[derive(Debug)]
struct Verdict {
    takes: bool,
    /// What it says if it does not.
    error: String,
    /// The status of an RPC; empty if none was made.
    rpc: String,
}

/// A field and what it is, such as `lb_policy = "RANDOM"`; `[]` stands for any element of a list.
#[derive(Clone, Debug, PartialEq)]
struct Condition {
    path: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Present,
    Absent,
    Equals(Value),
}

impl Implementation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Go, Self::Cpp, Self::Java, Self::Envoy];

    /// As users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Go => "go",
            Self::Cpp => "cpp",
            Self::Java => "java",
            Self::Envoy => "envoy",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// What was measured, such as `grpc-go 1.85.0`; nothing if it was not there.
    pub fn version(self) -> Option<String> {
        let project = match self {
            Self::Go => "grpc-go",
            Self::Cpp => "grpcio",
            Self::Java => "grpc-java",
            Self::Envoy => "Envoy",
        };
        let is_measured = DATA.cases.iter().any(|case| case.verdicts.contains_key(&self));
        DATA.versions.get(project).filter(|_| is_measured).map(|version| format!("{project} {version}"))
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What these implementations would say of a resource. `tree` is the resource in the JSON of protobuf, with the names of its
/// `.proto` files.
pub fn verdicts(item: &Item, tree: &Value, of: &BTreeSet<Implementation>) -> Vec<Finding> {
    let kind = item.kind();
    let cases = DATA.cases.iter().filter(|case| case.kind == kind && !case.when.is_empty());
    let mut findings = Vec::new();
    for case in cases {
        let Some(path) = case.is_met_at(tree) else { continue };
        let verdicts = of.iter().filter_map(|one| Some((*one, case.verdicts.get(one)?)));
        for (one, verdict) in verdicts {
            let what = match (verdict.takes, verdict.rpc.as_str()) {
                (true, "OK" | "") => continue,
                (true, code) => format!("takes it, and RPCs end with {code}"),
                (false, _) if verdict.error.is_empty() => "rejects it".to_owned(),
                (false, _) => format!("rejects it: {}", verdict.error),
            };
            let who = one.version().unwrap_or_else(|| one.name().to_owned());
            let about = &case.about;
            let message = format!("{about}: {who} {what} (case {}, measured on {})", case.name, DATA.date);
            let resource = format!("{} {}", item.kind(), item.name);
            findings.push(Finding::at(Id::MS109, &item.origin, &resource, &path, message));
        }
    }
    findings
}

impl Case {
    /// The path at which the peculiarity is, if all of its conditions hold.
    fn is_met_at(&self, tree: &Value) -> Option<String> {
        let mut places = self.when.iter().map(|condition| condition.holds(tree));
        let first = places.next()??;
        places.all(|place| place.is_some()).then_some(first)
    }
}

impl Condition {
    fn parse(text: &str) -> Option<Self> {
        if let Some((path, value)) = text.split_once(" = ") {
            return Some(Self { path: path.to_owned(), test: Test::Equals(serde_json::from_str(value).ok()?) });
        }
        let (path, word) = text.rsplit_once(' ')?;
        let test = match word {
            "present" => Test::Present,
            "absent" => Test::Absent,
            _ => return None,
        };
        Some(Self { path: path.to_owned(), test })
    }

    /// Where it holds first.
    fn holds(&self, tree: &Value) -> Option<String> {
        let steps: Vec<&str> = self.path.split('.').collect();
        find(tree, &steps, &self.test, String::new())
    }
}

/// Follows a path from here. Absence counts only where everything around it is there.
fn find(here: &Value, steps: &[&str], test: &Test, path: String) -> Option<String> {
    let (step, rest) = steps.split_first()?;
    let (name, is_list) = step.strip_suffix("[]").map_or((*step, false), |name| (name, true));
    let at = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let value = here.get(name).filter(|value| !value.is_null());
    let Some(value) = value else {
        return (rest.is_empty() && *test == Test::Absent).then_some(path);
    };
    let elements: Vec<(String, &Value)> = match (is_list, value.as_array()) {
        (true, Some(list)) => list.iter().enumerate().map(|(i, element)| (format!("{at}[{i}]"), element)).collect(),
        (true, None) => return None,
        (false, _) => vec![(at, value)],
    };
    elements.into_iter().find_map(|(at, element)| match (rest.is_empty(), test) {
        (false, _) => find(element, rest, test, at),
        (true, Test::Present) => Some(at),
        (true, Test::Absent) => None,
        (true, Test::Equals(wanted)) => (element == wanted).then_some(at),
    })
}

static DATA: LazyLock<Data> = LazyLock::new(|| {
    Data::read(include_str!("../data/verdicts.json")).unwrap_or_else(|| Data {
        date: String::new(),
        versions: BTreeMap::new(),
        cases: Vec::new(),
    })
});

impl Data {
    fn read(text: &str) -> Option<Self> {
        let tree: Value = serde_json::from_str(text).ok()?;
        let versions = tree.get("versions")?.as_object()?.iter();
        let versions = versions.filter_map(|(name, version)| Some((name.clone(), version.as_str()?.to_owned())));
        let cases = tree.get("cases")?.as_object()?.iter().map(|(name, case)| Case::read(name, case));
        Some(Self {
            date: tree.get("date")?.as_str()?.to_owned(),
            versions: versions.collect(),
            cases: cases.collect::<Option<_>>()?,
        })
    }
}

impl Case {
    fn read(name: &str, tree: &Value) -> Option<Self> {
        let kind = match tree.get("type")?.as_str()? {
            "listener" => "Listener",
            "routes" => "RouteConfiguration",
            "cluster" => "Cluster",
            "endpoints" => "ClusterLoadAssignment",
            _ => return None,
        };
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let verdict = |(who, verdict): (&String, &Value)| {
            let (takes, rpc) = (verdict.get("ack")?.as_bool()?, text(verdict.get("rpc")));
            Some((Implementation::from_name(who)?, Verdict { takes, error: text(verdict.get("error")), rpc }))
        };
        let when = tree.get("when")?.as_array()?.iter().map(|text| Condition::parse(text.as_str()?));
        Some(Self {
            name: name.to_owned(),
            kind,
            about: text(tree.get("about")),
            when: when.collect::<Option<_>>()?,
            verdicts: tree.get("verdicts")?.as_object()?.iter().filter_map(verdict).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_data_can_be_read_and_is_of_many_cases() {
        // OP-12
        let data = Data::read(include_str!("../data/verdicts.json")).expect("data as the runner writes it");
        assert!(data.cases.len() >= 150, "{}", data.cases.len());
        let plain = data.cases.iter().filter(|case| case.name.ends_with("-plain"));
        for case in plain {
            assert!(!case.verdicts.is_empty());
            let passes = |(one, verdict): (&Implementation, &Verdict)| {
                verdict.takes && (verdict.rpc == "OK" || *one == Implementation::Envoy)
            };
            assert!(case.verdicts.iter().all(passes), "{case:?}");
        }
    }

    #[test]
    fn conditions_are_found_where_they_hold() {
        // OP-13
        let tree = json!({"a": [{"b": 1}, {"b": 2, "c": {}}], "d": {"e": "x"}});
        let at = |text: &str| Condition::parse(text).unwrap().holds(&tree);
        assert_eq!(at("a[].b = 2").as_deref(), Some("a[1].b"));
        assert_eq!(at("a[].c present").as_deref(), Some("a[1].c"));
        assert_eq!(at("a[].c absent").as_deref(), Some("a[0]"));
        assert_eq!(at("d.e = \"x\"").as_deref(), Some("d.e"));
        assert_eq!(at("d.f absent").as_deref(), Some("d"));
        assert_eq!((at("d.e absent"), at("g.h absent"), at("a[].b = 3")), (None, None, None));
    }
}
