//! `load` with methods that it has never heard of.

use std::fs;

use mainstay_testservice::{Backend, proto::FILE_DESCRIPTOR_SET, service};
use serde_json::Value;
use tokio::net::TcpListener;
use tonic::transport::{
    Server,
    server::{Router, TcpIncoming},
};

use crate::program::{mainstay, text};

const METHOD: &str = "/grpc.testing.TestService/UnaryCall";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_made_of_json_by_a_descriptor_set() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let target = format!("http://{}", backend.addr());
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), FILE_DESCRIPTOR_SET).unwrap();
    let set = file.path().to_str().unwrap();
    let load = |more: &[&str]| {
        let args = ["load", &target, "--qps", "20", "--duration", "200ms", "--json", "--method"];
        mainstay(&[&args, more].concat())
    };

    // The request says what the answer shall be, and metadata do, too: so both arrive.
    let asked = ["--data", r#"{"responseStatus": {"code": 9, "message": "as asked"}}"#, "--descriptors", set];
    let calls = calls(&load(&[&[METHOD], &asked[..]].concat()));
    assert!(calls.iter().all(|call| call["code"] == "FAILED_PRECONDITION"), "{calls:?}");
    let calls = self::calls(&load(&[METHOD, "-H", "rpc-behavior:error-code-5"]));
    assert!(calls.iter().all(|call| call["code"] == "NOT_FOUND"), "{calls:?}");
    let calls = self::calls(&load(&["/grpc.testing.TestService/EmptyCall"]));
    assert!(calls.iter().all(|call| call["ok"] == true), "an empty message needs no types: {calls:?}");
    let unknown = self::calls(&load(&["/no.Such/Method"]));
    assert!(unknown.iter().all(|call| call["code"] == "UNIMPLEMENTED"), "{unknown:?}");

    for (more, code, expected) in [
        (vec![METHOD, "--data", "{]", "--descriptors", set], 2, "--data is no grpc.testing.SimpleRequest: "),
        (vec![METHOD, "--data", r#"{"colour": 1}"#, "--descriptors", set], 2, "unrecognized field name 'colour'"),
        (
            vec!["/grpc.testing.TestService/Nothing", "--data", "{}", "--descriptors", set],
            1,
            "it has EmptyCall, UnaryCall",
        ),
        (
            vec!["/grpc.testing.TestService/FullDuplexCall", "--data", "{}", "--descriptors", set],
            1,
            "only unary methods",
        ),
        (vec!["/no.Such/Method", "--data", "{}", "--descriptors", set], 1, "there is no service no.Such"),
        (vec![METHOD, "--data", "{}", "--descriptors", "none.bin"], 1, "--descriptors none.bin: "),
        (vec![METHOD, "--data", "@none.json"], 1, "--data @none.json: "),
        (vec![METHOD, "--data", "{}"], 1, "--descriptors FILE does without"),
        (vec!["UnaryCall"], 2, "expected a method such as /hello.Greeter/SayHello"),
        (vec![METHOD, "-H", "nothing"], 2, "expected metadata such as x-user:42"),
    ] {
        let output = load(&more);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{more:?}: {}", text(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_reflection_is_asked_for_the_types() {
    let reflection =
        || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET);
    let today = Server::builder().add_service(reflection().build_v1().unwrap());
    // The only one that grpcio has.
    let before = Server::builder().add_service(reflection().build_v1alpha().unwrap());
    for server in [today, before] {
        let target = serve(server.add_service(service("one", "host").unwrap())).await;
        let asked = r#"{"responseStatus": {"code": 9, "message": "as asked"}}"#;
        let calls = calls(&mainstay(&[&["load", &target], REFLECTED, &[asked]].concat()));
        assert!(calls.iter().all(|call| call["code"] == "FAILED_PRECONDITION"), "{calls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_tell_its_types_gets_the_tip_that_is_for_it() {
    let silent = serve(Server::builder().add_service(service("one", "host").unwrap())).await;
    for (target, said, tip) in
        [(&*silent, "Unimplemented\n", "--descriptors FILE"), ("http://127.0.0.1:1", "Connection refused", "")]
    {
        let output = mainstay(&[&["load", target], REFLECTED, &["{}"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let stderr = text(&output.stderr);
        assert!(stderr.contains(said) && stderr.contains(tip), "{stderr}");
        assert_eq!(
            stderr.contains("tip:"),
            !tip.is_empty(),
            "reflection has nothing to do with a refused connection: {stderr}"
        );
    }
}

/// Serves until the test ends.
async fn serve(server: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    target
}

const REFLECTED: &[&str] = &["--qps", "20", "--duration", "200ms", "--json", "--method", METHOD, "--data"];

fn calls(output: &std::process::Output) -> Vec<Value> {
    let calls: Vec<_> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(calls.len(), 4, "{}", text(&output.stderr));
    calls
}
