//! What connections are served by: one state of the Listener resource, until the next one takes its place.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use mainstay_lb::serve::{Admission, ChainRoutes, admit};
use mainstay_xds::serve::{Drain, Serving};
use tokio::sync::watch;
use tokio::time::Instant;

use super::security::{ChainSecurity, ServerSecurity};
use crate::audit::{Auditor, ChainLoggers};
use crate::random::Random;
use crate::tls::ChainTls;

/// A Listener as it is served, with the routes of the moment.
pub(super) struct Generation {
    serving: Arc<Serving>,
    chains: Vec<Arc<Chain>>,
    security: ServerSecurity,
    /// Keeps certificates fresh while connections may come.
    _tls: Vec<Arc<ChainTls>>,
    drain: watch::Sender<Option<DrainPlan>>,
}

/// A filter chain as it is served. Connections hold it.
pub(super) struct Chain {
    pub(super) name: Arc<str>,
    /// Apart from the rest, because other routes are for running connections too (SV-6).
    pub(super) routes: ArcSwap<ChainRoutes>,
    /// Who is told of its decisions.
    pub(super) audit: ChainLoggers,
}

/// How a generation of connections ends.
#[derive(Clone, Copy, Debug)]
struct DrainPlan {
    drain: Drain,
    /// How many there are.
    connections: usize,
    /// When time began for the core.
    start: Instant,
}

/// Tells a connection when to end.
pub(super) struct Drains(watch::Receiver<Option<DrainPlan>>);

/// When one connection ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionDrain {
    pub(super) goaway_at: Instant,
    pub(super) until: Instant,
}

impl Generation {
    pub(super) fn new(serving: Arc<Serving>, security: &ServerSecurity, auditor: &Arc<Auditor>) -> Self {
        let chains = serving.chains().map(|(chain, routes)| {
            let routes = ChainRoutes::new(&chain.http, routes.as_deref().ok());
            let audit = ChainLoggers::new(auditor.clone());
            Arc::new(Chain { name: chain.name.clone(), routes: ArcSwap::from_pointee(routes), audit })
        });
        let chains = chains.collect();
        let contexts = serving.listener.chains.iter().filter_map(|chain| chain.tls.as_ref());
        if !security.follows_xds() && contexts.clone().next().is_some() {
            tracing::warn!(listener = %serving.name, "filter chains ask for TLS, which the credentials of the server do not follow");
        }
        let tls = contexts.filter_map(|context| security.chain(context)).collect();
        Self { chains, security: security.clone(), _tls: tls, drain: watch::Sender::new(None), serving }
    }

    /// Whether it is one for the same Listener.
    pub(super) fn is_for(&self, serving: &Serving) -> bool {
        self.serving.listener == serving.listener
    }

    /// Follows other routes of the same Listener.
    pub(super) fn follow(&self, serving: &Serving) {
        for (chain, (filter_chain, routes)) in self.chains.iter().zip(serving.chains()) {
            let routes = ChainRoutes::new(&filter_chain.http, routes.as_deref().ok());
            if **chain.routes.load() != routes {
                chain.routes.store(Arc::new(routes));
            }
        }
    }

    /// The chain of a connection and how it is secured; none if it is to be closed.
    pub(super) fn admit(&self, local: SocketAddr, peer: SocketAddr) -> Option<(Arc<Chain>, ChainSecurity)> {
        let (place, security) = match admit(Some(&self.serving), local.ip(), peer, self.security.follows_xds()) {
            Admission::Close => return None,
            Admission::Own(place) => (place, self.security.own()),
            // Without providers there is nothing that it could be secured with.
            Admission::Tls(place, context) => (place, ChainSecurity::Chain(self.security.chain(context)?)),
        };
        Some((self.chains.get(place)?.clone(), security))
    }

    /// Lets its connections end. Those that are still in their handshake, when that is done (SV-22).
    pub(super) fn drain(&self, drain: Drain, start: Instant) {
        let connections = self.drain.receiver_count();
        self.drain.send_replace(Some(DrainPlan { drain, connections, start }));
    }

    pub(super) fn drains(&self) -> Drains {
        Drains(self.drain.subscribe())
    }
}

impl Drains {
    /// Completes when the connection is to end.
    pub(super) async fn begun(&mut self) -> ConnectionDrain {
        let plan = match self.0.wait_for(Option::is_some).await {
            Ok(plan) => *plan,
            Err(_) => None,
        };
        // Nobody is left who could say so. Whoever owns the connection ends it.
        let Some(DrainPlan { drain, connections, start }) = plan else { return std::future::pending().await };
        let goaway_at = start + drain.goaway_at(connections, &mut Random).since_start();
        ConnectionDrain { goaway_at, until: start + drain.until.since_start() }
    }
}
