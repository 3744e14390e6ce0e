//! `mainstay explain`: why a call goes where it goes.

mod all;
mod decision;
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
    failure::Failure,
    output::Output,
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
/// With --json it prints one object: target, path, listener, virtual_host, route (index, match, and passed: the routes before it
/// with why), filters (name, type, effect, override), cluster, weight, leaf, priority, locality, lb_policy, endpoints, timeout_ms, retry,
/// circuit_breaker and, if the call would fail, error and code.
///
/// The exit code is 0 if the call would be sent, 3 if it would fail, be dropped or wait, and 1 if there is no configuration.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The target of the channel, such as xds:///greeter
    #[arg(value_name = "TARGET", value_parser = parse_target)]
    target: String,

    /// The method, such as /hello.Greeter/SayHello
    #[arg(value_name = "METHOD", value_parser = parse_path, required_unless_present = "all")]
    path: Option<String>,

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
pub(crate) struct Settings {
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
        let Self { target, path, headers, at, resources, bootstrap, seed, all: _, json, timeout } = self;
        let source = match (at, resources) {
            (Some(at), _) => at.parse().map_err(|error| Failure::usage(format!("--at {at}: {error}")))?,
            (None, Some(directory)) => Source::Directory(directory),
            (None, None) => Source::Live,
        };
        let mut map = HeaderMap::new();
        headers.into_iter().for_each(|(name, value)| _ = map.append(name, value));
        Ok(Settings { target, path, headers: map, source, bootstrap, seed, json, timeout })
    }
}

/// Explains one call, or all routes.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Settings { target, path, headers, source, bootstrap, seed, json, timeout } = &settings;
    let (view, boot, holding) = tokio::select! {
        found = source.view(target, bootstrap.as_deref(), *timeout) => found?,
        () = signals.next() => return Ok(()),
    };
    let resolved = boot.resolve(&view)?.ok_or_else(|| {
        Failure::failed(format!("{target}: no complete configuration within {timeout:?}"))
            .tip("`mainstay get` shows what has not come; --timeout gives the servers more time")
    })?;
    let config = resolved.config.clone().map_err(|error| Failure::failed(format!("{target}: {error}")))?;
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
    if text.starts_with("xds:") {
        Ok(text.to_owned())
    } else {
        Err("expected an xDS name such as xds:///greeter".into())
    }
}

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
