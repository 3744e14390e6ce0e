//! The task that runs a channel: feeds the core, does what it says, sleeps until the next deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_channel::mpsc::UnboundedReceiver;
use futures_util::StreamExt;
use mainstay_lb::{Action, ChannelCore, Connectivity, Context, Input, Snapshot};
use mainstay_xds::Time;
use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{self, Report};
use mainstay_xds::deps::DnsName;
use mainstay_xds::lrs;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::ads::{AdsStreams, Service, StreamInput};
use crate::channelz_node::Calls;
use crate::connection::News;
use crate::guard;
use crate::last_good::{Recorder, Wake};
use crate::logs::ReportLog;
use crate::queue;
use crate::random::Random;
use crate::shared::{Command, HubStatus, Plan, Shared};
use crate::subchannel::{Subchannel, Subchannels};
use crate::task::Task;
use crate::telemetry::XdsObserver;
use crate::xds_status::XdsStatus;

/// Owns the core of a channel and everything that it asks for.
pub(crate) struct Driver {
    pub(crate) core: ChannelCore<Subchannel>,
    pub(crate) subchannels: Subchannels,
    pub(crate) streams: AdsStreams<Input>,
    pub(crate) lookups: BTreeMap<DnsName, Task>,
    pub(crate) inputs: queue::Receiver<Input>,
    pub(crate) input_sender: queue::Sender<Input>,
    pub(crate) connection_news: UnboundedReceiver<News>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) commands: UnboundedReceiver<Command>,
    pub(crate) observer: XdsObserver,
    pub(crate) log: ReportLog,
    /// Whether the client may have changed since the observer looked at it.
    pub(crate) client_stirred: bool,
    /// Whether something was connected to since RPCs were last told to look.
    pub(crate) connected: bool,
    pub(crate) plan: Arc<Plan>,
    /// Keeps what is in force in files, if that is wanted.
    pub(crate) recorder: Option<Recorder>,
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

impl StreamInput for Input {
    fn of(service: Service, event: client::Event) -> Self {
        match service {
            Service::Ads => Self::Xds(event),
            Service::Lrs => Self::Load(event),
        }
    }
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
pub(crate) const BATCH: usize = 256;

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
                wake = Recorder::next(&mut self.recorder) => self.record(wake),
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
        self.core.shut_down(&mut Context { now, choose: &mut Random, helper: &mut self.subchannels });
        self.shared.snapshot.store(Arc::new(Snapshot::empty()));
        // Streams and lookups end with `self`.
        end
    }

    fn handle(&mut self, input: Input) {
        self.client_stirred |= !matches!(input, Input::Connectivity(..) | Input::Wake(_));
        match &input {
            Input::Xds(client::Event::Closed(stream, _)) => self.streams.ended(*stream),
            Input::Load(client::Event::Closed(stream, cause)) => {
                tracing::debug!(target = %self.plan.target.canonical, ?cause, "a stream of load reports ended");
                self.streams.close(Service::Lrs, *stream);
            }
            Input::Dns(name, _) => drop(self.lookups.remove(name)),
            Input::Xds(_) | Input::Load(_) | Input::Connectivity(..) | Input::Wake(_) | Input::Timeout => {}
        }
        let now = self.now();
        self.core.handle(&mut Context { now, choose: &mut Random, helper: &mut self.subchannels }, input);
    }

    fn hear(&mut self, news: News) {
        self.subchannels.note(&news);
        self.connected |= matches!(news.state, Connectivity::Ready);
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
        let mut changed = self.core.settle(&mut Context { now, choose: &mut Random, helper: &mut self.subchannels });
        if let Some(recorder) = self.recorder.as_mut().filter(|_| changed) {
            recorder.published();
        }
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::OpenStream { stream, server, connect_timeout, protocol } => {
                    self.streams.open_ads(protocol, stream, server, connect_timeout);
                }
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
                    self.log.note(&self.plan.target.canonical, &report);
                    self.note(&report);
                    guard::shielded("telemetry", || self.observer.note(&report));
                    if let Some(progress) = progress(&report) {
                        self.shared.progress.store(Some(Arc::new(progress)));
                    }
                    self.shared.events.send(Arc::new(report));
                }
                Action::Publish(snapshot) => {
                    self.shared.snapshot.store(snapshot);
                    self.connected = true;
                }
            }
        }
        for (warning, words) in self.subchannels.log.take() {
            self.shared.channelz.note_event(warning, words);
        }
        // Also without another snapshot: a connection that was lost and is back before anybody looked changes nothing, but
        // RPCs that found it gone wait for word of it.
        if std::mem::take(&mut self.connected) {
            self.shared.published.send_modify(|count| *count = count.wrapping_add(1));
        }
        if std::mem::take(&mut self.client_stirred) {
            let last_good = self.recorder.as_mut().and_then(|recorder| {
                recorder.stir();
                recorder.store().created_at()
            });
            guard::shielded("telemetry", || {
                self.observer.look_at(self.core.client());
                self.observer.show_last_good(last_good);
            });
        }
        if changed {
            self.shared.changed.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Sees to the last-good files.
    fn record(&mut self, wake: Wake) {
        match (wake, &mut self.recorder) {
            (Wake::Look, Some(recorder)) => recorder.record(self.core.capture()),
            (Wake::Look, None) => {}
            (Wake::Event(event), _) => self.shared.events.send_event(event),
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
        match server_of(report) {
            Some(server) => self.streams.note(server, report),
            None => self.shared.channelz.note(report),
        }
    }

    fn obey(&mut self, command: Command) {
        self.client_stirred |= matches!(command, Command::Hold(_) | Command::Release(_));
        match command {
            Command::Wake(wake) => self.handle(Input::Wake(wake)),
            Command::Hold(cluster) => self.core.subscribe_cluster(self.now(), &cluster),
            Command::Release(cluster) => self.core.release_cluster(self.now(), &cluster),
            Command::Status(answer) => {
                let target = self.plan.target.canonical.clone();
                // Whoever asked may have stopped waiting.
                let _ = answer.send(HubStatus {
                    xds: XdsStatus::of(target, self.core.client(), &mut self.streams, self.start),
                    listener: self.plan.target.listener.clone(),
                    config: self.core.config().map(|config| config.cloned().map_err(Arc::clone)),
                    capture: self.core.capture(),
                    shared: self.shared.clone(),
                    connections: self.subchannels.connections(),
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

/// The xDS server that a report is about, if it is not about the whole channel.
pub(crate) fn server_of(report: &Report) -> Option<&Arc<ServerConfig>> {
    match report {
        Report::Connecting(server)
        | Report::Connected(server, _)
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
        | Report::DeletionOver(server, _) => Some(server),
        Report::FellBack(..) | Report::Recovered(..) | Report::SecurityIgnored(_) => None,
    }
}

/// Where the way to a configuration stands, if this report tells.
fn progress(report: &Report) -> Option<String> {
    Some(match report {
        Report::Connecting(server) => format!("connecting to {}", server.server_uri),
        Report::Connected(server, _) => format!("{} has not answered yet", server.server_uri),
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
