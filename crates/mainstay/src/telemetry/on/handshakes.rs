//! The labels of TLS handshakes, on channels and servers (A118, S-78).

use opentelemetry::KeyValue;

use super::builder::{HANDSHAKE_RESUMED, Labels};
use crate::tls::Handshake;

/// How it ended, and, if that label is on and it came to that, whether it went on with an earlier session.
pub(super) fn handshake_labels(on: Labels, handshake: Handshake) -> impl Iterator<Item = KeyValue> {
    let resumed = handshake.resumed.filter(|_| on.handshake_resumed).map(|resumed| {
        let kind = if resumed { "RESUMED_HANDSHAKE" } else { "FULL_HANDSHAKE" };
        KeyValue::new(HANDSHAKE_RESUMED, kind)
    });
    [KeyValue::new(HANDSHAKE_RESULT, handshake.result.name())].into_iter().chain(resumed)
}

const HANDSHAKE_RESULT: &str = "grpc.tls.handshake.result";
