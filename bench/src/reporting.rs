//! Backends whose answers say how busy they are (A51): the trailers of each bring an ORCA report.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::metadata::BinaryMetadataValue;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::Result;

/// Starts a backend on a free port; it serves as long as the runtime lives.
pub(crate) fn start(id: &str) -> Result<SocketAddr> {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    let address = incoming.local_addr()?;
    let service = mainstay_testservice::service(id, id).ok_or("the name of the backend cannot be a header")?;
    // `rps_fractional` is field 6, `application_utilization` is field 9; both are doubles.
    let field = |number: u8, value: f64| [&[number << 3 | 1][..], &value.to_le_bytes()].concat();
    let report = BinaryMetadataValue::from_bytes(&[field(6, 100.0), field(9, 0.5)].concat());
    let report = HeaderValue::from_bytes(report.as_encoded_bytes())?;
    tokio::spawn(Server::builder().add_service(Reporting { service, report }).serve_with_incoming(incoming));
    Ok(address)
}

/// A service with a report at the end of each answer.
#[derive(Clone)]
struct Reporting<S> {
    service: S,
    report: HeaderValue,
}

impl<S> Service<http::Request<Body>> for Reporting<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (answer, report) = (self.service.call(request), self.report.clone());
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(ReportingBody { body, report }))) })
    }
}

impl<S: NamedService> NamedService for Reporting<S> {
    const NAME: &'static str = S::NAME;
}

struct ReportingBody {
    body: Body,
    report: HeaderValue,
}

impl http_body::Body for ReportingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let report = self.report.clone();
        Pin::new(&mut self.body).poll_frame(cx).map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                trailers.insert("endpoint-load-metrics-bin", report);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
