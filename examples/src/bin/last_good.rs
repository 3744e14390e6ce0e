//! A program that starts while every control plane is down, on the configuration that an earlier run has kept, and returns to the control
//! plane without a failed RPC.

use mainstay::Channel;
use mainstay::event::Event;
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::{Error, all_to, bootstrap, control_plane, greeter, request};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let [one, two] = [greeter("one").await?, greeter("two").await?];
    let plane = control_plane(&[one]).await?;
    let home = tempfile::tempdir()?;
    let files = home.path().join("xds");
    let channel = || -> Result<Channel, Error> {
        Ok(Channel::builder("xds:///hello").bootstrap(bootstrap(&plane)?).last_good(&*files).build()?)
    };

    // The first run keeps what it was told.
    let first = channel()?;
    let mut events = first.events();
    let mut client = GreeterClient::new(first);
    client.say_hello(request("world")).await?;
    while let Some(event) = events.next().await {
        if let Event::LastGoodWritten { resources, .. } = event {
            println!("kept {resources} resources");
            break;
        }
    }
    plane.stop().await;
    drop((client, events));

    // The second one starts without a control plane.
    let second = channel()?;
    let mut events = second.events();
    let mut client = GreeterClient::new(second);
    println!("{}", client.say_hello(request("world")).await?.into_inner().message);
    while let Some(event) = events.next().await {
        if let Event::LastGoodLoaded { resources, .. } = event {
            println!("served from {resources} resources on disk");
            break;
        }
    }

    // The control plane returns, with news.
    plane.control_plane().set(all_to(&[two]));
    plane.start()?;
    loop {
        let message = client.say_hello(request("world")).await?.into_inner().message; // none fails
        if message.ends_with("two") {
            println!("{message}");
            return Ok(());
        }
    }
}
