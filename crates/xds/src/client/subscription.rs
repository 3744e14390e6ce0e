//! What a server was asked about one type on one stream, and what it said about each name.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::wire::encode_names;
use super::{ErrorKind, ResourceError};
use crate::Time;

/// What the server knows about one type, and what it is owed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Subscription {
    /// The names in the last request.
    pub names: BTreeMap<Arc<str>, Listed>,
    /// The same names as they stand in a request, if they are many: each answer lists them all. Only in the variant that
    /// does so.
    pub encoded: Option<Arc<[u8]>>,
    /// Of the last response (P-30).
    pub nonce: Arc<str>,
    /// Responses without an answer, oldest first.
    pub answers: VecDeque<Answer>,
    /// Listed names whose value must be sent once more: the next request tells no version.
    pub again: BTreeSet<Arc<str>>,
    /// Those of them that were unsubscribed for that, and are subscribed by the next request (DX-8). Only in delta.
    pub back: BTreeSet<Arc<str>>,
    /// Names that requests left out, and of how many more responses the answer does. The server may not have read those
    /// requests: it ignores what crosses a response of its own (P-46). Only in the other variant.
    pub left_out: BTreeMap<Arc<str>, u8>,
}

/// One name of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Listed {
    /// Whether a response that leaves it out says something about it: not if that may be the answer to an older
    /// request (P-50).
    pub covered: bool,
    pub word: Word,
}

/// How far one name has come on this stream. There is no state in which nothing is known and nothing is waited for.
///
/// ```text
///            written                a value, taken into the cache
///   Asking ──────────► Waiting ──────────────────────────────────► Adopted
///     ▲                   │ an error, or the time is over             │
///     │                   ▼                                           │ replaced by
///     │                 Said ────────────── a value ─────────────►    │ another server
///     └───────────────────────────────────────────────────────────────┘
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Word {
    /// In the next request, or in the one on its way.
    Asking,
    /// The server has read of it, or could have, and owes an answer (P-55).
    Waiting(Waiting),
    /// Its value is in the cache. Whoever takes it out of there asks again, see `Stream::ask_again`.
    Adopted,
    /// Its last word is an error. It counts while the server is in charge, and from the moment it takes over.
    Said(Verdict),
}

/// The does-not-exist timer of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    /// When the request was written.
    pub since: Time,
    /// When the wait is over.
    pub until: Time,
    /// Whether it was prolonged because we ourselves were stopped.
    pub prolonged: bool,
}

/// What a server says of a resource instead of sending it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Verdict {
    pub error: Arc<ResourceError>,
    pub effect: Effect,
}

/// What a [`Verdict`] does to a value in use (C-22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    /// Nothing: silence takes no data away (A57).
    None,
    /// It stays in use, and something is wrong.
    Ambient,
    /// It is dropped.
    Drop,
}

/// The ACK or NACK of one response.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Answer {
    pub nonce: Arc<str>,
    /// The version in use after the response.
    pub version: Arc<str>,
    /// What is wrong with the response; `None` for an ACK.
    pub error: Option<String>,
}

impl Word {
    /// Whether the server says that there is no such resource, if only by its silence.
    pub(super) fn says_absent(&self) -> bool {
        let Self::Said(verdict) = self else { return false };
        match &verdict.error.kind {
            ErrorKind::DoesNotExist { .. } | ErrorKind::TimedOut { .. } | ErrorKind::Deleted => true,
            ErrorKind::FromServer { code, .. } => *code == NOT_FOUND,
            ErrorKind::Rejected { .. }
            | ErrorKind::NeedsDelta
            | ErrorKind::InvalidName(_)
            | ErrorKind::UnknownAuthority(_)
            | ErrorKind::Unreachable(_) => false,
        }
    }
}

impl Subscription {
    /// The names as they stand in a request.
    pub(super) fn encoded(&mut self) -> Arc<[u8]> {
        if let Some(encoded) = &self.encoded {
            return Arc::clone(encoded);
        }
        let encoded: Arc<[u8]> = encode_names(self.names.keys()).into();
        if self.names.len() >= MANY {
            self.encoded = Some(Arc::clone(&encoded));
        }
        encoded
    }

    /// A response must be answered.
    pub(super) fn owe(&mut self, answer: Answer) {
        self.nonce = answer.nonce.clone();
        if self.answers.len() == MAX_ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(answer);
    }

    /// The oldest response without an answer.
    pub(super) fn next_answer(&mut self) -> Option<Answer> {
        let answer = self.answers.pop_front();
        if self.answers.is_empty() {
            self.answers.shrink_to_fit(); // It may be long until the next one.
        }
        answer
    }
}

/// From so many names on they are kept as they stand in a request. Most clients have a few, and make them anew.
const MANY: usize = 16;

/// How many responses of one type may wait for their answer. A server that sends more while it does
/// not read is owed answers only to the latest ones; servers look at the last anyway (P-46).
const MAX_ANSWERS: usize = 64;

/// gRPC status code.
pub(super) const NOT_FOUND: u16 = 5;
