//! The core of a channel without a shell: bytes of the control plane in, snapshots out.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::Any;
use mainstay_lb::{
    Action, ChannelCore, Connectivity, Context, Counter, Helper, Input, Snapshot, Subchannel, SubchannelId,
    SubchannelSpec,
};
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{ClientSettings, Event, StreamId};
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::target::Target;
use mainstay_xds::{Choose, Time};
use prost::Message;

use crate::Result;
use crate::servers::TARGET;

/// A channel core with a control plane that answers each first request from memory.
#[derive(Clone, Debug)]
pub(crate) struct Core {
    core: ChannelCore<Handle>,
    shell: Shell,
    /// What the first request of a type is answered with; a type without an answer waits for [`Core::receive`].
    answers: BTreeMap<String, Bytes>,
    stream: Option<StreamId>,
    pub(crate) snapshot: Option<Arc<Snapshot<Handle>>>,
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
        let bootstrap = Arc::new(Bootstrap::builder().server(ServerConfig::insecure("127.0.0.1:1")).build()?);
        let target = Target::resolve(TARGET, &bootstrap)?;
        let answers = answers.into_iter().map(|answer| (answer.type_url.clone(), answer.encode_to_vec().into()));
        let mut core = Self {
            core: ChannelCore::new(&target, bootstrap, ClientSettings::default(), DepsSettings::default()),
            shell: Shell::default(),
            answers: answers.collect(),
            stream: None,
            snapshot: None,
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

    /// Lets every connection that was asked for be made.
    pub(crate) fn connect_all(&mut self) {
        while !self.shell.to_connect.is_empty() {
            for id in std::mem::take(&mut self.shell.to_connect) {
                self.handle(Input::Connectivity(id, Connectivity::Connecting));
                self.handle(Input::Connectivity(id, Connectivity::Ready));
            }
            self.settle();
        }
    }

    fn handle(&mut self, input: Input) {
        let mut cx = Context { now: Time::ZERO, choose: &mut Random, helper: &mut self.shell };
        self.core.handle(&mut cx, input);
    }

    fn settle(&mut self) {
        loop {
            let mut cx = Context { now: Time::ZERO, choose: &mut Random, helper: &mut self.shell };
            self.core.settle(&mut cx);
            let Some(action) = self.core.poll_action() else { return };
            match action {
                Action::OpenStream { stream, .. } => {
                    self.stream = Some(stream);
                    self.handle(Input::Xds(Event::Opened(stream)));
                }
                Action::Send(stream, message) => self.answer(stream, message),
                Action::Publish(snapshot) => self.snapshot = Some(snapshot),
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
        let Ok(request) = DiscoveryRequest::decode(request) else { return };
        if let Some(answer) = self.answers.remove(&request.type_url) {
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
