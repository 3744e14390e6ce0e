//! `mainstay-bench`: Mainstay beside its peers, in one run.
//!
//! Machines are noisy, so what counts are ratios: candidates take turns within one run, and a ratio is the median over
//! the turns. Where even that is not steady enough, instructions and allocations are counted instead of time. Servers
//! run in a process of their own, so that only the client's work is seen.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod alloc;
mod authz;
mod callgrind;
mod candidates;
mod core;
mod fallback;
mod growth;
mod ingest;
mod memory;
mod plot;
mod policies;
mod policy;
mod report;
mod reporting;
mod route;
mod rpc;
mod servers;
mod stats;
mod wires;

use crate::report::Report;

#[global_allocator]
static ALLOCATOR: alloc::Counting = alloc::Counting;

/// Measures Mainstay beside its peers.
#[derive(Debug, Parser)]
#[command(name = "mainstay-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Cost of an RPC: ours, tonic's Channel, tonic's balance_list, tonic-xds; and ours with each LB policy.
    Rpc(rpc::RpcOptions),
    /// Cost of matching a route and picking an endpoint, with 10 to 10,000 routes.
    Route(Options),
    /// Cost of deciding whether a server lets an RPC in, with 1 to 100 policies.
    Authz(Options),
    /// Cost of taking in an update, against bare decoding of the same bytes; and of a change in each variant of ADS.
    Ingest(ingest::IngestOptions),
    /// What one change costs among 10 to 10,000 things, in instructions: takes valgrind.
    Growth(growth::GrowthOptions),
    /// Memory per endpoint, cluster and idle target.
    Memory(Options),
    /// Time to the first RPC while the first xDS server refuses, dies or keeps silent.
    Fallback(Options),
    /// The servers of the other commands, until standard input ends.
    #[command(hide = true)]
    Servers,
    /// Idle targets and an end without cleaning up, to be looked at by a heap profiler: `valgrind --tool=dhat`.
    #[command(hide = true)]
    Idle(memory::IdleArgs),
    /// Streams to a control plane, until standard input ends.
    #[command(hide = true)]
    Streams(wires::StreamsArgs),
    /// One change, to be counted by callgrind.
    #[command(hide = true)]
    Grow(growth::GrowArgs),
    /// Some calls through one candidate, to be counted by callgrind.
    #[command(hide = true)]
    Client(rpc::ClientArgs),
    /// Some calls balanced by one policy, to be counted by callgrind.
    #[command(hide = true)]
    PolicyClient(policies::ClientArgs),
}

/// What all measurements have in common.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Fewer and shorter turns: done in a minute or two, and noisier.
    #[arg(long)]
    quick: bool,
    /// Where plots are written.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

impl Options {
    /// Makes the directory of the plots: better to fail now than after minutes.
    fn make_room(&self) -> Result<()> {
        std::fs::create_dir_all(&self.out)
            .map_err(|error| format!("--out {}: cannot make this directory: {error}", self.out.display()).into())
    }
}

/// Whatever goes wrong ends the run.
pub(crate) type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstay-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let measure = |options: &Options, measured: fn(&Options) -> Result<Report>| {
        options.make_room()?;
        measured(options)?.publish(options)
    };
    match &command {
        Command::Rpc(options) => {
            options.common.make_room()?;
            rpc::measure(options)?.publish(&options.common)
        }
        Command::Route(options) => measure(options, route::measure),
        Command::Authz(options) => measure(options, authz::measure),
        Command::Ingest(options) => {
            options.common.make_room()?;
            ingest::measure(options)?.publish(&options.common)
        }
        Command::Growth(options) => {
            options.common.make_room()?;
            growth::measure(options)?.publish(&options.common)
        }
        Command::Memory(options) => measure(options, memory::measure),
        Command::Fallback(options) => measure(options, fallback::measure),
        Command::Servers => servers::run(),
        Command::Idle(args) => memory::run_idle(args),
        Command::Streams(args) => wires::run_streams(args),
        Command::Grow(args) => growth::run(args),
        Command::Client(args) => rpc::run_client(args),
        Command::PolicyClient(args) => policies::run_client(args),
    }
}
