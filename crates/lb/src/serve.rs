//! What a server does with a connection and with an RPC, as its Listener says (A36).
//!
//! Everything here is a pure function of values that are made once per update: [`admit`] for a connection,
//! [`ChainRoutes::decide`] for an RPC. In this order an RPC is looked at (SV-26): whether it is well formed, which virtual
//! host, which route, the filters one by one, what the route does with it, the application.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mainstay_xds::resource::RouteConfig;
use mainstay_xds::resource::filter::HttpFilter;
use mainstay_xds::resource::listener::{FilterChain, HttpConnectionManager};
use mainstay_xds::resource::route::{RouteAction, VirtualHost};
use mainstay_xds::resource::tls::DownstreamTls;
use mainstay_xds::serve::Serving;
use mainstay_xds::{Choose, Code};

use crate::authz::{Authorization, Authorizers};
use crate::routing::RouteTable;
use crate::rpc::Rpc;
use crate::trace::Recorder;

mod domains;
mod request;

pub use request::{Request, WellFormed};

use domains::Domains;

/// What becomes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission<'a> {
    /// Close it without a byte: nothing is served, or no chain is for it (SV-19).
    Close,
    /// Secure it like this, and close it if that fails, whatever the cause (TL-1).
    Tls(usize, &'a Arc<DownstreamTls>),
    /// Secure it as the credentials of the server say: these do not follow the control plane, or it asks for nothing.
    Own(usize),
}

/// What becomes of a connection from `source` that was accepted at the local address `destination`. Chains are places in
/// those of the listener. `follows_xds` is whether the credentials of the server let the control plane secure connections.
pub fn admit(serving: Option<&Serving>, destination: IpAddr, source: SocketAddr, follows_xds: bool) -> Admission<'_> {
    let Some(serving) = serving else { return Admission::Close };
    let Some(place) = serving.listener.choose(destination, source) else { return Admission::Close };
    match &serving.listener.chains[place].tls {
        Some(tls) if follows_xds => Admission::Tls(place, tls),
        Some(_) | None => Admission::Own(place),
    }
}

/// The routes of a filter chain, ready for use. Made when they change, for all connections of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainRoutes {
    content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    /// The RouteConfiguration cannot be had (S-17).
    Missing,
    Hosts {
        domains: Domains,
        hosts: Box<[Host]>,
        /// The filters of RPCs for no virtual host.
        filters: Authorization,
    },
}

/// A virtual host.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    routes: RouteTable,
    /// The filters of routes without overrides, and of RPCs for no route.
    filters: Authorization,
    /// Those of other routes, by place.
    overridden: Box<[Option<Authorization>]>,
}

/// What becomes of an RPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// Answer with this at once.
    Refuse(Refusal),
    /// Let these filters judge it, in order. If all let it pass: refuse it, or hand it to the application.
    Pass {
        /// Whom it is for; the only one (S-48).
        authority: &'a str,
        /// Those of its route: RBAC is the only kind that does anything on a server.
        filters: &'a Authorization,
        /// After the filters (SV-28).
        then: Result<(), Refusal>,
    },
}

/// Why an RPC is not handed to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The method is not POST.
    Method,
    /// The path is not `/service/method`.
    Path,
    /// There is no authority.
    NoAuthority,
    /// There is more than one authority (S-48).
    SeveralAuthorities,
    /// The RouteConfiguration of the chain cannot be had (S-17).
    NoRoutes,
    /// No virtual host is for the authority.
    NoVirtualHost,
    /// No route of the virtual host matches.
    NoRoute,
    /// A filter refuses it (AZ-8).
    Unauthorized,
    /// The route is not for servers; the name of its action.
    Action(&'static str),
}

impl ChainRoutes {
    /// The routes of a chain; none if they cannot be had.
    pub fn new(http: &HttpConnectionManager, routes: Option<&RouteConfig>) -> Self {
        let Some(routes) = routes else { return Self { content: Content::Missing } };
        let mut ready = Authorizers::default();
        let filters = Authorization::sharing(&mut ready, &http.filters, &[]);
        let host = |host: &Arc<VirtualHost>| Host::new(host, &http.filters, &mut ready);
        let hosts = routes.virtual_hosts.iter().map(host).collect();
        let content = Content::Hosts { domains: Domains::new(routes), hosts, filters };
        Self { content }
    }

    /// Decides about an RPC. Without allocation, as long as no header that a route looks at comes more than once.
    pub fn decide<'a>(&'a self, request: &Request<'a>, choose: &mut dyn Choose) -> Decision<'a> {
        self.decide_traced(request, choose, ())
    }

    /// The same, and `recorder` hears which routes were looked at (OP-3, OP-5).
    pub fn decide_traced<'a, R: Recorder>(
        &'a self,
        request: &Request<'a>,
        choose: &mut dyn Choose,
        recorder: R,
    ) -> Decision<'a> {
        let WellFormed { authority, path } = match request.check() {
            Ok(well_formed) => well_formed,
            Err(refusal) => return Decision::Refuse(refusal),
        };
        let Content::Hosts { domains, hosts, filters } = &self.content else {
            return Decision::Refuse(Refusal::NoRoutes);
        };
        let Some(host) = domains.find(authority).and_then(|place| hosts.get(place)) else {
            return Decision::Pass { authority, filters, then: Err(Refusal::NoVirtualHost) };
        };
        let Some(found) = host.routes.find(Rpc { path, headers: request.headers }, choose, recorder) else {
            return Decision::Pass { authority, filters: &host.filters, then: Err(Refusal::NoRoute) };
        };
        let overridden = host.overridden.get(found.at).and_then(Option::as_ref);
        let then = match &found.route.action {
            RouteAction::NonForwarding => Ok(()),
            RouteAction::Forward(_) => Err(Refusal::Action("route")),
            RouteAction::Unsupported(action) => Err(Refusal::Action(action)),
        };
        Decision::Pass { authority, filters: overridden.unwrap_or(&host.filters), then }
    }
}

impl Host {
    fn new(host: &Arc<VirtualHost>, chain: &[HttpFilter], ready: &mut Authorizers) -> Self {
        let filters = Authorization::sharing(ready, chain, &[&host.overrides]);
        let overridden = host.routes.iter().map(|route| {
            let overrides = [&route.overrides, &host.overrides];
            (!route.overrides.is_empty()).then(|| Authorization::sharing(ready, chain, &overrides))
        });
        Self { overridden: overridden.collect(), filters, routes: RouteTable::new(Arc::clone(host), chain) }
    }
}

// === impl Refusal ===

impl Refusal {
    /// The gRPC status code of the answer.
    pub const fn code(self) -> Code {
        match self {
            Self::Path => Code::Unimplemented,
            Self::Unauthorized => Code::PermissionDenied,
            Self::Method | Self::NoAuthority | Self::SeveralAuthorities => Code::Internal,
            Self::NoRoutes | Self::NoVirtualHost | Self::NoRoute | Self::Action(_) => Code::Unavailable,
        }
    }

    /// What the caller is told: of the configuration nothing, as it is not the caller's (SV-29).
    pub const fn message(self) -> &'static str {
        match self {
            Self::Path => "malformed :path: expected /service/method",
            Self::Method => "malformed :method: expected POST",
            Self::NoAuthority => "malformed request: no :authority",
            Self::SeveralAuthorities => "malformed request: more than one authority",
            Self::Unauthorized => "Unauthorized RPC request rejected",
            Self::NoRoutes | Self::NoVirtualHost | Self::NoRoute | Self::Action(_) => {
                "configuration of the server is incomplete"
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    /// For our own log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path | Self::Method | Self::NoAuthority | Self::SeveralAuthorities | Self::Unauthorized => {
                f.write_str(self.message())
            }
            Self::NoRoutes => f.write_str("the RouteConfiguration of the filter chain cannot be had"),
            Self::NoVirtualHost => f.write_str("no virtual host is for the authority of the request"),
            Self::NoRoute => f.write_str("no route of the virtual host matches"),
            Self::Action(action) => {
                write!(f, "matching route has inappropriate action: {action}, expected non_forwarding_action")
            }
        }
    }
}

// === impl Admission ===

impl Admission<'_> {
    /// The chain, if there is one.
    pub fn chain<'a>(&self, serving: &'a Serving) -> Option<&'a Arc<FilterChain>> {
        match self {
            Self::Close => None,
            Self::Tls(place, _) | Self::Own(place) => serving.listener.chains.get(*place),
        }
    }
}

#[cfg(test)]
mod tests;
