//! Hot reload: a directory is read again whenever something in it changes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::files::{LoadError, LoadErrors, load_directory};
use crate::store::{ControlPlane, Snapshots};

impl ControlPlane {
    /// Serves what the files of a directory say (see [`files`](crate::files)), now and whenever they change, until the
    /// returned value is dropped. Fails if they cannot be read now; later on, files with errors are reported and what
    /// was read last stays in force as a whole.
    ///
    /// It does not matter how files change: written, renamed into place, or the whole directory replaced through a
    /// symbolic link, as Kubernetes does.
    pub async fn watch_directory(&self, directory: impl Into<PathBuf>) -> Result<DirectoryWatch, LoadErrors> {
        let mut reader = Reader { directory: directory.into(), changed: Arc::default(), watcher: None };
        let (returned, loaded) = reader.read_in_background().await;
        reader = returned;
        let snapshots = loaded?;
        if reader.watcher.is_none() {
            return Err(LoadError::about(&reader.directory, "cannot be watched for changes").into());
        }
        self.replace(snapshots.clone());
        let (reports, news) = watch::channel(None);
        let task = tokio::spawn(follow(self.clone(), reader, Ok(snapshots), reports));
        Ok(DirectoryWatch { news, task })
    }
}

/// Keeps a control plane in step with a directory, until it is dropped.
#[derive(Debug)]
pub struct DirectoryWatch {
    news: watch::Receiver<Option<Reload>>,
    task: JoinHandle<()>,
}

impl DirectoryWatch {
    /// The outcome of the next reload that changed anything; of several since the last call, the newest.
    pub async fn next(&mut self) -> Option<Reload> {
        self.news.changed().await.ok()?;
        self.news.borrow_and_update().clone()
    }
}

impl Drop for DirectoryWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How a reload went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reload {
    /// The files are in force.
    Applied {
        /// How many resources there are for all nodes.
        resources: usize,
    },
    /// The files have errors; what was in force before still is.
    Rejected(LoadErrors),
}

async fn follow(
    control_plane: ControlPlane,
    mut reader: Reader,
    mut last: Result<Snapshots, LoadErrors>,
    reports: watch::Sender<Option<Reload>>,
) {
    loop {
        reader.changed().await;
        let (returned, loaded) = reader.read_in_background().await;
        reader = returned;
        if loaded == last {
            continue;
        }
        let report = match &loaded {
            Ok(snapshots) => {
                control_plane.replace(snapshots.clone());
                let resources = snapshots.default.len();
                tracing::info!(directory = %reader.directory.display(), resources, "configuration reloaded");
                Reload::Applied { resources }
            }
            Err(errors) => {
                tracing::warn!(directory = %reader.directory.display(), %errors, "configuration not reloaded");
                Reload::Rejected(errors.clone())
            }
        };
        last = loaded;
        reports.send_replace(Some(report));
    }
}

/// Reads a directory and hears of changes to it.
struct Reader {
    directory: PathBuf,
    changed: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
}

impl Reader {
    /// Waits for a change, and then until changes pause: they seldom come alone.
    async fn changed(&self) {
        self.changed.notified().await;
        let latest = Instant::now() + LONGEST_WAIT;
        while tokio::time::timeout(QUIET, self.changed.notified()).await.is_ok() && Instant::now() < latest {}
    }

    async fn read_in_background(self) -> (Self, Result<Snapshots, LoadErrors>) {
        let Self { directory, changed, .. } = &self;
        let (directory, changed) = (directory.clone(), Arc::clone(changed));
        let reading = tokio::task::spawn_blocking(move || {
            // Watched before it is read, so that no change falls between. And watched anew each time, because a path
            // may lead to another directory than before.
            let watcher = observe(&directory, changed);
            (watcher, load_directory(&directory))
        });
        match reading.await {
            Ok((Ok(watcher), loaded)) => (Self { watcher: Some(watcher), ..self }, loaded),
            Ok((Err(error), loaded)) => {
                tracing::warn!(directory = %self.directory.display(), %error, "cannot watch all of a directory");
                (self, loaded)
            }
            Err(_) => {
                let error = LoadError::about(&self.directory, "reading it was cancelled or panicked");
                (self, Err(error.into()))
            }
        }
    }
}

/// Watches a directory, and every symbolic link on the way to it and to its files.
fn observe(directory: &Path, changed: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let root = fs::canonicalize(directory).ok();
    let mut points = BTreeSet::new();
    trail(directory, &mut points);
    for file in root.iter().flat_map(fs::read_dir).flatten().flatten() {
        trail(&file.path(), &mut points);
    }
    let inside = |path: &Path| root.as_ref().is_some_and(|root| path.starts_with(root));
    let parents: BTreeSet<PathBuf> =
        points.iter().filter_map(|point| point.parent()).filter(|parent| !inside(parent)).map(Path::to_owned).collect();
    let mut watcher = {
        let root = root.clone();
        notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            let is_ours =
                |path: &PathBuf| points.contains(path) || root.as_ref().is_some_and(|root| path.starts_with(root));
            let is_news = match event {
                Ok(event) => event.need_rescan() || (is_change(&event.kind) && event.paths.iter().any(is_ours)),
                // Something was lost; look at everything.
                Err(_) => true,
            };
            if is_news {
                changed.notify_one();
            }
        })?
    };
    if let Some(root) = &root {
        watcher.watch(root, RecursiveMode::Recursive)?;
    }
    for parent in parents {
        watcher.watch(&parent, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

/// Reading a file is an event, too, but not a change: to follow it would be a busy loop.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(access) => *access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

/// Adds every path whose replacement would make `path` lead elsewhere: the symbolic links on the way, and its end. If
/// something on the way is missing, that is where it must appear.
fn trail(path: &Path, points: &mut BTreeSet<PathBuf>) {
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..MAX_LINKS {
        let mut real = PathBuf::new();
        let mut rest = path.iter();
        let link = rest.by_ref().find_map(|part: &OsStr| {
            let at = real.join(part);
            match fs::read_link(&at) {
                Ok(target) => Some((at, target)),
                Err(_) if !at.exists() => Some((at, PathBuf::new())),
                Err(_) => {
                    // This also takes care of `..` in the target of a link.
                    real = fs::canonicalize(&at).unwrap_or(at);
                    None
                }
            }
        });
        let Some((at, target)) = link else {
            points.insert(real);
            return;
        };
        let missing = target.as_os_str().is_empty();
        points.insert(at.clone());
        if missing {
            return;
        }
        path = at.parent().map_or_else(|| target.clone(), |parent| parent.join(&target)).join(rest.as_path());
    }
}

/// Changes are collected until none came for this long,
const QUIET: Duration = Duration::from_millis(50);
/// but never for longer than this.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// As many links as Linux follows.
const MAX_LINKS: usize = 40;
