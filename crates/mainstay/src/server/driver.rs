//! The task that runs servers: feeds the core, does what it says, sleeps until the next deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender};
use futures_util::StreamExt;
use mainstay_xds::Time;
use mainstay_xds::client::{self, Report};
use mainstay_xds::serve::{self, Action, Drain, ListenerId, Output, ServeSettings, ServerCore, Serving};
use tokio::time::Instant;

use super::generation::Generation;
use super::listener::Listener;
use super::member::{Command, Member};
use super::plan::ClientPlan;
use super::port::{Answer, Order};
use crate::ads::{AdsStreams, Service, StreamInput};
use crate::driver::{BATCH, QUEUE, server_of};
use crate::guard;
use crate::intern::Interner;
use crate::last_good::{Recorder, Wake};
use crate::local_stream::LocalContext;
use crate::logs::ReportLog;
use crate::queue;
use crate::random::Random;
use crate::serving_state::ServingState;
use crate::telemetry::XdsObserver;
use crate::xds_status::XdsStatus;

/// Owns the core of servers and its streams.
pub(super) struct Driver {
    members: Vec<Arc<Member>>,
    core: ServerCore,
    /// The id that the core has for an address, by the one that channelz has.
    ids: BTreeMap<i64, ListenerId>,
    ports: BTreeMap<ListenerId, PortDriver>,
    streams: AdsStreams<Input>,
    inputs: queue::Receiver<Input>,
    commands: UnboundedReceiver<Command>,
    interner: Interner,
    observer: XdsObserver,
    log: ReportLog,
    deadline: Option<Time>,
    /// Keeps what is in force in files, if that is wanted.
    recorder: Option<Recorder>,
    start: Instant,
}

/// One address, as this driver knows it.
struct PortDriver {
    listener: Arc<Listener>,
    orders: UnboundedSender<Order>,
    /// What was published and is not drained.
    generations: BTreeMap<serve::Generation, Arc<Generation>>,
}

/// News of an ADS stream.
pub(super) struct Input(client::Event);

impl StreamInput for Input {
    fn of(_: Service, event: client::Event) -> Self {
        Self(event)
    }
}

impl Driver {
    pub(super) fn new(plan: &ClientPlan, members: Vec<Arc<Member>>, commands: UnboundedReceiver<Command>) -> Box<Self> {
        let (sender, inputs) = queue::bounded(QUEUE);
        let start = Instant::now();
        let recorder = Recorder::new(&plan.bootstrap, SCOPE.into(), start);
        let local = LocalContext {
            last_good: recorder.as_ref().map(|recorder| recorder.store().clone()),
            node_id: plan.bootstrap.node.id.as_str().into(),
            federation: plan.bootstrap.guards.federation,
        };
        let mut driver = Box::new(Self {
            members: Vec::new(),
            core: ServerCore::new(plan.bootstrap.clone(), plan.client.clone()),
            ids: BTreeMap::new(),
            ports: BTreeMap::new(),
            streams: AdsStreams::new(plan.dns.clone(), plan.ads, local, sender),
            inputs,
            commands,
            interner: Interner::of(&plan.bootstrap),
            observer: XdsObserver::new(plan.telemetry.as_ref(), &SCOPE.into()),
            log: ReportLog::default(),
            deadline: None,
            recorder,
            start,
        });
        members.into_iter().for_each(|member| driver.join(member));
        driver
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self: Box<Self>, answers: &mut UnboundedReceiver<Answer>) {
        self.settle();
        loop {
            let deadline = self.deadline.map(|at| self.start + at.since_start());
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Not biased: a flood of news must not hold up deadlines or the end.
            tokio::select! {
                Some(Input(event)) = self.inputs.recv() => self.handle(event),
                Some((port, outcome)) = answers.next() => self.handle_socket(port, outcome),
                Some(command) = self.commands.next() => self.obey(command),
                wake = Recorder::next(&mut self.recorder) => self.record(wake),
                () = due => self.core.handle_timeout(self.now(), &mut Random),
            }
            for _ in 1..BATCH {
                let Some(Input(event)) = self.inputs.try_recv() else { break };
                self.handle(event);
            }
            self.settle();
            // Nor may it hold up the other tasks of this thread.
            tokio::task::coop::consume_budget().await;
        }
    }

    fn handle(&mut self, event: client::Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.stir();
        }
        if let client::Event::Closed(stream, _) = &event {
            self.streams.ended(*stream);
        }
        self.core.handle_event(self.now(), &mut Random, Some(&mut self.interner), event);
    }

    fn handle_socket(&mut self, port: i64, outcome: Result<(), String>) {
        // One that nobody knows is of a server that is gone.
        if let Some(id) = self.ids.get(&port) {
            self.core.handle_socket(self.now(), *id, outcome);
        }
    }

    fn join(&mut self, member: Arc<Member>) {
        for (listener, orders) in &member.ports {
            match self.core.add(self.now(), listener.address, listener.server.plan.serve.clone()) {
                Ok(id) => {
                    self.ids.insert(listener.node.id, id);
                    let (listener, orders) = (listener.clone(), orders.clone());
                    self.ports.insert(id, PortDriver { listener, orders, generations: BTreeMap::new() });
                }
                // It was tried before the server was started.
                Err(error) => listener.tell(ServingState::not_serving(error.to_string())),
            }
        }
        if member.is_closing() {
            self.shut_down(&member);
        }
        self.members.push(member);
    }

    /// The application wants an end (SV-25). Resources are followed until the last connection has ended.
    fn shut_down(&mut self, member: &Member) {
        let now = self.now();
        for id in member.ports.iter().filter_map(|(listener, _)| self.ids.get(&listener.node.id)) {
            self.core.shut_down(now, *id);
        }
    }

    /// A server is gone, with its tasks.
    fn leave(&mut self, member: &Arc<Member>) {
        let now = self.now();
        self.members.retain(|known| !Arc::ptr_eq(known, member));
        for id in member.ports.iter().filter_map(|(listener, _)| self.ids.remove(&listener.node.id)) {
            self.ports.remove(&id);
            self.core.remove(now, id);
        }
    }

    /// Does everything that the core asks for.
    fn settle(&mut self) {
        self.deadline = loop {
            match self.core.poll_output() {
                Output::Do(action) => self.perform(action),
                Output::Wait(deadline) => break deadline,
            }
        };
        let last_good = self.recorder.as_ref().and_then(|recorder| recorder.store().created_at());
        guard::shielded("telemetry", || {
            self.observer.look_at(self.core.client());
            self.observer.show_last_good(last_good);
        });
    }

    /// Sees to the last-good files.
    fn record(&mut self, wake: Wake) {
        match (wake, &mut self.recorder) {
            (Wake::Look, Some(recorder)) => recorder.record(self.core.capture()),
            (Wake::Look, None) => {}
            (Wake::Event(event), _) => {
                self.members.iter().for_each(|member| member.server.events.send_event(event.clone()));
            }
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::OpenStream { stream, server, connect_timeout, protocol } => {
                self.streams.open_ads(protocol, stream, server, connect_timeout);
            }
            Action::Send(stream, message) => self.streams.send(Service::Ads, stream, message),
            Action::Probe { stream, call } => self.streams.probe(stream, call),
            Action::CloseStream(stream) => self.streams.close(Service::Ads, stream),
            Action::Report(report) => self.report(report),
            Action::Publish(id, serving) => self.publish(id, serving),
            Action::Listen(id) => self.order(id, Order::Listen),
            Action::StopListening(id) => self.order(id, Order::StopListening),
            Action::Close(id) => self.order(id, Order::Close),
            Action::Drain(id, drain) => self.drain(id, drain),
            Action::Tell(id, state) => self.tell(id, &state),
            Action::TellRoutes(id, routes, error) => self.tell_routes(id, &routes, error.as_deref()),
        }
    }

    fn report(&mut self, report: Report) {
        self.log.note(SCOPE, &report);
        match server_of(&report) {
            Some(server) => self.streams.note(server, &report),
            None => self.members.iter().for_each(|member| member.server.node.note(&report)),
        }
        guard::shielded("telemetry", || self.observer.note(&report));
        let report = Arc::new(report);
        self.members.iter().for_each(|member| member.server.events.send(report.clone()));
    }

    fn publish(&mut self, id: ListenerId, serving: Option<Arc<Serving>>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.published();
        }
        let (at, start) = (self.now(), self.start);
        let Some(port) = self.ports.get_mut(&id) else { return };
        let Some(serving) = serving else { return port.listener.serving.store(None) };
        if let Some(generation) = port.generations.get(&serving.generation) {
            return generation.follow(&serving);
        }
        // What a driver left behind that crashed is taken over if it is the same, and drained like any other if not.
        let left = port.listener.serving.load_full().filter(|_| port.generations.is_empty());
        let generation = match left {
            Some(left) if left.is_for(&serving) => {
                left.follow(&serving);
                left
            }
            left => {
                let plan = &port.listener.server.plan;
                let generation = Arc::new(Generation::new(serving.clone(), &plan.security, &plan.auditor));
                port.listener.serving.store(Some(generation.clone()));
                if let Some(left) = left {
                    left.drain(drain_at(at, &plan.serve), start);
                }
                generation
            }
        };
        port.generations.insert(serving.generation, generation);
    }

    fn drain(&mut self, id: ListenerId, drain: Drain) {
        let Some(port) = self.ports.get_mut(&id) else { return };
        if let Some(generation) = port.generations.remove(&drain.generation) {
            port.listener.retire(&generation);
            generation.drain(drain, self.start);
        }
    }

    fn order(&mut self, id: ListenerId, order: Order) {
        if let Some(port) = self.ports.get(&id) {
            // A task that has ended has been closed.
            let _ = port.orders.unbounded_send(order);
        }
    }

    fn tell(&mut self, id: ListenerId, state: &serve::ServingState) {
        let Some(port) = self.ports.get(&id) else { return };
        let state = match state {
            serve::ServingState::Serving => ServingState::Serving,
            serve::ServingState::NotServing(why) => ServingState::not_serving(why.to_string()),
        };
        // This core never served what a driver left behind that crashed, and does not take it away.
        if !state.is_serving()
            && port.generations.is_empty()
            && let Some(left) = port.listener.serving.swap(None)
        {
            left.drain(drain_at(self.now(), &port.listener.server.plan.serve), self.start);
            let _ = port.orders.unbounded_send(Order::StopListening);
        }
        port.listener.tell(state);
    }

    /// S-18.
    fn tell_routes(&mut self, id: ListenerId, routes: &str, error: Option<&client::ResourceError>) {
        let Some(port) = self.ports.get(&id) else { return };
        let address = port.listener.address;
        let node = &port.listener.server.node;
        match error {
            Some(error) => {
                tracing::warn!(%address, routes, %error, "RPCs fail, as their routes cannot be had");
                node.note_event(true, format!("{address}: routes {routes:?} cannot be had: {error}"));
            }
            None => {
                tracing::warn!(%address, routes, "routes can be had again, or are not needed any more");
                node.note_event(false, format!("{address}: routes {routes:?} can be had, or are not needed any more"));
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Join(member) => self.join(member),
            Command::ShutDown(member) => self.shut_down(&member),
            Command::Leave(member) => self.leave(&member),
            Command::Status(answer) => {
                // Whoever asked may have stopped waiting.
                let _ = answer.send(XdsStatus::of(SCOPE.into(), self.core.client(), &mut self.streams, self.start));
            }
        }
    }

    fn now(&self) -> Time {
        Time::from_start(self.start.elapsed())
    }
}

/// How a generation ends that the present core never knew.
fn drain_at(at: Time, settings: &ServeSettings) -> Drain {
    let (generation, spread) = (serve::Generation(0), settings.drain_spread);
    Drain { generation, at, until: at + settings.drain_grace, spread }
}

/// The key of the XdsClient of servers (A71, C-2).
const SCOPE: &str = "#server";
