//! A response: read first, then taken in, in one step.

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::authority::AuthorityId;
use super::cache::{Cached, Fault, Held};
use super::dialect::Protocol;
use super::intern::{Intern, Parsed};
use super::server::{Link, Server};
use super::subscription::{Answer, Effect, NOT_FOUND, Verdict, Word};
use super::wire::{self, DeltaDiscoveryResponse, DeltaResource, Named, Response, WRAPPER, Wrapper};
use super::{Action, ErrorKind, Provenance, Received, Report, ResourceError, ServerId, XdsClient};
use crate::Time;
use crate::invalid::Invalid;
use crate::name::ResourceKey;
use crate::resource::{ParseContext, ResourceType, decode};

mod globs;

/// What a response says, before it changes anything.
#[derive(Default)]
struct Reading {
    /// By canonical name.
    items: BTreeMap<Arc<str>, Item>,
    /// What is wrong, for the NACK.
    faults: Vec<String>,
    /// Faults beyond those.
    more_faults: usize,
    /// Entries without a name that can be read: if there are any, nobody knows what is missing from the response.
    nameless: usize,
}

/// One resource in a response.
struct Item {
    outcome: Outcome,
    /// Its own version, over delta.
    version: Option<Arc<str>>,
}

/// What a response says about one resource.
enum Outcome {
    /// The value in use, byte for byte, from the same server.
    Unchanged,
    /// A value.
    Value(Parsed),
    /// A good value that nobody watches (P-41).
    Unasked,
    /// A value that cannot be used.
    Invalid(Invalid),
    /// An error instead of a value (TP3).
    Error { code: u16, message: String },
    /// There is none, or not any more. Only said over delta (P-75).
    Removed,
}

impl XdsClient {
    /// Takes in a message. What is not a response to something asked on this stream is ignored, and the stream goes
    /// on (P-36).
    pub(super) fn on_message(&mut self, now: Time, server: ServerId, message: Bytes, intern: &mut dyn Intern) {
        let Server { config, link, .. } = &self.servers[server.0];
        let Some(protocol) = link.protocol() else { return };
        let response = match Response::decode(protocol, message) {
            Ok(response) => response,
            Err(error) => {
                let report = Report::Ignored(config.clone(), error);
                self.report(report);
                return self.server_is_alive(server);
            }
        };
        // Members of globs come over delta only (GC-2).
        let can_come = |t: &ResourceType| *t != ResourceType::EndpointGlob || protocol == Protocol::Delta;
        let asked = |t: &ResourceType| {
            can_come(t) && self.servers[server.0].link.stream().is_some_and(|stream| stream.asked(*t))
        };
        match ResourceType::from_type_url(response.type_url()).filter(asked) {
            Some(resource_type) => self.on_response(now, server, resource_type, response, intern),
            None => {
                let what = format!("a response of type {:?}, which was not asked for", response.type_url());
                let report = Report::Ignored(config.clone(), what);
                self.report(report);
                self.server_is_alive(server);
            }
        }
    }

    fn on_response(
        &mut self,
        now: Time,
        server: ServerId,
        resource_type: ResourceType,
        response: Response,
        intern: &mut dyn Intern,
    ) {
        if let Response::Delta(delta) = &response
            && !self.check_identity(now, server, delta)
        {
            return;
        }
        if let (Response::Delta(delta), ResourceType::EndpointGlob) = (&response, resource_type) {
            return self.on_members(now, server, delta);
        }
        let reading = self.read(server, resource_type, &response, intern);
        self.server_answered(server);
        self.recover_by(server, resource_type, &reading);
        let config = self.servers[server.0].config.clone();
        let version: Arc<str> = response.version().into();
        let (error, received) = (reading.nack(), reading.received(response.len()));
        self.report(match &error {
            None => Report::Acked(config.clone(), resource_type, version.clone(), received),
            Some(error) => Report::Nacked(config.clone(), resource_type, version.clone(), received, error.clone()),
        });
        let provenance = Provenance { server: config, version: version.clone(), at: now };
        // Over delta absence says nothing (P-74).
        let is_full = resource_type.full_state() && matches!(response, Response::Sotw(_));
        if is_full && reading.nameless == 0 {
            self.delete_missing(server, resource_type, &provenance, &reading.items);
            if let Some(stream) = self.servers[server.0].link.stream_mut() {
                stream.forget_left_out(resource_type, |name| reading.items.contains_key(name));
            }
        }
        for (name, Item { outcome, version }) in reading.items {
            let key = ResourceKey { resource_type, name };
            match version {
                Some(version) => self.take_in(server, key, &Provenance { version, ..provenance.clone() }, outcome),
                None => self.take_in(server, key, &provenance, outcome),
            }
        }
        // A response that is rejected, even in part, does not advance the version (P-39, D-11).
        let from = &mut self.servers[server.0];
        if error.is_none() {
            from.set_version(resource_type, version);
        }
        let answer = Answer { nonce: response.nonce().into(), version: from.version(resource_type), error };
        if let Some(stream) = from.link.stream_mut() {
            stream.owe(resource_type, answer);
        }
    }

    /// Whether the server is the one to which we claimed to have something (DX-16). If not, equal versions mean nothing,
    /// and the stream is opened again without claims.
    fn check_identity(&mut self, now: Time, server: ServerId, response: &DeltaDiscoveryResponse) -> bool {
        let identifier = response.control_plane.as_ref().map_or("", |control_plane| &control_plane.name);
        let from = &mut self.servers[server.0];
        if let Link::Unanswered(unanswered) = &from.link
            && unanswered.stream.claimed
            && !from.identity.is(identifier)
            && !self.settings.trust_versions
        {
            from.identity.distrusted = true;
            self.outputs.push_back(Action::Close(unanswered.stream.id()));
            self.take_stream(now, server);
            return false;
        }
        from.identity.heard(identifier);
        from.identity.distrusted = false;
        from.dialect.answered(Protocol::Delta);
        true
    }

    /// The authorities for which this server is preferred to the one in charge, and of which something that is watched
    /// came with this response. Anything less shows that the server is alive, not that it can serve (A71).
    fn usable_for(&self, server: ServerId, resource_type: ResourceType, reading: &Reading) -> BTreeSet<AuthorityId> {
        let is_above = |id: &AuthorityId| self.authorities[id.0].above_active().contains(&server);
        let mut usable: BTreeSet<_> = (0..self.authorities.len()).map(AuthorityId).filter(is_above).collect();
        if usable.is_empty() {
            return usable;
        }
        let of_use = |item: &Item| matches!(item.outcome, Outcome::Unchanged | Outcome::Value(_));
        let came = reading.items.iter().filter(|(_, item)| of_use(item));
        let entries = came.filter_map(|(name, _)| self.cache.get(resource_type, name));
        let watched: BTreeSet<_> =
            entries.filter(|entry| !entry.watchers.is_empty()).map(|entry| entry.authority).collect();
        usable.retain(|id| watched.contains(id));
        usable
    }

    /// Puts the server in charge of the authorities for which its response is of use. What it says anew replaces what it
    /// said before: an error that it takes back in the same breath does not take effect (C-51).
    fn recover_by(&mut self, server: ServerId, resource_type: ResourceType, reading: &Reading) {
        let usable = self.usable_for(server, resource_type, reading);
        if usable.is_empty() {
            return;
        }
        if let Some(stream) = self.servers[server.0].link.stream_mut() {
            for (name, _) in reading.items.iter().filter(|(_, item)| !matches!(item.outcome, Outcome::Removed)) {
                let key = ResourceKey { resource_type, name: name.clone() };
                if let Some(Word::Said(_)) = stream.word(&key) {
                    stream.set(&key, Word::Asking, &mut self.timers);
                }
            }
        }
        self.recover(server, usable);
    }

    /// Takes in what a response says about one resource: with its stream, and into the cache if the server is in
    /// charge of it (C-51).
    fn take_in(&mut self, server: ServerId, key: ResourceKey, provenance: &Provenance, outcome: Outcome) {
        let drops = self.fails_on_data_errors(server);
        let effect = |drops| if drops { Effect::Drop } else { Effect::Ambient };
        let (kind, effect) = match outcome {
            Outcome::Unchanged => return self.adopt(server, &key, provenance, None),
            Outcome::Value(value) => return self.adopt(server, &key, provenance, Some(value)),
            Outcome::Unasked => return self.pass_over(server, &key),
            Outcome::Removed => return self.remove(server, &key, provenance.at),
            Outcome::Invalid(invalid) => {
                (ErrorKind::Rejected { version: provenance.version.clone(), invalid }, effect(drops))
            }
            // P-60: other codes are transient errors and never drop data.
            Outcome::Error { code, message } => {
                let drops = drops && matches!(code, NOT_FOUND | PERMISSION_DENIED);
                (ErrorKind::FromServer { code, message }, effect(drops))
            }
        };
        self.hear(server, &key, kind, effect, provenance.at);
    }

    /// Takes a value into the cache, or confirms the one that is there.
    fn adopt(&mut self, server: ServerId, key: &ResourceKey, provenance: &Provenance, value: Option<Parsed>) {
        let Some(entry) = self.cache.get_mut(key.resource_type, &key.name) else {
            return self.pass_over(server, key);
        };
        if self.authorities[entry.authority.0].active() != Some(server) {
            return self.pass_over(server, key);
        }
        // P-50: a value that crosses the request which leaves it out is not kept, though somebody may watch it again by now:
        // nobody would know whether a later response without it is an answer to that request. It is asked for again.
        let from = &mut self.servers[server.0];
        if !from.link.stream().is_some_and(|stream| stream.lists(key)) {
            return;
        }
        let mut era = None;
        if let Some(stream) = from.link.stream_mut() {
            stream.heard(key, Word::Adopted, &mut self.timers);
            era = (stream.protocol() == Protocol::Delta).then(|| from.identity.era());
        }
        let was_ignored = entry.deletion_ignored;
        let mut replaced = None;
        if let Some(Parsed { resource, bytes: raw }) = value {
            replaced = entry.cached.held().map(|held| held.server).filter(|other| *other != server);
            entry.accept(Held { resource, raw, server, provenance: provenance.clone(), era });
        } else {
            let was_valid = matches!(entry.cached, Cached::Valid(_));
            entry.confirm(provenance.clone(), era);
            if was_valid && !was_ignored {
                return; // Nothing to tell: a resend costs no more than this.
            }
        }
        self.news.extend(&entry.watchers);
        if was_ignored {
            self.outputs.push_back(Action::Report(Report::DeletionOver(from.config.clone(), key.clone())));
        }
        if let Some(other) = replaced {
            self.servers[other.0].ask_again(key, &mut self.timers);
        }
    }

    /// Does not keep a value. Should the server be in charge of it after all, it must send it again.
    fn pass_over(&mut self, server: ServerId, key: &ResourceKey) {
        if let Some(stream) = self.servers[server.0].link.stream_mut() {
            stream.ask_again(key, &mut self.timers);
        }
    }

    /// Remembers what a server says of a resource instead of sending it. It takes effect if the server is in charge.
    fn hear(&mut self, server: ServerId, key: &ResourceKey, kind: ErrorKind, effect: Effect, at: Time) {
        let from = &mut self.servers[server.0];
        let error = ResourceError {
            resource: key.clone(),
            server: Some(from.config.clone()),
            node_id: self.node_id.clone(),
            kind,
            at,
        };
        if let Some(stream) = from.link.stream_mut() {
            let verdict = Verdict { error: Arc::new(error), effect };
            stream.heard(key, Word::Said(verdict), &mut self.timers);
        }
        self.heed(key);
    }

    /// A delta server says that there is no such resource (DX-13).
    fn remove(&mut self, server: ServerId, key: &ResourceKey, at: Time) {
        let Some(entry) = self.cache.get_mut(key.resource_type, &key.name) else { return };
        let from = &self.servers[server.0];
        let (kind, effect) = if entry.cached.held().is_some_and(|held| held.server == server) {
            if self.bootstrap.ignores_deletions(&from.config) {
                if !std::mem::replace(&mut entry.deletion_ignored, true) {
                    self.report(Report::DeletionIgnored(self.servers[server.0].config.clone(), key.clone()));
                }
                return;
            }
            (ErrorKind::Deleted, self.effect_of_deletion(server))
        } else {
            let asked = match from.link.stream().and_then(|stream| stream.word(key)) {
                Some(Word::Waiting(waiting)) => waiting.since,
                Some(Word::Asking | Word::Adopted | Word::Said(_)) | None => at,
            };
            (ErrorKind::DoesNotExist { after: at.since(asked) }, Effect::None)
        };
        self.hear(server, key, kind, effect, at);
    }

    /// Resources that the server had sent and that are not in its full state any more (P-49 to P-51).
    fn delete_missing(
        &mut self,
        server: ServerId,
        resource_type: ResourceType,
        provenance: &Provenance,
        present: &BTreeMap<Arc<str>, Item>,
    ) {
        let from = &self.servers[server.0];
        let Some(stream) = from.link.stream() else { return };
        let ignores_deletions = self.bootstrap.ignores_deletions(&from.config);
        let mut deleted = Vec::new();
        for (name, entry) in self.cache.of_type_mut(resource_type) {
            // P-50: of what never came, the timer decides.
            if entry.cached.held().is_none() {
                continue;
            }
            if self.authorities[entry.authority.0].active() != Some(server) || present.contains_key(name) {
                continue;
            }
            let key = ResourceKey { resource_type, name: name.clone() };
            // P-50: this may be the answer to a request that did not list it.
            if !stream.covers(&key) {
                continue;
            }
            // P-61: an error of the server is remembered until it says something new.
            let is_remembered =
                |fault: &Fault| matches!(fault.error.kind, ErrorKind::FromServer { .. }) && fault.server == server;
            if entry.cached.fault().is_some_and(is_remembered) {
                continue;
            }
            if ignores_deletions {
                if !std::mem::replace(&mut entry.deletion_ignored, true) {
                    self.outputs.push_back(Action::Report(Report::DeletionIgnored(from.config.clone(), key)));
                }
                continue;
            }
            deleted.push(key);
        }
        let effect = self.effect_of_deletion(server);
        for key in deleted {
            self.hear(server, &key, ErrorKind::Deleted, effect, provenance.at);
        }
    }

    /// What a deletion does to a value in use.
    fn effect_of_deletion(&self, server: ServerId) -> Effect {
        let drops = !self.bootstrap.guards.data_error_handling || self.fails_on_data_errors(server);
        if drops { Effect::Drop } else { Effect::Ambient }
    }

    /// Whether what is wrong with the data of this server makes us drop what we have (A88).
    fn fails_on_data_errors(&self, server: ServerId) -> bool {
        self.bootstrap.guards.data_error_handling && self.servers[server.0].config.features.fail_on_data_errors
    }

    /// Reads a response without changing anything.
    fn read(
        &self,
        server: ServerId,
        resource_type: ResourceType,
        response: &Response,
        intern: &mut dyn Intern,
    ) -> Reading {
        let mut reading = Reading::default();
        match response {
            Response::Sotw(response) => {
                for (index, any) in response.resources.iter().enumerate() {
                    let (name, outcome) = self.read_resource(server, resource_type, any, intern);
                    let item = Item { outcome, version: None };
                    reading.add(resource_type, name, item, || format!("resources[{index}]"));
                }
            }
            Response::Delta(response) => {
                for (index, entry) in response.resources.iter().enumerate() {
                    let (name, item) = self.read_entry(server, resource_type, entry, intern);
                    reading.add(resource_type, name, item, || format!("resources[{index}]"));
                }
            }
        }
        if self.bootstrap.guards.data_error_handling {
            for (index, error) in response.errors().iter().enumerate() {
                let (name, outcome) = self.read_error(resource_type, error);
                let item = Item { outcome, version: None };
                reading.add(resource_type, name, item, || format!("resource_errors[{index}]"));
            }
        }
        if let Response::Delta(response) = response {
            for name in &response.removed_resources {
                // DX-13: of what nobody watches, removal says nothing; so does a name that cannot be one.
                if let Ok(Some(name)) = self.canonical(resource_type, Some(name.clone()))
                    && self.cache.get(resource_type, &name).is_some()
                {
                    reading.add_removed(resource_type, name);
                }
            }
        }
        reading
    }

    /// Reads one entry of `resources` (P-37). The name may be known even if the rest is bad.
    fn read_resource(
        &self,
        server: ServerId,
        resource_type: ResourceType,
        any: &wire::Any,
        intern: &mut dyn Intern,
    ) -> (Option<Arc<str>>, Outcome) {
        let wrapper; // Outlives the borrow of its content.
        let (mut name, mut any) = (None, any);
        if message_name(&any.type_url) == WRAPPER {
            wrapper = match Wrapper::decode(any.value.clone()) {
                Ok(wrapper) => wrapper,
                Err(error) => return (None, invalid("", format!("cannot be decoded as a Resource wrapper: {error}"))),
            };
            name = Some(wrapper.name).filter(|name| !name.is_empty()); // P-65
            match &wrapper.resource {
                Some(inner) => any = inner,
                None => return (self.canonical(resource_type, name).ok().flatten(), invalid("resource", "is missing")),
            }
        }
        if message_name(&any.type_url) != resource_type.message_name() {
            let message = format!("is {:?}: expected {:?}", any.type_url, resource_type.type_url());
            return (self.canonical(resource_type, name).ok().flatten(), invalid("type_url", message));
        }
        if name.is_none() && resource_type != ResourceType::EndpointCollection {
            name = Named::decode(any.value.clone()).ok().map(|named| named.name);
        }
        if let Some(known) = name.as_deref().and_then(|name| self.unchanged(server, resource_type, name, &any.value)) {
            return (Some(known), Outcome::Unchanged);
        }
        let name = match self.canonical(resource_type, name) {
            Ok(name) => name,
            Err(fault) => return (None, fault),
        };
        let outcome = self.parse(server, resource_type, name.as_ref(), any, intern);
        (name, outcome)
    }

    /// Reads one entry of a delta response. Its name is the one under which it is watched, be it an alias (DX-18).
    fn read_entry(
        &self,
        server: ServerId,
        resource_type: ResourceType,
        entry: &DeltaResource,
        intern: &mut dyn Intern,
    ) -> (Option<Arc<str>>, Item) {
        let version: Option<Arc<str>> = Some(entry.version.as_str().into());
        let mut name = None;
        for given in std::iter::once(&entry.name).chain(&entry.aliases).filter(|name| !name.is_empty()) {
            match self.canonical(resource_type, Some(given.clone())) {
                Ok(Some(given)) if self.cache.get(resource_type, &given).is_some() => {
                    name = Some(given);
                    break;
                }
                Ok(given) => name = name.or(given),
                Err(outcome) => return (None, Item { outcome, version }),
            }
        }
        let Some(name) = name else { return (None, Item { outcome: invalid("name", "is missing"), version }) };
        let held = self.cache.get(resource_type, &name).and_then(|entry| entry.cached.held());
        let held = held.filter(|held| held.server == server);
        let outcome = match (&entry.resource, held) {
            // DX-17: a heartbeat. What we have does not expire, so it is no news.
            (None, Some(held)) => {
                let version = Some(held.provenance.version.clone());
                return (Some(name), Item { outcome: Outcome::Unchanged, version });
            }
            (None, None) => invalid("resource", "is missing"),
            (Some(any), _) if message_name(&any.type_url) != resource_type.message_name() => {
                invalid("type_url", format!("is {:?}: expected {:?}", any.type_url, resource_type.type_url()))
            }
            (Some(any), Some(held)) if held.raw == any.value => Outcome::Unchanged,
            // DX-9: what nobody asks for any more is not even looked at.
            (Some(_), _) if self.cache.get(resource_type, &name).is_none() => Outcome::Unasked,
            (Some(any), _) => self.parse(server, resource_type, Some(&name), any, intern),
        };
        (Some(name), Item { outcome, version })
    }

    /// Reads the content of a resource.
    fn parse(
        &self,
        server: ServerId,
        resource_type: ResourceType,
        name: Option<&Arc<str>>,
        any: &wire::Any,
        intern: &mut dyn Intern,
    ) -> Outcome {
        let cx = ParseContext { bootstrap: &self.bootstrap, server: &self.servers[server.0].config };
        let is_asked = |name: &Arc<str>| self.cache.get(resource_type, name).is_some();
        if name.is_some_and(is_asked)
            && let Some(parsed) = intern.find(resource_type, &any.value, cx)
        {
            return Outcome::Value(parsed);
        }
        match (decode(resource_type, &any.value, cx).result, name) {
            (Err(faults), _) => Outcome::Invalid(faults),
            (Ok(_), None) => invalid("", "has no name: expected a Resource wrapper that names it"),
            (Ok(resource), Some(name)) if is_asked(name) => Outcome::Value(intern.keep(resource, &any.value, cx)),
            (Ok(_), Some(_)) => Outcome::Unasked,
        }
    }

    /// Reads one entry of `resource_errors` (P-59, P-62).
    fn read_error(&self, resource_type: ResourceType, error: &wire::ResourceError) -> (Option<Arc<str>>, Outcome) {
        let name = error.resource_name.as_ref().map(|named| named.name.clone()).filter(|name| !name.is_empty());
        let name = match self.canonical(resource_type, name) {
            Ok(Some(name)) => name,
            Ok(None) => return (None, invalid("resource_name", "is missing")),
            Err(fault) => return (None, fault),
        };
        let outcome = match &error.error_detail {
            Some(status) if status.code != 0 => {
                Outcome::Error { code: u16::try_from(status.code).unwrap_or(UNKNOWN), message: status.message.clone() }
            }
            _ => invalid("error_detail", "is missing or OK: expected an error"),
        };
        (Some(name), outcome)
    }

    /// The name under which we have these very bytes from this server, so that they need not be parsed.
    fn unchanged(&self, server: ServerId, resource_type: ResourceType, name: &str, bytes: &Bytes) -> Option<Arc<str>> {
        let (name, entry) = self.cache.get_key_value(resource_type, name)?;
        let held = entry.cached.held()?;
        (held.server == server && held.raw == bytes).then(|| name.clone())
    }

    /// The canonical form of a name on the wire (P-84).
    fn canonical(&self, resource_type: ResourceType, name: Option<String>) -> Result<Option<Arc<str>>, Outcome> {
        let Some(name) = name else { return Ok(None) };
        match ResourceKey::parse(resource_type, &name, self.bootstrap.guards.federation) {
            Ok((key, _)) => Ok(Some(key.name)),
            Err(error) => Err(invalid("name", format!("{name:?}: {error}"))),
        }
    }
}

impl Reading {
    fn add(&mut self, resource_type: ResourceType, name: Option<Arc<str>>, item: Item, label: impl FnOnce() -> String) {
        let Some(name) = name else {
            self.nameless += 1;
            if let Outcome::Invalid(invalid) = item.outcome {
                self.fault(|| format!("{}: {invalid}", label()));
            }
            return;
        };
        if let Outcome::Invalid(invalid) = &item.outcome {
            self.fault(|| format!("{resource_type} {name:?}: {invalid}"));
        }
        match self.items.entry(name) {
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(item);
            }
            // P-42. Nobody can say which one is meant, so neither is used.
            btree_map::Entry::Occupied(mut occupied) => {
                let fault = format!("{resource_type} {:?}: is in the response more than once", occupied.key());
                occupied.insert(Item { outcome: invalid("", "is in the response more than once"), ..item });
                self.fault(|| fault);
            }
        }
    }

    /// A resource that is removed. If the response has it as well, the content wins, and the response is faulty (DX-13).
    fn add_removed(&mut self, resource_type: ResourceType, name: Arc<str>) {
        let item = self.items.entry(name.clone()).or_insert(Item { outcome: Outcome::Removed, version: None });
        if !matches!(item.outcome, Outcome::Removed) {
            self.fault(|| format!("{resource_type} {name:?}: is in the response and in removed_resources"));
        }
    }

    fn fault(&mut self, text: impl FnOnce() -> String) {
        if self.faults.len() < MAX_NACK_FAULTS {
            self.faults.push(text());
        } else {
            self.more_faults += 1;
        }
    }

    /// What the response brought, for metrics (S-74).
    fn received(&self, resources: usize) -> Received {
        let mut received = Received { resources, valid: 0, invalid: self.nameless };
        for item in self.items.values() {
            match item.outcome {
                Outcome::Unchanged | Outcome::Value(_) => received.valid += 1,
                Outcome::Invalid(_) | Outcome::Error { .. } => received.invalid += 1,
                Outcome::Unasked | Outcome::Removed => {}
            }
        }
        received
    }

    /// The text of the NACK, if the response must be rejected.
    fn nack(&self) -> Option<String> {
        if self.faults.is_empty() {
            return None;
        }
        let mut text = self.faults.join("; ");
        if text.len() > MAX_NACK_TEXT {
            let end = (0..=MAX_NACK_TEXT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
            text.truncate(end);
            text.push_str("...");
        }
        if self.more_faults > 0 {
            let _ = write!(text, "; and {} more faulty resources", self.more_faults);
        }
        Some(text)
    }
}

fn invalid(path: &str, message: impl Into<String>) -> Outcome {
    Outcome::Invalid(Invalid::one(path, message))
}

/// A type URL without everything up to its last slash (P-5).
fn message_name(type_url: &str) -> &str {
    type_url.rsplit('/').next().unwrap_or(type_url)
}

/// How many faulty resources a NACK names.
const MAX_NACK_FAULTS: usize = 32;

/// How long a NACK may be, in bytes, before it is cut off.
const MAX_NACK_TEXT: usize = 16 * 1024;

/// gRPC status codes.
const UNKNOWN: u16 = 2;
const PERMISSION_DENIED: u16 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nack_names_so_many_faulty_resources_and_counts_the_others() {
        let mut reading = Reading::default();
        (0..MAX_NACK_FAULTS).for_each(|_| reading.fault(|| "bad".to_owned()));
        assert_eq!(reading.nack(), Some(vec!["bad"; MAX_NACK_FAULTS].join("; ")));
        reading.fault(|| "bad".to_owned());
        assert_eq!(reading.faults.len(), MAX_NACK_FAULTS);
        assert!(reading.nack().unwrap().ends_with("; and 1 more faulty resources"));
    }

    #[test]
    fn a_nack_is_cut_off_only_if_it_is_too_long() {
        let of_length = |length| Reading { faults: vec!["x".repeat(length)], ..Reading::default() }.nack().unwrap();
        assert_eq!(of_length(MAX_NACK_TEXT), "x".repeat(MAX_NACK_TEXT));
        assert_eq!(of_length(MAX_NACK_TEXT + 1), "x".repeat(MAX_NACK_TEXT) + "...");
    }
}
