//! A tonic service that the control plane configures: the other half of the example `greeter`.
//!
//! ```text
//! GRPC_XDS_BOOTSTRAP=bootstrap.json cargo run -p mainstay --example greeter_server -- 127.0.0.1:50051
//! ```
//!
//! The bootstrap must have a `server_listener_resource_name_template`, and the control plane a Listener of that name for the
//! address. Without arguments the program brings a control plane of its own, calls itself once, and ends.

use std::net::SocketAddr;

use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay::{Server, ServerCredentials};
use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let greeter = mainstay_testservice::service("greeter", "greeter").ok_or("not a host name")?;
    match std::env::args().nth(1) {
        Some(address) => {
            // Was: tonic::transport::Server::builder().add_service(greeter).serve(address.parse()?).await?
            Server::builder()
                .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
                .on_serving_state(|address, state| println!("{address}: {state}"))
                .add_service(greeter)
                .serve_xds(address.parse()?)
                .await?;
            Ok(())
        }
        None => {
            let control_plane = ControlPlane::new().serve("127.0.0.1:0").await?;
            let running = Server::builder()
                .bootstrap(bootstrap(control_plane.addr())?)
                .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
                .on_serving_state(|address, state| println!("{address}: {state}"))
                .add_service(greeter)
                .listen("127.0.0.1:0".parse()?)
                .start()?;
            let address = running.local_addresses()[0];
            let listener = resources::server_listener(
                format!("server/{address}"),
                address,
                resources::server_route("everything is handled here"),
            );
            control_plane.control_plane().set(Snapshot::builder().listener(listener));
            running.serving_state(address).ok_or("not its address")?.serving().await;
            println!("{} answered", tokio::spawn(call(address)).await??);
            running.shutdown().await;
            Ok(())
        }
    }
}

fn bootstrap(control_plane: SocketAddr) -> Result<Bootstrap, mainstay::bootstrap::BootstrapError> {
    Bootstrap::builder()
        .node(Node::new("greeter-server"))
        .server(ServerConfig::insecure(control_plane.to_string()))
        .server_listener_resource_name_template("server/%s")
        .build()
}

/// Any client will do.
async fn call(address: SocketAddr) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    let mut client = TestServiceClient::connect(format!("http://{address}")).await?;
    Ok(client.unary_call(SimpleRequest::default()).await?.into_inner().server_id)
}
