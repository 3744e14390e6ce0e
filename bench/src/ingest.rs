//! What an update costs, from the bytes of a response to the snapshot, against bare decoding of the same bytes.

use std::time::Instant;

use bytes::Bytes;
use clap::Args;
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use mainstay_control_plane::resources;
use prost::Message;

use crate::core::{Core, response};
use crate::plot::{Plot, number};
use crate::report::Report;
use crate::wires::{self, Protocol};
use crate::{Options, Result, stats};

/// What is measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct IngestOptions {
    #[command(flatten)]
    pub(crate) common: Options,
    /// Only what a change costs in these variants of ADS, from the control plane to the snapshot, and their ratios.
    #[arg(long, value_enum, value_delimiter = ',')]
    protocol: Vec<Protocol>,
}

pub(crate) fn measure(options: &IngestOptions) -> Result<Report> {
    let IngestOptions { common: options, protocol } = options;
    if !protocol.is_empty() {
        let mut report = Report::new("ingest", &[]);
        wires::measure(options.quick, protocol, &mut report)?;
        return Ok(report);
    }
    let mut report = Report::new("ingest", &["update", "to snapshot (ms)", "decoding (ms)", "ratio"]);
    let mut plot = Plot::new("Update to snapshot against bare decoding", "ratio");
    let turns = if options.quick { 5 } else { 15 };
    for endpoints in [1_000, 10_000, 100_000] {
        let case = Case::eds(endpoints)?;
        case.measure::<ClusterLoadAssignment>(turns, &mut report, &mut plot)?;
    }
    for clusters in [1_000, 10_000] {
        let case = Case::cds(clusters)?;
        case.measure::<Cluster>(turns, &mut report, &mut plot)?;
    }
    for clusters in [1_000, 10_000] {
        let case = Case::cds_one_changed(clusters)?;
        case.measure::<Cluster>(turns, &mut report, &mut plot)?;
    }
    report.plot(plot);
    report
        .note("the core of a channel without sockets; decoding is prost's of the response and of every resource in it");
    report.note("both are the best of several turns that alternate");
    Ok(report)
}

/// A core that waits for an update.
struct Case {
    key: String,
    before: Core,
    update: Bytes,
}

impl Case {
    /// The endpoints of a new cluster.
    fn eds(endpoints: usize) -> Result<Self> {
        let before = Core::new([
            response("1", [resources::listener("service", resources::rds("service"))]),
            response("1", [resources::route("service", "service")]),
            response("1", [resources::eds_cluster("service")]),
        ])?;
        let update = encode(response("1", [self::endpoints(endpoints)]));
        Ok(Self { key: format!("eds_{endpoints}"), before, update })
    }

    /// All clusters of a new channel, their endpoints still to come.
    fn cds(clusters: usize) -> Result<Self> {
        let before = Core::new(routes(clusters))?;
        Ok(Self { key: format!("cds_{clusters}"), before, update: encode(self::clusters("1", clusters, None)) })
    }

    /// All clusters once more, one of them changed.
    fn cds_one_changed(clusters: usize) -> Result<Self> {
        let endpoints = (0..clusters).map(|n| resources::endpoints(name(n), [address(n)]));
        let mut before = Core::new(
            routes(clusters).into_iter().chain([self::clusters("1", clusters, None), response("1", endpoints)]),
        )?;
        before.connect_all();
        let update = encode(self::clusters("2", clusters, Some(clusters / 2)));
        Ok(Self { key: format!("cds_{clusters}_one_changed"), before, update })
    }

    fn measure<M: Message + Default>(&self, turns: usize, report: &mut Report, plot: &mut Plot) -> Result<()> {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            let mut core = self.before.clone();
            // A buffer of its own, as the network makes it.
            let update = Bytes::copy_from_slice(&self.update);
            let start = Instant::now();
            core.receive(update);
            ours.push(start.elapsed().as_secs_f64() * 1e3);
            drop(core);

            let update = self.update.clone();
            let start = Instant::now();
            let decoded = decode::<M>(update)?;
            bare.push(start.elapsed().as_secs_f64() * 1e3);
            drop(decoded);
        }
        let (ours, bare) = (stats::least(ours), stats::least(bare));
        report.row([self.key.clone(), number(ours), number(bare), format!("{:.2}", ours / bare)]);
        report.set(&[&self.key, "ms"], ours);
        report.set(&[&self.key, "decode_ms"], bare);
        report.set(&[&self.key, "ratio_to_decode"], ours / bare);
        plot.bar(&self.key, ours / bare, true);
        Ok(())
    }
}

fn decode<M: Message + Default>(bytes: Bytes) -> Result<(DiscoveryResponse, Vec<M>)> {
    let response = DiscoveryResponse::decode(bytes)?;
    let resources = response.resources.iter().map(|any| M::decode(any.value.as_slice())).collect::<Result<_, _>>()?;
    Ok((response, resources))
}

/// The endpoints of the cluster `service`, in ten localities.
pub(crate) fn endpoints(count: usize) -> ClusterLoadAssignment {
    let localities = (0..10).map(|locality| {
        let addresses = (0..count).filter(|n| n % 10 == locality).map(address);
        resources::locality(format!("zone-{locality}"), addresses)
    });
    resources::localities("service", localities)
}

/// The listener and the routes of a channel with so many clusters.
pub(crate) fn routes(count: usize) -> [DiscoveryResponse; 2] {
    let table = (0..count).map(|n| resources::prefix_route(format!("/{}/", name(n)), name(n)));
    [
        response("1", [resources::listener("service", resources::rds("service"))]),
        response("1", [resources::route_table("service", table)]),
    ]
}

/// So many clusters; one of them may take fewer requests than the others.
pub(crate) fn clusters(version: &str, count: usize, changed: Option<usize>) -> DiscoveryResponse {
    let cluster = |n| {
        let cluster = resources::eds_cluster(name(n));
        if changed == Some(n) { resources::with_max_requests(cluster, 7) } else { cluster }
    };
    response(version, (0..count).map(cluster))
}

pub(crate) fn name(n: usize) -> String {
    format!("cluster-{n:05}")
}

pub(crate) fn address(n: usize) -> String {
    format!("10.{}.{}.{}:8080", n >> 16, n >> 8 & 255, n & 255)
}

pub(crate) fn encode(response: DiscoveryResponse) -> Bytes {
    response.encode_to_vec().into()
}
