//! `mainstay completions` and `mainstay man`: what shells and `man` want to know of the command line.

use std::{fs, io, path::PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;

use crate::{failure::Failure, output::Output};

/// Print the completions of a shell
///
/// For bash: mainstay completions bash > ~/.local/share/bash-completion/completions/mainstay
#[derive(Args, Debug)]
pub(crate) struct CompletionFlags {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Write man pages, one for each command
#[derive(Args, Debug)]
pub(crate) struct ManFlags {
    /// The directory to write them to, such as ~/.local/share/man/man1; it is made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completions.
pub(crate) fn completions(flags: &CompletionFlags, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command, "mainstay", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script).map_err(|error| Failure::output(&error))
}

/// Writes the pages, and says where they are.
pub(crate) fn man(flags: &ManFlags, command: Command, mut output: Output) -> Result<(), Failure> {
    let directory = &flags.directory;
    let failed = |error: io::Error| {
        Failure::failed(format!("cannot write man pages to {}: {error}", directory.display()))
            .tip("give a directory that can be written to")
    };
    fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(command, directory).map_err(failed)?;
    output.line(format_args!("{}/mainstay.1 and a page for each command", directory.display()))
}
