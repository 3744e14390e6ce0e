//! `mainstay swarm`: many xDS clients in one process, to see what a control plane makes of them (SC-23).

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;
use mainstay::{Channel, SystemDns, bootstrap::Bootstrap};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{failure::Failure, output::Output, signals::Signals, span};

mod client;
#[cfg(unix)]
mod descriptors;
mod report;

use client::News;
use report::Tally;

/// Let many xDS clients fall upon a control plane at once, and measure how they fare
///
/// Each is a client of Mainstay with a node id and a connection of its own, and without endpoints: what a fleet of processes
/// looks like to a control plane. They start together. It ends when all have a complete configuration and have kept it for
/// --hold, or when the time is up.
///
/// Shown are how long it took until the clients heard anything, an answer or a refusal, and until they were configured; how often
/// they were refused, and came back; what they were told does not exist, which should be nothing; and what it cost in this
/// process. A client takes one descriptor: the limit is raised as far as the system allows.
///
/// With --json the figures are one object: clients, configured, started_ms, heard_ms, configured_ms, refused, unconnected,
/// lost, absent, failed, resource_bytes, cpu_ms, memory_bytes.
///
/// The exit code is 4 if not all were configured, or if any saw something as absent.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// What they are clients of, such as xds:///greeter
    #[arg(value_name = "TARGET")]
    target: String,

    /// How many of them
    #[arg(long, value_name = "N", default_value_t = 100)]
    clients: usize,

    /// The bootstrap; its node id gets a number for each client. Without it, the one that the environment names
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// Connect to the xDS servers over TLS, whatever the bootstrap says; with the roots in this file, or with those of the system
    #[arg(long, value_name = "CA", num_args = 0..=1)]
    tls: Option<Option<PathBuf>>,

    /// How long to stay after all are configured
    #[arg(long, value_name = "T", value_parser = span::parse)]
    hold: Option<Duration>,

    /// How long to wait until all are configured
    #[arg(long, value_name = "T", default_value = "60s", value_parser = span::parse)]
    timeout: Duration,

    /// Print the figures as one line of JSON
    #[arg(long)]
    json: bool,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    target: String,
    bootstraps: Vec<Bootstrap>,
    hold: Duration,
    timeout: Duration,
    json: bool,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let Self { target, clients, bootstrap, tls, hold, timeout, json } = self;
        if clients == 0 {
            return Err(Failure::usage("--clients 0: there is nothing to see then"));
        }
        // Elsewhere sockets have no limit of their own.
        #[cfg(unix)]
        descriptors::raise(clients)?;
        let template = Template::read(bootstrap.as_deref(), tls)?;
        let bootstraps = (0..clients).map(|number| template.of_client(number)).collect::<Result<_, _>>()?;
        Ok(Settings { target, bootstraps, hold: hold.unwrap_or_default(), timeout, json })
    }
}

/// Runs them all.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Settings { target, bootstraps, hold, timeout, json } = settings;
    let clients = bootstraps.len();
    let (tell, mut news) = mpsc::unbounded_channel();
    let start = Instant::now();
    let mut tally = Tally::new(clients);
    let mut running = JoinSet::new();
    for (number, bootstrap) in bootstraps.into_iter().enumerate() {
        // A resolver of its own keeps a client from sharing the connection of another.
        let channel = Channel::builder(&target)
            .bootstrap(bootstrap)
            .dns(SystemDns::default())
            .idle_timeout(None)
            .without_endpoints()
            .build()
            .map_err(|error| Failure::failed(error.to_string()))?;
        running.spawn(client::follow(number, channel, tell.clone()));
    }
    drop(tell);
    tally.started = start.elapsed();
    let deadline = tokio::time::Instant::from_std(start + timeout);
    let mut end = deadline;
    let mut was_complete = false;
    loop {
        tokio::select! {
            Some(News { client, happened, at }) = news.recv() => tally.note(client, happened, at.duration_since(start)),
            () = tokio::time::sleep_until(end) => break,
            () = signals.next() => break,
        }
        if tally.is_complete() && !was_complete {
            was_complete = true;
            end = tokio::time::Instant::now() + hold;
        }
    }
    tally.measure();
    running.abort_all();
    if json {
        output.json(&tally.report())?
    } else {
        output.line(tally.report())?
    }
    tally.outcome(timeout)
}

/// A bootstrap for many.
#[derive(Debug)]
struct Template(Value);

impl Template {
    fn read(file: Option<&std::path::Path>, tls: Option<Option<PathBuf>>) -> Result<Self, Failure> {
        let named = std::env::var_os("GRPC_XDS_BOOTSTRAP").map(PathBuf::from);
        let text = match file.map(std::path::Path::to_owned).or(named) {
            Some(path) => std::fs::read_to_string(&path)
                .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?,
            None => std::env::var("GRPC_XDS_BOOTSTRAP_CONFIG")
                .map_err(|_| Failure::usage("there is no bootstrap").tip("name its file with --bootstrap"))?,
        };
        let mut json: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("the bootstrap is no JSON: {error}")))?;
        if let Some(ca) = tls {
            let config = ca.map_or(json!({}), |ca| json!({ "ca_certificate_file": ca }));
            let credentials = json!([{ "type": "tls", "config": config }]);
            for server in servers(&mut json) {
                server["channel_creds"] = credentials.clone();
            }
        }
        Ok(Self(json))
    }

    fn of_client(&self, number: usize) -> Result<Bootstrap, Failure> {
        let mut json = self.0.clone();
        let id = json["node"]["id"].as_str().unwrap_or("swarm").to_owned();
        if !json.is_object() {
            return Err(Failure::failed("the bootstrap is no object"));
        }
        json["node"]["id"] = format!("{id}-{number}").into();
        Bootstrap::from_json(&json.to_string()).map_err(|error| Failure::failed(error.to_string()))
    }
}

/// Every xDS server of a bootstrap.
fn servers(bootstrap: &mut Value) -> impl Iterator<Item = &mut Value> {
    let Some(object) = bootstrap.as_object_mut() else { return Vec::new().into_iter() };
    let mut found = Vec::new();
    for (key, value) in object {
        match key.as_str() {
            "xds_servers" => found.extend(value.as_array_mut().into_iter().flatten()),
            "authorities" => {
                let authorities = value.as_object_mut().into_iter().flat_map(|all| all.values_mut());
                let lists = authorities.filter_map(|authority| authority.get_mut("xds_servers"));
                found.extend(lists.filter_map(Value::as_array_mut).flatten());
            }
            _ => {}
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_is_somebody_and_tls_is_for_all_servers() {
        let mut json = json!({
            "node": { "id": "n" },
            "xds_servers": [{ "server_uri": "a", "channel_creds": [{ "type": "insecure" }] }],
            "authorities": { "x": { "xds_servers": [{ "server_uri": "b" }] } },
        });
        assert_eq!(servers(&mut json).count(), 2);
        let template = Template(json!({
            "node": { "id": "n" },
            "xds_servers": [{ "server_uri": "127.0.0.1:1", "channel_creds": [{ "type": "insecure" }] }],
        }));
        assert_eq!(template.of_client(7).unwrap().node_id(), "n-7");
    }
}
