//! Whatever an application does with tonic's `Channel`, it does with Mainstay's: each test runs on both.

mod channel;
mod clients;
mod layers;
mod messages;

use std::net::SocketAddr;

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, resources};
use mainstay_testservice::proto::SimpleRequest;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codec::CompressionEncoding::Gzip;

/// Makes two tests of each: one on tonic's channel, one on Mainstay's. Both types are named nowhere else, so that what
/// compiles for the one compiles for the other.
macro_rules! on_both {
    ($($(#[$doc:meta])* async fn $name:ident($channel:ident) $body:block)+) => {
        mod on_tonic {
            use super::*;
            type Channel = tonic::transport::Channel;
            $($(#[$doc])* #[tokio::test]
            async fn $name() {
                let bed = crate::Testbed::start().await;
                let $channel: Channel = bed.tonic().await;
                $body
            })+
        }
        mod on_mainstay {
            use super::*;
            type Channel = mainstay::Channel;
            $($(#[$doc])* #[tokio::test]
            async fn $name() {
                let bed = crate::Testbed::start().await;
                let $channel: Channel = bed.mainstay();
                $body
            })+
        }
    };
}
pub(crate) use on_both;

/// A backend, and a control plane that names it.
struct Testbed {
    address: SocketAddr,
    control_plane: Server,
}

impl Testbed {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let service = mainstay_testservice::service("one", "one").expect("a host name");
        let service = service.accept_compressed(Gzip).send_compressed(Gzip);
        let backend = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(backend.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { address, control_plane: serve(address).await }
    }

    /// tonic's channel, straight to the backend.
    async fn tonic(&self) -> tonic::transport::Channel {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", self.address));
        endpoint.expect("an address").connect().await.expect("a backend that listens")
    }

    /// Mainstay's channel, to the backend by way of the control plane.
    fn mainstay(&self) -> mainstay::Channel {
        channel(&self.control_plane)
    }
}

/// A control plane for `xds:///service`, with this endpoint.
async fn serve(endpoint: SocketAddr) -> Server {
    let control_plane = ControlPlane::new();
    control_plane.set(
        Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .cluster(resources::eds_cluster("service"))
            .endpoints(resources::endpoints("service", [endpoint])),
    );
    control_plane.serve("127.0.0.1:0").await.expect("a free port")
}

fn channel(control_plane: &Server) -> mainstay::Channel {
    let bootstrap = Bootstrap::builder()
        .node(Node::new("drop-in"))
        .server(ServerConfig::insecure(control_plane.addr().to_string()))
        .build()
        .expect("a valid bootstrap");
    mainstay::Channel::builder("xds:///service").bootstrap(bootstrap).build().expect("a channel")
}

/// A request to which the backend answers who it is.
fn who() -> SimpleRequest {
    SimpleRequest { fill_server_id: true, ..Default::default() }
}
