//! Interceptors and tower's layers go around a channel as they go around tonic's own.

use mainstay::Channel;
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::{Error, bootstrap, control_plane, greeter, request};
use tonic::service::interceptor::InterceptorLayer;
use tonic::{Request, Status};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let plane = control_plane(&[greeter("one").await?]).await?;
    let channel = Channel::builder("xds:///hello").bootstrap(bootstrap(&plane)?).build()?;

    // An interceptor alone.
    let mut client = GreeterClient::with_interceptor(channel.clone(), with_token);
    println!("{}", client.say_hello(request("world")).await?.into_inner().message);

    // A stack: at most eight RPCs at a time, each with a token, each printed.
    let service = ServiceBuilder::new()
        .concurrency_limit(8)
        .layer(InterceptorLayer::new(with_token))
        .map_request(|request: tonic::codegen::http::Request<tonic::body::Body>| {
            println!("calls {}", request.uri().path());
            request
        })
        .service(channel);
    println!("{}", GreeterClient::new(service).say_hello(request("world")).await?.into_inner().message);
    Ok(())
}

fn with_token(mut request: Request<()>) -> Result<Request<()>, Status> {
    let token = "Bearer 42".parse().map_err(|_| Status::internal("no token"))?;
    request.metadata_mut().insert("authorization", token);
    Ok(request)
}
