//! Every example runs to its end and says what it should.

use std::process::{Child, Command, Stdio};

const EXAMPLES: [(&str, &str, &[&str]); 7] = [
    (
        "greeter",
        env!("CARGO_BIN_EXE_greeter"),
        &["an endpoint of cluster hello-servers answers", "without a control plane, RPCs go to one and two"],
    ),
    (
        "streaming",
        env!("CARGO_BIN_EXE_streaming"),
        &[
            "hello world",
            "bonjour world",
            "hallo world",
            "hello Ada",
            "hello Grace, still from the first server: true",
            "and the end of the stream: true",
        ],
    ),
    (
        "layers",
        env!("CARGO_BIN_EXE_layers"),
        &[
            "hello world (Bearer 42), this is one",
            "calls /hello.Greeter/SayHello",
            "hello world (Bearer 42), this is one",
        ],
    ),
    ("mtls", env!("CARGO_BIN_EXE_mtls"), &["over TLS: true, the server is hello.example", "hello world, this is one"]),
    (
        "last_good",
        env!("CARGO_BIN_EXE_last_good"),
        &[
            "kept 4 resources",
            "hello world, this is one",
            "served from 4 resources on disk",
            "hello world, this is two",
        ],
    ),
    ("dns", env!("CARGO_BIN_EXE_dns"), &["looks up greeter.internal", "hello world, this is one"]),
    (
        "telemetry",
        env!("CARGO_BIN_EXE_telemetry"),
        &[
            "grpc.client.attempt.duration",
            "grpc.client.attempt.rcvd_total_compressed_message_size",
            "grpc.client.attempt.sent_total_compressed_message_size",
            "grpc.client.attempt.started",
            "grpc.client.call.duration",
            "grpc.xds_client.connected",
        ],
    ),
];

#[test]
fn every_example_runs_to_its_end() {
    let start = |program: &str| -> Child {
        let mut command = Command::new(program);
        command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("an example starts")
    };
    let running = EXAMPLES.map(|(name, program, said)| (name, start(program), said));
    for (name, child, said) in running {
        let output = child.wait_with_output().expect("it ends");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {out}{err}");
        assert_eq!(out.lines().collect::<Vec<_>>(), said, "{name}: {err}");
    }
}
