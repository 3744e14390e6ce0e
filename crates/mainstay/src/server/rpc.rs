//! One RPC: what the control plane says of it, then what the application does with it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use http::uri::PathAndQuery;
use hyper::body::Incoming;
use mainstay_lb::serve::{Decision, Refusal, Request};
use mainstay_lb::{Caller, CallerCertificate, Facts};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tower_service::Service as _;

use super::body::{AnswerBody, ReceivedBody, RunningCall};
use super::generation::Chain;
use super::handlers::{BoxError, Handlers};
use super::nodes::SocketNode;
use super::security::ConnectInfo;
use super::shared::ServerShared;
use crate::certificates::{LeafError, names_of, subject_of};
use crate::code;
use crate::deadline;
use crate::guard;
use crate::peer::Peer;
use crate::random::Random;
use crate::tls::TlsInfo;

/// What is the same for all RPCs of a connection.
pub(super) struct ConnectionFacts {
    pub(super) chain: Arc<Chain>,
    pub(super) local: SocketAddr,
    pub(super) peer: Peer,
    pub(super) caller: CallerIdentity,
    pub(super) info: ConnectInfo,
    pub(super) socket: Arc<SocketNode>,
    pub(super) server: Arc<ServerShared>,
}

/// Who is at the other end of a connection, as rules see it.
pub(super) enum CallerIdentity {
    Plaintext,
    Anonymous,
    Certified(CallerCertificate),
}

/// The service of a connection.
pub(super) struct RpcService {
    facts: Arc<ConnectionFacts>,
    handlers: Handlers,
}

impl RpcService {
    pub(super) fn new(facts: ConnectionFacts, handlers: Handlers) -> Self {
        Self { facts: Arc::new(facts), handlers }
    }
}

impl hyper::service::Service<http::Request<Incoming>> for RpcService {
    type Response = http::Response<AnswerBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    /// Called in the task of the connection, which no panic of the application may end: its code runs in the future.
    fn call(&self, request: http::Request<Incoming>) -> Self::Future {
        let (facts, handlers) = (self.facts.clone(), guard::catch(|| self.handlers.clone()));
        Box::pin(async move {
            let call = facts.begin(&request);
            let response = match handlers {
                Ok(handlers) => facts.answer(handlers, request, &call).await,
                Err(panic) => panicked(&panic),
            };
            Ok(AnswerBody::of(response, call))
        })
    }
}

impl ConnectionFacts {
    fn begin(&self, request: &http::Request<Incoming>) -> RunningCall {
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(service, _)| service);
        let is_known = service.is_some_and(|service| self.server.plan.services.contains(service));
        RunningCall {
            on_server: self.server.node.counters.begin(),
            on_socket: self.socket.counters.begin(),
            observer: self.server.observer.begin(path, is_known, request.headers()),
        }
    }

    async fn answer(
        &self,
        handlers: Handlers,
        request: http::Request<Incoming>,
        call: &RunningCall,
    ) -> http::Response<Body> {
        let (mut head, body) = request.into_parts();
        if let Err(refusal) = self.decide(&head) {
            tracing::debug!(peer = %self.peer.address(), chain = %self.chain.name, %refusal, "an RPC is refused");
            return Status::new(code::to_tonic(refusal.code()), refusal.message()).into_http();
        }
        self.info.insert_into(&mut head.extensions);
        head.extensions.insert(self.peer.clone());
        let deadline = deadline::requested(&mut head.headers).and_then(|left| deadline::after(Instant::now(), left));
        let body = match call.observer.received() {
            None => Body::new(body),
            Some(observer) => Body::new(ReceivedBody { body, observer }),
        };
        let answer = guard::caught(handle(handlers, http::Request::from_parts(head, body)));
        let answered = match deadline {
            None => answer.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, answer).await {
                Ok(answered) => answered,
                Err(_) => return Status::deadline_exceeded("the deadline of the caller has passed").into_http(),
            },
        };
        match answered {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => Status::from_error(error).into_http(),
            Err(panic) => panicked(&panic),
        }
    }

    /// What the control plane says of an RPC (SV-26).
    fn decide(&self, head: &http::request::Parts) -> Result<(), Refusal> {
        let request = Request {
            method: &head.method,
            path: head.uri.path(),
            authority: head.uri.authority().map(http::uri::Authority::as_str),
            headers: &head.headers,
        };
        let routes = self.chain.routes.load();
        match routes.decide(&request, &mut Random) {
            Decision::Refuse(refusal) => Err(refusal),
            Decision::Pass { filters, then, .. } if filters.is_empty() => then,
            Decision::Pass { authority, filters, then } => {
                let facts = Facts {
                    path: head.uri.path_and_query().map_or("", PathAndQuery::as_str),
                    authority,
                    method: head.method.as_str(),
                    headers: &head.headers,
                    local: self.local,
                    peer: self.peer.address(),
                    caller: self.caller.as_caller(),
                };
                let allowed = filters.allows(&facts, &mut |decision| self.chain.audit.tell(decision));
                if allowed { then } else { Err(Refusal::Unauthorized) }
            }
        }
    }
}

impl CallerIdentity {
    /// Of a connection whose handshake is done.
    ///
    /// # Errors
    /// If the certificate cannot be read: rules about its owner could not be kept.
    pub(super) fn of(tls: Option<&TlsInfo>) -> Result<Self, LeafError> {
        let Some(tls) = tls else { return Ok(Self::Plaintext) };
        let Some(certificate) = tls.certificate() else { return Ok(Self::Anonymous) };
        let (names, subject) = (names_of(certificate)?, subject_of(certificate)?);
        Ok(Self::Certified(CallerCertificate { names, subject }))
    }

    fn as_caller(&self) -> Caller<'_> {
        match self {
            Self::Plaintext => Caller::Plaintext,
            Self::Anonymous => Caller::Anonymous,
            Self::Certified(certificate) => Caller::Certified(certificate),
        }
    }
}

async fn handle(mut handlers: Handlers, request: http::Request<Body>) -> Result<http::Response<Body>, BoxError> {
    std::future::poll_fn(|cx| handlers.poll_ready(cx)).await?;
    handlers.call(request).await
}

/// A handler or a layer panicked: its RPC fails, and nothing else.
fn panicked(panic: &guard::Panic) -> http::Response<Body> {
    tracing::error!(%panic, "a handler panicked");
    Status::internal("the handler panicked").into_http()
}
