//! A replica that follows the generations in etcd: does what [`Replica`] decides.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_control_plane::Feed;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::disk::View;
use crate::entries::Entries;
use crate::etcd::client::{Connection, Endpoints};
use crate::etcd::layout::{Manifest, Scope};
use crate::etcd::replica::{Action, At, Current, Read, Replica, Revisions};
use crate::etcd::wire::event::EventType;
use crate::etcd::wire::watch_request::RequestUnion;
use crate::etcd::wire::{KeyValue, WatchProgressRequest, WatchRequest, WatchResponse};
use crate::following::{Following, Herald, Keeper};
use crate::freshness::Limits;
use crate::gate::Seen;

/// What to follow, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members of the cluster.
    pub endpoints: Endpoints,
    /// Whose generations.
    pub scope: Scope,
    /// How long to believe in what is there when etcd cannot be reached.
    pub limits: Limits,
    /// Where to keep what is served, for a start without etcd.
    pub file: Option<PathBuf>,
}

/// Brings the current generation to `feed`, now and whenever there is a new one. What the disk has is brought at once.
pub fn follow(settings: Settings, feed: Feed) -> Following {
    let source = source(&settings.scope);
    let (keeper, held, writing) = Keeper::start(settings.file.clone(), &source);
    let from_disk = held.and_then(|view| {
        let at = At::parse(&view.position)?;
        let snapshots = view.entries.to_snapshots().ok()?;
        feed.bring(snapshots);
        feed.behind(format!("generation {} is from the disk, and etcd was not asked yet", at.generation));
        Some((at, view.entries.digest()))
    });
    let replica = Replica::new(settings.limits, from_disk);
    let herald = Herald::new(feed, "etcd", "the first generation from etcd");
    let health = herald.teller.health();
    let shell = Shell { settings, herald, replica, keeper, session: None, connecting: JoinSet::new(), tries: 0 };
    let tasks = writing.into_iter().chain([tokio::spawn(shell.run())]).collect();
    Following { tasks, health }
}

impl At {
    fn text(self) -> String {
        format!("{:x} {}", self.cluster, self.generation)
    }

    fn parse(text: &str) -> Option<Self> {
        let (cluster, generation) = text.split_once(' ')?;
        Some(Self { cluster: u64::from_str_radix(cluster, 16).ok()?, generation: generation.parse().ok()? })
    }
}

fn source(scope: &Scope) -> String {
    format!("etcd {scope}")
}

struct Shell {
    settings: Settings,
    herald: Herald,
    replica: Replica,
    keeper: Keeper,
    session: Option<Session>,
    connecting: JoinSet<Result<Connection, String>>,
    /// How often a connection was tried: each goes to the next member.
    tries: usize,
}

/// A connection, and what is under way on it; all of that ends with it.
struct Session {
    connection: Connection,
    tasks: JoinSet<Event>,
    watching: Option<Watching>,
}

struct Watching {
    requests: mpsc::Sender<WatchRequest>,
    responses: mpsc::Receiver<Result<WatchResponse, Status>>,
    _reader: JoinSet<()>,
}

/// How something ended that was under way.
enum Event {
    Read { sent: Duration, outcome: Result<Read, Status> },
    Fetched { generation: u64, outcome: Result<(Entries, Revisions), Status> },
    Compared { generation: u64, outcome: Result<Revisions, Status> },
}

impl Shell {
    async fn run(mut self) {
        loop {
            let now = self.herald.now();
            self.replica.handle_timeout(now);
            while let Some(action) = self.replica.poll_action() {
                self.perform(action);
            }
            self.tell();
            let deadline = self.replica.deadline(self.herald.now());
            let sleep = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(self.herald.teller.started + at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                happened = happens(&mut self.session) => self.handle(happened),
                Some(connected) = self.connecting.join_next() => self.connected(connected),
                () = self.herald.teller.asked() => self.replica.handle_asked(self.herald.now()),
                () = self.herald.feed.asked() => {
                    self.replica.handle_asked(self.herald.now());
                    self.herald.feed.unchanged();
                }
                () = sleep => {}
            }
        }
    }

    fn connected(&mut self, connected: Result<Result<Connection, String>, tokio::task::JoinError>) {
        let now = self.herald.now();
        match connected {
            Ok(Ok(connection)) => {
                tracing::debug!(member = connection.name(), "connected to etcd");
                self.session = Some(Session { connection, tasks: JoinSet::new(), watching: None });
                self.replica.handle_connected(now);
            }
            Ok(Err(why)) => self.replica.handle_failure(now, why),
            Err(_) => self.replica.handle_failure(now, "connecting was given up".to_owned()),
        }
    }

    fn perform(&mut self, action: Action) {
        let scope = self.settings.scope.clone();
        match action {
            Action::Connect => {
                let (endpoints, number) = (self.settings.endpoints.clone(), self.tries);
                self.tries += 1;
                self.connecting.spawn(async move { endpoints.connect(number).await });
            }
            Action::Disconnect => {
                self.session = None;
                self.connecting.abort_all();
                self.connecting = JoinSet::new();
            }
            Action::Read { sent } => self.spawn(move |connection| async move {
                let outcome = connection.get(scope.current()).await.map(|got| Read {
                    cluster: got.header.cluster_id,
                    revision: got.header.revision,
                    current: got.kv.map(|kv| current(&kv)),
                });
                Event::Read { sent, outcome }
            }),
            Action::Fetch { generation, revision } => self.spawn(move |connection| async move {
                let prefix = scope.generation(generation);
                let outcome = connection.list(&prefix, revision, false).await.map(|kvs| {
                    let revisions = revisions(&prefix, &kvs);
                    (
                        kvs.into_iter().filter_map(|kv| Some((relative(&prefix, &kv)?, kv.value.into()))).collect(),
                        revisions,
                    )
                });
                Event::Fetched { generation, outcome }
            }),
            Action::Compare { generation } => self.spawn(move |connection| async move {
                let prefix = scope.generation(generation);
                let outcome = connection.list(&prefix, 0, true).await.map(|kvs| revisions(&prefix, &kvs));
                Event::Compared { generation, outcome }
            }),
            Action::Watch { from } => {
                let Some(session) = &mut self.session else { return };
                session.watching = Some(Watching::begin(session.connection.clone(), scope.current(), from));
            }
            Action::Progress => {
                let Some(watching) = self.session.as_ref().and_then(|session| session.watching.as_ref()) else {
                    return;
                };
                let progress = RequestUnion::ProgressRequest(WatchProgressRequest {});
                // A full queue is a watch that is not read, which gives no sign of life either.
                let _ = watching.requests.try_send(WatchRequest { request_union: Some(progress) });
            }
            Action::Switch { at, entries } => self.switch(at, entries),
        }
    }

    fn switch(&mut self, at: At, entries: Entries) {
        match entries.to_snapshots() {
            Ok(snapshots) => {
                tracing::info!(generation = at.generation, resources = entries.len(), "switched to a generation");
                self.herald.feed.bring(snapshots);
                let source = source(&self.settings.scope);
                let view = View { source, position: at.text(), entries };
                self.keeper.keep(|| move || view.clone());
            }
            Err(malformed) => self.herald.feed.reject(vec![format!("generation {}: {malformed}", at.generation)]),
        }
    }

    fn spawn<F: Future<Output = Event> + Send + 'static>(&mut self, task: impl FnOnce(Connection) -> F) {
        if let Some(session) = &mut self.session {
            session.tasks.spawn(task(session.connection.clone()));
        }
    }

    fn handle(&mut self, happened: Happened) {
        let now = self.herald.now();
        match happened {
            Happened::Event(Event::Read { sent, outcome: Ok(read) }) => self.replica.handle_read(now, sent, read),
            Happened::Event(Event::Fetched { generation, outcome: Ok((entries, revisions)) }) => {
                self.replica.handle_fetched(generation, entries, revisions);
            }
            Happened::Event(Event::Compared { generation, outcome: Ok(found) }) => {
                self.replica.handle_compared(now, generation, &found);
            }
            Happened::Event(
                Event::Read { outcome: Err(status), .. }
                | Event::Fetched { outcome: Err(status), .. }
                | Event::Compared { outcome: Err(status), .. },
            )
            | Happened::Watched(Some(Err(status))) => self.failed(now, &status),
            Happened::Watched(Some(Ok(response))) => self.watched(now, response),
            Happened::Watched(None) => self.replica.handle_failure(now, self.words("the watch has ended")),
            Happened::Panicked => self.replica.handle_failure(now, self.words("a request was given up")),
        }
    }

    fn failed(&mut self, now: Duration, status: &Status) {
        // The revision is compacted, or this member does not have it yet.
        if status.code() == Code::OutOfRange {
            return self.replica.handle_compacted(now);
        }
        let words = self.words(&format!("{}: {}", status.code(), status.message()));
        self.replica.handle_failure(now, words);
    }

    fn watched(&mut self, now: Duration, response: WatchResponse) {
        if response.compact_revision > 0 {
            return self.replica.handle_compacted(now);
        }
        if response.canceled {
            let words = self.words(&format!("the watch was cancelled: {}", response.cancel_reason));
            return self.replica.handle_failure(now, words);
        }
        let header = response.header.unwrap_or_default();
        self.replica.handle_progress();
        for event in response.events {
            let value = match event.r#type() {
                EventType::Put => event.kv.as_ref().map(current),
                EventType::Delete => None,
            };
            // As of the event, so that what is fetched fits it, whatever came later.
            let revision = event.kv.map_or(header.revision, |kv| kv.mod_revision);
            self.replica.handle_watched(header.cluster_id, revision, value);
        }
    }

    /// With the member that it is about.
    fn words(&self, what: &str) -> String {
        match &self.session {
            Some(session) => format!("etcd {}: {what}", session.connection.name()),
            None => what.to_owned(),
        }
    }

    /// Tells everybody how things stand, if that has changed.
    fn tell(&mut self) {
        let standing = self.replica.standing(self.herald.now());
        let (confirmed, differences) = (self.replica.confirmed(), self.replica.differences());
        let trouble = self.replica.trouble().map(str::to_owned);
        self.herald.tell(Seen { standing, confirmed, differences, trouble });
    }
}

enum Happened {
    Event(Event),
    Watched(Option<Result<WatchResponse, Status>>),
    Panicked,
}

/// Waits for the next thing that happens on a connection; for ever if there is none.
async fn happens(session: &mut Option<Session>) -> Happened {
    let Some(Session { tasks, watching, .. }) = session else { return std::future::pending().await };
    let watched = async {
        match watching {
            Some(watching) => watching.responses.recv().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        Some(ended) = tasks.join_next() => ended.map_or(Happened::Panicked, Happened::Event),
        response = watched => Happened::Watched(response),
    }
}

impl Watching {
    fn begin(connection: Connection, key: String, from: i64) -> Self {
        let (requests, receiver) = mpsc::channel(QUEUE);
        let (sender, responses) = mpsc::channel(QUEUE);
        let mut reader = JoinSet::new();
        let own = requests.clone();
        reader.spawn(async move {
            match connection.watch(key, from, (own, receiver)).await {
                Ok(mut stream) => loop {
                    let told = match stream.message().await {
                        Ok(Some(response)) => sender.send(Ok(response)).await,
                        Ok(None) => return,
                        Err(status) => sender.send(Err(status)).await,
                    };
                    if told.is_err() {
                        return;
                    }
                },
                // Whoever does not listen has given it up.
                Err(status) => drop(sender.send(Err(status)).await),
            }
        });
        Self { requests, responses, _reader: reader }
    }
}

fn current(kv: &KeyValue) -> Current {
    Manifest::decode(&kv.value).map_or(Current::Malformed, Current::Manifest)
}

fn relative(prefix: &str, kv: &KeyValue) -> Option<String> {
    Some(std::str::from_utf8(&kv.key).ok()?.strip_prefix(prefix)?.to_owned())
}

fn revisions(prefix: &str, kvs: &[KeyValue]) -> Revisions {
    kvs.iter().filter_map(|kv| Some((relative(prefix, kv)?, kv.mod_revision))).collect()
}

const QUEUE: usize = 16;
