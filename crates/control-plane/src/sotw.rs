//! The server's side of one state-of-the-world stream, without I/O: requests and views in, responses out.
//!
//! A response is made from the newest view whenever the caller has room for one, so a slow client skips the versions
//! in between and never misses the last.
//!
//! Routes are made before clusters are broken (P-91): a cluster that went away together with a change of routes stays
//! in the responses until the client has no more use for it, and a client that takes every cluster is sent new routes
//! when it has the clusters. [`Sotw::is_waiting`] tells of it, and [`Sotw::give_up_waiting`] ends it.
//!
//! After a response a client has all that there is of what it wants, so what it has is a [`Selection`], the same value
//! for all streams that want the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use prost::Message;
use tonic::Code;

use crate::encoding::{Encoded, Shared};
use crate::few::Few;
use crate::names::{Names, Selection};
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
    subscriptions: Few<TypeUrl, Subscription>,
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
            subscriptions: Few::default(),
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
        if self.subscriptions.len() >= MAX_TYPES && self.subscriptions.get(&type_url).is_none() {
            return Err(ProtocolError::TooManyTypes);
        }
        check_names(&type_url, &request.resource_names)?;
        let subscription = self.subscriptions.get_or_default(type_url.clone());
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
            subscription.subscribe(&type_url, &request.resource_names);
        }
        Ok(kind)
    }

    fn handle_view(&mut self, view: Option<Arc<View>>) {
        for (type_url, subscription) in self.subscriptions.iter_mut() {
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
            let now = subscription.select(content);
            let absent = subscription.note_absent(content, &now, is_told);
            self.absent.extend(absent.into_iter().map(|name| (type_url.clone(), name)));
            if !subscription.has_news(&now, is_full) {
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
            return Some(subscription.respond(type_url, content, now, is_full, view.is_partial(), nonce));
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
        let is_here = |name: &&str| held.is_some_and(|held| held.resources.contains_key(*name));
        let wanted = &self.subscriptions.get(&TypeUrl::LISTENER)?.wanted;
        wanted.names.iter().find(|name| !is_here(name))
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
        let exists = |name: &str| after.is_some_and(|after| after.resources.contains_key(name));
        let Some(subscription) = self.subscriptions.get_mut(&TypeUrl::CLUSTER) else { return };
        subscription.kept.retain(|name, _| !exists(name));
        let Some(before) = before.and_then(|view| view.get(&TypeUrl::CLUSTER)).filter(|_| routes_move) else { return };
        for (_, name, _) in subscription.sent.iter().flat_map(|sent| sent.here()).filter(|(_, name, _)| !exists(name)) {
            if let Some(entry) = before.resources.get(name) {
                subscription.kept.insert(name.to_owned(), entry.clone());
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
        subscription.is_dirty()
            && subscription.has_news(&subscription.wanted.select(content), type_url.is_state_of_the_world())
    }
}

/// What a client wants of one type, and what it has.
#[derive(Debug, Default)]
struct Subscription {
    wanted: Wanted,
    /// Whether any request of this type listed names: from then on an empty list means "nothing" (P-47).
    ever_named: bool,
    /// What was sent and is still wanted.
    sent: Option<Arc<Selection>>,
    /// Those names of it whose response was rejected.
    rejected: BTreeSet<String>,
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
            Some(last) if *last.nonce != *request.response_nonce => RequestKind::Stale,
            // Only this field tells a NACK; versions prove nothing (P-39).
            Some(_) if request.error_detail.is_some() => RequestKind::Nack,
            Some(_) => RequestKind::Ack,
        }
    }

    /// A client may have dropped the whole response, good resources included. So all of it counts as not delivered,
    /// but is not sent again before something changes: that would be a loop.
    fn reject_last_response(&mut self) {
        let names = self.last.iter().flat_map(|last| &*last.names);
        let sent = self.sent.as_ref();
        self.rejected.extend(names.filter(|name| sent.is_some_and(|sent| sent.has(name))).cloned());
    }

    fn settle_last_response(&mut self, answer: Answer) {
        if let Some(last) = &mut self.last {
            last.answer = Some(answer);
        }
    }

    fn awaits_answer(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.answer.is_none())
    }

    /// Takes in which names a request lists.
    fn subscribe(&mut self, type_url: &TypeUrl, names: &[String]) {
        let knows_wildcard = type_url.is_state_of_the_world();
        self.ever_named |= !names.is_empty();
        let all = knows_wildcard && (!self.ever_named || names.iter().any(|name| name == WILDCARD));
        let names = || names.iter().map(String::as_str).filter(|name| !knows_wildcard || *name != WILDCARD);
        // Most requests answer a response and list what they listed before, in the same order.
        if all == self.wanted.all && self.wanted.names.iter().eq(names()) {
            return;
        }
        let wanted = Wanted { all, names: Arc::new(Names::of(names())) };
        if wanted == self.wanted {
            return;
        }
        self.wanted = wanted;
        // Who unsubscribes and subscribes again must be sent the resource again (P-43).
        self.sent = self.sent.take().map(|sent| sent.retain(|name| self.wanted.contains(name)));
        self.rejected.retain(|name| self.wanted.contains(name));
        self.kept.retain(|name, _| self.wanted.contains(name));
        self.absent.retain(|name, _| self.wanted.names.contains(name));
        self.names_changed = true;
    }

    /// What there is of what is wanted. The names are shared with other streams from then on.
    fn select(&mut self, content: &TypeView) -> Arc<Selection> {
        let now = self.wanted.select(content);
        if !self.wanted.all {
            self.wanted.names = Arc::clone(now.names());
        }
        now
    }

    /// Notes which names are not here, of those that were never sent: what is taken away later is told by the next
    /// response of LDS and CDS, and for other types by nothing (P-52). Answers with those that are news.
    fn note_absent(&mut self, content: &TypeView, now: &Selection, is_told: bool) -> Vec<String> {
        self.absent.retain(|name, _| !content.resources.contains_key(name));
        let is_new = |name: &&str| !self.has(name) && !self.absent.contains_key(*name);
        let news: Vec<String> = match self.wanted.all {
            false => now.missing().filter(is_new).map(str::to_owned).collect(),
            // Those that are named beside the wildcard.
            true => {
                let missing = self.wanted.names.iter().filter(|name| !now.has(name));
                missing.filter(is_new).map(str::to_owned).collect()
            }
        };
        self.absent.extend(news.iter().map(|name| (name.clone(), is_told)));
        news
    }

    /// Whether the client was sent it, of what it wants still.
    fn has(&self, name: &str) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.has(name))
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

    fn has_news(&self, now: &Selection, is_full: bool) -> bool {
        let unanswered = is_full && self.last.is_none() && !self.wanted.is_empty();
        let absent = || self.absent.values().any(|must_be_said| *must_be_said);
        let differs = || {
            let (new, gone) = now.since(self.sent.as_deref());
            !new.is_empty() || is_full && gone.iter().any(|name| !self.kept.contains_key(*name))
        };
        unanswered || absent() || differs()
    }

    fn respond(
        &mut self,
        type_url: TypeUrl,
        content: &TypeView,
        now: Arc<Selection>,
        is_full: bool,
        is_partial: bool,
        nonce: String,
    ) -> Response {
        let (new, gone) = now.since(self.sent.as_deref());
        let rejected = |name: &str| self.view_changed && self.rejected.contains(name);
        // LDS and CDS responses carry everything that is subscribed (P-49), but an error is said once (P-61).
        let goes_along = |entry: Option<&Entry>| is_full && entry.is_none_or(|entry| !entry.is_error());
        let mut here: Vec<usize> = Vec::new();
        let mut news = new.iter().copied().peekable();
        for (place, name, _) in now.here() {
            let is_new = news.next_if_eq(&place).is_some();
            if is_new || rejected(name) || goes_along(content.errors.then(|| content.resources.get(name)).flatten()) {
                here.push(place);
            }
        }
        let stamp = |name: &str| self.sent.as_ref().and_then(|sent| sent.stamp(name)).map_or(0, |stamp| stamp.get());
        let is_due = |(name, entry): &(&String, &Entry)| rejected(name) || stamp(name) != entry.stamp;
        let kept: Vec<_> = self.kept.iter().filter(|kept| is_due(kept) || goes_along(Some(kept.1))).collect();
        let absent = self.absent.iter().filter(|(_, must_be_said)| **must_be_said).map(|(name, _)| name.as_str());
        let absent: Vec<&str> = absent.collect();

        let version = match self.kept.is_empty() {
            true => content.version.clone(),
            // Not the version of the view while there is more in it than in the view.
            false => {
                let all: BTreeMap<_, _> = content.resources.iter().chain(&self.kept).collect();
                Version::of_all(all.into_iter().map(|(name, entry)| (name.as_str(), entry.version))).to_string()
            }
        };
        let identity = identify(&version, &now, &here, &kept, &absent, is_partial);
        let (Shared { body, names, removed }, is_encoding) = content.encodings.get(identity, || {
            let names: Vec<&str> = now.names().iter().collect();
            let here = here.iter().filter_map(|place| content.resources.get_key_value(*names.get(*place)?));
            let here: Vec<_> = here.chain(kept.iter().copied()).collect();
            encode(&type_url, content, &version, &here, &absent, is_partial)
        });

        for name in gone.into_iter().filter(|name| !self.kept.contains_key(*name) && self.wanted.names.contains(name)) {
            // That it is gone was said just now, as far as there are words for it.
            self.absent.insert(name.to_owned(), false);
        }
        self.absent.values_mut().for_each(|must_be_said| *must_be_said = false);
        self.sent = Some(if self.kept.is_empty() { now } else { Arc::new(now.with(&self.kept)) });
        if !self.rejected.is_empty() {
            let sent = self.sent.as_ref();
            let delivered: BTreeSet<&String> = names.iter().collect();
            self.rejected.retain(|name| !delivered.contains(name) && sent.is_some_and(|sent| sent.has(name)));
        }
        self.last = Some(LastResponse { nonce: nonce.clone().into(), names: Arc::clone(&names), answer: None });
        self.settle();
        Response { type_url, names, removed, version, message: Encoded { body, nonce }, is_encoding }
    }
}

/// What two responses have in common whose bodies are the same bytes, if they are made from one view.
fn identify(
    version: &str,
    now: &Selection,
    here: &[usize],
    kept: &[(&String, &Entry)],
    absent: &[&str],
    is_partial: bool,
) -> Version {
    let mut hash = Hash::new();
    let places: Vec<u8> = here.iter().flat_map(|place| place.to_be_bytes()).collect();
    hash.part(version.as_bytes()).part(&[u8::from(is_partial)]).part(&now.names().id().to_bytes()).part(&places);
    for (name, entry) in kept {
        hash.part(name.as_bytes()).part(&entry.version.to_bytes());
    }
    for name in absent {
        hash.part(name.as_bytes()).part(b"");
    }
    hash.finish()
}

/// A response without its nonce.
fn encode(
    type_url: &TypeUrl,
    content: &TypeView,
    version: &str,
    here: &[(&String, &Entry)],
    absent: &[&str],
    is_partial: bool,
) -> Shared {
    let mut message = DiscoveryResponse {
        version_info: version.to_owned(),
        type_url: type_url.as_str().to_owned(),
        control_plane: Some(identity()),
        ..DiscoveryResponse::default()
    };
    for (name, entry) in here {
        match &entry.body {
            Body::Message(any) => message.resources.push(content.pack(name, any, entry.told_version())),
            Body::Error { code, message: text } => message.resource_errors.push(error(name, *code, text.clone())),
        }
    }
    message.resource_errors.extend(absent.iter().map(|name| match is_partial {
        true => unknown(name),
        false => error(name, Code::NotFound, "there is no such resource".to_owned()),
    }));
    let names = here.iter().map(|(name, _)| (*name).clone()).chain(absent.iter().map(|name| (*name).to_owned()));
    Shared { body: message.encode_to_vec().into(), names: names.collect(), removed: Arc::default() }
}

/// Which resources of a type a client wants.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    all: bool,
    names: Arc<Names>,
}

impl Wanted {
    fn contains(&self, name: &str) -> bool {
        self.all || self.names.contains(name)
    }

    fn is_empty(&self) -> bool {
        !self.all && self.names.is_empty()
    }

    /// What there is of it.
    fn select(&self, content: &TypeView) -> Arc<Selection> {
        match self.all {
            true => content.selections.all(&content.resources),
            false => content.selections.of(&self.names, &content.resources),
        }
    }
}

#[derive(Debug)]
struct LastResponse {
    nonce: Box<str>,
    names: Arc<[String]>,
    /// What the client said to it, if it did.
    answer: Option<Answer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Accepted,
    /// Rejected, or not answered in time.
    Refused,
}
