//! Deliberate bugs, to see whether the invariants would notice.
//!
//! Each one makes a correct client look like a faulty one: what passes between the client and the world is changed on
//! its way, or what the client shows of itself, or the client runs with other rules than the model believes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use mainstay_xds::Time;
use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::client::{ClientSettings, ResourceState, ResourceStatus, StreamId};
use mainstay_xds::deps::{
    ClusterChildren, ClusterConfig, ClusterError, ClusterErrorKind, ConfigError, DepsSettings, XdsConfig,
};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::resource::cluster::ClusterKind;
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
    /// A server whose silence is a transient error is given no more time than others (C-core: the 30 s are never used).
    TransientTimer,
    /// A better server is told a version although a lower one has overwritten what it sent (C-core).
    VersionKept,
    /// A fallback server is asked for one name only (C-core: a new watch on a shared channel).
    FirstNameOnly,
    /// What is first watched during fallback is never asked for on better servers (grpc-go).
    NamesFrozen,
    /// After a message that is no response nothing more is read (C-core, grpc-go).
    DeafAfterNonsense,
    /// A resource that was rejected once counts as rejected for ever (C-core: an equal one clears no error).
    AmbientKept,
    /// What was wrong with a cluster is told for ever (C-core: the old reason of a failed lookup).
    NoteKept,
    /// What is wrong with a cluster is not told (C-core: a note wiped by another that ends).
    NoteWiped,
    /// A leaf below two aggregates is a leaf of only one of them (C-core, grpc-go).
    SharedLeafLost,
    /// A cluster that is missing below an aggregate fails it (grpc-go, the rule before A74).
    AggregateFails,
    /// A new Listener goes with the routes of the old one (C-core: RDS under another name).
    RouteTear,
    /// A better server that is silent makes what a fallback server sent not exist (grpc-go).
    TimerWipes,
    /// A failed attempt at a better server fails the channel although the fallback server works (grpc-go).
    ErrorsLeak,
}

/// What a deliberate bug remembers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    /// The last request with an error.
    error: Option<Bytes>,
    /// The last version of each type that a server was told.
    versions: BTreeMap<(usize, String), String>,
    /// The names of each type that a stream was asked for.
    names: BTreeMap<(StreamId, String), Vec<String>>,
    /// Streams on which nonsense came.
    pub(crate) deaf: BTreeSet<StreamId>,
    /// Streams without an answer: their server, and since when they are open.
    pub(crate) silent: BTreeMap<StreamId, (usize, Time)>,
    /// A better server than the one in charge could not be reached in this step.
    pub(crate) better_is_down: bool,
    rejected: BTreeSet<ResourceKey>,
    notes: BTreeMap<Arc<str>, Arc<str>>,
    config: Option<Arc<XdsConfig>>,
}

/// What is in force, as the client shows it.
pub(crate) type InForce = Result<Arc<XdsConfig>, Arc<ConfigError>>;

impl Mutant {
    /// Every one.
    pub const ALL: [Self; 42] = [
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
        Self::TransientTimer,
        Self::VersionKept,
        Self::FirstNameOnly,
        Self::NamesFrozen,
        Self::DeafAfterNonsense,
        Self::AmbientKept,
        Self::NoteKept,
        Self::NoteWiped,
        Self::SharedLeafLost,
        Self::AggregateFails,
        Self::RouteTear,
        Self::TimerWipes,
        Self::ErrorsLeak,
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
            Self::TransientTimer => client.transient_resource_timeout = client.resource_timeout,
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

    /// Changes a request on its way to a server; `None` if it is lost. `fallen`: a lower server is in use as well.
    pub(crate) fn garble(
        self,
        (server, stream, fallen): (usize, StreamId, bool),
        request: Bytes,
        memory: &mut Memory,
    ) -> Option<Bytes> {
        let Ok(mut message) = DiscoveryRequest::decode(request.clone()) else { return Some(request) };
        let first = message.response_nonce.is_empty();
        match self {
            Self::NoNode => message.node = None,
            Self::NoNonce => message.response_nonce.clear(),
            Self::NoVersion => message.version_info.clear(),
            Self::ErrorLost => message.error_detail = None,
            Self::ErrorKept => {
                let kept = memory.error.take().and_then(|bytes| DiscoveryRequest::decode(bytes).ok());
                if message.error_detail.is_some() {
                    memory.error = Some(request.clone());
                } else if let Some(kept) = kept {
                    message.error_detail = kept.error_detail;
                }
            }
            Self::NameLost => drop(message.resource_names.pop()),
            Self::NameTwice => message.resource_names.extend(message.resource_names.first().cloned()),
            Self::RequestLost if !first => return None,
            Self::VersionKept => {
                let told = memory.versions.entry((server, message.type_url.clone())).or_default();
                if message.version_info.is_empty() {
                    message.version_info.clone_from(told);
                } else {
                    told.clone_from(&message.version_info);
                }
            }
            Self::FirstNameOnly if first && server > 0 => message.resource_names.truncate(1),
            Self::NamesFrozen => {
                let key = (stream, message.type_url.clone());
                match memory.names.get(&key) {
                    Some(asked) if fallen => message.resource_names.retain(|name| asked.contains(name)),
                    None if fallen && message.type_url != ResourceType::Listener.type_url() => return None,
                    _ => drop(memory.names.insert(key, message.resource_names.clone())),
                }
            }
            _ => return Some(request),
        }
        Some(message.encode_to_vec().into())
    }

    /// Changes what the client shows: resources in place, and what is in force by the answer. `place` is that of the
    /// server that a resource came from.
    pub(crate) fn distort(
        self,
        memory: &mut Memory,
        now: Time,
        dump: &mut [ResourceStatus],
        in_force: Option<InForce>,
        place: impl Fn(&ResourceStatus) -> Option<usize>,
    ) -> Option<InForce> {
        let leaks = std::mem::take(&mut memory.better_is_down);
        match self {
            Self::AmbientKept => {
                for status in dump.iter_mut().filter(|status| status.value.is_some()) {
                    if status.state != ResourceState::Acked {
                        memory.rejected.insert(status.resource.clone());
                    } else if memory.rejected.contains(&status.resource) {
                        status.state = ResourceState::Nacked;
                    }
                }
            }
            Self::TimerWipes => {
                let due = |since: Time| now.since(since) >= ClientSettings::default().resource_timeout;
                let hung: Vec<_> = memory.silent.values().filter(|(_, since)| due(*since)).map(|(at, _)| *at).collect();
                for status in dump.iter_mut() {
                    if place(status).is_some_and(|place| hung.iter().any(|better| *better < place)) {
                        (status.value, status.state) = (None, ResourceState::DoesNotExist);
                    }
                }
            }
            Self::ErrorsLeak if leaks => return Some(Err(Arc::new(ConfigError::NotApiListener("leaked".into())))),
            _ => {}
        }
        let Some(Ok(config)) = in_force else { return in_force };
        let before = memory.config.replace(config.clone());
        let mut bent = (*config).clone();
        match self {
            Self::RouteTear => {
                if let Some(before) = before.filter(|before| before.listener != bent.listener) {
                    bent.route_config = before.route_config.clone();
                    bent.virtual_host = before.virtual_host.clone();
                }
            }
            Self::NoteKept | Self::NoteWiped => {
                let all = bent.clusters.values_mut().filter_map(|cluster| cluster.as_mut().ok());
                all.for_each(|cluster| self.bend_note(memory, Arc::make_mut(cluster)));
            }
            Self::SharedLeafLost => lose_shared_leaves(&mut bent),
            Self::AggregateFails => fail_aggregates(&mut bent),
            _ => return Some(Ok(config)),
        }
        Some(Ok(Arc::new(bent)))
    }

    fn bend_note(self, memory: &mut Memory, cluster: &mut ClusterConfig) {
        // A kept note is shown for ever; a wiped one gives way to what was said when all was well.
        let clean = cluster.note.starts_with(CLEAN_NOTE);
        if clean == (self == Self::NoteWiped) {
            memory.notes.insert(cluster.name.clone(), cluster.note.clone());
        } else if let Some(note) = memory.notes.get(&cluster.name) {
            cluster.note = note.clone();
        }
    }
}

fn lose_shared_leaves(config: &mut XdsConfig) {
    let mut seen = BTreeSet::new();
    for cluster in config.clusters.values_mut().filter_map(|cluster| cluster.as_mut().ok()) {
        if let ClusterChildren::Aggregate(leaves) = &mut Arc::make_mut(cluster).children {
            leaves.retain(|leaf| seen.insert(leaf.clone()));
        }
    }
}

fn fail_aggregates(config: &mut XdsConfig) {
    let usable: BTreeSet<_> =
        config.clusters.iter().filter(|(_, cluster)| cluster.is_ok()).map(|(name, _)| name.clone()).collect();
    for (name, cluster) in &mut config.clusters {
        let misses = |cluster: &Arc<ClusterConfig>| match &cluster.cluster.kind {
            ClusterKind::Aggregate { clusters } => clusters.iter().any(|child| !usable.contains(&**child)),
            _ => false,
        };
        if cluster.as_ref().is_ok_and(misses) {
            let kind = ClusterErrorKind::NoLeaves(Vec::new());
            *cluster = Err(Arc::new(ClusterError { cluster: name.clone(), kind }));
        }
    }
}

/// How a note begins if nothing is wrong.
const CLEAN_NOTE: &str = "xDS node ID:";
