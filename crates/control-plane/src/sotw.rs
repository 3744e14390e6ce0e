//! The server's side of one state-of-the-world stream, without I/O: requests and views in, responses out.
//!
//! A response is made from the newest view whenever the caller has room for one, so a slow client skips the versions
//! in between and never misses the last.
//!
//! Routes are made before clusters are broken (P-91): a cluster that went away together with a change of routes stays
//! in the responses until the client has no more use for it, and a client that takes every cluster is sent new routes
//! when it has the clusters. [`Sotw::is_waiting`] tells of it, and [`Sotw::give_up_waiting`] ends it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use prost::Message;
use tonic::Code;

use crate::encoding::Encoded;
use crate::protocol::{
    MAX_TYPES, Protocol, ProtocolError, ROUTING, RequestKind, Response, Said, WILDCARD, check_names, error, identity,
    reads_errors, unknown,
};
use crate::snapshot::Body;
use crate::type_url::TypeUrl;
use crate::version::{Hash, Version};
use crate::view::{Entry, TypeView, View};

#[cfg(test)]
mod tests;

/// What a server knows about one SotW stream.
#[derive(Debug)]
pub(crate) struct Sotw {
    nonce_prefix: String,
    responses: u64,
    node_id: Option<String>,
    /// Whether the client reads `resource_errors`, so that it can be told what is not here.
    reads_errors: bool,
    tells_absence: bool,
    view: Option<Arc<View>>,
    /// Boxed: a map has room for eleven of them, and most clients have four.
    subscriptions: BTreeMap<TypeUrl, Box<Subscription>>,
    /// Names that were found to be absent, for whoever writes the log.
    absent: Vec<(TypeUrl, String)>,
}

impl Protocol for Sotw {
    type Request = DiscoveryRequest;

    fn new(nonce_prefix: String) -> Self {
        Self {
            nonce_prefix,
            responses: 0,
            node_id: None,
            reads_errors: false,
            tells_absence: true,
            view: None,
            subscriptions: BTreeMap::new(),
            absent: Vec::new(),
        }
    }

    fn handle_request(&mut self, request: &DiscoveryRequest) -> Result<RequestKind, ProtocolError> {
        if request.type_url.is_empty() {
            return Err(ProtocolError::NoTypeUrl);
        }
        // Only the first message of a stream says who is there (P-16).
        if self.node_id.is_none() {
            self.node_id = Some(request.node.as_ref().map(|node| node.id.clone()).unwrap_or_default());
            self.reads_errors = request.node.as_ref().is_some_and(reads_errors);
        }
        let type_url = TypeUrl::from(request.type_url.as_str());
        if self.subscriptions.len() >= MAX_TYPES && !self.subscriptions.contains_key(&type_url) {
            return Err(ProtocolError::TooManyTypes);
        }
        check_names(&type_url, &request.resource_names)?;
        let subscription = self.subscriptions.entry(type_url.clone()).or_default();
        let kind = subscription.kind_of(request);
        match kind {
            RequestKind::Ack => subscription.settle_last_response(Answer::Accepted),
            RequestKind::Nack => {
                subscription.settle_last_response(Answer::Refused);
                subscription.reject_last_response();
            }
            RequestKind::Subscribe | RequestKind::Stale => {}
        }
        if kind != RequestKind::Stale {
            let wanted = subscription.read_names(&type_url, &request.resource_names);
            subscription.subscribe(wanted);
        }
        Ok(kind)
    }

    fn handle_view(&mut self, view: Option<Arc<View>>) {
        for (type_url, subscription) in &mut self.subscriptions {
            let before = self.view.as_ref().and_then(|view| view.get(type_url));
            let after = view.as_ref().and_then(|view| view.get(type_url));
            subscription.view_changed |= match (before, after) {
                (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
                // The first view of all is news even where it holds nothing of the type.
                (None, None) => self.view.is_some() != view.is_some(),
                _ => true,
            };
        }
        let before = std::mem::replace(&mut self.view, view);
        self.keep_removed_clusters(before.as_deref());
    }

    fn is_waiting(&self) -> bool {
        let clusters = self.subscriptions.get(&TypeUrl::CLUSTER);
        clusters.is_some_and(|clusters| !clusters.kept.is_empty()) || self.routes_wait()
    }

    fn give_up_waiting(&mut self) {
        let routes_wait = self.routes_wait();
        for subscription in self.subscriptions.values_mut() {
            if subscription.awaits_answer() {
                subscription.settle_last_response(Answer::Refused);
            }
            if !routes_wait && !subscription.kept.is_empty() {
                subscription.kept.clear();
                subscription.view_changed = true;
            }
        }
    }

    fn poll_response(&mut self, mut may_send: impl FnMut(&TypeUrl) -> bool) -> Option<Response> {
        let view = self.view.clone()?;
        self.break_what_is_replaced();
        // The order in which a client can use things: what is referred to first (P-91).
        let mut dirty: Vec<&TypeUrl> =
            self.subscriptions.iter().filter(|(_, s)| s.is_dirty()).map(|(type_url, _)| type_url).collect();
        dirty.sort_by_key(|type_url| type_url.rank());
        let dirty: Vec<TypeUrl> = dirty.into_iter().cloned().collect();
        for type_url in dirty {
            let subscription = self.subscriptions.get_mut(&type_url)?;
            let nothing = Arc::default();
            let content = view.get(&type_url).unwrap_or(&nothing);
            let is_full = type_url.is_state_of_the_world();
            // Who asks for a Listener that is not here has the wrong name. Everything else is asked for because a
            // resource refers to it, and is missing in the middle of an update; and who has nothing at all may have
            // just begun. To say then that it does not exist would put half an update into force (D-36).
            // A partial view says of everything else that it is unknown, which takes nothing away.
            let is_wrong_name = view.is_partial() || (type_url == TypeUrl::LISTENER && !view.is_empty());
            let is_told = self.reads_errors && self.tells_absence && is_wrong_name;
            let absent = subscription.note_absent(content, is_told);
            self.absent.extend(absent.into_iter().map(|name| (type_url.clone(), name)));
            if !subscription.has_news(content, is_full) {
                subscription.settle();
                continue;
            }
            if self.must_wait(&type_url) || !may_send(&type_url) {
                continue;
            }
            // A response of LDS or CDS without a name says that there is no such resource.
            let is_told = self.reads_errors && self.tells_absence;
            let subscription = self.subscriptions.get_mut(&type_url)?;
            if view.is_partial() && is_full && !is_told && subscription.lacks_some() {
                continue;
            }
            self.responses += 1;
            let nonce = format!("{}{}", self.nonce_prefix, self.responses);
            return Some(subscription.respond(type_url, content, is_full, view.is_partial(), nonce));
        }
        None
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

    fn unanswerable_listener(&self) -> Option<&str> {
        let view = self.view.as_ref().filter(|view| view.is_partial() && self.responses == 0 && !self.reads_errors)?;
        let held = view.get(&TypeUrl::LISTENER);
        let is_here = |name: &&String| held.is_some_and(|held| held.resources.contains_key(*name));
        let wanted = &self.subscriptions.get(&TypeUrl::LISTENER)?.wanted;
        wanted.names.iter().find(|name| !is_here(name)).map(String::as_str)
    }

    fn read(request: DiscoveryRequest) -> Said {
        Said {
            node: request.node,
            type_url: request.type_url,
            names: request.resource_names,
            version: request.version_info,
            nonce: request.response_nonce,
            error: request.error_detail,
            ..Said::default()
        }
    }
}

impl Sotw {
    /// Keeps clusters that the new view lacks if the same view may have changed the routes to them. A client that
    /// heard of the clusters first would fail the RPCs that still take the old routes.
    fn keep_removed_clusters(&mut self, before: Option<&View>) {
        let routes_move = ROUTING.iter().any(|type_url| !self.is_settled(type_url));
        let after = self.view.as_ref().and_then(|view| view.get(&TypeUrl::CLUSTER));
        let exists = |name: &String| after.is_some_and(|after| after.resources.contains_key(name));
        let Some(subscription) = self.subscriptions.get_mut(&TypeUrl::CLUSTER) else { return };
        subscription.kept.retain(|name, _| !exists(name));
        let Some(before) = before.and_then(|view| view.get(&TypeUrl::CLUSTER)).filter(|_| routes_move) else { return };
        for name in subscription.sent.keys().filter(|name| !exists(name)) {
            if let Some(entry) = before.resources.get(name) {
                subscription.kept.insert(name.clone(), entry.clone());
            }
        }
    }

    /// Who names clusters says itself when it needs one no more, by naming it no more. Who takes every cluster is done
    /// with the old ones when it has accepted the new routes.
    fn break_what_is_replaced(&mut self) {
        let routes_settled = ROUTING.iter().all(|type_url| self.is_settled(type_url));
        let Some(clusters) = self.subscriptions.get_mut(&TypeUrl::CLUSTER) else { return };
        if routes_settled && clusters.wanted.all && !clusters.kept.is_empty() {
            clusters.kept.clear();
            clusters.view_changed = true;
        }
    }

    fn routes_wait(&self) -> bool {
        ROUTING.iter().any(|type_url| self.must_wait(type_url) && self.has_news(type_url))
    }

    /// Whether routes of this type wait for clusters on their way. A client that names its clusters learns from the
    /// routes which ones, so there they cannot wait.
    fn must_wait(&self, type_url: &TypeUrl) -> bool {
        let takes_all = self.subscriptions.get(&TypeUrl::CLUSTER).is_some_and(|clusters| clusters.wanted.all);
        let on_its_way =
            |type_url| self.subscriptions.get(type_url).is_some_and(|subscription| subscription.awaits_answer());
        takes_all && ROUTING.contains(type_url) && (on_its_way(&TypeUrl::CLUSTER) || on_its_way(&TypeUrl::ENDPOINTS))
    }

    /// Whether the client accepted all that there is of this type.
    fn is_settled(&self, type_url: &TypeUrl) -> bool {
        let Some(subscription) = self.subscriptions.get(type_url) else { return true };
        let accepted = subscription.last.as_ref().is_none_or(|last| last.answer == Some(Answer::Accepted));
        accepted && !self.has_news(type_url)
    }

    fn has_news(&self, type_url: &TypeUrl) -> bool {
        let (Some(view), Some(subscription)) = (&self.view, self.subscriptions.get(type_url)) else { return false };
        let nothing = Arc::default();
        let content = view.get(type_url).unwrap_or(&nothing);
        subscription.is_dirty() && subscription.has_news(content, type_url.is_state_of_the_world())
    }
}

/// What a client wants of one type, and what it has.
#[derive(Debug, Default)]
struct Subscription {
    wanted: Wanted,
    /// Whether any request of this type listed names: from then on an empty list means "nothing" (P-47).
    ever_named: bool,
    /// What was sent and is still wanted.
    sent: BTreeMap<String, Delivery>,
    /// What was sent, is not in the view any more, and is served on until the client has a replacement.
    kept: BTreeMap<String, Entry>,
    /// Names that are wanted and not here, and whether that must still be said.
    absent: BTreeMap<String, bool>,
    last: Option<LastResponse>,
    names_changed: bool,
    view_changed: bool,
}

impl Subscription {
    fn kind_of(&self, request: &DiscoveryRequest) -> RequestKind {
        match &self.last {
            // Before the first response of the type there is nothing to answer, whatever the nonce says.
            None => RequestKind::Subscribe,
            Some(_) if request.response_nonce.is_empty() => RequestKind::Subscribe,
            Some(last) if last.nonce != request.response_nonce => RequestKind::Stale,
            // Only this field tells a NACK; versions prove nothing (P-39).
            Some(_) if request.error_detail.is_some() => RequestKind::Nack,
            Some(_) => RequestKind::Ack,
        }
    }

    /// A client may have dropped the whole response, good resources included. So all of it counts as not delivered,
    /// but is not sent again before something changes: that would be a loop.
    fn reject_last_response(&mut self) {
        for name in self.last.iter().flat_map(|last| &last.names) {
            if let Some(delivery) = self.sent.get_mut(name) {
                delivery.rejected = true;
            }
        }
    }

    fn settle_last_response(&mut self, answer: Answer) {
        if let Some(last) = &mut self.last {
            last.answer = Some(answer);
        }
    }

    fn awaits_answer(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.answer.is_none())
    }

    fn read_names(&mut self, type_url: &TypeUrl, names: &[String]) -> Wanted {
        let knows_wildcard = type_url.is_state_of_the_world();
        self.ever_named |= !names.is_empty();
        let mut wanted = Wanted { all: knows_wildcard && !self.ever_named, names: names.iter().cloned().collect() };
        if knows_wildcard && wanted.names.remove(WILDCARD) {
            wanted.all = true;
        }
        wanted
    }

    fn subscribe(&mut self, wanted: Wanted) {
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        // Who unsubscribes and subscribes again must be sent the resource again (P-43).
        self.sent.retain(|name, _| self.wanted.contains(name));
        self.kept.retain(|name, _| self.wanted.contains(name));
        self.absent.retain(|name, _| self.wanted.names.contains(name));
        self.names_changed = true;
    }

    /// Notes which names are not here, of those that were never sent: what is taken away later is told by the next
    /// response of LDS and CDS, and for other types by nothing (P-52). Answers with those that are news.
    fn note_absent(&mut self, content: &TypeView, is_told: bool) -> Vec<String> {
        self.absent.retain(|name, _| !content.resources.contains_key(name));
        let is_here = |name: &&String| content.resources.contains_key(*name) || self.sent.contains_key(*name);
        let missing = self.wanted.names.iter().filter(|name| !is_here(name) && !self.absent.contains_key(*name));
        let news: Vec<String> = missing.cloned().collect();
        self.absent.extend(news.iter().map(|name| (name.clone(), is_told)));
        news
    }

    /// Whether something is wanted that is not here and never was.
    fn lacks_some(&self) -> bool {
        !self.absent.is_empty()
    }

    fn is_dirty(&self) -> bool {
        self.names_changed || self.view_changed
    }

    fn settle(&mut self) {
        (self.names_changed, self.view_changed) = (false, false);
    }

    fn has_news(&self, content: &TypeView, is_full: bool) -> bool {
        let unanswered = is_full && self.last.is_none() && !self.wanted.is_empty();
        let removed = || is_full && self.sent.keys().any(|name| !self.is_served(name, content));
        let absent = || self.absent.values().any(|must_be_said| *must_be_said);
        let changed = || self.wanted.in_view(content).any(|(name, entry)| self.is_new(name, entry));
        unanswered || changed() || removed() || absent()
    }

    fn respond(
        &mut self,
        type_url: TypeUrl,
        content: &TypeView,
        is_full: bool,
        is_partial: bool,
        nonce: String,
    ) -> Response {
        let mut parts = Vec::new();
        for (name, entry) in self.wanted.in_view(content).chain(&self.kept) {
            let rejected = self.view_changed && self.sent.get(name).is_some_and(|delivery| delivery.rejected);
            let due = rejected || self.is_new(name, entry);
            let is_sent = match &entry.body {
                // LDS and CDS responses carry everything that is subscribed (P-49).
                Body::Message(_) => due || is_full,
                // An error is said once (P-61).
                Body::Error { .. } => due,
            };
            if is_sent {
                parts.push(Part::Here(name, entry));
            }
        }
        let absent = self.absent.iter().filter(|(_, must_be_said)| **must_be_said);
        parts.extend(absent.map(|(name, _)| Part::Absent(name)));

        let version = match self.kept.is_empty() {
            true => content.version.clone(),
            // Not the version of the view while there is more in it than in the view.
            false => {
                let all: BTreeMap<_, _> = content.resources.iter().chain(&self.kept).collect();
                Version::of_all(all.into_iter().map(|(name, entry)| (name.as_str(), entry.version))).to_string()
            }
        };
        let (body, is_encoding) = content
            .encodings
            .body(identify(&version, &parts, is_partial), || encode(&type_url, content, &version, &parts, is_partial));
        let names: Vec<String> = parts.iter().map(|part| part.name().to_owned()).collect();
        let sent: Vec<_> = parts.iter().filter_map(Part::delivery).collect();

        self.absent.values_mut().for_each(|must_be_said| *must_be_said = false);
        self.sent.retain(|name, _| {
            let is_served = content.resources.contains_key(name) || self.kept.contains_key(name);
            if !is_served && self.wanted.names.contains(name) {
                // That it is gone was said just now, as far as there are words for it.
                self.absent.insert(name.clone(), false);
            }
            is_served
        });
        self.sent.extend(sent);
        self.last = Some(LastResponse { nonce: nonce.clone(), names: names.clone(), answer: None });
        self.settle();
        let removed = Vec::new();
        Response { type_url, names, removed, version, message: Encoded { body, nonce }, is_encoding }
    }

    fn is_served(&self, name: &str, content: &TypeView) -> bool {
        content.resources.contains_key(name) || self.kept.contains_key(name)
    }

    fn is_new(&self, name: &str, entry: &Entry) -> bool {
        self.sent.get(name).is_none_or(|delivery| delivery.stamp != entry.stamp)
    }
}

/// One thing that a response says.
enum Part<'a> {
    /// A resource, or an error in its place.
    Here(&'a String, &'a Entry),
    /// There is no such resource.
    Absent(&'a String),
}

impl Part<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Here(name, _) | Self::Absent(name) => name,
        }
    }

    fn delivery(&self) -> Option<(String, Delivery)> {
        match self {
            Self::Here(name, entry) => Some(((*name).clone(), Delivery { stamp: entry.stamp, rejected: false })),
            Self::Absent(_) => None,
        }
    }
}

/// What two responses have in common whose bodies are the same bytes, if they are made from one view.
fn identify(version: &str, parts: &[Part<'_>], is_partial: bool) -> Version {
    let mut hash = Hash::new();
    hash.part(version.as_bytes()).part(&[u8::from(is_partial)]);
    for part in parts {
        hash.part(part.name().as_bytes());
        match part {
            Part::Here(_, entry) => hash.part(&entry.version.to_bytes()),
            Part::Absent(_) => hash.part(b""),
        };
    }
    hash.finish()
}

/// A response without its nonce.
fn encode(type_url: &TypeUrl, content: &TypeView, version: &str, parts: &[Part<'_>], is_partial: bool) -> Bytes {
    let mut message = DiscoveryResponse {
        version_info: version.to_owned(),
        type_url: type_url.as_str().to_owned(),
        control_plane: Some(identity()),
        ..DiscoveryResponse::default()
    };
    for part in parts {
        match part {
            Part::Here(name, entry @ Entry { body: Body::Message(any), .. }) => {
                message.resources.push(content.pack(name, any, entry.told_version()));
            }
            Part::Here(name, Entry { body: Body::Error { code, message: text }, .. }) => {
                message.resource_errors.push(error(name, *code, text.clone()));
            }
            Part::Absent(name) if is_partial => message.resource_errors.push(unknown(name)),
            Part::Absent(name) => {
                message.resource_errors.push(error(name, Code::NotFound, "there is no such resource".to_owned()));
            }
        }
    }
    message.encode_to_vec().into()
}

/// Which resources of a type a client wants.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    all: bool,
    names: BTreeSet<String>,
}

impl Wanted {
    fn contains(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    fn is_empty(&self) -> bool {
        !self.all && self.names.is_empty()
    }

    fn in_view<'a>(&'a self, content: &'a TypeView) -> Box<dyn Iterator<Item = (&'a String, &'a Entry)> + 'a> {
        if self.all {
            return Box::new(content.resources.iter());
        }
        Box::new(self.names.iter().filter_map(|name| content.resources.get_key_value(name)))
    }
}

#[derive(Clone, Debug)]
struct Delivery {
    stamp: u64,
    rejected: bool,
}

#[derive(Debug)]
struct LastResponse {
    nonce: String,
    names: Vec<String>,
    /// What the client said to it, if it did.
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    /// Rejected, or not answered in time.
    Refused,
}
