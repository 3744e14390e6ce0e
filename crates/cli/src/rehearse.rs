//! `mainstay sim --bootstrap FILE --resources DIR`: outages of one's own setup, rehearsed.

mod svg;
mod text;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use envoy_types::pb::envoy::config::listener::v3 as pb;
use mainstay_control_plane::{Body, LoadErrors, load_directory};
use mainstay_sim::{Outage, Rehearsal, Setup};
use mainstay_xds::{
    bootstrap::{Bootstrap, Guards},
    resource::ResourceType,
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::{failure::Failure, output::Output, progress, signals::Signals, span};

#[derive(Args, Debug)]
#[group(skip)] // It would have the name of the command's own.
pub(crate) struct Flags {
    /// Rehearse outages with this bootstrap
    #[arg(long, value_name = "FILE", requires = "resources", conflicts_with = "replay")]
    bootstrap: Option<PathBuf>,

    /// What its servers serve: a directory of YAML and JSON files
    #[arg(long, value_name = "DIR", requires = "bootstrap", conflicts_with = "replay")]
    resources: Option<PathBuf>,

    /// The target of the clients; by default one for each Listener of the directory that is for clients
    #[arg(long, value_name = "TARGET", requires = "bootstrap")]
    target: Option<String>,

    /// Outages that may cost calls, as the rehearsal calls them: down-at-start@all, or down-at-start for any server
    #[arg(long, value_name = "OUTAGE", value_delimiter = ',', requires = "bootstrap")]
    allow: Vec<String>,

    /// How long calls may wait: those that would wait longer are lost
    #[arg(long, value_name = "T", default_value = "15s", value_parser = span::parse, requires = "bootstrap")]
    deadline: Duration,

    /// Draw the timelines into this file
    #[arg(long, value_name = "FILE", requires = "bootstrap")]
    svg: Option<PathBuf>,

    /// Print one object of JSON for each target
    #[arg(long, requires = "bootstrap")]
    json: bool,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    bootstrap: PathBuf,
    resources: PathBuf,
    target: Option<String>,
    allow: BTreeSet<String>,
    deadline: Duration,
    svg: Option<PathBuf>,
    json: bool,
}

impl Flags {
    /// `None` if nothing is to be rehearsed.
    pub(crate) fn resolve(self) -> Option<Settings> {
        let Self { bootstrap, resources, target, allow, deadline, svg, json } = self;
        let (bootstrap, resources, allow) = (bootstrap?, resources?, allow.into_iter().collect());
        Some(Settings { bootstrap, resources, target, allow, deadline, svg, json })
    }
}

/// Rehearses, tells, and fails if calls are lost.
pub(crate) async fn run(settings: &Settings, mut signals: Signals, output: &mut Output) -> Result<(), Failure> {
    let setups = setups(settings)?;
    // Beside the signals, which may end it.
    let work = tokio::task::spawn_blocking(move || setups.iter().map(Setup::rehearse).collect::<Vec<Rehearsal>>());
    let rehearsals = tokio::select! {
        done = progress::shown("rehearsing outages", work) => {
            done.map_err(|error| Failure::failed(format!("the rehearsal ended early: {error}")))?
        }
        () = signals.next() => return Ok(()),
    };
    if let Some(file) = &settings.svg {
        std::fs::write(file, svg::draw(&rehearsals))
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", file.display())))?;
    }
    let is_allowed = |outage: &Outage| allows(&settings.allow, &outage.id);
    let outages = || rehearsals.iter().flat_map(|rehearsal| &rehearsal.outages);
    let is_known = |name: &&String| outages().any(|outage| is_named(name, &outage.id));
    if let Some(unknown) = settings.allow.iter().find(|name| !is_known(name)) {
        let ids: BTreeSet<_> = outages().map(|outage| outage.id.as_str()).collect();
        let ids: Vec<_> = ids.into_iter().collect();
        return Err(Failure::usage(format!("--allow {unknown}: there is no such outage"))
            .tip(format!("there are {}", ids.join(", "))));
    }
    for (at, rehearsal) in rehearsals.iter().enumerate() {
        if settings.json {
            output.json(&as_json(rehearsal, &is_allowed))?;
        } else {
            if at > 0 {
                output.line("")?;
            }
            text::tell(rehearsal, &is_allowed, output)?;
        }
    }
    let costly = outages().filter(|outage| !outage.costs.is_empty() && !is_allowed(outage)).count();
    match costly {
        0 => Ok(()),
        _ => {
            let remedies = rehearsals.iter().flat_map(|rehearsal| &rehearsal.remedies);
            let helps = remedies.map(|remedy| format!("{} would mend {}", remedy.what, remedy.mended.join(", ")));
            let broken = outages().any(|outage| outage.id == CALM && !outage.costs.is_empty());
            let check =
                format!("`mainstay check {}` says what is wrong with the resources", settings.resources.display());
            let known = "--allow OUTAGE is for those that are known".to_owned();
            let tips: Vec<_> = helps.chain(broken.then_some(check)).chain([known]).collect();
            let total = outages().count() - rehearsals.len();
            let what = if broken { "calls are lost without any outage, and" } else { "calls are lost" };
            let costly = costly - outages().filter(|o| o.id == CALM && !o.costs.is_empty() && !is_allowed(o)).count();
            Err(Failure::failed(format!("{what} in {costly} of {total} outages")).tip(tips.join("\n       ")))
        }
    }
}

fn allows(allowed: &BTreeSet<String>, id: &str) -> bool {
    allowed.iter().any(|name| is_named(name, id))
}

/// Whether a name is that of an outage, of whatever server if it names none.
fn is_named(name: &str, id: &str) -> bool {
    name == id || id.split_once('@').is_some_and(|(kind, _)| kind == name)
}

// --- What is rehearsed ---

fn setups(settings: &Settings) -> Result<Vec<Setup>, Failure> {
    let Settings { bootstrap, resources, target, deadline, .. } = settings;
    let text = std::fs::read_to_string(bootstrap)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", bootstrap.display())))?;
    let parsed = Bootstrap::parse(&text, Guards::from_vars(|name| std::env::var(name).ok()))
        .map_err(|error| Failure::usage(format!("{} is not a usable bootstrap: {error}", bootstrap.display())))?;
    let snapshots = load_directory(resources).map_err(|errors| unreadable(resources, &errors))?;
    let messages: Vec<_> = (snapshots.default.resources())
        .filter_map(|resource| match resource.body {
            Body::Message(any) => {
                let resource_type = ResourceType::from_type_url(resource.type_url.as_str())?;
                Some((resource_type, resource.name, bytes::Bytes::from(any.value)))
            }
            Body::Error { .. } => None,
        })
        .collect();
    let listeners = || messages.iter().filter(|(kind, ..)| *kind == ResourceType::Listener);
    let targets = match target {
        Some(target) => vec![target.clone()],
        None => {
            // One that no client takes is rehearsed, too: calls are lost by it.
            let is_for_clients = |bytes: &bytes::Bytes| {
                pb::Listener::decode(bytes.clone())
                    .map_or(true, |listener| listener.api_listener.is_some() || listener.address.is_none())
            };
            let for_clients = listeners().filter(|(_, _, bytes)| is_for_clients(bytes));
            for_clients.map(|(_, name, _)| format!("xds:///{name}")).collect()
        }
    };
    if targets.is_empty() {
        return Err(Failure::usage(format!("{} has no Listener for clients", resources.display()))
            .tip("name a target with --target"));
    }
    let setup = |target: &String| {
        let setup = Setup::new(target, parsed.clone(), messages.clone())
            .map_err(|error| Failure::usage(format!("--target: {error}")))?
            .deadline(*deadline);
        let wanted = setup.listener();
        if listeners().any(|(_, name, _)| name == wanted) {
            return Ok(setup);
        }
        let known: Vec<_> = listeners().map(|(_, name, _)| format!("{name:?}")).collect();
        Err(Failure::usage(format!("{target} needs the Listener {wanted:?}, which is not in {}", resources.display()))
            .tip(format!("the Listeners there are {}", known.join(", "))))
    };
    targets.iter().map(setup).collect()
}

fn unreadable(directory: &Path, errors: &LoadErrors) -> Failure {
    let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
    Failure::usage(format!("cannot read {}:{}", directory.display(), reasons.concat()))
}

// --- For programs ---

fn as_json(rehearsal: &Rehearsal, is_allowed: &dyn Fn(&Outage) -> bool) -> Value {
    let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let calls = rehearsal.calls.iter().map(|call| {
        let headers = call.request.headers.iter();
        let headers = headers.map(|(name, value)| (name.to_string(), json!(value.to_str().unwrap_or_default())));
        json!({
            "path": call.request.path,
            "headers": headers.collect::<serde_json::Map<_, _>>(),
            "cluster": call.cluster,
            "percent": call.percent,
            "usual": call.usual.name(),
        })
    });
    let outages = rehearsal.outages.iter().map(|outage| {
        let costs = outage.costs.iter();
        let costs = costs.map(|cost| json!({"call": cost.call, "lost_ms": ms(cost.lost), "why": cost.why}));
        let timeline = outage.timeline.iter().map(|(at, what)| json!({"at_ms": ms(*at), "what": what}));
        let fates = outage.fates.iter().map(|fates| {
            let fates = fates.iter();
            Value::Array(
                fates.map(|(at, fate, why)| json!({"at_ms": ms(*at), "fate": fate.name(), "why": why})).collect(),
            )
        });
        json!({
            "id": outage.id,
            "title": outage.title,
            "begins_ms": ms(outage.span.0),
            "ends_ms": ms(outage.span.1),
            "watched_ms": ms(outage.end),
            "allowed": is_allowed(outage),
            "costs": costs.collect::<Vec<_>>(),
            "longest_wait_ms": ms(outage.longest_wait),
            "fates": fates.collect::<Vec<_>>(),
            "timeline": timeline.collect::<Vec<_>>(),
        })
    });
    let remedies = rehearsal.remedies.iter().map(|remedy| json!({"what": remedy.what, "mends": remedy.mended}));
    json!({
        "target": rehearsal.target,
        "servers": rehearsal.servers,
        "calls": calls.collect::<Vec<_>>(),
        "unreached_routes": rehearsal.unreached,
        "outages": outages.collect::<Vec<_>>(),
        "remedies": remedies.collect::<Vec<_>>(),
    })
}

/// The outage that is none.
const CALM: &str = "no-outage";
