//! The life of one RPC: decide, perhaps wait, send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::uri::{Authority, PathAndQuery};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use mainstay_lb::{Chosen, Decision, Failure, InFlight, Rpc};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::body::ResponseBody;
use crate::channel::WaitForReady;
use crate::deadline::{self, GRPC_TIMEOUT};
use crate::failure;
use crate::hub::Hub;
use crate::random::Random;

/// Carries one RPC to the headers of its response; the body does the rest.
pub(crate) async fn run(
    hub: Arc<Hub>,
    wait_for_ready: bool,
    mut request: http::Request<Body>,
) -> Result<http::Response<ResponseBody>, Status> {
    let call = Call {
        start: Instant::now(),
        timeout: deadline::requested(request.headers()),
        wait_for_ready: request.extensions().get::<WaitForReady>().map_or(wait_for_ready, |wait| wait.0),
        hub: &hub,
    };
    // A request that never left comes back and is decided anew, for instance after a GOAWAY.
    loop {
        let rpc = Rpc { path: request.uri().path(), headers: request.headers() };
        let way = call.choose(rpc).await?;
        let (address, deadline) = (way.address, way.deadline);
        match call.send(way, request).await? {
            Sent::Answered(response, in_flight) => {
                return Ok(response.map(|incoming| ResponseBody::new(incoming, address, deadline, in_flight)));
            }
            Sent::Returned(unsent) => request = *unsent,
        }
    }
}

struct Call<'a> {
    start: Instant,
    /// What the caller asked for.
    timeout: Option<Duration>,
    wait_for_ready: bool,
    hub: &'a Hub,
}

/// Where an RPC goes, taken out of the snapshot.
struct Way {
    sender: SendRequest<Body>,
    authority: Option<Authority>,
    deadline: Option<Instant>,
    in_flight: Option<InFlight>,
    cluster: String,
    address: SocketAddr,
}

enum Sent {
    Answered(http::Response<Incoming>, Option<InFlight>),
    /// The connection was closed before the request left.
    Returned(Box<http::Request<Body>>),
}

enum Step {
    Go(Way),
    Wait(Failure),
}

impl Call<'_> {
    /// Decides from the newest snapshot; waits for the next one where it must.
    async fn choose(&self, rpc: Rpc<'_>) -> Result<Way, Status> {
        let mut chosen = Chosen::default();
        if let Step::Go(way) = self.decide(rpc, &mut chosen)? {
            return Ok(way);
        }
        // Listen first, then look again: a snapshot that came in between is not missed.
        let mut published = self.hub.shared.published.subscribe();
        loop {
            published.mark_unchanged();
            let reason = match self.decide(rpc, &mut chosen)? {
                Step::Go(way) => return Ok(way),
                Step::Wait(reason) => reason,
            };
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

    fn decide(&self, rpc: Rpc<'_>, chosen: &mut Chosen) -> Result<Step, Status> {
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
                    cluster: to.cluster.to_owned(),
                    address: to.subchannel.address(),
                    in_flight: to.in_flight,
                }))
            }
            Decision::Wait(reason) => Ok(Step::Wait(reason)),
            Decision::Fail(reason) if self.wait_for_ready => Ok(Step::Wait(reason)),
            Decision::Fail(reason) | Decision::Drop(reason) => Err(self.failed(&reason)),
        }
    }

    async fn send(&self, way: Way, mut request: http::Request<Body>) -> Result<Sent, Status> {
        let Way { mut sender, authority, deadline, in_flight, cluster, address } = way;
        self.address(&mut request, authority);
        let Some(deadline) = deadline else {
            return sent(sender.try_send_request(request).await, address, in_flight);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.expired("before it could be sent"));
        }
        request.headers_mut().insert(GRPC_TIMEOUT, deadline::header_value(left));
        match tokio::time::timeout_at(deadline, sender.try_send_request(request)).await {
            Ok(outcome) => sent(outcome, address, in_flight),
            Err(_) => Err(self.expired(&format!("while {address} of cluster {cluster:?} had not answered"))),
        }
    }

    /// Completes the URI with scheme and `:authority`.
    fn address(&self, request: &mut http::Request<Body>, authority: Option<Authority>) {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.hub.scheme.clone());
        parts.authority = Some(authority.unwrap_or_else(|| self.hub.authority.clone()));
        parts.path_and_query =
            Some(request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.uri_mut() = http::Uri::from_parts(parts).expect("scheme, authority and path make a URI");
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
    }

    /// The earlier of what the caller and the route allow (L-40).
    fn deadline(&self, limit: Option<Duration>) -> Option<Instant> {
        let at = |timeout: Option<Duration>| timeout.and_then(|timeout| deadline::after(self.start, timeout));
        deadline::earlier(at(self.timeout), at(limit))
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

fn sent(
    outcome: Result<http::Response<Incoming>, hyper::client::conn::TrySendError<http::Request<Body>>>,
    address: SocketAddr,
    in_flight: Option<InFlight>,
) -> Result<Sent, Status> {
    match outcome {
        Ok(response) => Ok(Sent::Answered(response, in_flight)),
        Err(mut error) => match error.take_message() {
            Some(unsent) => Ok(Sent::Returned(Box::new(unsent))),
            None => Err(failure::transport(error.into_error(), address)),
        },
    }
}

const AGENT: HeaderValue = HeaderValue::from_static(concat!("mainstay/", env!("CARGO_PKG_VERSION")));
