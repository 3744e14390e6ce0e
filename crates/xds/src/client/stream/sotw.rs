//! What a stream of the state-of-the-world variant says next.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Sending, Stream, Wanted};
use crate::client::subscription::{Subscription, Word};
use crate::client::timers::Timers;
use crate::client::wire::SotwRequest;
use crate::resource::ResourceType;

impl Stream {
    /// The next request, if one is due. It lists all that is wanted, and may be an answer as well (P-46).
    pub(super) fn next_sotw(
        &mut self,
        wanted: impl Fn(ResourceType) -> Wanted,
        versions: &mut BTreeMap<ResourceType, Arc<str>>,
        timers: &mut Timers,
    ) -> Option<SotwRequest> {
        while let Some(resource_type) = self.due.pop_front() {
            if resource_type == ResourceType::EndpointGlob {
                continue; // GC-2: see `XdsClient::refuse_globs`.
            }
            let (mut changed, mut held_back) = (None, Vec::new());
            if self.take_stale(resource_type) || self.leaves_out(resource_type) {
                let Wanted { mut names, current, .. } = wanted(resource_type);
                held_back = self.leave_out_once_more(resource_type, &mut names);
                let first = !self.asked(resource_type);
                if names.is_empty() && first {
                    continue; // P-48: an empty first list would be a wildcard.
                }
                if first && !current {
                    versions.remove(&resource_type);
                }
                let resumes = first && versions.get(&resource_type).is_some_and(|version| !version.is_empty());
                let word = |_: &Arc<str>| if resumes { Word::Adopted } else { Word::Asking };
                changed = self.list(resource_type, &names, first, word, timers);
            } else {
                debug_assert!(self.lists_all(resource_type, &wanted(resource_type).names), "nobody told of a name");
            }
            let version = versions.get(&resource_type).cloned().unwrap_or_default();
            let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { continue };
            let removed = changed.iter().flat_map(|changes| &changes.removed);
            let removed = removed.filter(|name| !held_back.contains(name));
            subscription.left_out.extend(removed.map(|name| (name.clone(), CROSSINGS)));
            let answer = subscription.next_answer();
            let repeats = !subscription.again.is_empty();
            if answer.is_none() && changed.is_none() && !repeats {
                continue;
            }
            let mut asks = changed.unwrap_or_default().added;
            let is_last = subscription.answers.is_empty();
            if is_last {
                asks.extend(std::mem::take(&mut subscription.again)); // Servers look at the latest nonce only (P-46).
            }
            let (version, nonce, error) = match answer {
                Some(answer) => (answer.version, answer.nonce, answer.error),
                None => (version, subscription.nonce.clone(), None),
            };
            // An answer may have waited: a version that does not count any more is not told by it either (D-10).
            let is_forgotten = !versions.contains_key(&resource_type);
            let version = if repeats || is_forgotten { Arc::default() } else { version };
            let names = subscription.encoded();
            if !held_back.is_empty() {
                self.mark(resource_type);
            } else if !is_last {
                self.schedule(resource_type);
            }
            self.sending = Some(Sending { resource_type, asks });
            let first = self.greet();
            return Some(SotwRequest { resource_type, names, version, nonce, error, first });
        }
        None
    }

    /// Whether names were left out of requests, so that the next answer may have to leave them out again.
    fn leaves_out(&self, resource_type: ResourceType) -> bool {
        self.subscriptions.get(&resource_type).is_some_and(|subscription| !subscription.left_out.is_empty())
    }

    /// The answer to a response takes names off the list again that were off it, are back, and have not come since: the
    /// server may have ignored the request without them, which crossed its response (P-46). Then it believes that we
    /// have what we forgot (P-95), and would never send it. The request after this one lists them, and asks. Answers with
    /// those names. This answer may cross another response; so it is done a few times if need be.
    fn leave_out_once_more(&mut self, resource_type: ResourceType, names: &mut Vec<Arc<str>>) -> Vec<Arc<str>> {
        let subscription = self.subscriptions.get_mut(&resource_type).filter(|asked| !asked.answers.is_empty());
        let Some(subscription) = subscription else { return Vec::new() };
        let Subscription { names: listed, left_out, answers, .. } = &mut **subscription;
        left_out.retain(|name, _| match listed.get(name).map(|listed| &listed.word) {
            Some(Word::Adopted | Word::Said(_)) => false,
            Some(Word::Asking | Word::Waiting(_)) | None => true,
        });
        let held_back = names.extract_if(.., |name| left_out.contains_key(name)).collect();
        // Of several answers only the last one counts: the server has said more since the others.
        if answers.len() == 1 && !resource_type.full_state() {
            left_out.retain(|_, crossings| {
                *crossings -= 1;
                *crossings > 0
            });
        }
        held_back
    }

    /// All that the server has of a type came. Of what is not among it, it does not believe that we have it: it has none,
    /// or has read that it was left out.
    pub(in crate::client) fn forget_left_out(&mut self, resource_type: ResourceType, came: impl Fn(&Arc<str>) -> bool) {
        if let Some(subscription) = self.subscriptions.get_mut(&resource_type) {
            subscription.left_out.retain(|name, _| came(name));
        }
    }
}

/// So many responses in a row may cross the request that leaves a name out.
const CROSSINGS: u8 = 3;
