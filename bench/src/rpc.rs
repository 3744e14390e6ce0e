//! What an RPC costs.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use crate::candidates::{Candidate, MESSAGES, Shape, Stub};
use crate::plot::{Plot, number};
use crate::report::Report;
use crate::servers::Servers;
use crate::{Options, Result, alloc, callgrind, stats};

/// What the child under callgrind does.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    #[arg(long)]
    candidate: Candidate,
    #[arg(long)]
    backend: SocketAddr,
    #[arg(long)]
    control_plane: SocketAddr,
    /// Unary calls, one after the other.
    #[arg(long)]
    calls: u32,
}

const IN_FLIGHT: [usize; 3] = [1, 64, 512];

pub(crate) fn measure(options: &Options) -> Result<Report> {
    let servers = Servers::start()?;
    let mut report = Report::new("rpc", &["", "mainstay", "tonic Channel", "balance_list", "tonic-xds", "ours/tonic"]);
    instructions(options, &servers, &mut report)?;
    let runtime = runtime()?;
    let mut stubs = Vec::new();
    for candidate in Candidate::ALL {
        stubs.push(runtime.block_on(candidate.connect(servers.backend, servers.control_plane))?);
    }
    allocations(&runtime, &stubs, &mut report)?;
    for shape in [Shape::Unary, Shape::Streaming] {
        throughput(options, shape, &runtime, &stubs, &mut report)?;
    }
    if cfg!(not(feature = "tonic-xds")) {
        report.note("tonic-xds is left out: build with --features tonic-xds to have it measured");
    }
    report.note(
        "one connection each to one backend in another process, on the loopback interface; the client has one thread",
    );
    report.note(format!(
        "a streaming call brings {MESSAGES} messages; throughput is in calls per second, a median of turns"
    ));
    Ok(report)
}

/// Runs calls through one candidate and nothing else.
pub(crate) fn run_client(args: &ClientArgs) -> Result<()> {
    runtime()?.block_on(async {
        let mut stub = args.candidate.connect(args.backend, args.control_plane).await?;
        for _ in 0..args.calls {
            stub.call(Shape::Unary).await?;
        }
        Ok(())
    })
}

/// Instructions per call: what many calls take more than few, so that the start of the process does not count.
fn instructions(options: &Options, servers: &Servers, report: &mut Report) -> Result<()> {
    if !callgrind::is_there() {
        report.note("instructions are not counted: valgrind is not installed");
        return Ok(());
    }
    let (few, many) = if options.quick { (200, 1_200) } else { (500, 5_500) };
    let mut plot = Plot::new("Instructions per unary call, client side", "instructions");
    let mut counts = Vec::new();
    let count = |candidate: Candidate| -> Result<f64> {
        let run = |calls: u32| {
            let args = [
                "client".to_owned(),
                format!("--candidate={}", candidate.name()),
                format!("--backend={}", servers.backend),
                format!("--control-plane={}", servers.control_plane),
                format!("--calls={calls}"),
            ];
            callgrind::instructions(&args)
        };
        let more = run(many)?.saturating_sub(run(few)?);
        Ok(more as f64 / f64::from(many - few))
    };
    for candidate in Candidate::ALL {
        let per_call = count(*candidate)?;
        plot.bar(candidate.name(), per_call, *candidate == Candidate::Mainstay);
        report.set(&["instructions", "per_call", candidate.name()], per_call);
        counts.push(per_call);
    }
    report.set(&["instructions", "ratio_to_tonic_channel"], ratio(&counts));
    line(report, "instructions per unary call", &counts, ratio(&counts));
    #[cfg(feature = "telemetry")]
    {
        let observed = count(Candidate::MainstayObserved)?;
        report.set(&["instructions", "per_call", Candidate::MainstayObserved.name()], observed);
        report.note(format!("with the default metrics of A66, a unary call takes {} instructions", number(observed)));
    }
    report.plot(plot);
    Ok(())
}

/// Allocations per call.
fn allocations(runtime: &Runtime, stubs: &[Stub], report: &mut Report) -> Result<()> {
    const CALLS: u32 = 500;
    let mut counts = Vec::new();
    for (candidate, stub) in Candidate::ALL.iter().zip(stubs) {
        let mut stub = stub.clone();
        let spent = runtime.block_on(async {
            // The least of several turns: other channels in this process have timers of their own.
            let mut least = u64::MAX;
            for _ in 0..5 {
                let before = alloc::calls();
                for _ in 0..CALLS {
                    stub.call(Shape::Unary).await?;
                }
                least = least.min(alloc::calls() - before);
            }
            Ok::<_, tonic::Status>(least)
        })?;
        let per_call = spent as f64 / f64::from(CALLS);
        report.set(&["allocations", "per_call", candidate.name()], per_call);
        counts.push(per_call);
    }
    report.set(&["allocations", "over_tonic_channel"], counts[0] - counts[1]);
    line(report, "allocations per unary call", &counts, ratio(&counts));
    Ok(())
}

/// Calls per second. The candidates take turns, so that what disturbs one disturbs all.
fn throughput(options: &Options, shape: Shape, runtime: &Runtime, stubs: &[Stub], report: &mut Report) -> Result<()> {
    let (turns, length) = if options.quick { (5, 100) } else { (15, 400) };
    let length = Duration::from_millis(length);
    let (kind, key) = match shape {
        Shape::Unary => ("unary", "throughput"),
        Shape::Streaming => ("streaming", "streaming_throughput"),
    };
    let mut plot = Plot::new(format!("Throughput, {kind}"), "calls/s");
    for in_flight in IN_FLIGHT {
        let mut rates = vec![Vec::new(); stubs.len()];
        for turn in 0..turns {
            // Each goes first as often as any other.
            for place in 0..stubs.len() {
                let which = (place + turn) % stubs.len();
                rates[which].push(runtime.block_on(rate(&stubs[which], shape, in_flight, length))?);
            }
        }
        let medians: Vec<f64> = rates.iter().map(|rates| stats::median(rates.iter().copied())).collect();
        let to_tonic = stats::median(rates[0].iter().zip(&rates[1]).map(|(ours, theirs)| ours / theirs));
        let number_in_flight = in_flight.to_string();
        for (candidate, rate) in Candidate::ALL.iter().zip(&medians) {
            report.set(&[key, &number_in_flight, candidate.name()], *rate);
            plot.bar(format!("{in_flight}: {}", candidate.name()), *rate, *candidate == Candidate::Mainstay);
        }
        report.set(&[key, &number_in_flight, "ratio_to_tonic_channel"], to_tonic);
        line(report, &format!("{kind} calls/s, {in_flight} in flight"), &medians, to_tonic);
    }
    report.plot(plot);
    Ok(())
}

/// Calls per second with so many in flight, each in a task of its own.
async fn rate(stub: &Stub, shape: Shape, in_flight: usize, length: Duration) -> Result<f64> {
    let start = Instant::now();
    let keep_calling = |mut stub: Stub| async move {
        let mut calls = 0_u64;
        while start.elapsed() < length {
            stub.call(shape).await?;
            calls += 1;
        }
        Ok::<_, tonic::Status>(calls)
    };
    // Local, as the compiler cannot see that the futures of tonic-xds may move between threads.
    let tasks = LocalSet::new();
    let callers: Vec<_> = (0..in_flight).map(|_| tasks.spawn_local(keep_calling(stub.clone()))).collect();
    tasks.await;
    let mut calls = 0;
    for caller in callers {
        calls += caller.await??;
    }
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

fn ratio(values: &[f64]) -> f64 {
    values[0] / values[1]
}

fn line(report: &mut Report, what: &str, values: &[f64], ratio: f64) {
    let cell = |place: usize| values.get(place).map_or("-".to_owned(), |value| number(*value));
    report.row([what.to_owned(), cell(0), cell(1), cell(2), cell(3), format!("{ratio:.3}")]);
}

fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
