//! The core of a channel without a shell: bytes of the control plane in, snapshots out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use envoy_types::pb::google::protobuf::Any;
use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_lb::{
    Action, ChannelCore, Connectivity, Context, Counter, Decision, Helper, Input, Rpc, Snapshot, Subchannel,
    SubchannelId, SubchannelSpec,
};
use mainstay_xds::bootstrap::{AuthorityOptions, Bootstrap, DeltaMode, ServerConfig, ServerFeatures};
use mainstay_xds::client::{ClientSettings, Event, StreamId};
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::target::Target;
use mainstay_xds::{Choose, Time};
use prost::Message;

use crate::Result;
use crate::policy::USER;
use crate::servers::TARGET;

/// A channel core with a control plane that answers each first request from memory.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    core: ChannelCore<Handle>,
    shell: Shell,
    /// What the first request of a type is answered with; a type without an answer waits for [`Core::receive`].
    answers: BTreeMap<String, Bytes>,
    stream: Option<StreamId>,
    now: Time,
    is_delta: bool,
    pub(crate) snapshot: Option<Arc<Snapshot<Handle>>>,
    /// Connections, in the order in which they were made.
    connected: Vec<SubchannelId>,
    /// How many snapshots there were.
    pub(crate) published: usize,
}

/// A connection that is always there; its other half would be the shell's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handle(Arc<SubchannelId>);

/// Makes connections out of nothing.
#[derive(Clone, Debug, Default)]
struct Shell {
    to_connect: Vec<SubchannelId>,
}

/// The system's random numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random;

impl Core {
    /// A core that has asked for its resources and was given `answers`.
    pub(crate) fn new(answers: impl IntoIterator<Item = DiscoveryResponse>) -> Result<Self> {
        let answers = answers.into_iter().map(|answer| (answer.type_url.clone(), answer.encode_to_vec().into()));
        Self::start(DeltaMode::Off, answers.collect())
    }

    /// The same over delta, with resources that have versions of their own.
    pub(crate) fn over_delta(answers: impl IntoIterator<Item = DiscoveryResponse>) -> Result<Self> {
        let answers =
            answers.into_iter().map(|answer| (answer.type_url.clone(), as_delta(answer).encode_to_vec().into()));
        Self::start(DeltaMode::Required, answers.collect())
    }

    fn start(delta: DeltaMode, answers: BTreeMap<String, Bytes>) -> Result<Self> {
        let features = ServerFeatures { delta, ..ServerFeatures::default() };
        let server = ServerConfig { features, ..ServerConfig::insecure("127.0.0.1:1") };
        let authority = AuthorityOptions { servers: vec![server.clone()], ..AuthorityOptions::default() };
        let bootstrap = Bootstrap::builder().server(server).authority("bench", authority).build()?;
        let bootstrap = Arc::new(bootstrap);
        let target = Target::resolve(TARGET, &bootstrap)?;
        let mut core = Self {
            core: ChannelCore::new(&target, bootstrap, ClientSettings::default(), DepsSettings::default()),
            shell: Shell::default(),
            answers,
            stream: None,
            now: Time::ZERO,
            is_delta: delta != DeltaMode::Off,
            snapshot: None,
            connected: Vec::new(),
            published: 0,
        };
        core.settle();
        Ok(core)
    }

    /// Takes in a response and comes to rest.
    pub(crate) fn receive(&mut self, response: Bytes) {
        if let Some(stream) = self.stream {
            self.handle(Input::Xds(Event::Received(stream, response)));
            self.settle();
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.handle(Input::Timeout);
        self.settle();
    }

    /// Lets every connection that was asked for be made.
    pub(crate) fn connect_all(&mut self) {
        while !self.shell.to_connect.is_empty() {
            for id in std::mem::take(&mut self.shell.to_connect) {
                self.handle(Input::Connectivity(id, Connectivity::Connecting));
                self.handle(Input::Connectivity(id, Connectivity::Ready));
                self.connected.push(id);
            }
            self.settle();
        }
    }

    /// The same, and RPCs see each of them before the next one is made.
    pub(crate) fn connect_each(&mut self) {
        while !self.shell.to_connect.is_empty() {
            for id in std::mem::take(&mut self.shell.to_connect) {
                self.see(id, Connectivity::Connecting);
                self.see(id, Connectivity::Ready);
                self.connected.push(id);
            }
        }
    }

    /// Loses a connection that was made.
    pub(crate) fn lose(&mut self, index: usize) {
        self.see(self.nth(index), Connectivity::Idle);
    }

    /// Makes a lost connection again.
    pub(crate) fn bring_back(&mut self, index: usize) {
        self.see(self.nth(index), Connectivity::Connecting);
        self.see(self.nth(index), Connectivity::Ready);
    }

    fn nth(&self, index: usize) -> SubchannelId {
        self.connected[index % self.connected.len()]
    }

    fn see(&mut self, id: SubchannelId, state: Connectivity) {
        self.handle(Input::Connectivity(id, state));
        self.settle();
    }

    /// Has so many RPCs of different users wake what they need.
    pub(crate) fn wake(&mut self, rpcs: usize) {
        let Some(snapshot) = self.snapshot.clone() else { return };
        for user in 0..rpcs {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(USER), HeaderValue::from(user))]);
            let rpc = Rpc { path: "/service/method", headers: &headers };
            if let Decision::Wait(_, Some(wake)) = snapshot.decide(rpc, &mut Random) {
                self.handle(Input::Wake(wake));
            }
        }
        self.settle();
    }

    fn handle(&mut self, input: Input) {
        let mut cx = Context { now: self.now, choose: &mut Random, helper: &mut self.shell };
        self.core.handle(&mut cx, input);
    }

    fn settle(&mut self) {
        loop {
            let mut cx = Context { now: self.now, choose: &mut Random, helper: &mut self.shell };
            self.core.settle(&mut cx);
            let Some(action) = self.core.poll_action() else { return };
            match action {
                Action::OpenStream { stream, .. } => {
                    self.stream = Some(stream);
                    self.handle(Input::Xds(Event::Opened(stream)));
                }
                Action::Send(stream, message) => self.answer(stream, message),
                Action::Publish(snapshot) => {
                    self.snapshot = Some(snapshot);
                    self.published += 1;
                }
                Action::CloseStream(_)
                | Action::Load(_)
                | Action::Resolve(_)
                | Action::StopResolving(_)
                | Action::Probe { .. }
                | Action::Report(_) => {}
            }
        }
    }

    fn answer(&mut self, stream: StreamId, request: Bytes) {
        self.handle(Input::Xds(Event::Sent(stream)));
        // Acknowledgements of large responses are large; what is in them does not matter.
        if self.answers.is_empty() {
            return;
        }
        let type_url = match self.is_delta {
            true => DeltaDiscoveryRequest::decode(request).map(|request| request.type_url),
            false => DiscoveryRequest::decode(request).map(|request| request.type_url),
        };
        let Ok(type_url) = type_url else { return };
        if let Some(answer) = self.answers.remove(&type_url) {
            self.handle(Input::Xds(Event::Received(stream, answer)));
        }
    }
}

impl Helper for Shell {
    type Subchannel = Handle;

    fn create_subchannel(&mut self, id: SubchannelId, _: &SubchannelSpec) -> Handle {
        Handle(Arc::new(id))
    }

    fn connect(&mut self, id: SubchannelId) {
        self.to_connect.push(id);
    }

    fn release(&mut self, _: SubchannelId) {}

    fn request_reresolution(&mut self) {}

    fn circuit_breaker(&mut self, _: &str, _: &str) -> Arc<Counter> {
        Arc::new(Counter::new())
    }
}

impl Subchannel for Handle {
    fn is_ready(&self) -> bool {
        true
    }
}

impl Choose for Random {
    fn choose(&mut self, bound: u64) -> u64 {
        fastrand::u64(..bound)
    }
}

/// The same response over delta. Names are the first field of all resources that have one.
fn as_delta(response: DiscoveryResponse) -> DeltaDiscoveryResponse {
    #[derive(Clone, PartialEq, Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
    }
    let entry = |(n, any): (usize, Any)| Resource {
        name: Named::decode(any.value.as_slice()).map(|named| named.name).unwrap_or_default(),
        version: format!("{n:032x}"),
        resource: Some(any),
        ..Resource::default()
    };
    DeltaDiscoveryResponse {
        resources: response.resources.into_iter().enumerate().map(entry).collect(),
        type_url: response.type_url,
        nonce: response.nonce,
        ..DeltaDiscoveryResponse::default()
    }
}

/// A response with these resources.
pub(crate) fn response<M: Message + prost::Name>(
    version: &str,
    resources: impl IntoIterator<Item = M>,
) -> DiscoveryResponse {
    let any = |resource: M| Any { type_url: M::type_url(), value: resource.encode_to_vec() };
    DiscoveryResponse {
        version_info: version.to_owned(),
        nonce: version.to_owned(),
        type_url: M::type_url(),
        resources: resources.into_iter().map(any).collect(),
        ..Default::default()
    }
}
