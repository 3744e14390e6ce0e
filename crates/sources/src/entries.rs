//! Sets of resources as keys and values, the form in which engines and disks keep them.
//!
//! A key is `TYPE/NAME` for all nodes and `@NODE/TYPE/NAME` for one of them, where the type is the name of the message, such as
//! `envoy.config.cluster.v3.Cluster`, and what is no letter, digit or one of `-._~` in the id of a node is percent-encoded. A
//! value is a `google.protobuf.Any` with the resource, or with the `google.rpc.Status` that is answered in its place.

use std::collections::BTreeMap;

use bytes::Bytes;
use envoy_types::pb::google::{protobuf::Any, rpc::Status};
use mainstay_control_plane::{Body, Resource, Snapshot, Snapshots, TypeUrl};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use prost::Message;
use ring::digest::{Context, SHA256};
use tonic::Code;

/// A set of resources as keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(BTreeMap<String, Bytes>);

impl Entries {
    /// The resources of a control plane. What a node shares with all of them is there once.
    pub fn of(snapshots: &Snapshots) -> Self {
        let mut entries = BTreeMap::new();
        let common: BTreeMap<_, _> =
            snapshots.default.resources().map(|resource| (key(None, &resource), resource)).collect();
        for (id, snapshot) in &snapshots.nodes {
            for resource in snapshot.resources() {
                if common.get(&key(None, &resource)) != Some(&resource) {
                    entries.insert(key(Some(id), &resource), value(resource.body));
                }
            }
        }
        entries.extend(common.into_iter().map(|(key, resource)| (key, value(resource.body))));
        Self(entries)
    }

    /// The resources again.
    ///
    /// # Errors
    /// If a key or a value is none of ours.
    pub fn to_snapshots(&self) -> Result<Snapshots, Malformed> {
        let (mut default, mut own) = (Snapshot::default(), BTreeMap::<String, Vec<Resource>>::new());
        for (key, value) in &self.0 {
            let (node, resource) = read(key, value).ok_or_else(|| Malformed { key: key.clone() })?;
            match node {
                None => default.insert(resource),
                Some(id) => own.entry(id).or_default().push(resource),
            }
        }
        let nodes = own.into_iter().map(|(id, resources)| {
            let mut snapshot = default.clone();
            resources.into_iter().for_each(|resource| snapshot.insert(resource));
            (id, snapshot)
        });
        Ok(Snapshots { nodes: nodes.collect(), default })
    }

    /// The SHA-256 of all keys and values, in hex.
    pub fn digest(&self) -> String {
        let mut context = Context::new(&SHA256);
        for (key, value) in &self.0 {
            for part in [key.as_bytes(), value] {
                context.update(&(part.len() as u64).to_be_bytes());
                context.update(part);
            }
        }
        context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl FromIterator<(String, Bytes)> for Entries {
    fn from_iter<I: IntoIterator<Item = (String, Bytes)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

/// A key or its value is none of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key:?} is not a resource, or its value is none")]
pub struct Malformed {
    /// The key.
    pub key: String,
}

fn key(node: Option<&str>, resource: &Resource) -> String {
    let (message, name) = (resource.type_url.message_name(), &resource.name);
    match node {
        None => format!("{message}/{name}"),
        Some(id) => format!("@{}/{message}/{name}", utf8_percent_encode(id, ESCAPED)),
    }
}

fn value(body: Body) -> Bytes {
    let any = match body {
        Body::Message(any) => any,
        Body::Error { code, message } => {
            let status = Status { code: code as i32, message, details: Vec::new() };
            Any { type_url: STATUS.to_owned(), value: status.encode_to_vec() }
        }
    };
    any.encode_to_vec().into()
}

fn read(key: &str, value: &Bytes) -> Option<(Option<String>, Resource)> {
    let (node, rest) = match key.strip_prefix('@') {
        None => (None, key),
        Some(own) => {
            let (node, rest) = own.split_once('/')?;
            (Some(percent_decode_str(node).decode_utf8().ok()?.into_owned()), rest)
        }
    };
    let (message, name) = rest.split_once('/')?;
    let type_url = TypeUrl::from(message);
    let any = Any::decode(value.clone()).ok()?;
    let resource = if any.type_url == STATUS {
        let status = Status::decode(any.value.as_slice()).ok()?;
        Resource::error(type_url, name, Code::from(status.code), status.message)
    } else {
        (TypeUrl::from(any.type_url.as_str()) == type_url).then(|| Resource::new(type_url, name, any.value))?
    };
    Some((node, resource))
}

const STATUS: &str = "type.googleapis.com/google.rpc.Status";
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

#[cfg(test)]
mod tests {
    use mainstay_control_plane::resources;

    use super::*;

    #[test]
    fn what_is_kept_is_what_is_served_fb25() {
        let snapshots = example();
        let entries = Entries::of(&snapshots);
        assert_eq!(entries.to_snapshots(), Ok(snapshots));
        let keys: Vec<_> = entries.iter().map(|(key, _)| key.to_owned()).collect();
        assert_eq!(
            keys,
            [
                "@a%2F1 \u{e9}".replace(" \u{e9}", "%20%C3%A9") + "/envoy.config.cluster.v3.Cluster/own/with/slashes",
                "envoy.config.cluster.v3.Cluster/a".to_owned(),
                "envoy.config.listener.v3.Listener/gone".to_owned(),
            ]
        );
    }

    #[test]
    fn the_digest_tells_keys_and_values_apart_fb25() {
        let of = |key: &str, value: &str| {
            [(key.to_owned(), Bytes::from(value.to_owned()))].into_iter().collect::<Entries>().digest()
        };
        assert_eq!(of("a", "b"), of("a", "b"));
        assert_ne!(of("a", "b"), of("ab", ""));
        assert_ne!(of("a", "b"), of("a", "c"));
        assert_eq!(of("a", "b").len(), 64);
    }

    #[test]
    fn what_is_none_of_ours_is_refused_with_its_key() {
        let entries = Entries::of(&example());
        let value = entries.iter().next().expect("an entry").1.clone();
        for (key, value) in [
            ("no-slash", value.clone()),
            ("@node-only", value.clone()),
            ("envoy.config.listener.v3.Listener/other-type", value.clone()),
            ("envoy.config.cluster.v3.Cluster/a", Bytes::from_static(b"\xff")),
        ] {
            let entries: Entries = [(key.to_owned(), value)].into_iter().collect();
            assert_eq!(entries.to_snapshots(), Err(Malformed { key: key.to_owned() }));
        }
    }

    fn example() -> Snapshots {
        let default = Snapshot::builder()
            .cluster(resources::eds_cluster("a"))
            .error(TypeUrl::LISTENER, "gone", Code::NotFound, "no such listener")
            .build();
        let mut own = default.clone();
        own.insert(resources::eds_cluster("own/with/slashes"));
        Snapshots { default, nodes: [("a/1 \u{e9}".to_owned(), own)].into() }
    }
}
