//! One client: the core of a channel as in production, with the shell in the place of sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_lb::{
    Action, ChannelCore, Connectivity, Context, Counter, Helper, Input, Outlook, Subchannel, SubchannelId,
    SubchannelSpec,
};
use mainstay_sim::Seeded;
use mainstay_xds::Time;
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{ClientSettings, Intern, Parsed, Protocol, Report, StreamId};
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::resource::{ParseContext, Resource, ResourceType};
use mainstay_xds::target::Target;

use crate::setup::edition_of;

/// A client of the fleet.
#[derive(Debug)]
pub(crate) struct Client {
    core: ChannelCore<Handle>,
    choose: Seeded,
    own: Own,
    pub(crate) links: BTreeMap<StreamId, Link>,
    /// For when it is told that time has passed.
    pub(crate) wake_at: Option<Time>,
    pub(crate) seen: Life,
}

/// Where a stream leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The control plane, by index.
    pub(crate) plane: usize,
    /// Whether it is of the incremental variant.
    pub(crate) delta: bool,
}

/// What became of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Life {
    pub(crate) began: Option<Time>,
    /// When it could first send RPCs.
    pub(crate) served: Option<Time>,
    /// When its RPCs first failed after that.
    pub(crate) failed: Option<Time>,
    /// Whether they fail now.
    pub(crate) fails: bool,
    /// The edition in force, and since when.
    pub(crate) edition: Option<(u32, Time)>,
    /// The control planes that it was connected to, by index.
    pub(crate) met: BTreeSet<usize>,
    /// How often it was told that a resource does not exist.
    pub(crate) absences: u32,
    /// How often a response was rejected.
    pub(crate) nacks: u32,
    pub(crate) fallbacks: u32,
    /// How often in a row it was refused, at the most, and now.
    pub(crate) refused: u32,
    pub(crate) refused_now: u32,
}

/// What a client wants done.
#[derive(Debug)]
pub(crate) enum Wish {
    Open(StreamId, Arc<ServerConfig>, Duration, Protocol),
    Send(StreamId, Bytes),
    Probe(StreamId, bool),
    Close(StreamId),
    /// A connection to an endpoint.
    Connect(SubchannelId),
    /// In words, for whoever looks at this one client.
    Say(String),
}

/// The connections of a client to its endpoints, which always work, and what they asked for.
#[derive(Debug, Default)]
struct Own {
    asked: Vec<SubchannelId>,
    counters: BTreeMap<(String, String), Arc<Counter>>,
}

/// Parsed resources that the clients of the fleet share, as those of a process do.
#[derive(Debug, Default)]
pub(crate) struct Parsings(BTreeMap<(ResourceType, Bytes), Parsed>);

struct Wires<'a> {
    own: &'a mut Own,
    parsed: &'a mut Parsings,
}

/// A connection to an endpoint, as pickers see it: it is ready once it is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle(SubchannelId);

impl Client {
    pub(crate) fn new(target: &Target, bootstrap: Arc<Bootstrap>, settings: ClientSettings, choose: Seeded) -> Self {
        let deps = DepsSettings { federation: bootstrap.guards.federation, ..DepsSettings::default() };
        Self {
            core: ChannelCore::new(target, bootstrap, settings, deps),
            choose,
            own: Own::default(),
            links: BTreeMap::new(),
            wake_at: None,
            seen: Life::default(),
        }
    }

    /// Takes in what happened, if anything, and answers what is to be done.
    pub(crate) fn step(&mut self, now: Time, parsed: &mut Parsings, input: Option<Input>) -> Vec<Wish> {
        let Self { core, choose, own, seen, .. } = self;
        seen.began.get_or_insert(now);
        let mut wires = Wires { own, parsed };
        let mut cx = Context { now, choose, helper: &mut wires };
        if let Some(input) = input {
            core.handle(&mut cx, input);
        }
        if core.settle(&mut cx)
            && let Some(Ok(config)) = core.config()
            && let Some(edition) = edition_of(config.clusters.keys().map(AsRef::as_ref))
            && seen.edition.is_none_or(|(before, _)| before != edition)
        {
            seen.edition = Some((edition, now));
        }
        let mut wishes: Vec<_> = wires.own.asked.drain(..).map(Wish::Connect).collect();
        while let Some(action) = core.poll_action() {
            match action {
                Action::OpenStream { stream, server, connect_timeout, protocol } => {
                    wishes.push(Wish::Open(stream, server, connect_timeout, protocol));
                }
                Action::Send(stream, message) => wishes.push(Wish::Send(stream, message)),
                Action::Probe { stream, call } => wishes.push(Wish::Probe(stream, call)),
                Action::CloseStream(stream) => wishes.push(Wish::Close(stream)),
                Action::Report(report) => {
                    seen.note(&report);
                    wishes.push(Wish::Say(report.to_string()));
                }
                Action::Publish(snapshot) => seen.look(now, snapshot.outlook()),
                // There are neither load reports nor DNS clusters in the setup.
                Action::Load(_) | Action::Resolve(_) | Action::StopResolving(_) => {}
            }
        }
        wishes
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.core.next_deadline()
    }

    /// A connection to an endpoint goes one step on.
    pub(crate) fn connected(&mut self, now: Time, parsed: &mut Parsings, id: SubchannelId) -> Vec<Wish> {
        let mut wishes = self.step(now, parsed, Some(Input::Connectivity(id, Connectivity::Connecting)));
        wishes.extend(self.step(now, parsed, Some(Input::Connectivity(id, Connectivity::Ready))));
        wishes
    }

    pub(crate) fn was_refused(&mut self) {
        self.seen.refused_now += 1;
        self.seen.refused = self.seen.refused.max(self.seen.refused_now);
    }
}

impl Life {
    fn note(&mut self, report: &Report) {
        match report {
            Report::TimedOut(..) => self.absences += 1,
            Report::Nacked(..) => self.nacks += 1,
            Report::FellBack(..) => self.fallbacks += 1,
            Report::Answered(_) => self.refused_now = 0,
            Report::Connecting(_)
            | Report::Connected(..)
            | Report::Alive(_)
            | Report::Unreachable(..)
            | Report::StreamEnded(..)
            | Report::DeltaRefused(..)
            | Report::Recovered(..)
            | Report::Acked(..)
            | Report::Ignored(..)
            | Report::DeletionIgnored(..)
            | Report::DeletionOver(..)
            | Report::SecurityIgnored(_) => {}
        }
    }

    fn look(&mut self, now: Time, outlook: Outlook) {
        self.fails = outlook == Outlook::Fail;
        match outlook {
            Outlook::Send => drop(self.served.get_or_insert(now)),
            Outlook::Fail if self.served.is_some() => drop(self.failed.get_or_insert(now)),
            Outlook::Fail | Outlook::Wait => {}
        }
    }
}

impl Helper for Wires<'_> {
    type Subchannel = Handle;

    fn create_subchannel(&mut self, id: SubchannelId, _: &SubchannelSpec) -> Handle {
        Handle(id)
    }

    fn connect(&mut self, id: SubchannelId) {
        self.own.asked.push(id);
    }

    fn release(&mut self, id: SubchannelId) {
        self.own.asked.retain(|asked| *asked != id);
    }

    fn request_reresolution(&mut self) {}

    fn circuit_breaker(&mut self, cluster: &str, eds_service: &str) -> Arc<Counter> {
        let key = (cluster.to_owned(), eds_service.to_owned());
        Arc::clone(self.own.counters.entry(key).or_default())
    }

    fn interner(&mut self) -> Option<&mut dyn Intern> {
        Some(self.parsed)
    }
}

impl Intern for Parsings {
    fn find(&mut self, resource_type: ResourceType, bytes: &[u8], _: ParseContext<'_>) -> Option<Parsed> {
        self.0.get(&(resource_type, Bytes::copy_from_slice(bytes))).cloned()
    }

    fn keep(&mut self, resource: Resource, bytes: &[u8], _: ParseContext<'_>) -> Parsed {
        let key = (resource.resource_type(), Bytes::copy_from_slice(bytes));
        let parsed = Parsed { resource, bytes: key.1.clone() };
        self.0.entry(key).or_insert(parsed).clone()
    }
}

impl Subchannel for Handle {
    fn is_ready(&self) -> bool {
        true
    }
}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}
