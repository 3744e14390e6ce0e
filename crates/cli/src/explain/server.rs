//! What a server does with a connection and a call: filter chain, virtual host, route, and each RBAC filter (OP-5).

use std::{fmt, net::SocketAddr, path::Path, sync::Arc};

use http::{HeaderMap, Method};
use mainstay_check::{Body, Item};
use mainstay_lb::{
    Caller, CallerCertificate, Facts, Mismatch, Step, Trace,
    identity::SubjectAltNames,
    serve::{ChainRoutes, Decision, Refusal, Request},
};
use mainstay_sim::Seeded;
use mainstay_xds::{
    bootstrap::{Bootstrap, Guards, ServerConfig},
    resource::{
        ParseContext, Resource, ResourceType, RouteConfig, decode,
        listener::{FilterChain, Listener, RouteSource, ServerListener},
    },
};
use serde::Serialize;

use super::words;
use crate::{
    check::source::Source,
    failure::Failure,
    get::clean,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
};

/// What is asked.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The address that the server listens on.
    pub(super) server: SocketAddr,
    /// Who calls.
    pub(super) peer: SocketAddr,
    /// The URI names of the caller's certificate.
    pub(super) sans: Vec<String>,
    pub(super) authority: Option<String>,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) source: Source,
    pub(super) bootstrap: Option<std::path::PathBuf>,
    pub(super) seed: u64,
    pub(super) json: bool,
}

/// The way of a call through a server.
#[derive(Debug, Serialize)]
struct Told {
    server: String,
    listener: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_chain: Option<String>,
    tls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<usize>,
    /// The routes before it, and why not.
    passed: Vec<(usize, String)>,
    filters: Vec<Filter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
}

/// What an RBAC filter said.
#[derive(Debug, Serialize)]
struct Filter {
    name: String,
    allowed: bool,
    /// The first policy that matches.
    policy: Option<String>,
}

/// Explains one call to a server.
pub(super) async fn run(settings: &Settings, output: &mut Output) -> Result<(), Failure> {
    let bootstrap = bootstrap(settings.bootstrap.as_deref())?;
    let inputs = settings.source.gather(None).await?;
    let items: Vec<Item> = inputs.into_iter().flat_map(|(_, input)| input.items).collect();
    let (name, listener) = listener(settings.server, &items, &bootstrap)?;
    let told = decide(settings, name, &listener, &items, &bootstrap)?;
    if settings.json {
        output.json(&told)?;
    } else {
        output.line(&told)?;
    }
    match told.error {
        None => Ok(()),
        Some(error) => Err(Failure::calls(format!("the call would not reach the application: {error}"))),
    }
}

fn decide(
    settings: &Settings,
    listener_name: String,
    listener: &ServerListener,
    items: &[Item],
    bootstrap: &Bootstrap,
) -> Result<Told, Failure> {
    let mut told = Told {
        server: settings.server.to_string(),
        listener: listener_name,
        filter_chain: None,
        tls: false,
        virtual_host: None,
        route: None,
        passed: Vec::new(),
        filters: Vec::new(),
        error: None,
        code: None,
    };
    let Some(place) = listener.choose(settings.server.ip(), settings.peer) else {
        told.error = Some(format!("no filter chain is for connections from {}: it is closed", settings.peer));
        return Ok(told);
    };
    let chain = &listener.chains[place];
    told.filter_chain = Some(chain.name.to_string());
    told.tls = chain.tls.is_some();
    let routes = routes(chain, items, bootstrap)?;
    let authority = settings.authority.clone().unwrap_or_else(|| settings.server.to_string());
    let host = routes.as_ref().and_then(|routes| routes.virtual_host(&authority));
    told.virtual_host = host.map(|host| {
        let domains: Vec<_> = host.domains.iter().map(words::domain).collect();
        format!("{:?} (domains {})", host.name, domains.join(", "))
    });
    let chain_routes = ChainRoutes::new(&chain.http, routes.as_deref());
    let (method, path) = (Method::POST, settings.path.as_str());
    let request = Request { method: &method, path, authority: Some(&authority), headers: &settings.headers };
    let trace = Trace::default();
    let decision = chain_routes.decide_traced(&request, &mut Seeded::new(settings.seed), &trace);
    for step in trace.into_steps() {
        match step {
            Step::Matched { route, .. } => told.route = Some(route),
            Step::Passed { route, why } => told.passed.push((route, mismatch(why).to_owned())),
            _ => {}
        }
    }
    let refused = match decision {
        Decision::Refuse(refusal) => Some(refusal),
        Decision::Pass { authority, filters, then } => {
            let names = SubjectAltNames { uri: settings.sans.clone(), ..SubjectAltNames::default() };
            let certificate = CallerCertificate { names, subject: String::new() };
            let facts = Facts {
                path,
                authority,
                method: method.as_str(),
                headers: &settings.headers,
                local: settings.server,
                peer: settings.peer,
                caller: match (told.tls, settings.sans.is_empty()) {
                    (false, _) => Caller::Plaintext,
                    (true, true) => Caller::Anonymous,
                    (true, false) => Caller::Certified(&certificate),
                },
            };
            let mut refused = None;
            for (name, verdict) in filters.verdicts(&facts) {
                let policy = verdict.policy.map(str::to_owned);
                told.filters.push(Filter { name: name.to_owned(), allowed: verdict.allowed, policy });
                if !verdict.allowed {
                    refused = Some(Refusal::Unauthorized);
                    break;
                }
            }
            refused.or(then.err())
        }
    };
    told.error = refused.map(|refusal| refusal.to_string());
    told.code = refused.map(|refusal| refusal.code().name());
    Ok(told)
}

fn mismatch(why: Mismatch) -> &'static str {
    match why {
        Mismatch::Path => "path",
        Mismatch::Header(_) => "headers",
        Mismatch::Fraction(_) => "fraction",
    }
}

// --- What is there ---

fn bootstrap(file: Option<&Path>) -> Result<Bootstrap, Failure> {
    let Some(file) = file else {
        let server = ServerConfig::insecure("unknown");
        return Bootstrap::builder().server(server).build().map_err(|error| Failure::failed(error.to_string()));
    };
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", file.display())))?;
    Bootstrap::parse(&text, Guards::from_vars(|name| std::env::var(name).ok()))
        .map_err(|error| Failure::failed(format!("{} is not a usable bootstrap: {error}", file.display())))
}

/// The Listener for an address.
fn listener(
    address: SocketAddr,
    items: &[Item],
    bootstrap: &Bootstrap,
) -> Result<(String, Arc<ServerListener>), Failure> {
    let mut others = Vec::new();
    for item in items.iter().filter(|item| item.kind() == "Listener") {
        match read(item, ResourceType::Listener, bootstrap) {
            Some(Ok(Resource::Listener(listener))) => match &*listener {
                Listener::Server(listener) if listener.is_for(address) => {
                    return Ok((item.name.clone(), listener.clone()));
                }
                Listener::Server(listener) => others.push(format!("{} ({})", item.name, listener.address)),
                Listener::Api(_) => {}
            },
            Some(Err(error)) => others.push(format!("{} (rejected: {error})", item.name)),
            Some(Ok(_)) | None => {}
        }
    }
    let failure = Failure::failed(format!("there is no Listener for a server at {address}"));
    Err(match &others[..] {
        [] => failure,
        others => failure.tip(format!("there are {}", clean(&others.join(", ")))),
    })
}

/// The routes of a chain; none if they cannot be had.
fn routes(chain: &FilterChain, items: &[Item], bootstrap: &Bootstrap) -> Result<Option<Arc<RouteConfig>>, Failure> {
    let name = match &chain.http.routes {
        RouteSource::Inline(routes) => return Ok(Some(routes.clone())),
        RouteSource::Rds(name) => name,
    };
    let item = items.iter().find(|item| item.kind() == "RouteConfiguration" && item.name == *name);
    match item.and_then(|item| read(item, ResourceType::RouteConfig, bootstrap)) {
        Some(Ok(Resource::RouteConfig(routes))) => Ok(Some(routes)),
        Some(Err(error)) => Err(Failure::failed(format!("RouteConfiguration {name:?} is rejected: {error}"))),
        Some(Ok(_)) | None => Ok(None),
    }
}

fn read(item: &Item, resource_type: ResourceType, bootstrap: &Bootstrap) -> Option<Result<Resource, String>> {
    let Body::Message(bytes) = &item.body else { return None };
    let cx = ParseContext { bootstrap, server: bootstrap.servers.first()? };
    Some(decode(resource_type, bytes, cx).result.map_err(|invalid| invalid.to_string()))
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  listener {}", styled(TITLE, &self.server), clean(&self.listener))?;
        let tls = if self.tls { "TLS" } else { "plaintext" };
        if let Some(chain) = &self.filter_chain {
            write!(f, "\n{:<14}{}  {}", "filter chain", clean(chain), styled(DIM, tls))?;
        }
        if let Some(host) = &self.virtual_host {
            write!(f, "\n{:<14}{}", "virtual host", clean(host))?;
        }
        if let Some(route) = self.route {
            let passed: Vec<_> = self.passed.iter().map(|(at, why)| format!("#{at} no: {why}")).collect();
            write!(f, "\n{:<14}#{route}  {}", "route", styled(DIM, passed.join("   ")))?;
        }
        for filter in &self.filters {
            let policy = match &filter.policy {
                Some(policy) => format!("policy {policy:?} matches"),
                None => "no policy matches".to_owned(),
            };
            let verdict = if filter.allowed { styled(GOOD, "lets it pass") } else { styled(BAD, "refuses it") };
            write!(f, "\n{:<14}{}  {verdict}: {}", "rbac", clean(&filter.name), clean(&policy))?;
        }
        match (&self.error, self.code) {
            (None, _) => write!(f, "\n{}", styled(GOOD, "handed to the application")),
            (Some(error), Some(code)) => write!(f, "\n{} {code}: {error}", styled(BAD, "refused")),
            (Some(error), None) => write!(f, "\n{}: {error}", styled(BAD, "refused")),
        }
    }
}
