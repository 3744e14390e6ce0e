//! Follows the API server: does what [`Replica`] decides.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use futures_util::{TryStreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, ObjectList, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use mainstay_control_plane::{Feed, Snapshots};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::disk::View;
use crate::entries::Entries;
use crate::following::{Following, Herald, Keeper};
use crate::freshness::Limits;
use crate::gate::Seen;
use crate::kubernetes::configmaps::Judge;
use crate::kubernetes::model::{Frame, Model};
use crate::kubernetes::object::{Kind, Object};
use crate::kubernetes::parse::{Parse, identity};
use crate::kubernetes::reflector::{Action, LIST, Listed, PATIENCE, SPAN, Told, Trouble};
use crate::kubernetes::replica::{News, Order, Replica, Target};

/// What to follow, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How to reach the API server; without it as kubectl would, and as a pod if there is no kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Which namespaces; all of them if none is named.
    pub namespaces: Vec<String>,
    /// The DNS domain of the cluster.
    pub domain: String,
    /// The region of all localities: Kubernetes tells zones only.
    pub region: String,
    /// Whether what ConfigMaps have may be put into force.
    pub judge: Judge,
    /// How long to believe in what is there when the API server cannot be reached.
    pub limits: Limits,
    /// Where to keep what is served, for a start without the API server.
    pub file: Option<PathBuf>,
}

/// How to reach the API server cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be used.
    #[error("{}: {problem}", file.display())]
    File {
        /// The kubeconfig.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// There is nothing that says it.
    #[error("no kubeconfig, and this is no pod: {0}")]
    Nowhere(String),
    /// The client cannot be made, as with certificates that cannot be read.
    #[error("{0}")]
    Client(String),
}

/// Brings what the Services, EndpointSlices and ConfigMaps say to `feed`, now and whenever it changes. What the disk has is
/// brought at once.
///
/// # Errors
/// If nothing says how to reach the API server. If it cannot be reached, it is tried for ever.
pub async fn follow(mut settings: Settings, feed: Feed) -> Result<Following, AccessError> {
    settings.namespaces.sort();
    settings.namespaces.dedup();
    let mut config = access(settings.kubeconfig.as_deref()).await?;
    config.connect_timeout = Some(PATIENCE);
    let server = config.cluster_url.to_string();
    // The reflectors pace themselves, and what is asked again in between hides what they must know: that the store is behind.
    config.default_retry = false;
    let client = Client::try_from(config).map_err(|error| AccessError::Client(causes(&error)))?;
    let source = format!("kubernetes {server} {}", settings.namespaces.join(","));
    let (keeper, held, writing) = Keeper::start(settings.file, &source);
    let from_disk = held.and_then(|view| view.entries.to_snapshots().ok());
    let has_view = from_disk.is_some();
    if let Some(snapshots) = from_disk {
        feed.bring(snapshots);
        feed.behind("what is served is from the disk, and the API server was not asked yet".to_owned());
    }
    let herald = Herald::new(feed, "the API server", "the first lists from the API server");
    let health = herald.teller.health();
    let model = Model::new(Frame { domain: settings.domain, region: settings.region }, settings.judge);
    let replica = Replica::new(&settings.namespaces, model, settings.limits, has_view);
    let (events, queue) = mpsc::channel(QUEUE);
    let under_way = (0..replica.targets()).map(|_| UnderWay::default()).collect();
    let shell =
        Shell { client, server, source, herald, keeper, replica, under_way, events, queue, problems: Vec::new() };
    let tasks = writing.into_iter().chain([tokio::spawn(shell.run())]).collect();
    Ok(Following { tasks, health })
}

async fn access(kubeconfig: Option<&Path>) -> Result<Config, AccessError> {
    let Some(file) = kubeconfig else {
        return Config::infer().await.map_err(|error| AccessError::Nowhere(causes(&error)));
    };
    let wrong = |problem| AccessError::File { file: file.to_owned(), problem };
    let read = Kubeconfig::read_from(file).map_err(|error| wrong(causes(&error)))?;
    Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(|error| wrong(causes(&error)))
}

struct Shell {
    client: Client,
    server: String,
    /// What a view on the disk is of.
    source: String,
    herald: Herald,
    keeper: Keeper,
    replica: Replica,
    under_way: Vec<UnderWay>,
    events: mpsc::Sender<(usize, News)>,
    queue: mpsc::Receiver<(usize, News)>,
    /// What was last told that cannot be served.
    problems: Vec<String>,
}

/// What is being done for one target; a new one of a kind ends the old one.
#[derive(Default)]
struct UnderWay {
    list_or_watch: Option<Task>,
    compare: Option<Task>,
    read: Option<Task>,
}

struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shell {
    async fn run(mut self) {
        loop {
            self.replica.handle_timeout(self.herald.now(), fastrand::f64());
            let now = self.herald.now();
            self.replica.settle(now);
            while let Some(order) = self.replica.poll_order() {
                self.perform(order);
            }
            self.tell();
            let deadline = self.herald.teller.started + self.replica.deadline(now);
            tokio::select! {
                Some((index, news)) = self.queue.recv() => {
                    self.handle(index, news);
                    // What has come together is settled together.
                    for _ in 0..QUEUE {
                        let Ok((index, news)) = self.queue.try_recv() else { break };
                        self.handle(index, news);
                    }
                }
                () = self.herald.teller.asked() => self.replica.handle_asked(self.herald.now()),
                () = self.herald.feed.asked() => {
                    self.replica.handle_asked(self.herald.now());
                    self.herald.feed.unchanged();
                    self.repeat_problems();
                }
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    fn handle(&mut self, index: usize, news: News) {
        self.replica.handle(self.herald.now(), fastrand::f64(), index, news);
    }

    fn perform(&mut self, order: Order) {
        match order {
            Order::Do(index, action) => {
                let Some(target) = self.replica.target(index).cloned() else { return };
                let request = Request { client: self.client.clone(), target, index, events: self.events.clone() };
                let Some(under_way) = self.under_way.get_mut(index) else { return };
                match request.target.kind {
                    Kind::Services => under_way.perform::<Service>(request, action),
                    Kind::EndpointSlices => under_way.perform::<EndpointSlice>(request, action),
                    Kind::ConfigMaps => under_way.perform::<ConfigMap>(request, action),
                }
            }
            Order::Bring(snapshots, problems) => {
                self.keep(&snapshots);
                self.problems.clone_from(&problems);
                self.herald.feed.bring_in_part(snapshots, problems);
            }
            Order::Skipped(service, of) => {
                tracing::info!(%service, of, "not served: a Service of type ExternalName has no endpoints");
            }
        }
    }

    fn keep(&self, snapshots: &Snapshots) {
        self.keeper.keep(|| {
            let (source, position, snapshots) = (self.source.clone(), self.server.clone(), snapshots.clone());
            move || View { source: source.clone(), position: position.clone(), entries: Entries::of(&snapshots) }
        });
    }

    /// Tells everybody how things stand, if that has changed.
    fn tell(&mut self) {
        let standing = self.replica.standing(self.herald.now());
        let (confirmed, differences) = (self.replica.confirmed(), self.replica.differences());
        let trouble = self.replica.trouble().map(|trouble| format!("{}: {trouble}", self.server));
        if self.herald.tell(Seen { standing, confirmed, differences, trouble }) {
            self.repeat_problems();
        }
    }

    /// What is wrong with ConfigMaps is wrong still, whatever else was told.
    fn repeat_problems(&self) {
        if !self.problems.is_empty() {
            self.herald.feed.reject(self.problems.clone());
        }
    }
}

impl UnderWay {
    fn perform<K: Parse>(&mut self, request: Request, action: Action) {
        match action {
            Action::List { attempt } => {
                self.list_or_watch = Some(Task(tokio::spawn(async move {
                    let listed = request.list::<K>().await;
                    request.tell(News::Listed { attempt, listed }).await;
                })));
            }
            Action::Watch { attempt, from } => {
                self.list_or_watch = Some(Task(tokio::spawn(async move {
                    let end = request.watch::<K>(attempt, &from).await;
                    request.tell(News::End { attempt, end }).await;
                })));
            }
            Action::Stop => self.list_or_watch = None,
            Action::Compare => {
                self.compare = Some(Task(tokio::spawn(async move {
                    let listed = timeout(LIST, request.list::<K>()).await.ok().and_then(Result::ok);
                    request.tell(News::Compared { listed }).await;
                })));
            }
            Action::Read { sent } => {
                self.read = Some(Task(tokio::spawn(async move {
                    let outcome = request.read::<K>().await;
                    request.tell(News::Read { sent, outcome }).await;
                })));
            }
        }
    }
}

/// Requests about one target.
struct Request {
    client: Client,
    target: Target,
    index: usize,
    events: mpsc::Sender<(usize, News)>,
}

impl Request {
    async fn tell(&self, news: News) {
        // Whoever does not listen has ended.
        let _ = self.events.send((self.index, news)).await;
    }

    /// Everything, page by page. Without a version, so that the store answers and not a cache that is behind.
    async fn list<K: Parse>(&self) -> Result<Listed<Object>, Trouble> {
        let api = self.api::<K>();
        let (mut items, mut token) = (BTreeMap::new(), None);
        loop {
            let params = ListParams { limit: Some(PAGE), continue_token: token, ..self.selection() };
            let page: ObjectList<K> = api.list(&params).await.map_err(trouble)?;
            for object in page.items {
                let (key, version, value) = parsed(object);
                items.insert(key, (version, value));
            }
            token = page.metadata.continue_.filter(|token| !token.is_empty());
            if token.is_none() {
                return Ok(Listed { version: page.metadata.resource_version.unwrap_or_default(), items });
            }
        }
    }

    async fn watch<K: Parse>(&self, attempt: u64, from: &str) -> Result<(), Trouble> {
        let ListParams { label_selector, .. } = self.selection();
        let params = WatchParams { label_selector, ..WatchParams::default().timeout(SECONDS) };
        let api = self.api::<K>();
        let stream = api.watch(&params, from).await.map_err(trouble)?;
        self.tell(News::Open { attempt }).await;
        pin_mut!(stream);
        while let Some(event) = stream.try_next().await.map_err(trouble)? {
            let told = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let (key, version, value) = parsed(object);
                    Told::Put { key, version, value }
                }
                WatchEvent::Deleted(object) => {
                    let (key, version) = identity(object.meta());
                    Told::Gone { key, version }
                }
                WatchEvent::Bookmark(bookmark) => Told::Bookmark { version: bookmark.metadata.resource_version },
                WatchEvent::Error(status) => return Err(trouble(kube::Error::Api(status))),
            };
            self.tell(News::Told { attempt, told }).await;
        }
        Ok(())
    }

    /// Whether the store answers.
    async fn read<K: Parse>(&self) -> Result<(), Trouble> {
        let params = ListParams { limit: Some(1), ..self.selection() };
        self.api::<K>().list_metadata(&params).await.map(drop).map_err(trouble)
    }

    fn api<K: Parse>(&self) -> Api<K> {
        match &self.target.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn selection(&self) -> ListParams {
        let labels = match self.target.kind {
            Kind::Services => None,
            Kind::EndpointSlices => Some("kubernetes.io/service-name"),
            Kind::ConfigMaps => Some(LABEL),
        };
        labels.map_or_else(ListParams::default, |labels| ListParams::default().labels(labels))
    }
}

fn parsed<K: Parse>(object: K) -> (crate::kubernetes::object::Key, String, Object) {
    let (key, version) = identity(object.meta());
    let mut faults = Vec::new();
    let value = object.parse(&mut faults);
    for fault in faults {
        tracing::warn!("{} {key}: {fault}; left out", K::KIND.word());
    }
    (key, version, value)
}

fn trouble(error: kube::Error) -> Trouble {
    let kube::Error::Api(status) = &error else { return Trouble::Failed(causes(&error)) };
    match status.code {
        _ if is_ahead(status) => Trouble::Expired,
        GONE => Trouble::Expired,
        code => Trouble::Failed(format!("{code} {}: {}", status.reason, status.message)),
    }
}

/// Whether the store is behind what was known already, as after it was restored from a backup: the API server holds the truth.
fn is_ahead(status: &kube::core::Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// An error and what it comes from, each once.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

/// The label of ConfigMaps with resources (KB-8).
const LABEL: &str = "mainstay.dev/resources";
const GONE: u16 = 410;
const PAGE: u32 = 500;
const SECONDS: u32 = SPAN.as_secs() as u32;
const QUEUE: usize = 256;
