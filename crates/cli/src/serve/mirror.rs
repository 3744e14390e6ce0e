//! What `serve` mirrors of another control plane, and the pages that tell of it.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Path,
    http::{StatusCode, header},
    routing::{get, post},
};
use clap::Args;
use mainstay_control_plane::{ControlPlane, LoadRequest, Server};
use mainstay_mirror::{ClassStatus, CommandError, Mirror, Settings, config::MirrorConfig};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    failure::Failure,
    logging::EventLog,
    output::{BAD, GOOD, styled},
};

#[derive(Args, Debug)]
#[command(next_help_heading = "Mirror")]
pub(super) struct MirrorFlags {
    /// Serve what the control plane at this address tells each class of its clients, too; the directory wins per name
    #[arg(long, value_name = "URI")]
    pub(super) mirror_of: Option<String>,

    /// The classes of clients, and what each of them watches (mirror.yaml); without it all clients are of one class, and all
    /// Listeners are followed
    #[arg(long, value_name = "FILE", requires = "mirror_of")]
    mirror_config: Option<PathBuf>,

    /// Keep what is mirrored in files of this directory, and start from them
    #[arg(long, value_name = "DIR", requires = "mirror_of")]
    mirror_last_good: Option<PathBuf>,

    /// Follow what running clients watch, as the CSDS at their admin ports tells
    #[arg(long, value_name = "ADDR", num_args = 1.., requires = "mirror_of")]
    learn_from: Vec<String>,
}

impl MirrorFlags {
    pub(super) fn resolve(self) -> Result<Option<Settings>, Failure> {
        let Some(primary) = self.mirror_of else { return Ok(None) };
        let config = match &self.mirror_config {
            None => MirrorConfig::everything(),
            Some(path) => {
                let text = fs::read_to_string(path)
                    .map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))?;
                MirrorConfig::parse(&text).map_err(|errors| {
                    let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
                    Failure::failed(format!("cannot mirror by {}:{}", path.display(), reasons.concat()))
                        .tip("`mainstay check` checks such a file")
                })?
            }
        };
        let (last_good, learn_from) = (self.mirror_last_good, self.learn_from);
        Ok(Some(Settings { last_good, learn_from, ..Settings::new(primary, config) }))
    }
}

/// A running mirror.
pub(super) struct Mirroring {
    primary: String,
    mirror: Arc<Mirror>,
    changed: watch::Receiver<u64>,
    /// What was told last of each class.
    told: BTreeMap<String, String>,
}

impl Mirroring {
    /// Starts, and lets `served` tell its nodes apart.
    pub(super) fn start(settings: Settings, served: &ControlPlane) -> Result<Self, Failure> {
        let primary = settings.primary.clone();
        let mirror =
            Mirror::start(settings).map_err(|error| Failure::failed(format!("cannot mirror {primary}: {error}")))?;
        let mirror = Arc::new(mirror);
        mirror.classify(served);
        let changed = mirror.changed();
        Ok(Self { primary, mirror, changed, told: BTreeMap::new() })
    }

    /// What the admin port tells about.
    pub(super) fn mirror(&self) -> Arc<Mirror> {
        Arc::clone(&self.mirror)
    }

    /// Keeps on disk what is in force, for the next start.
    pub(super) async fn stop(&self) {
        self.mirror.stop().await;
    }

    /// Clients of a mirror report their load to nobody: it is read and forgotten (FB-22).
    pub(super) fn drop_loads(server: &Server) {
        server.request_loads(LoadRequest { interval: LOAD_INTERVAL, is_dropped: true, ..LoadRequest::default() });
    }

    pub(super) fn begin(&mut self, output: &mut EventLog) -> Result<(), Failure> {
        let classes: Vec<_> = self.mirror.status().into_iter().map(|status| status.class).collect();
        let line = format!("mirroring {} for nodes of {}", self.primary, classes.join(", "));
        output.tell("mirroring", json!({ "primary": self.primary, "classes": classes }), [line])?;
        self.tell(output)
    }

    /// Waits until there is something else to serve or to tell; for ever without a mirror.
    pub(super) async fn changed(this: &mut Option<Self>) {
        let is_news = match this {
            Some(this) => this.changed.changed().await.is_ok(),
            None => false,
        };
        if !is_news {
            std::future::pending().await
        }
    }

    /// Puts into force what is mirrored, under what `own` has.
    pub(super) fn put(&self, served: &ControlPlane, own: &ControlPlane) {
        self.mirror.put(served, Some(&own.snapshots()));
    }

    /// Tells of classes about which there is something else to say.
    pub(super) fn tell(&mut self, output: &mut EventLog) -> Result<(), Failure> {
        for status in self.mirror.status() {
            let words = words(&status);
            if self.told.get(&status.class) != Some(&words) {
                let fields = serde_json::to_value(&status).unwrap_or_default();
                output.tell("mirror", fields, [format!("class {}: {words}", status.class)])?;
                self.told.insert(status.class, words);
            }
        }
        Ok(())
    }
}

/// How a class is doing, in words.
pub(super) fn words(status: &ClassStatus) -> String {
    let mut words = match status.ready {
        true => format!("{} resources", status.resources),
        false => format!("{}, {} resources", styled(BAD, "not complete"), status.resources),
    };
    if let Some(cause) = &status.unreachable_because {
        words.push_str(&format!(", {}: {cause}", styled(BAD, "the primary does not answer")));
    }
    if let Some(held) = &status.held {
        let how = if held.refused { "an update was refused" } else { "an update is held back" };
        words.push_str(&format!(", {}: {}", styled(BAD, how), held.because.join("; ")));
    } else if status.ready && status.unreachable_because.is_none() {
        words.push_str(&format!(", {}", styled(GOOD, "the primary answers")));
    }
    words
}

/// `/mirror`: all classes as JSON; `/mirror/readyz`: 200 if everything listed was complete once; and by POST
/// `/mirror/CLASS/accept` and `/mirror/CLASS/refuse`.
pub(super) fn pages(mirror: &Arc<Mirror>) -> Router {
    let (shown, ready, accepting, refusing) = (mirror.clone(), mirror.clone(), mirror.clone(), mirror.clone());
    Router::new()
        .route("/mirror", get(move || async move { ([(header::CONTENT_TYPE, "application/json")], json(&shown)) }))
        .route("/mirror/readyz", get(move || async move { readiness(&ready) }))
        .route(
            "/mirror/{class}/accept",
            post(move |Path(class): Path<String>| async move { answer(accepting.accept(&class).await) }),
        )
        .route(
            "/mirror/{class}/refuse",
            post(move |Path(class): Path<String>| async move { answer(refusing.refuse(&class).await) }),
        )
}

fn json(mirror: &Mirror) -> String {
    // Numbers and texts under names: there is nothing in it that cannot be written.
    serde_json::to_string(&mirror.status()).unwrap_or_default()
}

fn readiness(mirror: &Mirror) -> (StatusCode, String) {
    let code = if mirror.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, json(mirror))
}

fn answer(result: Result<(), CommandError>) -> (StatusCode, String) {
    match result {
        Ok(()) => (StatusCode::OK, String::new()),
        Err(error @ CommandError::NoClass(_)) => (StatusCode::NOT_FOUND, error.to_string()),
        Err(error @ CommandError::NothingHeld(_)) => (StatusCode::CONFLICT, error.to_string()),
    }
}

const LOAD_INTERVAL: Duration = Duration::from_secs(300);
