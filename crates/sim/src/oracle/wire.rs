//! What passes over one stream, as the server sees it (P-16 to P-48).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::rpc::Status;
use mainstay_xds::Time;
use mainstay_xds::client::{Protocol, StreamId};
use mainstay_xds::name::{AuthorityKey, ResourceKey};
use mainstay_xds::resource::ResourceType;

use super::{Oracle, View, Word};
use crate::invariant::{Invariant, Violation};
use crate::plane::Response;

/// One attempt at a server: what passed over its stream.
#[derive(Clone, Debug)]
pub(super) struct StreamView {
    pub(super) plane: usize,
    pub(super) protocol: Protocol,
    pub(super) connect_timeout: Duration,
    pub(super) bound_checked: bool,
    pub(super) opened: Option<Time>,
    pub(super) answered: bool,
    /// Whether that was told.
    pub(super) opening_told: bool,
    pub(super) answer_told: bool,
    greeted: bool,
    /// The type of the request that has not left yet.
    pub(super) sending: Option<ResourceType>,
    /// When a request left first.
    pub(super) first_sent: Option<Time>,
    /// When one left last.
    pub(super) last_sent: Option<Moment>,
    /// When a sign of life was asked for last.
    pub(super) probed: Option<Moment>,
    /// How many PONGs and how many other signs of life came.
    pub(super) pongs: u32,
    pub(super) data: u32,
    /// How many of them proved the server to be alive when they came.
    pub(super) proofs: u32,
    pub(super) types: BTreeMap<ResourceType, Asked>,
    /// Responses that came and of which the client has not said yet what it makes of them.
    pub(super) inbox: VecDeque<Arc<Response>>,
    /// What the server said about resources instead of sending them.
    pub(super) words: BTreeMap<ResourceKey, Word>,
    /// The versions that were in use when responses were rejected, by nonce.
    pub(super) in_use_then: BTreeMap<String, Arc<str>>,
    /// Whether the server was told over delta that we have something, and of which authorities one thing was left out.
    pub(super) claims: bool,
    pub(super) unclaimed: BTreeSet<AuthorityKey>,
    /// It is not the server that claims were made to: the client must leave it.
    pub(super) estranged: bool,
}

/// A point in time, and what had been heard until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) at: Time,
    pub(super) data: u32,
    pub(super) pongs: u32,
    pub(super) proofs: u32,
}

/// What was asked for of one type.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// The names of the last request; since when the server can know of each.
    pub(super) names: BTreeMap<Arc<str>, Option<Moment>>,
    /// Of the last response.
    nonce: String,
    /// As told in the last request.
    version: String,
    /// Responses that have no answer yet.
    pub(super) owed: VecDeque<Arc<Response>>,
    /// Names that were held when the stream began, and told to be.
    pub(super) resumed: BTreeSet<Arc<str>>,
    /// Whether something was asked for once more, which the names do not show.
    repeated: bool,
    /// Names of which something was said on this stream.
    pub(super) heard: BTreeSet<Arc<str>>,
    /// Names that were unsubscribed and are wanted: they are about to be subscribed again. Only over delta.
    pub(super) again: BTreeSet<Arc<str>>,
    /// When names were first asked for that are asked for again because nothing was said of them.
    pub(super) earlier: BTreeMap<Arc<str>, Moment>,
    /// Names of which the client may have forgotten everything when they were not watched for a moment.
    pub(super) doubtful: BTreeSet<Arc<str>>,
}

impl Asked {
    /// A name is not asked for any more.
    pub(super) fn forget(&mut self, name: &Arc<str>) {
        self.names.remove(name);
        self.earlier.remove(name);
        self.again.remove(name);
        self.heard.remove(name);
        self.doubtful.remove(name);
    }
}

impl StreamView {
    pub(super) fn new(plane: usize, connect_timeout: Duration, protocol: Protocol) -> Self {
        Self {
            plane,
            protocol,
            connect_timeout,
            bound_checked: false,
            opened: None,
            answered: false,
            opening_told: false,
            answer_told: false,
            greeted: false,
            sending: None,
            first_sent: None,
            last_sent: None,
            probed: None,
            pongs: 0,
            data: 0,
            proofs: 0,
            types: BTreeMap::new(),
            inbox: VecDeque::new(),
            words: BTreeMap::new(),
            in_use_then: BTreeMap::new(),
            claims: false,
            unclaimed: BTreeSet::new(),
            estranged: false,
        }
    }

    fn moment(&self, at: Time) -> Moment {
        Moment { at, data: self.data, pongs: self.pongs, proofs: self.proofs }
    }

    /// Whether a sign came since then that proved the server to be alive: it counts for what it was worth when it came,
    /// though another server be next in line by now.
    pub(super) fn is_proven_since(&self, moment: Moment) -> bool {
        self.proofs > moment.proofs
    }

    /// Whether the last request of its type lists this resource.
    pub(super) fn lists(&self, key: &ResourceKey) -> bool {
        self.types.get(&key.resource_type).is_some_and(|asked| asked.names.contains_key(&key.name))
    }

    /// When the request left that listed this resource first.
    pub(super) fn asked_at(&self, key: &ResourceKey) -> Option<Moment> {
        *self.types.get(&key.resource_type)?.names.get(&key.name)?
    }

    /// When it was asked for this resource first, and has said nothing of it since.
    pub(super) fn silent_since(&self, key: &ResourceKey) -> Option<Moment> {
        let earlier = self.types.get(&key.resource_type)?.earlier.get(&key.name).copied();
        earlier.or_else(|| self.asked_at(key))
    }

    /// Since when it owes its first answer; `None` if it has answered, or owes none.
    pub(super) fn owed_since(&self) -> Option<Time> {
        self.first_owed().map(|owed| owed.at)
    }

    /// The same, with what had been heard until then.
    pub(super) fn first_owed(&self) -> Option<Moment> {
        if self.answered {
            return None;
        }
        let mut owed = Vec::new();
        for (kind, asked) in self.types.iter().filter(|(_, asked)| !asked.repeated) {
            for (name, since) in asked.names.iter().filter(|(name, _)| !asked.resumed.contains(*name)) {
                let key = ResourceKey { resource_type: *kind, name: name.clone() };
                owed.extend(since.filter(|_| !self.words.contains_key(&key)));
            }
        }
        owed.into_iter().min_by_key(|owed| owed.at)
    }

    /// Something was said of a resource, if it is only that it is not valid.
    pub(super) fn hear(&mut self, key: &ResourceKey) {
        if let Some(asked) = self.types.get_mut(&key.resource_type)
            && asked.names.contains_key(&key.name)
        {
            asked.heard.insert(key.name.clone());
            asked.earlier.remove(&key.name);
        }
    }

    /// Whether it was asked for something without a word that we have it, and has said nothing of it. Then it owes an
    /// answer even if we do have it: who asks without a version wants it once more.
    fn owes_something(&self) -> bool {
        let is_owed = |asked: &Asked, name: &Arc<str>| !asked.resumed.contains(name) && !asked.heard.contains(name);
        self.types.values().any(|asked| {
            let mut asked_for = asked.names.iter().filter(|(_, since)| since.is_some());
            asked_for.any(|(name, _)| is_owed(asked, name))
        })
    }

    /// Whether something of these names was asked for, and nothing was said of it.
    pub(super) fn owes_any(&self, is_meant: impl Fn(&ResourceKey) -> bool) -> bool {
        self.types.iter().any(|(&resource_type, asked)| {
            let unheard =
                asked.names.keys().filter(|name| !asked.resumed.contains(*name) && !asked.heard.contains(*name));
            let mut keys = unheard.map(|name| ResourceKey { resource_type, name: name.clone() });
            keys.any(|key| is_meant(&key) && !self.words.contains_key(&key))
        })
    }

    /// Whether all that it was asked for on this stream is held from it already, and nothing is about to be asked.
    pub(super) fn owes_nothing(&self) -> bool {
        let is_resumed = |asked: &Asked| !asked.repeated && asked.names.keys().all(|name| asked.resumed.contains(name));
        !self.answered && self.sending.is_none() && self.types.values().all(is_resumed)
    }
}

impl Oracle {
    /// A request of either variant begins: on an open stream, one at a time, and with the node in the first one only.
    pub(super) fn begin_request(&mut self, id: StreamId, node: Option<&Node>) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.opened.is_some()) else {
            return Err(Invariant::Answers.broken("a request on a stream that is not open"));
        };
        let uri = self.rules.uri(stream.plane);
        Invariant::Answers.holds(stream.sending.is_none(), || {
            format!("{uri}: a second request although the first one has not left (P-23)")
        })?;
        let first_of_all = !std::mem::replace(&mut stream.greeted, true);
        let id = node.map(|node| node.id.as_str());
        Invariant::Answers.holds(id == first_of_all.then_some("sim"), || {
            format!("{uri}: the node is {id:?}, and this is the first request: {first_of_all} (P-16)")
        })?;
        let features = node.into_iter().flat_map(|node| &node.client_features);
        let tells_collections = features.filter(|feature| feature.contains("lb_endpoint_collection")).count() == 1;
        Invariant::Answers.holds(tells_collections == (first_of_all && self.rules.guards.endpoint_fallback), || {
            format!("{uri}: collections of endpoints are said to be understood: {tells_collections} (P-67)")
        })
    }

    /// The client makes a request.
    pub(crate) fn send(&mut self, id: StreamId, request: &DiscoveryRequest) -> Result<(), Violation> {
        let broken = |what: String| Invariant::Answers.broken(what);
        let kind = ResourceType::from_type_url(&request.type_url);
        let kind = kind.ok_or_else(|| broken(format!("a request of type {:?}", request.type_url)))?;
        let names: BTreeSet<Arc<str>> = request.resource_names.iter().map(|name| name.as_str().into()).collect();
        let is_distinct = names.len() == request.resource_names.len();
        Invariant::Answers.holds(is_distinct, || format!("{kind}: a name twice in {:?}", request.resource_names))?;
        self.begin_request(id, request.node.as_ref())?;
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let (plane, uri) = (stream.plane, self.rules.uri(stream.plane));
        let first = !stream.types.contains_key(&kind);
        let asked = stream.types.entry(kind).or_default();
        Invariant::Answers
            .holds(!(first && names.is_empty()), || format!("{uri}: a wildcard request of {kind} (P-48)"))?;
        let answered = asked.owed.pop_front();
        let is_last = asked.owed.is_empty();
        let nonce = answered.as_ref().map_or(&asked.nonce, |response| &response.nonce);
        Invariant::Answers.holds(request.response_nonce == *nonce, || {
            format!("{uri}: {kind} with nonce {:?}: expected {nonce:?} (P-30, P-35)", request.response_nonce)
        })?;
        let same_names = asked.names.keys().eq(&names);
        let is_idle = !first && answered.is_none() && same_names && request.version_info == asked.version;
        Invariant::Answers.holds(!is_idle, || format!("{uri}: a request of {kind} that says nothing new (P-28)"))?;
        let answer = answered.clone();
        match &answer {
            Some(answer) => check_nack(uri, answer, request.error_detail.as_ref())?,
            None => Invariant::Answers
                .holds(request.error_detail.is_none(), || format!("{uri}: {kind} is rejected, and nothing came"))?,
        }
        if first && !request.version_info.is_empty() {
            asked.resumed.clone_from(&names);
        }
        asked.repeated |= !first && same_names && answered.is_none();
        for name in &names {
            asked.names.entry(name.clone()).or_insert(None);
        }
        asked.heard.retain(|name| names.contains(name));
        asked.names.retain(|name, _| {
            let stays = names.contains(name);
            if !stays {
                stream.words.remove(&ResourceKey { resource_type: kind, name: name.clone() });
            }
            stays
        });
        asked.version.clone_from(&request.version_info);
        stream.sending = Some(kind);
        self.forget_unwatched();
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        // What is accepted may be acknowledged by its own version, although a newer one was accepted since.
        // So may what is rejected by the version that was in use then.
        let is_own = answered.is_some_and(|answered| match stream.in_use_then.remove(&answered.nonce) {
            None => *answered.version == *request.version_info,
            Some(in_use) => *in_use == *request.version_info,
        });
        if is_own && self.planes[plane].accepted.contains_key(&kind) {
            return Ok(());
        }
        self.check_version(plane, kind, &request.version_info, &names, first)?;
        // What came after the response that is answered here was accepted by a version of its own.
        if request.version_info.is_empty() && is_last {
            self.planes[plane].accepted.remove(&kind);
        }
        Ok(())
    }

    /// Only what we have may be told, so that the server need not send it again; and that is told.
    fn check_version(
        &self,
        plane: usize,
        kind: ResourceType,
        version: &str,
        names: &BTreeSet<Arc<str>>,
        first: bool,
    ) -> Result<(), Violation> {
        let uri = self.rules.uri(plane);
        let accepted = self.planes[plane].accepted.get(&kind);
        if !version.is_empty() {
            Invariant::Versions.holds(accepted.is_some_and(|accepted| **accepted == *version), || {
                format!(
                    "{uri} is told version {version:?} of {kind}: the last one taken from it is {accepted:?} (P-29)"
                )
            })?;
        }
        let entry = |name: &Arc<str>| self.entries.get(&ResourceKey { resource_type: kind, name: name.clone() });
        let is_ours = |name: &Arc<str>| {
            entry(name).is_some_and(|entry| entry.held.as_ref().is_some_and(|held| held.plane == plane))
        };
        let foreign = names.iter().find(|name| !is_ours(name));
        if first && let (false, Some(name)) = (version.is_empty(), foreign) {
            let what = format!("{uri} is told version {version:?} of {kind}, and {name} is not held from it");
            return Err(Invariant::Versions.broken(what));
        }
        let leads = |name: &Arc<str>| {
            let key = ResourceKey { resource_type: kind, name: name.clone() };
            self.in_charge_of(&key) == Some(plane)
        };
        let is_current = self.rules.settings.trust_versions
            && first
            && foreign.is_none()
            && names.iter().all(leads)
            && !self.planes[plane].lost_some.contains(&kind);
        Invariant::Versions
            .holds(!(version.is_empty() && is_current && accepted.is_some() && !names.is_empty()), || {
                format!("{uri} is not told that we have its version {accepted:?} of {kind} (P-32)")
            })
    }

    /// The request left.
    pub(crate) fn sent(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(kind) = stream.sending.take() else { return };
        let moment = stream.moment(now);
        stream.first_sent.get_or_insert(now);
        stream.last_sent = Some(moment);
        let names = stream.types.get_mut(&kind).into_iter().flat_map(|asked| asked.names.values_mut());
        names.for_each(|since| *since = since.or(Some(moment)));
    }

    /// A sign of life is asked for.
    pub(crate) fn probe(&mut self, now: Time, id: StreamId, call: bool) -> Result<(), Violation> {
        let Some(stream) = self.streams.get(&id).filter(|stream| stream.opened.is_some()) else {
            return Err(Invariant::Life.broken("a sign of life is asked for on a stream that is not open"));
        };
        let (has_next, moment) = (self.has_next(stream.plane), stream.moment(now));
        Invariant::Life.holds(call == has_next, || {
            format!("{} is asked for an answer: {call}, and another is next: {has_next}", self.rules.uri(stream.plane))
        })?;
        let is_awaited = |key: &&ResourceKey| {
            let entry = self.entries.get(key);
            let is_from_it = |held: &super::record::Held| held.plane == stream.plane;
            stream.asked_at(key).is_some() && entry.is_some_and(|entry| !entry.held.as_ref().is_some_and(is_from_it))
        };
        let reason = self.planes[stream.plane].down
            || stream.last_sent.is_none()
            || stream.sending.is_some()
            || self.in_charge_of_any(stream.plane).is_none()
            || stream.owes_something()
            || self.entries.keys().any(|key| is_awaited(&key));
        Invariant::Life.holds(reason, || {
            format!("{} is asked for a sign of life and owes nothing", self.rules.uri(stream.plane))
        })?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.probed = Some(moment);
        }
        Ok(())
    }

    fn in_charge_of_any(&self, plane: usize) -> Option<&mainstay_xds::name::AuthorityKey> {
        self.charges.keys().find(|authority| self.in_charge(authority) == Some(plane))
    }

    /// A response reaches the client, on a stream that it has open.
    pub(crate) fn delivered(&mut self, id: StreamId, response: &Arc<Response>) {
        let is_estranged = self.is_estranged(id, response);
        let response = &self.as_read(response);
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.estranged) else { return };
        let Some(asked) = stream.types.get_mut(&response.resource_type) else { return };
        stream.estranged = is_estranged;
        if is_estranged {
            return; // It counts for nothing but that.
        }
        stream.answered = true;
        (stream.data, stream.proofs) = (stream.data + 1, stream.proofs + 1);
        asked.nonce.clone_from(&response.nonce);
        asked.owed.push_back(response.clone());
        stream.inbox.push_back(response.clone());
    }

    /// Once a stream is quiet, everything is answered, and the names on the wire are the names that are watched.
    pub(super) fn check_wire(&self, view: &View<'_>) -> Result<(), Violation> {
        for id in view.quiet.keys() {
            let Some(stream) = self.streams.get(id) else { continue };
            let uri = self.rules.uri(stream.plane);
            let mut wanted: BTreeMap<ResourceType, BTreeSet<&Arc<str>>> = BTreeMap::new();
            for (key, _) in self.entries.iter().filter(|(_, entry)| entry.watched) {
                let Some(authority) = self.rules.authority_of(key) else { continue };
                let rank = self.charges.get(authority).map_or(0, |charge| charge.rank);
                if self.rules.servers_of(authority)[..=rank].contains(&stream.plane) {
                    wanted.entry(key.resource_type).or_default().insert(&key.name);
                }
            }
            for kind in ResourceType::ALL {
                let asked = stream.types.get(&kind);
                let owed = asked.and_then(|asked| asked.owed.front());
                Invariant::Answers.holds(owed.is_none(), || {
                    format!("{uri}: response {:?} of {kind} was never answered (P-35)", owed.map(|owed| &owed.nonce))
                })?;
                let names =
                    asked.into_iter().flat_map(|asked| asked.names.keys().filter(|n| !asked.again.contains(*n)));
                let names: BTreeSet<_> = names.collect();
                let wanted = wanted.remove(&kind).unwrap_or_default();
                Invariant::Names.holds(names == wanted, || {
                    format!("{uri} was asked for {kind} {names:?}, and {wanted:?} are watched")
                })?;
            }
            let unread = stream.inbox.front();
            Invariant::Answers.holds(unread.is_none(), || {
                format!("{uri}: nothing was made of a response of {:?}", unread.map(|unread| unread.resource_type))
            })?;
        }
        Ok(())
    }
}

/// A response is rejected if something in it is wrong, and the text says what (P-38, P-39).
pub(super) fn check_nack(uri: &str, answered: &Response, error: Option<&Status>) -> Result<(), Violation> {
    let kind = answered.resource_type;
    let faulty: Vec<_> = answered.faulty().collect();
    let error = error.map(|error| error.message.as_str());
    Invariant::Answers.holds(error.is_some() != faulty.is_empty(), || {
        format!("{uri}: {kind} is rejected with {error:?}, and has {} faults (P-38, P-39)", faulty.len())
    })?;
    let unnamed = faulty.iter().find(|told| !error.unwrap_or_default().contains(&*told.key.name));
    let says_that_more_is_wrong = error.is_some_and(|text| text.ends_with("...") || text.contains(" more faulty"));
    Invariant::Answers.holds(unnamed.is_none() || says_that_more_is_wrong, || {
        format!("{uri}: the NACK of {kind} does not name {:?}", unnamed.map(|told| &told.key.name))
    })?;
    let length = error.map_or(0, str::len);
    Invariant::Answers.holds(length < 17 << 10, || format!("{uri}: a NACK of {length} bytes"))
}
