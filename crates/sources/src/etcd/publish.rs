//! Publishing a generation: all of its resources, then one step that makes it current (FB-25).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tonic::{Code, Status};

use crate::entries::Entries;
use crate::etcd::client::{Connection, Endpoints, Got, end_of};
use crate::etcd::layout::{Manifest, Scope, Sweep, TooLarge, batches};
use crate::etcd::wire::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::etcd::wire::request_op::Request;
use crate::etcd::wire::{Compare, DeleteRangeRequest, KeyValue, PutRequest, RequestOp, TxnRequest};

/// How to publish.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The members of the cluster.
    pub endpoints: Endpoints,
    /// Under which name.
    pub scope: Scope,
    /// How long generations are kept that are not current any more.
    pub keep: Duration,
    /// How long to try.
    pub patience: Duration,
}

/// How publishing ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// With a new generation.
    New {
        /// Its number.
        generation: u64,
        /// The old ones that were removed.
        removed: Vec<u64>,
    },
    /// The current one has the same resources.
    Unchanged {
        /// Its number.
        generation: u64,
    },
}

/// Why nothing was published. What was current still is.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// A resource does not fit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// Somebody else published at the same time.
    #[error("generation {0} was published by somebody else in the meantime; look at it, and publish again")]
    Overtaken(u64),
    /// etcd could not be reached, or has no quorum.
    #[error("etcd could not be written to within {} s: {last}", .patience.as_secs())]
    Unreachable {
        /// How long it was tried.
        patience: Duration,
        /// The last trouble.
        last: String,
    },
    /// etcd does not want it.
    #[error("etcd refuses it: {0}")]
    Refused(String),
}

/// Writes resources as a new generation and makes it the current one, unless that has the same already.
///
/// # Errors
/// If it cannot; then what was current still is.
pub async fn publish(plan: &Plan, entries: &Entries) -> Result<Published, PublishError> {
    let scope = &plan.scope;
    // Before anything is written.
    batches(&scope.generation(u64::MAX), entries)?;
    let mut store = Store::new(plan);
    let before = store.get(&scope.current()).await?;
    let current =
        before.kv.as_ref().and_then(|kv| Manifest::decode(&kv.value)).map(|manifest| (manifest.generation, manifest));
    if let Some((generation, manifest)) = &current
        && manifest.fits(entries)
    {
        return Ok(Published::Unchanged { generation: *generation });
    }
    let in_force = current.as_ref().map(|(generation, _)| *generation);
    let generation = claim(&mut store, scope, in_force).await?;
    let prefix = scope.generation(generation);
    for batch in batches(&prefix, entries)? {
        let success = batch.into_iter().map(|(key, value)| put(key, value.to_vec())).collect();
        store.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    }
    let manifest = Manifest::new(generation, entries);
    let mut success = vec![put(scope.current(), manifest.encode()), delete(scope.claim(generation))];
    success.extend(in_force.map(|old| put(scope.retired(old), seconds(now()))));
    let unchanged = same_revision(scope.current(), before.kv.as_ref());
    let swapped = store.txn(TxnRequest { compare: vec![unchanged], success, failure: Vec::new() }).await?;
    if !swapped {
        // Unless it was ourselves, and only the answer was lost.
        let found = store.get(&scope.current()).await?.kv.and_then(|kv| Manifest::decode(&kv.value));
        match found {
            Some(found) if found == manifest => {}
            found => return Err(PublishError::Overtaken(found.map_or(0, |found| found.generation))),
        }
    }
    Ok(Published::New { generation, removed: sweep(&mut store, plan, generation).await.unwrap_or_default() })
}

/// A number that nobody else has, and that is higher than all before.
async fn claim(store: &mut Store<'_>, scope: &Scope, current: Option<u64>) -> Result<u64, PublishError> {
    loop {
        let last = store.get(&scope.last()).await?.kv;
        let number = last.as_ref().and_then(|kv| std::str::from_utf8(&kv.value).ok()?.parse::<u64>().ok());
        let next = number.max(current).unwrap_or(0) + 1;
        let success = vec![put(scope.last(), next.to_string().into_bytes()), put(scope.claim(next), seconds(now()))];
        let compare = vec![same_revision(scope.last(), last.as_ref())];
        if store.txn(TxnRequest { compare, success, failure: Vec::new() }).await? {
            return Ok(next);
        }
    }
}

/// Removes what nobody reads any more. The generation is published whether or not this works; the next one tries again.
async fn sweep(store: &mut Store<'_>, plan: &Plan, current: u64) -> Result<Vec<u64>, PublishError> {
    let scope = &plan.scope;
    let number = |prefix: &str, kv: &KeyValue| -> Option<u64> {
        std::str::from_utf8(&kv.key).ok()?.strip_prefix(prefix)?.parse().ok()
    };
    let claims = store.list(&scope.claims()).await?;
    let claimed: BTreeSet<u64> = claims.iter().filter_map(|kv| number(&scope.claims(), kv)).collect();
    let retired = store.list(&scope.all_retired()).await?;
    let retired: BTreeMap<u64, Duration> = retired
        .iter()
        .filter_map(|kv| {
            let since = std::str::from_utf8(&kv.value).ok()?.parse().ok()?;
            Some((number(&scope.all_retired(), kv)?, Duration::from_secs(since)))
        })
        .collect();
    let sweep = Sweep::new(current, &claimed, &retired, now(), plan.keep);
    for old in sweep.retire {
        let success = vec![put(scope.retired(old), seconds(now())), delete(scope.claim(old))];
        store.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    }
    for old in &sweep.remove {
        let prefix = scope.generation(*old);
        let all = DeleteRangeRequest { range_end: end_of(&prefix), key: prefix.into_bytes() };
        let success = vec![op(Request::RequestDeleteRange(all)), delete(scope.retired(*old))];
        store.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
    }
    Ok(sweep.remove)
}

/// etcd, member by member, until one answers or time is up.
struct Store<'a> {
    plan: &'a Plan,
    deadline: Instant,
    connection: Option<Connection>,
    tries: usize,
    last: String,
}

impl<'a> Store<'a> {
    fn new(plan: &'a Plan) -> Self {
        let deadline = Instant::now() + plan.patience;
        Self { plan, deadline, connection: None, tries: 0, last: "nothing was tried".to_owned() }
    }

    async fn get(&mut self, key: &str) -> Result<Got, PublishError> {
        self.retry(async |connection| connection.get(key.to_owned()).await).await
    }

    async fn list(&mut self, prefix: &str) -> Result<Vec<KeyValue>, PublishError> {
        self.retry(async |connection| connection.list(prefix, 0, false).await).await
    }

    /// Whether what was compared was so. A transaction may be tried again after it was done and its answer was lost, so
    /// each has the same effect when it is done twice, or compares what it changes.
    async fn txn(&mut self, txn: TxnRequest) -> Result<bool, PublishError> {
        Ok(self.retry(async |connection| connection.txn(txn.clone()).await).await?.succeeded)
    }

    async fn retry<T>(&mut self, attempt: impl AsyncFn(&Connection) -> Result<T, Status>) -> Result<T, PublishError> {
        loop {
            let Some(connection) = &self.connection else {
                self.connect().await?;
                continue;
            };
            match attempt(connection).await {
                Ok(done) => return Ok(done),
                Err(status) if is_transient(&status) => {
                    self.last = format!("{}: {}: {}", connection.name(), status.code(), status.message());
                    self.connection = None;
                }
                Err(status) => return Err(PublishError::Refused(format!("{}: {}", status.code(), status.message()))),
            }
        }
    }

    async fn connect(&mut self) -> Result<(), PublishError> {
        if self.tries > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        if Instant::now() >= self.deadline {
            return Err(PublishError::Unreachable { patience: self.plan.patience, last: self.last.clone() });
        }
        match self.plan.endpoints.connect(self.tries).await {
            Ok(connection) => self.connection = Some(connection),
            Err(why) => self.last = why,
        }
        self.tries += 1;
        Ok(())
    }
}

/// Whether another member, or another time, may do better. Whatever else etcd says, it says of the request.
fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal | Code::Aborted
    )
}

fn same_revision(key: String, kv: Option<&KeyValue>) -> Compare {
    // A key that is not there has revision 0.
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.into_bytes(),
        target_union: Some(TargetUnion::ModRevision(kv.map_or(0, |kv| kv.mod_revision))),
    }
}

fn put(key: String, value: Vec<u8>) -> RequestOp {
    op(Request::RequestPut(PutRequest { key: key.into_bytes(), value }))
}

fn delete(key: String) -> RequestOp {
    op(Request::RequestDeleteRange(DeleteRangeRequest { key: key.into_bytes(), range_end: Vec::new() }))
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn seconds(time: Duration) -> Vec<u8> {
    time.as_secs().to_string().into_bytes()
}

fn now() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New { generation, .. } => write!(f, "generation {generation}"),
            Self::Unchanged { generation } => write!(f, "generation {generation}, which has the same resources"),
        }
    }
}

const PAUSE: Duration = Duration::from_millis(200);
