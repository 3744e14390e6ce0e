//! Servers that the control plane configures (A36): whether they serve, to whom, with which certificate.

mod body;
mod builder;
mod connection;
mod driver;
mod error;
mod generation;
mod handle;
mod handlers;
mod hub;
mod limits;
mod listener;
mod member;
mod nodes;
mod plan;
mod port;
mod rpc;
mod running;
mod security;
mod shared;
mod socket;
mod supervisor;

pub use builder::ServerBuilder;
pub use error::ServeError;
pub use handlers::Handlers;
pub use running::Running;

pub(crate) use handle::ServerHandle;
pub(crate) use listener::Listener;
pub(crate) use nodes::SocketNode;

/// A gRPC server that the control plane configures (gRFC A36).
///
/// For each address that it listens on, the control plane says whether it serves, how connections are secured, and which RPCs
/// are let through. Handlers are those of tonic, unchanged, and see what they see there, such as `Request::remote_addr`. Beside
/// it is the [`Peer`](crate::Peer) of each request, in its extensions.
///
/// ```no_run
/// # use mainstay_testservice::service;
/// use mainstay::{Server, ServerCredentials};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// # let greeter = service("one", "one").unwrap();
/// Server::builder()
///     .credentials(ServerCredentials::xds(ServerCredentials::insecure())) // what the control plane says, or else plaintext
///     .on_serving_state(|address, state| println!("{address}: {state}"))
///     .add_service(greeter) // any tonic service, unchanged
///     .serve_xds("0.0.0.0:50051".parse()?)
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// # The life of a server
///
/// 1. **Bound.** [`ServerBuilder::start`] binds the addresses. It fails for a bad bootstrap or an address that is taken, and for
///    nothing else. Until there is a configuration the system refuses connections.
/// 2. **Serving.** Each connection gets the filter chain that matches its addresses. New routes take effect with the next RPC.
///    A new Listener is for new connections; those that there are get a GOAWAY, and RPCs on them may go on for the
///    [grace](ServerBuilder::drain_grace). The port stays open.
/// 3. **Not serving.** If the control plane takes the Listener away (gRFC A88), connections are drained, and new ones are refused.
///    The loss of the control plane changes nothing.
/// 4. **Shut down.** [`Running::shutdown`] stops listening, and waits until the last RPC is done or the grace is over.
#[derive(Debug)]
#[non_exhaustive]
pub struct Server;

impl Server {
    /// Returns a builder for a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::new()
    }
}
