//! The programs as drivers start them: real processes, real ports.

use std::process::{Output, Stdio};

use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_testservice::proto::load_balancer_stats_service_client::LoadBalancerStatsServiceClient;
use mainstay_testservice::proto::{
    LoadBalancerAccumulatedStatsRequest, LoadBalancerStatsRequest, LoadBalancerStatsResponse,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tonic::transport::Channel;

#[tokio::test]
async fn the_client_calls_the_server_and_says_who_answered() {
    // I-6 to I-9, I-16, I-32
    let server = Program::start(Command::new(SERVER).args(["--port=0", "--hostname=here"])).await;
    let control_plane = ControlPlane::new();
    control_plane.set(
        Snapshot::builder()
            .listener(resources::listener("listener_0", resources::route("route", "cluster")))
            .cluster(resources::eds_cluster("cluster"))
            .endpoints(resources::endpoints("cluster", [format!("127.0.0.1:{}", server.port)])),
    );
    let xds = control_plane.serve("127.0.0.1:0").await.unwrap();
    let bootstrap = bootstrap(xds.addr().port());
    let flags = ["--server=xds:///listener_0", "--stats_port=0", "--qps=20", "--rpc=UnaryCall,EmptyCall"];
    let client = Program::start(Command::new(CLIENT).args(flags).env(BOOTSTRAP, &bootstrap)).await;
    let stats = client.stats(10).await;
    assert_eq!((stats.rpcs_by_peer.get("here"), stats.num_failures), (Some(&10), 0), "{stats:?}");
    assert_eq!(stats.rpcs_by_method["EmptyCall"].rpcs_by_peer["here"], 5);
}

#[tokio::test]
async fn without_a_control_plane_rpcs_fail_and_the_client_lives() {
    // I-5, I-6
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let bootstrap = bootstrap(nobody);
    let flags = ["--server=xds:///listener_0", "--stats_port=0", "--qps=20", "--print_response=1", "--of_tomorrow=1"];
    let mut client = Program::start(Command::new(CLIENT).args(flags).env(BOOTSTRAP, &bootstrap)).await;
    assert_eq!(client.stats(5).await.num_failures, 5);
    assert!(client.failures(14).await >= 5);
    let line = client.next_line().await;
    assert!(line.starts_with("Unavailable: ") && line.contains(&nobody.to_string()), "{line}");
}

#[tokio::test]
async fn without_a_bootstrap_the_client_says_what_to_do_and_lives() {
    // I-5
    let flags = ["--server=xds:///listener_0", "--stats_port=0", "--qps=20", "--print_response=true"];
    let mut command = Command::new(CLIENT);
    command.args(flags).env_remove(BOOTSTRAP).env_remove("GRPC_XDS_BOOTSTRAP_CONFIG");
    let mut client = Program::start(&mut command).await;
    assert_eq!(client.stats(5).await.num_failures, 5);
    let line = client.next_line().await;
    assert!(line.starts_with("Unavailable: ") && line.contains("GRPC_XDS_BOOTSTRAP"), "{line}");
}

#[tokio::test]
async fn a_bootstrap_that_cannot_be_read_is_named_in_every_error() {
    // I-5
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent.json");
    let broken = directory.path().join("broken.json");
    std::fs::write(&broken, r#"{"xds_servers": 7}"#).unwrap();
    for (path, expected) in [(absent, "absent.json"), (broken, "xds_servers")] {
        let flags = ["--server=xds:///listener_0", "--stats_port=0", "--qps=20", "--print_response=true"];
        let mut client = Program::start(Command::new(CLIENT).args(flags).env(BOOTSTRAP, &path)).await;
        assert_eq!(client.stats(5).await.num_failures, 5);
        let line = client.next_line().await;
        assert!(line.starts_with("Unavailable: ") && line.contains(expected), "{line}");
    }
}

#[tokio::test]
async fn wrong_flags_end_with_what_was_expected() {
    for (program, flag, expected) in [
        (CLIENT, "--qps=fast", "--qps=fast: expected RPCs per second"),
        (CLIENT, "--secure_mode=perhaps", "expected true or false"),
        (SERVER, "--port=-1", "--port=-1: expected a port"),
        (SERVER, "--secure_mode=True --port=7 --maintenance_port=7", "must be another one than --port"),
    ] {
        let Output { status, stderr, .. } = Command::new(program).args(flag.split(' ')).output().await.unwrap();
        let stderr = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{flag}: {stderr}");
        assert!(stderr.contains(expected), "{flag}: {stderr}");
    }
}

#[tokio::test]
async fn a_failed_rpc_ends_the_client_if_it_shall() {
    let server = Program::start(Command::new(SERVER).args(["--port=0"])).await;
    let target = format!("--server=127.0.0.1:{}", server.port);
    let flags = [target.as_str(), "--stats_port=0", "--qps=20", "--fail_on_failed_rpc=true"];
    let mut client = Program::start(Command::new(CLIENT).args(flags)).await;
    assert_eq!(client.stats(2).await.num_failures, 0);
    drop(server);
    assert_eq!(client.child.wait().await.unwrap().code(), Some(1));
}

/// A running program; killed when dropped.
struct Program {
    child: Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    port: u16,
}

impl Program {
    /// Starts it and waits for its first line, which names its port.
    async fn start(command: &mut Command) -> Self {
        let mut child = command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next_line().await.unwrap().unwrap();
        let port = first.rsplit(' ').next().unwrap().parse().unwrap();
        Self { child, lines, port }
    }

    async fn next_line(&mut self) -> String {
        self.lines.next_line().await.unwrap().unwrap()
    }

    async fn stats(&self, num_rpcs: i32) -> LoadBalancerStatsResponse {
        let request = LoadBalancerStatsRequest { num_rpcs, timeout_sec: 60, metadata_keys: Vec::new() };
        self.client().await.get_client_stats(request).await.unwrap().into_inner()
    }

    /// How many unary calls ended with this code.
    async fn failures(&self, code: i32) -> i32 {
        let stats = self.client().await.get_client_accumulated_stats(LoadBalancerAccumulatedStatsRequest {}).await;
        stats.unwrap().into_inner().stats_per_method["UNARY_CALL"].result.get(&code).copied().unwrap_or(0)
    }

    async fn client(&self) -> LoadBalancerStatsServiceClient<Channel> {
        LoadBalancerStatsServiceClient::connect(format!("http://127.0.0.1:{}", self.port)).await.unwrap()
    }
}

/// The bootstrap of the official local suites, with one server (I-31).
fn bootstrap(port: u16) -> tempfile::TempPath {
    let content = format!(
        r#"{{"xds_servers": [{{"server_uri": "127.0.0.1:{port}", "channel_creds": [{{"type": "insecure"}}],
        "server_features": ["xds_v3"]}}], "authorities": {{}}, "node": {{"id": "test-id", "locality": {{"zone": "z"}}}}}}"#
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file.into_temp_path()
}

const CLIENT: &str = env!("CARGO_BIN_EXE_xds_interop_client");
const SERVER: &str = env!("CARGO_BIN_EXE_xds_interop_server");
const BOOTSTRAP: &str = "GRPC_XDS_BOOTSTRAP";
