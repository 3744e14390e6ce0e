//! Why a command ended before it was done, what the user reads then, and the exit code.

use std::{error::Error as _, fmt, io, process::ExitCode};

use anstyle::{AnsiColor, Style};
use tonic::Status;

/// The end of a command that did not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    /// What went wrong, in one line.
    what: String,
    /// What to do about it.
    tip: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Failed,
    Usage,
    Calls,
    Partial,
    /// Whoever read our output has left. That is how `| head` ends, not an error.
    BrokenPipe,
}

impl Failure {
    /// It could not be done.
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, what: what.into(), tip: None }
    }

    /// The flags make no sense together.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { kind: Kind::Usage, ..Self::failed(what) }
    }

    /// It ran, but RPCs failed that should not have.
    pub(crate) fn calls(what: impl Into<String>) -> Self {
        Self { kind: Kind::Calls, ..Self::failed(what) }
    }

    /// It ran, but only a part of the configuration can be used.
    pub(crate) fn partial(what: impl Into<String>) -> Self {
        Self { kind: Kind::Partial, ..Self::failed(what) }
    }

    /// The output could not be written.
    pub(crate) fn output(error: &io::Error) -> Self {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe { Kind::BrokenPipe } else { Kind::Failed };
        Self { kind, ..Self::failed(format!("cannot write the output: {error}")) }
    }

    /// What went wrong.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }

    /// Adds what the user can do.
    pub(crate) fn tip(mut self, tip: impl Into<String>) -> Self {
        self.tip = Some(tip.into());
        self
    }

    /// What the user can do, if anything.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.tip.as_deref()
    }

    /// Whether nobody reads any more what is written, so that there is nobody to tell.
    pub(crate) fn is_unheard(&self) -> bool {
        matches!(self.kind, Kind::BrokenPipe)
    }

    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self.kind {
            Kind::BrokenPipe => ExitCode::SUCCESS,
            Kind::Failed => ExitCode::from(1),
            Kind::Usage => ExitCode::from(USAGE),
            Kind::Calls => ExitCode::from(3),
            Kind::Partial => ExitCode::from(4),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{ERROR}error:{ERROR:#} {}", self.what)?;
        if let Some(tip) = &self.tip {
            write!(f, "\n\n  {TIP}tip:{TIP:#} {tip}")?;
        }
        Ok(())
    }
}

/// An error with everything that led to it.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Some say what their cause says.
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What a call ended with, and everything that led to it.
pub(crate) fn told(status: &Status) -> String {
    let words = in_words(status);
    if words.is_empty() { format!("{:?}", status.code()) } else { format!("{:?}: {words}", status.code()) }
}

/// The message of a status, with everything that led to it.
pub(crate) fn in_words(status: &Status) -> String {
    let mut parts = vec![status.message().to_owned()];
    let mut cause = status.source();
    while let Some(error) = cause {
        // Each layer likes to repeat the one below it.
        let more = error.to_string();
        if !parts.iter().any(|part| part.contains(&more)) {
            parts.push(more);
        }
        cause = error.source();
    }
    parts.retain(|part| !part.is_empty());
    parts.join(": ")
}

/// The exit code of a wrong command line, the same as clap's own.
pub(crate) const USAGE: u8 = 2;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const TIP: Style = AnsiColor::Green.on_default();
