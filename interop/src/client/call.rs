//! One RPC, to its status, with the metadata of both ends of the response.

use std::error::Error as StdError;
use std::time::Duration;

use http_body::Body as HttpBody;
use mainstay_testservice::HOSTNAME_KEY;
use mainstay_testservice::proto::{Empty, Payload, SimpleRequest, SimpleResponse};
use prost::Message;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// The kinds of RPCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Method {
    Unary,
    Empty,
}

/// Where RPCs go.
#[derive(Clone)]
pub(crate) enum Target {
    Xds(mainstay::Channel),
    Plain(tonic::transport::Channel),
    /// There is no channel: every RPC fails for the same reason.
    Broken(Status),
}

/// An RPC to be made.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) method: Method,
    pub(crate) metadata: MetadataMap,
    pub(crate) timeout: Duration,
    pub(crate) request_size: usize,
    pub(crate) response_size: i32,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: Status,
    pub(crate) peer: Option<String>,
    pub(crate) initial: MetadataMap,
    pub(crate) trailing: MetadataMap,
}

impl Method {
    /// Its name on the command line and in statistics by peer.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "UnaryCall",
            Self::Empty => "EmptyCall",
        }
    }

    /// Its name in accumulated statistics (I-12).
    pub(crate) fn constant(self) -> &'static str {
        match self {
            Self::Unary => "UNARY_CALL",
            Self::Empty => "EMPTY_CALL",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        [Self::Unary, Self::Empty].into_iter().find(|method| method.name() == name)
    }
}

impl Target {
    /// Makes the RPC. Ends at its deadline at the latest.
    pub(crate) async fn call(self, plan: Plan) -> Outcome {
        let timeout = plan.timeout;
        let call = async {
            match self {
                Self::Xds(channel) => call(channel, plan).await,
                Self::Plain(channel) => call(channel, plan).await,
                Self::Broken(status) => Outcome::failed(status),
            }
        };
        tokio::time::timeout(timeout, call)
            .await
            .unwrap_or_else(|_| Outcome::failed(Status::deadline_exceeded(format!("no answer within {timeout:?}"))))
    }
}

impl Outcome {
    fn failed(status: Status) -> Self {
        Self { status, peer: None, initial: MetadataMap::new(), trailing: MetadataMap::new() }
    }
}

async fn call<S>(service: S, plan: Plan) -> Outcome
where
    S: GrpcService<Body>,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
{
    let payload = Payload { body: vec![b'0'; plan.request_size], ..Payload::default() };
    match plan.method {
        Method::Empty => exchange(service, EMPTY_CALL, plan, Empty {}, |_: &Empty| None).await,
        Method::Unary => {
            let request =
                SimpleRequest { response_size: plan.response_size, payload: Some(payload), ..Default::default() };
            let hostname = |response: &SimpleResponse| Some(response.hostname.clone()).filter(|name| !name.is_empty());
            exchange(service, UNARY_CALL, plan, request, hostname).await
        }
    }
}

/// As a stream of one message: only so are headers and trailers told apart (I-10).
async fn exchange<S, M, R>(
    service: S,
    path: &'static str,
    plan: Plan,
    message: M,
    hostname: impl FnOnce(&R) -> Option<String>,
) -> Outcome
where
    S: GrpcService<Body>,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::ResponseBody: HttpBody<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as HttpBody>::Error: Into<Box<dyn StdError + Send + Sync>> + Send,
    M: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = Grpc::new(service);
    if let Err(error) = grpc.ready().await {
        return Outcome::failed(Status::from_error(error.into()));
    }
    let mut request = Request::new(message);
    *request.metadata_mut() = plan.metadata;
    request.set_timeout(plan.timeout);
    let codec = ProstCodec::<M, R>::default();
    let response = match grpc.server_streaming(request, PathAndQuery::from_static(path), codec).await {
        Ok(response) => response,
        Err(status) => {
            // Headers and status came as one.
            let trailing = status.metadata().clone();
            return Outcome { peer: peer(&trailing), status, initial: MetadataMap::new(), trailing };
        }
    };
    let (initial, mut messages, _) = response.into_parts();
    let answer = match messages.message().await {
        Ok(Some(answer)) => answer,
        Ok(None) => {
            let status = Status::new(Code::Internal, "the server answered OK without a message");
            return Outcome { peer: peer(&initial), status, initial, trailing: MetadataMap::new() };
        }
        Err(status) => {
            let trailing = status.metadata().clone();
            return Outcome { peer: peer(&initial), status, initial, trailing };
        }
    };
    let (status, trailing) = match messages.trailers().await {
        Ok(trailers) => (Status::ok(""), trailers.unwrap_or_default()),
        Err(status) => {
            let trailing = status.metadata().clone();
            (status, trailing)
        }
    };
    let peer = peer(&initial).or_else(|| hostname(&answer).filter(|_| status.code() == Code::Ok));
    Outcome { status, peer, initial, trailing }
}

/// The host that answered, by its own word (I-9).
fn peer(metadata: &MetadataMap) -> Option<String> {
    Some(metadata.get(HOSTNAME_KEY)?.to_str().ok()?.to_owned())
}

const UNARY_CALL: &str = "/grpc.testing.TestService/UnaryCall";
const EMPTY_CALL: &str = "/grpc.testing.TestService/EmptyCall";
