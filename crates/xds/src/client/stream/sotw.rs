//! What a stream of the state-of-the-world variant says next.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Sending, Stream, Wanted};
use crate::client::subscription::Word;
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
            let Wanted { names, current, .. } = wanted(resource_type);
            let first = !self.asked(resource_type);
            if names.is_empty() && first {
                continue; // P-48: an empty first list would be a wildcard.
            }
            if first && !current {
                versions.remove(&resource_type);
            }
            let version = versions.get(&resource_type).cloned().unwrap_or_default();
            let resumes = first && !version.is_empty();
            let word = |_: &Arc<str>| if resumes { Word::Adopted } else { Word::Asking };
            let changed = self.list(resource_type, &names, first, word, timers);
            let Some(subscription) = self.subscriptions.get_mut(&resource_type) else { continue };
            let answer = subscription.next_answer();
            let repeats = !subscription.again.is_empty();
            if answer.is_none() && changed.is_none() && !repeats {
                continue;
            }
            let mut asks = changed.unwrap_or_default().added;
            if subscription.answers.is_empty() {
                asks.extend(std::mem::take(&mut subscription.again)); // Servers look at the latest nonce only (P-46).
            } else {
                self.due.push_back(resource_type);
            }
            let (version, nonce, error) = match answer {
                Some(answer) => (answer.version, answer.nonce, answer.error),
                None => (version, subscription.nonce.clone(), None),
            };
            let version = if repeats { Arc::default() } else { version };
            self.sending = Some(Sending { resource_type, asks });
            let first = self.greet();
            return Some(SotwRequest { resource_type, names, version, nonce, error, first });
        }
        None
    }
}
