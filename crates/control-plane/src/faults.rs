//! Things that go wrong at a server on purpose. All of them can be set and lifted while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::google::protobuf::Any;
use tokio::sync::watch;
use tonic::Code;

use crate::snapshot::Body;
use crate::store::ControlPlane;
use crate::type_url::TypeUrl;
use crate::version::Version;
use crate::view::{Entry, View};

/// The faults of one server; see [`Server::faults`](crate::Server::faults).
///
/// ```
/// use mainstay_control_plane::{ControlPlane, Corruption, TypeUrl};
/// use tonic::Code;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let server = ControlPlane::new().serve("127.0.0.1:0").await?;
/// server.faults().hold(TypeUrl::ENDPOINTS); // no EDS response until `release`
/// server.faults().corrupt(TypeUrl::CLUSTER, "greeter", Corruption::Truncated(3));
/// server.faults().resource_error(TypeUrl::LISTENER, "gone", Code::NotFound, "no such listener");
/// server.faults().heal(); // all is well again
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Faults {
    state: watch::Sender<FaultState>,
    control_plane: ControlPlane,
}

impl Faults {
    pub(crate) fn new(control_plane: ControlPlane) -> Self {
        Self { state: watch::Sender::new(FaultState::default()), control_plane }
    }

    /// Accepts connections, old and new, and never says a word on them: not even HTTP/2 settings. What clients send
    /// meanwhile is read when the fault is lifted.
    pub fn black_hole(&self, on: bool) {
        self.state.send_modify(|state| state.black_hole = on);
    }

    /// Accepts streams and reads requests, and never responds.
    pub fn silent(&self, on: bool) {
        self.state.send_modify(|state| state.silent = on);
    }

    /// Says nothing about names that are not here, as most control planes do: a client has to wait until it believes it.
    /// Without this a client that reads `resource_errors` is told of Listeners at once.
    pub fn hide_absence(&self, on: bool) {
        self.state.send_modify(|state| state.hides_absence = on);
    }

    /// Knows no incremental variant, as most control planes of gRPC.
    pub fn refuse_delta(&self, on: bool) {
        self.state.send_modify(|state| state.refuses_delta = on);
    }

    /// Sends the headers of a new stream only with its first response, as some servers do.
    pub fn late_headers(&self, on: bool) {
        self.state.send_modify(|state| state.late_headers = on);
    }

    /// Closes every stream with this status once it has had a request and `responses` responses. With 0 a stream ends
    /// before any response.
    pub fn close_streams_after(&self, responses: u64, status: Code) {
        self.state.send_modify(|state| state.close_after = Some((responses, status)));
    }

    /// Lifts [`close_streams_after`](Self::close_streams_after).
    pub fn keep_streams(&self) {
        self.state.send_modify(|state| state.close_after = None);
    }

    /// Stops the server abruptly as soon as a request names this resource.
    pub fn die_on_request(&self, type_url: TypeUrl, name: impl Into<String>) {
        let key = (type_url, name.into());
        self.state.send_modify(|state| {
            state.deadly.insert(key);
        });
    }

    /// Sends no response of this type until [`release`](Self::release).
    pub fn hold(&self, type_url: TypeUrl) {
        self.state.send_modify(|state| {
            state.held.insert(type_url);
        });
    }

    /// Opens the gate that [`hold`](Self::hold) shut.
    pub fn release(&self, type_url: &TypeUrl) {
        self.state.send_modify(|state| {
            state.held.remove(type_url);
        });
    }

    /// Sends every response of this type this much later; zero lifts it.
    pub fn delay(&self, type_url: TypeUrl, by: Duration) {
        self.state.send_modify(|state| match by {
            Duration::ZERO => drop(state.delays.remove(&type_url)),
            by => drop(state.delays.insert(type_url, by)),
        });
    }

    /// Sends broken bytes for this resource, at once and until [`mend`](Self::mend).
    pub fn corrupt(&self, type_url: TypeUrl, name: impl Into<String>, corruption: Corruption) {
        self.replace(type_url, name.into(), Replacement::Corrupted(corruption));
    }

    /// Sends an error for this resource (TP3), at once and until [`mend`](Self::mend).
    pub fn resource_error(&self, type_url: TypeUrl, name: impl Into<String>, code: Code, message: impl Into<String>) {
        self.replace(type_url, name.into(), Replacement::Error { code, message: message.into() });
    }

    /// Lifts [`corrupt`](Self::corrupt) and [`resource_error`](Self::resource_error); the resource is sent again.
    pub fn mend(&self, type_url: &TypeUrl, name: &str) {
        self.state.send_modify(|state| {
            state.replaced.remove(&(type_url.clone(), name.to_owned()));
        });
    }

    /// Lifts every fault.
    pub fn heal(&self) {
        self.state.send_modify(|state| *state = FaultState::default());
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<FaultState> {
        self.state.subscribe()
    }

    fn replace(&self, type_url: TypeUrl, name: String, replacement: Replacement) {
        let stamp = self.control_plane.new_stamp();
        self.state.send_modify(|state| {
            state.replaced.insert((type_url, name), (stamp, replacement));
        });
    }
}

/// How a resource is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// These bytes are sent in its place; a resource that is in no snapshot appears.
    Bytes(Vec<u8>),
    /// Only so many of its bytes are sent.
    Truncated(usize),
}

/// The faults in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultState {
    pub(crate) black_hole: bool,
    pub(crate) late_headers: bool,
    pub(crate) hides_absence: bool,
    refuses_delta: bool,
    silent: bool,
    close_after: Option<(u64, Code)>,
    deadly: BTreeSet<(TypeUrl, String)>,
    held: BTreeSet<TypeUrl>,
    delays: BTreeMap<TypeUrl, Duration>,
    replaced: BTreeMap<(TypeUrl, String), (u64, Replacement)>,
}

#[derive(Clone, Debug)]
enum Replacement {
    Corrupted(Corruption),
    Error { code: Code, message: String },
}

impl FaultState {
    /// Whether there is an incremental variant.
    pub(crate) fn speaks_delta(&self) -> bool {
        !self.refuses_delta
    }

    /// Whether responses of this type must wait for the test.
    pub(crate) fn holds(&self, type_url: &TypeUrl) -> bool {
        self.silent || self.held.contains(type_url)
    }

    /// How long responses of this type must wait.
    pub(crate) fn delay(&self, type_url: &TypeUrl) -> Option<Duration> {
        self.delays.get(type_url).copied()
    }

    /// Whether a request for these names kills the server.
    pub(crate) fn is_deadly(&self, type_url: &TypeUrl, names: &[String]) -> bool {
        self.deadly.iter().any(|(deadly, name)| deadly == type_url && names.contains(name))
    }

    /// Whether a stream that had so many responses ends now, and how.
    pub(crate) fn closes_after(&self, responses: u64) -> Option<Code> {
        self.close_after.filter(|(limit, _)| responses >= *limit).map(|(_, status)| status)
    }

    /// What is served instead of `view`.
    pub(crate) fn distort(&self, view: Option<Arc<View>>) -> Option<Arc<View>> {
        if self.replaced.is_empty() {
            return view;
        }
        let view = view.unwrap_or_default();
        let replacements = self.replaced.iter().filter_map(|((type_url, name), (stamp, replacement))| {
            let body = match replacement {
                Replacement::Error { code, message } => Body::Error { code: *code, message: message.clone() },
                Replacement::Corrupted(Corruption::Bytes(bytes)) => message(type_url, bytes.clone()),
                Replacement::Corrupted(Corruption::Truncated(length)) => {
                    let Body::Message(any) = &view.get(type_url)?.resources.get(name)?.body else { return None };
                    message(type_url, any.value.iter().take(*length).copied().collect())
                }
            };
            let version = Version::of(&body);
            Some((type_url, name.as_str(), Entry { stamp: *stamp, version, given: None, body }))
        });
        Some(Arc::new(view.overlay(replacements)))
    }
}

fn message(type_url: &TypeUrl, value: Vec<u8>) -> Body {
    Body::Message(Any { type_url: type_url.as_str().to_owned(), value })
}
