//! How long a failing control plane holds RPCs up, in milliseconds: prints one line per case.
//!
//! ```text
//! cargo run --release -p mainstay --example fallback_times
//! ```

use std::time::{Duration, Instant};

use mainstay::Channel;
use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
use mainstay_control_plane::{ControlPlane, Server, Snapshot, TypeUrl, resources};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;

type Failure = Box<dyn std::error::Error>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let one = Backend::spawn("127.0.0.1:0", "one").await?;
    let two = Backend::spawn("127.0.0.1:0", "two").await?;
    println!("refused {:.1}", refused(&two).await?.as_secs_f64() * 1e3);
    println!("mid_update {:.1}", mid_update(&one, &two).await?.as_secs_f64() * 1e3);
    println!("black_hole {:.1}", black_hole(&two).await?.as_secs_f64() * 1e3);
    Ok(())
}

/// From the making of a channel whose primary refuses to its first answer.
async fn refused(two: &Backend) -> Result<Duration, Failure> {
    let (primary, fallback) = (serve("cluster", two).await?, serve("cluster", two).await?);
    primary.stop().await;
    let start = Instant::now();
    ask(&mut client("refused", &primary, &fallback)?).await?;
    Ok(start.elapsed())
}

/// From the update in which the primary dies to the first answer by way of the fallback.
async fn mid_update(one: &Backend, two: &Backend) -> Result<Duration, Failure> {
    let (primary, fallback) = (serve("cluster", one).await?, serve("cluster", two).await?);
    let mut client = client("mid-update", &primary, &fallback)?;
    ask(&mut client).await?;
    primary.faults().die_on_request(TypeUrl::CLUSTER, "next");
    let start = Instant::now();
    primary.control_plane().set(snapshot("next", one));
    while ask(&mut client).await? != "two" {}
    Ok(start.elapsed())
}

/// From the making of a channel whose primary accepts and never speaks to its first answer.
async fn black_hole(two: &Backend) -> Result<Duration, Failure> {
    let (primary, fallback) = (serve("cluster", two).await?, serve("cluster", two).await?);
    primary.faults().black_hole(true);
    let start = Instant::now();
    ask(&mut client("black-hole", &primary, &fallback)?).await?;
    Ok(start.elapsed())
}

async fn ask(client: &mut TestServiceClient<Channel>) -> Result<String, Failure> {
    let request = SimpleRequest { fill_server_id: true, ..SimpleRequest::default() };
    Ok(client.unary_call(request).await?.into_inner().server_id)
}

fn client(node: &str, primary: &Server, fallback: &Server) -> Result<TestServiceClient<Channel>, Failure> {
    let bootstrap = Bootstrap::builder()
        .node(Node::new(node))
        .server(ServerConfig::insecure(primary.addr().to_string()))
        .server(ServerConfig::insecure(fallback.addr().to_string()))
        .build()?;
    Ok(TestServiceClient::new(Channel::builder("xds:///service").bootstrap(bootstrap).build()?))
}

async fn serve(cluster: &str, backend: &Backend) -> Result<Server, Failure> {
    let control_plane = ControlPlane::new();
    control_plane.set(snapshot(cluster, backend));
    Ok(control_plane.serve("127.0.0.1:0").await?)
}

fn snapshot(cluster: &str, backend: &Backend) -> Snapshot {
    Snapshot::builder()
        .listener(resources::listener("service", resources::route("service", cluster)))
        .cluster(resources::eds_cluster(cluster))
        .endpoints(resources::endpoints(cluster, [backend.addr()]))
        .build()
}
