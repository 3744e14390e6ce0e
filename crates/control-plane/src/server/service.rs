//! The gRPC service: every call becomes a stream task.
//!
//! Like the code that tonic generates for a service, but for the responses: they come as bytes (FB-37).

use std::convert::Infallible;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};

use crate::delta::Delta;
use crate::encoding::Encoded;
use crate::event::{Event, Refusal};
use crate::protocol::Protocol;
use crate::server::carrier::Carrier;
use crate::server::stream::{DRAINING, Opened, Stream};
use crate::server::{MAX_REQUEST_SIZE, Shared};
use crate::sotw::Sotw;

/// The aggregated discovery service of one generation of a server.
#[derive(Clone, Debug)]
pub(super) struct Ads {
    shared: Arc<Shared>,
    generation: u64,
    stream_alive: mpsc::Sender<()>,
}

impl Ads {
    pub(super) fn new(shared: Arc<Shared>, generation: u64, stream_alive: mpsc::Sender<()>) -> Self {
        Self { shared, generation, stream_alive }
    }

    async fn stream<P: Protocol>(self, request: Request<Streaming<P::Request>>, delta: bool) -> Answer {
        let opened = Instant::now();
        let Self { shared, generation, stream_alive } = self;
        let carrier = request.extensions().get::<Carrier>().cloned();
        let carrier = carrier.ok_or_else(|| Status::internal("the request has no connection"))?;
        if let Err((refusal, status)) = admit(&shared, generation).await {
            shared.journal.record(Event::StreamRefused { connection: carrier.id, refusal });
            return Err(status);
        }
        let id = shared.journal.next_stream();
        shared.journal.record(Event::StreamOpened { stream: id, connection: carrier.id, delta });
        // One response in the queue and one in the making: whatever changes meanwhile is part of the next.
        let (responses, body) = mpsc::channel(1);
        let (answered, first_response) = oneshot::channel();
        let late_headers = shared.faults.subscribe().borrow().late_headers;
        let context = Opened { id, delta, generation, carrier, at: opened };
        let stream = Stream::<P>::new(shared, context, responses, answered);
        tokio::spawn(stream.run(request.into_inner(), stream_alive));
        if late_headers {
            // An error is the end of the stream, which the headers may well announce.
            let _ = first_response.await;
        }
        Ok(Response::new(Responses(body)))
    }
}

/// Whether a stream may be opened now, or after a short wait.
async fn admit(shared: &Shared, generation: u64) -> Result<(), (Refusal, Status)> {
    if shared.life.borrow().is_ending(generation) {
        return Err((Refusal::Draining, shared.door.away(DRAINING)));
    }
    shared.control_plane.admit().await.map_err(|why| (Refusal::Closed, shared.door.away(&why)))?;
    shared.door.admit().await
}

type Answer = Result<Response<Responses>, Status>;

/// The responses of a stream, as they come from its task.
struct Responses(mpsc::Receiver<Box<Result<Encoded, Status>>>);

impl tokio_stream::Stream for Responses {
    type Item = Result<Encoded, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx).map(|response| response.map(|response| *response))
    }
}

impl NamedService for Ads {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl<B> Service<http::Request<B>> for Ads
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let ads = self.clone();
        match request.uri().path() {
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources" => {
                let method = Method::<Sotw> { ads, delta: false, protocol: PhantomData };
                Box::pin(async move { Ok(grpc().streaming(method, request).await) })
            }
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
                if self.shared.faults.subscribe().borrow().speaks_delta() =>
            {
                let method = Method::<Delta> { ads, delta: true, protocol: PhantomData };
                Box::pin(async move { Ok(grpc().streaming(method, request).await) })
            }
            method => {
                let status = Status::unimplemented(format!("there is no method {method}"));
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}

/// The method of one variant.
struct Method<P> {
    ads: Ads,
    delta: bool,
    protocol: PhantomData<P>,
}

impl<P: Protocol> StreamingService<P::Request> for Method<P> {
    type Response = Encoded;
    type ResponseStream = Responses;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<P::Request>>) -> Self::Future {
        Box::pin(self.ads.clone().stream::<P>(request, self.delta))
    }
}

fn grpc<T: prost::Message + Default + Send + 'static>() -> Grpc<ReadyBytes<T>> {
    Grpc::new(ReadyBytes(PhantomData)).max_decoding_message_size(MAX_REQUEST_SIZE)
}

/// Requests as messages, responses as bytes.
struct ReadyBytes<T>(PhantomData<T>);

impl<T: prost::Message + Default + Send + 'static> Codec for ReadyBytes<T> {
    type Encode = Encoded;
    type Decode = T;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<T> Encoder for ReadyBytes<T> {
    type Item = Encoded;
    type Error = Status;

    fn encode(&mut self, item: Encoded, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // At once: to grow for the few bytes of the nonce would be to copy the body once more.
        buffer.reserve(item.len());
        item.write(buffer);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        small()
    }
}

impl<T: prost::Message + Default> Decoder for ReadyBytes<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        T::decode(buffer).map(Some).map_err(|error| Status::internal(format!("cannot decode the request: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        small()
    }
}

/// Most streams are quiet most of the time: they keep little room for what may come.
fn small() -> BufferSettings {
    BufferSettings::new(64, 32 << 10)
}
