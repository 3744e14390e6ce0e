//! A tonic client over `xds:///`: the one-line change, used from several tasks.
//!
//! ```text
//! mainstay backend --listen 127.0.0.1:50051 --id one &
//! mainstay serve examples/config --listen 127.0.0.1:18000 &
//! GRPC_XDS_BOOTSTRAP=examples/bootstrap.json cargo run -p mainstay --example greeter
//! ```

use std::time::Duration;

use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::args().nth(1).unwrap_or_else(|| "xds:///greeter".to_owned());

    // Was: tonic::transport::Channel::from_static("http://…").connect().await?
    let channel = mainstay::Channel::new(target)?;

    let mut tasks = Vec::new();
    for task in 0..4 {
        // Clones share one configuration and its connections.
        let mut client = TestServiceClient::new(channel.clone());
        tasks.push(tokio::spawn(async move {
            let mut request = tonic::Request::new(SimpleRequest { fill_server_id: true, ..Default::default() });
            request.set_timeout(Duration::from_secs(20));
            client.unary_call(request).await.map(|response| (task, response.into_inner().server_id))
        }));
    }
    for task in tasks {
        let (task, server) = task.await??;
        println!("task {task} was answered by {server}");
    }
    Ok(())
}
