//! An API server that keeps objects in memory, and speaks what clients of lists and watches need to get right.
//!
//! Lists come in pages of one version, and a token of a version that was compacted is answered with 410. Watches begin after a version
//! and end after `timeoutSeconds`, before which they tell a bookmark; an object that does not match the selector any more is told as
//! deleted; a version that was compacted is 410, as a status or as an event, and one that is not there yet is 504. Lists answer
//! with metadata only if that is asked for. Whoever has no token, or not the rights, is told so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The API server; clones are the same one.
#[derive(Clone)]
pub(super) struct ApiServer {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    /// Bound and not listening: the port stays ours while nobody listens.
    _reserved: Arc<TcpSocket>,
    running: Arc<Mutex<Option<JoinHandle<()>>>>,
}

struct State {
    version: u64,
    /// Below this nothing is known any more.
    compacted: u64,
    objects: Objects,
    /// What happened to each object: what it was and what it is.
    log: Vec<Happened>,
    /// What lists of older versions are continued from.
    pages: BTreeMap<u64, Objects>,
    faults: Faults,
    counts: BTreeMap<String, usize>,
    changed: watch::Sender<u64>,
}

type Objects = BTreeMap<Id, Value>;

/// Plural, namespace, name.
type Id = (String, String, String);

#[derive(Clone)]
struct Happened {
    version: u64,
    id: Id,
    before: Option<Value>,
    after: Option<Value>,
}

/// What goes wrong, until it is taken back.
#[derive(Clone, Default)]
pub(super) struct Faults {
    /// Requests about this kind are answered with this code.
    pub(super) refuse: Option<(&'static str, u16)>,
    /// The next thing that a watch would tell is broken like this.
    pub(super) next_event: Option<Broken>,
    /// 410 comes as an event in a watch that is open.
    pub(super) gone_as_event: bool,
    /// Lists are cut into pages of at most so many.
    pub(super) page: Option<usize>,
}

/// How an event can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The connection is cut in the middle of the line.
    MidLine,
    /// A line that is no JSON.
    NoJson,
    /// JSON that is no event.
    NoEvent,
}

impl ApiServer {
    /// Listens on a port that the system chooses.
    pub(super) fn start() -> Self {
        let reserved = socket("127.0.0.1:0".parse().expect("an address"));
        let address = reserved.local_addr().expect("bound");
        let state = State {
            version: 100,
            compacted: 0,
            objects: BTreeMap::new(),
            log: Vec::new(),
            pages: BTreeMap::new(),
            faults: Faults::default(),
            counts: BTreeMap::new(),
            changed: watch::Sender::new(0),
        };
        let state = Arc::new(Mutex::new(state));
        let server = Self { state, address, _reserved: Arc::new(reserved), running: Arc::default() };
        server.restart();
        server
    }

    /// A kubeconfig for it.
    pub(super) fn kubeconfig(&self) -> String {
        let server = format!("http://{}", self.address);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        })
        .to_string()
    }

    /// Ends it and every connection; what it has stays.
    pub(super) async fn stop(&self) {
        let running = lock(&self.running).take();
        if let Some(running) = running {
            running.abort();
            // Only when its task is gone the port is free.
            let _ = running.await;
        }
    }

    /// Listens again, at the same port.
    pub(super) fn restart(&self) {
        self.serve(socket(self.address).listen(64).expect("it is ours"));
    }

    /// Makes or changes an object; its version is made here.
    pub(super) fn put(&self, mut object: Value) {
        let mut state = lock(&self.state);
        state.version += 1;
        let version = state.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let id = id_of(&object);
        let before = state.objects.insert(id.clone(), object.clone());
        state.log.push(Happened { version, id, before, after: Some(object) });
        state.changed.send_replace(version);
    }

    pub(super) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let mut state = lock(&self.state);
        let id = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let before = state.objects.remove(&id).expect("it is there");
        state.version += 1;
        let version = state.version;
        state.log.push(Happened { version, id, before: Some(before), after: None });
        state.changed.send_replace(version);
    }

    /// Forgets what happened up to now.
    pub(super) fn compact(&self) {
        let mut state = lock(&self.state);
        state.version += 1;
        state.compacted = state.version;
        state.log.clear();
        state.pages.clear();
    }

    /// Has what another one has, as if restored from it: connections end, and versions go back.
    pub(super) async fn become_like(&self, other: &Self) {
        self.stop().await;
        let (version, objects) = {
            let other = lock(&other.state);
            (other.version - 1, other.objects.clone())
        };
        let mut state = lock(&self.state);
        (state.version, state.objects) = (version, objects);
        state.log.clear();
        drop(state);
        self.restart();
    }

    pub(super) fn faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut state = lock(&self.state);
        change(&mut state.faults);
        // Whoever watches looks again.
        let version = state.version;
        state.changed.send_replace(version);
    }

    /// How many requests of this sort there were, such as `list services`, `page services`, `watch services` or `read services`.
    pub(super) fn count(&self, what: &str) -> usize {
        lock(&self.state).counts.get(what).copied().unwrap_or_default()
    }

    fn serve(&self, listener: TcpListener) {
        let state = Arc::clone(&self.state);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(stream, Arc::clone(&state)));
            }
        });
        *lock(&self.running) = Some(task);
    }
}

fn socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option");
    socket.bind(address).expect("a port, or the same again");
    socket
}

async fn connection(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let mut buffer = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end;
            }
            match stream.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let head = String::from_utf8(buffer.drain(..end + 4).collect()).expect("a request in text");
        let request = Request::parse(&head);
        let outcome = if request.is_watch() {
            watch(&mut stream, &state, &request).await
        } else {
            answer(&mut stream, &state, &request).await
        };
        if outcome.is_none() {
            return;
        }
    }
}

struct Request {
    plural: String,
    namespace: Option<String>,
    query: BTreeMap<String, String>,
    is_metadata: bool,
    is_authorized: bool,
}

impl Request {
    fn parse(head: &str) -> Self {
        let mut lines = head.lines();
        let target = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a target");
        let headers: BTreeMap<_, _> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<_> = path.split('/').collect();
        let namespace = parts.iter().position(|part| *part == "namespaces").map(|at| parts[at + 1].to_owned());
        let decode =
            |text: &str| percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        Self {
            plural: (*parts.last().expect("a path")).to_owned(),
            namespace,
            query: query.map(|(name, value)| (decode(name), decode(value))).collect(),
            is_metadata: headers.get("accept").is_some_and(|accept| accept.contains("PartialObjectMetadataList")),
            is_authorized: headers.get("authorization").is_some_and(|value| *value == format!("Bearer {TOKEN}")),
        }
    }

    fn is_watch(&self) -> bool {
        self.query.get("watch").is_some_and(|watch| watch == "true")
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    fn selects(&self, id: &Id, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        id.0 == self.plural
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == id.1)
            && self.get("labelSelector").is_none_or(|label| labels.get(label).is_some())
    }
}

/// Answers anything but a watch; `None` ends the connection.
async fn answer(stream: &mut TcpStream, state: &Mutex<State>, request: &Request) -> Option<()> {
    let (code, body) = {
        let mut state = lock(state);
        let sort = match (request.is_metadata, request.get("continue").is_some()) {
            (true, _) => "read",
            (false, true) => "page",
            (false, false) => "list",
        };
        *state.counts.entry(format!("{sort} {}", request.plural)).or_default() += 1;
        list(&mut state, request)
    };
    let body = body.to_string();
    let head = format!("HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.ok()
}

fn list(state: &mut State, request: &Request) -> (u16, Value) {
    if let Some(refused) = refused(state, request) {
        return refused;
    }
    let (version, from) = match request.get("continue").and_then(|token| token.split_once(' ')) {
        Some((version, from)) => (version.parse().expect("our token"), from.parse().expect("our token")),
        None => (state.version, 0),
    };
    let objects = match (version == state.version, state.pages.get(&version)) {
        (true, _) => &state.objects,
        (false, Some(objects)) => objects,
        (false, None) => return status(410, "Expired", "The provided continue parameter is too old"),
    };
    let selected: Vec<_> =
        objects.iter().filter(|(id, object)| request.selects(id, object)).map(|(_, object)| object).collect();
    let limit = request.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let limit = state.faults.page.unwrap_or(limit).min(limit);
    let rest = selected.len().saturating_sub(from).saturating_sub(limit);
    let item =
        |object: &Value| if request.is_metadata { json!({"metadata": object["metadata"]}) } else { listed(object) };
    let items: Vec<_> = selected.into_iter().skip(from).take(limit).map(item).collect();
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if rest > 0 {
        metadata["continue"] = json!(format!("{version} {}", from + limit));
        metadata["remainingItemCount"] = json!(rest);
    }
    let kind = if request.is_metadata { "PartialObjectMetadataList" } else { "List" };
    let answer = json!({"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items});
    if rest > 0 {
        let objects = state.objects.clone();
        state.pages.entry(version).or_insert(objects);
    }
    (200, answer)
}

/// Items of lists do not say their kind.
fn listed(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(object) = object.as_object_mut() {
        object.remove("kind");
        object.remove("apiVersion");
    }
    object
}

async fn watch(stream: &mut TcpStream, state: &Mutex<State>, request: &Request) -> Option<()> {
    let (begun, mut changed) = {
        let mut state = lock(state);
        *state.counts.entry(format!("watch {}", request.plural)).or_default() += 1;
        let changed = state.changed.subscribe();
        let from = request.get("resourceVersion").and_then(|version| version.parse::<u64>().ok()).expect("a version");
        let too_old = from < state.compacted && !state.faults.gone_as_event;
        let begun = match refused(&state, request) {
            Some(refused) => Err(refused),
            None if too_old => Err(status(410, "Expired", "too old resource version")),
            None if from > state.version => {
                let (code, mut body) = status(504, "Timeout", "Too large resource version");
                body["details"] =
                    json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]});
                Err((code, body))
            }
            None => Ok(from),
        };
        (begun, changed)
    };
    let mut position = match begun {
        Ok(from) => from,
        Err((code, body)) => {
            let body = body.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            return stream.write_all(format!("{head}{body}").as_bytes()).await.ok();
        }
    };
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await
        .ok()?;
    let seconds = request.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(300);
    let end = tokio::time::sleep(Duration::from_secs(seconds));
    tokio::pin!(end);
    loop {
        changed.mark_unchanged();
        let (events, broken) = {
            let mut state = lock(state);
            if position < state.compacted && state.faults.gone_as_event {
                let (_, gone) = status(410, "Expired", "too old resource version");
                (vec![json!({"type": "ERROR", "object": gone})], None)
            } else {
                let events: Vec<_> = state
                    .log
                    .iter()
                    .filter(|happened| happened.version > position)
                    .filter_map(|happened| event(request, happened))
                    .collect();
                position = state.version.max(position);
                let broken = if events.is_empty() { None } else { state.faults.next_event.take() };
                (events, broken)
            }
        };
        for event in events {
            let line = format!("{event}\n");
            match broken {
                None => chunk(stream, &line).await?,
                Some(Broken::MidLine) => {
                    chunk(stream, &line[..line.len() / 2]).await?;
                    return None;
                }
                Some(Broken::NoJson) => chunk(stream, "<html>bad gateway</html>\n").await?,
                Some(Broken::NoEvent) => chunk(stream, "{\"type\": \"ADDED\", \"object\": 42}\n").await?,
            }
            if event["type"] == "ERROR" {
                return stream.write_all(b"0\r\n\r\n").await.ok();
            }
        }
        tokio::select! {
            changed = changed.changed() => changed.ok()?,
            () = &mut end => {
                let metadata = json!({"resourceVersion": position.to_string(), "creationTimestamp": null});
                let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "X", "apiVersion": "v1", "metadata": metadata}});
                chunk(stream, &format!("{bookmark}\n")).await?;
                return stream.write_all(b"0\r\n\r\n").await.ok();
            }
        }
    }
}

/// What a watch tells of what has happened, if it concerns it.
fn event(request: &Request, happened: &Happened) -> Option<Value> {
    let selected = |object: &Option<Value>| object.clone().filter(|object| request.selects(&happened.id, object));
    let (word, mut object) = match (selected(&happened.before), selected(&happened.after)) {
        (None, Some(after)) => ("ADDED", after),
        (Some(_), Some(after)) => ("MODIFIED", after),
        (Some(before), None) => ("DELETED", before),
        (None, None) => return None,
    };
    object["metadata"]["resourceVersion"] = json!(happened.version.to_string());
    Some(json!({"type": word, "object": object}))
}

async fn chunk(stream: &mut TcpStream, text: &str) -> Option<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await.ok()
}

fn refused(state: &State, request: &Request) -> Option<(u16, Value)> {
    if !request.is_authorized {
        return Some(status(401, "Unauthorized", "Unauthorized"));
    }
    match state.faults.refuse {
        Some((plural, 401)) if plural == request.plural => Some(status(401, "Unauthorized", "Unauthorized")),
        Some((plural, 403)) if plural == request.plural => {
            let message = format!(
                "{plural} is forbidden: User \"x\" cannot list resource \"{plural}\" in API group \"\" at the cluster scope"
            );
            Some(status(403, "Forbidden", &message))
        }
        Some((plural, code)) if plural == request.plural => Some(status(code, "InternalError", "out of order")),
        _ => None,
    }
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    (code, body)
}

fn id_of(object: &Value) -> Id {
    let plural = format!("{}s", object["kind"].as_str().expect("a kind").to_lowercase());
    let metadata = |field: &str| object["metadata"][field].as_str().expect("a name").to_owned();
    (plural, metadata("namespace"), metadata("name"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics with it")
}

/// A Service with one port.
pub(super) fn service(namespace: &str, name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
        "spec": {"type": "ClusterIP", "ipFamilies": ["IPv4"], "ports": [{"name": "grpc", "port": port, "targetPort": "grpc"}]},
    })
}

/// An EndpointSlice of a Service: addresses, and whether they are ready, or terminating otherwise.
pub(super) fn slice(namespace: &str, service: &str, name: &str, endpoints: &[(SocketAddr, bool)]) -> Value {
    let port = endpoints.first().map_or(1, |(address, _)| address.port());
    let endpoint = |(address, is_ready): &(SocketAddr, bool)| {
        json!({"addresses": [address.ip().to_string()], "zone": "zone-a",
            "conditions": {"ready": is_ready, "serving": true, "terminating": !is_ready}})
    };
    let endpoints: Vec<_> = endpoints.iter().map(endpoint).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"namespace": namespace, "name": name, "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": "grpc", "port": port, "protocol": "TCP"}], "endpoints": endpoints,
    })
}

/// A ConfigMap with resources.
pub(super) fn config_map(namespace: &str, name: &str, key: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": {"mainstay.dev/resources": ""}},
        "data": {key: text},
    })
}

const TOKEN: &str = "token";
