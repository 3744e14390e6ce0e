//! The server's side of one incremental stream, without I/O (DX-25 to DX-29, P-68 to P-77).
//!
//! For each type it is known what the client wants and which version of each resource it has. What may be news is looked
//! at and nothing else: the names that a request asks for, and those in which the new view differs from the last one. So
//! a change costs what changed, not what there is.
//!
//! Routes are made before clusters are broken, as [`crate::sotw`] does: removals go last, and one that came together
//! with a change of routes waits until the client has no more use for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use prost::Message;

use crate::encoding::{Encoded, Shared};
use crate::few::Few;
use crate::glob::Glob;
use crate::protocol::{
    MAX_NAMES, MAX_TYPES, Protocol, ProtocolError, ROUTING, RequestKind, Response, Said, WILDCARD, check_names, error,
    identity, unknown,
};
use crate::snapshot::Body;
use crate::type_url::TypeUrl;
use crate::version::{Hash, Version};
use crate::view::{Entry, TypeView, View};

#[cfg(test)]
mod tests;

/// What a server knows about one incremental stream.
#[derive(Debug)]
pub(crate) struct Delta {
    nonce_prefix: String,
    responses: u64,
    node_id: Option<String>,
    tells_absence: bool,
    view: Option<Arc<View>>,
    subscriptions: Few<TypeUrl, Subscription>,
    /// Names that were found to be absent, for whoever writes the log.
    absent: Vec<(TypeUrl, String)>,
}

impl Protocol for Delta {
    type Request = DeltaDiscoveryRequest;

    fn new(nonce_prefix: String) -> Self {
        Self {
            nonce_prefix,
            responses: 0,
            node_id: None,
            tells_absence: true,
            view: None,
            subscriptions: Few::default(),
            absent: Vec::new(),
        }
    }

    fn handle_request(&mut self, request: &DeltaDiscoveryRequest) -> Result<RequestKind, ProtocolError> {
        if request.type_url.is_empty() {
            return Err(ProtocolError::NoTypeUrl);
        }
        // P-70.
        self.node_id.get_or_insert_with(|| request.node.as_ref().map(|node| node.id.clone()).unwrap_or_default());
        let type_url = TypeUrl::from(request.type_url.as_str());
        let is_first = self.subscriptions.get(&type_url).is_none();
        if is_first && self.subscriptions.len() >= MAX_TYPES {
            return Err(ProtocolError::TooManyTypes);
        }
        check_names(&type_url, &request.resource_names_subscribe)?;
        let subscription = self.subscriptions.get_or_default(type_url.clone());
        let kind = subscription.answered(request);
        // What a request changes counts even if it answers an outdated response (P-77).
        if is_first {
            subscription.claimed(&request.initial_resource_versions);
            let is_empty = request.resource_names_subscribe.is_empty() && request.resource_names_unsubscribe.is_empty();
            if is_empty && type_url.is_state_of_the_world() {
                subscription.subscribe(WILDCARD); // P-76, the legacy form.
            }
        }
        request.resource_names_unsubscribe.iter().for_each(|name| subscription.unsubscribe(name));
        request.resource_names_subscribe.iter().for_each(|name| subscription.subscribe(name));
        if subscription.names.len() + subscription.globs.len() > MAX_NAMES {
            return Err(ProtocolError::TooManyNames(type_url));
        }
        Ok(kind)
    }

    fn read(request: DeltaDiscoveryRequest) -> Said {
        Said {
            node: request.node,
            type_url: request.type_url,
            names: request.resource_names_subscribe,
            unsubscribed: request.resource_names_unsubscribe,
            claims: request.initial_resource_versions.into_iter().collect(),
            nonce: request.response_nonce,
            error: request.error_detail,
            ..Said::default()
        }
    }

    fn handle_view(&mut self, view: Option<Arc<View>>) {
        let routes_move = self.routes_move(view.as_deref());
        for (type_url, subscription) in self.subscriptions.iter_mut() {
            let before = self.view.as_ref().and_then(|view| view.get(type_url));
            let after = view.as_ref().and_then(|view| view.get(type_url));
            subscription.look_at(self.view.is_some(), before, after);
            let is_used_by_routes = *type_url == TypeUrl::CLUSTER || *type_url == TypeUrl::ENDPOINTS;
            if is_used_by_routes {
                subscription.hold_removals(routes_move, after.map(Arc::as_ref));
            }
        }
        self.view = view;
    }

    fn poll_response(&mut self, mut may_send: impl FnMut(&TypeUrl) -> bool) -> Option<Response> {
        let view = self.view.clone()?;
        // Who has nothing at all may have just begun: it knows of no absence yet (D-36).
        if self.responses == 0 && view.is_empty() {
            return None;
        }
        self.let_go_of_replaced();
        let mut types: Vec<TypeUrl> = self
            .subscriptions
            .iter()
            .filter(|(_, s)| s.may_have_news())
            .map(|(type_url, _)| type_url.clone())
            .collect();
        // The order in which a client can use things: what is referred to first, and removals last (P-91, DX-28).
        types.sort_by_key(TypeUrl::rank);
        for removals in [false, true] {
            for type_url in &types {
                let nothing = Arc::default();
                let content = view.get(type_url).unwrap_or(&nothing);
                let must_wait = self.must_wait(type_url);
                let subscription = self.subscriptions.get_mut(type_url)?;
                let absent = subscription.sort_out(content, self.tells_absence, view.is_partial());
                self.absent.extend(absent.into_iter().map(|name| (type_url.clone(), name)));
                if !subscription.has_news(removals) || must_wait || !may_send(type_url) {
                    continue;
                }
                self.responses += 1;
                let nonce = format!("{}{}", self.nonce_prefix, self.responses);
                return Some(subscription.respond(type_url, content, removals, view.is_partial(), nonce));
            }
        }
        None
    }

    fn is_waiting(&self) -> bool {
        self.subscriptions.values().any(|subscription| !subscription.held.is_empty()) || self.routes_wait()
    }

    fn give_up_waiting(&mut self) {
        let routes_wait = self.routes_wait();
        for subscription in self.subscriptions.values_mut() {
            subscription.unanswered.clear();
            if !routes_wait {
                subscription.let_go();
            }
        }
    }

    fn tell_absence(&mut self, on: bool) {
        self.tells_absence = on;
    }

    fn take_absent(&mut self) -> Vec<(TypeUrl, String)> {
        std::mem::take(&mut self.absent)
    }

    fn node_id(&self) -> Option<&str> {
        self.node_id.as_deref()
    }

    /// A name can always be said to be unknown.
    fn unanswerable_listener(&self) -> Option<&str> {
        None
    }
}

impl Delta {
    /// Whether routes change with this view, or are on their way to the client.
    fn routes_move(&self, after: Option<&View>) -> bool {
        ROUTING.iter().any(|type_url| {
            let Some(subscription) = self.subscriptions.get(type_url) else { return false };
            let id = |view: Option<&View>| view.and_then(|view| view.get(type_url)).and_then(|content| content.id);
            !subscription.is_settled() || id(self.view.as_deref()) != id(after)
        })
    }

    /// Who names clusters says itself when it needs one no more. Who takes every cluster is done with the old ones when
    /// it has accepted the new routes.
    fn let_go_of_replaced(&mut self) {
        let is_settled =
            |type_url| self.subscriptions.get(type_url).is_none_or(|subscription| subscription.is_settled());
        if !ROUTING.iter().all(is_settled) {
            return;
        }
        let takes_all = self.subscriptions.get(&TypeUrl::CLUSTER).is_some_and(|clusters| clusters.all);
        if takes_all {
            self.subscriptions.values_mut().for_each(|subscription| subscription.let_go());
        }
    }

    /// Whether routes of this type wait for clusters on their way. A client that names its clusters learns from the
    /// routes which ones, so there they cannot wait.
    fn must_wait(&self, type_url: &TypeUrl) -> bool {
        let takes_all = self.subscriptions.get(&TypeUrl::CLUSTER).is_some_and(|clusters| clusters.all);
        let on_its_way = |type_url| self.subscriptions.get(type_url).is_some_and(|s| !s.unanswered.is_empty());
        takes_all && ROUTING.contains(type_url) && (on_its_way(&TypeUrl::CLUSTER) || on_its_way(&TypeUrl::ENDPOINTS))
    }

    fn routes_wait(&self) -> bool {
        let may_have_news =
            |type_url| self.subscriptions.get(type_url).is_some_and(|subscription| subscription.may_have_news());
        ROUTING.iter().any(|type_url| self.must_wait(type_url) && may_have_news(type_url))
    }
}

/// What a client wants of one type, and what it has.
#[derive(Debug, Default)]
struct Subscription {
    all: bool,
    names: BTreeSet<String>,
    globs: BTreeSet<Glob>,
    /// What it has of what it wants, as far as we know: sent, or claimed.
    known: BTreeMap<String, Known>,
    /// What is not there, as it was told or will be.
    absent: BTreeSet<String>,
    look: Look,
    /// Names that must be sent, or said to be absent.
    news: BTreeSet<String>,
    /// Names that it has and that are gone.
    gone: BTreeSet<String>,
    /// Those of them that are not said yet.
    held: BTreeSet<String>,
    /// Nonces of responses without an answer, oldest first.
    unanswered: VecDeque<String>,
}

/// A version that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Version(Version),
    /// One that it claims and that is none of ours.
    Foreign,
}

/// What must be looked at to know whether there is news.
#[derive(Debug, PartialEq)]
enum Look {
    Everywhere,
    At(BTreeSet<String>),
}

impl Default for Look {
    fn default() -> Self {
        Self::At(BTreeSet::new())
    }
}

impl Look {
    fn at(&mut self, name: &str) {
        if let Self::At(names) = self {
            names.insert(name.to_owned());
        }
    }
}

impl Subscription {
    /// What a request says about responses.
    fn answered(&mut self, request: &DeltaDiscoveryRequest) -> RequestKind {
        let place = self.unanswered.iter().position(|nonce| *nonce == request.response_nonce);
        if let Some(place) = place {
            self.unanswered.drain(..=place);
        }
        match (request.response_nonce.is_empty(), &request.error_detail, place) {
            (true, ..) => RequestKind::Subscribe,
            // What is rejected counts as sent: it is not sent again before it changes (DX-26).
            (false, Some(_), _) => RequestKind::Nack,
            (false, None, Some(_)) => RequestKind::Ack,
            (false, None, None) => RequestKind::Stale,
        }
    }

    fn claimed<'a>(&mut self, claims: impl IntoIterator<Item = (&'a String, &'a String)>) {
        let known = |version: &String| Version::parse(version).map_or(Known::Foreign, Known::Version);
        self.known.extend(claims.into_iter().map(|(name, version)| (name.clone(), known(version))));
        self.look = Look::Everywhere;
    }

    /// Who subscribes to what it has subscribed to already wants it once more (P-72).
    fn subscribe(&mut self, name: &str) {
        self.absent.remove(name);
        if name == WILDCARD {
            self.all = true;
            self.look = Look::Everywhere;
        } else if let Some(glob) = Glob::parse(name) {
            self.known.retain(|known, _| !glob.contains(known));
            self.globs.insert(glob);
            self.look = Look::Everywhere;
        } else {
            if self.names.contains(name) {
                self.known.remove(name);
            }
            self.names.insert(name.to_owned());
            self.look.at(name);
        }
    }

    fn unsubscribe(&mut self, name: &str) {
        if name == WILDCARD {
            self.all = false;
        } else if let Some(glob) = Glob::parse(name) {
            self.globs.remove(&glob);
        } else if self.names.remove(name) && self.all {
            // P-76: it may be wanted or not; the answer tells.
            self.known.remove(name);
            self.gone.insert(name.to_owned());
            self.look.at(name);
            return;
        }
        let Self { all, names, globs, .. } = self;
        let is_wanted = |name: &String| *all || names.contains(name) || globs.iter().any(|glob| glob.contains(name));
        self.known.retain(|name, _| is_wanted(name));
        for others in [&mut self.news, &mut self.gone, &mut self.held] {
            others.retain(|name| is_wanted(name));
        }
        self.absent.remove(name);
    }

    /// A new view is in force.
    fn look_at(&mut self, had_view: bool, before: Option<&Arc<TypeView>>, after: Option<&Arc<TypeView>>) {
        match (before, after) {
            (Some(before), Some(after)) if Arc::ptr_eq(before, after) => {}
            (Some(before), Some(after)) if before.id.is_some() && before.id == after.id => {}
            (Some(before), Some(after)) if before.id.is_some() && before.id == after.changes.since => {
                after.changes.names.iter().for_each(|name| self.look.at(name));
            }
            (None, None) if had_view => {}
            _ => self.look = Look::Everywhere,
        }
    }

    /// Keeps quiet about what is gone while routes to it may be in use.
    fn hold_removals(&mut self, routes_move: bool, after: Option<&TypeView>) {
        let exists = |name: &String| after.is_some_and(|after| after.resources.contains_key(name));
        self.held.retain(|name| !exists(name));
        if !routes_move {
            return;
        }
        let gone = |name: &&String| self.known.contains_key(*name) && !exists(name);
        match &self.look {
            Look::Everywhere => self.held.extend(self.known.keys().filter(gone).cloned()),
            Look::At(names) => self.held.extend(names.iter().filter(gone).cloned()),
        }
    }

    fn let_go(&mut self) {
        self.held.clear();
    }

    fn may_have_news(&self) -> bool {
        self.look != Look::default() || !self.news.is_empty() || self.gone.iter().any(|name| !self.held.contains(name))
    }

    /// Whether the client has accepted, or rejected, all that there is.
    fn is_settled(&self) -> bool {
        self.unanswered.is_empty() && !self.may_have_news()
    }

    /// Looks at what may be news and sorts it. Answers with the names that are found to be absent.
    fn sort_out(&mut self, content: &TypeView, tells_absence: bool, is_partial: bool) -> Vec<String> {
        let mut absent = Vec::new();
        if is_partial {
            // What it has from somebody else is not gone because it is not here.
            self.known.retain(|name, known| *known != Known::Foreign || content.resources.contains_key(name));
        }
        let names: Vec<String> = match std::mem::take(&mut self.look) {
            Look::At(names) => names.into_iter().collect(),
            Look::Everywhere => {
                let members = self.globs.iter().flat_map(|glob| glob.members(&content.resources));
                let all = content.resources.keys().filter(|_| self.all);
                let wanted: BTreeSet<&String> =
                    members.chain(all).chain(&self.names).chain(self.known.keys()).collect();
                wanted.into_iter().cloned().collect()
            }
        };
        for name in names {
            if !self.wants(&name) {
                self.known.remove(&name);
                continue;
            }
            match (content.resources.get(&name), self.known.get(&name)) {
                (Some(entry), known) => {
                    self.absent.remove(&name);
                    self.gone.remove(&name);
                    if known != Some(&Known::Version(entry.version)) {
                        self.news.insert(name);
                    }
                }
                (None, Some(_)) => {
                    self.news.remove(&name);
                    self.gone.insert(name);
                }
                // Never had, and not there: that is said at once.
                (None, None) => {
                    self.news.remove(&name);
                    if self.names.contains(&name) && self.absent.insert(name.clone()) {
                        absent.push(name.clone());
                        if tells_absence {
                            self.news.insert(name);
                        }
                    }
                }
            }
        }
        for glob in &self.globs {
            // P-90: that a collection is empty is said by its name.
            if glob.members(&content.resources).next().is_some() {
                self.absent.remove(glob.name());
            } else if self.absent.insert(glob.name().to_owned()) {
                self.news.insert(glob.name().to_owned());
            }
        }
        absent
    }

    fn wants(&self, name: &str) -> bool {
        self.all || self.names.contains(name) || self.globs.iter().any(|glob| glob.contains(name))
    }

    fn has_news(&self, removals: bool) -> bool {
        if removals { self.gone.iter().any(|name| !self.held.contains(name)) } else { !self.news.is_empty() }
    }

    /// A response with what is news, or with what is gone; cut off where it is long enough.
    fn respond(
        &mut self,
        type_url: &TypeUrl,
        content: &TypeView,
        removals: bool,
        is_partial: bool,
        nonce: String,
    ) -> Response {
        let mut parts = Vec::new();
        if removals {
            let gone: Vec<String> = self.gone.iter().filter(|name| !self.held.contains(*name)).cloned().collect();
            for name in gone {
                self.gone.remove(&name);
                self.known.remove(&name);
                self.absent.insert(name.clone());
                parts.push((name, None));
            }
        } else {
            let mut size = 0;
            while size < MAX_SIZE
                && let Some(name) = self.news.pop_first()
            {
                let entry = content.resources.get(&name);
                if let Some(entry) = entry {
                    size += name.len() + entry.len();
                    self.known.insert(name.clone(), Known::Version(entry.version));
                }
                parts.push((name, entry));
            }
        }
        // Who never had it cannot know that it is gone.
        let is_unknown = is_partial && !removals;
        let (Shared { body, names, removed }, is_encoding) =
            content.encodings.get(identify(&parts, is_unknown), || encode(type_url, content, &parts, is_unknown));
        self.unanswered.push_back(nonce.clone());
        let version = content.version.clone();
        Response { type_url: type_url.clone(), names, removed, version, message: Encoded { body, nonce }, is_encoding }
    }
}

/// What two responses have in common whose bodies are the same bytes, if they are made from one view.
fn identify(parts: &[(String, Option<&Entry>)], is_unknown: bool) -> Version {
    let mut hash = Hash::new();
    hash.part(if is_unknown { b"unknown" } else { b"delta" });
    for (name, entry) in parts {
        hash.part(name.as_bytes()).part(&entry.map(|entry| entry.version.to_bytes()).unwrap_or_default());
    }
    hash.finish()
}

/// A response without its nonce. What is not there is gone, or unknown.
fn encode(type_url: &TypeUrl, content: &TypeView, parts: &[(String, Option<&Entry>)], is_unknown: bool) -> Shared {
    let mut message = DeltaDiscoveryResponse {
        system_version_info: content.version.clone(),
        type_url: type_url.as_str().to_owned(),
        control_plane: Some(identity()),
        ..DeltaDiscoveryResponse::default()
    };
    for (name, entry) in parts {
        match entry.map(|entry| (&entry.body, entry)) {
            Some((Body::Message(any), entry)) => message.resources.push(Resource {
                name: name.clone(),
                version: entry.told_version(),
                resource: Some(any.clone()),
                ..Resource::default()
            }),
            Some((Body::Error { code, message: text }, _)) => {
                message.resource_errors.push(error(name, *code, text.clone()));
            }
            None if is_unknown => message.resource_errors.push(unknown(name)),
            None => message.removed_resources.push(name.clone()),
        }
    }
    let (here, gone): (Vec<_>, Vec<_>) = parts.iter().partition(|(_, entry)| entry.is_some() || is_unknown);
    let names = |parts: Vec<&(String, _)>| parts.into_iter().map(|(name, _)| name.clone()).collect();
    Shared { body: message.encode_to_vec().into(), names: names(here), removed: names(gone) }
}

/// A response is cut off here, so that clients with gRPC's default limit of 4 MiB can take it (DX-27).
const MAX_SIZE: usize = 1 << 20;
