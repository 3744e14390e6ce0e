//! Clients as applications keep them: with interceptors, in structs, in generics, behind boxes.

use mainstay_testservice::BEHAVIOR_KEY;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic::service::interceptor::{InterceptedService, InterceptorLayer};
use tonic::{Code, Request, Status};
use tower::{Layer, ServiceBuilder};

use crate::{on_both, who};

on_both! {
    /// The constructor that every generated client has.
    async fn a_client_is_made_with_an_interceptor(channel) {
        let mut client = TestServiceClient::with_interceptor(channel, fail_all);
        let status = client.unary_call(who()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::AlreadyExists, "one: rpc-behavior asked for this status"), "the backend saw the metadata");
    }

    async fn an_interceptor_that_refuses_keeps_the_request_from_the_backend(channel) {
        let refuse = |_: Request<()>| -> Result<Request<()>, Status> { Err(Status::unauthenticated("who are you?")) };
        let mut client = TestServiceClient::with_interceptor(channel, refuse);
        let status = client.unary_call(who()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "who are you?"));
    }

    async fn an_interceptor_is_a_type_that_can_be_named(channel) {
        struct Application {
            client: TestServiceClient<InterceptedService<Channel, Tag>>,
        }
        let mut application = Application { client: TestServiceClient::with_interceptor(channel, Tag) };
        assert_eq!(application.client.unary_call(who()).await.unwrap_err().code(), Code::AlreadyExists);
    }

    async fn an_interceptor_is_a_layer(channel) {
        let layered = ServiceBuilder::new().layer(InterceptorLayer::new(fail_all)).service(channel.clone());
        let status = TestServiceClient::new(layered).unary_call(who()).await.unwrap_err();
        assert_eq!(status.code(), Code::AlreadyExists);
        let layered = InterceptorLayer::new(Ok).layer(channel);
        assert_eq!(TestServiceClient::new(layered).unary_call(who()).await.unwrap().into_inner().server_id, "one");
    }

    async fn a_client_lives_in_a_struct_and_its_clones_in_tasks(channel) {
        #[derive(Clone, Debug)]
        struct Application {
            client: TestServiceClient<Channel>,
        }
        let application = Application { client: TestServiceClient::new(channel) };
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let mut application = application.clone();
                tokio::spawn(async move { application.client.unary_call(who()).await })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap().into_inner().server_id, "one");
        }
    }

    async fn a_client_lives_in_a_generic_struct(channel) {
        assert_eq!(Generic { client: TestServiceClient::new(channel) }.ask().await.unwrap(), "one");
    }

    /// A channel is shared by clients of different services, and made into one type with others.
    async fn a_channel_is_boxed(channel) {
        type Boxed = tower::util::BoxCloneSyncService<http::Request<Body>, http::Response<Body>, StdError>;
        let boxed: Boxed = ServiceBuilder::new()
            .layer_fn(Boxed::new)
            .map_response(|response: http::Response<_>| response.map(Body::new))
            .map_err(StdError::from)
            .service(channel);
        assert_eq!(TestServiceClient::new(boxed).unary_call(who()).await.unwrap().into_inner().server_id, "one");
    }

    async fn a_client_is_used_under_an_origin(channel) {
        let mut client = TestServiceClient::with_origin(channel, "http://elsewhere.example".parse().unwrap());
        assert_eq!(client.unary_call(who()).await.unwrap().into_inner().server_id, "one");
    }
}

/// As an application that does not care which channel it has would write it.
struct Generic<T> {
    client: TestServiceClient<T>,
}

impl<T> Generic<T>
where
    T: tonic::client::GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: tonic::codegen::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as tonic::codegen::Body>::Error: Into<StdError> + Send,
{
    async fn ask(&mut self) -> Result<String, Status> {
        Ok(self.client.unary_call(who()).await?.into_inner().server_id)
    }
}

/// Asks the backend for an error, which shows that it has read the metadata.
fn fail_all(mut request: Request<()>) -> Result<Request<()>, Status> {
    request.metadata_mut().insert(BEHAVIOR_KEY, "error-code-6".parse().expect("a header value"));
    Ok(request)
}

#[derive(Clone)]
struct Tag;

impl tonic::service::Interceptor for Tag {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        fail_all(request)
    }
}
