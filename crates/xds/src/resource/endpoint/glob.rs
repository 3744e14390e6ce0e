//! Glob collections of endpoints: a set whose members come and go one by one (GC-3 to GC-8).

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, HealthStatus as PbHealthStatus, Metadata, SocketAddress, address,
};
use envoy_types::pb::envoy::config::endpoint::v3 as pb;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt32Value, Value};
use envoy_types::util::pack_any;
use pb::endpoint::AdditionalAddress;
use pb::lb_endpoint::HostIdentifier;

use super::{Endpoint, HealthStatus, SeenAddresses};
use crate::invalid::{Faults, Invalid};
use crate::resource::{FromWire, ParseContext, fields};

/// The members of a glob collection by name, as far as their health lets them be used.
///
/// A balanced tree whose parts are shared between versions of the set: a change of `k` of `n` members makes
/// `O(k log n)` new parts, and two versions that differ are told apart at a glance.
#[derive(Clone, Default)]
pub struct EndpointGlob {
    root: Tree,
}

type Tree = Option<Arc<Node>>;

#[derive(Clone)]
struct Node {
    name: Arc<str>,
    endpoint: Endpoint,
    /// Of name and endpoint.
    own_digest: u64,
    left: Tree,
    right: Tree,
    /// How many members are in this part of the tree.
    len: usize,
    /// The sum of their digests: the same in whatever order they came.
    digest: u64,
}

/// The collection that a resource of this name is a member of: the same authority, type and context parameters, and one
/// path segment less (GC-3). Both names are canonical.
pub fn glob_of(member: &str) -> Option<String> {
    let (path, parameters) = member.split_at(member.find('?').unwrap_or(member.len()));
    let (parent, last) = path.rsplit_once('/')?;
    (!last.is_empty() && last != "*").then(|| format!("{parent}/*{parameters}"))
}

impl Endpoint {
    /// Checks the LbEndpoint of a member; `None` if its health takes it out of use.
    pub(crate) fn of_member(pb: &pb::LbEndpoint) -> Result<Option<Self>, Invalid> {
        super::with_distinct_addresses(|addresses: &mut SeenAddresses, faults: &mut Faults| {
            Self::parse(pb, addresses, faults)
        })
    }

    /// A message that is read as this member again; `None` if there is none. The bytes that members come in are not kept.
    pub(crate) fn to_member(&self) -> Option<pb::LbEndpoint> {
        let addresses = self.addresses.as_slice();
        let (first, more) = addresses.split_first()?;
        let additional = |address: &SocketAddr| AdditionalAddress { address: Some(socket_address(*address)) };
        let endpoint = pb::Endpoint {
            address: Some(socket_address(*first)),
            additional_addresses: more.iter().map(additional).collect(),
            hostname: self.hostname().map(ToString::to_string).unwrap_or_default(),
            ..pb::Endpoint::default()
        };
        let mut metadata = Metadata::default();
        if let Some(hash_key) = self.hash_key() {
            let kind = Some(Kind::StringValue(hash_key.to_string()));
            let fields = Struct { fields: [("hash_key".to_owned(), Value { kind })].into() };
            metadata.filter_metadata.insert("envoy.lb".to_owned(), fields);
        }
        if let Some(proxy) = self.proxy() {
            let any = pack_any(socket_address(proxy));
            metadata.typed_filter_metadata.insert(fields::PROXY_ADDRESS.to_owned(), any);
        }
        let member = pb::LbEndpoint {
            health_status: match self.health {
                HealthStatus::Unknown => PbHealthStatus::Unknown,
                HealthStatus::Healthy => PbHealthStatus::Healthy,
                HealthStatus::Draining => PbHealthStatus::Draining,
            }
            .into(),
            load_balancing_weight: Some(UInt32Value { value: self.weight }),
            metadata: (metadata != Metadata::default()).then_some(metadata),
            host_identifier: Some(HostIdentifier::Endpoint(endpoint)),
        };
        Self::of_member(&member).is_ok_and(|read| read.as_ref() == Some(self)).then_some(member)
    }
}

fn socket_address(address: SocketAddr) -> Address {
    let socket = SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(PortSpecifier::PortValue(address.port().into())),
        ..SocketAddress::default()
    };
    Address { address: Some(address::Address::SocketAddress(socket)) }
}

impl FromWire for EndpointGlob {
    type Message = pb::LbEndpoint;

    fn name(_: &mut Self::Message) -> Option<String> {
        None
    }

    /// A resource of this type is one member. Its name stands beside it in the response.
    fn from_message(message: &Self::Message, _: ParseContext<'_>) -> Result<Self, Invalid> {
        let mut glob = Self::default();
        if let Some(endpoint) = Endpoint::of_member(message)? {
            glob.insert(Arc::default(), endpoint);
        }
        Ok(glob)
    }
}

// === impl EndpointGlob ===

impl EndpointGlob {
    /// How many members there are.
    pub fn len(&self) -> usize {
        len(&self.root)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The endpoint of a member.
    pub fn get(&self, name: &str) -> Option<&Endpoint> {
        let mut tree = &self.root;
        while let Some(node) = tree {
            count(1);
            tree = match name.cmp(&node.name) {
                std::cmp::Ordering::Less => &node.left,
                std::cmp::Ordering::Greater => &node.right,
                std::cmp::Ordering::Equal => return Some(&node.endpoint),
            };
        }
        None
    }

    /// The members in order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Endpoint)> {
        let mut path = Vec::new();
        let mut next = &self.root;
        std::iter::from_fn(move || {
            while let Some(node) = next {
                path.push(node);
                next = &node.left;
            }
            count(1);
            let node = path.pop()?;
            next = &node.right;
            Some((&node.name, &node.endpoint))
        })
    }

    /// Adds a member, or replaces it.
    pub fn insert(&mut self, name: Arc<str>, endpoint: Endpoint) {
        if self.get(&name) != Some(&endpoint) {
            insert(&mut self.root, name, endpoint);
        }
    }

    /// Removes a member, if it is one.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some() {
            remove(&mut self.root, name);
        }
    }
}

impl PartialEq for EndpointGlob {
    fn eq(&self, other: &Self) -> bool {
        let is_same = match (&self.root, &other.root) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => return false,
        };
        is_same
            || self.len() == other.len() && digest(&self.root) == digest(&other.root) && self.iter().eq(other.iter())
    }
}

impl Eq for EndpointGlob {}

impl Hash for EndpointGlob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        digest(&self.root).hash(state);
    }
}

impl fmt::Debug for EndpointGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

// === The tree: balanced by weight (Adams) ===

fn insert(tree: &mut Tree, name: Arc<str>, endpoint: Endpoint) {
    count(1);
    let Some(node) = tree else {
        *tree = Some(Arc::new(Node::new(name, endpoint)));
        return;
    };
    let node = Arc::make_mut(node);
    match name.cmp(&node.name) {
        std::cmp::Ordering::Less => insert(&mut node.left, name, endpoint),
        std::cmp::Ordering::Greater => insert(&mut node.right, name, endpoint),
        std::cmp::Ordering::Equal => (node.name, node.endpoint, node.own_digest) = Node::content(name, endpoint),
    }
    rebalance(tree);
}

fn remove(tree: &mut Tree, name: &str) {
    count(1);
    let Some(node) = tree else { return };
    let node = Arc::make_mut(node);
    match name.cmp(&node.name) {
        std::cmp::Ordering::Less => remove(&mut node.left, name),
        std::cmp::Ordering::Greater => remove(&mut node.right, name),
        std::cmp::Ordering::Equal => match take_first(&mut node.right) {
            Some(next) => {
                (node.name, node.endpoint, node.own_digest) =
                    (next.name.clone(), next.endpoint.clone(), next.own_digest);
            }
            None => {
                *tree = node.left.take();
                return;
            }
        },
    }
    rebalance(tree);
}

/// Takes the first member out of a tree.
fn take_first(tree: &mut Tree) -> Option<Arc<Node>> {
    count(1);
    let node = Arc::make_mut(tree.as_mut()?);
    if node.left.is_some() {
        let first = take_first(&mut node.left);
        rebalance(tree);
        return first;
    }
    let rest = node.right.take();
    std::mem::replace(tree, rest)
}

/// Makes a tree whose two sides are right, and differ by one member from balance, right as a whole.
fn rebalance(tree: &mut Tree) {
    let Some(arc) = tree else { return };
    let node = Arc::make_mut(arc);
    node.update();
    let (left, right) = (len(&node.left), len(&node.right));
    if left + right < 2 {
        return;
    }
    if right > SLANT * left {
        if let Some(child) = &node.right
            && len(&child.left) >= TURN * len(&child.right)
        {
            rotate(&mut node.right, Side::Left, Side::Right);
        }
        rotate(tree, Side::Right, Side::Left);
    } else if left > SLANT * right {
        if let Some(child) = &node.left
            && len(&child.right) >= TURN * len(&child.left)
        {
            rotate(&mut node.left, Side::Right, Side::Left);
        }
        rotate(tree, Side::Left, Side::Right);
    }
}

#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// Puts the child at the side `from` in the place of its parent, which goes below it at the side `to`.
fn rotate(tree: &mut Tree, from: Side, to: Side) {
    let Some(arc) = tree else { return };
    let node = Arc::make_mut(arc);
    let Some(mut child) = node.side(from).take() else { return };
    let above = Arc::make_mut(&mut child);
    *node.side(from) = above.side(to).take();
    node.update();
    let below = tree.take();
    *above.side(to) = below;
    above.update();
    *tree = Some(child);
}

impl Node {
    fn new(name: Arc<str>, endpoint: Endpoint) -> Self {
        let (name, endpoint, own_digest) = Self::content(name, endpoint);
        Self { name, endpoint, own_digest, left: None, right: None, len: 1, digest: own_digest }
    }

    fn content(name: Arc<str>, endpoint: Endpoint) -> (Arc<str>, Endpoint, u64) {
        // Not random: it has the same keys in every process.
        let mut hasher = DefaultHasher::new();
        (&name, &endpoint).hash(&mut hasher);
        (name, endpoint, hasher.finish())
    }

    fn side(&mut self, side: Side) -> &mut Tree {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    fn update(&mut self) {
        self.len = 1 + len(&self.left) + len(&self.right);
        self.digest = self.own_digest.wrapping_add(digest(&self.left)).wrapping_add(digest(&self.right));
    }
}

fn len(tree: &Tree) -> usize {
    tree.as_ref().map_or(0, |node| node.len)
}

fn digest(tree: &Tree) -> u64 {
    tree.as_ref().map_or(0, |node| node.digest)
}

/// One side of a tree has at most so many times the members of the other.
const SLANT: usize = 3;
/// When a child is turned before its parent is.
const TURN: usize = 2;

/// Counts a step of work.
#[cfg(not(test))]
fn count(_: u64) {}

#[cfg(test)]
pub(crate) use test_count::{count, steps_taken};

#[cfg(test)]
mod test_count {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts steps of work, for tests that bound it.
    pub(crate) fn count(steps: u64) {
        STEPS.set(STEPS.get() + steps);
    }

    /// How many steps this thread has counted.
    pub(crate) fn steps_taken() -> u64 {
        STEPS.get()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::resource::endpoint::{Addresses, HealthStatus};

    #[test]
    fn a_member_is_one_step_below_with_the_same_parameters_gc3() {
        for (member, glob) in [
            ("xdstp://a/t/foo/one", Some("xdstp://a/t/foo/*")),
            ("xdstp://a/t/foo/one?x=1&y=/", Some("xdstp://a/t/foo/*?x=1&y=/")),
            ("xdstp://a/t/foo/deep/one", Some("xdstp://a/t/foo/deep/*")),
            ("old/one", Some("old/*")),
            ("old", None),
            ("xdstp://a/t/foo/", None),
            ("xdstp://a/t/foo/*", None),
        ] {
            assert_eq!(glob_of(member).as_deref(), glob, "{member}");
        }
    }

    #[test]
    fn a_change_of_some_members_makes_few_new_parts_gc8() {
        let mut glob = EndpointGlob::default();
        for n in 0..10_000 {
            glob.insert(name(n), endpoint(n));
        }
        assert!(depth(&glob.root) <= 32, "{}", depth(&glob.root));
        let before = glob.clone();
        let start = steps_taken();
        glob.insert(name(5_000), endpoint(1));
        glob.remove(&name(77));
        glob.insert(name(10_001), endpoint(2));
        assert!(steps_taken() - start <= 3 * 3 * 32, "{}", steps_taken() - start);
        assert_ne!(before, glob);
        assert_eq!((before.len(), glob.len()), (10_000, 10_000));
        // What is not different costs nothing, and is the same.
        let same = glob.clone();
        glob.insert(name(5_000), endpoint(1));
        glob.remove(&name(77));
        let start = steps_taken();
        assert_eq!(same, glob);
        assert_eq!(steps_taken(), start);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever came and went: the members are those of a plain map, and how they got there is forgotten.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0..60u16, 0..3u16), 0..400)) {
            let (mut glob, mut plain) = (EndpointGlob::default(), BTreeMap::new());
            for (n, what) in steps {
                if what == 0 {
                    glob.remove(&name(n));
                    plain.remove(&name(n));
                } else {
                    glob.insert(name(n), endpoint(what));
                    plain.insert(name(n), endpoint(what));
                }
                prop_assert_eq!(glob.len(), plain.len());
            }
            prop_assert!(glob.iter().eq(plain.iter()));
            prop_assert!(is_balanced(&glob.root));
            let mut again = EndpointGlob::default();
            plain.into_iter().rev().for_each(|(name, endpoint)| again.insert(name, endpoint));
            prop_assert_eq!(&glob, &again);
        }
    }

    fn is_balanced(tree: &Tree) -> bool {
        tree.as_ref().is_none_or(|node| {
            let (left, right) = (len(&node.left), len(&node.right));
            let is_even = left + right < 2 || (left <= SLANT * right && right <= SLANT * left);
            is_even && node.len == 1 + left + right && is_balanced(&node.left) && is_balanced(&node.right)
        })
    }

    fn depth(tree: &Tree) -> usize {
        tree.as_ref().map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
    }

    fn name(n: u16) -> Arc<str> {
        format!("g/{n:05}").into()
    }

    fn endpoint(port: u16) -> Endpoint {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Endpoint { addresses: Addresses::One(address), weight: 1, health: HealthStatus::Healthy, names: None }
    }
}
