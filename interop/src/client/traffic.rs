//! The RPCs: rounds at a constant rate, whatever becomes of earlier ones (I-3).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay::{Channel, Credentials};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::call::{Outcome, Target};
use super::configure::Configuration;
use super::settings::Settings;
use super::stats::Stats;

/// Sends RPCs for ever. Ends only with `--fail_on_failed_rpc`, with the reason.
pub(crate) async fn send(settings: &Settings, stats: Arc<Stats>, configuration: Arc<Configuration>) -> String {
    let (fail, mut failure) = mpsc::channel(1);
    let judge = Arc::new(Judge { settings: settings.clone(), succeeded: AtomicBool::new(false), fail });
    let period = Duration::from_secs(1) / settings.qps;
    let targets: Vec<_> = (0..settings.num_channels).map(|_| target(settings)).collect();
    let mut ticks = tokio::time::interval(period);
    // After a pause of the whole process there is nothing to catch up with.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            Some(reason) = failure.recv() => return reason,
            _ = ticks.tick() => {}
        }
        for target in &targets {
            for plan in configuration.round() {
                let (target, stats, judge) = (target.clone(), stats.clone(), judge.clone());
                let method = plan.method;
                let id = stats.begin(method);
                tokio::spawn(async move {
                    let outcome = target.call(plan).await;
                    stats.end(id, method, &outcome);
                    judge.judge(&outcome);
                });
            }
        }
    }
}

/// A channel to the server, or the reason why there is none: the process lives on and says it with every RPC (I-5).
fn target(settings: &Settings) -> Target {
    let server = &settings.server;
    let made = if server.starts_with("xds:") {
        let mut channel = Channel::builder(server).keep_alive_without_calls(settings.keep_alive_without_calls);
        if settings.secure {
            channel = channel.credentials(Credentials::xds(Credentials::insecure()));
        }
        if let Some(interval) = settings.keep_alive {
            channel = channel.keep_alive(interval, KEEP_ALIVE_TIMEOUT);
        }
        channel.build().map(Target::Xds).map_err(|error| error.to_string())
    } else {
        let authority = server.rsplit('/').next().unwrap_or(server.as_str());
        Endpoint::from_shared(format!("http://{authority}"))
            .map(|endpoint| Target::Plain(endpoint.connect_lazy()))
            .map_err(|error| format!("--server={server}: {error}: expected xds:///name or host:port"))
    };
    made.unwrap_or_else(|reason| {
        eprintln!("error: no channel to {server}: {reason}");
        eprintln!("every RPC fails until the process is started again with this put right");
        Target::Broken(Status::unavailable(format!("no channel to {server}: {reason}")))
    })
}

/// How long a ping may remain without an answer.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Decides what an outcome means to the process.
struct Judge {
    settings: Settings,
    succeeded: AtomicBool,
    fail: mpsc::Sender<String>,
}

impl Judge {
    fn judge(&self, outcome: &Outcome) {
        let status = &outcome.status;
        if self.settings.print_response {
            match &outcome.peer {
                Some(peer) if status.code() == Code::Ok => println!("answered by {peer}"),
                _ => println!("{:?}: {}", status.code(), status.message()),
            }
        }
        if status.code() == self.settings.expect_status {
            self.succeeded.store(true, Ordering::Relaxed);
        } else if self.settings.fail_on_failed_rpc && self.succeeded.load(Ordering::Relaxed) {
            // The first reason is enough.
            let _ = self.fail.try_send(format!("an RPC failed after others had not: {status}"));
        }
    }
}
