//! What Mainstay's channel has beyond tonic's, and what their types have in common.

use mainstay::{BuildError, ChannelState, Peer};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::StreamingOutputCallRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tonic::Code;
use tower::{Service, ServiceExt};

use crate::{Testbed, channel, on_both, serve, who};

on_both! {
    /// tower's `ready`, or the channel's own of the same form.
    async fn a_channel_is_awaited_until_it_is_ready(channel) {
        let mut channel = channel;
        let request = http::Request::post("/grpc.testing.TestService/EmptyCall")
            .header("content-type", "application/grpc")
            .body(tonic::body::Body::new(http_body_util::Full::from(&[0u8; 5][..])))
            .unwrap();
        let response = channel.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), 200);
    }

    async fn a_channel_is_sent_shared_and_shown(channel) {
        fn is_a_good_value<T: Clone + Send + Sync + Unpin + std::fmt::Debug + 'static>(_: &T) {}
        is_a_good_value(&channel);
        is_a_good_value(&TestServiceClient::new(channel));
    }
}

/// The future of an RPC moves to other threads, whatever is done with it there.
#[tokio::test]
async fn the_types_of_a_response_can_be_sent() {
    fn is_send<T: Send + 'static>(_: &T) {}
    let bed = Testbed::start().await;
    let mut channel = bed.mainstay();
    let future = channel.call(http::Request::post("/s/m").body(tonic::body::Body::empty()).unwrap());
    is_send(&future);
    is_send(&future.await.unwrap());
    is_send(&mainstay::ResponseBody::default());
}

/// gRPC's connectivity states: of the channel, not of one connection.
#[tokio::test]
async fn a_channel_tells_its_state() {
    let mut backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    backend.stop().await;
    let control_plane = serve(backend.addr()).await;
    let mut channel = channel(&control_plane);
    assert_eq!(channel.state(), ChannelState::Connecting, "nothing has happened yet");
    let status = TestServiceClient::new(channel.clone()).unary_call(who()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(channel.state(), ChannelState::TransientFailure, "{status}");
    backend.restart().await.unwrap();
    channel.ready().await.unwrap();
    assert_eq!(channel.state(), ChannelState::Ready);
}

#[tokio::test]
async fn a_response_tells_which_endpoint_it_came_from() {
    let bed = Testbed::start().await;
    let mut client = TestServiceClient::new(bed.mainstay());
    let unary = client.unary_call(who()).await.unwrap();
    let streaming = client.streaming_output_call(StreamingOutputCallRequest::default()).await.unwrap();
    for extensions in [unary.extensions(), streaming.extensions()] {
        let peer = extensions.get::<Peer>().expect("a peer");
        assert_eq!(peer.address(), bed.address);
        assert_eq!(peer.cluster(), "service");
        assert_eq!(peer.locality().sub_zone, "locality0");
    }
    assert!(unary.extensions().get::<tonic::GrpcMethod<'static>>().is_none(), "that one was the request's");
}

/// What `main` prints that ends with `?`.
#[test]
fn an_error_is_readable_in_its_debug_form() {
    let error = mainstay::Channel::builder("xds:///service").build().unwrap_err();
    assert!(matches!(error, BuildError::NoRuntime));
    assert_eq!(format!("{error:?}"), error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async { mainstay::Channel::new("xds:///service").unwrap_err() });
    assert!(matches!(error, BuildError::Bootstrap(_)));
    assert!(format!("{error:?}").starts_with("no xDS bootstrap: set GRPC_XDS_BOOTSTRAP"), "{error:?}");
}
