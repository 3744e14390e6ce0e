//! `mainstay inspect`: everything that the xDS clients of a running process hold.

use std::{collections::BTreeMap, fmt::Write as _, path::PathBuf, time::Duration};

use clap::Args;
use serde::Serialize;

use crate::{
    channelz::{ChannelNode, Channels, SubchannelNode},
    failure::Failure,
    fleet::{self, Row, state_name},
    get::{self, Report, ServerReport, clean},
    output::{BAD, DIM, Output, TITLE, styled},
    progress,
    signals::Signals,
    source::{Boot, Holding, Scope, Source},
    span,
};

/// Show what the xDS clients of a running process hold: the tree of `get`, NACKs, connections, traces
///
/// Reads CSDS (gRFC A40) of any gRPC process, and channelz where there is one: Mainstay, grpc-go, C-core and its languages, grpc-java.
/// For each target it prints the tree of `mainstay get` as that process holds it, with the state and the calls of each connection
/// beside its endpoint, and the last events of the channel. The tree is what Mainstay makes of the resources. With envoy:HOST:PORT
/// the resources of an Envoy are listed, from its /config_dump.
///
/// With --json each look is one line: address, clients (scope, node, user_agent, status, reports as in `get --json`, resources) and
/// channels (target, state, calls, subchannels, trace), null where the process has no channelz.
///
/// The exit code is 1 if the process cannot be asked, also if it dies while it is asked; SIGINT or SIGTERM end --watch with 0.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The admin port: HOST:PORT of a gRPC process, envoy:HOST:PORT of an Envoy; dir:PATH and file:PATH work, too
    #[arg(value_name = "ADDR")]
    address: Source,

    /// Go on, and print it again whenever it changes
    #[arg(long)]
    watch: bool,

    /// Print each look as a line of JSON
    #[arg(long)]
    json: bool,

    /// The bootstrap of that process [default: one that allows whatever its resources name]
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// With --watch: time between two looks
    #[arg(long, value_name = "T", default_value = "1s", value_parser = span::parse)]
    interval: Duration,

    /// How long to wait for the process
    #[arg(long, value_name = "T", default_value = "5s", value_parser = span::parse)]
    timeout: Duration,
}

/// What a process holds.
#[derive(Debug, Serialize)]
pub(crate) struct Process {
    pub(crate) address: String,
    pub(crate) clients: Vec<Client>,
    /// Nothing if it has no channelz.
    pub(crate) channels: Option<Vec<ChannelReport>>,
}

/// What one xDS client of it holds.
#[derive(Debug, Serialize)]
pub(crate) struct Client {
    pub(crate) scope: String,
    #[serde(flatten)]
    pub(crate) row: Row,
    /// One for each target.
    pub(crate) reports: Vec<Report>,
    pub(crate) resources: Vec<Held>,
}

/// A resource.
#[derive(Debug, Serialize)]
pub(crate) struct Held {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) state: &'static str,
    pub(crate) version: String,
    pub(crate) error: Option<String>,
}

/// A channel, by channelz.
#[derive(Debug, Serialize)]
pub(crate) struct ChannelReport {
    pub(crate) target: String,
    pub(crate) state: &'static str,
    pub(crate) started: i64,
    pub(crate) failed: i64,
    pub(crate) subchannels: Vec<String>,
    /// Its last events.
    pub(crate) trace: Vec<String>,
}

/// Shows it once, or until a signal.
pub(crate) async fn run(flags: Flags, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Flags { address, watch, json, bootstrap, interval, timeout } = flags;
    let given = bootstrap.as_deref().map(|path| Boot::of_user(Some(path))).transpose()?.flatten();
    let mut shown = String::new();
    loop {
        let holding = tokio::select! {
            found = progress::shown(format!("waiting for {address}"), address.fetch(timeout)) => found?,
            () = signals.next() => return Ok(()),
        };
        let process = Process::new(&holding, given.as_ref())?;
        let fingerprint = process.ageless();
        if fingerprint != shown {
            if json {
                output.json(&process)?;
            } else {
                output.line(format!("{}{}", if shown.is_empty() { "" } else { "\n" }, process.draw()))?;
            }
            shown = fingerprint;
        }
        if !watch {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = signals.next() => return Ok(()),
        }
    }
}

impl Process {
    /// What there is to say about what a process holds; with a bootstrap that allows everything, unless there is one.
    pub(crate) fn new(holding: &Holding, boot: Option<&Boot>) -> Result<Self, Failure> {
        let rows = fleet::rows(holding);
        let clients = holding.scopes.iter().zip(rows);
        let clients = clients.map(|(scope, row)| Client::new(holding, scope, row, boot)).collect::<Result<_, _>>()?;
        let channels = holding.channels.as_ref();
        let channels = channels.map(|channels| channels.channels.iter().map(ChannelReport::new).collect());
        Ok(Self { address: holding.name.clone(), clients, channels })
    }

    /// What makes it worth showing again.
    fn ageless(&self) -> String {
        let mut text = String::new();
        for client in &self.clients {
            let row = Row { age_ms: None, calls: None, ..client.row.clone() };
            let reports: Vec<_> = client.reports.iter().map(|report| report.settled()).collect();
            let _ = write!(text, "{row:?} {reports:?} {:?}", client.resources);
        }
        for channel in self.channels.iter().flatten() {
            let _ = write!(text, "{} {}", channel.target, channel.state);
        }
        text
    }

    fn draw(&self) -> String {
        let mut lines = vec![styled(TITLE, clean(&self.address))];
        if self.clients.is_empty() {
            lines.push("no xDS client in this process".to_owned());
        }
        for client in &self.clients {
            let Row { node, user_agent, .. } = &client.row;
            let node = node.as_ref().map(|node| format!("node {node:?}"));
            let who: Vec<String> = user_agent.clone().into_iter().chain(node).collect();
            let scope = if client.scope.is_empty() { "-" } else { &client.scope };
            lines.push(format!("client {}  {}", clean(scope), styled(DIM, clean(&who.join(", ")))));
            lines.extend(client.reports.iter().map(get::draw));
            // What the tree does not show: all of it if there is no tree, else what is wrong.
            let hidden = client.resources.iter().filter(|held| client.reports.is_empty() || held.is_nacked());
            for held in hidden {
                let Held { kind, name, state, version, error } = held;
                let version = if version.is_empty() { String::new() } else { format!(", version {version}") };
                let style = if held.is_nacked() { BAD } else { DIM };
                lines.push(format!(
                    "{} {}  {}",
                    clean(kind),
                    clean(name),
                    styled(style, clean(&format!("{state}{version}")))
                ));
                lines.extend(error.iter().map(|error| format!("  {} {}", styled(BAD, "!"), clean(error))));
            }
        }
        for channel in self.channels.iter().flatten() {
            let ChannelReport { target, state, started, failed, subchannels, trace } = channel;
            lines.push(format!("channel {}  {state}, {started} calls, {failed} failed", clean(target)));
            lines.extend(subchannels.iter().map(|one| format!("  connection {}", clean(one))));
            lines.extend(trace.iter().map(|event| format!("  {}", styled(DIM, clean(event)))));
        }
        if self.channels.is_none() {
            lines.push(styled(DIM, "channels: - (no channelz)"));
        }
        lines.join("\n")
    }
}

impl Client {
    fn new(holding: &Holding, scope: &Scope, row: Row, boot: Option<&Boot>) -> Result<Self, Failure> {
        let own;
        let boot = match boot {
            Some(boot) => boot,
            None => {
                own = Boot::for_resources(scope.resources.iter())?;
                &own
            }
        };
        let mut reports = Vec::new();
        for target in scope.targets() {
            // A target that only that process can make sense of is listed without a tree.
            let Ok(view) = holding.view_of(scope, &target, boot) else { continue };
            let mut report = get::report_of(&view, Some(boot));
            report.servers = scope.servers.iter().map(|(uri, state)| ServerReport::told(uri, state)).collect();
            if let Some(channels) = &holding.channels {
                connections(&mut report, channels);
            }
            reports.push(report);
        }
        let held = scope.resources.iter().map(|resource| Held {
            kind: resource.type_url.rsplit('.').next().unwrap_or_default().to_owned(),
            name: resource.name.clone(),
            state: state_name(resource.state),
            version: resource.version.clone(),
            error: resource.error.clone(),
        });
        Ok(Self { scope: scope.scope.clone(), row, reports, resources: held.collect() })
    }

    /// The first thing that is wrong with it.
    pub(crate) fn trouble(&self) -> Option<String> {
        let failed = self.reports.iter().find_map(|report| report.error.clone());
        failed.or_else(|| self.row.last_error.clone())
    }
}

impl Held {
    fn is_nacked(&self) -> bool {
        self.state == "NACKed"
    }
}

impl ChannelReport {
    fn new(channel: &ChannelNode) -> Self {
        let target = if channel.data.target.is_empty() { &channel.name } else { &channel.data.target };
        let trace = &channel.data.trace;
        Self {
            target: target.clone(),
            state: channel.data.state.name(),
            started: channel.data.started,
            failed: channel.data.failed,
            subchannels: channel.subchannels.iter().map(describe).collect(),
            trace: trace[trace.len().saturating_sub(SHOWN_EVENTS)..].to_vec(),
        }
    }
}

/// Puts the connections of a process beside its endpoints.
fn connections(report: &mut Report, channels: &Channels) {
    let by_address: BTreeMap<String, &SubchannelNode> =
        channels.by_address().into_iter().map(|(address, node)| (address.to_string(), node)).collect();
    for endpoint in report.endpoints_mut() {
        let found = endpoint.addresses.iter().find_map(|address| by_address.get(address));
        endpoint.connection = found.map(|node| state(node));
    }
}

fn describe(subchannel: &SubchannelNode) -> String {
    let address = subchannel.address.map_or_else(|| subchannel.name.clone(), |address| address.to_string());
    format!("{address} {}", state(subchannel))
}

fn state(subchannel: &SubchannelNode) -> String {
    let data = &subchannel.data;
    let why = match data.state {
        crate::channelz::Connectivity::TransientFailure => data.trace.last().map(|event| format!(" ({event})")),
        _ => None,
    };
    format!("{}{}, {} calls", data.state.name(), why.unwrap_or_default(), data.started)
}

const SHOWN_EVENTS: usize = 8;
