//! The command line as a whole: which commands there are, and how one is run.

use clap::{
    CommandFactory as _, Parser, Subcommand,
    builder::{Styles, styling::AnsiColor},
};

use crate::{
    backend, check, complete, dash, demo, diff, explain, failure::Failure, get, inspect, last_good, load,
    logging::LogFormat, mirror, output::Output, publish, record, serve, signals::Signals, sim, soak, status, swarm,
    top,
};

/// xDS channels that keep working when the control plane does not.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, styles = STYLES, after_help = AFTER_HELP)]
#[command(arg_required_else_help = true, subcommand_required = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// How lines about what happens are written, by commands that run until they are ended, and on standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, display_order = LAST)]
    log: LogFormat,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Flags),
    Serve(Box<serve::Flags>),
    Publish(publish::Flags),
    Check(check::Flags),
    Backend(backend::Flags),
    Load(load::Flags),
    Get(get::Flags),
    LastGood(last_good::Flags),
    Record(record::Flags),
    Mirror(mirror::Flags),
    Explain(explain::Flags),
    Inspect(inspect::Flags),
    Status(status::Flags),
    Top(top::Flags),
    Diff(diff::Flags),
    Dash(dash::Flags),
    Sim(sim::Flags),
    Soak(soak::Flags),
    Swarm(swarm::Flags),
    Completions(complete::CompletionFlags),
    Man(complete::ManFlags),
}

impl Command {
    /// The module whose warnings are for whoever runs the command, as nobody else is told of them.
    fn server(&self) -> Option<&'static str> {
        match self {
            Self::Serve(_) => Some("mainstay_control_plane::server"),
            Self::Backend(_) => Some("mainstay::server"),
            _ => None,
        }
    }
}

impl Cli {
    /// How what happens is written.
    pub(crate) fn log_format(&self) -> LogFormat {
        self.log
    }

    /// Runs the command to its end.
    pub(crate) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
            Failure::failed(format!("cannot start the threads of the program: {error}"))
                .tip("the system may be out of threads or file descriptors (see `ulimit -a`)")
        })?;
        self.log.init(self.command.server());
        let result = runtime.block_on(async {
            let signals = Signals::listen()?;
            let output = Output::stdout();
            match self.command {
                Command::Demo(flags) => demo::run(flags.resolve()?, signals, output).await,
                Command::Serve(flags) => serve::run(flags.resolve()?, signals, output, self.log).await,
                Command::Publish(flags) => publish::run(flags.resolve()?, signals, output).await,
                Command::Check(flags) => check::run(flags.resolve()?, signals, output).await,
                Command::Backend(flags) => backend::run(flags.resolve(self.log)?, signals, output).await,
                Command::Load(flags) => load::run(flags.resolve()?, signals, output).await,
                Command::Get(flags) => get::run(flags.resolve()?, signals, output).await,
                Command::LastGood(flags) => last_good::run(flags, output),
                Command::Record(flags) => record::run(flags, signals, output).await,
                Command::Mirror(flags) => mirror::run(flags, output).await,
                Command::Explain(flags) => explain::run(flags.resolve()?, signals, output).await,
                Command::Inspect(flags) => inspect::run(flags, signals, output).await,
                Command::Status(flags) => status::run(flags, signals, output).await,
                Command::Top(flags) => top::run(flags, signals, output).await,
                Command::Diff(flags) => diff::run(flags, signals, output).await,
                Command::Dash(flags) => dash::run(flags.resolve()?, signals, output).await,
                Command::Sim(flags) => sim::run(flags.resolve(), signals, output).await,
                Command::Soak(flags) => soak::run(flags.resolve(), signals, output).await,
                Command::Swarm(flags) => swarm::run(flags.resolve()?, signals, output).await,
                Command::Completions(flags) => complete::completions(&flags, Cli::command()),
                Command::Man(flags) => complete::man(&flags, Cli::command(), output),
            }
        });
        // Calls that never end must not keep the process.
        runtime.shutdown_background();
        result
    }
}

/// What every command has stands below what is its own.
const LAST: usize = 900;

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
