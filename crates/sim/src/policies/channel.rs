//! One channel as a whole, from its first byte to its last: what is carried between its parts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::SystemRootCerts;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
};
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::util::pack_any;
use http::HeaderMap;
use mainstay_lb::{Action, ChannelCore, Connectivity, Context, Decision, Input, Rpc, Snapshot, XdsSecurity};
use mainstay_xds::bootstrap::{Bootstrap, ServerConfig};
use mainstay_xds::client::{ClientSettings, Event, Report, StreamId};
use mainstay_xds::deps::{DepsSettings, DnsName};
use mainstay_xds::lrs;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::target::Target;
use mainstay_xds::{Choose, Time};
use prost::Message as _;

use super::naive::Key;
use super::shell::{Handle, Shell};
use crate::choose::Seeded;
use crate::invariant::{Invariant, Violation};
use crate::resources::{Lb, Policy, PrioritySpec, Spec};

/// The channel and the other end of everything.
struct Channel {
    core: ChannelCore<Handle>,
    shell: Shell,
    chance: Seeded,
    now: Time,
    snapshot: Arc<Snapshot<Handle>>,
    /// What the control plane has.
    resources: BTreeMap<(ResourceType, String), Bytes>,
    /// What was last asked for on which stream.
    asked: BTreeMap<ResourceType, (StreamId, BTreeSet<String>)>,
    streams: BTreeSet<StreamId>,
    load_streams: BTreeSet<u64>,
    resolving: BTreeSet<DnsName>,
    resolved: u32,
    reports: Vec<Report>,
    nonce: u32,
    /// Whether another configuration is in force since the last look.
    changed: bool,
}

type Checked = Result<(), Violation>;

/// One life of a channel; some seeds differ in what it is told at birth.
pub(super) fn run(seed: u64) -> Checked {
    let (secure, shares, bound) = (seed.is_multiple_of(2), seed.is_multiple_of(3), seed.is_multiple_of(5));
    let Some(mut channel) = Channel::new(seed, secure, bound) else {
        return Err(Invariant::Config.broken("the channel cannot be made"));
    };
    channel.shell.shares = shares;
    channel.put("shop", &Spec::InlineListener { clusters: vec!["secured".into(), "named".into()], mark: 1 });
    let lb = Lb { policy: Policy::Weighted, reports_load: true, ..Lb::default() };
    channel.put("secured", &Spec::Eds { service: String::new(), mark: 0, lb });
    channel.secure("secured");
    channel.put("named", &Spec::Dns { host: "named.example".into(), mark: 0 });
    channel.put("secured", &Spec::Endpoints { priorities: vec![PrioritySpec::Here(vec![1])], drop: 0 });
    channel.settle();
    Invariant::Config.holds(!channel.changed, || "there is a configuration before it is complete".into())?;
    Invariant::Watches.holds(channel.resolving.len() == 1, || format!("{:?} are resolved", channel.resolving))?;
    channel.answer(&[7]);
    Invariant::Config.holds(std::mem::take(&mut channel.changed), || "a complete configuration is not told".into())?;
    Invariant::Config.holds(channel.core.config().is_some_and(|config| config.is_ok()), || "it is not shown".into())?;

    // A cluster that asks for TLS: refused, or told of once.
    let told = channel.reports.iter().filter(|report| matches!(report, Report::SecurityIgnored(_))).count();
    let seen = channel.shell.seen.len();
    let text = || format!("security is ignored {told} times, and seen to be {seen} times");
    Invariant::Traffic.holds((told, seen) == if secure { (0, 0) } else { (1, 1) }, text)?;
    let expected = if secure { "fails" } else { "waits" };
    channel.expect("/0/m", expected)?;
    channel.expect("/1/m", "waits")?;
    let asked = channel.shell.asked.len();
    Invariant::Connections
        .holds(asked == if secure { 1 } else { 2 }, || format!("{asked} connections are asked for"))?;
    channel.connect_all(true);
    channel.expect("/0/m", if secure { "fails" } else { "10.0.0.1:80" })?;
    channel.expect("/1/m", "10.0.9.7:80")?;
    let loads = channel.load_streams.len();
    Invariant::Loads.holds(loads == usize::from(!secure), || format!("{loads} streams of load reports"))?;

    // The connection to the endpoint from DNS is lost: DNS is asked again, no sooner than 30 s after the last time.
    channel.connect_all(false);
    let due = channel.core.next_deadline();
    let text = || format!("DNS is asked at {due:?}, and {} times", channel.resolved);
    Invariant::Watches.holds(channel.resolved == 1 && due.is_some(), text)?;
    channel.pass(Duration::from_secs(30));
    let resolved = channel.resolved;
    Invariant::Watches.holds(resolved == 2, || format!("DNS is asked {resolved} times"))?;

    // Other routes while it is being asked: nobody needs the answer, nor the connection.
    channel.put("shop", &Spec::InlineListener { clusters: vec!["other".into()], mark: 2 });
    let lb = Lb { policy: Policy::Weighted, ..Lb::default() };
    channel.put("other", &Spec::Eds { service: String::new(), mark: 0, lb });
    channel.put("other", &Spec::Endpoints { priorities: vec![PrioritySpec::Here(vec![3])], drop: 0 });
    channel.respond();
    channel.connect_all(true);
    channel.pass(Duration::from_secs(5));
    let kept = channel.shell.connections.len();
    Invariant::Connections.holds(kept == 1, || format!("{kept} connections are left"))?;
    Invariant::Watches.holds(channel.resolving.is_empty(), || "nobody needs what is resolved".into())?;
    channel.expect("/0/m", "10.0.0.3:80")?;
    let names: Vec<usize> = channel.asked.values().map(|(_, names)| names.len()).collect();
    Invariant::Watches.holds(names == [1, 1, 1], || format!("{:?} is watched", channel.asked))?;

    // A cluster that someone holds stays in the configuration.
    let now = channel.now;
    channel.core.subscribe_cluster(now, "secured");
    channel.settle();
    let has = |channel: &Channel| match channel.core.config() {
        Some(Ok(config)) => config.clusters.contains_key("secured"),
        _ => false,
    };
    Invariant::Config.holds(has(&channel), || "a cluster that is held is not there".into())?;
    channel.core.release_cluster(now, "secured");
    channel.settle();
    Invariant::Config.holds(!has(&channel), || "a cluster that was released is there".into())?;

    // A cluster that does not get ready: RPCs stay with the one before, for as long as the channel was told to.
    channel.put("shop", &Spec::InlineListener { clusters: vec!["slow".into()], mark: 3 });
    channel.put("slow", &Spec::Eds { service: String::new(), mark: 0, lb: Lb::default() });
    channel.put("slow", &Spec::Endpoints { priorities: vec![PrioritySpec::Here(vec![5])], drop: 0 });
    channel.respond();
    channel.expect("/0/m", "10.0.0.3:80")?;
    channel.pass(Duration::from_millis(4_500));
    channel.expect("/0/m", if bound { "waits" } else { "10.0.0.3:80" })?;
    channel.connect_all(true);
    channel.expect("/0/m", "10.0.0.5:80")?;
    channel.go_round()?;
    channel.end()
}

impl Channel {
    fn new(seed: u64, secure: bool, bound: bool) -> Option<Self> {
        let bootstrap = Arc::new(Bootstrap::builder().server(ServerConfig::insecure("plane")).build().ok()?);
        let target = Target::resolve("xds:///shop", &bootstrap).ok()?;
        let core = ChannelCore::new(&target, bootstrap, ClientSettings::default(), DepsSettings::default());
        let mut core = core.with_security(if secure { XdsSecurity::Refuse } else { XdsSecurity::Ignore });
        if bound {
            core = core.with_warm_switching(Some(Duration::from_secs(4)));
        }
        Some(Self {
            core,
            shell: Shell::default(),
            chance: Seeded::new(seed),
            now: Time::from_nanos(1),
            snapshot: Arc::new(Snapshot::empty()),
            resources: BTreeMap::new(),
            asked: BTreeMap::new(),
            streams: BTreeSet::new(),
            load_streams: BTreeSet::new(),
            resolving: BTreeSet::new(),
            resolved: 0,
            reports: Vec::new(),
            nonce: 0,
            changed: false,
        })
    }

    fn put(&mut self, name: &str, spec: &Spec) {
        self.resources.insert((spec.resource_type(), name.to_owned()), spec.encode(name));
    }

    /// Has a cluster ask for TLS.
    fn secure(&mut self, name: &str) {
        let roots = SystemRootCerts::default();
        let context = CertificateValidationContext { system_root_certs: Some(roots), ..Default::default() };
        let validation_context_type = Some(ValidationContextType::ValidationContext(context));
        let common_tls_context = Some(CommonTlsContext { validation_context_type, ..Default::default() });
        let tls = pack_any(UpstreamTlsContext { common_tls_context, ..Default::default() });
        if let Some(bytes) = self.resources.get_mut(&(ResourceType::Cluster, name.to_owned()))
            && let Ok(mut cluster) = Cluster::decode(&**bytes)
        {
            let config_type = Some(ConfigType::TypedConfig(tls));
            cluster.transport_socket = Some(TransportSocket { name: "tls".into(), config_type });
            *bytes = cluster.encode_to_vec().into();
        }
    }

    fn feed(&mut self, input: Input) {
        let mut cx = Context { now: self.now, choose: &mut self.chance, helper: &mut self.shell };
        self.core.handle(&mut cx, input);
        self.settle();
    }

    /// Does what the channel asks for until it asks for nothing more.
    fn settle(&mut self) {
        let mut cx = Context { now: self.now, choose: &mut self.chance, helper: &mut self.shell };
        self.changed |= self.core.settle(&mut cx);
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::OpenStream { stream, .. } => {
                    self.streams.insert(stream);
                    self.feed(Input::Xds(Event::Opened(stream)));
                }
                Action::Send(stream, bytes) => {
                    self.feed(Input::Xds(Event::Sent(stream)));
                    self.read(stream, &bytes);
                }
                Action::CloseStream(stream) => drop(self.streams.remove(&stream)),
                Action::Load(lrs::Action::Open { stream, .. }) => drop(self.load_streams.insert(stream.0)),
                Action::Load(lrs::Action::Close(stream)) => drop(self.load_streams.remove(&stream.0)),
                Action::Resolve(name) => {
                    self.resolved += 1;
                    self.resolving.insert(name);
                }
                Action::StopResolving(name) => drop(self.resolving.remove(&name)),
                Action::Report(report) => self.reports.push(report),
                Action::Publish(snapshot) => self.snapshot = snapshot,
                Action::Probe { .. } | Action::Load(lrs::Action::Send(..)) => {}
            }
        }
    }

    /// Answers a request that asks for something else than before.
    fn read(&mut self, stream: StreamId, bytes: &[u8]) {
        let Ok(request) = DiscoveryRequest::decode(bytes) else { return };
        let Some(resource_type) = ResourceType::from_type_url(&request.type_url) else { return };
        let names: BTreeSet<String> = request.resource_names.into_iter().collect();
        let before = self.asked.insert(resource_type, (stream, names.clone()));
        if before.is_none_or(|(_, before)| !names.is_subset(&before)) {
            self.respond_with(resource_type);
        }
    }

    /// Sends everything again.
    fn respond(&mut self) {
        for resource_type in self.asked.keys().copied().collect::<Vec<_>>() {
            self.respond_with(resource_type);
        }
    }

    fn respond_with(&mut self, resource_type: ResourceType) {
        let Some((stream, names)) = self.asked.get(&resource_type).cloned() else { return };
        let type_url = resource_type.type_url().to_owned();
        let find = |name: &String| self.resources.get(&(resource_type, name.clone()));
        let any = |bytes: &Bytes| Any { type_url: type_url.clone(), value: bytes.to_vec() };
        let resources = names.iter().filter_map(find).map(any).collect();
        self.nonce += 1;
        let (nonce, version_info) = (self.nonce.to_string(), self.nonce.to_string());
        let response =
            DiscoveryResponse { version_info, resources, type_url: type_url.clone(), nonce, ..Default::default() };
        self.feed(Input::Xds(Event::Received(stream, response.encode_to_vec().into())));
    }

    /// DNS answers.
    fn answer(&mut self, hosts: &[u8]) {
        for name in std::mem::take(&mut self.resolving) {
            let addresses = hosts.iter().map(|host| ([10, 0, 9, *host], 80).into()).collect();
            self.feed(Input::Dns(name, Ok(addresses)));
        }
    }

    /// All connections are made, or lost.
    fn connect_all(&mut self, up: bool) {
        for key in self.shell.connections.keys().cloned().collect::<Vec<Key>>() {
            if let Some(id) = self.shell.connections.get(&key).map(|handle| handle.id) {
                self.shell.set_up(&key, up);
                let state = if up { Connectivity::Ready } else { Connectivity::Idle };
                self.feed(Input::Connectivity(id, state));
            }
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(due) = self.core.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.feed(Input::Timeout);
        }
        self.now = end;
    }

    /// What becomes of an RPC: an address, `waits` or `fails`.
    fn expect(&mut self, path: &str, expected: &str) -> Checked {
        let (snapshot, headers) = (Arc::clone(&self.snapshot), HeaderMap::new());
        let decision = snapshot.decide(Rpc { path, headers: &headers }, &mut self.chance as &mut dyn Choose);
        let outcome = match &decision {
            Decision::Send(to) => to.subchannel.key.0.to_string(),
            Decision::Wait(_, wake) => {
                if let Some(wake) = *wake {
                    self.feed(Input::Wake(wake));
                }
                "waits".into()
            }
            Decision::Fail(_) | Decision::Drop(_) | Decision::Inject(_) => "fails".into(),
        };
        Invariant::Traffic.holds(outcome == expected, || format!("{path} {expected}, and not: {decision:?}"))
    }

    /// Goes to other routes and back again and again: what is kept does not grow with that.
    fn go_round(&mut self) -> Checked {
        let mut sizes = Vec::new();
        for mark in 10..30 {
            let cluster = if mark % 2 == 0 { "secured" } else { "other" };
            self.put("shop", &Spec::InlineListener { clusters: vec![cluster.into()], mark });
            self.respond();
            self.connect_all(true);
            self.pass(Duration::from_secs(60));
            if mark % 2 == 1 && mark > 14 {
                sizes.push(format!("{:?}", self.core).matches(", ").count());
            }
        }
        let half = sizes.len() / 2;
        let (before, after) = (sizes[..half].iter().max(), sizes[half..].iter().min());
        Invariant::Leak.holds(before >= after, || format!("what is kept grows: {sizes:?}"))
    }

    fn end(mut self) -> Checked {
        let mut cx = Context { now: self.now, choose: &mut self.chance, helper: &mut self.shell };
        self.core.shut_down(&mut cx);
        self.settle();
        let left = (self.streams.len(), self.load_streams.len(), self.shell.connections.len());
        Invariant::Leak.holds(left == (0, 0, 0), || format!("{left:?} streams and connections are left"))?;
        Invariant::Leak.holds(self.core.next_deadline().is_none(), || "something is due".into())
    }
}
