//! What things cost in memory.

use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use mainstay::event::Event;
use mainstay::{Channel, ResourceType};
use mainstay_control_plane::resources;

use crate::core::{Core, response};
use crate::plot::{Plot, number};
use crate::report::Report;
use crate::servers::{Servers, TARGETS, bootstrap};
use crate::{Options, Result, alloc, ingest};

/// What is there to be looked at.
#[derive(Args, Clone, Debug)]
pub(crate) struct IdleArgs {
    /// Targets.
    #[arg(long, default_value_t = 101)]
    count: usize,
}

pub(crate) fn measure(options: &Options) -> Result<Report> {
    let mut report = Report::new("memory", &["one more", "bytes"]);
    let mut plot = Plot::new("Memory", "bytes");
    let (endpoints, clusters) = if options.quick { (20_000, 2_000) } else { (100_000, 10_000) };
    let measured = [
        ("endpoint", "bytes_per_endpoint", per_endpoint(endpoints)?),
        ("cluster with one endpoint", "bytes_per_cluster", per_cluster(clusters)?),
        ("idle target", "bytes_per_idle_target", per_idle_target(if options.quick { 128 } else { TARGETS })?),
    ];
    for (what, key, bytes) in measured {
        report.row([what.to_owned(), number(bytes)]);
        report.set(&[key], bytes);
        plot.bar(what, bytes, true);
    }
    report.plot(plot);
    report.note(
        "heap of the client, counted by its allocator; endpoints and clusters without the buffers of their sockets",
    );
    report.note("an idle target is a channel with its configuration, an ADS stream, and no RPC yet");
    Ok(report)
}

/// Endpoints of one cluster, cached, in the policies and in the picker, all connected.
fn per_endpoint(count: usize) -> Result<f64> {
    let core = |count: usize| {
        let mut core = Core::new([
            response("1", [resources::listener("service", resources::route("service", "service"))]),
            response("1", [resources::eds_cluster("service")]),
        ])?;
        let update = ingest::encode(response("1", [ingest::endpoints(count)]));
        core.receive(Bytes::copy_from_slice(&update));
        core.connect_all();
        Ok(core)
    };
    difference(count, core)
}

/// Clusters with a route and one endpoint each.
fn per_cluster(count: usize) -> Result<f64> {
    let core = |count: usize| {
        let endpoints = (0..count).map(|n| resources::endpoints(ingest::name(n), [ingest::address(n)]));
        let answers = ingest::routes(count).into_iter();
        let mut core = Core::new(answers.chain([ingest::clusters("1", count, None), response("1", endpoints)]))?;
        core.connect_all();
        Ok(core)
    };
    difference(count, core)
}

/// What a core with `count` things takes more than one with a hundredth of them, per thing.
fn difference(count: usize, core: impl Fn(usize) -> Result<Core>) -> Result<f64> {
    let live = |count: usize| {
        let before = alloc::live();
        let core = core(count)?;
        let taken = alloc::live().saturating_sub(before);
        if core.snapshot.is_none() {
            return Err("no snapshot was published".into());
        }
        Ok::<f64, Box<dyn std::error::Error + Send + Sync>>(taken as f64)
    };
    let few = count / 100;
    Ok((live(count)? - live(few)?) / (count - few) as f64)
}

/// Makes idle targets, and leaves them as they are.
pub(crate) fn run_idle(args: &IdleArgs) -> Result<()> {
    with_idle_targets(args.count, |bytes| {
        println!("{} bytes per idle target", number(bytes));
        std::process::exit(0)
    })
}

/// Real channels to different targets.
fn per_idle_target(count: usize) -> Result<f64> {
    with_idle_targets(count, |bytes| bytes)
}

/// What becomes of the bytes per target, while the targets are there.
fn with_idle_targets<T>(count: usize, look: impl FnOnce(f64) -> T) -> Result<T> {
    let servers = Servers::start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let bootstrap = bootstrap(&[servers.control_plane])?;
        let channel = |n: usize| Channel::builder(format!("xds:///target-{n}")).bootstrap(bootstrap.clone()).build();
        // What all channels share is there before we count.
        let first = channel(0)?;
        settled(&first).await?;
        let before = alloc::live();
        let mut channels = Vec::new();
        for n in 1..count {
            let channel = channel(n)?;
            settled(&channel).await?;
            channels.push(channel);
        }
        // Connections that were begun are made.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let taken = alloc::live().saturating_sub(before);
        let looked = look(taken as f64 / (count - 1) as f64);
        drop((first, channels));
        Ok(looked)
    })
}

/// Waits until the channel has acknowledged its endpoints, the last thing it asks for.
async fn settled(channel: &Channel) -> Result<()> {
    let mut events = channel.events();
    let all = async {
        while let Some(event) = events.next().await {
            if matches!(event, Event::Acked { resource_type: ResourceType::Endpoints, .. }) {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await.map_err(|_| "a channel got no configuration")?;
    Ok(())
}
