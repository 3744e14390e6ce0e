//! Metrics of subchannels (A94, S-76, S-77), and of their TLS handshakes (A118).
//!
//! Channels share connections, and each counts its own use of one: an attempt that it waited for, and the handshake in
//! it, however many others did; a connection as open while one of its subchannels has it; a disconnection when that subchannel loses it or lets
//! go of it. A channel that finds a connection open has made no attempt. So the sums of one channel agree with one
//! another whatever other channels do, and the sum over channels may exceed the number of sockets.
//!
//! An endpoint that moves to another locality, or is in several clusters, keeps its subchannel, so that no RPC waits for
//! the sake of a label. The labels are those of the first of its places; S-77 would have a new subchannel instead.

use std::sync::Arc;

use mainstay_lb::{Connectivity, Origin};
use mainstay_xds::resource::endpoint::Locality;
use opentelemetry::KeyValue;

use super::TARGET;
use super::builder::{BACKEND_SERVICE, DISCONNECT_ERROR, LOCALITY, Labels, SECURITY_LEVEL, Telemetry};
use super::handshakes::handshake_labels;
use crate::disconnect::{Cause, Disconnect};
use crate::guard;

/// Sees what a subchannel goes through. Dropped when it is let go.
pub(crate) struct SubchannelObserver(Option<Box<Observing>>);

struct Observing {
    telemetry: Telemetry,
    /// The target, and of the optional labels those of the endpoint.
    labels: Vec<KeyValue>,
    secure: bool,
    connecting: bool,
    open: bool,
}

impl SubchannelObserver {
    /// Of an idle subchannel of the channel to `target`.
    pub(super) fn new(telemetry: &Telemetry, target: &Arc<str>, origin: &Origin, secure: bool) -> Self {
        Self(telemetry.instruments().of_subchannels().then(|| {
            let mut labels = vec![KeyValue::new(TARGET, target.clone())];
            origin_labels(telemetry.labels(), Some(&origin.cluster), Some(&origin.locality), &mut labels);
            let (connecting, open) = (false, false);
            Box::new(Observing { telemetry: telemetry.clone(), labels, secure, connecting, open })
        }))
    }

    /// Of nobody.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Counts what a new state means.
    pub(crate) fn note(&mut self, state: &Connectivity, Cause { lost, handshake }: Cause) {
        let Some(this) = &mut self.0 else { return };
        let attempted = std::mem::replace(&mut this.connecting, *state == Connectivity::Connecting);
        let instruments = this.telemetry.instruments();
        if let (true, Some(handshake), Some(counter)) = (attempted, handshake, &instruments.client_handshakes) {
            let of_handshake = handshake_labels(this.telemetry.labels(), handshake);
            let labels: Vec<_> = this.labels.iter().cloned().chain(of_handshake).collect();
            counter.add(1, &labels);
        }
        match state {
            Connectivity::Connecting => {}
            Connectivity::Ready => {
                if let (true, Some(counter)) = (attempted, &instruments.attempts_succeeded) {
                    counter.add(1, &this.labels);
                }
                this.opened();
            }
            Connectivity::TransientFailure(_) => {
                if let (true, Some(counter)) = (attempted, &instruments.attempts_failed) {
                    counter.add(1, &this.labels);
                }
                this.closed(lost.unwrap_or(Disconnect::Unknown));
            }
            Connectivity::Idle => this.closed(lost.unwrap_or(Disconnect::Unknown)),
        }
    }
}

impl Drop for SubchannelObserver {
    fn drop(&mut self) {
        if let Some(this) = &mut self.0 {
            guard::shielded("telemetry", || this.closed(Disconnect::Shutdown));
        }
    }
}

impl Observing {
    fn opened(&mut self) {
        if !std::mem::replace(&mut self.open, true) {
            self.count_open(1);
        }
    }

    fn closed(&mut self, why: Disconnect) {
        if !std::mem::replace(&mut self.open, false) {
            return;
        }
        self.count_open(-1);
        if let Some(counter) = &self.telemetry.instruments().disconnections {
            let mut labels = self.labels.clone();
            if self.telemetry.labels().disconnect_error {
                labels.push(KeyValue::new(DISCONNECT_ERROR, name(why)));
            }
            counter.add(1, &labels);
        }
    }

    fn count_open(&self, change: i64) {
        if let Some(counter) = &self.telemetry.instruments().open_connections {
            let mut labels = self.labels.clone();
            if self.telemetry.labels().security_level {
                let level = if self.secure { "privacy_and_integrity" } else { "none" };
                labels.push(KeyValue::new(SECURITY_LEVEL, level));
            }
            counter.add(change, &labels);
        }
    }
}

/// Adds those of the optional labels of an endpoint that are on; empty if they are not known (S-63, S-64).
pub(super) fn origin_labels(
    on: Labels,
    cluster: Option<&Arc<str>>,
    locality: Option<&Locality>,
    labels: &mut Vec<KeyValue>,
) {
    if on.locality {
        let locality = locality.map_or_else(String::new, |locality| {
            let (region, zone, sub_zone) = (&locality.region, &locality.zone, &locality.sub_zone);
            format!("{{region={region:?}, zone={zone:?}, sub_zone={sub_zone:?}}}")
        });
        labels.push(KeyValue::new(LOCALITY, locality));
    }
    if on.backend_service {
        labels.push(KeyValue::new(BACKEND_SERVICE, cluster.cloned().unwrap_or_default()));
    }
}

/// The words of A94 (S-76).
fn name(why: Disconnect) -> &'static str {
    match why {
        Disconnect::GoAway(code) => {
            usize::try_from(code).ok().and_then(|code| GOAWAYS.get(code)).unwrap_or(&GOAWAYS[2])
        }
        Disconnect::Shutdown => "subchannel shutdown",
        Disconnect::Reset => "connection reset",
        Disconnect::TimedOut => "connection timed out",
        Disconnect::Aborted => "connection aborted",
        Disconnect::Socket => "socket error",
        Disconnect::Unknown => "unknown",
    }
}

/// By code. One that is unknown stands for an internal error (RFC 9113, section 7).
const GOAWAYS: [&str; 14] = [
    "GOAWAY NO_ERROR",
    "GOAWAY PROTOCOL_ERROR",
    "GOAWAY INTERNAL_ERROR",
    "GOAWAY FLOW_CONTROL_ERROR",
    "GOAWAY SETTINGS_TIMEOUT",
    "GOAWAY STREAM_CLOSED",
    "GOAWAY FRAME_SIZE_ERROR",
    "GOAWAY REFUSED_STREAM",
    "GOAWAY CANCEL",
    "GOAWAY COMPRESSION_ERROR",
    "GOAWAY CONNECT_ERROR",
    "GOAWAY ENHANCE_YOUR_CALM",
    "GOAWAY INADEQUATE_SECURITY",
    "GOAWAY HTTP_1_1_REQUIRED",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_of_a_connection_has_its_word() {
        let ends = [
            (Disconnect::GoAway(0), "GOAWAY NO_ERROR"),
            (Disconnect::GoAway(11), "GOAWAY ENHANCE_YOUR_CALM"),
            (Disconnect::GoAway(13), "GOAWAY HTTP_1_1_REQUIRED"),
            (Disconnect::GoAway(99), "GOAWAY INTERNAL_ERROR"),
            (Disconnect::Shutdown, "subchannel shutdown"),
            (Disconnect::Reset, "connection reset"),
            (Disconnect::TimedOut, "connection timed out"),
            (Disconnect::Aborted, "connection aborted"),
            (Disconnect::Socket, "socket error"),
            (Disconnect::Unknown, "unknown"),
        ];
        for (end, word) in ends {
            assert_eq!(name(end), word, "S-76");
        }
    }
}
