//! What one change costs in each variant of ADS: on the wire, in the client and in the control plane, in one run.
//!
//! Bytes are those of our own control plane, asked over a real socket. For its CPU the clients run in a process of their
//! own, so that nothing but the control plane is counted.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use mainstay_control_plane::{ControlPlane, Resource, Server, Snapshot, TypeUrl, resources};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::core::Core;
use crate::ingest::{self, address, name};
use crate::plot::number;
use crate::report::Report;
use crate::{Result, alloc, stats};

/// A variant of ADS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// State of the world.
    Sotw,
    /// Incremental.
    Delta,
}

/// Streams that follow a control plane until standard input ends.
#[derive(Args, Clone, Debug)]
pub(crate) struct StreamsArgs {
    /// Where the control plane is.
    #[arg(long)]
    server: String,
    /// What they speak.
    #[arg(long, value_enum)]
    protocol: Protocol,
    /// How many there are.
    #[arg(long)]
    streams: usize,
    /// How many clusters each of them asks for.
    #[arg(long)]
    clusters: usize,
}

pub(crate) fn measure(quick: bool, protocols: &[Protocol], report: &mut Report) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    report.begin_table(&["what", "state of the world", "delta", "ratio"]);
    let rows: [(&str, &str, Vec<f64>); 5] = [
        (
            "bytes in, 1 of 10,000 clusters changed",
            "cluster_bytes",
            of_each(protocols, |p| runtime.block_on(cluster_change(p)).map(|change| change.len() as f64))?,
        ),
        (
            "bytes in, 1 of 10,000 endpoints changed",
            "endpoint_bytes",
            of_each(protocols, |p| runtime.block_on(endpoint_change(p)))?,
        ),
        (
            "bytes out on reconnect, 10,000 clusters as before",
            "reconnect_bytes_out",
            of_each(protocols, |p| runtime.block_on(reconnect(p)).map(|bytes| bytes.0))?,
        ),
        (
            "bytes in on reconnect",
            "reconnect_bytes_in",
            of_each(protocols, |p| runtime.block_on(reconnect(p)).map(|bytes| bytes.1))?,
        ),
        ("bytes of memory per cluster", "bytes_per_cluster", of_each(protocols, memory)?),
    ];
    for (what, key, values) in rows {
        row(report, what, key, protocols, &values);
    }
    let turns = if quick { 5 } else { 15 };
    let mut times = Vec::new();
    for protocol in protocols {
        let change = runtime.block_on(cluster_change(*protocol))?;
        times.push(client_time(*protocol, &change, turns)?);
    }
    let client: Vec<f64> = times.iter().map(|(ours, _)| *ours).collect();
    row(report, "client, 1 of 10,000 clusters changed, to the snapshot (µs)", "client_us", protocols, &client);
    let bare: Vec<f64> = times.iter().map(|(ours, bare)| ours / bare).collect();
    row(report, "the same against decoding what came", "client_to_decode", protocols, &bare);
    if protocols.contains(&Protocol::Delta) {
        let took = glob_time(turns)?;
        report.row([
            "client, 1 of 10,000 members of a glob changed, to the snapshot (µs)".to_owned(),
            "-".to_owned(),
            number(took),
            "-".to_owned(),
        ]);
        report.set(&["wires", "glob_member_us"], took);
    }
    let (streams, changes) = (1_000, if quick { 3 } else { 10 });
    let mut cpu = Vec::new();
    let mut encodings = Vec::new();
    for protocol in protocols {
        let load = runtime.block_on(control_plane_cpu(*protocol, streams, 1_000, changes))?;
        cpu.push(load.0);
        encodings.push(load.1);
    }
    row(
        report,
        "control plane, CPU per change, 1,000 streams, 1,000 clusters (ms)",
        "control_plane_ms",
        protocols,
        &cpu,
    );
    row(report, "the same, encodings per change", "encodings", protocols, &encodings);
    report.note("bytes are of the gRPC messages of our own control plane; all clients ask for the same names");
    report.note("CPU is that of the process of the control plane, with its sockets, between two changes");
    Ok(())
}

fn of_each(protocols: &[Protocol], mut measured: impl FnMut(Protocol) -> Result<f64>) -> Result<Vec<f64>> {
    protocols.iter().map(|protocol| measured(*protocol)).collect()
}

fn row(report: &mut Report, what: &str, key: &str, protocols: &[Protocol], values: &[f64]) {
    let value = |protocol| protocols.iter().position(|known| *known == protocol).map(|index| values[index]);
    let (sotw, delta) = (value(Protocol::Sotw), value(Protocol::Delta));
    let text = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let ratio = sotw.zip(delta).map(|(sotw, delta)| delta / sotw);
    report.row([what.to_owned(), text(sotw), text(delta), ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.5}"))]);
    for (name, value) in [("sotw", sotw), ("delta", delta), ("ratio", ratio)] {
        if let Some(value) = value {
            report.set(&["wires", key, name], value);
        }
    }
}

// === The wire ===

/// A stream to a control plane, of either variant. It answers each response, as a client must.
enum Stream {
    Sotw(mpsc::Sender<DiscoveryRequest>, Streaming<DiscoveryResponse>, Vec<String>),
    Delta(mpsc::Sender<DeltaDiscoveryRequest>, Streaming<DeltaDiscoveryResponse>),
}

impl Stream {
    /// Opens a stream and asks for these names of a type; over delta it may have something already.
    async fn open(
        channel: Channel,
        protocol: Protocol,
        type_url: &TypeUrl,
        names: Vec<String>,
        claims: HashMap<String, String>,
    ) -> Result<(Self, usize)> {
        let mut client = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        let node = Some(Node { id: "bench".to_owned(), ..Node::default() });
        let type_url = type_url.as_str().to_owned();
        match protocol {
            Protocol::Sotw => {
                let (send, requests) = mpsc::channel(16);
                let request =
                    DiscoveryRequest { node, type_url, resource_names: names.clone(), ..DiscoveryRequest::default() };
                let length = request.encoded_len();
                send.send(request).await?;
                let responses = client.stream_aggregated_resources(ReceiverStream::new(requests)).await?;
                Ok((Self::Sotw(send, responses.into_inner(), names), length))
            }
            Protocol::Delta => {
                let (send, requests) = mpsc::channel(16);
                let request = DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe: names,
                    initial_resource_versions: claims,
                    ..DeltaDiscoveryRequest::default()
                };
                let length = request.encoded_len();
                send.send(request).await?;
                let responses = client.delta_aggregated_resources(ReceiverStream::new(requests)).await?;
                Ok((Self::Delta(send, responses.into_inner()), length))
            }
        }
    }

    /// The next response as it came, and the versions in it.
    async fn next(&mut self) -> Result<(Bytes, HashMap<String, String>)> {
        match self {
            Self::Sotw(send, responses, names) => {
                let response = responses.message().await?.ok_or("the stream ended")?;
                let request = DiscoveryRequest {
                    version_info: response.version_info.clone(),
                    type_url: response.type_url.clone(),
                    response_nonce: response.nonce.clone(),
                    resource_names: names.clone(),
                    ..DiscoveryRequest::default()
                };
                send.send(request).await?;
                Ok((response.encode_to_vec().into(), HashMap::new()))
            }
            Self::Delta(send, responses) => {
                let response = responses.message().await?.ok_or("the stream ended")?;
                let request = DeltaDiscoveryRequest {
                    type_url: response.type_url.clone(),
                    response_nonce: response.nonce.clone(),
                    ..DeltaDiscoveryRequest::default()
                };
                send.send(request).await?;
                let bytes = response.encode_to_vec().into();
                Ok((bytes, response.resources.into_iter().map(|entry| (entry.name, entry.version)).collect()))
            }
        }
    }

    /// Responses until so many resources came over delta; in the other variant one response has all.
    async fn fill(&mut self, count: usize) -> Result<(usize, HashMap<String, String>)> {
        let (mut length, mut versions) = (0, HashMap::new());
        loop {
            let (bytes, more) = self.next().await?;
            length += bytes.len();
            versions.extend(more);
            if matches!(self, Self::Sotw(..)) || versions.len() >= count {
                return Ok((length, versions));
            }
        }
    }
}

async fn connect(server: &Server) -> Result<Channel> {
    Ok(Channel::from_shared(format!("http://{}", server.addr()))?.connect().await?)
}

async fn serve(snapshot: Snapshot) -> Result<Server> {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot);
    Ok(control_plane.serve("127.0.0.1:0").await?)
}

fn clusters(count: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    (0..count).for_each(|n| snapshot.insert(resources::eds_cluster(name(n))));
    snapshot
}

/// The response by which a client learns that one cluster of 10,000 changed.
async fn cluster_change(protocol: Protocol) -> Result<Bytes> {
    let server = serve(clusters(MANY)).await?;
    let names = (0..MANY).map(name).collect();
    let (mut stream, _) =
        Stream::open(connect(&server).await?, protocol, &TypeUrl::CLUSTER, names, HashMap::new()).await?;
    stream.fill(MANY).await?;
    server.control_plane().update(|snapshot| {
        snapshot.insert(resources::with_max_requests(resources::eds_cluster(name(MANY / 2)), 7));
    });
    Ok(stream.next().await?.0)
}

/// What a client is sent because one endpoint of 10,000 changed: the assignment, or the member of a glob.
async fn endpoint_change(protocol: Protocol) -> Result<f64> {
    let (type_url, names, mut snapshot) = match protocol {
        Protocol::Sotw => (TypeUrl::ENDPOINTS, vec!["service".to_owned()], Snapshot::default()),
        Protocol::Delta => (TypeUrl::ENDPOINT, vec![GLOB.to_owned()], Snapshot::default()),
    };
    let put = |snapshot: &mut Snapshot, changed: Option<usize>| match protocol {
        Protocol::Sotw => {
            let mut all = ingest::endpoints(MANY);
            if changed.is_some() {
                all.endpoints[0].lb_endpoints[0] = resources::endpoint(address(MANY));
            }
            snapshot.insert(all);
        }
        Protocol::Delta => match changed {
            Some(n) => snapshot.insert(member(n, MANY)),
            None => (0..MANY).for_each(|n| snapshot.insert(member(n, n))),
        },
    };
    put(&mut snapshot, None);
    let server = serve(snapshot).await?;
    let (mut stream, _) = Stream::open(connect(&server).await?, protocol, &type_url, names, HashMap::new()).await?;
    stream.fill(MANY).await?;
    server.control_plane().update(|snapshot| put(snapshot, Some(0)));
    Ok(stream.next().await?.0.len() as f64)
}

fn member(n: usize, host: usize) -> Resource {
    Resource::new(TypeUrl::ENDPOINT, member_name(n), resources::endpoint(address(host)).encode_to_vec())
}

fn member_name(n: usize) -> String {
    format!("{}{n:05}", GLOB.trim_end_matches('*'))
}

/// What a client sends and is sent when it comes back and nothing changed: over delta it claims all but one resource.
async fn reconnect(protocol: Protocol) -> Result<(f64, f64)> {
    let server = serve(clusters(MANY)).await?;
    let names: Vec<_> = (0..MANY).map(name).collect();
    let channel = connect(&server).await?;
    let open = |claims| Stream::open(channel.clone(), protocol, &TypeUrl::CLUSTER, names.clone(), claims);
    let (mut first, _) = open(HashMap::new()).await?;
    let (_, mut versions) = first.fill(MANY).await?;
    drop(first);
    versions.remove(&name(0));
    let (mut second, length) = open(versions).await?;
    let (received, _) = second.fill(1).await?;
    Ok((length as f64, received as f64))
}

// === The client ===

/// How long a client takes for a change, and bare decoding of what came, in µs: the best of several turns that alternate.
fn client_time(protocol: Protocol, change: &Bytes, turns: usize) -> Result<(f64, f64)> {
    let before = filled(protocol, MANY)?;
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let mut core = before.clone();
        let update = Bytes::copy_from_slice(change);
        let start = Instant::now();
        core.receive(update);
        ours.push(start.elapsed().as_secs_f64() * 1e6);
        drop(core);
        let start = Instant::now();
        let decoded = decode(protocol, change)?;
        bare.push(start.elapsed().as_secs_f64() * 1e6);
        drop(decoded);
    }
    Ok((stats::least(ours), stats::least(bare)))
}

fn decode(protocol: Protocol, change: &Bytes) -> Result<Vec<envoy_types::pb::envoy::config::cluster::v3::Cluster>> {
    let bodies: Vec<Vec<u8>> = match protocol {
        Protocol::Sotw => {
            DiscoveryResponse::decode(change.clone())?.resources.into_iter().map(|any| any.value).collect()
        }
        Protocol::Delta => DeltaDiscoveryResponse::decode(change.clone())?
            .resources
            .into_iter()
            .filter_map(|entry| Some(entry.resource?.value))
            .collect(),
    };
    Ok(bodies.iter().map(|body| Message::decode(body.as_slice())).collect::<Result<_, _>>()?)
}

/// A core with so many clusters, each with a route and an endpoint.
fn filled(protocol: Protocol, count: usize) -> Result<Core> {
    let endpoints = (0..count).map(|n| resources::endpoints(name(n), [address(n)]));
    let answers = ingest::routes(count)
        .into_iter()
        .chain([ingest::clusters("1", count, None), crate::core::response("1", endpoints)]);
    let mut core = match protocol {
        Protocol::Sotw => Core::new(answers)?,
        Protocol::Delta => Core::over_delta(answers)?,
    };
    core.connect_all();
    Ok(core)
}

/// What a cluster takes in the memory of a client.
fn memory(protocol: Protocol) -> Result<f64> {
    let live = |count: usize| -> Result<f64> {
        let before = alloc::live();
        let core = filled(protocol, count)?;
        let taken = alloc::live().saturating_sub(before);
        if core.snapshot.is_none() {
            return Err("no snapshot was published".into());
        }
        Ok(taken as f64)
    };
    Ok((live(MANY)? - live(MANY / 100)?) / (MANY - MANY / 100) as f64)
}

/// How long a client takes for one changed member of a glob collection of 10,000, in µs (GC-8).
fn glob_time(turns: usize) -> Result<f64> {
    let mut before = Core::over_delta([
        crate::core::response("1", [resources::listener("service", resources::route("service", "service"))]),
        crate::core::response("1", [resources::eds_cluster("service")]),
        crate::core::response("1", [resources::localities("service", [resources::leds_locality("zone", GLOB)])]),
    ])?;
    before.receive(members((0..MANY).map(|n| (n, n))));
    before.pass(Duration::from_secs(2)); // GC-5: the first set may come in pieces.
    before.connect_all();
    if before.snapshot.is_none() {
        return Err("no snapshot was published".into());
    }
    let mut took = Vec::new();
    for turn in 0..turns * 10 {
        let mut core = before.clone();
        let update = members([(turn * 37 % MANY, MANY + turn)]);
        let published = core.published;
        let start = Instant::now();
        core.receive(update);
        took.push(start.elapsed().as_secs_f64() * 1e6);
        if core.published == published {
            return Err("a changed member made no new snapshot".into());
        }
    }
    Ok(stats::least(took))
}

/// A response with members of the glob: which, and with whose address.
fn members(members: impl IntoIterator<Item = (usize, usize)>) -> Bytes {
    use envoy_types::pb::envoy::service::discovery::v3::Resource as Entry;
    use envoy_types::pb::google::protobuf::Any;
    let type_url = TypeUrl::ENDPOINT.as_str().to_owned();
    let entry = |(n, host): (usize, usize)| Entry {
        name: member_name(n),
        version: format!("{host:032x}"),
        resource: Some(Any { type_url: type_url.clone(), value: resources::endpoint(address(host)).encode_to_vec() }),
        ..Entry::default()
    };
    let response = DeltaDiscoveryResponse {
        resources: members.into_iter().map(entry).collect(),
        type_url: type_url.clone(),
        nonce: "members".to_owned(),
        ..DeltaDiscoveryResponse::default()
    };
    response.encode_to_vec().into()
}

// === The control plane ===

/// CPU of the control plane for one changed cluster, in ms, and how often something was encoded for it.
async fn control_plane_cpu(protocol: Protocol, streams: usize, count: usize, changes: usize) -> Result<(f64, f64)> {
    let server = serve(clusters(count)).await?;
    let clients = Clients::start(&server, protocol, streams, count)?;
    settled(&server, streams as u64).await?;
    let (cpu, before) = (cpu_time()?, server.stats());
    for change in 0..changes {
        let answered = server.stats().requests;
        server.control_plane().update(|snapshot| {
            let cluster = resources::with_max_requests(resources::eds_cluster(name(change)), 7);
            snapshot.insert(cluster);
        });
        settled(&server, answered + streams as u64).await?;
    }
    let (spent, after) = (cpu_time()? - cpu, server.stats());
    clients.stop()?;
    let responses = after.responses - before.responses;
    if responses != (streams * changes) as u64 {
        return Err(format!("{responses} responses to {streams} streams and {changes} changes").into());
    }
    let per_change = |value: f64| value / changes as f64;
    Ok((per_change(spent * 1e3), per_change((after.encodings - before.encodings) as f64)))
}

/// Waits until so many requests were read: every stream has acknowledged.
async fn settled(server: &Server, requests: u64) -> Result<()> {
    let streams = async {
        while server.stats().requests < requests {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(tokio::time::timeout(Duration::from_secs(120), streams).await.map_err(|_| "not every stream answered")?)
}

/// The CPU time of this process so far, in seconds.
fn cpu_time() -> Result<f64> {
    let mut nanos = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let spent = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += spent.split(' ').next().unwrap_or_default().parse::<f64>()?;
    }
    Ok(nanos / 1e9)
}

/// Many streams in a process of their own.
struct Clients(Child);

impl Clients {
    fn start(server: &Server, protocol: Protocol, streams: usize, clusters: usize) -> Result<Self> {
        let protocol = protocol.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut child = Command::new(std::env::current_exe()?)
            .args(["streams", "--server", &server.addr().to_string(), "--protocol", &protocol])
            .args(["--streams", &streams.to_string(), "--clusters", &clusters.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("no output")?;
        std::io::BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(format!("the clients said {line:?}").into());
        }
        Ok(Self(child))
    }

    fn stop(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        self.0.wait()?;
        Ok(())
    }
}

/// Follows a control plane with many streams, a hundred on a connection.
pub(crate) fn run_streams(args: &StreamsArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let names: Vec<_> = (0..args.clusters).map(name).collect();
        let mut channel = None;
        for n in 0..args.streams {
            if n % 100 == 0 {
                channel = Some(Channel::from_shared(format!("http://{}", args.server))?.connect().await?);
            }
            let channel = channel.clone().ok_or("no channel")?;
            let (mut stream, _) =
                Stream::open(channel, args.protocol, &TypeUrl::CLUSTER, names.clone(), HashMap::new()).await?;
            stream.fill(args.clusters).await?;
            tokio::spawn(async move { while stream.next().await.is_ok() {} });
        }
        println!("ready");
        std::io::stdout().flush()?;
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    })?;
    runtime.shutdown_background();
    Ok(())
}

/// Clusters, or endpoints of a cluster.
const MANY: usize = 10_000;

/// A glob collection of endpoints.
const GLOB: &str = "xdstp://bench/envoy.config.endpoint.v3.LbEndpoint/service/*";
