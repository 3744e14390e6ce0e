//! The task that runs a channel: feeds the core, does what it says, sleeps until the next deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt;
use mainstay_lb::{Action, ChannelCore, Context, Input, Snapshot};
use mainstay_xds::Time;
use mainstay_xds::client::{self, Protocol, Report};
use mainstay_xds::deps::DnsName;
use mainstay_xds::lrs;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ads::{AdsStreams, Service};
use crate::channelz_node::Calls;
use crate::connection::News;
use crate::event::Event;
use crate::guard;
use crate::queue;
use crate::random::Random;
use crate::shared::{Command, HubStatus, Plan, Shared};
use crate::subchannel::{Subchannel, Subchannels};
use crate::task::Task;
use crate::telemetry::XdsObserver;

/// Owns the core of a channel and everything that it asks for.
pub(crate) struct Driver {
    pub(crate) core: ChannelCore<Subchannel>,
    pub(crate) subchannels: Subchannels,
    pub(crate) streams: AdsStreams,
    pub(crate) lookups: BTreeMap<DnsName, Task>,
    pub(crate) inputs: queue::Receiver<Input>,
    pub(crate) input_sender: queue::Sender<Input>,
    pub(crate) connection_news: UnboundedReceiver<News>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: UnboundedReceiver<Command>,
    pub(crate) observer: XdsObserver,
    /// Whether the client may have changed since the observer looked at it.
    pub(crate) client_stirred: bool,
    pub(crate) plan: Arc<Plan>,
    pub(crate) start: Instant,
}

/// Why a driver has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The last handle of its channel is gone.
    Closed,
    /// Nobody has used its channel for a while.
    Idle,
}

/// Notices that nobody uses a channel.
struct Idleness {
    timeout: Duration,
    /// Since when there was no RPC.
    since: Instant,
    /// What was counted then.
    calls: Calls,
    next_look: Instant,
}

/// Inputs taken in before RPCs see the outcome: a burst of news makes one snapshot, an endless one cannot hold it back.
const BATCH: usize = 256;

/// Room for news. Whoever brings news waits while it is full; the driver never waits for them.
pub(crate) const QUEUE: usize = 256;

impl Driver {
    /// Runs until the last handle of the channel is dropped, or until nobody uses it, then closes everything. In a box, as
    /// a future holds its arguments twice.
    pub(crate) async fn run(mut self: Box<Self>, closed: &mut oneshot::Receiver<()>) -> End {
        self.settle();
        let mut idleness = Idleness::new(&self);
        let end = loop {
            let deadline = self.core.next_deadline().map(|at| self.start + at.since_start());
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Not biased: a flood of news must not hold up deadlines, questions or the end.
            tokio::select! {
                _ = &mut *closed => break End::Closed,
                () = Idleness::next_look(&idleness) => {
                    if idleness.as_mut().is_some_and(|idleness| idleness.look(&self.shared)) {
                        break End::Idle;
                    }
                }
                Some(input) = self.inputs.recv() => self.handle(input),
                Some(news) = self.connection_news.next() => self.hear(news),
                Some(command) = self.commands.next() => self.obey(command),
                () = due => self.handle(Input::Timeout),
            }
            for _ in 1..BATCH {
                if !self.handle_more() {
                    break;
                }
            }
            self.settle();
            // Nor may it hold up the other tasks of this thread.
            tokio::task::coop::consume_budget().await;
        };
        let now = self.now();
        self.core.shut_down(&mut Context { now, choose: &mut Random, host: &mut self.subchannels });
        self.shared.snapshot.store(Arc::new(Snapshot::empty()));
        // Streams and lookups end with `self`.
        end
    }

    fn handle(&mut self, input: Input) {
        self.client_stirred |= !matches!(input, Input::Connectivity(..) | Input::Wake(_));
        match &input {
            Input::Xds(client::Event::Closed(stream, _)) => self.streams.close(Service::Ads, *stream),
            Input::Load(client::Event::Closed(stream, cause)) => {
                tracing::debug!(target = %self.plan.target.canonical, ?cause, "a stream of load reports ended");
                self.streams.close(Service::Lrs, *stream);
            }
            Input::Dns(name, _) => drop(self.lookups.remove(name)),
            Input::Xds(_) | Input::Load(_) | Input::Connectivity(..) | Input::Wake(_) | Input::Timeout => {}
        }
        let now = self.now();
        self.core.handle(&mut Context { now, choose: &mut Random, host: &mut self.subchannels }, input);
    }

    fn hear(&mut self, news: News) {
        self.subchannels.note(&news);
        self.handle(Input::Connectivity(news.id, news.state));
    }

    /// Takes in what is there already, from each side in turn. Whether there was anything.
    fn handle_more(&mut self) -> bool {
        let (input, news) = (self.inputs.try_recv(), self.connection_news.try_recv().ok());
        let any = input.is_some() || news.is_some();
        input.into_iter().for_each(|input| self.handle(input));
        news.into_iter().for_each(|news| self.hear(news));
        any
    }

    /// Lets the core come to rest and does everything it asks for.
    fn settle(&mut self) {
        let now = self.now();
        let mut changed = self.core.settle(&mut Context { now, choose: &mut Random, host: &mut self.subchannels });
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::OpenStream { stream, server, connect_timeout, protocol } => match protocol {
                    Protocol::Sotw => self.streams.open(Service::Ads, stream, server, connect_timeout),
                    Protocol::Delta => self.streams.open_delta(stream, server, connect_timeout),
                },
                Action::Send(stream, message) => self.streams.send(Service::Ads, stream, message),
                Action::Probe { stream, call } => self.streams.probe(stream, call),
                Action::CloseStream(stream) => self.streams.close(Service::Ads, stream),
                Action::Load(lrs::Action::Open { stream, server, connect_timeout }) => {
                    self.streams.open(Service::Lrs, stream, server, connect_timeout);
                }
                Action::Load(lrs::Action::Send(stream, message)) => self.streams.send(Service::Lrs, stream, message),
                Action::Load(lrs::Action::Close(stream)) => self.streams.close(Service::Lrs, stream),
                Action::Resolve(name) => self.resolve(name),
                Action::StopResolving(name) => {
                    self.lookups.remove(&name);
                }
                Action::Report(report) => {
                    changed = true;
                    log(&self.plan.target.canonical, &report);
                    self.note(&report);
                    guard::shielded("telemetry", || self.observer.note(&report));
                    if let Some(progress) = progress(&report) {
                        self.shared.progress.store(Some(Arc::new(progress)));
                    }
                    self.shared.events.send(report);
                }
                Action::Publish(snapshot) => {
                    self.shared.snapshot.store(snapshot);
                    self.shared.published.send_modify(|count| *count = count.wrapping_add(1));
                }
            }
        }
        if std::mem::take(&mut self.client_stirred) {
            guard::shielded("telemetry", || self.observer.look_at(self.core.client()));
        }
        if changed {
            self.shared.changed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn resolve(&mut self, name: DnsName) {
        let (dns, events, asked) = (self.plan.dns.clone(), self.input_sender.clone(), name.clone());
        let lookup = Task::spawn(async move {
            let answer = dns.resolve(&asked.host).await;
            let answer = answer.map(|ips| ips.into_iter().map(|ip| (ip, asked.port).into()).collect());
            let _ = events.send(Input::Dns(asked, answer)).await;
        });
        self.lookups.insert(name, lookup);
    }

    /// Enters a report into the channelz node of whom it concerns.
    fn note(&self, report: &Report) {
        match report {
            Report::Connecting(server)
            | Report::Connected(server)
            | Report::Answered(server)
            | Report::Alive(server)
            | Report::Unreachable(server, ..)
            | Report::StreamEnded(server, ..)
            | Report::DeltaRefused(server, _)
            | Report::Acked(server, ..)
            | Report::Nacked(server, ..)
            | Report::TimedOut(server, _)
            | Report::Ignored(server, _)
            | Report::DeletionIgnored(server, _)
            | Report::DeletionOver(server, _) => self.streams.note(server, report),
            // About the whole channel.
            Report::FellBack(..) | Report::Recovered(..) | Report::SecurityIgnored(_) => {
                self.shared.channelz.note(report)
            }
        }
    }

    fn obey(&mut self, command: Command) {
        self.client_stirred |= matches!(command, Command::Hold(_) | Command::Release(_));
        match command {
            Command::Wake(wake) => self.handle(Input::Wake(wake)),
            Command::Hold(cluster) => self.core.subscribe_cluster(self.now(), &cluster),
            Command::Release(cluster) => self.core.release_cluster(self.now(), &cluster),
            Command::Status(answer) => {
                let client = self.core.client();
                let servers = client.server_states();
                self.streams.forget_idle(&servers);
                // Whoever asked may have stopped waiting.
                let _ = answer.send(HubStatus {
                    target: self.plan.target.canonical.clone(),
                    node: client.node(),
                    listener: self.plan.target.listener.clone(),
                    config: self.core.config().map(|config| config.cloned().map_err(Arc::clone)),
                    resources: client.dump(),
                    servers,
                    shared: self.shared.clone(),
                    server_nodes: self.streams.channelz(),
                    connections: self.subchannels.connections(),
                    start: self.start.into_std(),
                    now: self.now(),
                });
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_start(self.start.elapsed())
    }
}

// === impl Idleness ===

impl Idleness {
    /// None for a channel that is to be looked at only: it has no RPCs.
    fn new(driver: &Driver) -> Option<Self> {
        let timeout = driver.plan.idle_timeout.filter(|_| driver.plan.connect.enabled)?;
        let now = Instant::now();
        Some(Self { timeout, since: now, calls: driver.shared.channelz.counters.calls(), next_look: now + timeout / 8 })
    }

    /// Looks eight times while a channel becomes idle: the counters that RPCs keep anyway tell enough, and RPCs do no
    /// more for it.
    async fn next_look(this: &Option<Self>) {
        match this {
            Some(Self { next_look, .. }) => tokio::time::sleep_until(*next_look).await,
            None => std::future::pending().await,
        }
    }

    /// Whether nobody has used the channel for long enough.
    fn look(&mut self, shared: &Shared) -> bool {
        let calls = shared.channelz.counters.calls();
        self.next_look = Instant::now() + self.timeout / 8;
        let in_use = calls != self.calls || calls.started > calls.succeeded + calls.failed;
        if in_use || shared.changed.receiver_count() > 0 {
            (self.since, self.calls) = (Instant::now(), calls);
        }
        self.since.elapsed() >= self.timeout
    }
}

/// Where the way to a configuration stands, if this report tells.
fn progress(report: &Report) -> Option<String> {
    Some(match report {
        Report::Connecting(server) => format!("connecting to {}", server.server_uri),
        Report::Connected(server) => format!("{} has not answered yet", server.server_uri),
        Report::Answered(server) => format!("{} has not sent everything yet", server.server_uri),
        Report::Unreachable(server, cause, _) => format!("{} cannot be reached: {cause}", server.server_uri),
        Report::Alive(_)
        | Report::StreamEnded(..)
        | Report::DeltaRefused(..)
        | Report::FellBack(..)
        | Report::Recovered(..)
        | Report::Acked(..)
        | Report::Nacked(..)
        | Report::TimedOut(..)
        | Report::Ignored(..)
        | Report::DeletionIgnored(..)
        | Report::DeletionOver(..)
        | Report::SecurityIgnored(_) => return None,
    })
}

/// Levels mean something: what needs a person is `warn`, what explains a change is `info`, the rest is `debug`.
fn log(target: &str, report: &Report) {
    match report {
        Report::Unreachable(server, cause, pause) => {
            tracing::warn!(target, server = server.server_uri, cause, ?pause, "xDS server cannot be reached");
        }
        Report::Nacked(server, resource_type, version, _, error) => {
            tracing::warn!(target, server = server.server_uri, %resource_type, %version, error, "xDS response rejected");
        }
        Report::TimedOut(server, resource) => {
            tracing::warn!(target, server = server.server_uri, %resource, "resource was not sent in time");
        }
        Report::Ignored(server, reason) => {
            tracing::warn!(target, server = server.server_uri, reason, "message ignored");
        }
        Report::FellBack(authority, server) => {
            tracing::info!(target, %authority, server = server.server_uri, "fell back to another xDS server");
        }
        Report::Recovered(authority, server) => {
            tracing::info!(target, %authority, server = server.server_uri, "returned to a preferred xDS server");
        }
        Report::DeltaRefused(server, cause) => {
            tracing::info!(target, server = server.server_uri, cause, "xDS server does not speak delta");
        }
        Report::SecurityIgnored(cluster) => {
            tracing::warn!(target, %cluster, "cluster asks for TLS, which the channel's credentials do not follow");
        }
        Report::Connecting(_)
        | Report::Connected(_)
        | Report::Answered(_)
        | Report::Alive(_)
        | Report::StreamEnded(..)
        | Report::Acked(..)
        | Report::DeletionIgnored(..)
        | Report::DeletionOver(..) => tracing::debug!(target, event = %Event::of(report), "xDS"),
    }
}
