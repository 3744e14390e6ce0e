//! `mainstay serve`: a control plane from a directory of files, from etcd or Kubernetes, or from both.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use clap::{ArgGroup, Args};
use mainstay_control_plane::{Address, ControlPlane, Deletions, Intake, ServerOptions, ServerTls, Told};
use tonic::service::Routes;

use mainstay_sources::{self as sources, freshness::Limits};

use crate::{
    dash,
    etcd::EtcdFlags,
    failure::Failure,
    judge::Judge,
    kubernetes::KubernetesFlags,
    listen,
    logging::{EventLog, LogFormat},
    output::Output,
    serve::{
        admin::{Admin, Health},
        log::{Log, Security},
        mirror::{MirrorFlags, Mirroring},
        origin::Origin,
        subject::Subject,
    },
    signals::{Signals, Wish},
    source::Source,
    span,
};

mod admin;
mod csds;
mod log;
mod metrics;
mod mirror;
mod origin;
pub(crate) mod page;
mod subject;

/// Serve the xDS resources in a directory of YAML and JSON files, and follow their changes
///
/// Files hold resources in the JSON of protobuf, as in Envoy's documentation, under "resources:" or one per document.
/// Whenever they change, the new configuration is put into force as a whole, or rejected as a whole with its reasons; a
/// file that is still being written is waited for. Clients that reject a resource are shown with their reasons, too.
/// SIGINT ends it at once and SIGTERM in the time of --drain, in which clients are sent away one by one and told when to come
/// back; the exit code is 0.
///
/// However many clients come at once, each is answered or refused within seconds. With --admin it has a port for probes
/// (/healthz, /readyz, gRPC health), metrics (/metrics), reflection, CSDS and `mainstay status --control-plane`.
///
/// Nothing is put into force that `mainstay check` finds errors in, at the start or later; --no-check turns that off.
///
/// With --tls-cert and --tls-key clients connect over TLS, and with --client-ca only those that present a certificate of
/// that authority. The files are looked at for each connection: new ones are used at once, and wrong ones change nothing.
///
/// With --etcd it serves what `mainstay publish` has published, as one of any number of replicas, and switches from one whole
/// generation to the next. A replica that has not heard from etcd for a while refuses new streams, so that clients go to
/// another, and after a minute more serves what it has and says that this is stale. Where there is a directory, too, its
/// resources win.
///
/// With --kubernetes it serves the Services of a cluster: each TCP port has the names "xds:///SERVICE.NAMESPACE:PORT",
/// "SERVICE.NAMESPACE.svc:PORT" and "SERVICE.NAMESPACE.svc.cluster.local:PORT", and the endpoints that are ready in the zones where they
/// are; those that are going away are drained. ConfigMaps with the label "mainstay.dev/resources" hold anything finer as files, which win over
/// what is made of the Services of their own namespace. Replicas treat new streams as those on etcd do.
///
/// On SIGHUP it reads the files again, and says how that went even if nothing changed.
///
/// With --mirror-of it is a fallback for the clients of another control plane: it follows that one on behalf of each class of
/// clients that --mirror-config names, serves them the same names and bytes when it is gone, and holds back updates that
/// remove most of something; see `mainstay mirror`.
///
/// Files below "nodes/ID/", and those that say "node: ID", are for the node with that id only; it is served them and those
/// for all nodes. A list "errors:" beside "resources:" has resources that are answered with an error, each with its
/// "type_url", "name", "code" (such as NOT_FOUND) and "message".
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("engine").args(["members", "kubernetes"])))]
pub(crate) struct Flags {
    /// The directory with the files
    #[arg(value_name = "DIR", required_unless_present_any = ["members", "kubernetes", "mirror_of"])]
    directory: Option<PathBuf>,

    #[command(flatten)]
    etcd: EtcdFlags,

    #[command(flatten)]
    kubernetes: KubernetesFlags,

    /// Keep what was served from etcd or Kubernetes in this file, and begin with it if that cannot be reached at the start
    #[arg(long, value_name = "FILE", requires = "engine")]
    view_file: Option<PathBuf>,

    /// Refuse new streams when etcd or Kubernetes has not been heard from for this long
    #[arg(long, value_name = "T", default_value = "15s", value_parser = span::parse, requires = "engine")]
    behind_after: Duration,

    /// When new streams were refused for this long, serve what is there and say that it is stale
    #[arg(long, value_name = "T", default_value = "60s", value_parser = span::parse, requires = "engine")]
    stale_after: Duration,

    /// Where to listen: HOST:PORT, where port 0 lets the system choose, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:18000")]
    listen: String,

    /// Serve /healthz, /readyz, /metrics and /status here, and health, reflection and CSDS over gRPC
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,

    /// How long a stop by SIGTERM takes to send all clients away, one by one; a second signal ends it at once
    #[arg(long, value_name = "T", default_value = "20s", value_parser = span::parse)]
    drain: Duration,

    /// Serve TLS with this certificate, in PEM, with those of the authorities in between
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Serve only clients with a certificate of these authorities (mTLS)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,

    /// Serve a directory without resources; otherwise that is refused, as it is more likely one that is not mounted
    #[arg(long)]
    allow_empty: bool,

    /// Follow changes that delete more than half of the resources, or all of them
    #[arg(long)]
    allow_mass_deletion: bool,

    /// Serve whatever can be read, also what clients reject or what leads nowhere
    #[arg(long)]
    no_check: bool,

    /// Show the directory in a browser, at this HOST:PORT [default: 127.0.0.1:9911]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, require_equals = true, default_missing_value = dash::DEFAULT_LISTEN)]
    dash: Option<String>,

    /// Print the load that clients report, for clusters with "lrs_server: { self: {} }"
    #[arg(long)]
    print_load: bool,

    #[command(flatten)]
    mirror: MirrorFlags,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where the resources come from; of one name, the first wins.
    origins: Vec<Origin>,
    mirror: Option<mainstay_mirror::Settings>,
    listen: Address,
    admin: Option<SocketAddr>,
    drain: Duration,
    tls: Option<ServerTls>,
    security: Security,
    dash: Option<dash::Settings>,
    print_load: bool,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let listen = listen::resolve_any("--listen", &self.listen)?;
        let admin = self.admin.as_deref().map(|address| listen::resolve("--admin", address)).transpose()?;
        let security = match (&self.tls_cert, &self.client_ca) {
            (None, _) => Security::Plaintext,
            (Some(_), None) => Security::Tls,
            (Some(_), Some(_)) => Security::Mtls,
        };
        let tls = self.tls_cert.zip(self.tls_key).map(|(cert, key)| ServerTls::from_files(cert, key, self.client_ca));
        let tls = tls.transpose().map_err(|error| Failure::failed(format!("cannot serve TLS: {error}")))?;
        // Beside a mirror an empty directory is one that changes nothing.
        let allow_empty = self.allow_empty || self.mirror.mirror_of.is_some();
        let deletions = match (self.allow_mass_deletion, allow_empty) {
            (true, _) => Deletions::Allowed,
            (false, true) => Deletions::BoundedOrEmpty,
            (false, false) => Deletions::Bounded,
        };
        let shown = self.directory.iter().cloned().map(Source::Directory).collect();
        let dash = self.dash.map(|listen| dash::Settings::new(shown, &listen));
        let judge = if self.no_check { Judge::Nothing } else { Judge::Errors };
        let directory = self.directory.map(|path| Origin::Directory { path, deletions, judge });
        let limits = Limits { behind_after: self.behind_after, stale_after: self.stale_after };
        let file = self.view_file;
        let kubernetes = self.kubernetes.resolve(judge, limits, file.clone());
        let kubernetes = kubernetes.map(|settings| Origin::Kubernetes(Box::new(settings)));
        let etcd = self.etcd.resolve()?.map(|(endpoints, scope)| {
            Origin::Etcd(Box::new(sources::etcd::Settings { endpoints, scope, limits, file }))
        });
        let origins = directory.into_iter().chain(etcd).chain(kubernetes).collect();
        let (mirror, dash) = (self.mirror.resolve()?, dash.transpose()?);
        let Self { drain, print_load, .. } = self;
        Ok(Settings { origins, mirror, listen, admin, drain, tls, security, dash, print_load })
    }
}

/// Serves until a signal.
pub(crate) async fn run(
    settings: Settings,
    mut signals: Signals,
    output: Output,
    format: LogFormat,
) -> Result<(), Failure> {
    let Settings { origins, mirror, listen, admin, drain, tls, security, dash, print_load } = settings;
    signals.catch_hangup()?;
    let control_plane = ControlPlane::new();
    let mut intake = Intake::new(control_plane.clone());
    let name = origin::names(&origins);
    // They are followed for as long as these live.
    let mut following = Vec::new();
    for origin in origins {
        following.push(origin.follow(&intake, &control_plane).await?);
    }
    // With a mirror, what is served is by class; what the origins bring is a part of each.
    let served = if mirror.is_some() { ControlPlane::new() } else { control_plane.clone() };
    let mut mirroring = mirror.map(|mirror| Mirroring::start(mirror, &served)).transpose()?;
    if let Some(mirroring) = &mirroring {
        mirroring.put(&served, &control_plane);
    }
    let (health, health_service) = Health::new().await;
    let options = ServerOptions { tls, services: Routes::new(health_service.clone()), ..ServerOptions::default() };
    let server = served.serve_with(listen.clone(), options).map_err(|error| listen::failure(&listen, &error))?;
    let server = Arc::new(server);
    let mut events = server.notable_events();
    let mirror = mirroring.as_ref().map(Mirroring::mirror);
    let subject = Arc::new(Subject { server: Arc::clone(&server), intake: intake.observer(), mirror });
    let admin = match admin {
        Some(address) => Some(Admin::start(address, Arc::clone(&subject), health_service).await?),
        None => None,
    };
    let _dash = match dash {
        Some(dash) => Some(dash::serve(dash).await?),
        None => None,
    };
    health.set(subject.is_ready()).await;
    let mut log = Log::new(EventLog::new(output, format), print_load);
    if mirroring.is_some() {
        Mirroring::drop_loads(&server);
    }
    // What is there now is told in the beginning; what was wrong or missing already, after it.
    let early: Vec<_> = std::iter::from_fn(|| intake.try_next()).filter(|news| news.told != Told::Applied).collect();
    log.begin(&name, &server, &control_plane, security, admin.as_ref().map(|admin| admin.address))?;
    if let Some(mirroring) = &mut mirroring {
        mirroring.begin(&mut log.output)?;
    }
    early.into_iter().try_for_each(|news| log.news(news, &control_plane))?;
    let drain = loop {
        tokio::select! {
            news = intake.next() => {
                log.news(news, &control_plane)?;
                if let Some(mirroring) = &mirroring {
                    mirroring.put(&served, &control_plane);
                }
                health.set(subject.is_ready()).await;
            }
            () = Mirroring::changed(&mut mirroring) => {
                if let Some(mirroring) = &mut mirroring {
                    mirroring.put(&served, &control_plane);
                    mirroring.tell(&mut log.output)?;
                }
                health.set(subject.is_ready()).await;
            }
            Some(event) = events.next() => log.event(event)?,
            wish = signals.next_wish() => match wish {
                Wish::Reload => intake.reload(),
                Wish::Drain => break drain,
                Wish::End => break Duration::ZERO,
            },
        }
    };
    health.set(false).await;
    tokio::select! {
        _ = tokio::time::timeout(drain + PATIENCE, server.drain(drain)) => {}
        () = signals.next() => {}
    }
    if let Some(mirroring) = &mirroring {
        mirroring.stop().await;
    }
    Ok(())
}

/// How long clients may take to leave after they were sent away.
const PATIENCE: Duration = Duration::from_secs(1);
