//! `mainstay record`: what a client gets, as files that `serve` takes.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use mainstay::{
    Channel,
    view::{Configs, RecordedResource, Recording},
};
use mainstay_control_plane::{Resource, Snapshot};
use tokio::time::Instant;

use crate::{
    connect,
    failure::Failure,
    output::{Output, TITLE, styled},
    progress,
    signals::Signals,
    source::Boot,
    span,
};

/// Write what a client gets for its targets as a file that `mainstay serve` takes
///
/// The file is recorded.yaml in the directory. It holds exactly what the configurations of the targets are made of, with the
/// same names and bytes: what YAML cannot say stands there in base64. Only complete configurations are written, of all
/// targets together, and a reader never sees half a file.
///
/// Without --follow it ends with exit code 0 when everything was written, and 1 if something was not complete in time;
/// nothing is written then.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// The bootstrap; without it, that which the environment names
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// What to record, such as xds:///greeter
    #[arg(long, value_name = "TARGET", required = true, num_args = 1.., value_parser = parse_target)]
    target: Vec<String>,

    /// The directory, which is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,

    /// Go on, and write it again whenever a complete configuration is another
    #[arg(long)]
    follow: bool,

    /// How long to wait for complete configurations
    #[arg(long, value_name = "T", default_value = "20s", value_parser = span::parse)]
    timeout: Duration,
}

/// Records once, or until a signal.
pub(crate) async fn run(flags: Flags, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let boot = Boot::of_user(flags.bootstrap.as_deref())?
        .ok_or_else(|| Failure::failed("there is no bootstrap").tip("give --bootstrap, or set GRPC_XDS_BOOTSTRAP"))?;
    let mut followed = Vec::new();
    for target in &flags.target {
        let channel =
            connect::build(Channel::builder(target.as_str()).bootstrap(boot.public.clone()).without_endpoints())?;
        followed.push(Followed { target: target.clone(), configs: channel.configs(), channel, newest: None });
    }
    let deadline = Instant::now() + flags.timeout;
    for one in &mut followed {
        let waiting = format!("waiting for the configuration of {}", one.target);
        tokio::select! {
            complete = progress::shown(waiting, tokio::time::timeout_at(deadline, one.complete())) => match complete {
                Ok(complete) => complete?,
                Err(_) => return Err(one.incomplete(flags.timeout).await),
            },
            () = signals.next() => return Ok(()),
        }
    }
    let mut written = write(&flags.output, &followed, &mut output)?;
    if !flags.follow {
        return Ok(());
    }
    loop {
        let next = tokio::select! {
            next = any_complete(&mut followed) => next,
            () = signals.next() => return Ok(()),
        };
        next?;
        if snapshot(&followed) != written {
            written = write(&flags.output, &followed, &mut output)?;
        }
    }
}

/// One target.
struct Followed {
    target: String,
    channel: Channel,
    configs: Configs,
    newest: Option<Recording>,
}

impl Followed {
    /// Waits for a complete configuration.
    async fn complete(&mut self) -> Result<(), Failure> {
        let mut is_whole = true;
        loop {
            let next = tokio::time::timeout(RETRY, self.configs.next());
            let view = match next.await {
                Ok(view) => view,
                // It becomes whole without a word if what was waited for turns out to be the same.
                Err(_) if !is_whole => self.channel.config().await,
                Err(_) => continue,
            };
            let view = view.ok_or_else(|| Failure::failed("the client has ended"))?;
            is_whole = view.recording.is_some();
            if let Some(recording) = view.recording {
                self.newest = Some(recording);
                return Ok(());
            }
        }
    }

    async fn incomplete(&self, timeout: Duration) -> Failure {
        let view = self.channel.config().await;
        let error = view.as_ref().and_then(|view| view.resources.iter().find_map(|resource| resource.error.as_ref()));
        let why = error.map(|error| format!(": {error}")).unwrap_or_default();
        Failure::failed(format!("{}: no complete configuration within {timeout:?}{why}", self.target))
            .tip("`mainstay get` shows what has come and what has not; --timeout gives the servers more time")
    }
}

/// Waits until any of them has another complete configuration.
async fn any_complete(followed: &mut [Followed]) -> Result<(), Failure> {
    let mut waiting: Vec<_> = followed.iter_mut().map(|one| Box::pin(one.complete())).collect();
    std::future::poll_fn(|cx| {
        let done = waiting.iter_mut().find_map(|one| match one.as_mut().poll(cx) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        });
        done.map_or(std::task::Poll::Pending, std::task::Poll::Ready)
    })
    .await
}

fn snapshot(followed: &[Followed]) -> Snapshot {
    let mut resources: Vec<&RecordedResource> =
        followed.iter().filter_map(|one| one.newest.as_ref()).flat_map(|newest| &newest.resources).collect();
    // Of one name, the newest.
    resources.sort_by_key(|recorded| recorded.value.received_at);
    let mut snapshot = Snapshot::default();
    for recorded in resources {
        let type_url = recorded.resource.resource_type.type_url();
        snapshot.insert(Resource::new(type_url, &*recorded.resource.name, recorded.value.encoded.to_vec()));
    }
    snapshot
}

fn write(directory: &Path, followed: &[Followed], output: &mut Output) -> Result<Snapshot, Failure> {
    let snapshot = snapshot(followed);
    let yaml = snapshot.to_exact_yaml().map_err(|error| Failure::failed(error.to_string()))?;
    let targets: Vec<_> = followed.iter().map(|one| one.target.as_str()).collect();
    let text = format!("# What clients of {} are told.\n{yaml}", targets.join(", "));
    let path = directory.join(FILE);
    replace(directory, &path, text.as_bytes())
        .map_err(|error| Failure::failed(format!("{}: cannot be written: {error}", path.display())))?;
    output.line(format_args!("recorded {} resources in {}", snapshot.len(), styled(TITLE, path.display())))?;
    Ok(snapshot)
}

/// Puts a file in place that is there as a whole or not at all, whatever happens on the way.
fn replace(directory: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // Hidden files are none of `serve`'s.
    let temporary = directory.join(format!(".{FILE}.{}", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    });
    if written.is_err() {
        // It takes room on a disk that may be full.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn parse_target(text: &str) -> Result<String, String> {
    if text.starts_with("xds:") {
        Ok(text.to_owned())
    } else {
        Err("expected an xDS name such as xds:///greeter".into())
    }
}

const FILE: &str = "recorded.yaml";
const RETRY: Duration = Duration::from_secs(1);
