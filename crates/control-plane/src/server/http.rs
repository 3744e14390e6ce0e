//! HTTP/2 on one connection, from its first byte to its last: services on it, its age, and how it is sent away.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tonic::body::Body;
use tonic::codegen::{Service as _, http};
use tonic::service::Routes;

use crate::server::Shared;
use crate::server::carrier::{Carrier, Leave, Order};
use crate::server::connection::Secured;
use crate::server::door::Door;
use crate::server::service::Ads;

/// What is served on the connections of one generation of a server.
#[derive(Clone, Debug)]
pub(super) struct Services {
    pub(super) ads: Ads,
    pub(super) others: Routes,
    pub(super) shared: Arc<Shared>,
    pub(super) generation: u64,
}

/// Serves a connection until its end.
pub(super) async fn serve(io: Secured, services: Services) {
    let carrier = Carrier::new(io.id(), io.peer());
    let Services { shared, generation, .. } = &services;
    let (shared, generation) = (Arc::clone(shared), *generation);
    let mut orders = carrier.orders();
    let service = {
        let carrier = carrier.clone();
        hyper::service::service_fn(move |request| answer(services.clone(), carrier.clone(), request))
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(KEEPALIVE))
        .max_send_buf_size(SEND_BUFFER)
        .max_concurrent_streams(STREAMS_PER_CONNECTION);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let mut end = pin!(leave(&shared, generation));
    let mut is_leaving = false;
    loop {
        tokio::select! {
            // An error is the end of the connection as well, and whoever caused it knows.
            _ = connection.as_mut() => return,
            why = end.as_mut(), if !is_leaving => {
                is_leaving = true;
                // GOAWAY goes out before the streams end, so that clients come back on another connection.
                connection.as_mut().graceful_shutdown();
                carrier.leave(why);
            }
            Ok(_) = orders.wait_for(|order| *order == Order::Cut) => return,
        }
    }
}

/// Waits until a connection has to go.
async fn leave(shared: &Shared, generation: u64) -> Leave {
    let mut life = shared.life.subscribe();
    let draining = async move {
        // An error means that the server is gone, and the connection with it.
        let over = match life.wait_for(|life| life.is_ending(generation)).await {
            Ok(life) => life.drain_over,
            Err(_) => Duration::ZERO,
        };
        tokio::time::sleep(Door::moment_of(over)).await;
    };
    let aging = async {
        match shared.door.age() {
            Some(age) => tokio::time::sleep(age).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = draining => Leave::Drain,
        () = aging => Leave::Age,
    }
}

async fn answer(
    services: Services,
    carrier: Carrier,
    mut request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let Services { ads, mut others, .. } = services;
    request.extensions_mut().insert(carrier);
    let service = request.uri().path().trim_start_matches('/').split('/').next();
    if service == Some(Ads::NAME) { Ok(ads.call(request).await) } else { others.call(request).await }
}

const KEEPALIVE: Duration = Duration::from_secs(60);
/// What may wait to be sent on a stream whose client does not read (FB-38).
const SEND_BUFFER: usize = 256 << 10;
/// More than any process has targets: clients of other implementations have one connection for all of their streams, and let those
/// wait without a word that find no room on it.
const STREAMS_PER_CONNECTION: u32 = 10_000;
