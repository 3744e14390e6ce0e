//! `mainstay status`: how xDS clients in running processes are doing, a line for each.

use std::time::Duration;

use clap::Args;

use crate::{
    failure::Failure,
    fleet::{self, Row, age, or_dash},
    logging::{self, LogFormat},
    output::{self, Output},
    progress,
    signals::Signals,
    source::Source,
    span,
};

mod control_plane;

/// Ask running processes how their xDS clients are doing: a line for each
///
/// Works with every gRPC process that serves CSDS (gRFC A40), whatever its language; channelz adds the state of the channel.
/// Shown are the target, the state of the channel, the xDS server in charge, whether that is a fallback, how long ago the last
/// resource came, how many resources are in which state, and the last error. What a process does not tell is "-".
///
/// With --json each client is one line: address, target, node, user_agent, channel, servers, in_charge, fallback, age_ms, resources,
/// last_error, calls. With --control-plane it is one object: address, ready, sources, streams, clients.
///
/// The exit code is 1 if a process cannot be asked; the others are shown all the same.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Admin ports: HOST:PORT of gRPC processes, envoy:HOST:PORT of Envoys
    #[arg(value_name = "ADDR", required_unless_present = "control_plane")]
    addresses: Vec<Source>,

    /// Ask `mainstay serve` at its admin port for the other side: who is connected, which versions they accepted or rejected
    /// and why, and how many streams were refused
    #[arg(long, value_name = "ADDR", conflicts_with = "addresses")]
    control_plane: Option<String>,

    /// Print each client as a line of JSON
    #[arg(long)]
    json: bool,

    /// How long to wait for each process
    #[arg(long, value_name = "T", default_value = "5s", value_parser = span::parse)]
    timeout: Duration,
}

/// Shows all processes once.
pub(crate) async fn run(flags: Flags, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Flags { addresses, control_plane, json, timeout } = flags;
    if let Some(address) = control_plane {
        return tokio::select! {
            shown = control_plane::show(&address, json, timeout, &mut output) => shown,
            () = signals.next() => Ok(()),
        };
    }
    let answers = tokio::select! {
        answers = progress::shown("waiting for processes to answer", fleet::ask(&addresses, timeout)) => answers,
        () = signals.next() => return Ok(()),
    };
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(more) => rows.extend(more),
            Err((_, failure)) => failures.push(failure),
        }
    }
    if json {
        rows.iter().try_for_each(|row| output.json(row))?;
    } else if !rows.is_empty() {
        let lines: Vec<_> = rows.iter().map(|row| (row.is_troubled(), line(row))).collect();
        output.line(fleet::table(&HEAD, &lines, output::width()))?;
    }
    let mut failures = failures.into_iter();
    match failures.next_back() {
        None => Ok(()),
        Some(last) => {
            failures.for_each(|failure| _ = logging::report(&failure, LogFormat::Text));
            Err(last)
        }
    }
}

fn line(row: &Row) -> Vec<String> {
    vec![
        row.address.clone(),
        or_dash(row.target.as_ref()),
        or_dash(row.channel),
        or_dash(row.in_charge.as_ref()),
        or_dash(row.fallback.map(|fallback| if fallback { "yes" } else { "no" })),
        or_dash(row.age_ms.map(age)),
        row.counts(),
        or_dash(row.last_error.as_ref()),
    ]
}

const HEAD: [&str; 8] = ["ADDRESS", "TARGET", "CHANNEL", "IN CHARGE", "FALLBACK", "AGE", "RESOURCES", "LAST ERROR"];
