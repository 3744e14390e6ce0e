//! The five methods of the test service.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming,
    metadata::{Ascii, MetadataMap, MetadataValue},
};

use crate::{
    behavior,
    proto::{
        EchoStatus, Empty, Payload, PayloadType, ResponseParameters, SimpleRequest, SimpleResponse,
        StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse,
        test_service_server::{TestService, TestServiceServer},
    },
};

/// The response metadata key that names the host (I-16).
pub const HOSTNAME_KEY: &str = "hostname";

/// The largest payload that a response may ask for. More is INVALID_ARGUMENT: a request of ten bytes must not be able
/// to take the server's memory.
pub const MAX_RESPONSE_SIZE: i32 = 16 << 20;

/// The test service alone, for a server that has other services on its port, too. `None` if `hostname` cannot be the
/// value of a header.
pub fn service(id: &str, hostname: &str) -> Option<TestServiceServer<impl TestService>> {
    Service::new(id, hostname).map(TestServiceServer::new)
}

/// One server's implementation; clones share the counter.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    id: Arc<str>,
    hostname: Arc<str>,
    hostname_header: MetadataValue<Ascii>,
    requests: Arc<AtomicU64>,
}

impl Service {
    /// `None` if `hostname` cannot be the value of a header.
    pub(crate) fn new(id: &str, hostname: &str) -> Option<Self> {
        let hostname_header = hostname.parse().ok()?;
        Some(Self { id: id.into(), hostname: hostname.into(), hostname_header, requests: Arc::default() })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn hostname(&self) -> &str {
        &self.hostname
    }

    /// How many calls have begun so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Counts the call and lets it suffer what it asked for.
    async fn begin(&self, metadata: &MetadataMap) -> Result<(), Status> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        behavior::apply(metadata, &self.hostname).await
    }

    fn respond<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        response.metadata_mut().insert(HOSTNAME_KEY, self.hostname_header.clone());
        response
    }
}

#[tonic::async_trait]
impl TestService for Service {
    type StreamingOutputCallStream = ReceiverStream<Result<StreamingOutputCallResponse, Status>>;
    type FullDuplexCallStream = ReceiverStream<Result<StreamingOutputCallResponse, Status>>;

    async fn empty_call(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.begin(request.metadata()).await?;
        Ok(self.respond(Empty {}))
    }

    async fn unary_call(&self, request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
        self.begin(request.metadata()).await?;
        let request = request.into_inner();
        echo_status(request.response_status)?;
        Ok(self.respond(SimpleResponse {
            payload: Some(payload(request.response_size)?),
            // Always: interop clients expect it without asking for it (I-16).
            server_id: self.id.to_string(),
            hostname: self.hostname.to_string(),
            ..SimpleResponse::default()
        }))
    }

    async fn streaming_output_call(
        &self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Self::StreamingOutputCallStream>, Status> {
        self.begin(request.metadata()).await?;
        let (responses, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            let end = answer(request.into_inner(), &responses).await;
            finish(end, &responses).await;
        });
        Ok(self.respond(ReceiverStream::new(stream)))
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        self.begin(request.metadata()).await?;
        let mut requests = request.into_inner();
        let mut aggregated_payload_size = 0i32;
        while let Some(request) = requests.message().await? {
            let size = request.payload.map_or(0, |payload| payload.body.len());
            aggregated_payload_size = aggregated_payload_size.saturating_add(size.try_into().unwrap_or(i32::MAX));
        }
        Ok(self.respond(StreamingInputCallResponse { aggregated_payload_size }))
    }

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Self::FullDuplexCallStream>, Status> {
        self.begin(request.metadata()).await?;
        let mut requests = request.into_inner();
        let (responses, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            let end = async {
                while let Some(request) = requests.message().await? {
                    answer(request, &responses).await?;
                }
                Ok(())
            };
            finish(end.await, &responses).await;
        });
        Ok(self.respond(ReceiverStream::new(stream)))
    }
}

type Responses = mpsc::Sender<Result<StreamingOutputCallResponse, Status>>;

/// Sends the responses that one request asks for, until the caller hangs up.
async fn answer(request: StreamingOutputCallRequest, responses: &Responses) -> Result<(), Status> {
    for ResponseParameters { size, interval_us, .. } in request.response_parameters {
        let payload = payload(size)?;
        let interval = Duration::from_micros(u64::try_from(interval_us).unwrap_or(0));
        tokio::select! {
            () = responses.closed() => return Err(Status::cancelled("the caller hung up")),
            () = tokio::time::sleep(interval) => {}
        }
        let response = StreamingOutputCallResponse { payload: Some(payload) };
        responses.send(Ok(response)).await.map_err(|_| Status::cancelled("the caller hung up"))?;
    }
    echo_status(request.response_status)
}

/// Ends a stream of responses: by falling silent, or with the error.
async fn finish(end: Result<(), Status>, responses: &Responses) {
    if let Err(status) = end {
        // Nobody is there to hear of the error if the caller hung up.
        let _ = responses.send(Err(status)).await;
    }
}

fn payload(size: i32) -> Result<Payload, Status> {
    match usize::try_from(size) {
        Ok(bytes) if size <= MAX_RESPONSE_SIZE => {
            Ok(Payload { r#type: PayloadType::Compressable.into(), body: vec![b'0'; bytes] })
        }
        _ => Err(Status::invalid_argument(format!("response size {size}: expected 0 to {MAX_RESPONSE_SIZE}"))),
    }
}

/// The error that the request wants to see, if any.
fn echo_status(wanted: Option<EchoStatus>) -> Result<(), Status> {
    match wanted {
        Some(EchoStatus { code, message }) if code != 0 => Err(Status::new(Code::from_i32(code), message)),
        _ => Ok(()),
    }
}
