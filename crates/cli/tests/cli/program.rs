//! Running the program in tests.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Output, Stdio},
};

/// Runs the program to its end.
pub(crate) fn mainstay(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Runs the program to its end with this bootstrap.
pub(crate) fn mainstay_with_bootstrap(bootstrap: &str, args: &[&str]) -> Output {
    command(args).env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap).output().unwrap()
}

/// Runs the program to its end in this environment.
pub(crate) fn mainstay_with_env(environment: &[(&str, &str)], args: &[&str]) -> Output {
    command(args).envs(environment.iter().copied()).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(args).stdin(Stdio::null()).env_remove("CLICOLOR_FORCE").env_remove("RUST_LOG");
    command.env_remove("GRPC_XDS_BOOTSTRAP").env_remove("GRPC_XDS_BOOTSTRAP_CONFIG");
    command
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The program while it runs. Dropping it kills it, so that no failed test leaves one behind.
pub(crate) struct Running {
    child: Child,
    stdout: Option<BufReader<std::process::ChildStdout>>,
    stderr: Option<BufReader<std::process::ChildStderr>>,
}

impl Running {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::spawn(command(args))
    }

    pub(crate) fn start_with_bootstrap(bootstrap: &str, args: &[&str]) -> Self {
        let mut command = command(args);
        command.env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap);
        Self::spawn(command)
    }

    /// With so many open files at most.
    #[cfg(unix)]
    pub(crate) fn start_with_few_files(bootstrap: &str, files: u32, args: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let limited = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_mainstay")]).args(args).stdin(Stdio::null());
        command.env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap).env_remove("RUST_LOG");
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        let stderr = child.stderr.take().map(BufReader::new);
        Self { child, stdout, stderr }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits for the end: exit code, the rest of standard output, standard error.
    pub(crate) fn end(mut self) -> (i32, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.as_mut().unwrap().read_to_string(&mut stdout).unwrap();
        self.stderr.as_mut().unwrap().read_to_string(&mut stderr).unwrap();
        (self.child.wait().unwrap().code().unwrap(), stdout, stderr)
    }

    /// Closes its standard output and waits for the end.
    pub(crate) fn abandon_stdout(mut self) -> i32 {
        self.stdout = None;
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
