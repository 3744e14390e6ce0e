//! What a stream of the incremental variant says next.
//!
//! An answer to a response changes no subscription, and a change carries no nonce: servers drop changes together with an
//! answer that they take for an outdated one (DX-6).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Changes, Sending, Stream, Wanted};
use crate::client::subscription::Word;
use crate::client::timers::Timers;
use crate::client::wire::{Claim, DeltaRequest};
use crate::resource::ResourceType;

impl Stream {
    /// The next request, if one is due.
    pub(super) fn next_delta(
        &mut self,
        wanted: impl Fn(ResourceType, bool) -> Wanted,
        timers: &mut Timers,
    ) -> Option<DeltaRequest> {
        while let Some(resource_type) = self.due.pop_front() {
            if let Some(answer) = self.next_answer(resource_type) {
                return Some(answer);
            }
            let (mut changes, mut made) = (None, BTreeMap::new());
            if self.take_stale(resource_type) {
                let first = !self.asked(resource_type);
                let Wanted { names, claims, .. } = wanted(resource_type, first);
                if names.is_empty() && first {
                    continue; // P-76: an empty first request would be a wildcard.
                }
                made = self.make_claims(claims);
                let word = |name: &Arc<str>| if made.contains_key(name) { Word::Adopted } else { Word::Asking };
                changes = self.list(resource_type, &names, first, word, timers);
            } else {
                debug_assert!(
                    self.lists_all(resource_type, &wanted(resource_type, false).names),
                    "nobody told of a name"
                );
            }
            let claims = made;
            let Changes { added: mut subscribe, removed: mut unsubscribe } = changes.unwrap_or_default();
            let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { continue };
            // What must be sent again is unsubscribed and subscribed, in two messages and in this order: only that is
            // understood by all servers (DX-8).
            let back = std::mem::take(&mut subscription.back);
            let again: BTreeSet<_> = std::mem::take(&mut subscription.again).difference(&back).cloned().collect();
            let is_listed = |name: &Arc<str>| subscription.names.contains_key(name);
            unsubscribe.retain(|name| !back.contains(name)); // That was said already.
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
    /// who it is (DX-16) and shows that it is back (DX-22). It is one that the server had: of what it lacks it may say
    /// nothing.
    fn make_claims(&mut self, claims: Vec<Claim>) -> BTreeMap<Arc<str>, Arc<str>> {
        let mut made = BTreeMap::new();
        for Claim { name, authority, version } in claims {
            if let Some(version) = version
                && !self.owes.insert(authority)
            {
                made.insert(name, version);
            }
        }
        made
    }
}
