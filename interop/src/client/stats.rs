//! What became of RPCs: in blocks of the next ones sent (I-7 to I-11), and in all (I-12, I-13).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_testservice::proto::load_balancer_accumulated_stats_response::MethodStats;
use mainstay_testservice::proto::load_balancer_stats_response::{
    MetadataByPeer, MetadataEntry, MetadataType, RpcMetadata,
};
use mainstay_testservice::proto::load_balancer_stats_service_server::LoadBalancerStatsService;
use mainstay_testservice::proto::{
    LoadBalancerAccumulatedStatsRequest, LoadBalancerAccumulatedStatsResponse, LoadBalancerStatsRequest,
    LoadBalancerStatsResponse,
};
use tokio::sync::oneshot;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Code, Request, Response, Status};

use super::call::{Method, Outcome};

/// All that is known of the client's RPCs.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    inner: Mutex<Inner>,
}

/// Number of an RPC, over all channels and kinds, in the order of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RpcId(u64);

#[derive(Debug, Default)]
struct Inner {
    sent: u64,
    totals: BTreeMap<Method, MethodStats>,
    observers: BTreeMap<u64, Observer>,
    last_observer: u64,
}

/// One who waits for a block of RPCs.
#[derive(Debug)]
struct Observer {
    first: u64,
    end: u64,
    keys: Vec<String>,
    unfinished: i32,
    seen: LoadBalancerStatsResponse,
    /// Whether any RPC had any of the metadata that was asked for.
    any_metadata: bool,
    done: Option<oneshot::Sender<()>>,
}

impl Stats {
    /// Notes that an RPC is sent.
    pub(crate) fn begin(&self, method: Method) -> RpcId {
        let mut inner = self.lock();
        inner.totals.entry(method).or_default().rpcs_started += 1;
        let id = RpcId(inner.sent);
        inner.sent += 1;
        id
    }

    /// Notes its end.
    pub(crate) fn end(&self, id: RpcId, method: Method, outcome: &Outcome) {
        let mut inner = self.lock();
        *inner.totals.entry(method).or_default().result.entry(outcome.status.code().into()).or_default() += 1;
        for observer in inner.observers.values_mut() {
            observer.note(id, method, outcome);
        }
    }

    /// Begins to observe the next RPCs. The guard ends it.
    fn observe(&self, count: i32, keys: Vec<String>) -> (Observing<'_>, oneshot::Receiver<()>) {
        let mut inner = self.lock();
        let (done, is_done) = oneshot::channel();
        let observer = Observer {
            first: inner.sent,
            end: inner.sent.saturating_add(u64::try_from(count).unwrap_or(0)),
            keys: keys.into_iter().map(|key| key.to_ascii_lowercase()).collect(),
            unfinished: count,
            seen: LoadBalancerStatsResponse::default(),
            any_metadata: false,
            done: Some(done),
        };
        inner.last_observer += 1;
        let key = inner.last_observer;
        inner.observers.insert(key, observer);
        (Observing { stats: self, key }, is_done)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl LoadBalancerStatsService for Stats {
    async fn get_client_stats(
        &self,
        request: Request<LoadBalancerStatsRequest>,
    ) -> Result<Response<LoadBalancerStatsResponse>, Status> {
        let LoadBalancerStatsRequest { num_rpcs, timeout_sec, metadata_keys } = request.into_inner();
        let timeout = u64::try_from(timeout_sec).map(Duration::from_secs);
        let (Ok(timeout), 0..) = (timeout, num_rpcs) else {
            return Err(Status::invalid_argument(format!(
                "num_rpcs {num_rpcs}, timeout_sec {timeout_sec}: expected 0 or more"
            )));
        };
        let (observing, done) = self.observe(num_rpcs, metadata_keys);
        if num_rpcs > 0 {
            // Late ones count as failures; that is what the timeout is for.
            let _ = tokio::time::timeout(timeout, done).await;
        }
        Ok(Response::new(observing.finish()))
    }

    async fn get_client_accumulated_stats(
        &self,
        _: Request<LoadBalancerAccumulatedStatsRequest>,
    ) -> Result<Response<LoadBalancerAccumulatedStatsResponse>, Status> {
        let totals = self.lock().totals.clone();
        let mut response = LoadBalancerAccumulatedStatsResponse::default();
        for (method, stats) in totals {
            let name = method.constant().to_owned();
            let ok = stats.result.get(&Code::Ok.into()).copied().unwrap_or(0);
            let ended: i32 = stats.result.values().sum();
            response.num_rpcs_started_by_method.insert(name.clone(), stats.rpcs_started);
            response.num_rpcs_succeeded_by_method.insert(name.clone(), ok);
            response.num_rpcs_failed_by_method.insert(name.clone(), ended - ok);
            response.stats_per_method.insert(name, stats);
        }
        Ok(Response::new(response))
    }
}

/// Takes the observer away when its request is answered or given up.
struct Observing<'a> {
    stats: &'a Stats,
    key: u64,
}

impl Observing<'_> {
    fn finish(self) -> LoadBalancerStatsResponse {
        self.stats.lock().observers.remove(&self.key).map(Observer::into_response).unwrap_or_default()
    }
}

impl Drop for Observing<'_> {
    fn drop(&mut self) {
        self.stats.lock().observers.remove(&self.key);
    }
}

// === impl Observer ===

impl Observer {
    fn note(&mut self, id: RpcId, method: Method, outcome: &Outcome) {
        if !(self.first..self.end).contains(&id.0) {
            return;
        }
        match &outcome.peer {
            None => self.seen.num_failures += 1,
            Some(peer) => {
                *self.seen.rpcs_by_peer.entry(peer.clone()).or_default() += 1;
                let by_method = self.seen.rpcs_by_method.entry(method.name().to_owned()).or_default();
                *by_method.rpcs_by_peer.entry(peer.clone()).or_default() += 1;
                if !self.keys.is_empty() {
                    let metadata = self.metadata(outcome);
                    self.any_metadata |= !metadata.is_empty();
                    let by_peer: &mut MetadataByPeer = self.seen.metadatas_by_peer.entry(peer.clone()).or_default();
                    by_peer.rpc_metadata.push(RpcMetadata { metadata });
                }
            }
        }
        self.unfinished -= 1;
        if self.unfinished == 0
            && let Some(done) = self.done.take()
        {
            // Whoever asked may have given up.
            let _ = done.send(());
        }
    }

    fn metadata(&self, outcome: &Outcome) -> Vec<MetadataEntry> {
        let initial = entries(&outcome.initial, MetadataType::Initial);
        let trailing = entries(&outcome.trailing, MetadataType::Trailing);
        let wanted = |entry: &MetadataEntry| self.keys.iter().any(|key| key == "*" || *key == entry.key);
        initial.chain(trailing).filter(wanted).collect()
    }

    fn into_response(self) -> LoadBalancerStatsResponse {
        let mut response = self.seen;
        response.num_failures += self.unfinished;
        if !self.any_metadata {
            response.metadatas_by_peer.clear();
        }
        response
    }
}

fn entries(metadata: &MetadataMap, kind: MetadataType) -> impl Iterator<Item = MetadataEntry> {
    metadata.iter().map(move |pair| {
        let (key, value) = match pair {
            KeyAndValueRef::Ascii(key, value) => (key.as_str(), value.as_encoded_bytes()),
            KeyAndValueRef::Binary(key, value) => (key.as_str(), value.as_encoded_bytes()),
        };
        let value = String::from_utf8_lossy(value).into_owned();
        MetadataEntry { key: key.to_owned(), value, r#type: kind.into() }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_block_is_the_next_rpcs_that_are_sent() {
        // I-7, I-8: RPCs under way when the request comes are not part of it.
        let stats = Arc::new(Stats::default());
        let earlier = stats.begin(Method::Unary);
        let asked = ask(&stats, 2, 10, &[]);
        let (first, second) = (stats.begin(Method::Unary), stats.begin(Method::Empty));
        let later = stats.begin(Method::Unary);
        stats.end(earlier, Method::Unary, &outcome(Some("early"), Code::Ok));
        stats.end(later, Method::Unary, &outcome(Some("late"), Code::Ok));
        stats.end(second, Method::Empty, &outcome(Some("b"), Code::Ok));
        stats.end(first, Method::Unary, &outcome(None, Code::Unavailable));
        let response = asked.await;
        assert_eq!(response.rpcs_by_peer, [("b".to_owned(), 1)].into());
        assert_eq!(response.num_failures, 1);
        assert_eq!(response.rpcs_by_method["EmptyCall"].rpcs_by_peer, [("b".to_owned(), 1)].into());
        assert!(!response.rpcs_by_method.contains_key("UnaryCall"));
        assert!(stats.lock().observers.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn rpcs_that_are_not_done_in_time_are_failures() {
        // I-8
        let stats = Arc::new(Stats::default());
        let asked = ask(&stats, 3, 5, &[]);
        let id = stats.begin(Method::Unary);
        stats.end(id, Method::Unary, &outcome(Some("a"), Code::Ok));
        let response = asked.await;
        assert_eq!((response.rpcs_by_peer["a"], response.num_failures), (1, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn observers_do_not_disturb_each_other() {
        // I-11
        let stats = Arc::new(Stats::default());
        let one = ask(&stats, 1, 5, &[]);
        let two = ask(&stats, 2, 5, &[]);
        for name in ["a", "b"] {
            let id = stats.begin(Method::Unary);
            stats.end(id, Method::Unary, &outcome(Some(name), Code::Ok));
        }
        assert_eq!(one.await.rpcs_by_peer.len(), 1);
        assert_eq!(two.await.rpcs_by_peer.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn metadata_is_reported_by_key_and_place() {
        // I-10
        let stats = Arc::new(Stats::default());
        let (some, none) = (ask(&stats, 2, 5, &["X-Start", "x-end"]), ask(&stats, 2, 5, &["absent"]));
        for with in [true, false] {
            let id = stats.begin(Method::Unary);
            let mut outcome = outcome(Some("a"), Code::Ok);
            if with {
                outcome.initial.insert("x-start", "1".parse().unwrap());
                outcome.trailing.insert("x-end", "2".parse().unwrap());
            }
            stats.end(id, Method::Unary, &outcome);
        }
        let rpcs = &some.await.metadatas_by_peer["a"].rpc_metadata;
        let entries: Vec<_> = rpcs[0].metadata.iter().map(|e| (e.key.as_str(), e.value.as_str(), e.r#type)).collect();
        assert_eq!(entries, [("x-start", "1", 1), ("x-end", "2", 2)]);
        assert!(rpcs[1].metadata.is_empty());
        assert!(none.await.metadatas_by_peer.is_empty());
    }

    #[tokio::test]
    async fn totals_count_at_the_start_and_by_status() {
        // I-12, I-13
        let stats = Stats::default();
        for code in [Code::Ok, Code::Ok, Code::Unavailable] {
            let id = stats.begin(Method::Unary);
            stats.end(id, Method::Unary, &outcome(None, code));
        }
        stats.begin(Method::Unary);
        let request = Request::new(LoadBalancerAccumulatedStatsRequest {});
        let response = stats.get_client_accumulated_stats(request).await.unwrap().into_inner();
        let unary = &response.stats_per_method["UNARY_CALL"];
        assert_eq!((unary.rpcs_started, &unary.result), (4, &[(0, 2), (14, 1)].into()));
        assert_eq!(response.num_rpcs_started_by_method["UNARY_CALL"], 4);
        assert_eq!(response.num_rpcs_succeeded_by_method["UNARY_CALL"], 2);
        assert_eq!(response.num_rpcs_failed_by_method["UNARY_CALL"], 1);
    }

    /// Asks; the block begins before this returns.
    fn ask(
        stats: &Arc<Stats>,
        num_rpcs: i32,
        timeout_sec: i32,
        keys: &[&str],
    ) -> impl Future<Output = LoadBalancerStatsResponse> + use<> {
        let metadata_keys = keys.iter().map(|&key| key.to_owned()).collect();
        let request = Request::new(LoadBalancerStatsRequest { num_rpcs, timeout_sec, metadata_keys });
        let stats = stats.clone();
        let mut asked = Box::pin(async move { stats.get_client_stats(request).await.unwrap().into_inner() });
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(asked.as_mut().poll(&mut cx).is_pending());
        asked
    }

    fn outcome(peer: Option<&str>, code: Code) -> Outcome {
        Outcome {
            status: Status::new(code, ""),
            peer: peer.map(str::to_owned),
            initial: MetadataMap::new(),
            trailing: MetadataMap::new(),
        }
    }
}
