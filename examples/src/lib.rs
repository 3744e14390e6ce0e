//! What the examples have in common: a service of their own, servers of it, and a control plane, all in the process of the example. In a
//! real program none of that is there: the bootstrap comes from the environment, and servers and control plane run elsewhere.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;

use mainstay::bootstrap::{Bootstrap, BootstrapError, Node, ServerConfig};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

/// What tonic generates from `proto/hello.proto`. It is committed, so that the examples build without a build script;
/// [the book](../../docs/five-minutes.md) has one.
#[allow(missing_docs, clippy::all, reason = "generated")]
pub mod hello {
    include!("generated/hello.rs");
}

use hello::greeter_server::{Greeter, GreeterServer};
use hello::{HelloReply, HelloRequest};

/// A greeter with a name. An ordinary service of tonic.
#[derive(Clone, Debug)]
pub struct Polite(pub &'static str);

#[tonic::async_trait]
impl Greeter for Polite {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
        let whom = token.map(|token| format!(" ({token})")).unwrap_or_default();
        let message = format!("hello {}{whom}, this is {}", request.into_inner().name, self.0);
        Ok(Response::new(HelloReply { message }))
    }

    type SayHellosStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn say_hellos(&self, request: Request<HelloRequest>) -> Result<Response<Self::SayHellosStream>, Status> {
        let name = request.into_inner().name;
        let greetings = ["hello", "bonjour", "hallo"].map(|word| Ok(HelloReply { message: format!("{word} {name}") }));
        Ok(Response::new(Box::pin(tokio_stream::iter(greetings))))
    }

    type ChatStream = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

    async fn chat(&self, request: Request<Streaming<HelloRequest>>) -> Result<Response<Self::ChatStream>, Status> {
        let greet = |request: HelloRequest| HelloReply { message: format!("hello {}", request.name) };
        Ok(Response::new(Box::pin(request.into_inner().map(move |request| request.map(greet)))))
    }
}

/// Starts a server of tonic's that lives as long as the process.
///
/// # Errors
/// There is no port.
pub async fn greeter(name: &'static str) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tonic::transport::Server::builder().add_service(GreeterServer::new(Polite(name)));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok(address)
}

/// Starts a control plane that says of `xds:///hello`: all RPCs go to these servers.
///
/// # Errors
/// There is no port.
pub async fn control_plane(servers: &[SocketAddr]) -> io::Result<Server> {
    let server = ControlPlane::new().serve("127.0.0.1:0").await?;
    server.control_plane().set(all_to(servers));
    Ok(server)
}

/// The four resources that lead from `xds:///hello` to these servers.
#[must_use]
pub fn all_to(servers: &[SocketAddr]) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("hello", resources::rds("hello-routes")))
        .route(resources::route("hello-routes", "hello-servers"))
        .cluster(resources::eds_cluster("hello-servers"))
        .endpoints(resources::endpoints("hello-servers", servers.iter().copied()))
        .build()
}

/// A bootstrap that names this control plane. A real program has none: it is told by `GRPC_XDS_BOOTSTRAP`.
///
/// # Errors
/// None for a control plane that listens on TCP.
pub fn bootstrap(control_plane: &Server) -> Result<Bootstrap, BootstrapError> {
    Bootstrap::builder()
        .server(ServerConfig::insecure(control_plane.addr().to_string()))
        .node(Node::new("example"))
        .server_listener_resource_name_template("server/%s")
        .build()
}

/// A request for `name`.
#[must_use]
pub fn request(name: &str) -> HelloRequest {
    HelloRequest { name: name.to_owned() }
}

/// What examples fail with.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

#[cfg(doctest)]
mod book;
