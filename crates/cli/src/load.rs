//! `mainstay load`: RPCs on a schedule, and what became of them.

mod method;
mod report;

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddr,
    path::PathBuf,
    time::Duration,
};

use clap::Args;

use crate::{
    admin,
    connect::{Options, Target, connect},
    credentials::CredentialFlags,
    failure::Failure,
    listen,
    output::Output,
    progress,
    signals::Signals,
    span,
    traffic::{Schedule, Traffic},
};
use method::{Method, MethodFlags};
use report::{Lines, Report, Summary};

/// Send RPCs to targets at a steady rate and tell what became of them
///
/// Calls a unary method (--method; /grpc.testing.TestService/UnaryCall by default) N times per second and target, on one channel
/// per target. The schedule is
/// an open loop: a slow call never delays the next. SIGINT or SIGTERM end the run early; calls under way then have one
/// second to end. The summary goes to standard output, or with --json to standard error. The exit code is 0 when the
/// run went to its end or to a signal, whatever became of the calls; --fail-on-failed-rpc makes failed calls exit code 3.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// What to call: xDS names (xds:///greeter), or servers through tonic's own channel (http://127.0.0.1:50051)
    #[arg(value_name = "TARGET", required = true, value_delimiter = ',')]
    targets: Vec<Target>,

    /// Calls per second and target
    #[arg(long, value_name = "N", default_value = "10", value_parser = parse_rate)]
    qps: f64,

    /// How long to send, such as 10s or 5m [default: until a signal]
    #[arg(long, value_name = "T", value_parser = span::parse)]
    duration: Option<Duration>,

    /// The deadline of each call
    #[arg(long, value_name = "T", default_value = "20s", value_parser = span::parse)]
    rpc_timeout: Duration,

    /// Let calls wait for a connection instead of failing while there is none (xds: targets only)
    #[arg(long)]
    wait_for_ready: bool,

    #[command(flatten)]
    method: MethodFlags,

    #[command(flatten)]
    credentials: CredentialFlags,

    /// Keep what the control plane says in files of this directory, and start from them while it is down
    #[arg(long, value_name = "DIR")]
    last_good: Option<PathBuf>,

    /// Serve CSDS at this HOST:PORT: what the channels hold, from which server, and what is wrong with it
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,

    /// End with exit code 3 if any call failed
    #[arg(long)]
    fail_on_failed_rpc: bool,

    /// Print each finished call as a line of JSON: t0, t, ms, target, ok, code, server_id, details
    #[arg(long)]
    json: bool,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    targets: Vec<Target>,
    method: Option<Method>,
    schedule: Schedule,
    rpc_timeout: Duration,
    options: Options,
    admin: Option<SocketAddr>,
    fail_on_failed_rpc: bool,
    lines: Lines,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let lines = match (self.json, io::stderr().is_terminal()) {
            (true, _) => Lines::Calls,
            (false, true) => Lines::Progress,
            (false, false) => Lines::None,
        };
        let admin = self.admin.map(|address| listen::resolve("--admin", &address)).transpose()?;
        Ok(Settings {
            targets: self.targets,
            method: self.method.resolve()?,
            schedule: Schedule::new(self.qps, self.duration),
            rpc_timeout: self.rpc_timeout,
            options: Options {
                wait_for_ready: self.wait_for_ready,
                credentials: self.credentials.resolve()?,
                bootstrap: None,
                last_good: self.last_good,
            },
            admin,
            fail_on_failed_rpc: self.fail_on_failed_rpc,
            lines,
        })
    }
}

/// Sends until the schedule ends or a signal comes.
pub(crate) async fn run(settings: Settings, mut signals: Signals, output: Output) -> Result<(), Failure> {
    let mut callers = Vec::new();
    for target in &settings.targets {
        callers.push(match &settings.method {
            None => connect(target, &settings.options)?,
            Some(method) => {
                let asking = format!("asking {target} for its types");
                tokio::select! {
                caller = progress::shown(asking, method.connect(target, &settings.options, settings.rpc_timeout)) => caller?,
                () = signals.next() => return Ok(()),
                }
            }
        });
    }
    let _admin = match settings.admin {
        Some(address) => Some(admin::serve(address).await?),
        None => None,
    };
    let mut traffic = Traffic::start(settings.schedule, callers, settings.rpc_timeout);
    let mut report = Report::new(&settings.targets, settings.lines, output);
    let mut ticks = tokio::time::interval(TICK);
    let mut stopping = false;
    loop {
        tokio::select! {
            event = traffic.next() => match event {
                Some(event) => report.event(&event)?,
                None => break,
            },
            _ = ticks.tick(), if settings.lines == Lines::Progress => report.progress(),
            () = signals.next() => {
                if stopping {
                    break;
                }
                stopping = true;
                traffic.stop();
            }
        }
    }
    let Summary { sent, failed } = report.finish()?;
    if settings.fail_on_failed_rpc && failed > 0 {
        return Err(Failure::calls(format!("{failed} of {sent} RPCs failed")));
    }
    Ok(())
}

/// Reads a rate. The bounds keep the schedule exact and the machine alive.
pub(crate) fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (SLOWEST..=FASTEST).contains(&rate) => Ok(rate),
        _ => Err(format!("expected a number from {SLOWEST} to {FASTEST}")),
    }
}

/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(500);
const SLOWEST: f64 = 0.001;
const FASTEST: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_bounded() {
        assert_eq!(parse_rate("0.5"), Ok(0.5));
        for text in ["0", "-1", "NaN", "inf", "1e9", "many", ""] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
