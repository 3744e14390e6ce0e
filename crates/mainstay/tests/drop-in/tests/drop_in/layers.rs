//! tower's layers around a channel.

use std::future::Ready;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use mainstay_testservice::{ATTEMPTS_KEY, BEHAVIOR_KEY};
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic::{Code, Request};
use tower::{ServiceBuilder, ServiceExt};

use crate::{on_both, who};

on_both! {
    async fn a_timeout_ends_a_call(channel) {
        let limited = ServiceBuilder::new().timeout(Duration::from_millis(50)).service(channel);
        let mut client = TestServiceClient::new(limited);
        let status = client.unary_call(behaving("keep-open")).await.unwrap_err();
        assert!(status.message().contains("timed out"), "{status}");
    }

    async fn a_full_channel_sheds_load(channel) {
        let limited = ServiceBuilder::new().load_shed().concurrency_limit(1).service(channel);
        let client = TestServiceClient::new(limited);
        let (mut first, mut second) = (client.clone(), client);
        let mut waiting = pin!(first.unary_call(behaving("keep-open")));
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the backend keeps it open"),
            () = std::future::ready(()) => {}
        }
        let status = second.unary_call(who()).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    }

    async fn calls_wait_in_a_buffer_and_for_a_rate(channel) {
        let buffered = ServiceBuilder::new().buffer(8).rate_limit(1000, Duration::from_secs(1)).service(channel);
        let mut first = TestServiceClient::new(buffered);
        let (mut second, mut third) = (first.clone(), first.clone());
        let answers = tokio::join!(first.unary_call(who()), second.unary_call(who()), third.unary_call(who()));
        for answer in [answers.0, answers.1, answers.2] {
            assert_eq!(answer.unwrap().into_inner().server_id, "one");
        }
    }

    /// Of a service that keeps the request: a body of tonic's is read only once.
    async fn a_retry_layer_sends_a_request_again(channel) {
        let retrying = ServiceBuilder::new()
            .retry(UpTo { previous: 0, most: 3 })
            .map_request(|request: http::Request<Full<Bytes>>| request.map(Body::new))
            .service(channel);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let retrying = retrying.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                retrying.oneshot(http::Request::from_parts(head, Full::new(body))).await.map_err(StdError::from)
            }
        });
        let answer = TestServiceClient::new(service)
            .unary_call(behaving("succeed-on-retry-attempt-2,error-code-14"))
            .await
            .unwrap();
        assert_eq!(answer.into_inner().server_id, "one");
    }
}

/// Tries again after UNAVAILABLE.
#[derive(Clone)]
struct UpTo {
    previous: u32,
    most: u32,
}

impl<B, E> tower::retry::Policy<http::Request<Full<Bytes>>, http::Response<B>, E> for UpTo {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        request: &mut http::Request<Full<Bytes>>,
        result: &mut Result<http::Response<B>, E>,
    ) -> Option<Ready<()>> {
        let status = result.as_ref().ok()?.headers().get("grpc-status")?;
        if self.previous == self.most || status != "14" {
            return None;
        }
        self.previous += 1;
        request.headers_mut().insert(ATTEMPTS_KEY, self.previous.into());
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, request: &http::Request<Full<Bytes>>) -> Option<http::Request<Full<Bytes>>> {
        Some(request.clone())
    }
}

fn behaving(behavior: &'static str) -> Request<SimpleRequest> {
    let mut request = Request::new(who());
    request.metadata_mut().insert(BEHAVIOR_KEY, behavior.parse().expect("a header value"));
    request
}
