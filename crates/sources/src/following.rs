//! What sources do alike: they go on for as long as somebody holds them, keep what is served on the disk (FB-28), and tell
//! everybody how they stand (FB-27).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mainstay_control_plane::Feed;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::disk::View;
use crate::freshness::Standing;
use crate::gate::{Health, Seen, Teller};

/// Follows an engine for as long as it lives.
#[derive(Debug)]
pub struct Following {
    pub(crate) tasks: Vec<JoinHandle<()>>,
    pub(crate) health: Health,
}

impl Following {
    /// How it stands with the engine.
    pub fn health(&self) -> &Health {
        &self.health
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Keeps what is served in a file, if there is one.
pub(crate) struct Keeper {
    file: Option<PathBuf>,
    views: watch::Sender<Option<MakeView>>,
}

type MakeView = Arc<dyn Fn() -> View + Send + Sync>;

impl Keeper {
    /// What the file has of this source already, and the task that writes it from now on.
    pub(crate) fn start(file: Option<PathBuf>, source: &str) -> (Self, Option<View>, Option<JoinHandle<()>>) {
        let (views, written) = watch::channel(None);
        let held = file.as_ref().and_then(|file| match View::read(file, source) {
            Ok(view) => view,
            Err(unusable) => {
                tracing::warn!(file = %file.display(), %unusable, "what was served last cannot be used");
                None
            }
        });
        let task = file.clone().map(|file| tokio::spawn(write(file, written)));
        (Self { file, views }, held, task)
    }

    /// This is served now. It is made when it is written, and not made at all without a file.
    pub(crate) fn keep<F: Fn() -> View + Send + Sync + 'static>(&self, view: impl FnOnce() -> F) {
        if self.file.is_some() {
            self.views.send_replace(Some(Arc::new(view())));
        }
    }
}

/// Writes what is served, the newest at most every ten seconds (FB-6).
async fn write(file: PathBuf, mut views: watch::Receiver<Option<MakeView>>) {
    while views.changed().await.is_ok() {
        let Some(view) = views.borrow_and_update().clone() else { continue };
        let path = file.clone();
        match tokio::task::spawn_blocking(move || view().write(&path)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(file = %file.display(), %error, "what is served cannot be kept"),
            Err(_) => return,
        }
        tokio::time::sleep(BETWEEN_WRITES).await;
    }
}

/// Tells everybody how a source stands.
pub(crate) struct Herald {
    pub(crate) feed: Feed,
    pub(crate) teller: Teller,
    engine: &'static str,
    /// What it waits for in the beginning.
    first: &'static str,
    standing: Option<Standing>,
}

impl Herald {
    pub(crate) fn new(feed: Feed, engine: &'static str, first: &'static str) -> Self {
        Self { feed, teller: Teller::new(), engine, first, standing: None }
    }

    /// The time since the start.
    pub(crate) fn now(&self) -> Duration {
        self.teller.now()
    }

    /// Tells it, if it has changed; whether how new streams are treated has.
    pub(crate) fn tell(&mut self, seen: Seen) -> bool {
        let Seen { standing, differences, trouble, .. } = &seen;
        let before = self.standing.replace(*standing);
        let is_news = before != Some(*standing);
        if is_news {
            let why = trouble.clone().unwrap_or_else(|| format!("{} was not asked yet", self.engine));
            match standing {
                Standing::Empty => self.feed.wait(format!("{}: {why}", self.first)),
                Standing::Behind => self.feed.behind(format!("new streams are refused: {why}")),
                Standing::Stale => self.feed.behind(format!("stale, and served all the same: {why}")),
                Standing::Fresh if matches!(before, Some(Standing::Behind | Standing::Stale)) => self.feed.unchanged(),
                Standing::Fresh => {}
            }
        }
        if *differences > self.teller.seen.borrow().differences {
            let why = trouble.as_deref().unwrap_or("what it has is not what was told");
            tracing::warn!(differences, why, "{} was not as it should have been", self.engine);
        }
        self.teller.tell(seen);
        is_news
    }
}

const BETWEEN_WRITES: Duration = Duration::from_secs(10);
