//! A client of two servers, which loses its control plane and does not notice.

use std::collections::BTreeSet;

use mainstay::Channel;
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::{Error, bootstrap, control_plane, greeter, request};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let servers = [greeter("one").await?, greeter("two").await?];
    let plane = control_plane(&servers).await?;

    // Was: tonic::transport::Channel::from_static("http://…").connect().await?
    let channel = Channel::builder("xds:///hello").bootstrap(bootstrap(&plane)?).build()?;
    let mut client = GreeterClient::new(channel);

    let reply = client.say_hello(request("world")).await?;
    if let Some(peer) = reply.extensions().get::<mainstay::Peer>() {
        println!("an endpoint of cluster {} answers", peer.cluster());
    }

    plane.stop().await;
    let mut names = BTreeSet::new();
    while names.len() < servers.len() {
        let reply = client.say_hello(request("world")).await?; // none fails
        names.insert(reply.into_inner().message.rsplit(' ').next().unwrap_or("").to_owned());
    }
    let names: Vec<_> = names.into_iter().collect();
    println!("without a control plane, RPCs go to {}", names.join(" and "));
    Ok(())
}
