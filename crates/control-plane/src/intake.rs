//! Where the resources of a control plane come from: any number of feeds, which bring whole sets of resources.
//!
//! A feed is whatever follows something: a directory, another control plane, a store. Each has its [`Feed`], with which
//! it tells what it has; the [`Intake`] lays them over each other, puts the result into force as a whole, and knows how
//! old it is and whether anything is behind.
//!
//! ```
//! use mainstay_control_plane::{ControlPlane, Intake, Snapshot, Snapshots, resources};
//!
//! let control_plane = ControlPlane::new();
//! let intake = Intake::new(control_plane.clone());
//! let files = intake.feed("files");
//! let mirror = intake.feed("mirror");
//! let set = |cluster| Snapshots { default: Snapshot::builder().cluster(cluster).build(), ..Snapshots::default() };
//! mirror.bring(set(resources::eds_cluster("a")));
//! assert!(control_plane.snapshot().is_none(), "not before every feed has brought something");
//! files.bring(set(resources::eds_cluster("b")));
//! assert_eq!(control_plane.snapshot().unwrap().len(), 2);
//! ```

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{Notify, mpsc};

use crate::event::lock;
use crate::snapshot::Snapshot;
use crate::store::{ControlPlane, Snapshots};

/// Puts into force what feeds bring.
#[derive(Debug)]
pub struct Intake {
    shared: Arc<Shared>,
    news: mpsc::UnboundedReceiver<News>,
}

impl Intake {
    /// Without feeds, for this control plane; nobody else should change what it serves.
    pub fn new(control_plane: ControlPlane) -> Self {
        let (told, news) = mpsc::unbounded_channel();
        Self { shared: Arc::new(Shared { control_plane, told, feeds: Mutex::default() }), news }
    }

    /// One more feed. Where several have a resource of one name, that of the feed that was made first is served. Nothing
    /// is put into force before each feed has brought a set.
    pub fn feed(&self, name: impl Into<String>) -> Feed {
        let mut feeds = lock(&self.shared.feeds);
        let asked = Arc::<Notify>::default();
        feeds.push(Held { name: name.into(), set: None, behind: None, problem: None, asked: Arc::clone(&asked) });
        Feed { shared: Arc::clone(&self.shared), index: feeds.len() - 1, asked }
    }

    /// Asks every feed to look again at what it follows; see [`Feed::asked`].
    pub fn reload(&self) {
        lock(&self.shared.feeds).iter().for_each(|held| held.asked.notify_one());
    }

    /// What a feed told next. Cancel safe: nothing is lost between two calls.
    pub async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            // `shared` has a sender, so this does not happen.
            None => std::future::pending().await,
        }
    }

    /// What a feed told next, if it has already.
    pub fn try_next(&mut self) -> Option<News> {
        self.news.try_recv().ok()
    }

    /// Somebody else who wants to know how the feeds are doing.
    pub fn observer(&self) -> IntakeObserver {
        IntakeObserver(Arc::clone(&self.shared))
    }
}

/// How the feeds of an [`Intake`] are doing.
#[derive(Clone, Debug)]
pub struct IntakeObserver(Arc<Shared>);

impl IntakeObserver {
    /// Each feed, in the order in which they were made.
    pub fn feeds(&self) -> Vec<FeedStatus> {
        lock(&self.0.feeds).iter().map(Held::status).collect()
    }

    /// Whether every feed has brought a set, so that there is something whole to serve.
    pub fn is_ready(&self) -> bool {
        lock(&self.0.feeds).iter().all(|held| held.set.is_some())
    }
}

/// What one feed has brought.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FeedStatus {
    /// What it is called.
    pub name: String,
    /// When it brought the set that is in force; `None` before the first.
    pub brought: Option<Instant>,
    /// How many resources for all nodes are in that set.
    pub resources: usize,
    /// Since when it is behind what it follows, as far as it knows.
    pub behind: Option<Instant>,
    /// What is wrong with what it follows, if its last word was that.
    pub problem: Option<String>,
}

/// The end of an [`Intake`] with which one feed tells what it has.
#[derive(Clone, Debug)]
pub struct Feed {
    shared: Arc<Shared>,
    index: usize,
    asked: Arc<Notify>,
}

impl Feed {
    /// A whole set of resources, in place of the one before. In force when this returns, if the other feeds have brought
    /// theirs. It is in step with what it follows, too.
    pub fn bring(&self, set: Snapshots) {
        let mut feeds = lock(&self.shared.feeds);
        if let Some(held) = feeds.get_mut(self.index) {
            held.set = Some((set, Instant::now()));
            (held.behind, held.problem) = (None, None);
        }
        if let Some(sets) = feeds.iter().map(|held| held.set.as_ref().map(|(set, _)| set)).collect::<Option<Vec<_>>>() {
            self.shared.control_plane.replace(overlay(&sets));
        }
        self.tell(&feeds, Told::Applied);
    }

    /// As [`bring`](Self::bring), although a part of what it follows cannot be used, for these reasons, and the set has what
    /// that part was before. Reasons are told when they are others than the last time.
    pub fn bring_in_part(&self, set: Snapshots, reasons: Vec<String>) {
        let before = lock(&self.shared.feeds).get(self.index).and_then(|held| held.problem.clone());
        self.bring(set);
        let mut feeds = lock(&self.shared.feeds);
        let Some(held) = feeds.get_mut(self.index) else { return };
        held.problem = (!reasons.is_empty()).then(|| reasons.join("; "));
        if held.problem.is_some() && held.problem != before {
            self.tell(&feeds, Told::Rejected(reasons));
        }
    }

    /// It looked again, and all is as it was.
    pub fn unchanged(&self) {
        let mut feeds = lock(&self.shared.feeds);
        if let Some(held) = feeds.get_mut(self.index) {
            (held.behind, held.problem) = (None, None);
        }
        self.tell(&feeds, Told::Unchanged);
    }

    /// What it follows cannot be used as it is, for these reasons; what it brought before stays.
    pub fn reject(&self, reasons: Vec<String>) {
        let mut feeds = lock(&self.shared.feeds);
        if let Some(held) = feeds.get_mut(self.index) {
            held.problem = Some(reasons.join("; "));
        }
        self.tell(&feeds, Told::Rejected(reasons));
    }

    /// It knows of something new and waits until that is whole.
    pub fn wait(&self, what: String) {
        self.tell(&lock(&self.shared.feeds), Told::Waiting(what));
    }

    /// It cannot tell any more whether what it brought is what it should be. Since the first time that it says so, it
    /// is behind; what it brought stays.
    pub fn behind(&self, why: String) {
        let mut feeds = lock(&self.shared.feeds);
        let Some(held) = feeds.get_mut(self.index) else { return };
        let is_news = held.behind.is_none() || held.problem.as_ref() != Some(&why);
        held.behind.get_or_insert_with(Instant::now);
        held.problem = Some(why.clone());
        if is_news {
            self.tell(&feeds, Told::Behind(why));
        }
    }

    /// Waits until it is asked to look again.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    fn tell(&self, feeds: &[Held], told: Told) {
        let feed = feeds.get(self.index).map(|held| held.name.clone()).unwrap_or_default();
        // Nobody listens any more when the control plane ends.
        let _ = self.shared.told.send(News { feed, told });
    }
}

/// What a feed told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// Which one.
    pub feed: String,
    /// And what.
    pub told: Told,
}

/// What a feed tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A new set, which is in force unless other feeds have nothing yet.
    Applied,
    /// It was asked to look again, and all is as it was.
    Unchanged,
    /// Something that cannot be used, and why; what was in force before still is.
    Rejected(Vec<String>),
    /// Something that is not whole yet; what was in force before still is.
    Waiting(String),
    /// It is behind what it follows, or cannot tell; what was in force before still is.
    Behind(String),
}

#[derive(Debug)]
struct Shared {
    control_plane: ControlPlane,
    told: mpsc::UnboundedSender<News>,
    feeds: Mutex<Vec<Held>>,
}

/// One feed, as the intake knows it.
#[derive(Debug)]
struct Held {
    name: String,
    set: Option<(Snapshots, Instant)>,
    behind: Option<Instant>,
    problem: Option<String>,
    asked: Arc<Notify>,
}

impl Held {
    fn status(&self) -> FeedStatus {
        FeedStatus {
            name: self.name.clone(),
            brought: self.set.as_ref().map(|(_, at)| *at),
            resources: self.set.as_ref().map_or(0, |(set, _)| set.default.len()),
            behind: self.behind,
            problem: self.problem.clone(),
        }
    }
}

/// All sets as one: those at the front win, name by name.
fn overlay(sets: &[&Snapshots]) -> Snapshots {
    let layers = |pick: &dyn Fn(&Snapshots) -> Snapshot| {
        let mut layers = sets.iter().rev().map(|set| pick(set));
        let lowest = layers.next().unwrap_or_default();
        layers.fold(lowest, |mut below, above| {
            below.overlay(above);
            below
        })
    };
    let nodes: BTreeSet<&String> = sets.iter().flat_map(|set| set.nodes.keys()).collect();
    let of_node = |id: &String| layers(&|set| set.nodes.get(id).unwrap_or(&set.default).clone());
    Snapshots {
        default: layers(&|set| set.default.clone()),
        nodes: nodes.into_iter().map(|id| (id.clone(), of_node(id))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources;
    use crate::type_url::TypeUrl;

    #[test]
    fn a_set_is_in_force_when_every_feed_has_one() {
        let (control_plane, intake) = intake();
        let (one, two) = (intake.feed("one"), intake.feed("two"));
        two.bring(set(&["b"]));
        assert_eq!((control_plane.snapshot(), intake.observer().is_ready()), (None, false));
        one.bring(set(&["a"]));
        assert_eq!(names(&control_plane, ""), ["a", "b"]);
        assert!(intake.observer().is_ready());
        two.bring(set(&[]));
        assert_eq!(names(&control_plane, ""), ["a"]);
    }

    #[test]
    fn of_one_name_the_first_feed_wins_for_each_node() {
        let (control_plane, intake) = intake();
        let (one, two) = (intake.feed("one"), intake.feed("two"));
        let dns = |host: &str| Snapshot::builder().cluster(resources::logical_dns_cluster("c", host)).build();
        one.bring(Snapshots { default: dns("first:1"), nodes: [("n".to_owned(), dns("own:1"))].into() });
        two.bring(Snapshots { default: dns("second:1"), nodes: [("m".to_owned(), set(&["x"]).default)].into() });
        assert_eq!(control_plane.snapshot_for_node("other"), Some(dns("first:1")));
        assert_eq!(control_plane.snapshot_for_node("n"), Some(dns("own:1")));
        assert_eq!(names(&control_plane, "m"), ["c", "x"]);
    }

    #[test]
    fn what_is_wrong_is_remembered_until_it_is_not() {
        let (control_plane, mut intake) = intake();
        let feed = intake.feed("one");
        feed.bring(set(&["a"]));
        feed.behind("unreachable".to_owned());
        let since = intake.observer().feeds()[0].behind;
        feed.behind("unreachable".to_owned());
        feed.behind("refused".to_owned());
        let status = intake.observer().feeds().remove(0);
        assert_eq!((status.behind, status.problem.as_deref(), status.resources), (since, Some("refused"), 1));
        assert!(since.is_some() && status.brought.is_some());
        feed.reject(vec!["nonsense".to_owned()]);
        assert_eq!(names(&control_plane, ""), ["a"], "it stays");
        feed.unchanged();
        let status = intake.observer().feeds().remove(0);
        assert_eq!((status.behind, status.problem), (None, None));
        let mut told = Vec::new();
        while let Some(news) = intake.try_next() {
            assert_eq!(news.feed, "one");
            told.push(news.told);
        }
        let behind = |why: &str| Told::Behind(why.to_owned());
        let rejected = Told::Rejected(vec!["nonsense".to_owned()]);
        assert_eq!(told, [Told::Applied, behind("unreachable"), behind("refused"), rejected, Told::Unchanged]);
    }

    #[test]
    fn what_is_wrong_with_a_part_is_told_once_and_stays_known() {
        let (_, mut intake) = intake();
        let feed = intake.feed("one");
        let mut told = || {
            let rejected = std::iter::from_fn(|| intake.try_next()).filter(|news| news.told != Told::Applied).count();
            (rejected, intake.observer().feeds()[0].problem.clone())
        };
        feed.bring_in_part(set(&["a"]), vec!["x".to_owned()]);
        assert_eq!(told(), (1, Some("x".to_owned())));
        feed.bring_in_part(set(&["b"]), vec!["x".to_owned()]);
        assert_eq!(told(), (0, Some("x".to_owned())), "known already");
        feed.bring_in_part(set(&["b"]), vec!["y".to_owned()]);
        assert_eq!(told(), (1, Some("y".to_owned())));
        feed.bring_in_part(set(&["b"]), Vec::new());
        assert_eq!(told(), (0, None));
    }

    fn intake() -> (ControlPlane, Intake) {
        let control_plane = ControlPlane::new();
        (control_plane.clone(), Intake::new(control_plane))
    }

    fn set(names: &[&str]) -> Snapshots {
        let clusters = names.iter().map(|name| resources::eds_cluster(*name));
        Snapshots { default: Snapshot::builder().resources(clusters).build(), ..Snapshots::default() }
    }

    fn names(control_plane: &ControlPlane, node: &str) -> Vec<String> {
        let snapshot = control_plane.snapshot_for_node(node).unwrap();
        let clusters = snapshot.resources().filter(|resource| resource.type_url == TypeUrl::CLUSTER);
        clusters.map(|resource| resource.name).collect()
    }
}
