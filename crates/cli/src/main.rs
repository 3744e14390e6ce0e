//! `mainstay`: rehearse, drive and serve xDS channels from the command line.
//!
//! One module per command. Each has `Flags`, as typed, and `Settings`, as resolved; `run` takes only the latter.

mod admin;
mod backend;
mod call;
mod channelz;
mod check;
mod cli;
mod complete;
mod connect;
mod cost;
mod credentials;
mod dash;
mod demo;
mod diff;
mod etcd;
mod explain;
mod failure;
mod filters;
mod fleet;
mod get;
mod http;
mod inspect;
mod judge;
mod kubernetes;
mod last_good;
mod listen;
mod load;
mod logging;
mod mirror;
mod output;
mod pki;
mod progress;
mod publish;
mod record;
mod rehearse;
mod serve;
mod signals;
mod sim;
mod soak;
mod source;
mod span;
mod status;
mod swarm;
mod tally;
mod top;
mod traffic;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::Cli;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => {
            let format = cli.log_format();
            match cli.run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => logging::report(&failure, format),
            }
        }
        Err(parse) => {
            // Help goes to standard output, complaints to standard error; a reader that left is no failure.
            let _ = parse.print();
            if parse.use_stderr() { ExitCode::from(failure::USAGE) } else { ExitCode::SUCCESS }
        }
    }
}
