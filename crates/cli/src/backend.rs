//! `mainstay backend`: a test server that says who it is.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use mainstay::{ServeError, Server, ServerCredentials, ServingState};
use mainstay_testservice::Backend;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    failure::Failure,
    listen,
    logging::LogFormat,
    output::{self, BAD, GOOD, Output, TITLE},
    signals::Signals,
};

/// Serve grpc.testing.TestService, to have something to send RPCs to
///
/// Prints the address it listens on and serves until SIGINT or SIGTERM; then it finishes the calls under way (for two
/// seconds at most, or until a second signal) and ends with exit code 0. Calls choose their own fate with `rpc-behavior`
/// metadata: sleep-N, keep-open, error-code-N, succeed-on-retry-attempt-N, each optionally after "hostname=H ".
///
/// With --xds it is a server that the control plane of the bootstrap configures: it listens only while it has a Listener
/// for its address, and says whenever that changes. With --json each change is a line: event ("serving"), address, state
/// (SERVING or NOT_SERVING) and reason (why it does not serve, or null).
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

    /// Serve as the control plane says
    #[arg(long)]
    xds: bool,

    /// With --xds: how connections are secured: insecure, or as the control plane says (xds), in plaintext where it says
    /// nothing
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value = "insecure",
        hide_possible_values = true,
        requires = "xds"
    )]
    credentials: Kind,

    /// With --xds: keep what the control plane says in files of this directory, and start from them while it is down
    #[arg(long, value_name = "DIR", requires = "xds")]
    last_good: Option<PathBuf>,

    /// With --xds: print each change of the serving state as a line of JSON, and nothing else
    #[arg(long, requires = "xds")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Insecure,
    Xds,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    listen: SocketAddr,
    id: String,
    hostname: String,
    xds: Option<Xds>,
}

/// How a backend is that the control plane configures.
#[derive(Debug)]
struct Xds {
    credentials: ServerCredentials,
    last_good: Option<PathBuf>,
    json: bool,
}

impl Flags {
    pub(crate) fn resolve(self, log: LogFormat) -> Result<Settings, Failure> {
        let hostname = self.hostname.unwrap_or_else(|| self.id.clone());
        if !hostname.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(Failure::usage(format!("{hostname:?} cannot be a host name: it goes into a header"))
                .tip("use ASCII letters, digits and hyphens"));
        }
        let credentials = match self.credentials {
            Kind::Insecure => ServerCredentials::insecure(),
            Kind::Xds => ServerCredentials::xds(ServerCredentials::insecure()),
        };
        let xds = self.xds.then_some(Xds {
            credentials,
            last_good: self.last_good,
            json: self.json || log == LogFormat::Json,
        });
        Ok(Settings { listen: listen::resolve("--listen", &self.listen)?, id: self.id, hostname, xds })
    }
}

/// Why a server that the control plane configures cannot start.
pub(crate) fn failure(error: ServeError) -> Failure {
    match &error {
        ServeError::Bind(address, cause) => listen::failure(address, cause),
        ServeError::NoTemplate => Failure::failed(error.to_string()).tip(TEMPLATE_TIP),
        _ => Failure::failed(error.to_string()),
    }
}

/// Serves until a signal.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Settings { listen, id, hostname, xds } = settings;
    if let Some(xds) = xds {
        return run_xds(xds, listen, &id, &hostname, signals, output).await;
    }
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

/// Serves as the control plane says, until a signal.
async fn run_xds(
    Xds { credentials, last_good, json }: Xds,
    listen: SocketAddr,
    id: &str,
    hostname: &str,
    mut signals: Signals,
    mut output: Output,
) -> Result<(), Failure> {
    let service = mainstay_testservice::service(id, hostname)
        .ok_or_else(|| Failure::usage(format!("{hostname:?} cannot be a host name: it goes into a header")))?;
    let (changes, mut changed) = mpsc::unbounded_channel();
    let mut builder = Server::builder();
    if let Some(directory) = last_good {
        builder = builder.last_good(directory);
    }
    let running = builder
        .credentials(credentials)
        .on_serving_state(move |address, state| {
            // Nobody listens any more when the command is about to end.
            let _ = changes.send((address, state.clone()));
        })
        .add_service(service)
        .listen(listen)
        .start()
        .map_err(failure)?;
    if !json {
        for address in running.local_addresses() {
            let id = output::styled(TITLE, id);
            output.line(format_args!("backend {id} bound to {address}, waiting for the control plane"))?;
        }
    }
    loop {
        tokio::select! {
            Some((address, state)) = changed.recv() => tell(&mut output, json, id, address, &state)?,
            () = signals.next() => break,
        }
    }
    tokio::select! {
        _ = tokio::time::timeout(PATIENCE, running.shutdown()) => {}
        () = signals.next() => {}
    }
    while let Ok((address, state)) = changed.try_recv() {
        tell(&mut output, json, id, address, &state)?;
    }
    Ok(())
}

/// A change of the serving state, for programs.
#[derive(Serialize)]
struct Change<'a> {
    event: &'static str,
    address: SocketAddr,
    state: &'static str,
    reason: Option<&'a str>,
}

fn tell(output: &mut Output, json: bool, id: &str, address: SocketAddr, state: &ServingState) -> Result<(), Failure> {
    let reason = match state {
        ServingState::NotServing { reason, .. } => Some(&**reason),
        _ => None,
    };
    if json {
        let state = if state.is_serving() { "SERVING" } else { "NOT_SERVING" };
        return output.json(&Change { event: "serving", address, state, reason });
    }
    let words = match reason {
        None => output::styled(GOOD, "serves"),
        Some(reason) => format!("{}: {reason}", output::styled(BAD, "does not serve")),
    };
    output.line(format_args!("backend {} on {address} {words}", output::styled(TITLE, id)))
}

const TEMPLATE_TIP: &str = "for example \"server_listener_resource_name_template\": \
                            \"grpc/server?xds.resource.listening_address=%s\"";

/// How long the calls under way may take after the first signal.
const PATIENCE: Duration = Duration::from_secs(2);
