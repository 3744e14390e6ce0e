//! The services of an application behind one type, with the layers around them.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tonic::body::Body;
use tower_service::Service;

/// The services of a [`Server`](crate::Server) with some of its layers, as the next layer sees them: a tower service.
///
/// Layers that are written for any service need not know it. See [`ServerBuilder::layer`](crate::ServerBuilder::layer).
pub struct Handlers(Box<dyn Erased>);

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, BoxError>> + Send>>;

/// Wraps handlers into a layer.
pub(super) type Wrap = Box<dyn FnOnce(Handlers) -> Handlers + Send>;

trait Erased: Send {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>>;
    fn call(&mut self, request: http::Request<Body>) -> Answer;
    fn clone_box(&self) -> Box<dyn Erased>;
}

struct Typed<S, B> {
    service: S,
    body: PhantomData<fn() -> B>,
}

impl Handlers {
    pub(super) fn new<S, B>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self(Box::new(Typed { service, body: PhantomData }))
    }
}

impl<S, B> Erased for Typed<S, B>
where
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let answer = self.service.call(request);
        // `Body::new` gives back a body that is one already.
        Box::pin(async move { answer.await.map(|response| response.map(Body::new)).map_err(Into::into) })
    }

    fn clone_box(&self) -> Box<dyn Erased> {
        Box::new(Self { service: self.service.clone(), body: PhantomData })
    }
}

impl Service<http::Request<Body>> for Handlers {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        self.0.call(request)
    }
}

impl Clone for Handlers {
    fn clone(&self) -> Self {
        Self(self.0.clone_box())
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handlers").finish_non_exhaustive()
    }
}
