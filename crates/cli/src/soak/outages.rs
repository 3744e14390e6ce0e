//! `mainstay soak --script outages`: known outages, one after the other, at full length and with everybody's settings.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    time::Duration,
};

use mainstay::{
    Channel,
    bootstrap::{Bootstrap, Node, ServerConfig},
};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, TypeUrl, resources};
use mainstay_testservice::{Backend, proto::test_service_client::TestServiceClient};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
    time::Instant,
};

use crate::{
    call::{self, Caller},
    connect,
    failure::Failure,
    output::{BAD, GOOD, Output, TITLE, styled},
    span::millis,
    tally::{Tally, shares},
    traffic::{Event, Schedule, Traffic},
};

/// Goes through the outages. Servers that are away stay away for `away`.
pub(super) async fn run(qps: f64, away: Duration, output: &mut Output) -> Result<(), Failure> {
    let mut bad = Vec::new();
    let mut judge = |name: &'static str, outcome: Result<Outcome, Failure>, output: &mut Output| {
        let outcome = outcome?;
        outcome.report(name, output)?;
        if !outcome.is_good() {
            bad.push(name);
        }
        Ok::<_, Failure>(())
    };
    judge("the last server dies in mid-update and stays away", last_dies(qps, away).await, output)?;
    judge("both servers die during a switch back", both_die(qps, away).await, output)?;
    judge("endpoints roll during a withheld update", endpoints_roll(qps, away).await, output)?;
    judge("a cold primary returns", cold_primary(qps, away).await, output)?;
    judge("a primary is frozen by SIGSTOP in mid-update", frozen(qps).await, output)?;
    judge("a path swallows everything in mid-update", swallowed(qps).await, output)?;
    match bad.is_empty() {
        true => Ok(()),
        false => Err(Failure::calls(format!("not as promised: {}", bad.join("; ")))),
    }
}

// === The outages ===

async fn last_dies(qps: f64, away: Duration) -> Result<Outcome, Failure> {
    let [one, three] = [backend("one").await?, backend("three").await?];
    let primary = control_plane(chain("cluster-1", &one)).await?;
    let mesh = Mesh::start(&[primary.addr()], "one").await?;
    let outage = async {
        primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
        primary.control_plane().set(chain("cluster-2", &three));
        tokio::time::sleep(away).await;
        primary.faults().heal();
        primary.start().map_err(|error| no_port(&error))?;
        mesh.until_answered_by("three").await
    };
    mesh.under_load(qps, outage).await
}

async fn both_die(qps: f64, away: Duration) -> Result<Outcome, Failure> {
    let [one, two, three] = [backend("one").await?, backend("two").await?, backend("three").await?];
    let primary = control_plane(chain("cluster-1", &one)).await?;
    let fallback = control_plane(chain("fallback-cluster", &two)).await?;
    let mesh = Mesh::start(&[primary.addr(), fallback.addr()], "one").await?;
    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
    primary.control_plane().set(chain("cluster-2", &one));
    mesh.until_answered_by("two").await?;
    let outage = async {
        let mut requests = primary.events();
        primary.faults().heal();
        primary.faults().hold(TypeUrl::CLUSTER);
        primary.control_plane().set(chain("cluster-3", &three));
        primary.start().map_err(|error| no_port(&error))?;
        let asked = requests.wait_for(|event| {
            let request = event.as_request()?;
            request.names.iter().any(|name| name == "cluster-3").then_some(())
        });
        asked.await.ok_or_else(|| Failure::failed("the primary was not asked"))?;
        primary.stop().await;
        fallback.stop().await;
        tokio::time::sleep(away).await;
        primary.faults().heal();
        primary.start().map_err(|error| no_port(&error))?;
        mesh.until_answered_by("three").await
    };
    mesh.under_load(qps, outage).await
}

async fn endpoints_roll(qps: f64, away: Duration) -> Result<Outcome, Failure> {
    let mut rolling = [backend("one").await?, backend("two").await?];
    let three = backend("three").await?;
    let primary = control_plane(chain("cluster-1", &rolling[0])).await?;
    let mesh = Mesh::start(&[primary.addr()], "one").await?;
    let outage = async {
        primary.faults().hold(TypeUrl::CLUSTER);
        let mut update = chain("cluster-2", &three);
        update.insert(resources::eds_cluster("cluster-1"));
        let end = Instant::now() + away.min(WITHHELD);
        for turn in 1.. {
            // The new one comes, then the old one goes.
            let (new, old) = (turn % 2, (turn + 1) % 2);
            update.insert(resources::endpoints("cluster-1", [rolling[new].addr()]));
            primary.control_plane().set(update.clone());
            mesh.until_answered_by(["one", "two"][new]).await?;
            rolling[old].stop_gracefully().await;
            if Instant::now() > end {
                break;
            }
            tokio::time::sleep(ROLL).await;
            rolling[old].restart().await.map_err(|error| no_port(&error))?;
        }
        primary.faults().release(&TypeUrl::CLUSTER);
        mesh.until_answered_by("three").await
    };
    mesh.under_load(qps, outage).await
}

async fn cold_primary(qps: f64, away: Duration) -> Result<Outcome, Failure> {
    let [one, two] = [backend("one").await?, backend("two").await?];
    let primary = control_plane(chain("cluster-1", &one)).await?;
    let fallback = control_plane(chain("fallback-cluster", &two)).await?;
    let mesh = Mesh::start(&[primary.addr(), fallback.addr()], "one").await?;
    primary.faults().die_on_request(TypeUrl::CLUSTER, "cluster-2");
    primary.control_plane().set(chain("cluster-2", &one));
    mesh.until_answered_by("two").await?;
    let outage = async {
        primary.faults().heal();
        primary.control_plane().set(Snapshot::default());
        primary.start().map_err(|error| no_port(&error))?;
        tokio::time::sleep(away).await;
        primary.control_plane().set(chain("cluster-3", &one));
        mesh.until_answered_by("one").await
    };
    mesh.under_load(qps, outage).await
}

async fn frozen(qps: f64) -> Result<Outcome, Failure> {
    let [one, two] = [backend("one").await?, backend("two").await?];
    let primary = Process::serve(&chain("cluster-1", &one))?;
    let fallback = control_plane(chain("fallback-cluster", &two)).await?;
    let mesh = Mesh::start(&[primary.address, fallback.addr()], "one").await?;
    let outage = async {
        primary.write(&half_an_update(&one))?;
        mesh.until_requested("cluster-2").await?;
        primary.signal("STOP")?;
        let frozen = Instant::now();
        mesh.until_answered_by("two").await?;
        Ok(frozen.elapsed())
    };
    mesh.until_served(qps, outage).await
}

async fn swallowed(qps: f64) -> Result<Outcome, Failure> {
    let [one, two] = [backend("one").await?, backend("two").await?];
    let primary = control_plane(chain("cluster-1", &one)).await?;
    let fallback = control_plane(chain("fallback-cluster", &two)).await?;
    let path = Path::to(primary.addr()).await?;
    let mesh = Mesh::start(&[path.address, fallback.addr()], "one").await?;
    let outage = async {
        primary.control_plane().set(half_an_update(&one));
        mesh.until_requested("cluster-2").await?;
        path.swallow.send_replace(true);
        let cut = Instant::now();
        mesh.until_answered_by("two").await?;
        Ok(cut.elapsed())
    };
    mesh.until_served(qps, outage).await
}

// === What they happen to ===

/// A channel with everybody's settings.
struct Mesh {
    channel: Channel,
}

/// What RPCs saw of an outage.
struct Outcome {
    took: Duration,
    tally: Tally,
    /// RPCs that took longer than anybody should notice.
    slow: u64,
    /// How long it took until the next server served, where that is the question.
    served: Option<Duration>,
}

impl Mesh {
    async fn start(servers: &[SocketAddr], first: &str) -> Result<Self, Failure> {
        let mut bootstrap = Bootstrap::builder().node(Node::new("outages"));
        for server in servers {
            bootstrap = bootstrap.server(ServerConfig::insecure(server.to_string()));
        }
        let bootstrap = bootstrap.build().map_err(|error| Failure::failed(error.to_string()))?;
        let channel = connect::build(Channel::builder("xds:///service").bootstrap(bootstrap))?;
        let mesh = Self { channel };
        mesh.until_answered_by(first).await?;
        Ok(mesh)
    }

    fn caller(&self) -> Box<dyn Caller> {
        Box::new(TestServiceClient::new(self.channel.clone()))
    }

    async fn until_answered_by(&self, backend: &str) -> Result<(), Failure> {
        let caller = self.caller();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if call::begin(&*caller, 0, RPC_TIMEOUT).await.result.is_ok_and(|id| id == backend) {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
        Err(Failure::failed(format!("{backend} never answered")))
    }

    /// Waits until the channel wants a cluster that it does not have.
    async fn until_requested(&self, cluster: &str) -> Result<(), Failure> {
        let mut configs = self.channel.configs();
        let wanted = async {
            while let Some(config) = configs.next().await {
                if config.resources.iter().any(|resource| &*resource.resource.name == cluster) {
                    return Ok(());
                }
            }
            Err(Failure::failed("the channel is gone"))
        };
        tokio::time::timeout(PATIENCE, wanted).await.map_err(|_| Failure::failed(format!("{cluster} is not wanted")))?
    }

    /// Sends RPCs from before the outage until a moment after it.
    async fn under_load(
        &self,
        qps: f64,
        outage: impl Future<Output = Result<(), Failure>>,
    ) -> Result<Outcome, Failure> {
        let begin = Instant::now();
        let mut traffic = Traffic::start(Schedule::new(qps, None), vec![self.caller()], RPC_TIMEOUT);
        let (mut tally, mut slow) = (Tally::new(), 0);
        let mut record = |event: &Event| {
            tally.record(event);
            slow += u64::from(matches!(event, Event::Ended(outcome) if outcome.took > SLOW));
        };
        let outage = async {
            tokio::time::sleep(MARGIN).await;
            let ended = outage.await;
            tokio::time::sleep(MARGIN).await;
            ended
        };
        tokio::pin!(outage);
        let mut ended = None;
        loop {
            tokio::select! {
                event = traffic.next() => match event {
                    Some(event) => record(&event),
                    None => break,
                },
                outcome = &mut outage, if ended.is_none() => {
                    ended = Some(outcome);
                    traffic.stop();
                }
            }
        }
        ended.unwrap_or_else(|| Err(Failure::failed("the traffic ended by itself")))?;
        Ok(Outcome { took: begin.elapsed(), tally, slow, served: None })
    }

    /// The same, with the time until somebody else served.
    async fn until_served(
        &self,
        qps: f64,
        outage: impl Future<Output = Result<Duration, Failure>>,
    ) -> Result<Outcome, Failure> {
        let mut served = None;
        let outage = async {
            served = Some(outage.await?);
            Ok(())
        };
        let outcome = self.under_load(qps, outage).await?;
        Ok(Outcome { served, ..outcome })
    }
}

impl Outcome {
    fn is_good(&self) -> bool {
        let in_time = self.served.is_none_or(|served| served <= SERVED_WITHIN);
        self.tally.failed() + self.tally.unfinished() + self.slow == 0 && in_time
    }

    fn report(&self, name: &str, output: &mut Output) -> Result<(), Failure> {
        let Self { tally, slow, .. } = self;
        let failed = tally.failed() + tally.unfinished();
        let colour = if self.is_good() { GOOD } else { BAD };
        output.line(styled(TITLE, name))?;
        let head = format!("{failed} failed, {slow} slow (over {})", millis(SLOW));
        output.line(format_args!(
            "  {} of {} RPCs in {:.0} s; max {}; {}",
            styled(colour, head),
            tally.sent(),
            self.took.as_secs_f64(),
            tally.latency(100.0).map_or_else(|| "-".to_owned(), millis),
            shares(tally.backends()),
        ))?;
        if let Some(served) = self.served {
            output.line(format_args!("  served by the fallback after {:.1} s", served.as_secs_f64()))?;
        }
        for (code, errors) in tally.errors() {
            output.line(format_args!("  {code} {}: {}", errors.count, errors.message))?;
        }
        Ok(())
    }
}

/// A control plane in a process of its own: `mainstay serve`.
struct Process {
    child: Child,
    /// Open as long as it runs: without a reader it would end.
    _stdout: Option<BufReader<ChildStdout>>,
    directory: PathBuf,
    address: SocketAddr,
}

impl Process {
    fn serve(snapshot: &Snapshot) -> Result<Self, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| Failure::failed(format!("{what}: {error}"));
        let directory = std::env::temp_dir().join(format!("mainstay-outages-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| failed("no directory for files", &error))?;
        write(&directory, snapshot)?;
        let program = std::env::current_exe().map_err(|error| failed("no way to start ourselves", &error))?;
        let mut child = Command::new(program)
            .arg("serve")
            .arg(&directory)
            // It is to serve half an update, which no check would let pass.
            .args(["--listen", ANY_PORT, "--no-check"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("cannot start `mainstay serve`", &error))?;
        let mut first = String::new();
        let mut stdout = child.stdout.take().map(BufReader::new);
        let read = stdout.as_mut().map(|stdout| stdout.read_line(&mut first));
        let address = first.split(" on ").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.and_then(|address| address.parse().ok());
        match (read, address) {
            (Some(Ok(_)), Some(address)) => Ok(Self { child, _stdout: stdout, directory, address }),
            _ => {
                let _ = child.kill();
                Err(Failure::failed(format!("`mainstay serve` did not start: {first:?}")))
            }
        }
    }

    fn write(&self, snapshot: &Snapshot) -> Result<(), Failure> {
        write(&self.directory, snapshot)
    }

    fn signal(&self, name: &str) -> Result<(), Failure> {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        match sent {
            Ok(status) if status.success() => Ok(()),
            other => Err(Failure::failed(format!("cannot send SIG{name}: {other:?}"))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Puts a snapshot in the place of the one before, as a whole.
fn write(directory: &std::path::Path, snapshot: &Snapshot) -> Result<(), Failure> {
    let text = snapshot.to_yaml().map_err(|error| Failure::failed(error.to_string()))?;
    let (new, file) = (directory.join("new"), directory.join("all.yaml"));
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &file));
    written.map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))
}

/// A path to a server on which bytes can get lost, and nobody is told.
struct Path {
    address: SocketAddr,
    swallow: watch::Sender<bool>,
}

impl Path {
    async fn to(server: SocketAddr) -> Result<Self, Failure> {
        let listener = TcpListener::bind(ANY_PORT).await.map_err(|error| no_port(&error))?;
        let address = listener.local_addr().map_err(|error| no_port(&error))?;
        let swallow = watch::Sender::new(false);
        let swallows = swallow.subscribe();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let swallows = swallows.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::join!(
                        pass(from_client, to_server, swallows.clone()),
                        pass(from_server, to_client, swallows.clone())
                    );
                });
            }
        });
        Ok(Self { address, swallow })
    }
}

async fn pass(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, mut swallows: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer).await
        && read > 0
    {
        if *swallows.borrow_and_update() {
            continue;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
    // While bytes get lost, an end does too.
    let _ = swallows.wait_for(|swallows| !swallows).await;
}

async fn control_plane(snapshot: Snapshot) -> Result<Server, Failure> {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    control_plane.serve(ANY_PORT).await.map_err(|error| no_port(&error))
}

async fn backend(id: &str) -> Result<Backend, Failure> {
    Backend::spawn(ANY_PORT, id).await.map_err(|error| no_port(&error))
}

fn no_port(error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot listen on 127.0.0.1: {error}"))
}

/// Target `xds:///service` by way of this cluster.
fn chain(cluster: &str, backend: &Backend) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", cluster)))
        .cluster(resources::eds_cluster(cluster))
        .endpoints(resources::endpoints(cluster, [backend.addr()]))
        .build()
}

/// New routes are there, and their cluster "cluster-2" is not.
fn half_an_update(backend: &Backend) -> Snapshot {
    let mut update = chain("cluster-1", backend);
    update.insert(resources::listener("service", resources::route("service", "cluster-2")));
    update
}

const ANY_PORT: &str = "127.0.0.1:0";
const RPC_TIMEOUT: Duration = Duration::from_secs(20);
/// RPCs before and after an outage, to compare with.
const MARGIN: Duration = Duration::from_secs(1);
/// What nobody should notice.
const SLOW: Duration = Duration::from_millis(200);
/// How soon the next server serves when one falls silent.
const SERVED_WITHIN: Duration = Duration::from_secs(11);
/// How long what must happen may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look.
const LOOK: Duration = Duration::from_millis(5);
/// How long an update is withheld. A server that is alive and says nothing of a resource for 15 s has said that there is
/// none (A57).
const WITHHELD: Duration = Duration::from_secs(10);
/// How long one backend is alone.
const ROLL: Duration = Duration::from_secs(2);
