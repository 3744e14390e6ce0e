//! What callers may do to a server.

use std::time::Duration;

use crate::http2::Http2Settings;
use crate::keep_alive::KeepAlive;

/// Bounds on what callers may do to a server (SV-24).
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// For TLS and the first word of HTTP/2 together.
    pub(super) handshake_timeout: Duration,
    /// Handshakes at the same time, on all addresses.
    pub(super) max_handshakes: usize,
    pub(super) max_concurrent_streams: u32,
    pub(super) http2: Http2Settings,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(20),
            max_handshakes: 1024,
            max_concurrent_streams: 100,
            http2: Http2Settings {
                max_header_list_size: 16 << 10,
                keep_alive: Some(KeepAlive { interval: Duration::from_secs(7200), timeout: Duration::from_secs(20) }),
                ..Http2Settings::default()
            },
        }
    }
}
