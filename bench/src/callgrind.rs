//! Instructions, counted by valgrind: the same on a busy machine as on an idle one.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;

/// Whether valgrind can be run here.
pub(crate) fn is_there() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// The instructions that `program` executes when run with `args`.
pub(crate) fn instructions(program: &Path, args: &[String]) -> Result<u64> {
    count(program, args, &[])
}

/// The same, but only those of functions whose names match `function`, and of what they call.
pub(crate) fn instructions_within(program: &Path, args: &[String], function: &str) -> Result<u64> {
    count(program, args, &[format!("--toggle-collect={function}")])
}

fn count(program: &Path, args: &[String], settings: &[String]) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(settings)
        .arg(program)
        .args(args)
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("under callgrind: {}: {text}", output.status).into());
    }
    // "==123== Collected : 4567"
    let collected = text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    collected.ok_or_else(|| format!("callgrind said nothing of instructions: {text}").into())
}
