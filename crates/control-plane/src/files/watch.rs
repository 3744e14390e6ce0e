//! Hot reload: a directory is read again whenever something in it changes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::files::{LoadError, LoadErrors, Sources, is_resource_file, read_directory};
use crate::snapshot::Resource;
use crate::store::{ControlPlane, Snapshots};

impl ControlPlane {
    /// Serves what the files of a directory say (see [`files`](crate::files)), now and whenever they change, until the
    /// returned value is dropped. Fails if they cannot be read now; later on, files with errors are reported and what
    /// was read last stays in force as a whole.
    ///
    /// It does not matter how files change: written, renamed into place, or the whole directory replaced through a
    /// symbolic link, as Kubernetes does. A file that is open for writing is waited for (where the system tells, as
    /// Linux does). What looks like an accident is an error: a directory without resources, and a change that deletes
    /// most of them. See [`Deletions`].
    pub async fn watch_directory(&self, directory: impl Into<PathBuf>) -> Result<DirectoryWatch, LoadErrors> {
        self.watch_directory_with(directory, Deletions::Bounded).await
    }

    /// The same, with a say in what may be deleted.
    pub async fn watch_directory_with(
        &self,
        directory: impl Into<PathBuf>,
        deletions: Deletions,
    ) -> Result<DirectoryWatch, LoadErrors> {
        self.watch_directory_judged(directory, deletions, |_| Ok(())).await
    }

    /// The same, and nothing is put into force that `judge` does not like: what it finds is reported as errors of the
    /// files are.
    pub async fn watch_directory_judged(
        &self,
        directory: impl Into<PathBuf>,
        deletions: Deletions,
        judge: impl Fn(&Sources) -> Result<(), LoadErrors> + Send + Sync + 'static,
    ) -> Result<DirectoryWatch, LoadErrors> {
        let control_plane = self.clone();
        follow_directory(directory, deletions, judge, move |snapshots| control_plane.replace(snapshots)).await
    }
}

/// Reads a directory as [`ControlPlane::watch_directory_judged`] does, now and whenever something changes, and hands what is
/// to be served to `put`; the first time before this returns.
pub async fn follow_directory(
    directory: impl Into<PathBuf>,
    deletions: Deletions,
    judge: impl Fn(&Sources) -> Result<(), LoadErrors> + Send + Sync + 'static,
    mut put: impl FnMut(Snapshots) + Send + 'static,
) -> Result<DirectoryWatch, LoadErrors> {
    let directory = directory.into();
    let observer = Arc::new(Observer::new().map_err(|error| unwatchable(&directory, &error))?);
    let reader = Reader { directory, observer: Arc::clone(&observer), judge: Arc::new(judge) };
    let loaded = reader.read_in_background().await?;
    let snapshots = deletions.check(&reader.directory, None, loaded)?;
    put(snapshots.clone());
    let (reports, news) = watch::channel(None);
    let follower = Follower { put: Box::new(put), deletions, served: snapshots, reports };
    let task = tokio::spawn(follower.follow(reader));
    Ok(DirectoryWatch { observer, news, task })
}

/// Which deletions are taken for what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deletions {
    /// A directory without resources is an error, and so is a change that deletes more than half of them, if those are
    /// at least three: more likely a disk that is not mounted or a generator that failed than what somebody wants.
    #[default]
    Bounded,
    /// The same, but a directory without resources is served.
    BoundedOrEmpty,
    /// All of them.
    Allowed,
}

/// Says whether what was read may be put into force.
pub type Judge = dyn Fn(&Sources) -> Result<(), LoadErrors> + Send + Sync;

/// Keeps a control plane in step with a directory, until it is dropped.
#[derive(Debug)]
pub struct DirectoryWatch {
    observer: Arc<Observer>,
    news: watch::Receiver<Option<Reload>>,
    task: JoinHandle<()>,
}

impl DirectoryWatch {
    /// The outcome of the next reload that changed anything; of several since the last call, the newest.
    pub async fn next(&mut self) -> Option<Reload> {
        self.news.changed().await.ok()?;
        self.news.borrow_and_update().clone()
    }

    /// Has it read again, changed or not, and the outcome told.
    pub fn reload(&self) {
        self.observer.changes.asked.store(true, Ordering::Release);
        self.observer.changes.happened.notify_one();
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
    /// All is as it was, but somebody [asked](DirectoryWatch::reload).
    Unchanged,
    /// The files have errors; what was in force before still is.
    Rejected(LoadErrors),
    /// Nothing was read yet, because these files are still open for writing; what was in force before still is.
    Waiting(Vec<PathBuf>),
}

impl Deletions {
    /// Refuses what is more likely an accident; `before` is in force.
    fn check(
        self,
        directory: &Path,
        before: Option<&Snapshots>,
        snapshots: Snapshots,
    ) -> Result<Snapshots, LoadErrors> {
        let (had, has) = (before.map_or(0, count), count(&snapshots));
        let gone = had.saturating_sub(has);
        let problem = match self {
            Self::Allowed => return Ok(snapshots),
            Self::Bounded if has == 0 => "holds no resources".to_owned(),
            Self::Bounded | Self::BoundedOrEmpty if gone >= FEWEST_GONE && gone > had / 2 => {
                format!("holds {has} resources where {had} are served: that would delete more than half of them")
            }
            Self::Bounded | Self::BoundedOrEmpty => return Ok(snapshots),
        };
        Err(LoadError::refused(directory, problem).into())
    }
}

/// How many resources there are: for all nodes, and for single ones beyond those.
fn count(snapshots: &Snapshots) -> usize {
    let is_own = |resource: &Resource| !snapshots.default.contains(&resource.type_url, &resource.name);
    let own = snapshots.nodes.values().map(|own| own.resources().filter(is_own).count());
    snapshots.default.len() + own.sum::<usize>()
}

/// Puts what a directory says into force.
struct Follower {
    put: Box<dyn FnMut(Snapshots) + Send>,
    deletions: Deletions,
    served: Snapshots,
    reports: watch::Sender<Option<Reload>>,
}

impl Follower {
    async fn follow(mut self, reader: Reader) {
        let mut errors = None;
        loop {
            let reports = &self.reports;
            reader.changed(|files| drop(reports.send_replace(Some(Reload::Waiting(files))))).await;
            let loaded = reader.read_in_background().await;
            // What was written while it was read may have been read in part.
            if reader.changes_again().await {
                continue;
            }
            let asked = reader.observer.changes.asked.swap(false, Ordering::AcqRel);
            match loaded.and_then(|loaded| self.deletions.check(&reader.directory, Some(&self.served), loaded)) {
                Ok(snapshots) if snapshots == self.served && errors.is_none() => {
                    if asked {
                        self.report(Reload::Unchanged);
                    }
                }
                Ok(snapshots) => {
                    errors = None;
                    (self.put)(snapshots.clone());
                    let resources = snapshots.default.len();
                    self.served = snapshots;
                    tracing::info!(directory = %reader.directory.display(), resources, "configuration reloaded");
                    self.report(Reload::Applied { resources });
                }
                Err(found) if errors.as_ref() == Some(&found) && !asked => {}
                Err(found) => {
                    tracing::warn!(directory = %reader.directory.display(), errors = %found, "configuration not reloaded");
                    self.report(Reload::Rejected(found.clone()));
                    errors = Some(found);
                }
            }
        }
    }

    fn report(&self, reload: Reload) {
        self.reports.send_replace(Some(reload));
    }
}

/// Reads a directory and hears of changes to it.
struct Reader {
    directory: PathBuf,
    observer: Arc<Observer>,
    judge: Arc<Judge>,
}

impl Reader {
    /// Waits for a change, and then until changes pause, which seldom come alone, and no file is open for writing.
    /// `tell` hears of those that are waited for, once.
    async fn changed(&self, tell: impl FnOnce(Vec<PathBuf>)) {
        let changes = &self.observer.changes;
        changes.happened.notified().await;
        let latest = Instant::now() + LONGEST_WAIT;
        while self.changes_again().await && Instant::now() < latest {
            changes.happened.notified().await;
        }
        let mut tell = Some(tell);
        loop {
            let open: Vec<PathBuf> = lock(&changes.scope).open.iter().cloned().collect();
            if open.is_empty() {
                return;
            }
            tell.take().into_iter().for_each(|tell| tell(open.clone()));
            changes.happened.notified().await;
        }
    }

    /// Whether something changes within the time in which changes come together. It stays to be heard.
    async fn changes_again(&self) -> bool {
        let happened = &self.observer.changes.happened;
        let again = tokio::time::timeout(QUIET, happened.notified()).await.is_ok();
        if again {
            happened.notify_one();
        }
        again
    }

    async fn read_in_background(&self) -> Result<Snapshots, LoadErrors> {
        let (directory, observer) = (self.directory.clone(), Arc::clone(&self.observer));
        let judge = Arc::clone(&self.judge);
        let reading = tokio::task::spawn_blocking(move || {
            // Watched before it is read, so that no change falls between. And looked at anew each time, because a path
            // may lead to another directory than before.
            let watched = observer.look_at(&directory);
            let sources = read_directory(&directory)?;
            if sources.errors.is_empty() {
                judge(&sources)?;
            }
            let loaded = sources.into_snapshots()?;
            watched.map_err(|error| unwatchable(&directory, &error)).map(|()| loaded)
        });
        let cancelled = |_| LoadError::unreadable(&self.directory, "reading it was cancelled or panicked").into();
        reading.await.map_err(cancelled).flatten()
    }
}

/// Watches a directory, and every symbolic link on the way to it and to its files. One source of events for all of its
/// life, so that they come in the order in which things happened.
#[derive(Debug)]
struct Observer {
    changes: Arc<Changes>,
    watching: Mutex<Watching>,
}

#[derive(Debug)]
struct Watching {
    watcher: RecommendedWatcher,
    paths: BTreeSet<PathBuf>,
}

/// What has changed.
#[derive(Debug, Default)]
struct Changes {
    happened: Notify,
    /// Whether somebody wants to hear how it went, even if nothing changed.
    asked: AtomicBool,
    scope: Mutex<Scope>,
}

/// What changes are looked for in, and what is changing.
#[derive(Debug, Default)]
struct Scope {
    root: Option<PathBuf>,
    /// Whose replacement makes a path lead elsewhere.
    points: BTreeSet<PathBuf>,
    /// Files that are open for writing.
    open: BTreeSet<PathBuf>,
}

impl Observer {
    fn new() -> notify::Result<Self> {
        let changes = Arc::<Changes>::default();
        let told = Arc::clone(&changes);
        let watcher = notify::recommended_watcher(move |event| told.note(event))?;
        Ok(Self { changes, watching: Mutex::new(Watching { watcher, paths: BTreeSet::new() }) })
    }

    /// Watches where the path of the directory leads now.
    fn look_at(&self, directory: &Path) -> notify::Result<()> {
        let root = fs::canonicalize(directory).ok();
        let mut points = BTreeSet::new();
        trail(directory, &mut points);
        for file in root.iter().flat_map(fs::read_dir).flatten().flatten() {
            trail(&file.path(), &mut points);
        }
        let inside = |path: &Path| root.as_ref().is_some_and(|root| path.starts_with(root));
        let parents = points.iter().filter_map(|point| point.parent()).filter(|parent| !inside(parent));
        let parents: BTreeSet<PathBuf> = parents.map(Path::to_owned).collect();
        lock(&self.changes.scope).change(root.clone(), points);
        let mut watching = lock(&self.watching);
        let Watching { watcher, paths } = &mut *watching;
        let wanted: BTreeSet<PathBuf> = parents.iter().chain(&root).cloned().collect();
        for path in paths.difference(&wanted) {
            // It may be gone, and its watch with it.
            let _ = watcher.unwatch(path);
        }
        paths.clone_from(&wanted);
        if let Some(root) = &root {
            watcher.watch(root, RecursiveMode::Recursive)?;
        }
        parents.iter().try_for_each(|parent| watcher.watch(parent, RecursiveMode::NonRecursive))
    }
}

impl Changes {
    fn note(&self, event: notify::Result<notify::Event>) {
        let mut scope = lock(&self.scope);
        let is_news = match event {
            Ok(event) if !event.need_rescan() => {
                let ours: Vec<_> = event.paths.iter().filter(|path| scope.contains(path)).collect();
                let is_news = is_change(&event.kind) && !ours.is_empty();
                ours.into_iter().for_each(|path| scope.follow_writing(&event.kind, path));
                is_news
            }
            // Something was lost; look at everything.
            Ok(_) | Err(_) => {
                scope.open.clear();
                true
            }
        };
        drop(scope);
        if is_news {
            self.happened.notify_one();
        }
    }
}

impl Scope {
    fn contains(&self, path: &Path) -> bool {
        self.points.contains(path) || self.root.as_ref().is_some_and(|root| path.starts_with(root))
    }

    fn change(&mut self, root: Option<PathBuf>, points: BTreeSet<PathBuf>) {
        (self.root, self.points) = (root, points);
        let mut open = std::mem::take(&mut self.open);
        open.retain(|path| self.contains(path));
        self.open = open;
    }

    /// Notes when a file begins to be written, and when that is over.
    #[expect(clippy::wildcard_enum_match_arm, reason = "systems tell of many things that do not matter here")]
    fn follow_writing(&mut self, kind: &EventKind, path: &Path) {
        match kind {
            EventKind::Modify(ModifyKind::Data(_)) if TELLS_OF_CLOSING && is_resource_file(path) => {
                self.open.insert(path.to_owned());
            }
            // A link is complete when it is made; a file is made empty.
            EventKind::Create(_) if TELLS_OF_CLOSING && is_resource_file(path) && is_empty_file(path) => {
                self.open.insert(path.to_owned());
            }
            EventKind::Access(AccessKind::Close(AccessMode::Write))
            | EventKind::Remove(_)
            | EventKind::Modify(ModifyKind::Name(_)) => self.open.retain(|open| !open.starts_with(path)),
            _ => {}
        }
    }
}

fn is_empty_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

fn unwatchable(directory: &Path, error: &notify::Error) -> LoadErrors {
    LoadError::unreadable(directory, format!("cannot be watched for changes: {error}")).into()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reading a file is an event, too, but not a change: to follow it would be a busy loop.
fn is_change(kind: &EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write))
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
/// Whether the end of writing is told: by inotify it is.
const TELLS_OF_CLOSING: bool = cfg!(target_os = "linux");
/// Fewer than so many resources may always go.
const FEWEST_GONE: usize = 3;
/// As many links as Linux follows.
const MAX_LINKS: usize = 40;
