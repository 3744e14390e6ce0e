//! The life of one RPC: decide, perhaps wait, send.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use mainstay_lb::{Chosen, Decision, Ending, Failure, Listeners, Rpc};
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::body::{Held, ResponseBody};
use crate::channel::WaitForReady;
use crate::deadline;
use crate::failure;
use crate::hub::{ClusterRef, Hub};
use crate::ledger;
use crate::random::Random;
use crate::request::{Request, RequestBody};

/// Carries one RPC to the headers of its response; the body does the rest.
pub(crate) async fn run(
    hub: Arc<Hub>,
    wait_for_ready: bool,
    request: http::Request<Body>,
) -> Result<http::Response<ResponseBody>, Status> {
    let timeout = deadline::requested(request.headers());
    let mut call = Call {
        start: timeout.map(|_| Instant::now()),
        timeout,
        wait_for_ready: request.extensions().get::<WaitForReady>().map_or(wait_for_ready, |wait| wait.0),
        hub: &hub,
    };
    let on_channel = hub.shared.books.ledger.begin();
    let mut request = Request::new(request);
    let mut refused = false;
    loop {
        let way = call.choose(Rpc { path: request.path(), headers: request.headers() }).await?;
        let address = way.address;
        match call.send(way, &mut request).await? {
            Sent::Answered(answer) => {
                request.commit();
                let Answer { response, timer, listeners, on_subchannel } = answer;
                let held = Held { listeners, on_channel, on_subchannel };
                return Ok(ResponseBody::of(response, address, timer, held));
            }
            // It never left, or never reached the application, as it met a GOAWAY: it is decided anew. An RPC
            // that left is sent again only once (A6).
            Sent::Returned => {}
            Sent::Refused(_) if !refused => refused = true,
            Sent::Refused(error) => return Err(failure::transport(error, address)),
        }
    }
}

struct Call<'a> {
    /// When it began. Most RPCs have no deadline and never look at the clock.
    start: Option<Instant>,
    /// What the caller asked for.
    timeout: Option<Duration>,
    wait_for_ready: bool,
    hub: &'a Hub,
}

/// Where an RPC goes, taken out of the snapshot.
struct Way {
    sender: SendRequest<RequestBody>,
    authority: Option<Authority>,
    deadline: Option<Instant>,
    listeners: Listeners,
    on_subchannel: ledger::Call,
    cluster: Arc<str>,
    address: SocketAddr,
}

enum Sent {
    Answered(Answer),
    /// The connection was closed before the request left.
    Returned,
    /// The endpoint said that it did not process the request.
    Refused(hyper::Error),
}

/// The headers of a response, and what its body goes on with.
struct Answer {
    response: http::Response<Incoming>,
    timer: Option<Pin<Box<Sleep>>>,
    listeners: Listeners,
    on_subchannel: ledger::Call,
}

enum Step {
    Go(Way),
    Wait(Failure),
}

impl Call<'_> {
    /// Decides from the newest snapshot; waits for the next one where it must.
    async fn choose(&mut self, rpc: Rpc<'_>) -> Result<Way, Status> {
        let mut chosen = Chosen::default();
        match self.decide(rpc, &mut chosen) {
            Ok(Step::Go(way)) => Ok(way),
            // In a box, so that RPCs that need not wait have a small future.
            Ok(Step::Wait(_)) => Box::pin(self.wait(rpc, &mut chosen)).await,
            Err(failure) => {
                // A caller that tries again and again must leave time for the connections to be made.
                tokio::task::coop::consume_budget().await;
                Err(failure)
            }
        }
    }

    async fn wait(&mut self, rpc: Rpc<'_>, chosen: &mut Chosen) -> Result<Way, Status> {
        self.start();
        // Listen first, then look again: a snapshot that came in between is not missed.
        let mut published = self.hub.shared.published.subscribe();
        let mut held: Option<ClusterRef<'_>> = None;
        loop {
            published.mark_unchanged();
            let reason = match self.decide(rpc, chosen)? {
                Step::Go(way) => return Ok(way),
                Step::Wait(reason) => reason,
            };
            if let Some(cluster) = chosen.cluster()
                && !held.as_ref().is_some_and(|held| held.is_of(cluster))
            {
                held = Some(ClusterRef::new(self.hub, cluster));
            }
            let next = published.changed();
            match self.deadline(None) {
                None => drop(next.await),
                Some(at) => {
                    if tokio::time::timeout_at(at, next).await.is_err() {
                        return Err(self.expired(&format!("before it could be sent: {}", self.explain(&reason))));
                    }
                }
            }
        }
    }

    fn decide(&mut self, rpc: Rpc<'_>, chosen: &mut Chosen) -> Result<Step, Status> {
        let snapshot = self.hub.shared.snapshot.load();
        match snapshot.decide_again(rpc, chosen, &mut Random) {
            Decision::Send(to) => {
                let Some(sender) = to.subchannel.sender() else {
                    // It went away this very moment; the next snapshot knows.
                    return Ok(Step::Wait(Failure::unavailable(format!(
                        "connection to {} was lost",
                        to.subchannel.address()
                    ))));
                };
                Ok(Step::Go(Way {
                    sender,
                    authority: to.authority.and_then(|authority| Authority::try_from(authority).ok()),
                    deadline: self.deadline(to.limit),
                    cluster: Arc::clone(to.cluster),
                    address: to.subchannel.address(),
                    listeners: to.listeners,
                    on_subchannel: to.subchannel.begin(),
                }))
            }
            Decision::Wait(reason, wake) => {
                if let Some(wake) = wake {
                    self.hub.inspector.wake(wake);
                }
                Ok(Step::Wait(reason))
            }
            Decision::Fail(reason) if self.wait_for_ready => Ok(Step::Wait(reason)),
            Decision::Fail(reason) | Decision::Drop(reason) => Err(self.failed(&reason)),
        }
    }

    async fn send(&self, way: Way, request: &mut Request) -> Result<Sent, Status> {
        let Way { mut sender, authority, deadline, listeners, on_subchannel, cluster, address } = way;
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(self.expired("before it could be sent"));
        }
        let authority = authority.unwrap_or_else(|| self.hub.authority.clone());
        let Some(attempt) = request.attempt(self.hub.scheme.clone(), authority, left.map(deadline::header_value))
        else {
            return Err(Status::unavailable("connection lost, and the request is too large to be sent again"));
        };
        let answer = sender.try_send_request(attempt);
        // A request that meets the end of its connection may stay in the queue until all senders are gone.
        drop(sender);
        let mut timer = deadline.map(|at| Box::pin(tokio::time::sleep_until(at)));
        let outcome = tokio::select! {
            biased;
            outcome = answer => outcome,
            () = due(&mut timer) => {
                listeners.end(Ending { code: Code::DeadlineExceeded as u8, trailers: None });
                return Err(self.expired(&format!("while {address} of cluster {cluster:?} had not answered")));
            }
        };
        match outcome {
            Ok(response) => Ok(Sent::Answered(Answer { response, timer, listeners, on_subchannel })),
            Err(error) if error.message().is_some() => Ok(Sent::Returned),
            Err(error) => match error.into_error() {
                error if failure::is_refusal(&error) => Ok(Sent::Refused(error)),
                error => {
                    let failed = failure::transport(error, address);
                    listeners.end(Ending { code: failed.code() as u8, trailers: None });
                    Err(failed)
                }
            },
        }
    }

    /// The earlier of what the caller and the route allow (L-40).
    fn deadline(&mut self, limit: Option<Duration>) -> Option<Instant> {
        let timeout = self.timeout;
        let mut at = |timeout: Option<Duration>| timeout.and_then(|timeout| deadline::after(self.start(), timeout));
        deadline::earlier(at(timeout), at(limit))
    }

    fn start(&mut self) -> Instant {
        *self.start.get_or_insert_with(Instant::now)
    }

    fn expired(&self, when: &str) -> Status {
        Status::deadline_exceeded(format!("RPC to {} ran out of time {when}", self.hub.target()))
    }

    /// What an RPC waited for, and where that stands.
    fn explain(&self, reason: &Failure) -> String {
        match self.hub.shared.progress.load().as_deref().filter(|_| reason.no_config) {
            Some(progress) => format!("{}; {progress}", reason.message),
            None => reason.message.clone(),
        }
    }

    fn failed(&self, reason: &Failure) -> Status {
        let context = if reason.no_config { "no usable configuration for" } else { "RPC to" };
        let text = format!("{context} {}: {}", self.hub.target(), reason.message);
        Status::new(Code::from(i32::from(reason.code)), text)
    }
}

/// Ends when the timer does; never without one.
async fn due(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}
