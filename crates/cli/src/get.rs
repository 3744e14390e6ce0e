//! `mainstay get`: what a channel to a target, or a server, is told, and by whom.

mod detail;
mod left_out;
mod listener;
mod report;
mod tree;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use mainstay::{
    Channel, Running, Server,
    event::{Event, Events},
    view::{ConfigView, Configs},
};
use tokio::time::Instant;

use crate::{
    backend, connect,
    failure::Failure,
    listen,
    output::Output,
    progress,
    signals::Signals,
    source::{Boot, Resolved},
    span,
};
use listener::ListenerReport;
pub(crate) use report::{ClusterReport, Facts, Report, RouteReport, ServerReport, Status};
pub(crate) use tree::{clean, draw};

/// Resolve an xDS target as a channel does and show the configuration with its sources
///
/// Prints the tree from the listener over routes and clusters to the endpoints. Each resource has its version, its age
/// and the server that it came from; what is wrong with it stands below it. Nothing is sent to the endpoints.
///
/// With --json each report is one line: target, status (complete, partial or failed), error (why there is no
/// configuration), node, mixed_sources, servers (uri, state, error), listener, routes (a name, virtual_host, and per
/// route its match and its clusters with weights), clusters by name (kind, lb_policy, dns, tls, children, endpoints as a
/// list of priorities, each a list of localities with their endpoints), and, while there is no configuration, watched: all
/// resources by type and name. Resources have state, version, age_ms, server and error.
///
/// With --server it shows the Listener of a server at that address instead: filter chains, how each is secured, its
/// filters with the policies of RBAC, and its routes. Nothing is bound or connected to; the address is that of the server
/// as it would ask for its Listener, by the template of the bootstrap. With --json: address, state (SERVING or
/// NOT_SERVING), reason, node, servers, listener, and filter_chains (name, match, tls, http_filters, routes).
///
/// The exit code is 0 if all clusters of the target have endpoints, or the address would be served, 4 if some have none, and 1 if there is no
/// configuration in time. With --watch it is 0, and SIGINT or SIGTERM end it.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// What to resolve, such as xds:///greeter
    #[arg(value_name = "TARGET", value_parser = parse_target, required_unless_present = "server")]
    target: Option<String>,

    /// Show what a server at this address is told, such as 0.0.0.0:50051
    #[arg(long, value_name = "ADDR", conflicts_with = "target")]
    server: Option<String>,

    /// Keep what the control plane says in files of this directory, and start from them while it is down
    #[arg(long, value_name = "DIR")]
    last_good: Option<PathBuf>,

    /// Go on, and print it again whenever it changes
    #[arg(long)]
    watch: bool,

    /// Print each report as a line of JSON
    #[arg(long)]
    json: bool,

    /// How long to wait for a complete configuration
    #[arg(long, value_name = "T", default_value = "20s", value_parser = span::parse)]
    timeout: Duration,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    subject: Subject,
    last_good: Option<PathBuf>,
    watch: bool,
    json: bool,
    timeout: Duration,
}

/// What to look at.
#[derive(Debug)]
enum Subject {
    Target(String),
    Server(SocketAddr),
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let Self { target, server, last_good, watch, json, timeout } = self;
        let subject = match (target, server) {
            (Some(target), _) => Subject::Target(target),
            (None, address) => Subject::Server(listen::resolve("--server", &address.unwrap_or_default())?),
        };
        Ok(Settings { subject, last_good, watch, json, timeout })
    }
}

impl Settings {
    /// Waits until what was shown is on disk, or cannot be, or is from there: the process is about to end.
    async fn until_kept(&self, events: &mut Events) {
        let by_bootstrap = || Boot::of_user(None).ok().flatten().is_some_and(|boot| boot.keeps_last_good());
        if self.last_good.is_none() && !by_bootstrap() {
            return;
        }
        let settled = async {
            while let Some(event) = events.next().await {
                if let Event::LastGoodWritten { .. } | Event::LastGoodFailed { .. } | Event::LastGoodLoaded { .. } =
                    event
                {
                    return;
                }
            }
        };
        // What is not complete is never written.
        let _ = tokio::time::timeout(KEEP_TIMEOUT, settled).await;
    }
}

/// Shows the configuration once, or until a signal.
pub(crate) async fn run(settings: Settings, signals: Signals, output: Output) -> Result<(), Failure> {
    match &settings.subject {
        Subject::Target(target) => run_target(target, &settings, signals, output).await,
        Subject::Server(address) => run_server(*address, &settings, signals, output).await,
    }
}

async fn run_target(
    target: &str,
    settings: &Settings,
    mut signals: Signals,
    mut output: Output,
) -> Result<(), Failure> {
    let mut builder = Channel::builder(target).without_endpoints();
    if let Some(directory) = &settings.last_good {
        builder = builder.last_good(&**directory);
    }
    let channel = connect::build(builder)?;
    let mut events = channel.events();
    let boot = Boot::of_user(None)?;
    let mut configs = channel.configs();
    let mut shown = tokio::select! {
        first = progress::shown(
            format!("waiting for the configuration of {target}"),
            first(&mut configs, Instant::now() + settings.timeout),
        ) => report_of(&first?, boot.as_ref()),
        () = signals.next() => return Ok(()),
    };
    print(settings, &shown, &mut output)?;
    if !settings.watch {
        settings.until_kept(&mut events).await;
        return outcome(&shown, settings.timeout);
    }
    loop {
        let next = tokio::select! {
            next = configs.next() => report_of(&next.ok_or_else(ended)?, boot.as_ref()),
            () = signals.next() => return Ok(()),
        };
        if !next.says_the_same_as(&shown) {
            shown = next;
            if !settings.json {
                output.line("")?;
            }
            print(settings, &shown, &mut output)?;
        }
    }
}

async fn run_server(
    address: SocketAddr,
    settings: &Settings,
    mut signals: Signals,
    mut output: Output,
) -> Result<(), Failure> {
    let mut builder = Server::builder().without_ports().listen(address);
    if let Some(directory) = &settings.last_good {
        builder = builder.last_good(&**directory);
    }
    let running = builder.start().map_err(backend::failure)?;
    let mut events = running.events();
    let mut states = running.serving_state(address).ok_or_else(ended)?;
    tokio::select! {
        _ = progress::shown(
            format!("waiting for the Listener of {address}"),
            tokio::time::timeout(settings.timeout, states.serving()),
        ) => {}
        () = signals.next() => return Ok(()),
    }
    let mut shown = listener_report(&running).await?;
    print_listener(settings, &shown, &mut output)?;
    if !settings.watch {
        settings.until_kept(&mut events).await;
        return match &shown.reason {
            None => Ok(()),
            Some(reason) => {
                Err(Failure::failed(format!("{address}: not served within {:?}: {reason}", settings.timeout)))
            }
        };
    }
    loop {
        let next = tokio::select! {
            next = next_listener(&running, &mut events) => next?,
            () = signals.next() => return Ok(()),
        };
        if !next.says_the_same_as(&shown) {
            shown = next;
            if !settings.json {
                output.line("")?;
            }
            print_listener(settings, &shown, &mut output)?;
        }
    }
}

/// What there is to say about a view.
pub(crate) fn report_of(view: &ConfigView, boot: Option<&Boot>) -> Report {
    let mut report = Report::new(view);
    // Glob collections are not among the bytes, but routes and clusters are.
    if let Some(Ok(Some(Resolved { config: Ok(config), .. }))) = boot.map(|boot| boot.resolve(view)) {
        report.detail(&config);
    }
    report
}

/// The report after the next thing that happened.
async fn next_listener(running: &Running, events: &mut Events) -> Result<ListenerReport, Failure> {
    events.next().await.ok_or_else(ended)?;
    listener_report(running).await
}

async fn listener_report(running: &Running) -> Result<ListenerReport, Failure> {
    let view = running.config().await.ok_or_else(ended)?;
    let listener = view.listeners.first().ok_or_else(ended)?;
    Ok(ListenerReport::new(&view, listener))
}

fn print_listener(settings: &Settings, report: &ListenerReport, output: &mut Output) -> Result<(), Failure> {
    if settings.json { output.json(report) } else { output.line(tree::draw_listener(report)) }
}

/// The first view with a configuration or an error in its place, or what there is when the time is up.
async fn first(configs: &mut Configs, deadline: Instant) -> Result<ConfigView, Failure> {
    let mut view = configs.next().await.ok_or_else(ended)?;
    while view.config.is_none() {
        match tokio::time::timeout_at(deadline, configs.next()).await {
            Ok(next) => view = next.ok_or_else(ended)?,
            Err(_) => break,
        }
    }
    Ok(view)
}

fn print(settings: &Settings, report: &Report, output: &mut Output) -> Result<(), Failure> {
    if settings.json { output.json(report) } else { output.line(tree::draw(report)) }
}

/// What the exit code says.
fn outcome(report: &Report, timeout: Duration) -> Result<(), Failure> {
    match (&report.status, &report.error) {
        (Status::Complete, _) => Ok(()),
        (Status::Partial, _) => {
            let unusable = report.unusable().join(", ");
            Err(Failure::partial(format!("{}: no endpoints for {unusable}", report.target))
                .tip("the tree shows what is missing and who was asked for it"))
        }
        (Status::Failed, Some(error)) => Err(Failure::failed(format!("{}: {error}", report.target))),
        (Status::Failed, None) => {
            Err(Failure::failed(format!("{}: no complete configuration within {timeout:?}", report.target))
                .tip("the list shows what has not come; --timeout gives the servers more time"))
        }
    }
}

fn ended() -> Failure {
    Failure::failed("the client has ended")
}

fn parse_target(text: &str) -> Result<String, String> {
    if text.starts_with("xds:") {
        Ok(text.to_owned())
    } else {
        Err("expected an xDS name such as xds:///greeter".into())
    }
}

/// A small file is written in milliseconds.
const KEEP_TIMEOUT: Duration = Duration::from_secs(2);
