//! What an RPC costs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;
use tonic::Status;

use crate::candidates::{Candidate, MESSAGES, Shape, Stub};
use crate::plot::{Plot, number};
use crate::policy::Policy;
use crate::report::Report;
use crate::servers::Servers;
use crate::{Options, Result, alloc, callgrind, policies, stats};

/// What is measured of RPCs.
#[derive(Args, Clone, Debug)]
pub(crate) struct RpcOptions {
    #[command(flatten)]
    pub(crate) common: Options,
    /// Measure this LB policy beside round_robin, calls per second too, and nothing else.
    #[arg(long, value_name = "NAME")]
    policy: Option<Policy>,
    /// Count another build of this program, too, such as one made with --no-default-features: without telemetry.
    #[arg(long, value_name = "PROGRAM", conflicts_with = "policy")]
    against: Option<PathBuf>,
    /// Measure calls over mTLS, on a connection that is there: ours as the control plane says, and tonic's own.
    #[arg(long, conflicts_with_all = ["policy", "against"])]
    tls: bool,
}

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
    /// A directory with certificates: the calls go over mTLS.
    #[arg(long)]
    certificates: Option<PathBuf>,
}

pub(crate) const IN_FLIGHT: [usize; 3] = [1, 64, 512];

pub(crate) fn measure(options: &RpcOptions) -> Result<Report> {
    let servers = Servers::start()?;
    let runtime = runtime()?;
    let mut report = Report::new("rpc", &["", "mainstay", "tonic Channel", "balance_list", "tonic-xds", "ours/tonic"]);
    if !callgrind::is_there() {
        report.note("instructions are not counted: valgrind is not installed");
    }
    if let Some(policy) = options.policy {
        policies::instructions(&options.common, &[Policy::RoundRobin, policy], &servers, &mut report)?;
        policies::throughput(&options.common, policy, &runtime, &servers, &mut report)?;
        return Ok(report);
    }
    if options.tls {
        secure_instructions(options, &servers, &mut report)?;
        return Ok(report);
    }
    instructions(options, &servers, &mut report)?;
    let options = &options.common;
    let mut stubs = Vec::new();
    for candidate in Candidate::ALL {
        stubs.push(runtime.block_on(candidate.connect(servers.backend, servers.control_plane))?);
    }
    allocations(&runtime, &stubs, &mut report)?;
    for shape in [Shape::Unary, Shape::Streaming] {
        throughput(options, shape, &runtime, &stubs, &mut report)?;
    }
    policies::instructions(options, &Policy::ALL, &servers, &mut report)?;
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
        let mut stub = match &args.certificates {
            None => args.candidate.connect(args.backend, args.control_plane).await?,
            Some(directory) => args.candidate.connect_secure(args.backend, args.control_plane, directory).await?,
        };
        for _ in 0..args.calls {
            stub.call(Shape::Unary).await?;
        }
        Ok(())
    })
}

/// Instructions per call of each candidate.
fn instructions(options: &RpcOptions, servers: &Servers, report: &mut Report) -> Result<()> {
    if !callgrind::is_there() {
        return Ok(());
    }
    let mut plot = Plot::new("Instructions per unary call, client side", "instructions");
    let mut counts = Vec::new();
    let count_in = |program: &Path, candidate: Candidate| {
        instructions_per_call(&options.common, program, |calls| {
            vec![
                "client".to_owned(),
                format!("--candidate={}", candidate.name()),
                format!("--backend={}", servers.backend),
                format!("--control-plane={}", servers.control_plane),
                format!("--calls={calls}"),
            ]
        })
    };
    let this = std::env::current_exe()?;
    for candidate in Candidate::ALL {
        let per_call = count_in(&this, *candidate)?;
        plot.bar(candidate.name(), per_call, *candidate == Candidate::Mainstay);
        report.set(&["instructions", "per_call", candidate.name()], per_call);
        counts.push(per_call);
    }
    report.set(&["instructions", "ratio_to_tonic_channel"], ratio(&counts));
    line(report, "instructions per unary call", &counts, ratio(&counts));
    #[cfg(feature = "telemetry")]
    {
        let observed = count_in(&this, Candidate::MainstayObserved)?;
        report.set(&["instructions", "per_call", Candidate::MainstayObserved.name()], observed);
        report.note(format!("with the default metrics of A66, a unary call takes {} instructions", number(observed)));
    }
    if let Some(other) = &options.against {
        let theirs = count_in(other, Candidate::Mainstay)?;
        let ratio = counts[0] / theirs;
        report.set(&["instructions", "per_call", "mainstay_other_build"], theirs);
        report.set(&["instructions", "ratio_to_other_build"], ratio);
        let name = other.display();
        report.note(format!("in {name}, a unary call takes {} instructions: {ratio:.4} of them here", number(theirs)));
    }
    report.plot(plot);
    Ok(())
}

/// Instructions per call over mTLS, of ours and of tonic's own channel.
fn secure_instructions(options: &RpcOptions, servers: &Servers, report: &mut Report) -> Result<()> {
    if !callgrind::is_there() {
        return Ok(());
    }
    let this = std::env::current_exe()?;
    let mut counts = Vec::new();
    for candidate in [Candidate::Mainstay, Candidate::TonicChannel] {
        let per_call = instructions_per_call(&options.common, &this, |calls| {
            vec![
                "client".to_owned(),
                format!("--candidate={}", candidate.name()),
                format!("--backend={}", servers.secure_backend),
                format!("--control-plane={}", servers.control_plane),
                format!("--calls={calls}"),
                format!("--certificates={}", servers.certificates.display()),
            ]
        })?;
        report.set(&["instructions_tls", "per_call", candidate.name()], per_call);
        counts.push(per_call);
    }
    report.set(&["instructions_tls", "ratio_to_tonic_channel"], ratio(&counts));
    line(report, "instructions per unary call, mTLS", &counts, ratio(&counts));
    report.note("mTLS with TLS 1.3 on one connection that is there, to one backend in another process");
    Ok(())
}

/// What many calls take more than few, per call, so that the start of the process does not count.
pub(crate) fn instructions_per_call(
    options: &Options,
    program: &Path,
    args: impl Fn(u32) -> Vec<String>,
) -> Result<f64> {
    let (few, many) = if options.quick { (200, 1_200) } else { (500, 5_500) };
    let run = |calls| callgrind::instructions(program, &args(calls));
    Ok(run(many)?.saturating_sub(run(few)?) as f64 / f64::from(many - few))
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
            Ok::<_, Status>(least)
        })?;
        let per_call = spent as f64 / f64::from(CALLS);
        report.set(&["allocations", "per_call", candidate.name()], per_call);
        counts.push(per_call);
    }
    report.set(&["allocations", "over_tonic_channel"], counts[0] - counts[1]);
    line(report, "allocations per unary call", &counts, ratio(&counts));
    Ok(())
}

/// Calls per second.
fn throughput(options: &Options, shape: Shape, runtime: &Runtime, stubs: &[Stub], report: &mut Report) -> Result<()> {
    let (kind, key) = match shape {
        Shape::Unary => ("unary", "throughput"),
        Shape::Streaming => ("streaming", "streaming_throughput"),
    };
    let mut plot = Plot::new(format!("Throughput, {kind}"), "calls/s");
    for in_flight in IN_FLIGHT {
        let rates = rates_in_turns(options, runtime, in_flight, stubs, |stub| {
            let mut stub = stub.clone();
            async move || stub.call(shape).await
        })?;
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

/// Calls per second of each candidate in each turn. They take turns, so that what disturbs one disturbs all.
pub(crate) fn rates_in_turns<T, C: AsyncFnMut() -> Result<(), Status> + 'static>(
    options: &Options,
    runtime: &Runtime,
    in_flight: usize,
    candidates: &[T],
    caller: impl Fn(&T) -> C,
) -> Result<Vec<Vec<f64>>> {
    let (turns, length) = if options.quick { (5, 100) } else { (15, 400) };
    let mut rates = vec![Vec::new(); candidates.len()];
    for turn in 0..turns {
        // Each goes first as often as any other.
        for place in 0..candidates.len() {
            let which = (place + turn) % candidates.len();
            let callers = (0..in_flight).map(|_| caller(&candidates[which]));
            rates[which].push(runtime.block_on(rate(callers, Duration::from_millis(length)))?);
        }
    }
    Ok(rates)
}

/// Calls per second of all these together, each in a task of its own.
async fn rate<C>(callers: impl Iterator<Item = C>, length: Duration) -> Result<f64>
where
    C: AsyncFnMut() -> Result<(), Status> + 'static,
{
    let start = Instant::now();
    let keep_calling = |mut call: C| async move {
        let mut calls = 0_u64;
        while start.elapsed() < length {
            call().await?;
            calls += 1;
        }
        Ok::<_, Status>(calls)
    };
    // Local, as the compiler cannot see that the futures of tonic-xds may move between threads.
    let tasks = LocalSet::new();
    let callers: Vec<_> = callers.map(|caller| tasks.spawn_local(keep_calling(caller))).collect();
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

pub(crate) fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
