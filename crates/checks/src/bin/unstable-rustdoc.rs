//! rustdoc with its unstable options, of whatever toolchain is in use: nobody needs a nightly one to check the public API.
//!
//! Only rustdoc runs like this. If the variable were set for all of cargo, everything would be built anew.

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let status = Command::new("rustdoc").args(std::env::args_os().skip(1)).env("RUSTC_BOOTSTRAP", "1").status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rustdoc cannot be run: {error}");
            ExitCode::FAILURE
        }
    }
}
