//! `mainstay serve`: a control plane from a directory of files.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use mainstay_control_plane::{
    Address, Body, ControlPlane, Deletions, Event, LoadErrors, LoadReport, Reload, RequestKind, SeenRequest, Server,
    ServerTls, StreamId, TypeUrl, locality_name,
};

use crate::{
    failure::Failure,
    judge::{self, Judge},
    listen,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
    signals::Signals,
};

/// Serve the xDS resources in a directory of YAML and JSON files, and follow their changes
///
/// Files hold resources in the JSON of protobuf, as in Envoy's documentation, under "resources:" or one per document.
/// Whenever they change, the new configuration is put into force as a whole, or rejected as a whole with its reasons; a
/// file that is still being written is waited for. Clients that reject a resource are shown with their reasons, too.
/// SIGINT or SIGTERM end it with exit code 0.
///
/// Nothing is put into force that `mainstay check` finds errors in, at the start or later; --no-check turns that off.
///
/// With --tls-cert and --tls-key clients connect over TLS, and with --client-ca only those that present a certificate of
/// that authority. The files are looked at for each connection: new ones are used at once, and wrong ones change nothing.
///
/// Files below "nodes/ID/", and those that say "node: ID", are for the node with that id only; it is served them and those
/// for all nodes. A list "errors:" beside "resources:" has resources that are answered with an error, each with its
/// "type_url", "name", "code" (such as NOT_FOUND) and "message".
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The directory with the files
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Where to listen: HOST:PORT, where port 0 lets the system choose, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18000")]
    listen: String,

    /// Serve TLS with this certificate, in PEM, with those of the authorities in between
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve only clients with a certificate of these authorities (mTLS)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,

    /// Serve a directory without resources, and follow changes that delete more than half of them
    #[arg(long)]
    allow_mass_deletion: bool,

    /// Serve whatever can be read, also what clients reject or what leads nowhere
    #[arg(long)]
    no_check: bool,

    /// Print the load that clients report, for clusters with "lrs_server: { self: {} }"
    #[arg(long)]
    print_load: bool,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    directory: PathBuf,
    listen: Address,
    tls: Option<ServerTls>,
    security: Security,
    deletions: Deletions,
    judge: Judge,
    print_load: bool,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let listen = listen::resolve_any("--listen", &self.listen)?;
        let security = match (&self.tls_cert, &self.client_ca) {
            (None, _) => Security::Plaintext,
            (Some(_), None) => Security::Tls,
            (Some(_), Some(_)) => Security::Mtls,
        };
        let tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| ServerTls::from_files(cert, key, self.client_ca));
        let tls = tls.transpose().map_err(|error| Failure::failed(format!("cannot serve TLS: {error}")))?;
        let deletions = if self.allow_mass_deletion { Deletions::Allowed } else { Deletions::Bounded };
        let judge = if self.no_check { Judge::Nothing } else { Judge::Errors };
        Ok(Settings { directory: self.directory, listen, tls, security, deletions, judge, print_load: self.print_load })
    }
}

/// Serves until a signal.
pub(crate) async fn run(settings: Settings, mut signals: Signals, output: Output) -> Result<(), Failure> {
    let Settings { directory, listen, tls, security, deletions, judge, print_load } = settings;
    let control_plane = ControlPlane::new();
    let judged = move |sources: &_| judge.sources(sources);
    let watch = control_plane.watch_directory_judged(&directory, deletions, judged).await;
    let mut watch = watch.map_err(|errors| unreadable(&directory, &errors))?;
    let server = control_plane.serve_at(listen.clone(), tls).map_err(|error| listen::failure(&listen, &error))?;
    let mut events = server.events();
    let mut log = Log { output, served: Contents::default(), nodes: BTreeMap::new(), print_load };
    log.begin(&directory, &server, security, contents(&control_plane))?;
    loop {
        tokio::select! {
            Some(reload) = watch.next() => log.reload(reload, || contents(&control_plane))?,
            Some(event) = events.next() => log.event(event)?,
            () = signals.next() => break,
        }
    }
    tokio::select! {
        _ = tokio::time::timeout(PATIENCE, server.stop_gracefully()) => {}
        () = signals.next() => {}
    }
    Ok(())
}

/// The resources for all nodes, by type and name.
type Contents = BTreeMap<(TypeUrl, String), Body>;

fn contents(control_plane: &ControlPlane) -> Contents {
    let snapshot = control_plane.snapshot().unwrap_or_default();
    snapshot.resources().map(|resource| ((resource.type_url, resource.name), resource.body)).collect()
}

/// How clients connect.
#[derive(Clone, Copy, Debug)]
enum Security {
    Plaintext,
    Tls,
    Mtls,
}

impl Security {
    fn words(self) -> &'static str {
        match self {
            Self::Plaintext => "",
            Self::Tls => " over TLS",
            Self::Mtls => " over mTLS",
        }
    }
}

/// Tells what happens.
struct Log {
    output: Output,
    served: Contents,
    /// Which node opened a stream: only the first request of a stream must say so.
    nodes: BTreeMap<StreamId, String>,
    print_load: bool,
}

impl Log {
    fn begin(
        &mut self,
        directory: &Path,
        server: &Server,
        security: Security,
        served: Contents,
    ) -> Result<(), Failure> {
        self.output.line(format_args!(
            "serving {} on {}{}, {}",
            styled(TITLE, directory.display()),
            server.address(),
            security.words(),
            resources(served.len())
        ))?;
        self.changes(served)
    }

    fn reload(&mut self, reload: Reload, served: impl FnOnce() -> Contents) -> Result<(), Failure> {
        match reload {
            Reload::Applied { .. } => {
                let served = served();
                self.output.line(format_args!("{}, {}", styled(GOOD, "reloaded"), resources(served.len())))?;
                self.changes(served)
            }
            Reload::Rejected(errors) => {
                self.output.line(format_args!("{}, what was served before still is:", styled(BAD, "rejected")))?;
                errors.0.iter().try_for_each(|error| self.output.line(format_args!("  {error}")))
            }
            Reload::Waiting(files) => {
                let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                let waiting = format!("waiting for files that are still being written: {}", files.join(", "));
                self.output.line(styled(DIM, waiting))
            }
        }
    }

    /// Prints what is new, changed and gone, and remembers what is there.
    fn changes(&mut self, served: Contents) -> Result<(), Failure> {
        let before = std::mem::replace(&mut self.served, served);
        for (key, body) in &self.served {
            match before.get(key) {
                Some(old) if old == body => {}
                Some(_) => self.output.line(entry('~', key))?,
                None => self.output.line(entry('+', key))?,
            }
        }
        let gone = before.keys().filter(|key| !self.served.contains_key(key));
        gone.map(|key| entry('-', key)).try_for_each(|line| self.output.line(line))
    }

    fn event(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Request(request) => self.request(request),
            Event::HandshakeFailed { peer, reason, .. } => {
                let refused = styled(BAD, format_args!("client {peer} failed the TLS handshake"));
                self.output.line(format_args!("{refused}: {reason}"))
            }
            Event::LoadReported(report) if self.print_load => self.load(&report),
            Event::StreamClosed { stream } => match self.nodes.remove(&stream) {
                Some(node) => self.output.line(styled(DIM, format_args!("node {node} left"))),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn load(&mut self, LoadReport { node, clusters }: &LoadReport) -> Result<(), Failure> {
        for cluster in clusters {
            let head = format!("load of node {node}, cluster {}", cluster.cluster_name);
            for locality in &cluster.upstream_locality_stats {
                self.output.line(format_args!(
                    "{head}, locality {:?}: {} sent, {} succeeded, {} failed, {} under way",
                    locality_name(locality.locality.as_ref()),
                    locality.total_issued_requests,
                    locality.total_successful_requests,
                    locality.total_error_requests,
                    locality.total_requests_in_progress
                ))?;
            }
            if cluster.total_dropped_requests > 0 {
                let drops = cluster.dropped_requests.iter();
                let drops: Vec<_> = drops.map(|drop| format!("{} {}", drop.dropped_count, drop.category)).collect();
                let dropped = cluster.total_dropped_requests;
                self.output.line(format_args!("{head}: {dropped} dropped ({})", drops.join(", ")))?;
            }
        }
        Ok(())
    }

    fn request(&mut self, request: SeenRequest) -> Result<(), Failure> {
        let SeenRequest { stream, node, type_url, version, error, kind, .. } = request;
        if let Some(node) = node
            && !self.nodes.contains_key(&stream)
        {
            self.output.line(styled(DIM, format_args!("node {} came", node.id)))?;
            self.nodes.insert(stream, node.id);
        }
        match (kind, error) {
            (RequestKind::Nack, Some((_, reason))) => {
                let node = self.nodes.get(&stream).map_or("", String::as_str);
                let rejects = styled(BAD, format_args!("node {node} rejects {}", type_url.short_name()));
                let kept = if version.is_empty() { "has none".to_owned() } else { format!("keeps version {version}") };
                self.output.line(format_args!("{rejects} and {kept}: {reason}"))
            }
            _ => Ok(()),
        }
    }
}

fn entry(sign: char, (type_url, name): &(TypeUrl, String)) -> String {
    format!("  {sign} {:<4} {name}", type_url.short_name())
}

fn resources(count: usize) -> String {
    if count == 1 { "1 resource".to_owned() } else { format!("{count} resources") }
}

fn unreadable(directory: &Path, errors: &LoadErrors) -> Failure {
    let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
    Failure::failed(format!("cannot serve {}:{}", directory.display(), reasons.concat()))
        .tip(judge::tip(errors).unwrap_or(TIP))
}

const TIP: &str =
    "correct the files; once it serves, wrong files are only reported. An empty directory needs --allow-mass-deletion";

/// How long clients may take to leave after the first signal.
const PATIENCE: Duration = Duration::from_secs(2);
