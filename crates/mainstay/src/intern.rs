//! Parsed resources, shared by the channels of the process: a thousand targets that use one cluster hold it once.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{Intern, Parsed};
use mainstay_xds::resource::{
    Cluster, EndpointCollection, EndpointGlob, Endpoints, Listener, ParseContext, Resource, ResourceType, RouteConfig,
};

use crate::process::{self, Kind};

/// One channel's access to what all channels with an equal bootstrap have parsed.
#[derive(Clone)]
pub(crate) struct Interner(Arc<Mutex<Table>>);

/// All of them, by bootstrap.
#[derive(Default)]
struct Interners(Vec<(Arc<Bootstrap>, Weak<Mutex<Table>>)>);

impl process::Table for Interners {
    const KIND: Kind = Kind::Interners;
}

/// What is held anywhere, by the hash of server, type and bytes.
struct Table {
    slots: HashMap<u64, Vec<Slot>>,
    hasher: RandomState,
    /// The number of hashes at which resources that nobody holds are forgotten. It doubles, so that the search for
    /// them costs little.
    prune_at: usize,
}

/// A resource that lives as long as anybody holds it. Only the slot itself stays behind.
struct Slot {
    server: Arc<ServerConfig>,
    bytes: Weak<Raw>,
    resource: WeakResource,
}

enum WeakResource {
    Listener(Weak<Listener>),
    RouteConfig(Weak<RouteConfig>),
    Cluster(Weak<Cluster>),
    Endpoints(Weak<Endpoints>),
    EndpointCollection(Weak<EndpointCollection>),
    EndpointGlob(Weak<EndpointGlob>),
}

/// The bytes of a resource. Boxed, so that they go with the last holder and not with the last slot.
struct Raw(Box<[u8]>);

/// What a [`Bytes`] holds on to.
struct Holder(Arc<Raw>);

// === impl Interner ===

impl Interner {
    /// The one of all channels with an equal bootstrap: what a parser makes may depend on it.
    pub(crate) fn of(bootstrap: &Arc<Bootstrap>) -> Self {
        let Interners(tables) = &mut *process::table();
        tables.retain(|(_, table)| table.strong_count() > 0);
        let known = tables.iter().find(|(known, _)| known == bootstrap).and_then(|(_, table)| table.upgrade());
        Self(known.unwrap_or_else(|| {
            let table = Arc::new(Mutex::new(Table::new()));
            tables.push((bootstrap.clone(), Arc::downgrade(&table)));
            table
        }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Intern for Interner {
    fn find(&mut self, resource_type: ResourceType, bytes: &[u8], cx: ParseContext<'_>) -> Option<Parsed> {
        self.table().find(resource_type, bytes, cx.server)
    }

    fn keep(&mut self, resource: Resource, bytes: &[u8], cx: ParseContext<'_>) -> Parsed {
        self.table().keep(resource, bytes, cx.server)
    }
}

// === impl Table ===

impl Table {
    fn new() -> Self {
        Self { slots: HashMap::new(), hasher: RandomState::new(), prune_at: MIN_PRUNE }
    }

    fn find(&self, resource_type: ResourceType, bytes: &[u8], server: &Arc<ServerConfig>) -> Option<Parsed> {
        let slots = self.slots.get(&self.hash(resource_type, bytes, server))?;
        slots.iter().filter(|slot| slot.server == *server).find_map(|slot| slot.parsed(resource_type, bytes))
    }

    fn keep(&mut self, resource: Resource, bytes: &[u8], server: &Arc<ServerConfig>) -> Parsed {
        if let Some(parsed) = self.find(resource.resource_type(), bytes, server) {
            return parsed;
        }
        if self.slots.len() >= self.prune_at {
            self.prune();
        }
        let hash = self.hash(resource.resource_type(), bytes, server);
        let raw = Arc::new(Raw(bytes.into()));
        let slots = self.slots.entry(hash).or_default();
        slots.retain(Slot::is_held);
        slots.push(Slot {
            server: server.clone(),
            bytes: Arc::downgrade(&raw),
            resource: WeakResource::from(&resource),
        });
        Parsed { resource, bytes: Bytes::from_owner(Holder(raw)) }
    }

    fn prune(&mut self) {
        self.slots.retain(|_, slots| {
            slots.retain(Slot::is_held);
            !slots.is_empty()
        });
        self.prune_at = MIN_PRUNE.max(2 * self.slots.len());
    }

    fn hash(&self, resource_type: ResourceType, bytes: &[u8], server: &ServerConfig) -> u64 {
        self.hasher.hash_one((resource_type, bytes, server))
    }
}

// === impl Slot ===

impl Slot {
    /// What it holds, if these are its bytes and somebody holds both.
    fn parsed(&self, resource_type: ResourceType, bytes: &[u8]) -> Option<Parsed> {
        let raw = self.bytes.upgrade().filter(|raw| *raw.0 == *bytes)?;
        let resource = self.resource.upgrade().filter(|resource| resource.resource_type() == resource_type)?;
        Some(Parsed { resource, bytes: Bytes::from_owner(Holder(raw)) })
    }

    fn is_held(&self) -> bool {
        self.bytes.strong_count() > 0
    }
}

// === impl WeakResource ===

impl WeakResource {
    fn upgrade(&self) -> Option<Resource> {
        match self {
            Self::Listener(weak) => weak.upgrade().map(Resource::Listener),
            Self::RouteConfig(weak) => weak.upgrade().map(Resource::RouteConfig),
            Self::Cluster(weak) => weak.upgrade().map(Resource::Cluster),
            Self::Endpoints(weak) => weak.upgrade().map(Resource::Endpoints),
            Self::EndpointCollection(weak) => weak.upgrade().map(Resource::EndpointCollection),
            Self::EndpointGlob(weak) => weak.upgrade().map(Resource::EndpointGlob),
        }
    }
}

impl From<&Resource> for WeakResource {
    fn from(resource: &Resource) -> Self {
        match resource {
            Resource::Listener(arc) => Self::Listener(Arc::downgrade(arc)),
            Resource::RouteConfig(arc) => Self::RouteConfig(Arc::downgrade(arc)),
            Resource::Cluster(arc) => Self::Cluster(Arc::downgrade(arc)),
            Resource::Endpoints(arc) => Self::Endpoints(Arc::downgrade(arc)),
            Resource::EndpointCollection(arc) => Self::EndpointCollection(Arc::downgrade(arc)),
            Resource::EndpointGlob(arc) => Self::EndpointGlob(Arc::downgrade(arc)),
        }
    }
}

impl AsRef<[u8]> for Holder {
    fn as_ref(&self) -> &[u8] {
        &self.0.0
    }
}

const MIN_PRUNE: usize = 64;

#[cfg(test)]
mod tests {
    use mainstay_xds::bootstrap::Node;

    use super::*;

    #[test]
    fn equal_bytes_are_held_once_by_all_channels_with_an_equal_bootstrap() {
        let (mut one, mut two) = (Party::new("shared"), Party::new("shared"));
        let kept = one.keep(b"bytes");
        assert!(is_same(&kept, &two.find(0, ResourceType::Endpoints, b"bytes").unwrap()));
        // Whoever parsed them at the same time gets the one that is known.
        assert!(is_same(&kept, &two.keep(b"bytes")));
    }

    #[test]
    fn nothing_is_shared_between_servers_types_contents_or_bootstraps() {
        let mut party = Party::new("apart");
        let _kept = party.keep(b"bytes");
        assert_eq!(party.find(1, ResourceType::Endpoints, b"bytes"), None);
        assert_eq!(party.find(0, ResourceType::Cluster, b"bytes"), None);
        assert_eq!(party.find(0, ResourceType::Endpoints, b"other"), None);
        assert_eq!(Party::new("stranger").find(0, ResourceType::Endpoints, b"bytes"), None);
    }

    #[test]
    fn what_nobody_holds_is_gone_and_its_slots_are_forgotten_in_time() {
        let mut party = Party::new("forgetful");
        let kept = party.keep(b"bytes");
        for i in 0..10 * MIN_PRUNE {
            drop(party.keep(&i.to_be_bytes()));
        }
        assert!(party.interner.table().slots.len() <= MIN_PRUNE);
        assert_eq!(party.find(0, ResourceType::Endpoints, &0_usize.to_be_bytes()), None);
        assert!(party.find(0, ResourceType::Endpoints, b"bytes").is_some());
        drop(kept);
        assert_eq!(party.find(0, ResourceType::Endpoints, b"bytes"), None);
    }

    fn is_same(a: &Parsed, b: &Parsed) -> bool {
        let (Resource::Endpoints(x), Resource::Endpoints(y)) = (&a.resource, &b.resource) else { return false };
        Arc::ptr_eq(x, y) && a.bytes.as_ptr() == b.bytes.as_ptr()
    }

    /// A channel with two servers.
    struct Party {
        interner: Interner,
        bootstrap: Arc<Bootstrap>,
    }

    impl Party {
        fn new(node: &str) -> Self {
            let bootstrap = Bootstrap::builder()
                .node(Node { id: node.to_owned(), ..Node::default() })
                .server(ServerConfig::insecure("127.0.0.1:1"))
                .server(ServerConfig::insecure("127.0.0.1:2"))
                .build()
                .map(Arc::new)
                .unwrap();
            Self { interner: Interner::of(&bootstrap), bootstrap }
        }

        fn find(&mut self, server: usize, resource_type: ResourceType, bytes: &[u8]) -> Option<Parsed> {
            let cx = ParseContext { bootstrap: &self.bootstrap, server: &self.bootstrap.servers[server] };
            self.interner.find(resource_type, bytes, cx)
        }

        /// Keeps endpoints from the first server.
        fn keep(&mut self, bytes: &[u8]) -> Parsed {
            let cx = ParseContext { bootstrap: &self.bootstrap, server: &self.bootstrap.servers[0] };
            self.interner.keep(Resource::Endpoints(Arc::new(Endpoints::default())), bytes, cx)
        }
    }
}
