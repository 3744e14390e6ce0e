//! `mirror.yaml`: which classes of clients there are, and what each of them watches (FB-14).
//!
//! ```yaml
//! # What a bootstrap of the clients says beside its node, as far as resources depend on it: certificate_providers,
//! # authorities, channel_creds and features of the first of xds_servers. May be absent.
//! bootstrap:
//!   xds_servers: [{ server_uri: "primary:443", channel_creds: [{ type: tls }] }]
//! brake: { threshold: 0.5, hold: 5m }
//! classes:
//!   - name: shop
//!     # Whom the mirror pretends to be, as in a bootstrap.
//!     node: { id: mirror-shop, cluster: shop, metadata: { namespace: shop } }
//!     # Which clients get what this node gets. The first class that matches wins.
//!     match: { id: { prefix: "shop-" }, metadata: { namespace: shop } }
//!     # What they watch: targets of channels, from which all else follows.
//!     targets: ["xds:///cart", "xds:///stock"]
//!   - name: rest
//!     node: { id: mirror-rest }
//!     # Every target of which the primary knows a Listener, where it answers wildcards.
//!     all: true
//!     # For nodes that no class matches.
//!     default: true
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use mainstay::bootstrap::Bootstrap;
use regex::Regex;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use crate::brake::Brake;
use crate::class::{Class, Classes, IdMatch, NodeMatch};

/// What a mirror mirrors.
#[derive(Clone, Debug)]
pub struct MirrorConfig {
    /// What is held back.
    pub brake: Brake,
    /// The classes, in the order in which they are tried.
    pub classes: Vec<ClassConfig>,
    bootstrap: Json,
}

/// What is mirrored for one class.
#[derive(Clone, Debug)]
pub struct ClassConfig {
    /// Who is of it.
    pub class: Class,
    /// The node that the primary is asked as, as in a bootstrap.
    pub node: Json,
    /// What is followed.
    pub targets: Vec<String>,
    /// Whether everything is followed that the primary knows a Listener of.
    pub all: bool,
}

/// What is wrong with a `mirror.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

/// One thing that is wrong with a `mirror.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Where, such as `classes[0].match`; empty for the file as a whole.
    pub field: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

impl MirrorConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// If something in it cannot be meant. All of it is told together.
    pub fn parse(text: &str) -> Result<Self, ConfigErrors> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| ConfigErrors::one("", error.to_string()))?;
        let mut errors = Vec::new();
        let brake = file.brake.resolve(&mut errors);
        let mut names = BTreeSet::new();
        if file.classes.is_empty() {
            errors.push(ConfigError::new("classes", "expected one class at least"));
        }
        let defaults = file.classes.iter().filter(|class| class.default).count();
        if defaults > 1 {
            errors.push(ConfigError::new("classes", format!("{defaults} of them are the default: expected one")));
        }
        let mut classes = Vec::new();
        for (index, class) in file.classes.into_iter().enumerate() {
            let path = format!("classes[{index}]");
            if !names.insert(class.name.clone()) {
                let problem = format!("there is already a class {:?}", class.name);
                errors.push(ConfigError::new(format!("{path}.name"), problem));
            }
            classes.push(class.resolve(&path, &mut errors));
        }
        let config = Self { brake, classes, bootstrap: file.bootstrap.unwrap_or_else(|| json!({})) };
        for (index, class) in config.classes.iter().enumerate() {
            if let Err(error) = config.bootstrap(class, "primary:1") {
                errors.push(ConfigError::new(format!("classes[{index}].node"), error.problem));
            }
        }
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
    }

    /// One class for all nodes, that follows everything.
    pub fn everything() -> Self {
        let class = Class { name: "all".to_owned(), matches: None, is_default: true };
        let node = json!({ "id": "mainstay-mirror" });
        let classes = vec![ClassConfig { class, node, targets: Vec::new(), all: true }];
        Self { brake: Brake::default(), classes, bootstrap: json!({}) }
    }

    /// The classes, to find that of a node.
    pub fn classes(&self) -> Classes {
        Classes(self.classes.iter().map(|class| class.class.clone()).collect())
    }

    /// The bootstrap by which a class is followed: of the primary, and of nobody else (FB-16).
    ///
    /// # Errors
    /// If it is no bootstrap.
    pub fn bootstrap(&self, class: &ClassConfig, primary: &str) -> Result<Bootstrap, ConfigError> {
        let json = self.bootstrap_json(class, primary);
        Bootstrap::from_json(&json.to_string()).map_err(|error| ConfigError::new("bootstrap", error.to_string()))
    }

    /// Whether the primary is spoken to in the clear.
    pub fn is_plaintext(&self) -> bool {
        let server = self.bootstrap.get("xds_servers").and_then(|servers| servers.get(0));
        let credentials = server.and_then(|server| server.get("channel_creds")).and_then(|creds| creds.get(0));
        credentials.is_none_or(|credentials| credentials.get("type") == Some(&json!("insecure")))
    }

    fn bootstrap_json(&self, class: &ClassConfig, primary: &str) -> Json {
        let mut json = self.bootstrap.clone();
        let mut server = json
            .get("xds_servers")
            .and_then(|servers| servers.get(0))
            .cloned()
            .unwrap_or_else(|| json!({ "channel_creds": [{ "type": "insecure" }] }));
        server["server_uri"] = json!(primary);
        json["xds_servers"] = json!([server]);
        json["node"] = class.node.clone();
        // What was last good is kept by the mirror itself, after its brake.
        json.as_object_mut().map(|fields| fields.remove("last_good"));
        json
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    bootstrap: Option<Json>,
    #[serde(default)]
    brake: BrakeFields,
    classes: Vec<ClassFields>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct BrakeFields {
    threshold: Option<f64>,
    hold: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassFields {
    name: String,
    node: Json,
    #[serde(rename = "match")]
    matches: Option<MatchFields>,
    #[serde(default)]
    targets: Vec<String>,
    #[serde(default)]
    all: bool,
    #[serde(default)]
    default: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchFields {
    id: Option<IdFields>,
    cluster: Option<String>,
    locality: Option<LocalityFields>,
    #[serde(default)]
    metadata: BTreeMap<String, Option<Json>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdFields {
    exact: Option<String>,
    prefix: Option<String>,
    regex: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LocalityFields {
    region: Option<String>,
    zone: Option<String>,
    sub_zone: Option<String>,
}

impl BrakeFields {
    fn resolve(self, errors: &mut Vec<ConfigError>) -> Brake {
        let mut brake = Brake::default();
        match self.threshold {
            Some(threshold) if (0.0..=1.0).contains(&threshold) => brake.threshold = threshold,
            Some(_) => errors.push(ConfigError::new("brake.threshold", "expected a number from 0 to 1")),
            None => {}
        }
        match self.hold.as_deref().map(humantime::parse_duration) {
            Some(Ok(hold)) if hold <= MAX_HOLD => brake.hold = hold,
            Some(Ok(_)) => errors.push(ConfigError::new("brake.hold", "expected a week at most")),
            Some(Err(error)) => {
                errors.push(ConfigError::new("brake.hold", format!("expected a duration such as 5m: {error}")));
            }
            None => {}
        }
        brake
    }
}

impl ClassFields {
    fn resolve(self, path: &str, errors: &mut Vec<ConfigError>) -> ClassConfig {
        let mut report =
            |field: &str, problem: String| errors.push(ConfigError::new(format!("{path}.{field}"), problem));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if self.name.is_empty() || !self.name.chars().all(is_plain) {
            report("name", "expected letters, digits, - and _: it is also the name of a directory".to_owned());
        }
        if self.node.get("id").and_then(Json::as_str).is_none_or(str::is_empty) {
            report("node", "expected an id: it is whom the primary is asked as".to_owned());
        }
        if self.matches.is_none() && !self.default {
            report("match", "expected one, or \"default: true\": no node is of this class".to_owned());
        }
        for (index, target) in self.targets.iter().enumerate().filter(|(_, target)| !target.starts_with("xds:")) {
            report(
                &format!("targets[{index}]"),
                format!("expected an xDS name such as xds:///greeter, found {target:?}"),
            );
        }
        let matches = self.matches.map(|fields| {
            let locality = fields.locality.unwrap_or_default();
            let id = fields.id.and_then(|id| match id.resolve() {
                Ok(id) => Some(id),
                Err(problem) => {
                    report("match.id", problem);
                    None
                }
            });
            NodeMatch {
                id,
                cluster: fields.cluster,
                region: locality.region,
                zone: locality.zone,
                sub_zone: locality.sub_zone,
                metadata: fields.metadata.into_iter().collect(),
            }
        });
        let class = Class { name: self.name, matches, is_default: self.default };
        ClassConfig { class, node: self.node, targets: self.targets, all: self.all }
    }
}

impl IdFields {
    fn resolve(self) -> Result<IdMatch, String> {
        match (self.exact, self.prefix, self.regex) {
            (Some(exact), None, None) => Ok(IdMatch::Exact(exact)),
            (None, Some(prefix), None) => Ok(IdMatch::Prefix(prefix)),
            // All of the id, as everywhere in xDS.
            (None, None, Some(regex)) => {
                Regex::new(&format!("^(?:{regex})$")).map(IdMatch::Regex).map_err(|error| error.to_string())
            }
            _ => Err("expected one of exact, prefix and regex".to_owned()),
        }
    }
}

impl ConfigError {
    fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }
}

impl ConfigErrors {
    fn one(field: &str, problem: impl Into<String>) -> Self {
        Self(vec![ConfigError::new(field, problem)])
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str(&self.problem),
            field => write!(f, "{field}: {}", self.problem),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if n == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl std::error::Error for ConfigErrors {}

/// Nobody wants to hold anything back for longer by itself; to refuse it holds it back for ever.
const MAX_HOLD: Duration = Duration::from_secs(7 * 86400);

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::Node;

    use super::*;
    use crate::node::node_of;

    #[test]
    fn the_first_class_that_matches_wins_and_others_are_of_the_default_fb14() {
        let config = MirrorConfig::parse(CLASSES).unwrap();
        let classes = config.classes();
        let of = |json: Json| classes.of(&node_of(&json)).unwrap().name.clone();
        assert_eq!(of(json!({ "id": "shop-1", "metadata": { "tier": "gold" } })), "shop");
        assert_eq!(of(json!({ "id": "shop-1", "metadata": { "tier": "lead" } })), "by-regex", "all must be true");
        assert_eq!(of(json!({ "id": "shop-12" })), "by-regex");
        assert_eq!(of(json!({ "id": "my-shop-12" })), "rest", "all of the id");
        assert_eq!(of(json!({ "id": "x", "locality": { "region": "r", "zone": "z", "sub_zone": "any" } })), "here");
        assert_eq!(of(json!({ "id": "x", "locality": { "region": "r", "zone": "other" } })), "rest");
        assert_eq!(of(json!({ "id": "x", "cluster": "blue" })), "blue");
        assert_eq!(of(json!({})), "rest");
        assert_eq!(config.brake, Brake { threshold: 0.25, hold: Duration::from_secs(60) });
    }

    #[test]
    fn a_node_of_no_class_is_refused_with_a_reason_fb14() {
        let text = "classes: [{ name: a, node: { id: m }, match: { id: { exact: one } }, targets: ['xds:///t'] }]";
        let classes = MirrorConfig::parse(text).unwrap().classes();
        let node = Node { id: "two".to_owned(), cluster: "c".to_owned(), ..Node::default() };
        let refused = classes.of(&node).unwrap_err().to_string();
        assert_eq!(
            refused,
            "node \"two\" of cluster \"c\" is of none of the classes \"a\", and none of them is the default"
        );
        assert_eq!(MirrorConfig::everything().classes().of(&node).unwrap().name, "all");
    }

    #[test]
    fn what_cannot_be_meant_is_told_with_its_field() {
        let told = |text: &str| {
            let errors = MirrorConfig::parse(text).unwrap_err();
            errors.0.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let class = |fields: &str| format!("classes: [{{ name: a, node: {{ id: m }}, default: true, {fields} }}]");
        assert_eq!(told("classes: []"), ["classes: expected one class at least"]);
        assert_eq!(
            told("brake: { threshold: 2, hold: soon }\nclasses: [{ name: a/b, node: {} }]")[..4],
            [
                "brake.threshold: expected a number from 0 to 1".to_owned(),
                "brake.hold: expected a duration such as 5m: expected number at 0".to_owned(),
                "classes[0].name: expected letters, digits, - and _: it is also the name of a directory".to_owned(),
                "classes[0].node: expected an id: it is whom the primary is asked as".to_owned(),
            ]
        );
        assert_eq!(
            told(&class("targets: ['greeter:1']")),
            ["classes[0].targets[0]: expected an xDS name such as xds:///greeter, found \"greeter:1\""]
        );
        assert_eq!(
            told(&class("match: { id: { exact: a, prefix: b } }")),
            ["classes[0].match.id: expected one of exact, prefix and regex"]
        );
        assert!(told(&class("match: { id: { regex: '(' } }"))[0].starts_with("classes[0].match.id: regex parse error"));
        let twice = "classes: [{name: a, node: {id: m}, default: true}, {name: a, node: {id: m}, default: true}]";
        assert_eq!(
            told(twice),
            ["classes: 2 of them are the default: expected one", "classes[1].name: there is already a class \"a\""]
        );
        assert!(told("classes: [{ name: a, node: { id: m }, defalt: true }]")[0].contains("defalt"));
        let wrong = "bootstrap: { authorities: 1 }\nclasses: [{ name: a, node: { id: m }, default: true }]";
        assert!(told(wrong)[0].starts_with("classes[0].node: "), "{:?}", told(wrong));
    }

    #[test]
    fn a_class_is_followed_at_the_primary_and_nowhere_else_fb16() {
        let text = r"
bootstrap:
  xds_servers:
    - { server_uri: other, channel_creds: [{ type: tls }], server_features: [xds_v3] }
    - { server_uri: fallback, channel_creds: [{ type: insecure }] }
  last_good: { directory: /x }
classes: [{ name: a, node: { id: m }, default: true, all: true }]";
        let config = MirrorConfig::parse(text).unwrap();
        let json = config.bootstrap_json(&config.classes[0], "primary:443");
        assert_eq!(
            json["xds_servers"],
            json!([{ "server_uri": "primary:443", "channel_creds": [{ "type": "tls" }], "server_features": ["xds_v3"] }])
        );
        assert_eq!((&json["node"], json.get("last_good")), (&json!({ "id": "m" }), None));
        assert!(!config.is_plaintext() && MirrorConfig::everything().is_plaintext());
    }

    const CLASSES: &str = r#"
brake: { threshold: 0.25, hold: 1m }
classes:
  - name: shop
    node: { id: mirror, metadata: { tier: gold } }
    match: { id: { prefix: "shop-" }, metadata: { tier: gold } }
    targets: ["xds:///cart"]
  - { name: by-regex, node: { id: m }, match: { id: { regex: "shop-[0-9]+" } }, targets: ["xds:///cart"] }
  - { name: here, node: { id: m }, match: { locality: { region: r, zone: z } }, targets: ["xds:///cart"] }
  - { name: blue, node: { id: m }, match: { cluster: blue }, all: true }
  - { name: rest, node: { id: m }, default: true, all: true }
"#;
}
