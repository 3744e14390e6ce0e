//! The incremental variant: its messages, and what a stream says next.
//!
//! An answer to a response changes no subscription, and a change carries no nonce: servers drop changes together with an
//! answer that they take for an outdated one (DX-6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use prost::Message;

use super::{Any, INVALID_ARGUMENT, Named, ResourceError, Status, encode_node};
use crate::client::stream::{Changes, Sending, Stream, Wanted};
use crate::client::subscription::Word;
use crate::client::timers::Timers;
use crate::resource::ResourceType;

/// `envoy.service.discovery.v3.DeltaDiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub(in crate::client) struct DeltaDiscoveryResponse {
    #[prost(string, tag = "1")]
    pub system_version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<DeltaResource>,
    #[prost(string, tag = "4")]
    pub type_url: String,
    #[prost(string, tag = "5")]
    pub nonce: String,
    #[prost(string, repeated, tag = "6")]
    pub removed_resources: Vec<String>,
    /// `ControlPlane`, whose identifier is its first field.
    #[prost(message, optional, tag = "7")]
    pub control_plane: Option<Named>,
    #[prost(message, repeated, tag = "9")]
    pub resource_errors: Vec<ResourceError>,
}

/// `envoy.service.discovery.v3.Resource`, as far as a delta client uses it (DX-17).
#[derive(Clone, PartialEq, Message)]
pub(in crate::client) struct DeltaResource {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(message, optional, tag = "2")]
    pub resource: Option<Any>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, repeated, tag = "4")]
    pub aliases: Vec<String>,
}

/// What one `DeltaDiscoveryRequest` says: an answer, or a change of what is subscribed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::client) struct DeltaRequest {
    pub resource_type: ResourceType,
    pub subscribe: Vec<Arc<str>>,
    pub unsubscribe: Vec<Arc<str>>,
    /// What we have, by name: only in the first request of a type (P-71).
    pub claims: BTreeMap<Arc<str>, Arc<str>>,
    /// Of the response that is answered; empty for a change.
    pub nonce: Arc<str>,
    /// Text of a NACK.
    pub error: Option<String>,
    /// Whether it opens the stream, so that it must carry the node (P-70).
    pub first: bool,
}

impl DeltaRequest {
    pub(super) fn encode(self, node: impl FnOnce() -> core::Node) -> Bytes {
        let strings = |names: Vec<Arc<str>>| names.iter().map(|name| name.to_string()).collect();
        let claims = self.claims.iter().map(|(name, version)| (name.to_string(), version.to_string()));
        let request = DeltaDiscoveryRequest {
            node: self.first.then(|| encode_node(node())),
            type_url: self.resource_type.type_url().to_owned(),
            resource_names_subscribe: strings(self.subscribe),
            resource_names_unsubscribe: strings(self.unsubscribe),
            initial_resource_versions: claims.collect(),
            response_nonce: self.nonce.to_string(),
            error_detail: self.error.map(|message| Status { code: INVALID_ARGUMENT, message }),
        };
        request.encode_to_vec().into()
    }
}

/// `envoy.service.discovery.v3.DeltaDiscoveryRequest`. To the wire, bytes are the same as a message.
#[derive(Clone, PartialEq, Message)]
struct DeltaDiscoveryRequest {
    #[prost(bytes = "vec", optional, tag = "1")]
    node: Option<Vec<u8>>,
    #[prost(string, tag = "2")]
    type_url: String,
    #[prost(string, repeated, tag = "3")]
    resource_names_subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    resource_names_unsubscribe: Vec<String>,
    #[prost(btree_map = "string, string", tag = "5")]
    initial_resource_versions: BTreeMap<String, String>,
    #[prost(string, tag = "6")]
    response_nonce: String,
    #[prost(message, optional, tag = "7")]
    error_detail: Option<Status>,
}

impl Stream {
    /// The next request, if one is due.
    pub(in crate::client) fn next_delta(
        &mut self,
        wanted: impl Fn(ResourceType, bool) -> Wanted,
        timers: &mut Timers,
    ) -> Option<DeltaRequest> {
        while let Some(resource_type) = self.due.pop_front() {
            if let Some(answer) = self.next_answer(resource_type) {
                return Some(answer);
            }
            let first = !self.asked(resource_type);
            let Wanted { names, claims, .. } = wanted(resource_type, first);
            if names.is_empty() && first {
                continue; // P-76: an empty first request would be a wildcard.
            }
            let claims = self.make_claims(claims);
            let word = |name: &Arc<str>| if claims.contains_key(name) { Word::Adopted } else { Word::Asking };
            let changes = self.list(resource_type, &names, first, word, timers);
            let Changes { added: mut subscribe, removed: mut unsubscribe } = changes.unwrap_or_default();
            let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { continue };
            // What must be sent again is unsubscribed and subscribed, in two messages and in this order: only that is
            // understood by all servers (DX-8).
            let back = std::mem::take(&mut subscription.back);
            let again: BTreeSet<_> = std::mem::take(&mut subscription.again).difference(&back).cloned().collect();
            let is_listed = |name: &Arc<str>| subscription.names.contains_key(name);
            subscribe.extend(back.into_iter().filter(is_listed));
            unsubscribe.extend(again.iter().cloned());
            subscription.back = again;
            if !subscription.back.is_empty() {
                self.due.push_back(resource_type);
            }
            if subscribe.is_empty() && unsubscribe.is_empty() {
                continue;
            }
            self.sending = Some(Sending { resource_type, asks: subscribe.clone() });
            self.claimed |= !claims.is_empty();
            let (nonce, error, first) = (Arc::default(), None, self.greet());
            return Some(DeltaRequest { resource_type, subscribe, unsubscribe, claims, nonce, error, first });
        }
        None
    }

    /// The answer to the oldest response of a type that has none: a message of its own (DX-6).
    fn next_answer(&mut self, resource_type: ResourceType) -> Option<DeltaRequest> {
        let subscription = self.subscriptions.get_mut(&resource_type)?;
        // P-77: a nonce is mandatory. Without one there is nothing to answer.
        let answer = std::iter::from_fn(|| subscription.next_answer()).find(|answer| !answer.nonce.is_empty())?;
        self.due.push_front(resource_type); // There may be more of them, or changes.
        self.sending = Some(Sending { resource_type, asks: Vec::new() });
        Some(DeltaRequest {
            resource_type,
            subscribe: Vec::new(),
            unsubscribe: Vec::new(),
            claims: BTreeMap::new(),
            nonce: answer.nonce,
            error: answer.error,
            first: false,
        })
    }

    /// Of what may be claimed, all but one resource of each authority: the server must owe an answer, by which it says
    /// who it is (DX-16) and shows that it is back (DX-22).
    fn make_claims(&mut self, claims: Vec<super::Claim>) -> BTreeMap<Arc<str>, Arc<str>> {
        let mut made = BTreeMap::new();
        for claim in claims {
            let owes_nothing_yet = self.owes.insert(claim.authority);
            if let Some(version) = claim.version.filter(|_| !owes_nothing_yet) {
                made.insert(claim.name, version);
            }
        }
        made
    }
}
