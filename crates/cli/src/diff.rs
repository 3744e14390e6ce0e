//! `mainstay diff`: what two configurations do differently.

mod compare;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use clap::Args;

use crate::{
    failure::Failure,
    get::{self, Report},
    output::Output,
    progress,
    signals::Signals,
    source::{Boot, Holding, Source},
    span,
};
use compare::Difference;

/// Say what two configurations do differently, and what traffic would notice of it
///
/// Each side is a directory or a file in the format of `mainstay serve` (dir:PATH, file:PATH), the admin port of a running process
/// (csds:HOST:PORT), an Envoy (envoy:HOST:PORT), or the control plane of the bootstrap (live, with --target).
///
/// Compared is what a channel makes of the resources, not their bytes: endpoints are sets, versions and ages do not count, the order
/// of routes does. The first line says what traffic would notice. With --wire the bytes of the resources are compared instead.
///
/// With --json it prints one object: same, notice (a list of sentences) and changes (target, part, name, field, before, after).
///
/// The exit code is 0 whether they differ or not; with --exit-code it is 3 if they do.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The one side: the old configuration
    #[arg(value_name = "A")]
    before: Source,

    /// The other side: the new configuration
    #[arg(value_name = "B")]
    after: Source,

    /// Only these targets [default: all that either side is for]
    #[arg(long, value_name = "TARGET")]
    target: Vec<String>,

    /// Compare the bytes of resources
    #[arg(long)]
    wire: bool,

    /// End with exit code 3 if there is a difference
    #[arg(long)]
    exit_code: bool,

    /// Print one object of JSON
    #[arg(long)]
    json: bool,

    /// The bootstrap [default: the one that GRPC_XDS_BOOTSTRAP names]
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// How long to wait for each side
    #[arg(long, value_name = "T", default_value = "20s", value_parser = span::parse)]
    timeout: Duration,
}

/// Bytes of resources, by type and name.
type Wire = BTreeMap<(String, String), Vec<u8>>;

/// One side.
enum Side {
    Live,
    Held(Holding),
}

/// Compares both sides once.
pub(crate) async fn run(flags: Flags, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let difference = tokio::select! {
        difference = progress::shown("waiting for both sides", difference(&flags)) => difference?,
        () = signals.next() => return Ok(()),
    };
    if flags.json {
        output.json(&difference)?
    } else {
        output.line(&difference)?
    }
    match flags.exit_code && !difference.same {
        true => Err(Failure::calls(format!("{} and {} differ", flags.before, flags.after))),
        false => Ok(()),
    }
}

async fn difference(flags: &Flags) -> Result<Difference, Failure> {
    let (before, after) = (side(&flags.before, flags).await?, side(&flags.after, flags).await?);
    if flags.wire {
        let (before, after) = (wire(&before)?, wire(&after)?);
        return Ok(Difference::of_bytes(&before, &after));
    }
    let targets: BTreeSet<String> = match &flags.target[..] {
        [] => [&before, &after].into_iter().flat_map(Side::targets).collect(),
        targets => targets.iter().cloned().collect(),
    };
    if targets.is_empty() {
        return Err(Failure::usage("neither side says for which targets it is").tip("name them with --target"));
    }
    let mut all = Difference::default();
    for target in &targets {
        let before = report(&before, &flags.before, target, flags).await?;
        let after = report(&after, &flags.after, target, flags).await?;
        all.add(target, before.as_ref(), after.as_ref());
    }
    Ok(all.finish())
}

async fn side(source: &Source, flags: &Flags) -> Result<Side, Failure> {
    match source {
        Source::Live => Ok(Side::Live),
        source => source.fetch(flags.timeout).await.map(Side::Held),
    }
}

impl Side {
    fn targets(&self) -> Vec<String> {
        match self {
            Self::Live => Vec::new(),
            Self::Held(holding) => holding.scopes.iter().flat_map(|scope| scope.targets()).collect(),
        }
    }
}

/// What a channel makes of one side; nothing if that has nothing for the target.
async fn report(side: &Side, source: &Source, target: &str, flags: &Flags) -> Result<Option<Report>, Failure> {
    let bootstrap = flags.bootstrap.as_deref();
    match side {
        Side::Live => {
            let (view, boot, _) = source.view(target, bootstrap, flags.timeout).await?;
            Ok(Some(get::report_of(&view, Some(&boot))))
        }
        Side::Held(holding) => {
            let boot = match Boot::of_user(bootstrap)? {
                Some(boot) => boot,
                None => Boot::for_resources(holding.scopes.iter().flat_map(|scope| &scope.resources))?,
            };
            let Ok(scope) = holding.scope_of(target, &boot) else { return Ok(None) };
            Ok(Some(get::report_of(&holding.view_of(scope, target, &boot)?, Some(&boot))))
        }
    }
}

fn wire(side: &Side) -> Result<Wire, Failure> {
    let Side::Held(holding) = side else {
        return Err(Failure::usage("--wire compares what is held: live is not a side for it"));
    };
    let resources = holding.scopes.iter().flat_map(|scope| &scope.resources);
    let held = resources.filter_map(|resource| {
        let kind = resource.type_url.rsplit('.').next().unwrap_or_default().to_owned();
        Some(((kind, resource.name.clone()), resource.encoded.as_ref()?.to_vec()))
    });
    Ok(held.collect())
}
