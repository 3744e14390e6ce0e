//! Glob collections: many resources that are asked for by one name and watched as one value (GC-3 to GC-7).
//!
//! Nothing says that all members have come. So the first set of a stream is gathered until the server has been quiet
//! for a moment, and put in the place of the one before as a whole (GC-5): endpoints that are gone since an earlier
//! stream are not told of otherwise. For that reason members are never claimed. Later changes take effect at once.

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::endpoint::v3::LbEndpoint;
use prost::Message;

use super::{Item, Outcome, Reading, message_name};
use crate::Time;
use crate::client::cache::Held;
use crate::client::dialect::Protocol;
use crate::client::intern::Parsed;
use crate::client::server::{Answered, Link, Unanswered};
use crate::client::stream::Filling;
use crate::client::subscription::{Answer, Effect, NOT_FOUND, Verdict, Word};
use crate::client::timers::TimerKind;
use crate::client::wire::{DeltaDiscoveryResponse, DeltaResource};
use crate::client::{ErrorKind, Provenance, Received, Report, ResourceError, ServerId, XdsClient};
use crate::invalid::Invalid;
use crate::name::{ResourceKey, is_glob};
use crate::resource::endpoint::{Endpoint, glob_of};
use crate::resource::{EndpointGlob, Resource, ResourceType};

/// What a response says about one collection.
#[derive(Default)]
struct News {
    /// By canonical name.
    members: BTreeMap<Arc<str>, Member>,
    /// The collection is empty, or gone (P-90).
    is_removed: bool,
    /// An error in the place of the collection (TP3).
    error: Option<(u16, String)>,
}

/// Where a member belongs, and its name there.
struct Place {
    collection: Arc<str>,
    name: Arc<str>,
}

/// What a response says about one member.
enum Member {
    /// What it is now; `None`: its health takes it out of use.
    Value(Option<Endpoint>),
    /// What it was (DX-17).
    Unchanged,
    /// It cannot be used as it is now: what it was stays (DX-11).
    Faulty(ErrorKind),
    Removed,
}

const KIND: ResourceType = ResourceType::EndpointGlob;

impl XdsClient {
    /// Takes in a response about members of collections.
    pub(super) fn on_members(&mut self, now: Time, server: ServerId, response: &DeltaDiscoveryResponse) {
        let mut reading = Reading::default();
        let collections = self.read_members(server, response, &mut reading);
        self.server_answered(server);
        self.recover_by(server, KIND, &reading);
        let config = self.servers[server.0].config.clone();
        let version: Arc<str> = response.system_version_info.as_str().into();
        let error = reading.nack();
        let invalid = reading.nameless + reading.faults.len() + reading.more_faults;
        let resources = response.resources.len();
        let received = Received { resources, valid: resources.saturating_sub(invalid), invalid };
        self.report(match &error {
            None => Report::Acked(config.clone(), KIND, version.clone(), received),
            Some(error) => Report::Nacked(config.clone(), KIND, version.clone(), received, error.clone()),
        });
        let provenance = Provenance { server: config, version: version.clone(), at: now };
        for (name, news) in collections {
            self.take_in_members(server, &ResourceKey { resource_type: KIND, name }, &provenance, news);
        }
        let answer = Answer { nonce: response.nonce.as_str().into(), version, error };
        if let Some(stream) = self.servers[server.0].link.stream_mut() {
            stream.owe(KIND, answer);
        }
    }

    /// The first set of a collection is there (GC-5).
    pub(in crate::client) fn on_filled(&mut self, now: Time, server: ServerId, key: &ResourceKey) {
        let from = &mut self.servers[server.0];
        let Some(gathering) = from.link.stream_mut().and_then(|stream| stream.globs.get_mut(&key.name)) else { return };
        let Some(Filling { members, version, .. }) = gathering.filling.take() else { return };
        gathering.is_filled = true;
        let provenance = Provenance { server: from.config.clone(), version, at: now };
        self.adopt_members(server, key, &provenance, members);
    }

    /// A state-of-the-world stream cannot carry glob collections (GC-2): their watchers hear why. What is in use of
    /// another server stays in use.
    pub(in crate::client) fn refuse_globs(&mut self, server: ServerId) {
        let Self { servers, cache, authorities, timers, node_id, .. } = self;
        let from = &mut servers[server.0];
        let config = &from.config;
        let (Link::Unanswered(Unanswered { stream, since, .. }) | Link::Answered(Answered { stream, since })) =
            &mut from.link
        else {
            return;
        };
        if stream.protocol() == Protocol::Delta {
            return;
        }
        let is_wanted = |entry: &&crate::client::cache::Entry| {
            !entry.watchers.is_empty() && authorities[entry.authority.0].uses(server)
        };
        let names: Vec<_> =
            cache.of_type(KIND).filter(|(_, entry)| is_wanted(entry)).map(|(name, _)| name.clone()).collect();
        if names.is_empty() && !stream.asked(KIND) {
            return;
        }
        let word = |name: &Arc<str>| {
            let error = ResourceError {
                resource: ResourceKey { resource_type: KIND, name: name.clone() },
                server: Some(config.clone()),
                node_id: node_id.clone(),
                kind: ErrorKind::NeedsDelta,
                at: *since,
            };
            Word::Said(Verdict { error: Arc::new(error), effect: Effect::Ambient })
        };
        let Some(changes) = stream.list(KIND, &names, true, word, timers) else { return };
        for name in changes.added {
            self.heed(&ResourceKey { resource_type: KIND, name });
        }
    }

    /// Reads a response without changing anything. What is wrong goes into `reading`, and the collections of which
    /// something came.
    fn read_members(
        &self,
        server: ServerId,
        response: &DeltaDiscoveryResponse,
        reading: &mut Reading,
    ) -> BTreeMap<Arc<str>, News> {
        let mut collections: BTreeMap<Arc<str>, News> = BTreeMap::new();
        for (index, entry) in response.resources.iter().enumerate() {
            let Place { collection, name } = match self.place(entry) {
                Ok(Some(place)) => place,
                Ok(None) => continue, // DX-9: of no collection that anybody watches.
                Err(invalid) => {
                    reading.nameless += 1;
                    reading.fault(|| format!("resources[{index}]: {invalid}"));
                    continue;
                }
            };
            reading.items.entry(collection.clone()).or_insert(Item { outcome: Outcome::Unchanged, version: None });
            let member = self.read_member(server, &collection, &name, entry);
            if let Member::Faulty(ErrorKind::Rejected { invalid, .. }) = &member {
                reading.fault(|| format!("{KIND} {name:?}: {invalid}"));
            }
            match collections.entry(collection).or_default().members.entry(name) {
                btree_map::Entry::Vacant(vacant) => drop(vacant.insert(member)),
                // P-42: nobody can say which one is meant.
                btree_map::Entry::Occupied(mut occupied) => {
                    let fault = "is in the response more than once";
                    reading.fault(|| format!("{KIND} {:?}: {fault}", occupied.key()));
                    occupied.insert(faulty(entry, Invalid::one("", fault)));
                }
            }
        }
        let errors = response.resource_errors.iter().filter(|_| self.bootstrap.guards.data_error_handling);
        for error in errors {
            let name = error.resource_name.as_ref().map(|named| named.name.clone());
            let (Ok(Some(name)), Some(status)) = (self.canonical(KIND, name), &error.error_detail) else {
                reading.nameless += 1;
                reading.fault(|| "resource_errors: resource_name or error_detail is missing".to_owned());
                continue;
            };
            let code = u16::try_from(status.code).unwrap_or(super::UNKNOWN);
            if is_glob(&name) {
                if let Some(name) = self.watched_collection(&name) {
                    collections.entry(name).or_default().error = Some((code, status.message.clone()));
                }
            } else if let Some(collection) = glob_of(&name).and_then(|glob| self.watched_collection(&glob)) {
                let kind = ErrorKind::FromServer { code, message: status.message.clone() };
                let member = if code == NOT_FOUND { Member::Removed } else { Member::Faulty(kind) };
                collections.entry(collection).or_default().members.entry(name).or_insert(member);
            }
        }
        for name in &response.removed_resources {
            let Ok(Some(name)) = self.canonical(KIND, Some(name.clone())) else { continue };
            if is_glob(&name) {
                if let Some(name) = self.watched_collection(&name) {
                    collections.entry(name).or_default().is_removed = true;
                }
            } else if let Some(collection) = glob_of(&name).and_then(|glob| self.watched_collection(&glob)) {
                let members = &mut collections.entry(collection).or_default().members;
                // DX-13: the content wins.
                if !matches!(members.entry(name.clone()).or_insert(Member::Removed), Member::Removed) {
                    reading.fault(|| format!("{KIND} {name:?}: is in the response and in removed_resources"));
                }
            }
        }
        collections
    }

    /// The watched collection of an entry and its name in it, be it an alias (DX-18).
    fn place(&self, entry: &DeltaResource) -> Result<Option<Place>, Invalid> {
        let mut is_named = false;
        for given in std::iter::once(&entry.name).chain(&entry.aliases).filter(|name| !name.is_empty()) {
            is_named = true;
            let name = match self.canonical(KIND, Some(given.clone())) {
                Ok(Some(name)) => name,
                Ok(None) => continue,
                Err(Outcome::Invalid(invalid)) => return Err(invalid),
                Err(_) => continue,
            };
            if let Some(collection) = glob_of(&name).and_then(|glob| self.watched_collection(&glob)) {
                return Ok(Some(Place { collection, name }));
            }
        }
        if is_named { Ok(None) } else { Err(Invalid::one("name", "is missing")) }
    }

    fn watched_collection(&self, glob: &str) -> Option<Arc<str>> {
        self.cache.get_key_value(KIND, glob).map(|(name, _)| name.clone())
    }

    fn read_member(&self, server: ServerId, collection: &str, name: &Arc<str>, entry: &DeltaResource) -> Member {
        let invalid = match &entry.resource {
            None if self.members_from(server, collection).is_some_and(|known| known.get(name).is_some()) => {
                return Member::Unchanged;
            }
            None => Invalid::one("resource", "is missing"),
            Some(any) if message_name(&any.type_url) != KIND.message_name() => {
                Invalid::one("type_url", format!("is {:?}: expected {:?}", any.type_url, KIND.type_url()))
            }
            Some(any) => match LbEndpoint::decode(any.value.as_ref()) {
                Ok(endpoint) => match Endpoint::of_member(&endpoint) {
                    Ok(endpoint) => return Member::Value(endpoint),
                    Err(invalid) => invalid,
                },
                Err(error) => Invalid::one("", format!("cannot be decoded: {error}")),
            },
        };
        faulty(entry, invalid)
    }

    /// The members in use, if they came from this server.
    fn members_from(&self, server: ServerId, collection: &str) -> Option<&Arc<EndpointGlob>> {
        match self.cache.get(KIND, collection)?.cached.held()? {
            Held { resource: Resource::EndpointGlob(members), server: from, .. } if *from == server => Some(members),
            Held { .. } => None,
        }
    }

    /// Takes in what a response says about one collection.
    fn take_in_members(&mut self, server: ServerId, key: &ResourceKey, provenance: &Provenance, news: News) {
        let News { members, is_removed, error } = news;
        self.change_members(server, key, provenance, members);
        if is_removed || error.is_some() {
            self.stop_filling(server, key);
        }
        if is_removed {
            self.remove(server, key, provenance.at);
        }
        if let Some((code, message)) = error {
            let drops = self.fails_on_data_errors(server) && matches!(code, NOT_FOUND | super::PERMISSION_DENIED);
            let effect = if drops { Effect::Drop } else { Effect::Ambient };
            self.hear(server, key, ErrorKind::FromServer { code, message }, effect, provenance.at);
        }
    }

    /// What comes next is the first of a new set.
    fn stop_filling(&mut self, server: ServerId, key: &ResourceKey) {
        if let Some(stream) = self.servers[server.0].link.stream_mut() {
            stream.forget_glob(key, &mut self.timers);
        }
    }

    fn change_members(
        &mut self,
        server: ServerId,
        key: &ResourceKey,
        provenance: &Provenance,
        members: BTreeMap<Arc<str>, Member>,
    ) {
        let drops = self.fails_on_data_errors(server);
        let in_use = self.members_from(server, &key.name).cloned();
        let brings_any = members.values().any(|member| !matches!(member, Member::Removed));
        let Some(entry) = self.cache.get(KIND, &key.name) else { return };
        if self.authorities[entry.authority.0].active() != Some(server) {
            if brings_any {
                self.pass_over(server, key); // Should it be in charge after all, it must send them again.
            }
            return;
        }
        let was_removed = entry.deletion_ignored;
        let (quiet, limit) = (self.settings.collection_quiet, self.settings.collection_limit);
        let Self { servers, timers, .. } = self;
        let Some(stream) = servers[server.0].link.stream_mut().filter(|stream| stream.lists(key)) else { return };
        if was_removed {
            stream.forget_glob(key, timers);
        }
        let gathering = stream.globs.entry(key.name.clone()).or_default();
        let is_filled = gathering.is_filled && in_use.is_some();
        if !is_filled && gathering.filling.is_none() && !brings_any {
            return; // GC-4: nothing is known of it before a member comes.
        }
        let mut filling = gathering.filling.take();
        let mut set = match (&mut filling, &in_use) {
            (Some(filling), _) => std::mem::take(&mut filling.members),
            (None, Some(in_use)) if is_filled => (**in_use).clone(),
            (None, _) => EndpointGlob::default(),
        };
        for (name, member) in members {
            gathering.faults.remove(&name);
            let before = in_use.as_ref().and_then(|in_use| in_use.get(&name));
            match member {
                Member::Value(Some(endpoint)) => set.insert(name, endpoint),
                Member::Value(None) | Member::Removed => set.remove(&name),
                Member::Unchanged => {
                    if let Some(before) = before {
                        set.insert(name, before.clone());
                    }
                }
                Member::Faulty(kind) => {
                    match before.filter(|_| !drops) {
                        Some(before) => set.insert(name.clone(), before.clone()),
                        None => set.remove(&name),
                    }
                    gathering.faults.insert(name, (kind, provenance.at));
                }
            }
        }
        if is_filled {
            return self.adopt_members(server, key, provenance, set);
        }
        let began = filling.as_ref().map_or(provenance.at, |filling| filling.began);
        if let Some(filling) = filling {
            timers.cancel(filling.due, TimerKind::Filled(server, key.clone()));
        }
        let due = (provenance.at + quiet).min(began + limit);
        gathering.filling = Some(Filling { members: set, began, due, version: provenance.version.clone() });
        timers.set(due, TimerKind::Filled(server, key.clone()));
        stream.heard(key, Word::Adopted, timers); // It has answered: there is nothing to wait for but more of it.
    }

    fn adopt_members(&mut self, server: ServerId, key: &ResourceKey, provenance: &Provenance, set: EndpointGlob) {
        let resource = Resource::EndpointGlob(Arc::new(set));
        self.adopt(server, key, provenance, Some(Parsed { resource, bytes: Bytes::new() }));
        let stream = self.servers[server.0].link.stream();
        let faults = stream.and_then(|stream| stream.globs.get(&key.name)).map(|gathering| &gathering.faults);
        if let Some((kind, at)) = faults.and_then(|faults| faults.values().next()).cloned() {
            self.hear(server, key, kind, Effect::Ambient, at);
        }
    }
}

fn faulty(entry: &DeltaResource, invalid: Invalid) -> Member {
    Member::Faulty(ErrorKind::Rejected { version: entry.version.as_str().into(), invalid })
}
