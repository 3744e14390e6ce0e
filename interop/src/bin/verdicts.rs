//! `xds_verdicts`: our client in the suite of verdicts. Sends one RPC to each target, prints the target and what became of it,
//! and serves CSDS until it is killed.

use std::process::ExitCode;
use std::time::Duration;

use mainstay::{Channel, admin};
use mainstay_testservice::proto::SimpleRequest;
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tonic::transport::Server;

#[tokio::main]
async fn main() -> ExitCode {
    let flag = |name: &str| {
        let prefix = format!("--{name}=");
        std::env::args().find_map(|argument| argument.strip_prefix(&prefix).map(str::to_owned))
    };
    let (Some(targets), Some(port)) = (flag("targets"), flag("admin_port")) else {
        eprintln!("error: --targets=TARGET,... and --admin_port=PORT are needed");
        return ExitCode::from(2);
    };
    let timeout = flag("timeout").and_then(|seconds| seconds.parse().ok()).unwrap_or(20);
    for target in targets.split(',').map(str::to_owned) {
        tokio::spawn(async move {
            match call(&target, Duration::from_secs(timeout)).await {
                Ok(host) => println!("{target} answered by {host}"),
                Err((code, message)) => println!("{target} {code}: {message:?}"),
            }
        });
    }
    let Ok(address) = format!("127.0.0.1:{port}").parse() else { return ExitCode::from(2) };
    let router = Server::builder().add_service(admin::csds()).add_service(admin::channelz());
    match router.serve(address).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One call; the host that answered, or the code and the message.
async fn call(target: &str, timeout: Duration) -> Result<String, (String, String)> {
    let channel = Channel::new(target).map_err(|error| ("UNAVAILABLE".to_owned(), error.to_string()))?;
    let mut client = TestServiceClient::new(channel.clone());
    let mut request = tonic::Request::new(SimpleRequest::default());
    request.set_timeout(timeout);
    let outcome = client.unary_call(request).await;
    // What it holds is asked for afterwards.
    tokio::spawn(async move {
        let _held = channel;
        std::future::pending::<()>().await;
    });
    match outcome {
        Ok(response) => Ok(response.into_inner().hostname),
        Err(status) => Err((format!("{:?}", status.code()), status.message().to_owned())),
    }
}
