//! What `serve` prints: what it serves, what changes, and what clients say about it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use mainstay_control_plane::{
    Body, ControlPlane, Event, LoadReport, News, RequestKind, SeenRequest, Server, StreamId, Told, TypeUrl,
    locality_name,
};
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    logging::EventLog,
    output::{BAD, DIM, GOOD, TITLE, styled},
};

/// Tells what happens.
pub(super) struct Log {
    pub(super) output: EventLog,
    served: Contents,
    /// Which node opened a stream: only the first request of a stream must say so.
    nodes: BTreeMap<StreamId, String>,
    /// The rejections that were told since what is served last changed: thousands of clients may say the same.
    rejections: BTreeSet<(TypeUrl, String)>,
    print_load: bool,
}

impl Log {
    pub(super) fn new(output: EventLog, print_load: bool) -> Self {
        let (served, nodes, rejections) = (Contents::default(), BTreeMap::new(), BTreeSet::new());
        Self { output, served, nodes, rejections, print_load }
    }

    /// Tells where it serves, and what.
    pub(super) fn begin(
        &mut self,
        name: &str,
        server: &Server,
        control_plane: &ControlPlane,
        security: Security,
        admin: Option<SocketAddr>,
    ) -> Result<(), Failure> {
        let served = contents(control_plane);
        let (address, count) = (server.address(), resources(served.len()));
        let line = format!("serving {} on {address}{}, {count}", styled(TITLE, name), security.words());
        let fields = json!({
            "source": name,
            "address": address.to_string(),
            "security": security.name(),
            "resources": served.len(),
            "admin": admin,
        });
        let lines = [line].into_iter().chain(admin.map(|admin| format!("admin on {admin}")));
        let changes = Changes::between(&self.served, &served);
        self.served = served;
        self.output.tell("serving", fields, lines.chain(changes.lines()))
    }

    /// What one of the origins told.
    pub(super) fn news(&mut self, news: News, control_plane: &ControlPlane) -> Result<(), Failure> {
        let News { feed, told } = news;
        match told {
            Told::Applied => {
                self.rejections.clear();
                let served = contents(control_plane);
                let line = format!("{}, {}", styled(GOOD, "reloaded"), resources(served.len()));
                let changes = Changes::between(&self.served, &served);
                let fields = json!({
                    "source": feed,
                    "resources": served.len(),
                    "added": changes.names(Change::Added),
                    "changed": changes.names(Change::Changed),
                    "removed": changes.names(Change::Removed),
                });
                self.served = served;
                self.output.tell("reloaded", fields, [line].into_iter().chain(changes.lines()))
            }
            Told::Unchanged => {
                let line = format!("{}, nothing changed, {}", styled(GOOD, "reloaded"), resources(self.served.len()));
                let fields = json!({ "source": feed, "resources": self.served.len() });
                self.output.tell("unchanged", fields, [line])
            }
            Told::Rejected(reasons) => {
                let line = format!("{}, what was served before still is:", styled(BAD, "rejected"));
                let fields = json!({ "source": feed, "reasons": reasons });
                let reasons = reasons.iter().map(|reason| format!("  {reason}"));
                self.output.tell("rejected", fields, [line].into_iter().chain(reasons))
            }
            Told::Waiting(what) => {
                let line = styled(DIM, format_args!("waiting for {what}"));
                self.output.tell("waiting", json!({ "source": feed, "for": what }), [line])
            }
            Told::Behind(why) => {
                let line = format!("{}, what was served before still is: {why}", styled(BAD, "behind"));
                self.output.tell("behind", json!({ "source": feed, "reason": why }), [line])
            }
        }
    }

    pub(super) fn event(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Request(request) => self.request(request),
            Event::HandshakeFailed { peer, reason, .. } => {
                let refused = styled(BAD, format_args!("client {peer} failed the TLS handshake"));
                let fields = json!({ "peer": peer, "reason": reason });
                self.output.tell("handshake_failed", fields, [format!("{refused}: {reason}")])
            }
            Event::AskedTooMuch { stream, what } => {
                let node = self.node(stream);
                let line = format!("{}: {what}", styled(BAD, format_args!("node {node} asks for too much")));
                let fields = json!({ "node": node, "what": what });
                self.output.tell("asked_too_much", fields, [line])
            }
            Event::SlowReader { stream } => {
                let node = self.node(stream);
                let line = styled(BAD, format_args!("node {node} does not read, its connection is cut"));
                self.output.tell("slow_reader", json!({ "node": node }), [line])
            }
            Event::LoadReported(report) if self.print_load => self.load(&report),
            Event::StreamClosed { stream } => match self.nodes.remove(&stream) {
                Some(node) => {
                    let line = styled(DIM, format_args!("node {node} left"));
                    self.output.tell("left", json!({ "node": node }), [line])
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn load(&mut self, LoadReport { node, clusters }: &LoadReport) -> Result<(), Failure> {
        for cluster in clusters {
            let head = format!("load of node {node}, cluster {}", cluster.cluster_name);
            for locality in &cluster.upstream_locality_stats {
                let name = locality_name(locality.locality.as_ref());
                let (sent, succeeded) = (locality.total_issued_requests, locality.total_successful_requests);
                let (failed, under_way) = (locality.total_error_requests, locality.total_requests_in_progress);
                let fields = json!({
                    "node": node, "cluster": cluster.cluster_name, "locality": name,
                    "sent": sent, "succeeded": succeeded, "failed": failed, "under_way": under_way,
                });
                let words = format!("{sent} sent, {succeeded} succeeded, {failed} failed, {under_way} under way");
                self.output.tell("load", fields, [format!("{head}, locality {name:?}: {words}")])?;
            }
            if cluster.total_dropped_requests > 0 {
                let drops = cluster.dropped_requests.iter();
                let words: Vec<_> = drops.map(|drop| format!("{} {}", drop.dropped_count, drop.category)).collect();
                let dropped = cluster.total_dropped_requests;
                let fields = json!({ "node": node, "cluster": cluster.cluster_name, "dropped": dropped });
                self.output.tell("dropped", fields, [format!("{head}: {dropped} dropped ({})", words.join(", "))])?;
            }
        }
        Ok(())
    }

    fn request(&mut self, request: SeenRequest) -> Result<(), Failure> {
        let SeenRequest { stream, node, type_url, version, error, kind, .. } = request;
        if let Some(node) = node
            && !self.nodes.contains_key(&stream)
        {
            let line = styled(DIM, format_args!("node {} came", node.id));
            let fields = json!({ "node": node.id, "user_agent": node.user_agent_name });
            self.output.tell("came", fields, [line])?;
            self.nodes.insert(stream, node.id);
        }
        let (RequestKind::Nack, Some((_, reason))) = (kind, error) else { return Ok(()) };
        // A bound, as clients choose the texts.
        if self.rejections.len() >= MAX_REJECTIONS || !self.rejections.insert((type_url.clone(), reason.clone())) {
            return Ok(());
        }
        let node = self.node(stream);
        let rejects = styled(BAD, format_args!("node {node} rejects {}", type_url.short_name()));
        let kept = if version.is_empty() { "has none".to_owned() } else { format!("keeps version {version}") };
        let fields = json!({ "node": node, "type": type_url.short_name(), "keeps": version, "reason": reason });
        self.output.tell("nack", fields, [format!("{rejects} and {kept}: {reason}")])
    }

    fn node(&self, stream: StreamId) -> String {
        self.nodes.get(&stream).cloned().unwrap_or_default()
    }
}

/// How clients connect.
#[derive(Clone, Copy, Debug)]
pub(super) enum Security {
    Plaintext,
    Tls,
    Mtls,
}

impl Security {
    fn words(self) -> &'static str {
        match self {
            Self::Plaintext => "",
            Self::Tls => " over TLS",
            Self::Mtls => " over mTLS",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plaintext => "plaintext",
            Self::Tls => "tls",
            Self::Mtls => "mtls",
        }
    }
}

/// The resources for all nodes, by type and name.
type Contents = BTreeMap<(TypeUrl, String), Body>;

fn contents(control_plane: &ControlPlane) -> Contents {
    let snapshot = control_plane.snapshot().unwrap_or_default();
    snapshot.resources().map(|resource| ((resource.type_url, resource.name), resource.body)).collect()
}

fn resources(count: usize) -> String {
    if count == 1 { "1 resource".to_owned() } else { format!("{count} resources") }
}

/// What became of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Added,
    Changed,
    Removed,
}

/// The difference of two contents: what is there first, then what is gone.
struct Changes(Vec<(Change, TypeUrl, String)>);

impl Changes {
    fn between(before: &Contents, after: &Contents) -> Self {
        let here = after.iter().filter_map(|(key, body)| match before.get(key) {
            Some(old) if old == body => None,
            Some(_) => Some((Change::Changed, key)),
            None => Some((Change::Added, key)),
        });
        let gone = before.keys().filter(|key| !after.contains_key(key)).map(|key| (Change::Removed, key));
        Self(here.chain(gone).map(|(change, (type_url, name))| (change, type_url.clone(), name.clone())).collect())
    }

    fn lines(&self) -> Vec<String> {
        let line = |(change, type_url, name): &(Change, TypeUrl, String)| {
            let sign = match change {
                Change::Added => '+',
                Change::Changed => '~',
                Change::Removed => '-',
            };
            format!("  {sign} {:<4} {name}", type_url.short_name())
        };
        self.0.iter().map(line).collect()
    }

    fn names(&self, wanted: Change) -> Vec<Value> {
        let names = self.0.iter().filter(|(change, ..)| *change == wanted);
        names.map(|(_, type_url, name)| json!({ "type": type_url.short_name(), "name": name })).collect()
    }
}

const MAX_REJECTIONS: usize = 1000;
