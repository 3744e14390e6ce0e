//! A resolver of one's own: a LOGICAL_DNS cluster names a host that only this program knows.

use std::net::IpAddr;
use std::pin::Pin;

use mainstay::{Channel, ResolveHost};
use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::{Error, bootstrap, greeter, request};

/// What the names of a small world mean.
#[derive(Debug)]
struct Phonebook;

impl ResolveHost for Phonebook {
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        Box::pin(async move {
            println!("looks up {host}");
            match host {
                "greeter.internal" => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
                other => Err(format!("{other} is not in the phonebook")),
            }
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let port = greeter("one").await?.port();
    let plane = ControlPlane::new().serve("127.0.0.1:0").await?;
    plane.control_plane().set(
        Snapshot::builder()
            .listener(resources::listener("hello", resources::rds("hello-routes")))
            .route(resources::route("hello-routes", "hello-servers"))
            .cluster(resources::logical_dns_cluster("hello-servers", format!("greeter.internal:{port}"))),
    );
    let channel = Channel::builder("xds:///hello").bootstrap(bootstrap(&plane)?).dns(Phonebook).build()?;
    println!("{}", GreeterClient::new(channel).say_hello(request("world")).await?.into_inner().message);
    Ok(())
}
