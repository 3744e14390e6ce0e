//! The other side of `status`: who is connected to a control plane, and what they say about what they were sent (OP-16).

use std::time::Duration;

use crate::{
    failure::Failure,
    fleet::{self, age},
    http,
    output::{self, Output},
    serve::page::{Client, Page, SourceState, Version},
};

/// Shows a control plane that serves this admin port.
pub(super) async fn show(address: &str, json: bool, timeout: Duration, output: &mut Output) -> Result<(), Failure> {
    let body = http::get(address, "/status", timeout)
        .await
        .map_err(|why| Failure::failed(format!("cannot ask the control plane at {address}: {why}")).tip(TIP))?;
    let page: Page = serde_json::from_slice(&body).map_err(|error| {
        Failure::failed(format!("{address} answered /status with something else: {error}")).tip(TIP)
    })?;
    if json {
        return output.json(&page);
    }
    let ready = if page.ready { "ready" } else { "not ready" };
    let Page { address, streams, .. } = &page;
    output.line(format_args!(
        "{address} is {ready}: {}, {} accepted and {} refused so far, {}",
        counted(streams.open, "stream"),
        streams.accepted,
        streams.refused,
        counted(streams.nacks, "rejection")
    ))?;
    page.sources.iter().try_for_each(|source| output.line(source_line(source)))?;
    if page.clients.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = page.clients.iter().map(|client| (is_troubled(client), row(client))).collect();
    output.line(fleet::table(&HEAD, &rows, output::width()))
}

fn source_line(source: &SourceState) -> String {
    let SourceState { name, resources, age_ms, behind_ms, problem } = source;
    let mut line = match age_ms {
        Some(age_ms) => format!("{name}: {}, {} old", counted(*resources, "resource"), age(*age_ms)),
        None => format!("{name}: nothing yet"),
    };
    if let Some(behind_ms) = behind_ms {
        line.push_str(&format!(", behind for {}", age(*behind_ms)));
    }
    if let Some(problem) = problem {
        line.push_str(&format!(": {problem}"));
    }
    line
}

/// A number of things, of which there may be one.
fn counted(count: impl std::fmt::Display, what: &str) -> String {
    let count = count.to_string();
    let plural = if count == "1" { "" } else { "s" };
    format!("{count} {what}{plural}")
}

fn is_troubled(client: &Client) -> bool {
    client.types.values().any(|version| version.rejected.is_some())
}

fn row(client: &Client) -> Vec<String> {
    let types: Vec<_> = client.types.iter().map(|(name, version)| format!("{name} {}", state(version))).collect();
    let reasons = client.types.values().filter_map(|version| version.reason.clone());
    vec![
        client.node.clone(),
        client.peer.clone(),
        if client.delta { "delta" } else { "sotw" }.to_owned(),
        age(client.connected_ms),
        types.join(", "),
        fleet::or_dash(reasons.into_iter().next()),
    ]
}

/// Versions are long: their beginning tells them apart.
fn state(version: &Version) -> String {
    let short = |version: &str| version.chars().take(8).collect::<String>();
    match version {
        Version { rejected: Some(rejected), acked, .. } => match acked {
            Some(acked) => format!("NACK {}, has {}", short(rejected), short(acked)),
            None => format!("NACK {}, has none", short(rejected)),
        },
        Version { sent: None, .. } => "not sent".to_owned(),
        Version { sent: Some(sent), acked, .. } if acked.as_ref() == Some(sent) => format!("ACK {}", short(sent)),
        Version { sent: Some(sent), .. } => format!("sent {}", short(sent)),
    }
}

const HEAD: [&str; 6] = ["NODE", "PEER", "ADS", "FOR", "VERSIONS", "REASON"];
const TIP: &str = "give the address of `mainstay serve --admin ADDR`";
