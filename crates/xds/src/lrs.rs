//! Load reports: how many RPCs went where, told to the servers that want to know (LRS; A27, A64, A85).
//!
//! [`LoadStore`] counts; [`LrsClient`] reports. Like the [`XdsClient`](crate::client::XdsClient) it is driven from
//! outside: events and time go in, [`LrsClient::poll_action`] hands work out. There is one stream per server, as long as
//! something is counted for it (C-70):
//!
//! ```text
//! Pausing ──due──► Opening ──opened, node sent──► Silent ──first answer──► Reporting, each interval
//!    ▲                │                              │                        │
//!    └────────────────┴──────────closed──────────────┴────────────────────────┘
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::endpoint::v3 as pb;
use envoy_types::pb::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use envoy_types::pb::google::protobuf;
use prost::Message;

use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::client::{ClientSettings, Event, StreamId, encode_node};
use crate::{Backoff, Choose, Time};

mod metrics;
mod store;
#[cfg(test)]
mod tests;

pub use metrics::{Forwarded, Metric};
pub use store::{ClusterLoad, ClusterReport, Load, LoadStore, LocalityReport};

use metrics::{APPLICATION, CPU, MEMORY};

/// Reports what a [`LoadStore`] counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LrsClient {
    bootstrap: Arc<Bootstrap>,
    settings: ClientSettings,
    reporters: Vec<Reporter>,
    actions: VecDeque<Action>,
    next_stream: u64,
}

/// Something to do. Streams have ids of their own, apart from those of ADS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Take or make a connection to `server` and open a stream on it. Answered by [`Event::Opened`] or [`Event::Closed`].
    Open {
        /// Id of the attempt.
        stream: StreamId,
        /// Where to.
        server: Arc<ServerConfig>,
        /// Bound on connecting.
        connect_timeout: Duration,
    },
    /// Send an encoded `LoadStatsRequest`. Answered by [`Event::Sent`].
    Send(StreamId, Bytes),
    /// Close the stream and forget it.
    Close(StreamId),
}

/// Reports to one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reporter {
    server: Arc<ServerConfig>,
    link: Link,
    /// Attempts that failed since the last answer.
    failures: u32,
    /// Whether the last report had nothing to say (C-74).
    was_zero: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Link {
    /// Until the next attempt.
    Pausing(Time),
    Opening(StreamId),
    /// The server is told who we are and has not said what it wants. Whether the transport has taken that.
    Silent(StreamId, bool),
    Reporting(Reporting),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Reporting {
    stream: StreamId,
    wanted: Wanted,
    interval: Duration,
    /// When the next report is due.
    next: Time,
    /// The report that the transport has not taken yet.
    unsent: Option<Vec<ClusterReport>>,
    /// Whether the transport has yet to take the first request, which is no report.
    greeting_unsent: bool,
}

/// What a server wants to hear of (C-72).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Wanted {
    All,
    Clusters(BTreeSet<String>),
}

impl LrsClient {
    /// Reports nothing yet.
    pub fn new(bootstrap: Arc<Bootstrap>, settings: ClientSettings) -> Self {
        Self { bootstrap, settings, reporters: Vec::new(), actions: VecDeque::new(), next_stream: 0 }
    }

    /// Begins to report to servers that something is counted for, and stops where nothing is (C-70).
    pub fn follow(&mut self, store: &mut LoadStore) {
        if !store.take_changed() {
            return;
        }
        let is_known = |server: &&Arc<ServerConfig>| self.reporters.iter().any(|reporter| reporter.server == **server);
        let new: Vec<_> = store.servers().filter(|server| !is_known(server)).cloned().collect();
        for server in new {
            let stream = self.open(&server);
            self.reporters.push(Reporter { server, link: Link::Opening(stream), failures: 0, was_zero: false });
        }
        // A server that listens is told the rest first.
        let is_over = |reporter: &Reporter, store: &mut LoadStore| {
            !matches!(reporter.link, Link::Reporting(_)) && !store.is_used(&reporter.server)
        };
        let actions = &mut self.actions;
        self.reporters.retain(|reporter| {
            let is_over = is_over(reporter, store);
            if is_over {
                actions.extend(reporter.link.stream().map(Action::Close));
                store.forget(&reporter.server);
            }
            !is_over
        });
    }

    /// Takes in what happened to a stream. Events of streams that are closed are ignored.
    pub fn handle_event(&mut self, now: Time, choose: &mut dyn Choose, store: &mut LoadStore, event: Event) {
        match event {
            Event::Opened(stream) => self.on_opened(stream),
            Event::Sent(stream) => self.on_sent(stream),
            Event::Alive(..) => {} // Never asked for here.
            Event::Received(stream, message) => self.on_response(now, stream, &message),
            Event::Closed(stream, _) => self.on_closed(now, choose, store, stream),
        }
    }

    /// Does what is due. A call that comes early or twice does nothing.
    pub fn handle_timeout(&mut self, now: Time, store: &mut LoadStore) {
        for at in (0..self.reporters.len()).rev() {
            match &self.reporters[at].link {
                Link::Pausing(until) if *until <= now => {
                    let server = Arc::clone(&self.reporters[at].server);
                    self.reporters[at].link = Link::Opening(self.open(&server));
                }
                Link::Reporting(reporting) if reporting.next <= now => self.report(now, at, store),
                Link::Pausing(_) | Link::Opening(_) | Link::Silent(..) | Link::Reporting(_) => {}
            }
        }
    }

    /// When [`LrsClient::handle_timeout`] is due.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadline = |reporter: &Reporter| match &reporter.link {
            Link::Pausing(until) => Some(*until),
            Link::Reporting(reporting) => Some(reporting.next),
            Link::Opening(_) | Link::Silent(..) => None,
        };
        self.reporters.iter().filter_map(deadline).min()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Closes every stream.
    pub fn shut_down(&mut self) {
        let streams = self.reporters.drain(..).filter_map(|reporter| reporter.link.stream());
        self.actions.extend(streams.map(Action::Close));
    }

    fn open(&mut self, server: &Arc<ServerConfig>) -> StreamId {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        let connect_timeout = self.settings.last_connect_timeout;
        self.actions.push_back(Action::Open { stream, server: Arc::clone(server), connect_timeout });
        stream
    }

    fn reporter(&mut self, stream: StreamId) -> Option<&mut Reporter> {
        self.reporters.iter_mut().find(|reporter| reporter.link.stream() == Some(stream))
    }

    /// Says who we are, and nothing more before the server answers (C-71).
    fn on_opened(&mut self, stream: StreamId) {
        let Some(reporter) = self.reporter(stream) else { return };
        if !matches!(reporter.link, Link::Opening(_)) {
            return;
        }
        reporter.link = Link::Silent(stream, false);
        let ClientSettings { user_agent_name, user_agent_version, .. } = &self.settings;
        let node = self.bootstrap.node.to_proto(user_agent_name, user_agent_version, &FEATURES);
        let greeting = Greeting { node: encode_node(node) };
        self.actions.push_back(Action::Send(stream, greeting.encode_to_vec().into()));
    }

    fn on_sent(&mut self, stream: StreamId) {
        match self.reporter(stream).map(|reporter| &mut reporter.link) {
            Some(Link::Silent(_, greeted)) => *greeted = true,
            Some(Link::Reporting(reporting)) if reporting.greeting_unsent => reporting.greeting_unsent = false,
            Some(Link::Reporting(reporting)) => reporting.unsent = None,
            Some(Link::Pausing(_) | Link::Opening(_)) | None => {}
        }
    }

    fn on_response(&mut self, now: Time, stream: StreamId, message: &Bytes) {
        let least = self.settings.min_load_report_interval;
        let Some(reporter) = self.reporter(stream) else { return };
        let Ok(response) = LoadStatsResponse::decode(&**message) else { return };
        let wanted = match response.send_all_clusters {
            true => Wanted::All,
            false => Wanted::Clusters(response.clusters.into_iter().collect()),
        };
        let interval = response.load_reporting_interval.as_ref().map_or(Duration::ZERO, duration).max(least); // C-73
        reporter.failures = 0;
        match &mut reporter.link {
            // C-73: the timer goes on unless the interval is another one.
            Link::Reporting(reporting) => {
                if reporting.interval != interval {
                    (reporting.interval, reporting.next) = (interval, now + interval);
                }
                reporting.wanted = wanted;
            }
            Link::Silent(_, greeted) => {
                // A server can be faster than the word that it was written to.
                let greeting_unsent = !*greeted;
                let next = now + interval;
                let unsent = None;
                reporter.link = Link::Reporting(Reporting { stream, wanted, interval, next, unsent, greeting_unsent });
            }
            Link::Pausing(_) | Link::Opening(_) => {}
        }
    }

    /// Tries again after a pause (C-76). What the transport did not take is counted again.
    fn on_closed(&mut self, now: Time, choose: &mut dyn Choose, store: &mut LoadStore, stream: StreamId) {
        let backoff = Backoff::new(self.settings.backoff_base, self.settings.backoff_max);
        let Some(reporter) = self.reporter(stream) else { return };
        let pause = backoff.delay(reporter.failures, choose);
        reporter.failures = reporter.failures.saturating_add(1);
        let link = std::mem::replace(&mut reporter.link, Link::Pausing(now + pause));
        let server = Arc::clone(&reporter.server);
        if let Link::Reporting(Reporting { unsent: Some(reports), .. }) = link {
            store.put_back(&server, reports);
        }
        if !store.counts_for(&server) {
            self.reporters.retain(|reporter| reporter.server != server);
        }
    }

    fn report(&mut self, now: Time, at: usize, store: &mut LoadStore) {
        let reporter = &mut self.reporters[at];
        let Link::Reporting(reporting) = &mut reporter.link else { return };
        reporting.next = now + reporting.interval;
        if reporting.unsent.is_some() {
            return; // The server does not read: what is counted waits for the next time.
        }
        // C-70: the last report has had time to arrive.
        if !store.counts_for(&reporter.server) {
            self.actions.push_back(Action::Close(reporting.stream));
            self.reporters.remove(at);
            return;
        }
        let mut reports = store.take(now, &reporter.server);
        // C-75: what is not wanted is gone all the same.
        reports.retain(|report| reporting.wanted.includes(&report.cluster));
        let is_zero = reports.iter().all(ClusterReport::is_zero);
        let was_zero = std::mem::replace(&mut reporter.was_zero, is_zero);
        if reports.is_empty() || (is_zero && was_zero) {
            return; // C-74
        }
        let request = LoadStatsRequest { node: None, cluster_stats: reports.iter().map(cluster_stats).collect() };
        self.actions.push_back(Action::Send(reporting.stream, request.encode_to_vec().into()));
        reporting.unsent = Some(reports);
    }
}

impl Link {
    fn stream(&self) -> Option<StreamId> {
        match self {
            Self::Pausing(_) => None,
            Self::Opening(stream) | Self::Silent(stream, _) => Some(*stream),
            Self::Reporting(reporting) => Some(reporting.stream),
        }
    }
}

impl Wanted {
    fn includes(&self, cluster: &str) -> bool {
        match self {
            Self::All => true,
            Self::Clusters(names) => names.contains(cluster),
        }
    }
}

/// The first `LoadStatsRequest`. To the wire, bytes are the same as a message.
#[derive(Clone, PartialEq, Message)]
struct Greeting {
    #[prost(bytes = "vec", tag = "1")]
    node: Vec<u8>,
}

fn cluster_stats(report: &ClusterReport) -> pb::ClusterStats {
    let dropped = |(category, count): &(Arc<str>, u64)| pb::cluster_stats::DroppedRequests {
        category: category.to_string(),
        dropped_count: *count,
    };
    pb::ClusterStats {
        cluster_name: report.cluster.to_string(),
        cluster_service_name: report.eds_service.to_string(),
        upstream_locality_stats: report.localities.iter().map(locality_stats).collect(),
        total_dropped_requests: report.drops.iter().map(|(_, count)| count).sum::<u64>() + report.circuit_drops,
        dropped_requests: report.drops.iter().map(dropped).collect(),
        load_report_interval: Some(protobuf::Duration {
            seconds: i64::try_from(report.interval.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(report.interval.subsec_nanos()).unwrap_or(0),
        }),
    }
}

fn locality_stats(report: &LocalityReport) -> pb::UpstreamLocalityStats {
    let unnamed = |name: &str| {
        let metric = report.metrics.iter().find(|metric| metric.name == name)?;
        Some(pb::UnnamedEndpointLoadMetricStats {
            num_requests_finished_with_metric: metric.count,
            total_metric_value: metric.sum(),
        })
    };
    let is_named = |metric: &&Metric| ![CPU, MEMORY, APPLICATION].contains(&metric.name.as_str());
    let named = |metric: &Metric| pb::EndpointLoadMetricStats {
        metric_name: metric.name.clone(),
        num_requests_finished_with_metric: metric.count,
        total_metric_value: metric.sum(),
    };
    let locality = &report.locality;
    pb::UpstreamLocalityStats {
        locality: Some(core::Locality {
            region: locality.region.clone(),
            zone: locality.zone.clone(),
            sub_zone: locality.sub_zone.clone(),
        }),
        total_issued_requests: report.issued,
        total_successful_requests: report.succeeded,
        total_error_requests: report.failed,
        total_requests_in_progress: report.in_progress,
        cpu_utilization: unnamed(CPU),
        mem_utilization: unnamed(MEMORY),
        application_utilization: unnamed(APPLICATION),
        load_metric_stats: report.metrics.iter().filter(is_named).map(named).collect(),
        ..Default::default()
    }
}

/// A duration that a server sent; what is negative or too long is zero.
fn duration(pb: &protobuf::Duration) -> Duration {
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(pb.seconds), u32::try_from(pb.nanos)) else { return Duration::ZERO };
    Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into()))
}

/// Client features told to LRS servers (P-67).
const FEATURES: [&str; 2] = ["envoy.lb.does_not_support_overprovisioning", "envoy.lrs.supports_send_all_clusters"];
