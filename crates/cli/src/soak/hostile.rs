//! A mesh in which one backend in five is hostile and callers have bugs, and who must not suffer from it.
//!
//! Innocent callers make unary calls to the good backends. On the same channel, over the same connections, others call
//! all backends, panic in their streams, and read nothing of what they asked for; runtimes end under their channels.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use envoy_types::{
    pb::envoy::{
        config::{
            cluster::v3::{LoadBalancingPolicy, load_balancing_policy::Policy},
            core::v3::TypedExtensionConfig,
        },
        extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin,
    },
    util::pack_any,
};
use mainstay::{
    Channel, ChannelBuilder,
    bootstrap::{Bootstrap, Node, ServerConfig},
};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use mainstay_sim::Seeded;
use mainstay_testservice::{
    Backend,
    proto::{
        Empty, ResponseParameters, StreamingInputCallRequest, StreamingOutputCallRequest,
        test_service_client::TestServiceClient,
    },
};
use mainstay_xds::Choose as _;
use tokio::{sync::oneshot, task::AbortHandle, time::Instant};
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};

use super::{Act, Stage, no_port, villain::Villain};
use crate::{call::Caller, connect, failure::Failure};

/// Good backends and hostile ones, and callers of all kinds.
pub(super) struct Siege {
    dice: Seeded,
    server: Server,
    backends: Vec<Backend>,
    villains: Vec<Villain>,
    channel: Option<Channel>,
    /// Innocent calls so far.
    begun: u64,
    /// Callers that read nothing, the oldest first.
    stalled: VecDeque<AbortHandle>,
    seen: Arc<Seen>,
    runtimes: Vec<oneshot::Receiver<()>>,
}

/// What became of those who are not innocent.
#[derive(Default)]
struct Seen {
    panics: AtomicU64,
    beside: AtomicU64,
    beside_failed: AtomicU64,
    moved: AtomicU64,
    /// What must not be.
    wrong: Mutex<Vec<String>>,
}

impl Siege {
    /// Starts everything on ports that the system chooses.
    pub(super) async fn start(seed: u64) -> Result<Self, Failure> {
        let mut backends = Vec::new();
        for number in 0..BACKENDS {
            let backend = Backend::spawn(ANY_PORT, &format!("backend-{number}")).await;
            backends.push(backend.map_err(|error| no_port(&error))?);
        }
        let mut villains = Vec::new();
        for number in 0..VILLAINS {
            villains.push(Villain::start(seed ^ number).await.map_err(|error| no_port(&error))?);
        }
        let control_plane = ControlPlane::new();
        control_plane.set(configuration(&backends, &villains));
        let server = control_plane.serve(ANY_PORT).await.map_err(|error| no_port(&error))?;
        Ok(Self {
            dice: Seeded::new(seed),
            server,
            backends,
            villains,
            channel: None,
            begun: 0,
            stalled: VecDeque::new(),
            seen: Arc::default(),
            runtimes: Vec::new(),
        })
    }

    /// Calls anybody, good or not. It may fail, but it must end in time.
    fn call_beside(&self, channel: Channel) {
        let seen = Arc::clone(&self.seen);
        tokio::spawn(async move {
            let begin = Instant::now();
            let mut request = Request::new(Empty::default());
            request.set_timeout(BESIDE_TIMEOUT);
            let outcome = TestServiceClient::new(channel).empty_call(request).await;
            seen.beside.fetch_add(1, Ordering::Relaxed);
            seen.beside_failed.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
            if begin.elapsed() > BESIDE_TIMEOUT + SLACK {
                seen.complain(format!("a call with {BESIDE_TIMEOUT:?} to live took {:?}", begin.elapsed()));
            }
        });
    }

    /// A caller with a bug in its stream.
    fn panic(&self, channel: Channel) {
        let seen = Arc::clone(&self.seen);
        tokio::spawn(async move {
            let stream = tokio_stream::iter(0..3).map(|number| match number {
                2 => std::panic::resume_unwind(Box::new("a bug in a caller")), // Without a word on stderr.
                _ => StreamingInputCallRequest::default(),
            });
            let mut request = Request::new(stream);
            request.set_timeout(CALL_TIMEOUT);
            seen.panics.fetch_add(1, Ordering::Relaxed);
            match TestServiceClient::new(channel).streaming_input_call(request).await {
                Ok(_) => seen.complain("a stream that panicked was answered".to_owned()),
                // The backend may have been a hostile one.
                Err(status) if status.code() == Code::DeadlineExceeded => {
                    seen.complain(format!("a caller that panicked waited for its deadline: {}", status.message()));
                }
                Err(_) => {}
            }
        });
    }

    /// A caller that asks for much and reads nothing.
    fn stall(&mut self, channel: Channel) {
        let parameters = ResponseParameters { size: 64 << 10, ..Default::default() };
        let request = StreamingOutputCallRequest { response_parameters: vec![parameters; 64], ..Default::default() };
        let reader = tokio::spawn(async move {
            let answer = TestServiceClient::new(channel).streaming_output_call(request).await;
            std::future::pending::<()>().await;
            drop(answer);
        });
        self.stalled.push_back(reader.abort_handle());
        while self.stalled.len() > READERS {
            self.stalled.pop_front().iter().for_each(AbortHandle::abort);
        }
    }

    /// A runtime ends under a channel, with calls under way, and the channel is used on another one.
    fn drop_runtime(&mut self) -> Result<(), Failure> {
        let (builder, seen) = (self.builder()?, Arc::clone(&self.seen));
        let (done, ended) = oneshot::channel();
        self.runtimes.push(ended);
        thread::spawn(move || {
            match move_channel(builder) {
                Ok(()) => drop(seen.moved.fetch_add(1, Ordering::Relaxed)),
                Err(error) => seen.complain(format!("a channel whose runtime has ended: {error}")),
            }
            let _ = done.send(());
        });
        Ok(())
    }

    fn builder(&self) -> Result<ChannelBuilder, Failure> {
        let node = Node::new("mainstay-soak");
        let bootstrap = Bootstrap::builder().node(node).server(ServerConfig::insecure(self.server.addr().to_string()));
        let bootstrap =
            bootstrap.build().map_err(|invalid| Failure::failed(format!("the bootstrap of the soak: {invalid}")))?;
        Ok(Channel::builder(format!("xds:///{SERVICE}"))
            .bootstrap(bootstrap)
            .backoff(Duration::from_millis(100), Duration::from_secs(1))
            .silence_timeout(Duration::from_secs(1)))
    }
}

impl Stage for Siege {
    fn client(&mut self) -> Result<Box<dyn Caller>, Failure> {
        let channel = connect::build(self.builder()?)?;
        self.channel = Some(channel.clone());
        // All that will be stalled at a time, from the beginning: what they hold is no growth.
        (0..READERS).for_each(|_| self.stall(channel.clone()));
        Ok(Box::new(TestServiceClient::new(channel)))
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(20 + self.dice.choose(100))
    }

    fn begun(&mut self) {
        self.begun += 1;
        if self.begun.is_multiple_of(BUGGY_CALLERS)
            && let Some(channel) = self.channel.clone()
        {
            self.panic(channel);
        }
    }

    async fn act(&mut self) -> Result<Act, Failure> {
        let Some(channel) = self.channel.clone() else {
            return Ok(Act { kind: "rest", what: "nothing".to_owned() });
        };
        let (kind, what) = match self.dice.choose(32) {
            0..=3 => {
                self.stall(channel);
                ("stall", "a reader stalls")
            }
            4 if self.runtimes.len() < 4 || self.runtimes.iter_mut().all(|run| run.try_recv().is_ok()) => {
                self.runtimes.retain_mut(|run| run.try_recv().is_err());
                self.drop_runtime()?;
                ("drop runtime", "a runtime ends under its channel")
            }
            _ => {
                self.call_beside(channel);
                ("call all", "a call to any backend, good or hostile")
            }
        };
        Ok(Act { kind, what: what.to_owned() })
    }

    async fn heal(&mut self) -> Result<Vec<String>, Failure> {
        self.stalled.drain(..).for_each(|reader| reader.abort());
        for run in self.runtimes.drain(..) {
            let _ = tokio::time::timeout(CALL_TIMEOUT, run).await;
        }
        let seen = &self.seen;
        let wrong = seen.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = wrong.first() {
            return Err(Failure::calls(format!("{} times something was wrong, at first: {first}", wrong.len())));
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let connections: u64 = self.villains.iter().map(Villain::connections).sum();
        Ok(vec![
            format!("  panics      {}, each of one call", load(&seen.panics)),
            format!("  to all      {} calls, {} failed, none late", load(&seen.beside), load(&seen.beside_failed)),
            format!("  runtimes    {} ended, their channels went on", load(&seen.moved)),
            format!("  hostile     {connections} connections"),
        ])
    }

    async fn end(mut self) {
        self.channel = None;
        for backend in &mut self.backends {
            backend.stop().await;
        }
        self.server.stop().await;
    }
}

impl Seen {
    fn complain(&self, text: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }
}

/// Makes a channel on one runtime, ends that, and goes on on another one.
fn move_channel(builder: ChannelBuilder) -> Result<(), String> {
    let call = |channel: &Channel| {
        let client = TestServiceClient::new(channel.clone());
        async move {
            let mut request = Request::new(Default::default());
            request.set_timeout(CALL_TIMEOUT);
            Caller::unary_call(&client, request).await.map(drop)
        }
    };
    let text = |status: Status| status.to_string();
    let (first, second) = (runtime()?, runtime()?);
    let channel = first.block_on(async {
        let channel = builder.build().map_err(|error| error.to_string())?;
        call(&channel).await.map_err(text)?;
        (0..4).for_each(|_| drop(tokio::spawn(call(&channel))));
        Ok::<_, String>(channel)
    })?;
    first.shutdown_timeout(Duration::from_secs(1));
    second.block_on(async {
        for _ in 0..4 {
            call(&channel).await.map_err(text)?;
        }
        Ok(())
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().map_err(|error| error.to_string())
}

/// Innocent calls go to the good backends; all others to any, by the load that they report.
fn configuration(backends: &[Backend], villains: &[Villain]) -> Snapshot {
    let policy = ClientSideWeightedRoundRobin::default();
    let config = TypedExtensionConfig { name: "wrr".to_owned(), typed_config: Some(pack_any(policy)) };
    let mut all = resources::eds_cluster(ALL);
    all.load_balancing_policy =
        Some(LoadBalancingPolicy { policies: vec![Policy { typed_extension_config: Some(config) }] });
    let good = backends.iter().map(Backend::addr);
    let routes = [resources::prefix_route(INNOCENT, GOOD), resources::prefix_route("", ALL)];
    Snapshot::builder()
        .listener(resources::listener(SERVICE, resources::route_table(SERVICE, routes)))
        .cluster(resources::eds_cluster(GOOD))
        .endpoints(resources::endpoints(GOOD, good.clone()))
        .cluster(all)
        .endpoints(resources::endpoints(ALL, good.chain(villains.iter().map(Villain::addr))))
        .build()
}

const ANY_PORT: &str = "127.0.0.1:0";
const SERVICE: &str = "soak";
const GOOD: &str = "good";
const ALL: &str = "all";
const INNOCENT: &str = "/grpc.testing.TestService/UnaryCall";
const BACKENDS: usize = 8;
const VILLAINS: u64 = 2;
/// One caller in so many panics.
const BUGGY_CALLERS: u64 = 1000;
/// How many readers are stalled at a time.
const READERS: usize = 24;
const CALL_TIMEOUT: Duration = Duration::from_secs(20);
const BESIDE_TIMEOUT: Duration = Duration::from_secs(1);
/// How late a deadline may be on a busy machine.
const SLACK: Duration = Duration::from_secs(5);
