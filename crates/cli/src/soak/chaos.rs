//! The mesh that is soaked, and what is done to it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mainstay::{
    Channel,
    bootstrap::{Bootstrap, BootstrapBuilder, Node, ServerConfig},
    event::Event,
};
use mainstay_control_plane::{ControlPlane, Corruption, Server, Snapshot, TypeUrl, resources};
use mainstay_sim::Seeded;
use mainstay_testservice::{Backend, proto::test_service_client::TestServiceClient};
use mainstay_xds::Choose as _;
use tokio::time::Instant;
use tonic::Code;

use super::{Act, Stage, no_port};
use crate::{call::Caller, connect, failure::Failure};

/// Control planes, backends and a client, and the dice.
pub(super) struct Chaos {
    dice: Seeded,
    planes: Vec<Plane>,
    backends: Vec<Backend>,
    /// The only one that the last configuration names.
    last: Backend,
    /// The backend that is down, if any.
    down: Option<usize>,
    rolled: Instant,
    channel: Option<Channel>,
    fallbacks: Arc<AtomicU64>,
    /// A channel to another target, which comes and goes.
    visitor: Option<Channel>,
}

/// A control plane, and what it says.
struct Plane {
    server: Server,
    /// The cluster that traffic is sent to.
    route: usize,
    /// The backends of each cluster.
    clusters: Vec<Vec<usize>>,
    /// Since when it has not said a word.
    silent_since: Option<Instant>,
}

impl Chaos {
    /// Starts everything on ports that the system chooses.
    pub(super) async fn start(seed: u64) -> Result<Self, Failure> {
        let mut backends = Vec::new();
        for number in 0..BACKENDS {
            backends.push(backend(&format!("backend-{number}")).await?);
        }
        let mut planes = Vec::new();
        for _ in 0..PLANES {
            let server = ControlPlane::new().serve(ANY_PORT).await.map_err(|error| no_port(&error))?;
            let clusters = vec![(0..BACKENDS).collect(); CLUSTERS];
            planes.push(Plane { server, route: 0, clusters, silent_since: None });
        }
        let chaos = Self {
            dice: Seeded::new(seed),
            planes,
            backends,
            last: backend("last").await?,
            down: None,
            rolled: Instant::now(),
            channel: None,
            fallbacks: Arc::default(),
            visitor: None,
        };
        (0..PLANES).for_each(|index| chaos.announce(index));
        Ok(chaos)
    }

    /// Takes a backend out gracefully, or brings back the one that is out. Between two there is a rest, in which clients
    /// find the first one again.
    async fn roll(&mut self) -> Result<Act, Failure> {
        if let Some(index) = self.down.take() {
            let backend = &mut self.backends[index];
            backend.restart().await.map_err(|error| no_port(&error))?;
            self.rolled = Instant::now();
            return Ok(Act { kind: "return", what: format!("{} is back", backend.id()) });
        }
        if self.rolled.elapsed() < REST {
            return Ok(Act { kind: "rest", what: "nothing".to_owned() });
        }
        let index = self.below(BACKENDS);
        let backend = &mut self.backends[index];
        backend.stop_gracefully().await;
        self.down = Some(index);
        Ok(Act { kind: "roll", what: format!("{} has stopped gracefully", backend.id()) })
    }

    /// Gives control planes another route and other endpoints: one of them, or all.
    fn point_elsewhere(&mut self, index: usize) -> Act {
        let (route, cluster) = (self.below(CLUSTERS), self.below(CLUSTERS));
        let mut members: Vec<usize> = (0..BACKENDS).collect();
        while members.len() > LEAST_MEMBERS && self.dice.choose(3) > 0 {
            members.remove(self.below(members.len()));
        }
        let all = self.dice.choose(2) == 0;
        let chosen = if all { 0..PLANES } else { index..index + 1 };
        for index in chosen {
            let plane = &mut self.planes[index];
            plane.route = route;
            plane.clusters[cluster].clone_from(&members);
            self.announce(index);
        }
        let who = if all { "all control planes".to_owned() } else { NAMES[index].to_owned() };
        Act { kind: "point elsewhere", what: format!("{who}: cluster-{route}; cluster-{cluster} has {members:?}") }
    }

    fn announce(&self, index: usize) {
        let Plane { server, route, clusters, .. } = &self.planes[index];
        let address = |number: &usize| self.backends[*number].addr().to_string();
        let clusters: Vec<_> =
            clusters.iter().enumerate().map(|(n, members)| (n, members.iter().map(address).collect())).collect();
        server.control_plane().set(configuration(*route, &clusters));
    }

    fn channel_to(&self, service: &str) -> Result<Channel, Failure> {
        let node = Node::new("mainstay-soak");
        let servers = self.planes.iter().map(|plane| ServerConfig::insecure(plane.server.addr().to_string()));
        let builder = servers.fold(Bootstrap::builder().node(node), BootstrapBuilder::server);
        let bootstrap =
            builder.build().map_err(|invalid| Failure::failed(format!("the bootstrap of the soak: {invalid}")))?;
        // Short pauses, so that much happens; as fast as a rolling update may be.
        let builder = Channel::builder(format!("xds:///{service}"))
            .bootstrap(bootstrap)
            .backoff(Duration::from_millis(100), Duration::from_secs(1))
            .xds_connect_timeouts(Duration::from_millis(500), Duration::from_secs(1))
            .xds_keep_alive(Duration::from_secs(2), Duration::from_secs(1));
        connect::build(builder)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.dice.choose(bound.max(1) as u64)).unwrap_or_default()
    }
}

impl Stage for Chaos {
    fn client(&mut self) -> Result<Box<dyn Caller>, Failure> {
        let channel = self.channel_to(SERVICE)?;
        let (mut events, fallbacks) = (channel.events(), Arc::clone(&self.fallbacks));
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                if matches!(event, Event::FellBack { .. }) {
                    fallbacks.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        self.channel = Some(channel.clone());
        Ok(Box::new(TestServiceClient::new(channel)))
    }

    fn pause(&mut self) -> Duration {
        Duration::from_millis(50 + self.dice.choose(900))
    }

    async fn act(&mut self) -> Result<Act, Failure> {
        let index = self.below(PLANES);
        let roll = self.dice.choose(16);
        for plane in &mut self.planes {
            if plane.silent_since.is_some_and(|since| since.elapsed() > LONGEST_SILENCE) {
                plane.silent_since = None;
                plane.server.faults().heal();
            }
        }
        let Plane { server, silent_since, .. } = &mut self.planes[index];
        let name = NAMES[index];
        let act = |kind, what: &str| Ok(Act { kind, what: format!("{name}: {what}") });
        match roll {
            0..=2 if server.is_listening() => {
                server.stop().await;
                act("kill", "killed")
            }
            0..=4 => {
                server.faults().heal();
                *silent_since = None;
                server.start().map_err(|error| no_port(&error))?;
                act("restart", "restarted")
            }
            5 => {
                server.faults().silent(true);
                silent_since.get_or_insert_with(Instant::now);
                act("silence", "does not answer")
            }
            6 => {
                server.faults().black_hole(true);
                silent_since.get_or_insert_with(Instant::now);
                act("black hole", "swallows everything")
            }
            7 => {
                server.close_streams(Code::Unavailable);
                act("cut", "streams ended")
            }
            8 => {
                server.faults().corrupt(TypeUrl::LISTENER, SERVICE, Corruption::Truncated(3));
                act("corrupt", "sends broken bytes")
            }
            9 => {
                self.visitor = match self.visitor.take() {
                    Some(_) => None,
                    None => Some(self.channel_to(VISITOR)?),
                };
                Ok(Act { kind: "visit", what: "another channel comes or goes".to_owned() })
            }
            10 => {
                let cluster = self.below(CLUSTERS);
                let server = &self.planes[index].server;
                server.faults().die_on_request(TypeUrl::CLUSTER, cluster_name(cluster));
                Ok(Act { kind: "doom", what: format!("{name}: dies when asked for cluster-{cluster}") })
            }
            11..=12 => self.roll().await,
            _ => Ok(self.point_elsewhere(index)),
        }
    }

    /// Makes everything well, and points all control planes at the last backend, which must then be reached.
    async fn heal(&mut self) -> Result<Vec<String>, Failure> {
        self.visitor = None;
        for plane in &self.planes {
            let snapshot = configuration(0, &[(0, vec![self.last.addr().to_string()])]);
            plane.server.control_plane().set(snapshot);
            plane.server.faults().heal();
            plane.server.start().map_err(|error| no_port(&error))?;
        }
        let Some(channel) = self.channel.clone() else { return Ok(Vec::new()) };
        let client = TestServiceClient::new(channel);
        let begin = Instant::now();
        loop {
            let outcome = crate::call::begin(&client, 0, CONVERGENCE).await;
            match outcome.result {
                Ok(id) if id == self.last.id() => break,
                Ok(_) if begin.elapsed() < CONVERGENCE => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(id) => {
                    return Err(Failure::calls(format!(
                        "{id} answers {CONVERGENCE:?} after the end, and not what the control planes say"
                    )));
                }
                Err(error) => {
                    return Err(Failure::calls(format!("an RPC failed after the end: {}", error.message)));
                }
            }
        }
        Ok(vec![format!("  fallbacks   {}", self.fallbacks.load(Ordering::Relaxed))])
    }

    async fn end(mut self) {
        self.channel = None;
        for backend in self.backends.iter_mut().chain([&mut self.last]) {
            backend.stop().await;
        }
        for plane in &self.planes {
            plane.server.stop().await;
        }
    }
}

/// What a control plane serves: both targets by the same routes, and these clusters.
fn configuration(route: usize, clusters: &[(usize, Vec<String>)]) -> Snapshot {
    let mut snapshot = Snapshot::builder()
        .listener(resources::listener(SERVICE, resources::rds(ROUTES)))
        .listener(resources::listener(VISITOR, resources::rds(ROUTES)))
        .route(resources::route(ROUTES, cluster_name(route)));
    for (number, members) in clusters {
        let name = cluster_name(*number);
        snapshot = snapshot.cluster(resources::eds_cluster(&name)).endpoints(resources::endpoints(&name, members));
    }
    snapshot.build()
}

fn cluster_name(number: usize) -> String {
    format!("cluster-{number}")
}

async fn backend(id: &str) -> Result<Backend, Failure> {
    Backend::spawn(ANY_PORT, id).await.map_err(|error| no_port(&error))
}

const ANY_PORT: &str = "127.0.0.1:0";
const SERVICE: &str = "soak";
const VISITOR: &str = "visitor";
const ROUTES: &str = "routes";
const PLANES: usize = 3;
const NAMES: [&str; PLANES] = ["primary", "second", "third"];
const BACKENDS: usize = 6;
const CLUSTERS: usize = 4;
/// With one backend down and another one found again only after its backoff, one must be left.
const LEAST_MEMBERS: usize = 3;
/// Longer than the longest pause between attempts to connect.
const REST: Duration = Duration::from_secs(3);
/// A resource that a server does not send for 15 s does not exist: that would be news, and RPCs would rightly fail.
const LONGEST_SILENCE: Duration = Duration::from_secs(8);
/// How long it may take until everything is as the control planes say.
const CONVERGENCE: Duration = Duration::from_secs(30);
