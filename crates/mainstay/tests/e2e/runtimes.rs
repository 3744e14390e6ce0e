//! Channels that outlive the runtime on which they were made.

use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mainstay_control_plane::Server;
use mainstay_testservice::Backend;
use mainstay_testservice::proto::SimpleRequest;
use tokio::runtime::Runtime;
use tonic::Code;

use crate::common::{Client, backends, call, client, control_plane, service};

#[test]
fn a_channel_whose_runtime_has_ended_goes_on_on_the_runtime_of_its_next_call() {
    let bed = Testbed::new();
    let (first, second) = (runtime(), runtime());
    let mut client = first.block_on(async { bed.called().await });
    let mut clone = client.clone();
    first.shutdown_timeout(Duration::from_secs(5));
    second.block_on(async {
        assert_eq!(call(&mut client).await.unwrap(), "one");
        assert_eq!(call(&mut clone).await.unwrap(), "one");
        assert_eq!(bed.one.open_connections(), 1, "both go on with one connection");
    });
    drop(second);
    runtime().block_on(async { assert_eq!(call(&mut clone).await.unwrap(), "one") });
}

#[test]
fn calls_that_wait_while_the_runtime_of_their_channel_ends_go_on_here() {
    // Nobody can answer before the first runtime is gone.
    let infrastructure = runtime();
    let (server, mut one) = infrastructure.block_on(async {
        let [mut one] = backends(["one"]).await;
        one.stop().await;
        (control_plane(service(&[&one])).await, one)
    });
    let (first, second) = (runtime(), runtime());
    let channel = first.block_on(async { crate::common::builder(&[&server]).wait_for_ready(true).build().unwrap() });
    let mut client = Client::new(channel);
    let waiting = second.spawn(async move { call(&mut client).await });
    first.shutdown_timeout(Duration::from_secs(5));
    infrastructure.block_on(one.restart()).unwrap();
    assert_eq!(second.block_on(waiting).unwrap().unwrap(), "one");
}

#[test]
fn without_any_runtime_a_call_fails_at_once_and_says_why() {
    let bed = Testbed::new();
    let first = runtime();
    let mut client = first.block_on(async { bed.called().await });
    first.shutdown_timeout(Duration::from_secs(5));
    let call = pin!(client.unary_call(SimpleRequest::default()));
    let Poll::Ready(Err(status)) = call.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the first look tells");
    };
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("the tokio runtime that the channel ran on has ended"), "{}", status.message());
}

#[test]
fn on_a_runtime_that_ends_itself_a_call_fails_and_does_not_spin() {
    let bed = Testbed::new();
    let (first, dead) = (runtime(), runtime());
    let mut client = first.block_on(async { bed.called().await });
    first.shutdown_timeout(Duration::from_secs(5));
    let handle = dead.handle().clone();
    dead.shutdown_timeout(Duration::from_secs(5));
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let _entered = handle.enter();
        let mut call = pin!(client.unary_call(SimpleRequest::default()));
        let outcome = loop {
            if let Poll::Ready(outcome) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break outcome;
            }
        };
        done.send(outcome.map(drop)).unwrap();
    });
    let status = ended.recv_timeout(Duration::from_secs(10)).expect("no call spins").unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("runtime"), "{}", status.message());
}

/// What every test needs, on a runtime that lives on.
struct Testbed {
    runtime: Runtime,
    server: Server,
    one: Backend,
}

impl Testbed {
    fn new() -> Self {
        let runtime = runtime();
        let (server, one) = runtime.block_on(async {
            let [one] = backends(["one"]).await;
            (control_plane(service(&[&one])).await, one)
        });
        Self { runtime, server, one }
    }

    /// A client that has made a call.
    async fn called(&self) -> Client {
        let mut client = client(&[&self.server]);
        assert_eq!(call(&mut client).await.unwrap(), "one");
        client
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        let stopping = self.one.stop();
        self.runtime.block_on(stopping);
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
