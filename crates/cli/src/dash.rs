//! `mainstay dash`: what the xDS clients of running processes hold, as pages for a browser (OP-20 to OP-25).
//!
//! [`watch`] asks the processes again and again and notes what changed, [`pages`] puts it on pages, [`site`] serves them.

mod pages;
mod site;
mod timeline;
mod watch;
mod watched;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::Args;
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::transport::{Server, server::TcpIncoming};

use crate::{failure::Failure, listen, output::Output, signals::Signals, source::Source, span};
use site::Site;

/// Show the xDS clients of running processes in a browser, live: fleet, trees, timeline, explain, check
///
/// Reads CSDS and channelz of any gRPC process, whatever its language, and Envoy's config_dump; directories of resources are shown, too.
/// Pages follow what happens by themselves; nothing can be changed with them, and they load nothing from elsewhere. Everything
/// on them is also there with ?format=json.
///
/// It listens on this machine only. Another address needs --token-file: open http://HOST:PORT/?token=TOKEN once, or send
/// "Authorization: Bearer TOKEN".
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Admin ports: HOST:PORT of gRPC processes, envoy:HOST:PORT of Envoys; dir:PATH shows files
    #[arg(value_name = "ADDR", required = true)]
    addresses: Vec<Source>,

    /// Where to serve the pages: HOST:PORT, where port 0 lets the system choose
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_LISTEN)]
    listen: String,

    /// Ask for the token in this file
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// A name by which browsers may ask for the pages, beside addresses and localhost; may be given more than once
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// Time between two looks at each process
    #[arg(long, value_name = "T", default_value = "500ms", value_parser = span::parse)]
    interval: Duration,

    /// How long to wait for each process
    #[arg(long, value_name = "T", default_value = "2s", value_parser = span::parse)]
    timeout: Duration,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    sources: Vec<Source>,
    listen: SocketAddr,
    token: Option<String>,
    /// Names of this machine.
    hosts: Vec<String>,
    interval: Duration,
    timeout: Duration,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let Self { addresses, listen, token_file, host, interval, timeout } = self;
        if addresses.contains(&Source::Live) {
            return Err(Failure::usage("live is not a process to ask").tip("give the admin ports of processes"));
        }
        let mut settings = Settings::new(addresses, &listen)?;
        settings.token = token_file.as_deref().map(token).transpose()?;
        (settings.hosts, settings.interval, settings.timeout) = (host, interval, timeout);
        settings.guard()?;
        Ok(settings)
    }
}

impl Settings {
    /// For `sources`, with everything else as by default.
    pub(crate) fn new(sources: Vec<Source>, listen: &str) -> Result<Self, Failure> {
        let listen = listen::resolve("the dashboard at", listen)?;
        let (interval, timeout) = (Duration::from_millis(500), Duration::from_secs(2));
        Ok(Self { sources, listen, token: None, hosts: Vec::new(), interval, timeout })
    }

    /// Refuses to show configurations to the whole network.
    fn guard(&self) -> Result<(), Failure> {
        match (self.listen.ip().is_loopback(), &self.token) {
            (true, _) | (false, Some(_)) => Ok(()),
            (false, None) => Err(Failure::usage(format!(
                "{} can be reached from other machines, and nobody is asked who they are",
                self.listen
            ))
            .tip("listen on 127.0.0.1, or give --token-file")),
        }
    }
}

/// Reads a token.
fn token(path: &std::path::Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::failed(format!("cannot read the token in {}: {error}", path.display())))?;
    match text.trim() {
        token
            if token.len() >= SHORTEST_TOKEN
                && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)) =>
        {
            Ok(token.to_owned())
        }
        _ => Err(Failure::usage(format!("{} holds no token", path.display()))
            .tip("a token has at least 16 letters, digits or -_.~, such as `openssl rand -hex 16` makes")),
    }
}

/// Serves pages until a signal.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let (address, serving) = start(settings).await?;
    output.line(format_args!("dashboard on http://{address}/"))?;
    tokio::select! {
        ended = serving => ended,
        () = signals.next() => Ok(()),
    }
}

/// Serves pages beside something else, as long as the returned value lives, and says where on standard error.
pub(crate) async fn serve(settings: Settings) -> Result<Serving, Failure> {
    let (address, serving) = start(settings).await?;
    anstream::eprintln!("dashboard on http://{address}/");
    Ok(Serving(tokio::spawn(async {
        if let Err(failure) = serving.await {
            anstream::eprintln!("dashboard: {}", failure.what());
        }
    })))
}

/// A dashboard beside something else; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Serving(JoinHandle<()>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Begins to listen: the address, and what serves until it is dropped.
async fn start(settings: Settings) -> Result<(SocketAddr, impl Future<Output = Result<(), Failure>>), Failure> {
    settings.guard()?;
    let listener =
        TcpListener::bind(settings.listen).await.map_err(|error| listen::failure(settings.listen, &error))?;
    let address = listener.local_addr().map_err(|error| listen::failure(settings.listen, &error))?;
    let serving = async move {
        let (looks, watching) = watch::watch(settings.sources.clone(), settings.interval, settings.timeout);
        let pages = Site::new(settings, looks).router();
        // The server of tonic speaks HTTP/1, too, and is there already.
        let server = Server::builder().accept_http1(true).add_routes(pages.into());
        tokio::select! {
            served = server.serve_with_incoming(TcpIncoming::from(listener)) => {
                served.map_err(|error| Failure::failed(format!("the dashboard cannot be served any more: {error}")))
            }
            () = watching => Ok(()),
        }
    };
    Ok((address, serving))
}

pub(crate) const DEFAULT_LISTEN: &str = "127.0.0.1:9911";

const SHORTEST_TOKEN: usize = 16;
