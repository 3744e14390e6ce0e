//! A driver that panics is started again, and those who are served notice nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mainstay::ServingState;
use mainstay_control_plane::{Snapshot, TypeUrl};

use super::stage::{Stage, call, listener, routes};
use super::updates::{Streaming, named, until_chain};
use crate::common::in_time;
use crate::panics::Bomb;

/// The next driver takes over ports and connections; what is the same drains nothing.
#[tokio::test]
async fn a_driver_that_panics_takes_nothing_with_it() {
    let (mut stage, bomb) = (Stage::serving().await, Arc::new(AtomicUsize::new(usize::MAX)));
    assert_eq!(stage.next_state().await, ServingState::Serving);
    let _guard = tracing::subscriber::set_default(Bomb(bomb.clone()));
    let mut caller = stage.caller().await;
    call(&mut caller).await.unwrap();
    for version in ["7", "8"] {
        crash(&stage, &bomb, version, listener(stage.address, routes())).await;
        call(&mut caller).await.unwrap();
        call(&mut stage.caller().await).await.unwrap();
    }
    assert_eq!(stage.seen.callers(), 3, "the first connection stayed");
    assert!(stage.states.try_recv().is_err(), "nothing has changed for anybody");
    // And what is new comes in force, with a drain of what is not.
    let mut streaming = Streaming::begin(caller.clone()).await;
    crash(&stage, &bomb, "9", named("second", &stage)).await;
    until_chain(&stage, "second").await;
    streaming.exchange().await;
    streaming.finish().await;
    drop(caller);
    stage.until_connections(0).await;
}

/// A server whose driver has just crashed is shut down like any other.
#[tokio::test]
async fn a_server_is_shut_down_after_a_panic() {
    let (stage, bomb) = (Stage::serving().await, Arc::new(AtomicUsize::new(usize::MAX)));
    let _guard = tracing::subscriber::set_default(Bomb(bomb.clone()));
    let streaming = Streaming::begin(stage.caller().await).await;
    stage.control.faults().silent(true);
    bomb.store(1, Ordering::Relaxed);
    stage.control.close_streams(tonic::Code::Unavailable);
    in_time(async {
        while bomb.load(Ordering::Relaxed) != 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    let ended = tokio::spawn(stage.running.shutdown());
    streaming.finish().await;
    in_time(ended).await.unwrap();
}

/// Lets the driver panic over this configuration, and waits until another one has taken it in.
async fn crash(
    stage: &Stage,
    bomb: &AtomicUsize,
    version: &str,
    listener: envoy_types::pb::envoy::config::listener::v3::Listener,
) {
    let mut events = stage.control.events();
    bomb.store(1, Ordering::Relaxed);
    stage.control.control_plane().set(Snapshot::builder().listener(listener).version(TypeUrl::LISTENER, version));
    in_time(async {
        while bomb.load(Ordering::Relaxed) != 0 {
            tokio::task::yield_now().await
        }
    })
    .await;
    in_time(async {
        loop {
            let answer = events.answer(TypeUrl::LISTENER).await.unwrap();
            // The first driver died before it could answer.
            if answer.version == version {
                break;
            }
        }
    })
    .await;
}
