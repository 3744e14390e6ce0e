//! `mainstay publish`: a directory as a new generation in etcd.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use mainstay_control_plane::{LoadErrors, files::Sources};
use mainstay_sources::{
    entries::Entries,
    etcd::{Plan, PublishError, Published, publish},
};

use crate::{
    etcd::EtcdFlags,
    failure::Failure,
    judge::{self, Judge},
    output::{DIM, GOOD, Output, styled},
    progress,
    signals::Signals,
    span,
};

/// Publish a directory to etcd, as a generation that replicas switch to as a whole
///
/// Every `mainstay serve --etcd` with the same scope serves it within moments. All resources are written first, then one step
/// makes the generation current; if anything goes wrong before, what was current still is. If somebody else publishes at the
/// same time, one of both fails and says so. What is current already is not published again.
///
/// Nothing is published that `mainstay check` finds errors in; --no-check turns that off.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The directory, in the format of `mainstay serve`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    #[command(flatten)]
    etcd: EtcdFlags,

    /// Publish whatever can be read, also what clients reject or what leads nowhere
    #[arg(long)]
    no_check: bool,

    /// How long generations are kept that are not current any more; the next one that is published removes them
    #[arg(long, value_name = "T", default_value = "10m", value_parser = span::parse)]
    keep: Duration,

    /// How long to try if etcd cannot be reached or has no leader
    #[arg(long, value_name = "T", default_value = "30s", value_parser = span::parse)]
    timeout: Duration,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    directory: PathBuf,
    plan: Plan,
    judge: Judge,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        let Some((endpoints, scope)) = self.etcd.resolve()? else {
            return Err(Failure::usage("where to? --etcd names the members of a cluster"));
        };
        let plan = Plan { endpoints, scope, keep: self.keep, patience: self.timeout };
        let judge = if self.no_check { Judge::Nothing } else { Judge::Errors };
        Ok(Settings { directory: self.directory, plan, judge })
    }
}

/// Publishes, unless a signal comes first.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Settings { directory, plan, judge } = settings;
    let entries = read(&directory, judge).map_err(|errors| {
        let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
        let failure = Failure::failed(format!("cannot publish {}:{}", directory.display(), reasons.concat()));
        failure.tip(judge::tip(&errors).unwrap_or("correct the files; nothing was published"))
    })?;
    if entries.is_empty() {
        return Err(Failure::failed(format!("{} holds no resources: nothing was published", directory.display())));
    }
    let published = tokio::select! {
        published = progress::shown("waiting for etcd", publish(&plan, &entries)) => published.map_err(failure)?,
        () = signals.next() => return Err(Failure::failed("interrupted; what was current in etcd still is, or this")),
    };
    let count = entries.len();
    output.line(format_args!("{} {published}, {count} resources, scope {}", styled(GOOD, "published"), plan.scope))?;
    match published {
        Published::New { removed, .. } if !removed.is_empty() => {
            let numbers: Vec<_> = removed.iter().map(u64::to_string).collect();
            output.line(styled(DIM, format_args!("removed old generations: {}", numbers.join(", "))))
        }
        Published::New { .. } | Published::Unchanged { .. } => Ok(()),
    }
}

fn read(directory: &std::path::Path, judge: Judge) -> Result<Entries, LoadErrors> {
    let sources = Sources::read(directory, |_, _| false)?;
    if sources.errors.is_empty() {
        judge.sources(&sources)?;
    }
    Ok(Entries::of(&sources.into_snapshots()?))
}

fn failure(error: PublishError) -> Failure {
    let tip = match &error {
        PublishError::TooLarge(_) => "split the resource, or raise --max-request-bytes of etcd",
        PublishError::Overtaken(_) => "what the other one published is in force",
        PublishError::Unreachable { .. } => {
            "what was current still is, and replicas go on with it; look at the members of etcd"
        }
        PublishError::Refused(_) => "what was current still is; look at quotas and permissions of etcd",
    };
    Failure::failed(format!("nothing was published: {error}")).tip(tip)
}
