//! The command line as a whole: which commands there are, and how one is run.

use std::io;

use clap::{
    Parser, Subcommand,
    builder::{Styles, styling::AnsiColor},
};
use tracing_subscriber::EnvFilter;

use crate::{
    backend, check, demo, diff, explain, failure::Failure, get, inspect, last_good, load, output::Output, serve,
    signals::Signals, sim, soak, status, top,
};

/// xDS channels that keep working when the control plane does not.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, styles = STYLES, after_help = AFTER_HELP)]
#[command(arg_required_else_help = true, subcommand_required = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Flags),
    Serve(serve::Flags),
    Check(check::Flags),
    Backend(backend::Flags),
    Load(load::Flags),
    Get(get::Flags),
    LastGood(last_good::Flags),
    Explain(explain::Flags),
    Inspect(inspect::Flags),
    Status(status::Flags),
    Top(top::Flags),
    Diff(diff::Flags),
    Sim(sim::Flags),
    Soak(soak::Flags),
}

impl Cli {
    /// Runs the command to its end.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
            Failure::failed(format!("cannot start the threads of the program: {error}"))
                .tip("the system may be out of threads or file descriptors (see `ulimit -a`)")
        })?;
        log();
        let result = runtime.block_on(async {
            let signals = Signals::listen()?;
            let output = Output::stdout();
            match self.command {
                Command::Demo(flags) => demo::run(flags.resolve(), signals, output).await,
                Command::Serve(flags) => serve::run(flags.resolve()?, signals, output).await,
                Command::Check(flags) => check::run(flags.resolve()?, signals, output).await,
                Command::Backend(flags) => backend::run(flags.resolve()?, signals, output).await,
                Command::Load(flags) => load::run(flags.resolve()?, signals, output).await,
                Command::Get(flags) => get::run(flags.resolve()?, signals, output).await,
                Command::LastGood(flags) => last_good::run(flags, output),
                Command::Explain(flags) => explain::run(flags.resolve()?, signals, output).await,
                Command::Inspect(flags) => inspect::run(flags, signals, output).await,
                Command::Status(flags) => status::run(flags, signals, output).await,
                Command::Top(flags) => top::run(flags, signals, output).await,
                Command::Diff(flags) => diff::run(flags, signals, output).await,
                Command::Sim(flags) => sim::run(flags.resolve(), signals, output).await,
                Command::Soak(flags) => soak::run(flags.resolve(), signals, output).await,
            }
        });
        // Calls that never end must not keep the process.
        runtime.shutdown_background();
        result
    }
}

/// Sends what the libraries log to standard error: errors, or what `RUST_LOG` asks for.
fn log() {
    tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
}

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Yellow.on_default().bold())
    .usage(AnsiColor::Yellow.on_default().bold())
    .literal(AnsiColor::Green.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default())
    .valid(AnsiColor::Green.on_default())
    .invalid(AnsiColor::Red.on_default())
    .error(AnsiColor::Red.on_default().bold());

const AFTER_HELP: &str = "\
Exit codes:
  0  done; also when a signal or the reader of the output ended it
  1  it could not be done; the error says why and what to do
  2  the command line was wrong
  3  it ran, but RPCs failed that should not have
  4  it ran, but only a part of the configuration can be used

Environment:
  GRPC_XDS_BOOTSTRAP         the file of the bootstrap for xds: targets
  GRPC_XDS_BOOTSTRAP_CONFIG  its content, where there is no file
  RUST_LOG                   what to log on standard error, such as mainstay=debug
  NO_COLOR                   no colours";
