//! Standard output, line by line.

use std::{
    fmt,
    io::{self, Write},
};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::failure::Failure;

/// Where the lines of a command go. Every line is flushed, so that who reads along sees it when it happens.
pub(crate) struct Output(Box<dyn Write + Send>);

impl Output {
    /// Standard output; colours only where they are wanted.
    pub(crate) fn stdout() -> Self {
        Self(Box::new(anstream::stdout()))
    }

    /// Any other stream.
    #[cfg(test)]
    pub(crate) fn new(stream: impl Write + Send + 'static) -> Self {
        Self(Box::new(stream))
    }

    /// Writes a line of text.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        writeln!(self.0, "{text}").and_then(|()| self.0.flush()).map_err(|error| Failure::output(&error))
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::output(&io::Error::new(io::ErrorKind::InvalidData, error)))?;
        self.line(text)
    }
}

/// `text` in a style.
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Titles.
pub(crate) const TITLE: Style = AnsiColor::Cyan.on_default().bold();
/// What went well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What did not.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What matters less.
pub(crate) const DIM: Style = Style::new().dimmed();
