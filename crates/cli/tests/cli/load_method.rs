//! `load` with methods that it has never heard of.

use std::fs;

use mainstay_testservice::{Backend, proto::FILE_DESCRIPTOR_SET, service};
use serde_json::Value;
use tokio::net::TcpListener;
use tonic::transport::server::TcpIncoming;

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
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}", listener.local_addr().unwrap());
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .build_v1()
        .unwrap();
    let server =
        tonic::transport::Server::builder().add_service(reflection).add_service(service("one", "host").unwrap());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let args = ["load", &target, "--qps", "20", "--duration", "200ms", "--json", "--method", METHOD, "--data"];
    let asked = r#"{"responseStatus": {"code": 9, "message": "as asked"}}"#;
    let calls = calls(&mainstay(&[&args[..], &[asked]].concat()));
    assert!(calls.iter().all(|call| call["code"] == "FAILED_PRECONDITION"), "{calls:?}");
}

fn calls(output: &std::process::Output) -> Vec<Value> {
    let calls: Vec<_> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(calls.len(), 4, "{}", text(&output.stderr));
    calls
}
