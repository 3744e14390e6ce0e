//! `mainstay backend`: a test server that says who it is.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use mainstay_testservice::Backend;

use crate::{
    failure::Failure,
    listen,
    output::{self, Output, TITLE},
    signals::Signals,
};

/// Serve grpc.testing.TestService, to have something to send RPCs to
///
/// Prints the address it listens on and serves until SIGINT or SIGTERM; then it finishes the calls under way (for two
/// seconds at most, or until a second signal) and ends with exit code 0. Calls choose their own fate with `rpc-behavior`
/// metadata: sleep-N, keep-open, error-code-N, succeed-on-retry-attempt-N, each optionally after "hostname=H ".
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Where to listen; port 0 lets the system choose
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: String,

    /// What to answer as server_id
    #[arg(long, value_name = "NAME", default_value = "backend")]
    id: String,

    /// What to answer as hostname [default: the id]
    #[arg(long, value_name = "NAME")]
    hostname: Option<String>,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    listen: SocketAddr,
    id: String,
    hostname: String,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let hostname = self.hostname.unwrap_or_else(|| self.id.clone());
        if !hostname.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(Failure::usage(format!("{hostname:?} cannot be a host name: it goes into a header"))
                .tip("use ASCII letters, digits and hyphens"));
        }
        Ok(Settings { listen: listen::resolve("--listen", &self.listen)?, id: self.id, hostname })
    }
}

/// Serves until a signal.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Settings { listen, id, hostname } = settings;
    let mut backend = Backend::builder(&id)
        .hostname(&hostname)
        .spawn(listen)
        .await
        .map_err(|error| listen::failure(listen, &error))?;
    output.line(format_args!("backend {} listening on {}", output::styled(TITLE, &id), backend.addr()))?;
    signals.next().await;
    tokio::select! {
        _ = tokio::time::timeout(PATIENCE, backend.stop_gracefully()) => {}
        () = signals.next() => {}
    }
    output.line(format_args!("backend {} served {} requests", output::styled(TITLE, &id), backend.requests()))
}

/// How long the calls under way may take after the first signal.
const PATIENCE: Duration = Duration::from_secs(2);
