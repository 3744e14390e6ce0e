//! How the cost of one change grows with what there is: instructions, counted by callgrind in a child that runs the core
//! of a channel without sockets. So they are the same on every run and on a busy machine.
//!
//! Each row has a number of things, of which one changes. What must be read anyway, because it comes with the change (all
//! clusters over the state of the world, all endpoints of a cluster, all routes of a table), is measured beside it: the
//! same bytes decoded by prost, and dropped.

use std::hint::black_box;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use mainstay_control_plane::resources;
use prost::Message;

use crate::core::{Core, response};
use crate::ingest::{address, clusters, encode, name, routes};
use crate::plot::number;
use crate::policy::Policy;
use crate::report::Report;
use crate::{Options, Result, callgrind};

/// What is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct GrowthOptions {
    #[command(flatten)]
    pub(crate) common: Options,
    /// How many things there are.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<usize>,
    /// Only these rows.
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Row>,
}

/// What the child under callgrind does.
#[derive(Args, Clone, Debug)]
pub(crate) struct GrowArgs {
    #[arg(long)]
    row: Row,
    #[arg(long)]
    policy: Policy,
    #[arg(long)]
    size: usize,
    /// Decode and drop what came with the change instead of making it.
    #[arg(long)]
    decode: bool,
}

/// What changes, and among what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Row {
    /// The endpoints of one cluster, among so many clusters.
    EdsOfOneCluster,
    /// One cluster, with all of them in the response.
    OneCluster,
    /// The clusters of a new channel.
    NewClusters,
    /// One route, with the table in the response.
    OneRoute,
    /// The only connection of one cluster is lost, among so many clusters.
    LostOfOneCluster,
    /// The connection to one endpoint of a cluster is lost.
    Lost,
    /// It is back.
    Back,
    /// One endpoint is replaced, with all of the cluster in the response.
    OneEndpoint,
    /// The endpoints of a cluster are connected to, one after the other.
    Connecting,
}

/// What happens to a core.
enum Change {
    /// A response comes.
    Update(Bytes),
    /// This connection is lost.
    Lost(usize),
    /// It is back.
    Back(usize),
    /// All are made, each on its own.
    Connect,
}

pub(crate) fn measure(options: &GrowthOptions) -> Result<Report> {
    if !callgrind::is_there() {
        return Err("growth is counted in instructions: valgrind is needed".into());
    }
    let GrowthOptions { common, sizes, rows } = options;
    let sizes: &[usize] = match (&**sizes, common.quick) {
        ([], true) => &[10, 1_000],
        ([], false) => &[10, 100, 1_000, 10_000],
        (sizes, _) => sizes,
    };
    let rows: &[Row] = if rows.is_empty() { Row::value_variants() } else { rows };
    let mut report = Report::new("growth", &["one change", "among", "instructions", "decoding", "ratio"]);
    for (&row, &policy, &size) in rows
        .iter()
        .flat_map(|row| row.policies().iter().flat_map(move |p| sizes.iter().map(move |size| (row, p, size))))
    {
        let row_name = row.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let mut args = vec!["grow".to_owned(), format!("--row={row_name}"), format!("--size={size}")];
        args.push(format!("--policy={}", policy.name()));
        let ours = count(&args)?;
        let name = if row.policies().len() == 1 { row_name } else { format!("{row_name}/{}", policy.name()) };
        let key = size.to_string();
        report.set(&[&name, &key, "instructions"], ours);
        let (mut bare, mut ratio) = (String::new(), String::new());
        if row.comes_with_all() {
            args.push("--decode".to_owned());
            let decoding = count(&args)?;
            report.set(&[&name, &key, "decode_instructions"], decoding);
            report.set(&[&name, &key, "ratio_to_decode"], ours / decoding);
            (bare, ratio) = (number(decoding), format!("{:.2}", ours / decoding));
        }
        report.row([name, number(size as f64), number(ours), bare, ratio]);
    }
    report
        .note("instructions of the core of a channel without sockets, from the event to the snapshot and the request");
    report.note("decoding is prost's of the response and of every resource in it, dropped at once");
    Ok(report)
}

fn count(args: &[String]) -> Result<f64> {
    Ok(callgrind::instructions_within(&std::env::current_exe()?, args, COUNTED)? as f64)
}

/// Makes one change; only what [`counted`] does is counted.
pub(crate) fn run(args: &GrowArgs) -> Result<()> {
    fastrand::seed(1);
    let (mut core, change) = args.row.prepare(args.policy, args.size)?;
    match change {
        Change::Update(update) if args.decode => decode_counted(args.row, update)?,
        change => counted(&mut core, change),
    }
    black_box(&core);
    Ok(())
}

/// In what the instructions are counted.
const COUNTED: &str = "*growth*counted*";

#[inline(never)]
fn counted(core: &mut Core, change: Change) {
    match change {
        Change::Update(update) => core.receive(update),
        Change::Lost(index) => core.lose(index),
        Change::Back(index) => core.bring_back(index),
        Change::Connect => core.connect_each(),
    }
}

#[inline(never)]
fn decode_counted(row: Row, update: Bytes) -> Result<()> {
    match row {
        Row::OneCluster | Row::NewClusters => decode_and_drop::<Cluster>(update),
        Row::OneRoute => decode_and_drop::<RouteConfiguration>(update),
        _ => decode_and_drop::<ClusterLoadAssignment>(update),
    }
}

fn decode_and_drop<M: Message + Default>(update: Bytes) -> Result<()> {
    let response = DiscoveryResponse::decode(update)?;
    for any in &response.resources {
        black_box(M::decode(any.value.as_slice())?);
    }
    Ok(())
}

impl Row {
    /// Whether the response has more in it than what changes.
    fn comes_with_all(self) -> bool {
        match self {
            Self::OneCluster | Self::NewClusters | Self::OneRoute | Self::OneEndpoint => true,
            Self::EdsOfOneCluster | Self::LostOfOneCluster | Self::Lost | Self::Back | Self::Connecting => false,
        }
    }

    /// The LB policies with which it is measured.
    fn policies(self) -> &'static [Policy] {
        match self {
            Self::Lost | Self::Back | Self::OneEndpoint => &[
                Policy::RoundRobin,
                Policy::RingHash,
                Policy::LeastRequest,
                Policy::WeightedRoundRobin,
                Policy::OutlierDetection,
            ],
            Self::EdsOfOneCluster
            | Self::OneCluster
            | Self::NewClusters
            | Self::OneRoute
            | Self::LostOfOneCluster
            | Self::Connecting => &[Policy::RoundRobin],
        }
    }

    /// A core with so many things, and the change.
    fn prepare(self, policy: Policy, size: usize) -> Result<(Core, Change)> {
        let middle = size / 2;
        Ok(match self {
            Self::EdsOfOneCluster => {
                let update = encode(response("2", [resources::endpoints(name(middle), [address(size)])]));
                (of_clusters(size)?, Change::Update(update))
            }
            Self::OneCluster => (of_clusters(size)?, Change::Update(encode(clusters("2", size, Some(middle))))),
            Self::NewClusters => (Core::new(routes(size))?, Change::Update(encode(clusters("1", size, None)))),
            Self::OneRoute => {
                let route = |n| {
                    let prefix = if n == middle { "/changed/".to_owned() } else { format!("/{}/", name(n)) };
                    resources::prefix_route(prefix, name(n))
                };
                let table = resources::route_table("service", (0..size).map(route));
                (of_clusters(size)?, Change::Update(encode(response("2", [table]))))
            }
            Self::LostOfOneCluster => (of_clusters(size)?, Change::Lost(middle)),
            Self::Lost => (of_endpoints(policy, size)?, Change::Lost(middle)),
            Self::Back => {
                let mut core = of_endpoints(policy, size)?;
                core.lose(middle);
                (core, Change::Back(middle))
            }
            Self::OneEndpoint => {
                let addresses = (0..size).map(|n| address(if n == middle { size } else { n }));
                let update = encode(response("2", [resources::endpoints(policy.name(), addresses)]));
                (of_endpoints(policy, size)?, Change::Update(update))
            }
            Self::Connecting => {
                let mut core = Core::new(configuration(policy))?;
                core.receive(encode(response("1", [resources::endpoints(policy.name(), (0..size).map(address))])));
                (core, Change::Connect)
            }
        })
    }
}

/// So many clusters with a route, an endpoint and a connection each.
fn of_clusters(size: usize) -> Result<Core> {
    let endpoints = (0..size).map(|n| resources::endpoints(name(n), [address(n)]));
    let routes = routes(size).into_iter();
    let mut core = Core::new(routes.chain([clusters("1", size, None), response("1", endpoints)]))?;
    core.connect_all();
    Ok(core)
}

/// One cluster with so many endpoints, all connected.
fn of_endpoints(policy: Policy, size: usize) -> Result<Core> {
    let mut core = Core::new(configuration(policy))?;
    core.receive(encode(response("1", [resources::endpoints(policy.name(), (0..size).map(address))])));
    core.wake(2 * size);
    core.connect_all();
    Ok(core)
}

/// Listener and cluster of one target.
fn configuration(policy: Policy) -> [DiscoveryResponse; 2] {
    [response("1", [policy.listener_of("service")]), response("1", [policy.cluster()])]
}
