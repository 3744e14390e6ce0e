//! Streams of all kinds. A stream stays where it began, whatever the control plane says meanwhile; the next RPC goes elsewhere.

use mainstay::Channel;
use mainstay_examples::hello::greeter_client::GreeterClient;
use mainstay_examples::{Error, all_to, bootstrap, control_plane, greeter, request};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let [one, two] = [greeter("one").await?, greeter("two").await?];
    let plane = control_plane(&[one]).await?;
    let channel = Channel::builder("xds:///hello").bootstrap(bootstrap(&plane)?).build()?;
    let mut client = GreeterClient::new(channel);

    let mut hellos = client.say_hellos(request("world")).await?.into_inner();
    while let Some(hello) = hellos.next().await {
        println!("{}", hello?.message);
    }

    let (names, outgoing) = mpsc::channel(1);
    let response = client.chat(ReceiverStream::new(outgoing)).await?;
    let at = response.extensions().get::<mainstay::Peer>().map(mainstay::Peer::address);
    let mut replies = response.into_inner();
    names.send(request("Ada")).await?;
    println!("{}", replies.next().await.ok_or("no reply")??.message);

    // All RPCs from now on go to the other server.
    plane.control_plane().set(all_to(&[two]));
    while !client.say_hello(request("world")).await?.into_inner().message.ends_with("two") {}
    names.send(request("Grace")).await?;
    println!("{}, still from the first server: {}", replies.next().await.ok_or("no reply")??.message, at == Some(one));
    drop(names);
    println!("and the end of the stream: {}", replies.next().await.is_none());
    Ok(())
}
