//! Deliberate bugs, to see whether the invariants would notice.
//!
//! Each one makes a correct client look like a faulty one: what passes between the client and the world is changed on
//! its way, or the client runs with other rules than the model believes.

use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use prost::Message;

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// A resource does not exist after 5 s: as if its timer had begun before the request left (tonic-xds, grpc-node).
    EarlyAbsence,
    /// A resource that is not sent is awaited for ever (the timer is lost on reconnect).
    NoAbsence,
    /// A configuration is a mixture of two servers as soon as one has answered (A71's "config tear").
    TornConfig,
    /// A switch that cannot be completed holds updates back for ever.
    EndlessHold,
    /// Attempts follow each other without a pause (tonic-xds: `Ok(_) => reconnect`).
    NoBackoff,
    /// Attempts are a minute apart.
    SlowBackoff,
    /// The next server is never asked.
    NoFallback,
    /// `fallback_on_reachability_only` is not read.
    KnobIgnored,
    /// A deletion takes away what is in use (the rule before A88).
    DeletionDrops,
    /// A server that is silent for 3 s counts as lost.
    Impatience,
    /// The client does not hear that its request has left.
    SentUnheard,
    /// The node is never sent.
    NoNode,
    /// Requests carry no nonce.
    NoNonce,
    /// The version is never told.
    NoVersion,
    /// A NACK has no error, so it is an ACK.
    ErrorLost,
    /// The error of a NACK is repeated in later requests (the ACK of the next response rejects it).
    ErrorKept,
    /// The last name of every list is missing.
    NameLost,
    /// Every list has a name twice.
    NameTwice,
    /// A request is made and never sent: an ACK that is lost (tonic-xds: an actor waits for itself).
    RequestLost,
    /// Streams of servers that are not needed stay open (C-core: the fallback channel after recovery).
    StreamKept,
    /// What comes on a closed stream is taken for what comes on another one.
    LateData,
    /// The client does not hear that a stream is over.
    CloseUnheard,
    /// A response is not read: no read was armed.
    ResponseUnread,
    /// The client's deadlines do not wake it.
    TimeoutLost,
    /// The answer of a lookup does not arrive.
    LookupLost,
    /// RPCs go by the first configuration for ever.
    SnapshotKept,
    /// Circuit breakers count RPCs that have ended.
    CountKept,
    /// Connections are never released.
    ConnectionKept,
    /// The end of a channel ends nothing (tonic-xds: an actor that holds its own sender).
    ChannelKept,
}

impl Mutant {
    /// Every one.
    pub const ALL: [Self; 29] = [
        Self::EarlyAbsence,
        Self::NoAbsence,
        Self::TornConfig,
        Self::EndlessHold,
        Self::NoBackoff,
        Self::SlowBackoff,
        Self::NoFallback,
        Self::KnobIgnored,
        Self::DeletionDrops,
        Self::Impatience,
        Self::SentUnheard,
        Self::NoNode,
        Self::NoNonce,
        Self::NoVersion,
        Self::ErrorLost,
        Self::ErrorKept,
        Self::NameLost,
        Self::NameTwice,
        Self::RequestLost,
        Self::StreamKept,
        Self::LateData,
        Self::CloseUnheard,
        Self::ResponseUnread,
        Self::TimeoutLost,
        Self::LookupLost,
        Self::SnapshotKept,
        Self::CountKept,
        Self::ConnectionKept,
        Self::ChannelKept,
    ];

    /// Makes the client run by other rules than the model believes.
    pub(crate) fn bend(self, bootstrap: &mut Bootstrap, client: &mut ClientSettings, deps: &mut DepsSettings) {
        let ages = Duration::from_secs(3600);
        match self {
            Self::EarlyAbsence => client.resource_timeout = Duration::from_secs(5),
            Self::NoAbsence => (client.resource_timeout, client.transient_resource_timeout) = (ages, ages),
            Self::TornConfig => deps.switch_timeout = Duration::ZERO,
            Self::EndlessHold => deps.switch_timeout = ages,
            Self::NoBackoff => client.backoff_base = Duration::from_millis(1),
            Self::SlowBackoff => client.backoff_base = Duration::from_secs(60),
            Self::NoFallback => bootstrap.guards.fallback = false,
            Self::KnobIgnored => {
                let authorities = bootstrap.authorities.values_mut();
                authorities.for_each(|authority| authority.fallback_on_reachability_only = false);
            }
            Self::DeletionDrops => bootstrap.guards.data_error_handling = false,
            Self::Impatience => client.silent_stream_timeout = Some(Duration::from_secs(3)),
            _ => {}
        }
    }

    /// Changes a request on its way; `None` if it is lost.
    pub(crate) fn garble(self, request: Bytes, last_error: &mut Option<Bytes>) -> Option<Bytes> {
        let Ok(mut message) = DiscoveryRequest::decode(request.clone()) else { return Some(request) };
        match self {
            Self::NoNode => message.node = None,
            Self::NoNonce => message.response_nonce.clear(),
            Self::NoVersion => message.version_info.clear(),
            Self::ErrorLost => message.error_detail = None,
            Self::ErrorKept => {
                let kept = last_error.take().and_then(|bytes| DiscoveryRequest::decode(bytes).ok());
                if message.error_detail.is_some() {
                    *last_error = Some(request.clone());
                } else if let Some(kept) = kept {
                    message.error_detail = kept.error_detail;
                }
            }
            Self::NameLost => drop(message.resource_names.pop()),
            Self::NameTwice => message.resource_names.extend(message.resource_names.first().cloned()),
            Self::RequestLost if !message.response_nonce.is_empty() => return None,
            _ => return Some(request),
        }
        Some(message.encode_to_vec().into())
    }
}
