//! A snapshot in force: every type and every resource has a version, which follows from its content (DX-24), and every
//! resource knows when it last changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::Resource as Wrapper;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;

use crate::encoding::Encodings;
use crate::names::{Selections, Stamped};
use crate::snapshot::{Body, Snapshot, TypeContent};
use crate::type_url::TypeUrl;
use crate::version::Version;

/// What one node is served at one moment.
#[derive(Debug, Default)]
pub(crate) struct View {
    types: BTreeMap<TypeUrl, Arc<TypeView>>,
    wrap_all: bool,
    is_partial: bool,
}

impl View {
    /// Puts a snapshot into force in place of `previous`. What did not change keeps its version and its stamps; what
    /// did gets `stamp`, which must be new.
    pub(crate) fn advance(previous: &View, snapshot: Snapshot, stamp: u64) -> Self {
        let Snapshot { types: mut contents, wrap_all, is_partial } = snapshot;
        // A type whose last resource went away is still a type with a (new) version: its absence must be told.
        for type_url in previous.types.keys() {
            contents.entry(type_url.clone()).or_default();
        }
        let types = contents
            .into_iter()
            .map(|(type_url, content)| {
                let wrap = wrap_all || type_url.is_nameless();
                let now = TypeView::advance(previous.types.get(&type_url), content, stamp, wrap);
                (type_url, now)
            })
            .collect();
        Self { types, wrap_all, is_partial }
    }

    /// Whether there is more elsewhere, so that what is not here may exist: see [`Snapshot::partial`].
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Whether there is nothing in it, of any type.
    pub(crate) fn is_empty(&self) -> bool {
        self.types.values().all(|content| content.resources.is_empty())
    }

    /// The resources of a type, if it was ever in a snapshot.
    pub(crate) fn get(&self, type_url: &TypeUrl) -> Option<&Arc<TypeView>> {
        self.types.get(type_url)
    }

    /// The same view with some resources replaced; for faults.
    pub(crate) fn overlay<'a>(&self, replacements: impl IntoIterator<Item = (&'a TypeUrl, &'a str, Entry)>) -> Self {
        let mut types = self.types.clone();
        for (type_url, name, entry) in replacements {
            let content = Arc::make_mut(types.entry(type_url.clone()).or_default());
            content.errors |= entry.is_error();
            content.resources.insert(name.to_owned(), entry);
            (content.id, content.changes) = (None, Changes::default());
            content.version = content.content_version().to_string();
        }
        Self { types, wrap_all: self.wrap_all, is_partial: self.is_partial }
    }

    /// The snapshot from which this view was made.
    pub(crate) fn to_snapshot(&self) -> Snapshot {
        let types = self.types.iter().filter(|(_, view)| view.given_version || !view.resources.is_empty());
        let types = types.map(|(type_url, view)| {
            let version = view.given_version.then(|| view.version.clone());
            let resources = view.resources.iter().map(|(name, entry)| (name.clone(), entry.body.clone())).collect();
            let given = |(name, entry): (&String, &Entry)| Some((name.clone(), entry.given.as_ref()?.to_string()));
            let versions = view.resources.iter().filter_map(given).collect();
            (type_url.clone(), TypeContent { version, resources, versions })
        });
        Snapshot { types: types.collect(), wrap_all: self.wrap_all, is_partial: self.is_partial }
    }
}

/// The resources of one type in a view.
#[derive(Clone, Debug)]
pub(crate) struct TypeView {
    pub(crate) version: String,
    pub(crate) resources: BTreeMap<String, Entry>,
    /// Which view of the type this is; `None` where nobody counts.
    pub(crate) id: Option<u64>,
    /// What is other than in an earlier view of the type: so that who had that one need not look at everything.
    pub(crate) changes: Changes,
    /// Whether there are errors in the places of resources.
    pub(crate) errors: bool,
    given_version: bool,
    wrap: bool,
    /// Responses that were made from it.
    pub(crate) encodings: Encodings,
    /// What it has of what streams asked for.
    pub(crate) selections: Selections,
}

/// The difference between two views of a type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Which view it starts from.
    pub(crate) since: Option<u64>,
    /// The names that changed, came or went.
    pub(crate) names: Vec<String>,
}

impl Default for TypeView {
    /// A type of which there is nothing.
    fn default() -> Self {
        Self {
            version: Version::of_all([]).to_string(),
            resources: BTreeMap::new(),
            id: None,
            changes: Changes::default(),
            errors: false,
            given_version: false,
            wrap: false,
            encodings: Encodings::default(),
            selections: Selections::default(),
        }
    }
}

impl TypeView {
    fn advance(previous: Option<&Arc<Self>>, content: TypeContent, stamp: u64, wrap: bool) -> Arc<Self> {
        let given_version = content.version.is_some();
        // A version that the caller moved by hand means "send it all again"; so does another form of sending.
        let forced = previous
            .is_some_and(|old| old.wrap != wrap || content.version.as_ref().is_some_and(|given| *given != old.version));
        let mut changed = forced || previous.is_none_or(|old| old.resources.len() != content.resources.len());
        let keep = |name: &str, body: &Body| {
            let old = previous.filter(|_| !forced)?.resources.get(name)?;
            (old.body == *body).then_some((old.stamp, old.version))
        };
        let mut names = Vec::new();
        let mut versions = content.versions;
        let resources: BTreeMap<_, _> = content
            .resources
            .into_iter()
            .map(|(name, body)| {
                let kept = keep(&name, &body);
                if kept.is_none() {
                    changed = true;
                    names.push(name.clone());
                }
                let given: Option<Arc<str>> = versions.remove(&name).map(Into::into);
                // Another name for the same content is not sent again; who comes later is told the newer one.
                changed |= previous.is_some_and(|old| old.resources.get(&name).is_some_and(|old| old.given != given));
                let (stamp, version) = kept.unwrap_or_else(|| (stamp, Version::of(&body)));
                (name, Entry { stamp, version, given, body })
            })
            .collect();
        match previous {
            // The same allocation: streams see at a glance that nothing changed.
            Some(old) if !changed && old.given_version == given_version => Arc::clone(old),
            Some(old) if !changed => Arc::new(Self { given_version, ..old.as_ref().clone() }),
            _ => {
                let (encodings, selections) = (Encodings::default(), Selections::default());
                let before = previous.into_iter().flat_map(|old| old.resources.keys());
                names.extend(before.filter(|name| !resources.contains_key(*name)).cloned());
                let changes = Changes { since: previous.and_then(|old| old.id), names };
                let (id, version, errors) = (Some(stamp), String::new(), resources.values().any(Entry::is_error));
                let mut now =
                    Self { version, resources, id, changes, errors, given_version, wrap, encodings, selections };
                now.version = content.version.unwrap_or_else(|| now.content_version().to_string());
                Arc::new(now)
            }
        }
    }

    /// What the version is, unless the caller gave one.
    fn content_version(&self) -> Version {
        Version::of_all(self.resources.iter().map(|(name, entry)| (name.as_str(), entry.version)))
    }

    /// What goes into a response for a message of this type.
    pub(crate) fn pack(&self, name: &str, message: &Any, version: String) -> Any {
        if !self.wrap {
            return message.clone();
        }
        let wrapper = Wrapper { name: name.to_owned(), version, resource: Some(message.clone()), ..Wrapper::default() };
        Any { type_url: TypeUrl::RESOURCE.as_str().to_owned(), value: wrapper.encode_to_vec() }
    }
}

/// One resource in a view.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Changes whenever the content changes, and is never used for two contents: streams compare only this.
    pub(crate) stamp: u64,
    /// Of the content.
    pub(crate) version: Version,
    /// The version that somebody else gave it, which is the one to tell.
    pub(crate) given: Option<Arc<str>>,
    /// What goes into a response.
    pub(crate) body: Body,
}

impl Stamped for Entry {
    fn stamp(&self) -> u64 {
        self.stamp
    }
}

impl Entry {
    /// The version to tell.
    pub(crate) fn told_version(&self) -> String {
        self.given.as_ref().map_or_else(|| self.version.to_string(), ToString::to_string)
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self.body, Body::Error { .. })
    }

    /// About how many bytes it takes in a response.
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Message(any) => any.type_url.len() + any.value.len(),
            Body::Error { message, .. } => message.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;

    #[test]
    fn only_types_whose_content_changed_get_a_new_version() {
        let first = View::advance(&View::default(), snapshot("backend:1").into(), 1);
        let second = View::advance(&first, snapshot("backend:2").into(), 2);
        assert_eq!(version(&second, TypeUrl::CLUSTER), version(&first, TypeUrl::CLUSTER));
        assert_ne!(version(&second, TypeUrl::ENDPOINTS), version(&first, TypeUrl::ENDPOINTS));
        assert_eq!(stamp(&second, TypeUrl::CLUSTER, "c"), 1);
        assert_eq!(stamp(&second, TypeUrl::ENDPOINTS, "c"), 2);
    }

    #[test]
    fn an_equal_snapshot_changes_nothing() {
        let first = View::advance(&View::default(), snapshot("backend:1").into(), 1);
        let second = View::advance(&first, snapshot("backend:1").into(), 2);
        assert!(Arc::ptr_eq(first.get(&TypeUrl::CLUSTER).unwrap(), second.get(&TypeUrl::CLUSTER).unwrap()));
        assert!(Arc::ptr_eq(first.get(&TypeUrl::ENDPOINTS).unwrap(), second.get(&TypeUrl::ENDPOINTS).unwrap()));
        assert_eq!(second.to_snapshot(), snapshot("backend:1").build());
    }

    #[test]
    fn a_type_that_went_away_has_a_new_version_and_no_resources() {
        let first = View::advance(&View::default(), snapshot("backend:1").into(), 1);
        let second = View::advance(&first, Snapshot::default(), 2);
        assert_ne!(version(&second, TypeUrl::CLUSTER), version(&first, TypeUrl::CLUSTER));
        assert_eq!(version(&second, TypeUrl::CLUSTER), TypeView::default().version, "as if there had never been one");
        assert!(second.get(&TypeUrl::CLUSTER).unwrap().resources.is_empty());
        assert_eq!(second.to_snapshot(), Snapshot::default());
    }

    #[test]
    fn a_given_version_that_moves_changes_every_stamp_of_its_type() {
        let given = |v: &str| snapshot("backend:1").version(TypeUrl::CLUSTER, v).build();
        let first = View::advance(&View::default(), given("a"), 1);
        let same = View::advance(&first, given("a"), 2);
        assert_eq!((version(&same, TypeUrl::CLUSTER), stamp(&same, TypeUrl::CLUSTER, "c")), ("a", 1));
        let moved = View::advance(&same, given("b"), 3);
        assert_eq!((version(&moved, TypeUrl::CLUSTER), stamp(&moved, TypeUrl::CLUSTER, "c")), ("b", 3));
        assert_eq!(stamp(&moved, TypeUrl::ENDPOINTS, "c"), 1);
    }

    #[test]
    fn equal_content_has_equal_versions_however_it_came_about_dx24() {
        let direct = View::advance(&View::default(), snapshot("backend:2").into(), 1);
        let before = View::advance(&View::default(), snapshot("backend:1").into(), 1);
        let after = View::advance(&before, snapshot("backend:2").into(), 7);
        for type_url in [TypeUrl::CLUSTER, TypeUrl::ENDPOINTS] {
            assert_eq!(version(&direct, type_url.clone()), version(&after, type_url.clone()));
            let of = |view: &View| view.get(&type_url).unwrap().resources["c"].version;
            assert_eq!(of(&direct), of(&after));
        }
    }

    #[test]
    fn a_version_of_somebody_else_is_told_and_decides_nothing_fb17() {
        let given = |address: &str, version: &str| {
            let mut snapshot = Snapshot::default();
            snapshot.insert_with_version(resources::endpoints("c", [address]), version);
            snapshot
        };
        let first = View::advance(&View::default(), given("backend:1", "seven"), 1);
        let renamed = View::advance(&first, given("backend:1", "eight"), 2);
        let changed = View::advance(&renamed, given("backend:2", "eight"), 3);
        let told = |view: &View| view.get(&TypeUrl::ENDPOINTS).unwrap().resources["c"].told_version();
        assert_eq!([told(&first), told(&renamed), told(&changed)], ["seven", "eight", "eight"]);
        let stamps = [&first, &renamed, &changed].map(|view| stamp(view, TypeUrl::ENDPOINTS, "c"));
        assert_eq!(stamps, [1, 1, 3], "only what has other bytes is sent again");
        assert_eq!(changed.to_snapshot(), given("backend:2", "eight"));
        let mut over = given("backend:1", "seven");
        over.overlay(snapshot("backend:9").build());
        let plain = View::advance(&changed, over, 4);
        assert_eq!(told(&plain).len(), 32, "an own resource has a version of its own again");
    }

    fn snapshot(address: &str) -> crate::SnapshotBuilder {
        Snapshot::builder().cluster(resources::eds_cluster("c")).endpoints(resources::endpoints("c", [address]))
    }

    fn version(view: &View, type_url: TypeUrl) -> &str {
        &view.get(&type_url).unwrap().version
    }

    fn stamp(view: &View, type_url: TypeUrl, name: &str) -> u64 {
        view.get(&type_url).unwrap().resources[name].stamp
    }
}
