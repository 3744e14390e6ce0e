//! Responses as bytes, encoded once for all streams that are sent the same (FB-37).
//!
//! Of two responses with the same resources only the nonce differs, and fields of a protobuf message may come in any
//! order: so a response is a shared body and a nonce behind it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{BufMut, Bytes, BytesMut};

use crate::version::Version;

/// An encoded response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    /// Everything but the nonce.
    pub(crate) body: Bytes,
    /// Empty for a body that is sent as it stands.
    pub(crate) nonce: String,
}

impl Encoded {
    /// A message of gRPC, uncompressed: what is sent first, and what after it. The nonce comes first, so that the body is the
    /// bytes that all streams share; a small one is copied, as a frame of its own would cost more.
    pub(crate) fn into_frame(self) -> (Bytes, Bytes) {
        let mut head = BytesMut::with_capacity(MESSAGE_HEAD + NONCE_HEAD + self.nonce.len());
        head.put_bytes(0, MESSAGE_HEAD);
        let rest = if self.body.len() <= COPIED {
            self.write(&mut head);
            Bytes::new()
        } else {
            self.write_nonce(&mut head);
            self.body
        };
        let length = u32::try_from(head.len() - MESSAGE_HEAD + rest.len()).unwrap_or(u32::MAX);
        head[1..MESSAGE_HEAD].copy_from_slice(&length.to_be_bytes());
        (head.freeze(), rest)
    }

    pub(crate) fn write(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.body);
        self.write_nonce(buffer);
    }

    fn write_nonce(&self, buffer: &mut impl BufMut) {
        if !self.nonce.is_empty() {
            prost::encoding::string::encode(NONCE_FIELD, &self.nonce, buffer);
        }
    }
}

/// What all responses with the same content have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    /// Everything but the nonce.
    pub(crate) body: Bytes,
    /// The names of the resources and errors in it.
    pub(crate) names: Arc<[String]>,
    /// The names that it says do not exist any more.
    pub(crate) removed: Arc<[String]>,
}

/// What was encoded from one view of a type, by what is in it.
#[derive(Debug, Default)]
pub(crate) struct Encodings(Mutex<Bodies>);

#[derive(Debug, Default)]
struct Bodies {
    by_content: BTreeMap<Version, Arc<OnceLock<Shared>>>,
    bytes: usize,
}

impl Encodings {
    /// What has this content, and whether it had to be encoded.
    pub(crate) fn get(&self, content: Version, encode: impl FnOnce() -> Shared) -> (Shared, bool) {
        let place = Arc::clone(self.lock().by_content.entry(content).or_default());
        // Not under the lock: who wants the same waits for it, who wants something else does not.
        let mut is_new = false;
        let shared = place.get_or_init(|| {
            is_new = true;
            encode()
        });
        if is_new {
            let names = shared.names.iter().chain(&*shared.removed).map(|name| name.len() + size_of::<String>());
            let size = shared.body.len() + names.sum::<usize>();
            let mut bodies = self.lock();
            bodies.bytes += size;
            if bodies.bytes > MAX_BYTES {
                *bodies = Bodies::default();
            }
        }
        (shared.clone(), is_new)
    }

    /// A poisoned lock only means that another thread panicked between two whole changes.
    fn lock(&self) -> MutexGuard<'_, Bodies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Encodings {
    /// A copy of a view is made to be changed, so nothing of this applies to it.
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// `nonce` in `DiscoveryResponse` and in `DeltaDiscoveryResponse`.
const NONCE_FIELD: u32 = 5;
/// Bytes before a nonce: its key, and its length.
const NONCE_HEAD: usize = 11;
/// Bytes before a message: a flag, and its length.
const MESSAGE_HEAD: usize = 5;
/// A body that is no longer than this is copied.
const COPIED: usize = 1024;
/// Bodies are kept as long as their view, and clients choose which names they ask for: so there is a bound.
const MAX_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryResponse, DiscoveryResponse};
    use prost::Message;

    use super::*;

    #[test]
    fn a_body_is_encoded_once_fb37() {
        let encodings = Encodings::default();
        let (one, two) = (Version::of_all([]), Version::of_all([("a", Version::default())]));
        let shared = |text: &'static str| Shared { body: text.into(), ..Shared::default() };
        assert_eq!(encodings.get(one, || shared("one")), (shared("one"), true));
        assert_eq!(encodings.get(one, || shared("never encoded")), (shared("one"), false));
        assert_eq!(encodings.get(two, || shared("two")), (shared("two"), true));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let encodings = Encodings::default();
        for (n, kept) in [(0, 1), (1, 2), (2, 0)] {
            let version = Version::of_all([(n.to_string().as_str(), Version::default())]);
            encodings.get(version, || Shared { body: vec![0; MAX_BYTES / 2].into(), ..Shared::default() });
            assert_eq!(encodings.lock().by_content.len(), kept);
        }
    }

    #[test]
    fn a_message_is_whole_whether_its_body_is_copied_or_shared_fb37() {
        for size in [0, COPIED, COPIED + 1] {
            let message = DiscoveryResponse { version_info: "v".repeat(size), ..DiscoveryResponse::default() };
            let body: Bytes = message.encode_to_vec().into();
            let (head, rest) = Encoded { body: body.clone(), nonce: "n1".to_owned() }.into_frame();
            assert!(if body.len() > COPIED { rest.as_ptr() == body.as_ptr() } else { rest.is_empty() });
            let bytes = [head, rest].concat();
            let (head, rest) = bytes.split_at(MESSAGE_HEAD);
            assert_eq!(head[1..], u32::try_from(rest.len()).unwrap().to_be_bytes());
            assert_eq!(DiscoveryResponse::decode(rest), Ok(DiscoveryResponse { nonce: "n1".to_owned(), ..message }));
        }
    }

    #[test]
    fn a_nonce_behind_the_body_is_read_as_one() {
        let read = |body: Vec<u8>| {
            let mut bytes = Vec::new();
            Encoded { body: body.into(), nonce: "n1".to_owned() }.write(&mut bytes);
            bytes
        };
        let sotw = DiscoveryResponse { version_info: "v".to_owned(), ..DiscoveryResponse::default() };
        let delta = DeltaDiscoveryResponse { type_url: "t".to_owned(), ..DeltaDiscoveryResponse::default() };
        let (sotw_bytes, delta_bytes) = (read(sotw.encode_to_vec()), read(delta.encode_to_vec()));
        let nonce = "n1".to_owned();
        assert_eq!(DiscoveryResponse::decode(&*sotw_bytes), Ok(DiscoveryResponse { nonce: nonce.clone(), ..sotw }));
        assert_eq!(DeltaDiscoveryResponse::decode(&*delta_bytes), Ok(DeltaDiscoveryResponse { nonce, ..delta }));
    }
}
