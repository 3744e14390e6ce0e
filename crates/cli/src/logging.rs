//! How what happens is written: in words for people, or as JSON for programs (OP-29).

use std::{
    io::{self, IsTerminal as _},
    process::ExitCode,
    time::SystemTime,
};

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::{failure::Failure, output::Output};

/// In which form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Words
    #[default]
    Text,
    /// An object in each line
    Json,
}

impl LogFormat {
    /// Sends what the libraries log to standard error: for people errors, as the commands tell the rest, and the warnings of the
    /// module that is the server, if the command is one; for programs also what explains a change; or what `RUST_LOG` asks for.
    pub(crate) fn init(self, server: Option<&str>) {
        let level = match self {
            Self::Text => LevelFilter::ERROR,
            Self::Json => LevelFilter::INFO,
        };
        let filter = EnvFilter::builder().with_default_directive(level.into());
        let filter = match server.filter(|_| self == Self::Text && !is_set("RUST_LOG")) {
            Some(server) => filter.parse_lossy(format!("{server}=warn,{level}")),
            None => filter.from_env_lossy(),
        };
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        match self {
            Self::Text => log.with_ansi(has_colours()).init(),
            // Without the module: `target` is that of the channel.
            Self::Json => log.json().flatten_event(true).with_target(false).init(),
        }
    }
}

/// Tells the user what ended the command, as the other lines on standard error are written: those are collected by somebody.
pub(crate) fn report(failure: &Failure, format: LogFormat) -> ExitCode {
    match format {
        _ if failure.is_unheard() => {}
        LogFormat::Text => anstream::eprintln!("{failure}"),
        LogFormat::Json => {
            let fields = json!({ "message": failure.what(), "tip": failure.advice() });
            eprintln!("{}", object("ERROR", &fields));
        }
    }
    failure.exit_code()
}

/// The lines of a command that runs until it is ended.
pub(crate) struct EventLog {
    output: Output,
    format: LogFormat,
}

impl EventLog {
    pub(crate) fn new(output: Output, format: LogFormat) -> Self {
        Self { output, format }
    }

    /// Tells of one event: its name and its fields for programs, its lines for people.
    pub(crate) fn tell(
        &mut self,
        event: &str,
        fields: Value,
        lines: impl IntoIterator<Item = String>,
    ) -> Result<(), Failure> {
        match self.format {
            LogFormat::Text => lines.into_iter().try_for_each(|line| self.output.line(line)),
            LogFormat::Json => {
                let mut object =
                    Map::from_iter([("time".to_owned(), now().into()), ("event".to_owned(), event.into())]);
                if let Value::Object(fields) = fields {
                    object.extend(fields);
                }
                self.output.json(&object)
            }
        }
    }
}

/// One line of the log, as `tracing` writes its own.
fn object(level: &str, fields: &Value) -> Value {
    let mut object = json!({ "timestamp": now(), "level": level });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(
            fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| (name.clone(), value.clone())),
        );
    }
    object
}

fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

/// Colours are for terminals, and for whoever insists.
fn has_colours() -> bool {
    !is_set("NO_COLOR") && (io::stderr().is_terminal() || is_set("CLICOLOR_FORCE"))
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}
