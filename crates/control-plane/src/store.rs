//! The control plane itself: which snapshot is in force for which node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::sync::watch;

use crate::guards::Guards;
use crate::snapshot::Snapshot;
use crate::type_url::TypeUrl;
use crate::view::View;

/// Holds the snapshots in force. Clones share them, and any number of servers can serve them.
///
/// ```
/// use mainstay_control_plane::{ControlPlane, Snapshot, TypeUrl, resources};
///
/// let control_plane = ControlPlane::new();
/// control_plane.set(Snapshot::builder().cluster(resources::eds_cluster("a")));
/// control_plane.update(|snapshot| snapshot.insert(resources::endpoints("a", ["127.0.0.1:1"])));
/// // Versions follow from the content: another control plane with the same resources has the same ones.
/// let replica = ControlPlane::new();
/// replica.set(Snapshot::builder().cluster(resources::eds_cluster("a")).endpoints(resources::endpoints("a", ["127.0.0.1:1"])));
/// assert_eq!(control_plane.version(&TypeUrl::CLUSTER), replica.version(&TypeUrl::CLUSTER));
/// assert_eq!(control_plane.version(&TypeUrl::ENDPOINTS), replica.version(&TypeUrl::ENDPOINTS));
/// ```
#[derive(Clone, Debug)]
pub struct ControlPlane {
    store: Arc<watch::Sender<Store>>,
    guards: Guards,
}

impl ControlPlane {
    /// A control plane with nothing to serve: it answers no request until a snapshot is set.
    pub fn new() -> Self {
        Self { store: Arc::new(watch::Sender::new(Store::default())), guards: Guards::default() }
    }

    /// Has every server ask `guard` before it lets a stream in. What it answers as an error ends the stream with UNAVAILABLE; for
    /// sources that are behind what they follow, while another server may not be. Streams that are open stay.
    pub fn guard<F>(&self, guard: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.guards.add(guard);
    }

    /// Whether a stream may come in now; if not, why.
    pub(crate) async fn admit(&self) -> Result<(), String> {
        self.guards.admit().await
    }

    /// Puts a snapshot into force for every node that has none of its own. Every open stream is sent what changed.
    pub fn set(&self, snapshot: impl Into<Snapshot>) {
        let snapshot = snapshot.into();
        self.store.send_modify(|store| store.set(snapshot));
    }

    /// Puts a snapshot into force for one node, in place of the one for all nodes.
    pub fn set_for_node(&self, node_id: impl Into<String>, snapshot: impl Into<Snapshot>) {
        let (node_id, snapshot) = (node_id.into(), snapshot.into());
        self.store.send_modify(|store| store.set_for_node(node_id, snapshot));
    }

    /// Takes back a node's own snapshot; the one for all nodes is in force for it again.
    pub fn clear_node(&self, node_id: &str) {
        self.store.send_modify(|store| {
            store.nodes.remove(node_id);
        });
    }

    /// Changes the snapshot for all nodes in place, starting from an empty one if there is none.
    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        self.store.send_modify(|store| {
            let mut snapshot = store.default.as_ref().map(|view| view.to_snapshot()).unwrap_or_default();
            change(&mut snapshot);
            store.set(snapshot);
        });
    }

    /// Puts a whole set of snapshots into force at once. Nodes that are not in it lose their own.
    pub fn replace(&self, snapshots: Snapshots) {
        self.store.send_modify(|store| {
            // Nodes first: what they were served before may be the old snapshot for all nodes.
            let stale: Vec<_> = store.nodes.keys().filter(|id| !snapshots.nodes.contains_key(*id)).cloned().collect();
            for (node_id, snapshot) in snapshots.nodes {
                store.set_for_node(node_id, snapshot);
            }
            for node_id in stale {
                store.nodes.remove(&node_id);
            }
            store.set(snapshots.default);
        });
    }

    /// Tells nodes apart by class from now on. Each stream is served the snapshots of the class that the node in its first
    /// request is of, as [`replace_classes`](Self::replace_classes) put them into force, and nothing else; it is refused,
    /// with the text as the reason, if it is of none (FB-14).
    pub fn classify(&self, classify: impl Fn(&Node) -> Result<String, String> + Send + Sync + 'static) {
        self.store.send_modify(|store| store.classify = Some(Classify(Arc::new(classify))));
    }

    /// Puts snapshots into force for the nodes of each class, all at once. Streams of a class that is not in it are refused
    /// until it is.
    pub fn replace_classes(&self, classes: BTreeMap<String, Snapshots>) {
        self.store.send_modify(|store| {
            let mut before = std::mem::take(&mut store.classes);
            for (class, snapshots) in classes {
                let mut views = before.remove(&class).unwrap_or_default();
                views.replace(snapshots, store.new_stamp());
                store.classes.insert(class, views);
            }
        });
    }

    /// The snapshot in force for a node of a class.
    pub fn snapshot_for_class(&self, class: &str, node_id: &str) -> Option<Snapshot> {
        self.store.borrow().view(Some(class), node_id).map(|view| view.to_snapshot())
    }

    /// The snapshot in force for all nodes.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.store.borrow().default.as_ref().map(|view| view.to_snapshot())
    }

    /// Everything in force for nodes that are not told apart by class.
    pub fn snapshots(&self) -> Snapshots {
        let store = self.store.borrow();
        let nodes = store.nodes.iter().map(|(id, view)| (id.clone(), view.to_snapshot()));
        Snapshots {
            default: store.default.as_ref().map(|view| view.to_snapshot()).unwrap_or_default(),
            nodes: nodes.collect(),
        }
    }

    /// The snapshot in force for a node: its own, or else the one for all nodes.
    pub fn snapshot_for_node(&self, node_id: &str) -> Option<Snapshot> {
        self.store.borrow().view(None, node_id).map(|view| view.to_snapshot())
    }

    /// The version of a type in the snapshot for all nodes.
    pub fn version(&self, type_url: &TypeUrl) -> Option<String> {
        Some(self.store.borrow().default.as_ref()?.get(type_url)?.version.clone())
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Store> {
        self.store.subscribe()
    }

    /// A stamp that no resource has yet; faults use it for what they put in the place of resources.
    pub(crate) fn new_stamp(&self) -> u64 {
        let mut stamp = 0;
        self.store.send_if_modified(|store| {
            stamp = store.new_stamp();
            false
        });
        stamp
    }
}

impl Default for ControlPlane {
    fn default() -> Self {
        Self::new()
    }
}

/// Snapshots for several nodes, to be put into force together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshots {
    /// For every node that has none of its own.
    pub default: Snapshot,
    /// By node id.
    pub nodes: BTreeMap<String, Snapshot>,
}

/// The views in force.
#[derive(Debug, Default)]
pub(crate) struct Store {
    last_stamp: u64,
    default: Option<Arc<View>>,
    nodes: BTreeMap<String, Arc<View>>,
    classify: Option<Classify>,
    classes: BTreeMap<String, ClassViews>,
}

/// Says of which class a node is, or why of none.
#[derive(Clone)]
struct Classify(Arc<ClassOf>);

type ClassOf = dyn Fn(&Node) -> Result<String, String> + Send + Sync;

impl fmt::Debug for Classify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classify").finish_non_exhaustive()
    }
}

/// The views in force for the nodes of one class.
#[derive(Debug, Default)]
struct ClassViews {
    default: Arc<View>,
    nodes: BTreeMap<String, Arc<View>>,
}

impl ClassViews {
    fn replace(&mut self, snapshots: Snapshots, stamp: u64) {
        let before = std::mem::take(&mut self.nodes);
        for (node_id, snapshot) in snapshots.nodes {
            let previous = before.get(&node_id).unwrap_or(&self.default);
            let view = Arc::new(View::advance(previous, snapshot, stamp));
            self.nodes.insert(node_id, view);
        }
        self.default = Arc::new(View::advance(&self.default, snapshots.default, stamp));
    }
}

impl Store {
    /// What a node is served, of a class if nodes are told apart so.
    pub(crate) fn view(&self, class: Option<&str>, node_id: &str) -> Option<&Arc<View>> {
        let Some(class) = class else { return self.nodes.get(node_id).or(self.default.as_ref()) };
        let views = self.classes.get(class)?;
        Some(views.nodes.get(node_id).unwrap_or(&views.default))
    }

    /// The class of a node; `None` if nodes are not told apart. An error says why it is of none.
    pub(crate) fn class_of(&self, node: Option<&Node>) -> Result<Option<String>, String> {
        let Some(Classify(classify)) = &self.classify else { return Ok(None) };
        classify(node.unwrap_or(&Node::default())).map(Some)
    }

    pub(crate) fn set(&mut self, snapshot: Snapshot) {
        let stamp = self.new_stamp();
        self.default = Some(Arc::new(advance(self.default.as_deref(), snapshot, stamp)));
    }

    fn set_for_node(&mut self, node_id: String, snapshot: Snapshot) {
        let stamp = self.new_stamp();
        let view = Arc::new(advance(self.view(None, &node_id).map(Arc::as_ref), snapshot, stamp));
        self.nodes.insert(node_id, view);
    }

    /// Stamps are never reused, not even between nodes, because a node can move from one view to another.
    fn new_stamp(&mut self) -> u64 {
        self.last_stamp += 1;
        self.last_stamp
    }
}

fn advance(previous: Option<&View>, snapshot: Snapshot, stamp: u64) -> View {
    match previous {
        Some(previous) => View::advance(previous, snapshot, stamp),
        None => View::advance(&View::default(), snapshot, stamp),
    }
}
