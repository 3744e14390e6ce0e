//! What passes over a stream of the incremental variant (DX-1 to DX-22), and which variant a server is spoken to in.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use mainstay_xds::Time;
use mainstay_xds::bootstrap::{DeltaMode, ServerConfig};
use mainstay_xds::client::{CloseCause, Protocol, StreamId};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::ResourceType;

use super::record::Held;
use super::wire::StreamView;
use super::{Entry, Oracle, Word};
use crate::invariant::{Invariant, Violation};
use crate::plane::Response;

/// What a server has shown of the variants that it speaks, and who it says that it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Manners {
    /// Its last stream of the incremental variant came to nothing: the next one is of the other.
    does_without: bool,
    /// How often in a row, and until when that is not tried again.
    refusals: u32,
    not_before: Option<Time>,
    /// A refusal of which nothing was told yet.
    pub(super) untold: bool,
    /// By its last response, and how often that was another one.
    identifier: Arc<str>,
    pub(super) era: u32,
    /// It is another one than claims were made to: the next stream makes none.
    distrusted: bool,
}

/// Who must answer in this time, or is spoken to in the other variant (DX-4).
const SILENCE: Duration = Duration::from_secs(5);

/// How soon after that it must be, if the server is alive: it may have to be asked for a sign of life first.
const SILENCE_SLACK: Duration = Duration::from_secs(11);

/// Versions that are shorter may be counts, which begin anew when a process does (DX-16).
const MIN_CLAIMED_VERSION: usize = 16;

const UNIMPLEMENTED: u16 = 12;

impl Manners {
    /// A stream is over.
    pub(super) fn ended(&mut self, now: Time) {
        if self.not_before.is_none_or(|at| at <= now) {
            self.does_without = false;
        }
    }

    fn refused(&mut self, now: Time) {
        self.does_without = true;
        self.refusals += 1;
        if self.refusals >= 3 {
            self.not_before = Some(now + Duration::from_secs(3600));
        }
    }

    /// A response came.
    fn heard(&mut self, identifier: &Arc<str>) {
        if self.identifier != *identifier {
            self.identifier = identifier.clone();
            self.era += 1;
        }
        (self.refusals, self.not_before, self.distrusted) = (0, None, false);
    }

    /// What is left when nobody needs the server any more.
    pub(super) fn afresh(&self) -> Self {
        let Self { identifier, era, distrusted, .. } = self;
        Self { identifier: identifier.clone(), era: *era, distrusted: *distrusted, ..Self::default() }
    }
}

impl Oracle {
    fn mode(&self, plane: usize) -> DeltaMode {
        self.rules.servers[plane].features.delta
    }

    /// The variant in which a server must be spoken to now.
    pub(super) fn expected_protocol(&self, plane: usize) -> Protocol {
        match self.mode(plane) {
            DeltaMode::Off => Protocol::Sotw,
            DeltaMode::Required => Protocol::Delta,
            DeltaMode::Preferred if self.planes[plane].manners.does_without => Protocol::Sotw,
            DeltaMode::Preferred => Protocol::Delta,
        }
    }

    /// Whether the end of a stream says only that its server does not speak this variant (DX-3).
    pub(super) fn is_refusal(&self, stream: &StreamView, cause: &CloseCause) -> bool {
        matches!(cause, CloseCause::Ended { code: UNIMPLEMENTED, .. })
            && stream.protocol == Protocol::Delta
            && !stream.answered
            && self.mode(stream.plane) == DeltaMode::Preferred
    }

    /// The client says that a server does not speak delta.
    pub(super) fn refused(&mut self, now: Time, server: &ServerConfig) -> Result<(), Violation> {
        let Some(plane) = self.rules.plane(server) else { return Ok(()) };
        let (mode, uri) = (self.mode(plane), self.rules.uri(plane).to_owned());
        let patience = self.rules.settings.silent_stream_timeout.map_or(SILENCE, |limit| limit.min(SILENCE));
        let view = &mut self.planes[plane];
        let was_ended = std::mem::take(&mut view.manners.untold);
        let silent = view.ended.take().is_some_and(|stream| {
            let asked = stream.first_owed();
            stream.protocol == Protocol::Delta
                && !stream.answered
                && asked.is_some_and(|asked| now.since(asked.at) >= patience && stream.is_proven_since(asked))
        });
        Invariant::Attempts.holds(mode == DeltaMode::Preferred && (was_ended || silent), || {
            format!("{uri} is said not to speak delta, and it neither said so nor was alive and silent (DX-3, DX-4)")
        })?;
        view.manners.refused(now);
        Ok(())
    }

    /// Who may not speak delta is not waited for (DX-4).
    pub(super) fn check_silence(&self, now: Time) -> Result<(), Violation> {
        for stream in self.streams.values().filter(|stream| stream.protocol == Protocol::Delta && !stream.answered) {
            let asked = stream.first_owed().filter(|_| self.mode(stream.plane) == DeltaMode::Preferred);
            let Some(asked) = asked.filter(|_| !self.asleep) else { continue };
            let waited = now.since(self.woke.map_or(asked.at, |woke| woke.max(asked.at)));
            Invariant::Attempts.holds(waited <= SILENCE + SILENCE_SLACK, || {
                format!("{} has said nothing over delta for {waited:?}", self.rules.uri(stream.plane))
            })?;
        }
        Ok(())
    }

    /// The client makes a request of the incremental variant.
    pub(crate) fn send_delta(&mut self, id: StreamId, request: &DeltaDiscoveryRequest) -> Result<(), Violation> {
        let broken = |what: String| Invariant::Answers.broken(what);
        let kind = ResourceType::from_type_url(&request.type_url);
        let kind = kind.ok_or_else(|| broken(format!("a request of type {:?}", request.type_url)))?;
        let set = |names: &[String]| -> BTreeSet<Arc<str>> { names.iter().map(|name| name.as_str().into()).collect() };
        let subscribe = set(&request.resource_names_subscribe);
        let unsubscribe = set(&request.resource_names_unsubscribe);
        let named = request.resource_names_subscribe.len() + request.resource_names_unsubscribe.len();
        let is_distinct = subscribe.union(&unsubscribe).count() == named;
        Invariant::Answers
            .holds(is_distinct, || format!("{kind}: a name twice in +{subscribe:?} -{unsubscribe:?} (DX-7)"))?;
        self.begin_request(id, request.node.as_ref())?;
        let Some(stream) = self.streams.get(&id) else { return Ok(()) };
        let (plane, uri) = (stream.plane, self.rules.uri(stream.plane).to_owned());
        let changes = !subscribe.is_empty() || !unsubscribe.is_empty();
        let first = !stream.types.contains_key(&kind);
        Invariant::Answers.holds(request.response_nonce.is_empty() == changes, || {
            format!("{uri}: {kind} answers {:?} and changes something, or does neither (DX-6)", request.response_nonce)
        })?;
        Invariant::Answers.holds(!first || (!subscribe.is_empty() && unsubscribe.is_empty()), || {
            format!("{uri}: a wildcard request of {kind} (P-76)")
        })?;
        self.check_claims(plane, id, kind, first, &subscribe, request)?;
        let is_watched = |name: &Arc<str>| {
            let entry = self.entries.get(&ResourceKey { resource_type: kind, name: name.clone() });
            entry.is_some_and(|entry| entry.watched)
        };
        let repeats: BTreeSet<_> = unsubscribe.iter().filter(|name| is_watched(name)).cloned().collect();
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let asked = stream.types.entry(kind).or_default();
        if !changes {
            let answered = asked.owed.pop_front();
            let nonce = answered.as_ref().map(|response| &response.nonce);
            Invariant::Answers.holds(nonce == Some(&request.response_nonce), || {
                format!("{uri}: {kind} with nonce {:?}: expected {nonce:?} (DX-11)", request.response_nonce)
            })?;
            if let Some(answered) = &answered {
                super::wire::check_nack(&uri, answered, request.error_detail.as_ref())?;
            }
        }
        for name in &subscribe {
            let is_new = !asked.names.contains_key(name) || asked.again.remove(name);
            Invariant::Answers
                .holds(is_new, || format!("{uri}: {kind} {name} is subscribed although it is already (DX-8)"))?;
            asked.names.insert(name.clone(), None);
        }
        for name in &unsubscribe {
            let was_asked = asked.names.contains_key(name) && !asked.again.contains(name);
            Invariant::Answers
                .holds(was_asked, || format!("{uri}: {kind} {name} is unsubscribed and was not subscribed"))?;
            // What is still wanted is about to be subscribed again; what is not is forgotten (DX-9).
            if repeats.contains(name) {
                asked.again.insert(name.clone());
                // Its silence so far still counts, if there was nothing else.
                if let Some(Some(since)) = asked.names.get(name).filter(|_| !asked.heard.contains(name)) {
                    asked.earlier.entry(name.clone()).or_insert(*since);
                }
            } else {
                asked.forget(name);
                stream.words.remove(&ResourceKey { resource_type: kind, name: name.clone() });
            }
        }
        stream.sending = Some(kind);
        self.forget_unwatched();
        Ok(())
    }

    /// Only what is certain to be the server's own is claimed, in the first request of a type; all of it is, but for one
    /// resource of each authority, so that an answer is owed (DX-16, DX-20 to DX-22).
    fn check_claims(
        &mut self,
        plane: usize,
        id: StreamId,
        kind: ResourceType,
        first: bool,
        subscribe: &BTreeSet<Arc<str>>,
        request: &DeltaDiscoveryRequest,
    ) -> Result<(), Violation> {
        let uri = self.rules.uri(plane).to_owned();
        let claims = &request.initial_resource_versions;
        Invariant::Versions.holds(first || claims.is_empty(), || {
            format!("{uri} is told in a later request of {kind} what we have: {claims:?} (DX-10)")
        })?;
        let manners = &self.planes[plane].manners;
        let trusted = self.rules.settings.trust_versions;
        let vouches = |held: &Held| {
            trusted
                || (!manners.distrusted
                    && !manners.identifier.is_empty()
                    && held.version.len() >= MIN_CLAIMED_VERSION
                    && held.era == Some(manners.era))
        };
        let may_claim = |entry: &Entry| {
            let held = entry.held.as_ref().filter(|held| held.plane == plane && !held.version.is_empty());
            held.filter(|held| held.era.is_some() && vouches(held)).map(|held| held.version.clone())
        };
        for (name, version) in claims {
            let key = ResourceKey { resource_type: kind, name: name.as_str().into() };
            let held = self.entries.get(&key).and_then(may_claim);
            Invariant::Versions.holds(held.as_deref() == Some(version.as_str()), || {
                format!(
                    "{uri} is told that we have {version:?} of {key}, and what we may say is {held:?} (DX-16, DX-20)"
                )
            })?;
            Invariant::Versions.holds(subscribe.contains(&key.name), || {
                format!("{uri} is told that we have {key}, which is not subscribed")
            })?;
        }
        let told = &self.deletions.told;
        let mut left_out: Vec<AuthorityKey> = Vec::new();
        for name in subscribe.iter().filter(|name| first && !claims.contains_key(&***name)) {
            let key = ResourceKey { resource_type: kind, name: name.clone() };
            let is_sound = |entry: &&Entry| matches!(entry.word, Word::Good | Word::Nothing) && !told.contains(&key);
            if self.entries.get(&key).filter(is_sound).and_then(may_claim).is_some() {
                left_out.extend(self.rules.authority_of(&key).cloned());
            }
        }
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        for authority in left_out {
            let is_first = stream.unclaimed.insert(authority.clone());
            Invariant::Versions.holds(is_first, || {
                format!("{uri} is not told what we have from it of {authority}, more than once (DX-16)")
            })?;
        }
        let asked = stream.types.entry(kind).or_default();
        asked.resumed.extend(claims.keys().map(|name| Arc::<str>::from(name.as_str())));
        stream.claims |= !claims.is_empty();
        Ok(())
    }

    /// Whether a response comes from another server than claims were made to, so that the stream must be left (DX-16).
    pub(super) fn is_estranged(&self, id: StreamId, response: &Response) -> bool {
        let (Some(stream), Some(delta)) = (self.streams.get(&id), &response.delta) else { return false };
        let is_another = self.planes[stream.plane].manners.identifier != delta.identifier;
        stream.claims && !stream.answered && is_another && !self.rules.settings.trust_versions
    }

    /// A response as the client reads it: over delta it does not look at what nobody asks for (DX-9).
    pub(super) fn as_read(&self, response: &Arc<Response>) -> Arc<Response> {
        let unknown = response.faulty().map(|told| &told.key).filter(|key| !self.entries.contains_key(*key));
        let ignored: BTreeSet<_> = unknown.filter(|_| response.delta.is_some()).cloned().collect();
        if ignored.is_empty() { response.clone() } else { Arc::new(Response { ignored, ..Response::clone(response) }) }
    }

    /// The client leaves a stream because of who is at its other end.
    pub(super) fn left(&mut self, plane: usize) {
        self.planes[plane].manners.distrusted = true;
    }

    /// Takes down who a response is from.
    pub(super) fn heard_from(&mut self, plane: usize, response: &Response) {
        if let Some(delta) = &response.delta {
            self.planes[plane].manners.heard(&delta.identifier);
        }
    }

    /// What a response says is gone stays with the stream. That of what another server sent says nothing of it: it is no
    /// more than silence.
    pub(super) fn take_removals(&mut self, plane: usize, response: &Response) {
        for name in response.removed() {
            let key = ResourceKey { resource_type: response.resource_type, name: name.clone() };
            if response.resources.iter().any(|told| told.key == key) {
                continue;
            }
            let Some(entry) = self.entries.get(&key) else { continue };
            let is_its = entry.held.as_ref().is_some_and(|held| held.plane == plane);
            let leads = self.in_charge_of(&key) == Some(plane);
            if is_its && self.ignores_deletions(plane) {
                self.deleted(plane, &key); // Whoever is in charge: it stays in use, and that is told.
                continue;
            }
            if is_its && leads {
                self.deleted(plane, &key);
                continue;
            }
            let word = if is_its { Word::Gone { plane } } else { Word::Silence { plane, transient: false } };
            let stream = self.streams.values_mut().find(|stream| stream.plane == plane);
            if let Some(stream) = stream.filter(|stream| stream.lists(&key)) {
                stream.words.insert(key.clone(), word);
                if leads {
                    self.take_effect(&key);
                }
            }
        }
    }

    /// What is unsubscribed and not watched any more is forgotten, as soon as the client can make another request.
    pub(super) fn forget_unsubscribed(&mut self) {
        for stream in self.streams.values_mut() {
            let may_wait = stream.sending.is_some();
            for (kind, asked) in &mut stream.types {
                let is_watched = |name: &Arc<str>| {
                    let key = ResourceKey { resource_type: *kind, name: name.clone() };
                    self.entries.get(&key).is_some_and(|entry| entry.watched)
                };
                let gone: Vec<_> = asked.again.iter().filter(|name| !is_watched(name)).cloned().collect();
                for name in gone {
                    // While a request is on its way nobody can tell whether the client has got to this yet.
                    if may_wait {
                        asked.doubtful.insert(name);
                        continue;
                    }
                    asked.forget(&name);
                    stream.words.remove(&ResourceKey { resource_type: *kind, name });
                }
            }
        }
    }
}
