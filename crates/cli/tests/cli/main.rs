//! The program as its users see it: whole outputs, exit codes, signals.

mod browser;
mod check;
mod complete;
mod daemon;
mod dash;
mod explain;
mod get;
mod inspect;
mod kubernetes;
mod last_good;
mod load_method;
mod log;
mod mirror;
mod outages;
mod pki;
mod program;
mod publish;
mod record;
mod rehearsals;
mod security;
mod serve;
mod sim;
mod xds;

use std::net::TcpListener;

use mainstay_testservice::{
    Backend,
    proto::{SimpleRequest, test_service_client::TestServiceClient},
};
use serde_json::Value;

use crate::program::{Running, mainstay, text};

#[test]
fn help_tells_the_commands_and_the_exit_codes() {
    let output = mainstay(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        text(&output.stdout),
        "\
xDS channels that keep working when the control plane does not

Usage: mainstay [OPTIONS] <COMMAND>

Commands:
  demo         Watch a small mesh survive the death of its parts, in one process and without any
               setup
  serve        Serve the xDS resources in a directory of YAML and JSON files, and follow their
               changes
  publish      Publish a directory to etcd, as a generation that replicas switch to as a whole
  check        Find what is wrong with resources and bootstraps before clients do
  backend      Serve grpc.testing.TestService, to have something to send RPCs to
  load         Send RPCs to targets at a steady rate and tell what became of them
  get          Resolve an xDS target as a channel does and show the configuration with its sources
  last-good    Look at last-good files: what channels and servers start from while every control
               plane is down
  record       Write what a client gets for its targets as a file that `mainstay serve` takes
  mirror       Look at a mirror, and decide about updates that it holds back
  explain      Say why a call goes where it goes: routes, filters, cluster, priority, locality,
               endpoint
  inspect      Show what the xDS clients of a running process hold: the tree of `get`, NACKs,
               connections, traces
  status       Ask running processes how their xDS clients are doing: a line for each
  top          Watch the xDS clients of running processes: calls, errors, ages
  diff         Say what two configurations do differently, and what traffic would notice of it
  dash         Show the xDS clients of running processes in a browser, live: fleet, trees, timeline,
               explain, check
  sim          Try the failure rules in simulated worlds, or rehearse outages of your own setup
  soak         Send RPCs for a long time while control planes and backends die and return at random
  swarm        Let many xDS clients fall upon a control plane at once, and measure how they fare
  completions  Print the completions of a shell
  man          Write man pages, one for each command
  help         Print this message or the help of the given subcommand(s)

Options:
      --log <FORMAT>
          How lines about what happens are written, by commands that run until they are ended, and
          on standard error

          Possible values:
          - text: Words
          - json: An object in each line
          
          [default: text]

  -h, --help
          Print help (see a summary with '-h')

  -V, --version
          Print version

Exit codes:
  0  done; also when a signal or the reader of the output ended it
  1  it could not be done; the error says why and what to do
  2  the command line was wrong
  3  it ran, but RPCs failed that should not have
  4  it ran, but only a part of the configuration can be used

Environment:
  GRPC_XDS_BOOTSTRAP         the file of the bootstrap for xds: targets
  GRPC_XDS_BOOTSTRAP_CONFIG  its content, where there is no file
  RUST_LOG                   what to log on standard error, such as mainstay=debug
  NO_COLOR                   no colours
"
    );
}

#[test]
fn the_short_help_of_load_fits_a_screen() {
    let output = mainstay(&["load", "-h"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        text(&output.stdout),
        "\
Send RPCs to targets at a steady rate and tell what became of them

Usage: mainstay load [OPTIONS] <TARGET>...

Arguments:
  <TARGET>...  What to call: xDS names (xds:///greeter), or servers through tonic's own channel
               (http://127.0.0.1:50051)

Options:
      --qps <N>              Calls per second and target [default: 10]
      --duration <T>         How long to send, such as 10s or 5m [default: until a signal]
      --rpc-timeout <T>      The deadline of each call [default: 20s]
      --wait-for-ready       Let calls wait for a connection instead of failing while there is none
                             (xds: targets only)
      --method <METHOD>      The method to call, such as /hello.Greeter/SayHello [default:
                             /grpc.testing.TestService/UnaryCall]
      --data <JSON>          The request as JSON, or @FILE with it; needs --method [default: an
                             empty message]
      --descriptors <FILE>   Where the types of --data are: a descriptor set of `protoc
                             --include_imports --descriptor_set_out` [default: the server is asked,
                             by reflection]
  -H, --header <NAME:VALUE>  Metadata of each call, such as x-user:42; may be given more than once
      --credentials <KIND>   How connections to endpoints are secured: insecure; as the control
                             plane says (xds), in plaintext where it says nothing; or tls, where
                             endpoints must have the name of the target [default: insecure]
      --ca <FILE>            With --credentials tls: the certificates of the authorities to trust,
                             in PEM [default: those of the system]
      --cert <FILE>          With --credentials tls: our certificate, for endpoints that ask for one
                             (mTLS)
      --key <FILE>           With --credentials tls: the private key of --cert
      --last-good <DIR>      Keep what the control plane says in files of this directory, and start
                             from them while it is down
      --admin <ADDR>         Serve CSDS at this HOST:PORT: what the channels hold, from which
                             server, and what is wrong with it
      --fail-on-failed-rpc   End with exit code 3 if any call failed
      --json                 Print each finished call as a line of JSON: t0, t, ms, target, ok,
                             code, server_id, details
      --log <FORMAT>         How lines about what happens are written, by commands that run until
                             they are ended, and on standard error [default: text] [possible values:
                             text, json]
  -h, --help                 Print help (see more with '--help')
"
    );
}

#[test]
fn a_wrong_command_line_is_exit_code_2_and_says_what_was_expected() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["load", "127.0.0.1:1"],
            "error: invalid value '127.0.0.1:1' for '<TARGET>...': expected an xDS name such as xds:///greeter, or one \
             server such as http://127.0.0.1:50051\n\nFor more information, try '--help'.\n",
        ),
        (
            &["load", "http://a:1", "--qps", "0"],
            "error: invalid value '0' for '--qps <N>': expected a number from 0.001 to 100000\n\n\
             For more information, try '--help'.\n",
        ),
        (
            &["load", "http://a:1", "--duration", "soon"],
            "error: invalid value 'soon' for '--duration <T>': expected a span such as 500ms, 10s or 1m 30s\n\n\
             For more information, try '--help'.\n",
        ),
        (
            &["load", "http://a:1", "--wait-for-ready"],
            "error: --wait-for-ready cannot be had for http://a:1: tonic's own channel has no such mode\n\n  \
             tip: drop the flag, or call an xds: target\n",
        ),
        (
            &["backend", "--listen", "nowhere"],
            "error: --listen nowhere: invalid socket address\n\n  \
             tip: give HOST:PORT, such as 127.0.0.1:50051; port 0 lets the system choose\n",
        ),
        (
            &["backend", "--hostname", "ü"],
            "error: \"ü\" cannot be a host name: it goes into a header\n\n  \
             tip: use ASCII letters, digits and hyphens\n",
        ),
        (
            &["status", "nowhere"],
            "error: invalid value 'nowhere' for '[ADDR]...': expected HOST:PORT of an admin port (CSDS), \
             envoy:HOST:PORT, dir:PATH, file:PATH, or live\n\nFor more information, try '--help'.\n",
        ),
        (
            &["rehearse"],
            "error: unrecognized subcommand 'rehearse'\n\nUsage: mainstay [OPTIONS] <COMMAND>\n\n\
             For more information, try '--help'.\n",
        ),
    ];
    for (args, expected) in cases {
        let output = mainstay(args);
        assert_eq!(text(&output.stderr), *expected, "{args:?}");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_exit_code_1_with_a_tip() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let holder = TcpListener::bind(&taken).unwrap();
    let output = mainstay(&["backend", "--listen", &taken]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        format!(
            "error: cannot listen on {taken}: Address already in use (os error 98)\n\n  \
             tip: another program listens there; stop it, or use port 0 to let the system choose\n"
        )
    );
    drop(holder);
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_serves_until_a_signal_and_counts() {
    for signal in ["TERM", "INT"] {
        let mut process = Running::start(&["backend", "--id", "one"]);
        let line = process.line();
        let address = line.strip_prefix("backend one listening on ").expect("the first line tells the address");
        let mut client = TestServiceClient::connect(format!("http://{address}")).await.unwrap();
        let request = SimpleRequest { fill_server_id: true, ..SimpleRequest::default() };
        assert_eq!(client.unary_call(request).await.unwrap().into_inner().server_id, "one");
        process.signal(signal);
        let (code, stdout, stderr) = process.end();
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "backend one served 1 requests\n", ""));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn load_prints_every_finished_call_of_every_target() {
    // I-3
    let backends = [backend("one").await, backend("two").await];
    let [one, two] = backends.each_ref().map(|backend| format!("http://{}", backend.addr()));
    let output = mainstay(&["load", &format!("{one},{two}"), "--qps", "50", "--duration", "400ms", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2 * 20);
    for (target, id) in [(&one, "one"), (&two, "two")] {
        let calls: Vec<_> = lines.iter().filter(|line| line["target"] == **target).collect();
        assert_eq!(calls.len(), 20);
        for call in calls {
            assert_eq!((&call["ok"], &call["code"], &call["server_id"]), (&true.into(), &"OK".into(), &id.into()));
            assert!(call["details"].is_null());
            let [t0, t, ms] = ["t0", "t", "ms"].map(|key| call[key].as_f64().unwrap());
            assert!(t0 > 1.7e9 && (t - t0 - ms / 1e3).abs() < 1e-4, "{call}");
        }
    }
    assert_eq!(backends.each_ref().map(Backend::requests), [20, 20]);
    let summary = text(&output.stderr);
    assert!(summary.contains(&format!("{one}: 20 RPCs in ")) && summary.contains("backends  two 100%"), "{summary}");
}

#[tokio::test(flavor = "multi_thread")]
async fn load_without_json_prints_only_the_summary() {
    let backend = backend("one").await;
    let target = format!("http://{}", backend.addr());
    let output = mainstay(&["load", &target, "--qps", "100", "--duration", "0.1", "--fail-on-failed-rpc"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
    let stdout = text(&output.stdout);
    let lines: Vec<_> = stdout.lines().collect();
    let [head, latency, backends] = lines[..] else { panic!("{stdout}") };
    assert!(head.starts_with(&format!("{target}: 10 RPCs in ")) && head.ends_with(" 10 answered, 0 failed"), "{head}");
    for name in ["p50 ", "p90 ", "p99 ", "max ", " ms"] {
        assert!(latency.contains(name), "{latency}");
    }
    assert_eq!(backends, "  backends  one 100%");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_load_cleanly() {
    let backend = backend("one").await;
    let target = format!("http://{}", backend.addr());
    for signal in ["TERM", "INT"] {
        let mut process = Running::start(&["load", &target, "--qps", "50", "--json"]);
        let first: Value = serde_json::from_str(&process.line()).unwrap();
        assert_eq!(first["server_id"], "one");
        process.signal(signal);
        let (code, stdout, stderr) = process.end();
        assert_eq!(code, 0);
        assert!(stdout.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{stdout}");
        assert!(stderr.starts_with(&target) && stderr.contains(" 0 failed\n"), "{stderr}");
    }
}

#[test]
fn failed_calls_are_told_and_are_exit_code_3_only_on_request() {
    // Kept to the end, so that nobody else is given its port.
    let gone = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut backend = backend("gone").await;
        backend.stop().await;
        backend
    });
    let target = format!("http://{}", gone.addr());
    let args = ["load", &target, "--qps", "20", "--duration", "100ms", "--json"];
    let output = mainstay(&args);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert_eq!((&line["ok"], &line["code"]), (&false.into(), &"UNAVAILABLE".into()));
        assert!(line["server_id"].is_null() && line["details"].is_string(), "{line}");
    }
    let output = mainstay(&[&args[..], &["--fail-on-failed-rpc"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).ends_with("error: 2 of 2 RPCs failed\n"), "{}", text(&output.stderr));
}

#[test]
fn a_server_that_never_answers_delays_nothing_and_ends_each_call_at_its_deadline() {
    // I-3: twenty calls at 100/s, each hanging for a second. A closed loop would need twenty.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}", silent.local_addr().unwrap());
    let args = ["load", &target, "--qps", "100", "--duration", "200ms", "--rpc-timeout", "1s", "--json"];
    let output = mainstay(&args);
    let lines: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 20);
    assert!(lines.iter().all(|line| line["code"] == "DEADLINE_EXCEEDED"), "{lines:?}");
    let starts: Vec<_> = lines.iter().map(|line| line["t0"].as_f64().unwrap()).collect();
    let first_end = lines.iter().map(|line| line["t"].as_f64().unwrap()).fold(f64::INFINITY, f64::min);
    assert!(starts.iter().all(|&t0| t0 < first_end), "every call begins before the first one ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_ends_load_with_success() {
    let backend = backend("one").await;
    let mut process = Running::start(&["load", &format!("http://{}", backend.addr()), "--qps", "50", "--json"]);
    process.line();
    let code = process.abandon_stdout();
    assert_eq!(code, 0);
}

async fn backend(id: &str) -> Backend {
    Backend::spawn("127.0.0.1:0", id).await.unwrap()
}
