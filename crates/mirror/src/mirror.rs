//! The mirror: a task for each class that runs its core, and others that bring it news.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mainstay::bootstrap::Bootstrap;
use mainstay_control_plane::Snapshot;
use mainstay_xds::Time;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::brake::Brake;
use crate::class::Classes;
use crate::config::{ClassConfig, ConfigError, MirrorConfig};
use crate::core::ClassCore;
use crate::files::{Files, Write, write_all};
use crate::follow::{self, News, follow};
use crate::learn::{self, Learned};
use crate::names;
use crate::node::node_of;
use crate::set;
use crate::status::{ClassStatus, HeldStatus, TargetStatus, seconds};

/// What a mirror is to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The URI of the primary, as in a bootstrap.
    pub primary: String,
    /// The classes.
    pub config: MirrorConfig,
    /// Where what is in force is kept for the next start.
    pub last_good: Option<PathBuf>,
    /// The admin ports of running clients, to learn targets from.
    pub learn_from: Vec<String>,
    /// How often they are asked.
    pub learn_interval: Duration,
    /// The least time between two writes of the same files.
    pub write_interval: Duration,
}

/// A running mirror. It ends when it is dropped; [`stop`](Self::stop) lets it keep first what is in force.
#[derive(Debug)]
pub struct Mirror {
    classes: Classes,
    drivers: BTreeMap<String, Handle>,
    changed: watch::Receiver<u64>,
    is_ending: watch::Sender<bool>,
    /// They end when their drivers have, after what these left to write.
    writers: Mutex<JoinSet<()>>,
    _tasks: JoinSet<()>,
}

/// Why a mirror cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// What the configuration says is no bootstrap.
    #[error("class {0:?}: {1}")]
    Bootstrap(String, ConfigError),
    /// A target cannot be used.
    #[error("class {0:?}: target {1}: {2}")]
    Target(String, String, String),
    /// A class would never have anything to serve.
    #[error("class {0:?} follows nothing: expected targets, \"all: true\", or clients to learn from")]
    Nothing(String),
    /// It follows all names, and the primary is spoken to by TLS.
    #[error("class {0:?}: \"all: true\" needs a primary without TLS; list targets, or learn them from clients")]
    WildcardOverTls(String),
}

/// Why a command was not obeyed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// There is no such class.
    #[error("there is no class {0:?}")]
    NoClass(String),
    /// There is nothing to decide.
    #[error("nothing is held back for class {0:?}")]
    NothingHeld(String),
}

#[derive(Debug)]
struct Handle {
    commands: mpsc::Sender<Command>,
    shown: watch::Receiver<Shown>,
}

/// What a class shows of itself.
#[derive(Clone, Debug, Default)]
struct Shown {
    snapshot: Option<Arc<Snapshot>>,
    core: Option<ClassCore>,
    facts: Facts,
    at: Option<Instant>,
}

/// What is known of the way to the primary.
#[derive(Clone, Debug, Default)]
struct Facts {
    name: String,
    /// What must have been complete once.
    listed: BTreeSet<String>,
    problems: BTreeMap<String, String>,
    /// Why the primary does not answer, and since when; by target.
    unreachable: BTreeMap<String, (SystemTime, String)>,
    /// Targets of which the primary says what is in force, or says it to us at least.
    current: BTreeSet<String>,
    /// When everything was last so.
    confirmed_at: Option<SystemTime>,
}

#[derive(Debug)]
enum Command {
    Accept(oneshot::Sender<bool>),
    Refuse(oneshot::Sender<bool>),
    Learn(BTreeSet<String>),
}

impl Settings {
    /// Of a primary and its classes.
    pub fn new(primary: impl Into<String>, config: MirrorConfig) -> Self {
        Self {
            primary: primary.into(),
            config,
            last_good: None,
            learn_from: Vec::new(),
            learn_interval: Duration::from_secs(30),
            write_interval: Duration::from_secs(10),
        }
    }
}

impl Mirror {
    /// Starts to follow. What was kept on disk is in force at once, if it is not too old.
    ///
    /// # Errors
    /// If the settings cannot be meant. That the primary does not answer is no error.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let Settings { primary, config, last_good, learn_from, learn_interval, write_interval } = settings;
        let classes = config.classes();
        let (changes, changed) = watch::channel(0);
        let (is_ending, ending) = watch::channel(false);
        let (mut tasks, mut writers) = (JoinSet::new(), JoinSet::new());
        let mut drivers = BTreeMap::new();
        for class in &config.classes {
            let name = class.class.name.clone();
            if class.targets.is_empty() && !class.all && learn_from.is_empty() {
                return Err(StartError::Nothing(name));
            }
            if class.all && !config.is_plaintext() {
                return Err(StartError::WildcardOverTls(name));
            }
            let bootstrap =
                config.bootstrap(class, &primary).map_err(|error| StartError::Bootstrap(name.clone(), error))?;
            let node = node_of(&class.node);
            let files = last_good.as_ref().map(|directory| Files::new(directory, &name, &node.id));
            let (shown_by, shown) = watch::channel(Shown::default());
            let (commands, commanded) = mpsc::channel(16);
            let (news_by, news) = mpsc::channel(64);
            let (names_by, names) = mpsc::channel(4);
            if class.all {
                tasks.spawn(names::watch(primary.clone(), node.clone(), names_by));
            }
            let writes = files.as_ref().map(|files| {
                let (writes, written) = mpsc::unbounded_channel();
                writers.spawn(write_all(files.clone(), written, write_interval));
                writes
            });
            let mut driver = Driver::new(class, config.brake, bootstrap, news_by, shown_by, changes.clone(), writes);
            driver.begin(class, files.as_ref(), class.all || !learn_from.is_empty())?;
            tasks.spawn(driver.run(Inputs { news, names, commands: commanded, ending: ending.clone() }));
            drivers.insert(name, Handle { commands, shown });
        }
        if !learn_from.is_empty() {
            let (learned_by, learned) = mpsc::channel(64);
            for address in learn_from {
                tasks.spawn(learn::watch(address, learn_interval, learned_by.clone()));
            }
            let senders = drivers.iter().map(|(name, handle)| (name.clone(), handle.commands.clone())).collect();
            tasks.spawn(hand_on(learned, classes.clone(), senders));
        }
        Ok(Self { classes, drivers, changed, is_ending, writers: Mutex::new(writers), _tasks: tasks })
    }

    /// The classes, to find that of a node.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Changes whenever something else is in force for a class, held back, or said of the primary.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.clone()
    }

    /// What is in force for each class; nothing for those of which nothing was complete yet.
    pub fn snapshots(&self) -> BTreeMap<String, Option<Snapshot>> {
        self.drivers
            .iter()
            .map(|(name, handle)| (name.clone(), handle.shown.borrow().snapshot.as_deref().cloned()))
            .collect()
    }

    /// How each class is doing.
    pub fn status(&self) -> Vec<ClassStatus> {
        self.drivers.values().map(|handle| handle.shown.borrow().status()).collect()
    }

    /// Whether everything that the configuration lists was complete once, for every class.
    pub fn is_ready(&self) -> bool {
        self.status().iter().all(|class| class.ready)
    }

    /// Puts into force what is held back for a class.
    ///
    /// # Errors
    /// If there is no such class, or nothing is held back for it.
    pub async fn accept(&self, class: &str) -> Result<(), CommandError> {
        self.command(class, Command::Accept).await
    }

    /// Holds back what is held back for a class until it is accepted, or the primary says something else.
    ///
    /// # Errors
    /// If there is no such class, or nothing is held back for it.
    pub async fn refuse(&self, class: &str) -> Result<(), CommandError> {
        self.command(class, Command::Refuse).await
    }

    /// Follows nothing any more, and returns when what is in force is on disk. What it shows stays.
    pub async fn stop(&self) {
        self.is_ending.send_replace(true);
        let mut writers = self.writers.lock().await;
        while writers.join_next().await.is_some() {}
    }

    async fn command(
        &self,
        class: &str,
        command: impl FnOnce(oneshot::Sender<bool>) -> Command,
    ) -> Result<(), CommandError> {
        let Some(handle) = self.drivers.get(class) else { return Err(CommandError::NoClass(class.to_owned())) };
        let (answer, answered) = oneshot::channel();
        // A driver ends only with the mirror.
        let _ = handle.commands.send(command(answer)).await;
        match answered.await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(CommandError::NothingHeld(class.to_owned())),
        }
    }
}

/// Hands on what clients watch to the class that they are of.
async fn hand_on(
    mut learned: mpsc::Receiver<Learned>,
    classes: Classes,
    drivers: BTreeMap<String, mpsc::Sender<Command>>,
) {
    while let Some(Learned { node, targets }) = learned.recv().await {
        match classes.of(&node) {
            Ok(class) => {
                if let Some(driver) = drivers.get(&class.name) {
                    let _ = driver.send(Command::Learn(targets)).await;
                }
            }
            Err(refusal) => tracing::debug!("what a client watches is not mirrored: {refusal}"),
        }
    }
}

/// Where news come from.
struct Inputs {
    news: mpsc::Receiver<News>,
    names: mpsc::Receiver<BTreeSet<String>>,
    commands: mpsc::Receiver<Command>,
    ending: watch::Receiver<bool>,
}

/// Runs the core of a class.
struct Driver {
    core: ClassCore,
    facts: Facts,
    bootstrap: Bootstrap,
    news_by: mpsc::Sender<News>,
    followers: BTreeMap<String, tokio::task::AbortHandle>,
    following: JoinSet<()>,
    /// Targets that came by wildcard, and go with it.
    by_wildcard: BTreeSet<String>,
    /// What is in force, as it is served.
    snapshot: Option<Arc<Snapshot>>,
    shown: watch::Sender<Shown>,
    changes: watch::Sender<u64>,
    writes: Option<mpsc::UnboundedSender<Write>>,
    written_at: Instant,
    start: Instant,
}

impl Driver {
    fn new(
        class: &ClassConfig,
        brake: Brake,
        bootstrap: Bootstrap,
        news_by: mpsc::Sender<News>,
        shown: watch::Sender<Shown>,
        changes: watch::Sender<u64>,
        writes: Option<mpsc::UnboundedSender<Write>>,
    ) -> Self {
        let listed = class.targets.iter().cloned().collect();
        Self {
            core: ClassCore::new(brake),
            facts: Facts { name: class.class.name.clone(), listed, ..Facts::default() },
            bootstrap,
            news_by,
            followers: BTreeMap::new(),
            following: JoinSet::new(),
            by_wildcard: BTreeSet::new(),
            snapshot: None,
            shown,
            changes,
            writes,
            written_at: Instant::now(),
            start: Instant::now(),
        }
    }

    /// Follows what is listed, and what was followed before if nobody lists it. What is on disk is in force.
    fn begin(&mut self, class: &ClassConfig, files: Option<&Files>, is_open: bool) -> Result<(), StartError> {
        for target in &class.targets {
            self.follow(target)
                .map_err(|problem| StartError::Target(class.class.name.clone(), target.clone(), problem))?;
        }
        let (found, refused) = files.map(Files::load).unwrap_or_default();
        for reason in refused {
            tracing::warn!("what was mirrored before is not used: {reason}");
        }
        for (target, set) in found {
            if is_open && self.follow(&target).is_ok() && class.all {
                self.by_wildcard.insert(target.clone());
            }
            if let Some(newest) = set.values().map(|stored| stored.received_at).max() {
                let at = SystemTime::UNIX_EPOCH + newest;
                self.facts.confirmed_at = Some(self.facts.confirmed_at.map_or(at, |other| other.min(at)));
            }
            self.core.handle_complete(self.now(), &target, set);
        }
        self.show(self.core.in_force().is_some());
        Ok(())
    }

    /// Runs until the mirror is stopped or dropped.
    async fn run(mut self, mut inputs: Inputs) {
        loop {
            let deadline = self.core.next_deadline().map(|at| self.start + at.since_start());
            let due = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let refresh = self.written_at + REFRESH;
            let changed = tokio::select! {
                Some(news) = inputs.news.recv() => self.hear(news),
                Some(names) = inputs.names.recv() => self.names(names),
                command = inputs.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => return,
                },
                _ = inputs.ending.wait_for(|is_ending| *is_ending) => return,
                () = due => self.core.handle_timeout(self.now()),
                () = tokio::time::sleep_until(refresh) => {
                    // It holds still, which keeps it from being too old.
                    self.written_at = Instant::now();
                    if self.is_confirmed() {
                        self.write();
                    }
                    false
                }
            };
            self.show(changed);
        }
    }

    fn hear(&mut self, news: News) -> bool {
        let News { target, complete, problem, unreachable, is_current } = news;
        if !self.followers.contains_key(&target) {
            return false;
        }
        match problem {
            Some(problem) => self.facts.problems.insert(target.clone(), problem),
            None => self.facts.problems.remove(&target),
        };
        match unreachable {
            Some(cause) => {
                let since = self.facts.unreachable.get(&target).map_or_else(SystemTime::now, |(since, _)| *since);
                self.facts.unreachable.insert(target.clone(), (since, cause));
            }
            None => drop(self.facts.unreachable.remove(&target)),
        }
        if is_current {
            self.facts.current.insert(target.clone())
        } else {
            self.facts.current.remove(&target)
        };
        let Some(set) = complete else { return false };
        let was_held = self.core.held().is_some();
        let changed = self.core.handle_complete(self.now(), &target, set);
        if let Some(held) = self.core.held().filter(|_| !was_held) {
            let reasons: Vec<_> = held.removals.iter().map(ToString::to_string).collect();
            tracing::warn!(class = %self.facts.name, "an update of the primary is held back: {}", reasons.join("; "));
        }
        changed
    }

    /// The primary says which targets there are.
    fn names(&mut self, names: BTreeSet<String>) -> bool {
        let gone: Vec<_> = self.by_wildcard.difference(&names).cloned().collect();
        self.by_wildcard.retain(|target| names.contains(target));
        let gone: Vec<_> = gone.into_iter().filter(|target| !self.facts.listed.contains(target)).collect();
        let changed = self.forget(&gone);
        for target in names {
            match self.follow(&target) {
                Ok(()) => drop(self.by_wildcard.insert(target)),
                Err(problem) => drop(self.facts.problems.insert(target, problem)),
            }
        }
        changed
    }

    fn obey(&mut self, command: Command) -> bool {
        match command {
            Command::Accept(answer) => {
                let accepted = self.core.accept(self.now());
                let _ = answer.send(accepted);
                accepted
            }
            Command::Refuse(answer) => {
                let _ = answer.send(self.core.refuse());
                false
            }
            Command::Learn(targets) => {
                for target in targets {
                    if let Err(problem) = self.follow(&target) {
                        self.facts.problems.insert(target, problem);
                    }
                }
                false
            }
        }
    }

    fn follow(&mut self, target: &str) -> Result<(), String> {
        if !self.followers.contains_key(target) {
            let channel = follow::channel(target, &self.bootstrap)?;
            let task = self.following.spawn(follow(target.to_owned(), channel, self.news_by.clone()));
            self.followers.insert(target.to_owned(), task);
            self.core.follow(target);
        }
        Ok(())
    }

    /// All at once: together they may be a disaster that each of them is not.
    fn forget(&mut self, targets: &[String]) -> bool {
        for target in targets {
            if let Some(task) = self.followers.remove(target) {
                task.abort();
            }
            self.facts.problems.remove(target);
            self.facts.unreachable.remove(target);
            self.facts.current.remove(target);
        }
        self.core.forget(self.now(), targets.iter().map(String::as_str))
    }

    /// Whether the primary says now what is in force.
    fn is_confirmed(&self) -> bool {
        self.core.held().is_none() && self.core.targets().all(|(target, _)| self.facts.current.contains(target))
    }

    fn show(&mut self, changed: bool) {
        if self.is_confirmed() && self.core.in_force().is_some() {
            self.facts.confirmed_at = Some(SystemTime::now());
        }
        if changed {
            self.snapshot = self.core.in_force().map(|in_force| Arc::new(set::snapshot(&in_force.all)));
        }
        let snapshot = self.snapshot.clone();
        let shown = Shown { snapshot, core: Some(self.core.clone()), facts: self.facts.clone(), at: Some(self.start) };
        let is_news = shown.summary() != self.shown.borrow().summary();
        self.shown.send_replace(shown);
        if changed {
            self.write();
        }
        if changed || is_news {
            self.changes.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn write(&mut self) {
        if let (Some(writes), Some(in_force)) = (&self.writes, self.core.in_force()) {
            self.written_at = Instant::now();
            let _ = writes.send(Write { targets: in_force.targets.clone() });
        }
    }

    fn now(&self) -> Time {
        Time::from_start(self.start.elapsed())
    }
}

impl Shown {
    /// What is worth a word when it changes: whether something is held back or was refused, and whether the primary answers.
    fn summary(&self) -> (Option<bool>, bool) {
        let held = self.core.as_ref().and_then(ClassCore::held).map(|held| held.until.is_none());
        (held, self.facts.unreachable.is_empty())
    }

    fn status(&self) -> ClassStatus {
        let (Some(core), Some(start)) = (&self.core, self.at) else { return ClassStatus::default() };
        let (facts, now) = (&self.facts, Time::from_start(start.elapsed()));
        let since = |time: SystemTime| seconds(time.elapsed().unwrap_or_default());
        let complete: BTreeMap<&str, bool> = core.targets().collect();
        let unreachable = facts.unreachable.values().min();
        let is_confirmed = core.held().is_none() && complete.keys().all(|target| facts.current.contains(*target));
        let known = complete.keys().copied().chain(facts.problems.keys().map(String::as_str));
        let targets: BTreeSet<&str> = known.collect();
        let held = core.held().map(|held| HeldStatus {
            because: held.removals.iter().map(ToString::to_string).collect(),
            for_s: seconds(now.since(held.since)),
            passes_in_s: held.until.map(|until| seconds(until.since(now))),
            refused: held.until.is_none(),
        });
        ClassStatus {
            class: facts.name.clone(),
            ready: core.in_force().is_some()
                && facts.listed.iter().all(|target| complete.get(target.as_str()) == Some(&true)),
            resources: core.in_force().map_or(0, |in_force| in_force.all.len()),
            age_s: if is_confirmed { 0 } else { facts.confirmed_at.map_or(0, since) },
            primary_reachable: unreachable.is_none() && !facts.current.is_empty(),
            unreachable_for_s: unreachable.map(|(at, _)| since(*at)),
            unreachable_because: unreachable.map(|(_, cause)| cause.clone()),
            targets: targets
                .into_iter()
                .map(|target| TargetStatus {
                    target: target.to_owned(),
                    complete: complete.get(target) == Some(&true),
                    problem: facts.problems.get(target).cloned(),
                })
                .collect(),
            held,
        }
    }
}

/// What holds still is written again after this long.
const REFRESH: Duration = Duration::from_secs(3600);
