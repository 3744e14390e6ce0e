//! Load reporting as transcripts: what is said to whom, and when.

use std::net::SocketAddr;

use envoy_types::pb::google::protobuf::Duration as PbDuration;

use super::*;
use crate::bootstrap::{ChannelCreds, Node, ServerFeatures};
use crate::client::CloseCause;
use crate::resource::endpoint::Locality;

#[test]
fn the_node_comes_first_and_nothing_more_before_an_answer() {
    let mut bed = Testbed::new();
    let load = bed.cluster("c");
    assert_eq!(bed.log(), "open 0 a", "C-70: as soon as something is counted");
    bed.event(Event::Opened(StreamId(0)));
    let Some(Action::Send(_, message)) = bed.client.poll_action() else { panic!("the first request") };
    let request = LoadStatsRequest::decode(&*message).unwrap();
    let node = request.node.unwrap();
    assert_eq!((node.id.as_str(), request.cluster_stats.len()), ("n", 0), "C-71");
    assert_eq!(node.client_features, FEATURES, "P-67");
    load.begin(address(1)).end(true, None);
    bed.advance(100);
    assert_eq!(bed.log(), "", "C-71");
}

#[test]
fn each_interval_tells_what_was_counted_in_it() {
    let mut bed = Testbed::answered(10, &["*"]);
    let load = bed.cluster("c");
    let (first, second, third) = (load.begin(address(1)), load.begin(address(1)), load.begin(address(2)));
    first.end(true, None);
    drop(second);
    bed.advance(10);
    assert_eq!(
        bed.log(),
        "report 0: c/e 10s [x: issued 2 ok 1 failed 1 now 0] [y: issued 1 ok 0 failed 0 now 1]",
        "C-74, C-77: dropped without a word is a failure"
    );
    third.end(true, None);
    bed.advance(10);
    assert_eq!(bed.log(), "report 0: c/e 10s [y: issued 0 ok 1 failed 0 now 0]", "in progress is a gauge");
}

#[test]
fn drops_are_told_by_category_and_the_circuit_breakers_only_in_the_total() {
    let mut bed = Testbed::answered(1, &["*"]);
    let load = bed.cluster("c");
    for category in [0, 1, 1, 7] {
        load.count_drop(category);
    }
    load.count_circuit_drop();
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s dropped 4 (lb 1, throttle 2)", "C-77, L-85");
}

#[test]
fn nothing_is_told_twice_of_nothing() {
    let mut bed = Testbed::answered(1, &["*"]);
    let load = bed.cluster("c");
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s", "C-74: once");
    bed.advance(5);
    assert_eq!(bed.log(), "", "C-74");
    let running = load.begin(address(1));
    bed.advance(2);
    assert_eq!(
        bed.log(),
        "report 0: c/e 1s [x: issued 1 ok 0 failed 0 now 1], report 0: c/e 1s [x: issued 0 ok 0 failed 0 now 1]",
        "an RPC in progress is something"
    );
    running.end(true, None);
}

#[test]
fn only_wanted_clusters_are_told_and_the_others_forget() {
    let mut bed = Testbed::answered(1, &["c"]);
    let (c, d) = (bed.cluster("c"), bed.cluster("d"));
    c.begin(address(1)).end(true, None);
    d.begin(address(1)).end(true, None);
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s [x: issued 1 ok 1 failed 0 now 0]", "C-72");
    bed.response(1, &["c", "d"]);
    d.begin(address(1)).end(true, None);
    bed.advance(1);
    assert_eq!(
        bed.log(),
        "report 0: c/e 1s; d/e 1s [x: issued 1 ok 1 failed 0 now 0]",
        "C-75: what was counted before was not kept"
    );
}

#[test]
fn the_interval_has_a_floor_and_only_another_one_restarts_the_timer() {
    let mut bed = Testbed::answered(0, &["*"]);
    let load = bed.cluster("c");
    assert_eq!(bed.client.next_deadline(), Some(bed.now + Duration::from_secs(1)), "C-73");
    bed.response(10, &["*"]);
    assert_eq!(bed.client.next_deadline(), Some(bed.now + Duration::from_secs(10)), "C-73");
    bed.advance(6);
    bed.response(10, &["*"]);
    bed.response(10, &["c"]);
    assert_eq!(bed.client.next_deadline(), Some(bed.now + Duration::from_secs(4)), "C-73: neither restarts it");
    bed.response(20, &["c"]);
    assert_eq!(bed.client.next_deadline(), Some(bed.now + Duration::from_secs(20)), "C-73");
    bed.response(-5, &["c"]);
    assert_eq!(bed.client.next_deadline(), Some(bed.now + Duration::from_secs(1)), "C-73");
    drop(load);
}

#[test]
fn what_is_counted_during_an_outage_is_told_after_it() {
    let mut bed = Testbed::answered(10, &["*"]);
    let load = bed.cluster("c");
    load.begin(address(1)).end(true, None);
    bed.advance(5);
    bed.close(0);
    load.begin(address(1)).end(true, None);
    assert_eq!(bed.log(), "");
    bed.advance(1);
    assert_eq!(bed.log(), "open 1 a", "C-76: an answered stream is opened again after the first pause");
    bed.close(1);
    bed.advance(1);
    assert_eq!(bed.log(), "", "C-76: 1.6 s now");
    bed.advance(1);
    assert_eq!(bed.log(), "open 2 a", "C-76");
    bed.answer(2, 10, &["*"]);
    bed.advance(10);
    assert_eq!(bed.log(), "report 2: c/e 18s [x: issued 2 ok 2 failed 0 now 0]", "the measured time, and all of it");
}

#[test]
fn a_report_that_the_transport_did_not_take_is_counted_again() {
    let mut bed = Testbed::answered(1, &["*"]);
    let load = bed.cluster("c");
    load.begin(address(1)).end(false, None);
    load.count_drop(1);
    bed.sends_are_taken = false;
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s dropped 1 (throttle 1) [x: issued 1 ok 0 failed 1 now 0]");
    load.begin(address(1)).end(true, None);
    bed.advance(3);
    assert_eq!(bed.log(), "", "a server that does not read gets no more");
    bed.close(0);
    bed.sends_are_taken = true;
    bed.advance(1);
    bed.answer(1, 1, &["*"]);
    bed.advance(1);
    assert_eq!(
        bed.log(),
        "open 1 a, report 1: c/e 6s dropped 1 (throttle 1) [x: issued 2 ok 1 failed 1 now 0]",
        "no RPC is lost"
    );
}

#[test]
fn what_is_gone_is_told_once_more_and_then_the_stream_ends() {
    let mut bed = Testbed::answered(1, &["*"]);
    let load = bed.cluster("c");
    let running = load.begin(address(2));
    load.begin(address(1)).end(true, None);
    drop(load);
    bed.store.release();
    bed.follow();
    bed.advance(1);
    assert_eq!(
        bed.log(),
        "report 0: c/e 1s [x: issued 1 ok 1 failed 0 now 0] [y: issued 1 ok 0 failed 0 now 1]",
        "C-78"
    );
    running.end(true, None);
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s [y: issued 0 ok 1 failed 0 now 0]", "C-78");
    bed.advance(1);
    assert_eq!(bed.log(), "close 0", "C-70");
    assert_eq!(bed.client.next_deadline(), None);
    bed.cluster("c");
    assert_eq!(bed.log(), "open 1 a", "C-70: it begins anew");
}

#[test]
fn a_server_that_never_answered_is_left_when_nothing_is_counted_for_it() {
    let mut bed = Testbed::new();
    let load = bed.cluster("c");
    bed.event(Event::Opened(StreamId(0)));
    bed.log();
    drop(load);
    bed.store.release();
    bed.follow();
    assert_eq!(bed.log(), "close 0", "C-70");
}

#[test]
fn each_server_hears_of_its_own_clusters() {
    let mut bed = Testbed::new();
    let (c, d) = (bed.cluster("c"), bed.cluster_of("d", "b"));
    assert_eq!(bed.log(), "open 0 a, open 1 b", "C-69, C-70");
    bed.answer(0, 1, &["*"]);
    bed.answer(1, 1, &["*"]);
    c.begin(address(1)).end(true, None);
    d.begin(address(1)).end(false, None);
    bed.advance(1);
    assert_eq!(
        bed.log(),
        "report 1: d/e 1s [x: issued 1 ok 0 failed 1 now 0], report 0: c/e 1s [x: issued 1 ok 1 failed 0 now 0]",
        "C-69"
    );
}

#[test]
fn an_rpc_that_was_never_sent_does_not_count() {
    let mut bed = Testbed::answered(1, &["*"]);
    let load = bed.cluster("c");
    load.begin(address(1)).withdraw();
    let late = load.begin(address(2));
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s [y: issued 1 ok 0 failed 0 now 1]");
    late.withdraw();
    bed.advance(1);
    assert_eq!(bed.log(), "report 0: c/e 1s [y: issued 0 ok 0 failed 1 now 0]", "it was told already: it has failed");
}

#[test]
fn metrics_of_endpoints_are_passed_on() {
    use base64::Engine;
    let mut bed = Testbed::answered(1, &["*"]);
    let load = bed.cluster("c");
    let report = crate::orca::OrcaLoadReport {
        cpu_utilization: 0.5,
        mem_utilization: 0.5,
        named_metrics: [("q".to_owned(), 2.0)].into(),
        ..Default::default()
    };
    let trailer = base64::engine::general_purpose::STANDARD.encode(report.encode_to_vec());
    for trailer in [trailer.as_bytes(), trailer.as_bytes(), b"garbage!"] {
        load.begin(address(1)).end(true, Some(trailer));
    }
    bed.advance(1);
    assert_eq!(
        bed.log(),
        "report 0: c/e 1s [x: issued 3 ok 3 failed 0 now 0 cpu 2/1 named_metrics.q 2/4]",
        "C-79 to C-81: memory was not asked for"
    );
}

#[test]
fn garbage_and_words_of_closed_streams_change_nothing() {
    let mut bed = Testbed::answered(1, &["*"]);
    let _load = bed.cluster("c");
    let before = bed.client.clone();
    bed.event(Event::Received(StreamId(0), Bytes::from_static(b"\xff\xff")));
    for event in [Event::Opened(StreamId(9)), Event::Sent(StreamId(9)), Event::Received(StreamId(9), Bytes::new())] {
        bed.event(event);
    }
    bed.close(9);
    assert_eq!(bed.client, before);
}

/// A client, a store, and a transport that takes everything at once.
struct Testbed {
    client: LrsClient,
    store: LoadStore,
    now: Time,
    sends_are_taken: bool,
}

struct NoJitter;

impl Choose for NoJitter {
    fn choose(&mut self, bound: u64) -> u64 {
        200.min(bound - 1)
    }
}

impl Testbed {
    fn new() -> Self {
        let mut bootstrap = Bootstrap {
            servers: vec![server("a"), server("b")],
            node: Node { id: "n".to_owned(), ..Node::default() },
            authorities: Default::default(),
            client_default_listener_resource_name_template: "%s".to_owned(),
            server_listener_resource_name_template: None,
            certificate_providers: Default::default(),
            last_good: None,
            audit_loggers: Default::default(),
            guards: Default::default(),
        };
        bootstrap.node.cluster = "nc".to_owned();
        let client = LrsClient::new(Arc::new(bootstrap), ClientSettings::default());
        Self { client, store: LoadStore::default(), now: Time::ZERO, sends_are_taken: true }
    }

    /// With a stream to server `a` that has been answered.
    fn answered(interval: i64, wanted: &[&str]) -> Self {
        let mut bed = Self::new();
        drop(bed.cluster("c"));
        bed.answer(0, interval, wanted);
        bed.log();
        bed
    }

    fn cluster(&mut self, name: &str) -> ClusterLoad {
        self.cluster_of(name, "a")
    }

    /// Endpoint 1 in locality x, endpoint 2 in locality y.
    fn cluster_of(&mut self, name: &str, of: &str) -> ClusterLoad {
        let zone = |zone: &str| Arc::new(Locality { zone: zone.into(), ..Locality::default() });
        let (x, y) = (zone("x"), zone("y"));
        let metrics = ["cpu_utilization".to_owned(), "named_metrics.q".to_owned()];
        let load = self.store.cluster(
            self.now,
            &server(of),
            &name.into(),
            &"e".into(),
            ["lb", "throttle"].into_iter(),
            [(&x, address(1)), (&y, address(2))].into_iter(),
            Forwarded::new(&metrics),
        );
        self.follow();
        load
    }

    fn follow(&mut self) {
        self.client.follow(&mut self.store);
    }

    fn answer(&mut self, stream: u64, interval: i64, wanted: &[&str]) {
        self.event(Event::Opened(StreamId(stream)));
        self.event(Event::Sent(StreamId(stream)));
        self.client.actions.retain(|action| !matches!(action, Action::Send(..)));
        self.response_on(stream, interval, wanted);
    }

    fn response(&mut self, interval: i64, wanted: &[&str]) {
        self.response_on(0, interval, wanted);
    }

    fn response_on(&mut self, stream: u64, seconds: i64, wanted: &[&str]) {
        let send_all_clusters = wanted == ["*"];
        let response = LoadStatsResponse {
            clusters: wanted.iter().map(|name| (*name).to_owned()).collect(),
            send_all_clusters,
            load_reporting_interval: Some(PbDuration { seconds, nanos: 0 }),
            ..Default::default()
        };
        self.event(Event::Received(StreamId(stream), response.encode_to_vec().into()));
    }

    fn close(&mut self, stream: u64) {
        self.event(Event::Closed(StreamId(stream), CloseCause::ConnectionLost("cut".to_owned())));
    }

    fn event(&mut self, event: Event) {
        self.client.handle_event(self.now, &mut NoJitter, &mut self.store, event);
    }

    /// Lets seconds pass, stopping at each deadline.
    fn advance(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while let Some(at) = self.client.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let before = self.client.actions.len();
            self.client.handle_timeout(self.now, &mut self.store);
            let sent = self.client.actions.iter().skip(before).filter_map(|action| match action {
                Action::Send(stream, _) if self.sends_are_taken => Some(*stream),
                _ => None,
            });
            for stream in sent.collect::<Vec<_>>() {
                self.event(Event::Sent(stream));
            }
        }
        self.now = end;
    }

    /// What was to be done since the last call.
    fn log(&mut self) -> String {
        let mut lines = Vec::new();
        while let Some(action) = self.client.poll_action() {
            lines.push(match action {
                Action::Open { stream, server, .. } => format!("open {} {}", stream.0, server.server_uri),
                Action::Close(stream) => format!("close {}", stream.0),
                Action::Send(stream, message) => {
                    let request = LoadStatsRequest::decode(&*message).expect("a request");
                    let clusters: Vec<_> = request.cluster_stats.iter().map(describe).collect();
                    format!("report {}: {}", stream.0, clusters.join("; "))
                }
            });
        }
        lines.join(", ")
    }
}

fn describe(stats: &pb::ClusterStats) -> String {
    let interval = stats.load_report_interval.as_ref().map_or(0, |interval| interval.seconds);
    let mut text = format!("{}/{} {interval}s", stats.cluster_name, stats.cluster_service_name);
    if stats.total_dropped_requests > 0 {
        let by_category = stats.dropped_requests.iter().map(|drop| format!("{} {}", drop.category, drop.dropped_count));
        let by_category: Vec<_> = by_category.collect();
        text += &format!(" dropped {} ({})", stats.total_dropped_requests, by_category.join(", "));
    }
    for locality in &stats.upstream_locality_stats {
        text += &format!(
            " [{}: issued {} ok {} failed {} now {}",
            locality.locality.as_ref().map_or("", |locality| &locality.zone),
            locality.total_issued_requests,
            locality.total_successful_requests,
            locality.total_error_requests,
            locality.total_requests_in_progress
        );
        if let Some(cpu) = &locality.cpu_utilization {
            text += &format!(" cpu {}/{}", cpu.num_requests_finished_with_metric, cpu.total_metric_value);
        }
        assert_eq!(locality.mem_utilization, None);
        for metric in &locality.load_metric_stats {
            let (count, sum) = (metric.num_requests_finished_with_metric, metric.total_metric_value);
            text += &format!(" {} {count}/{sum}", metric.metric_name);
        }
        text += "]";
    }
    text
}

fn server(uri: &str) -> Arc<ServerConfig> {
    Arc::new(ServerConfig {
        server_uri: uri.to_owned(),
        channel_creds: ChannelCreds::Insecure,
        call_creds: Vec::new(),
        features: ServerFeatures::default(),
    })
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}
