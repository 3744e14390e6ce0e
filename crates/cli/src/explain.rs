//! `mainstay explain`: why a call goes where it goes.

mod all;
mod decision;
mod server;
mod text;
mod words;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay::view::ConfigView;
use mainstay_lb::{
    Connectivity, Rpc, SubchannelSpec,
    explain::{Outcome, Surroundings, explain},
};
use mainstay_sim::Seeded;

use crate::{
    channelz::{self, Channels},
    check,
    failure::Failure,
    output::Output,
    progress,
    signals::Signals,
    source::Source,
    span,
};
use decision::Decided;

/// Say why a call goes where it goes: routes, filters, cluster, priority, locality, endpoint
///
/// Decides about one call with the code of a channel and tells each step: the virtual host, every route before the one that
/// matched and why it did not, filters with overrides, shares of weighted clusters, the priority that serves and why others do
/// not, the locality, the endpoints that the policy chooses from, timeout, retries and circuit breaker.
///
/// The configuration is that of the control plane of the bootstrap, of a running process in any language (--at, by CSDS), or of
/// files (--resources). No call is made. Endpoints count as reachable, but for those of which the channelz service of the process
/// at --at says something else. What is drawn depends on --seed alone.
///
/// With --all it prints every route of the target with its clusters and their shares, and marks those that can never match.
///
/// With --server it explains the other end instead: `mainstay explain --server 10.0.0.1:50051 --peer 10.0.0.7 --san spiffe://prod/web
/// --resources DIR METHOD` tells which filter chain the connection has, which virtual host and route the call, and what each RBAC
/// filter says, with the policy that decided.
///
/// With --json it prints one object: target, path, listener, virtual_host, route (index, match, and passed: the routes before it
/// with why), filters (name, type, effect, override), cluster, weight, leaf, priority, locality, lb_policy, endpoints, timeout_ms, retry,
/// circuit_breaker and, if the call would fail, error and code. Where there is no configuration it has target, path and error.
///
/// The exit code is 0 if the call would be sent, or reach the application; 3 if it would fail, be dropped, wait or be refused; and 1 if
/// there is no configuration.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The target of the channel, such as xds:///greeter; not with --server
    #[arg(value_name = "TARGET", value_parser = parse_target)]
    target: String,

    /// The method, such as /hello.Greeter/SayHello
    #[arg(value_name = "METHOD", value_parser = parse_path, required_unless_present_any = ["all", "server"])]
    path: Option<String>,

    /// Explain what the server that listens on this IP:PORT does with the call: filter chain, virtual host, route, RBAC filters. The
    /// resources are those of --resources or of the process at --at
    #[arg(long, value_name = "ADDR", conflicts_with = "all")]
    server: Option<SocketAddr>,

    /// With --server: who calls, IP or IP:PORT
    #[arg(long, value_name = "PEER", value_parser = parse_peer, default_value = "127.0.0.1", requires = "server")]
    peer: SocketAddr,

    /// With --server: a URI in the certificate of the caller, such as spiffe://prod/web; may be given more than once
    #[arg(long, value_name = "URI", requires = "server")]
    san: Vec<String>,

    /// With --server: the authority that the call is for [default: the address of the server]
    #[arg(long, value_name = "NAME", requires = "server")]
    authority: Option<String>,

    /// A header of the call, such as x-canary:yes; may be given more than once
    #[arg(short = 'H', long = "header", value_name = "NAME:VALUE", value_parser = parse_header, conflicts_with = "all")]
    headers: Vec<(HeaderName, HeaderValue)>,

    /// Ask the process whose admin services (CSDS, channelz) are at this HOST:PORT; envoy:HOST:PORT for an Envoy
    #[arg(long, value_name = "ADDR", conflicts_with = "resources")]
    at: Option<String>,

    /// Take the resources in a directory of files, as `mainstay serve` does
    #[arg(long, value_name = "DIR")]
    resources: Option<PathBuf>,

    /// The bootstrap [default: the one that GRPC_XDS_BOOTSTRAP names]
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// What draws (fractions, weights, faults, drops) depend on
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Show every route of the target instead of one call
    #[arg(long, conflicts_with = "path")]
    all: bool,

    /// Print one object of JSON
    #[arg(long)]
    json: bool,

    /// How long to wait for the configuration
    #[arg(long, value_name = "T", default_value = "20s", value_parser = span::parse)]
    timeout: Duration,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) enum Settings {
    /// A call of a channel, or all.
    Channel(Box<ChannelSettings>),
    /// A call to a server.
    Server(Box<server::Settings>),
}

#[derive(Debug)]
pub(crate) struct ChannelSettings {
    target: String,
    path: Option<String>,
    headers: HeaderMap,
    source: Source,
    bootstrap: Option<PathBuf>,
    seed: u64,
    json: bool,
    timeout: Duration,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let Self { target, path, headers, at, resources, bootstrap, seed, all: _, json, timeout, .. } = self;
        let mut map = HeaderMap::new();
        headers.into_iter().for_each(|(name, value)| _ = map.append(name, value));
        if let Some(server) = self.server {
            let source = match (at, resources) {
                (Some(at), _) => format!("csds:{at}").parse().map_err(Failure::usage)?,
                (None, Some(directory)) => check::source::Source::Path(directory),
                (None, None) => return Err(Failure::usage("--server needs --resources DIR or --at ADDR")),
            };
            // With --server there is no target: what stands first is the method.
            let path = match path {
                None => parse_path(&target).map_err(Failure::usage)?,
                Some(_) => return Err(Failure::usage("--server takes a method and no target")),
            };
            let (peer, sans, authority) = (self.peer, self.san, self.authority);
            let call =
                server::Settings { server, peer, sans, authority, path, headers: map, source, bootstrap, seed, json };
            return Ok(Settings::Server(Box::new(call)));
        }
        if !target.starts_with("xds:") {
            return Err(Failure::usage(format!("{target}: {EXPECTED_TARGET}")));
        }
        let source = match (at, resources) {
            (Some(at), _) => at.parse().map_err(|error| Failure::usage(format!("--at {at}: {error}")))?,
            (None, Some(directory)) => Source::Directory(directory),
            (None, None) => Source::Live,
        };
        let channel = ChannelSettings { target, path, headers: map, source, bootstrap, seed, json, timeout };
        Ok(Settings::Channel(Box::new(channel)))
    }
}

/// Explains one call, or all routes.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let settings = match settings {
        Settings::Channel(settings) => settings,
        Settings::Server(settings) => {
            return tokio::select! {
                done = server::run(&settings, &mut output) => done,
                () = signals.next() => Ok(()),
            };
        }
    };
    let ChannelSettings { target, path, headers, source, bootstrap, seed, json, timeout } = &*settings;
    let found = tokio::select! {
        found = progress::shown("waiting for the configuration", source.view(target, bootstrap.as_deref(), *timeout)) => found,
        () = signals.next() => return Ok(()),
    };
    let found = found.and_then(|(view, boot, holding)| {
        let resolved = boot.resolve(&view)?.ok_or_else(|| incomplete(target, *timeout))?;
        let config = resolved.config.clone().map_err(|error| Failure::failed(format!("{target}: {error}")))?;
        Ok((view, holding, resolved, config))
    });
    let (view, holding, resolved, config) = match found {
        Ok(found) => found,
        // Scripts are told where they look, too.
        Err(failure) if *json => {
            output.json(&serde_json::json!({ "target": target, "path": path, "error": failure.what() }))?;
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    let Some(path) = path else {
        let routes = all::Table::new(&view, &config);
        return if *json { output.json(&routes) } else { output.line(routes) };
    };
    let channels = holding.as_ref().and_then(|holding| holding.channels.as_ref());
    let mut states = States { channels, view: &view };
    let rpc = Rpc { path, headers };
    let told = explain(Ok(config.clone()), &mut states, rpc, &mut Seeded::new(*seed));
    let decided = Decided::new(&view, &resolved, &config, rpc, &told, &states);
    if *json {
        output.json(&decided)?
    } else {
        output.line(&decided)?
    }
    match &told.outcome {
        Outcome::Sent { .. } => Ok(()),
        Outcome::Aborted(code) => Err(would(format!("fail with {}, by a fault filter", code.name()))),
        Outcome::Waits(failure) => Err(would(format!("wait: {}", failure.message))),
        Outcome::Fails(failure) => Err(would(format!("fail with {}: {}", failure.code.name(), failure.message))),
        Outcome::Dropped(failure) => Err(would(format!("fail with {}: {}", failure.code.name(), failure.message))),
    }
}

/// A call explained, for those who show it in their own way.
#[derive(Debug)]
pub(crate) struct Explained {
    /// As on a terminal, without colours.
    pub(crate) text: String,
    pub(crate) json: serde_json::Value,
    /// Whether the call would be sent.
    pub(crate) is_sent: bool,
}

/// Explains a call by what a process or a directory holds.
pub(crate) async fn of_source(
    source: &Source,
    target: &str,
    path: &str,
    headers: &HeaderMap,
    timeout: Duration,
) -> Result<Explained, Failure> {
    let path = parse_path(path).map_err(Failure::usage)?;
    let (view, boot, holding) = source.view(target, None, timeout).await?;
    let resolved = boot.resolve(&view)?.ok_or_else(|| incomplete(target, timeout))?;
    let config = resolved.config.clone().map_err(|error| Failure::failed(format!("{target}: {error}")))?;
    let channels = holding.as_ref().and_then(|holding| holding.channels.as_ref());
    let mut states = States { channels, view: &view };
    let rpc = Rpc { path: &path, headers };
    let told = explain(Ok(config.clone()), &mut states, rpc, &mut Seeded::new(0));
    let decided = Decided::new(&view, &resolved, &config, rpc, &told, &states);
    let json = serde_json::to_value(&decided).map_err(|error| Failure::failed(error.to_string()))?;
    let text = anstream::adapter::strip_str(&decided.to_string()).to_string();
    Ok(Explained { text, json, is_sent: matches!(told.outcome, Outcome::Sent { .. }) })
}

fn incomplete(target: &str, timeout: Duration) -> Failure {
    Failure::failed(format!("{target}: no complete configuration within {timeout:?}"))
        .tip("`mainstay get` shows what has not come; --timeout gives the servers more time")
}

fn would(what: String) -> Failure {
    Failure::calls(format!("the call would {what}"))
}

/// What is known of connections.
struct States<'a> {
    channels: Option<&'a Channels>,
    view: &'a ConfigView,
}

impl States<'_> {
    /// The state that the process tells of a connection to this address.
    fn told(&self, address: SocketAddr) -> Option<&channelz::Data> {
        let channels = self.channels?;
        let of_target = channels.channel(&self.view.target);
        let mut here = of_target.into_iter().flat_map(|channel| &channel.subchannels);
        let found = here.find(|subchannel| subchannel.address == Some(address));
        found.or_else(|| channels.by_address().remove(&address)).map(|subchannel| &subchannel.data)
    }

    /// Why an address cannot be used now, if that is known.
    fn trouble(&self, address: SocketAddr) -> Option<String> {
        let data = self.told(address)?;
        match data.state {
            channelz::Connectivity::TransientFailure => {
                Some(data.trace.last().cloned().unwrap_or_else(|| "transient failure".to_owned()))
            }
            channelz::Connectivity::Connecting => Some("connecting".to_owned()),
            channelz::Connectivity::Unknown
            | channelz::Connectivity::Idle
            | channelz::Connectivity::Ready
            | channelz::Connectivity::Shutdown => None,
        }
    }
}

impl Surroundings for States<'_> {
    fn connect(&mut self, to: &SubchannelSpec) -> Connectivity {
        match self.told(to.address).map(|data| data.state) {
            Some(channelz::Connectivity::TransientFailure) => {
                Connectivity::TransientFailure(self.trouble(to.address).unwrap_or_default().into())
            }
            Some(channelz::Connectivity::Connecting) => Connectivity::Connecting,
            _ => Connectivity::Ready,
        }
    }

    fn in_flight(&mut self, cluster: &str, _: &str) -> u32 {
        let Some(Ok(config)) = &self.view.config else { return 0 };
        let Some(Ok(cluster)) = config.clusters.get(cluster) else { return 0 };
        let priorities = cluster.endpoints.iter().flat_map(|endpoints| &endpoints.priorities);
        let endpoints = priorities.flat_map(|priority| &priority.localities).flat_map(|locality| &locality.endpoints);
        let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
        addresses.filter_map(|address| self.told(*address)).map(channelz::Data::in_flight).sum()
    }
}

fn parse_target(text: &str) -> Result<String, String> {
    // A method, where there is a server.
    if text.starts_with("xds:") || text.starts_with('/') { Ok(text.to_owned()) } else { Err(EXPECTED_TARGET.into()) }
}

fn parse_peer(text: &str) -> Result<SocketAddr, String> {
    let ip = || text.parse().map(|ip: std::net::IpAddr| SocketAddr::new(ip, 0));
    text.parse().or_else(|_| ip()).map_err(|_| "expected an address such as 10.0.0.7 or 10.0.0.7:4000".to_owned())
}

const EXPECTED_TARGET: &str = "expected an xDS name such as xds:///greeter";

fn parse_path(text: &str) -> Result<String, String> {
    let parts = text.strip_prefix('/').and_then(|rest| rest.split_once('/'));
    match parts {
        Some((service, method)) if !service.is_empty() && !method.is_empty() && !method.contains('/') => {
            Ok(text.to_owned())
        }
        _ => Err("expected a method such as /hello.Greeter/SayHello".into()),
    }
}

fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let expected = || "expected a header such as x-canary:yes".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(expected)?;
    let name = name.trim().to_ascii_lowercase().parse().map_err(|_| expected())?;
    Ok((name, value.trim().parse().map_err(|_| expected())?))
}
