//! Standard output, line by line.

use std::{
    fmt,
    io::{self, IsTerminal as _, Write},
};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::failure::Failure;

mod wrap;

/// Where the lines of a command go. Every line is flushed, so that who reads along sees it when it happens.
pub(crate) struct Output {
    stream: Box<dyn Write + Send>,
    /// Whether lines are for a terminal, which may be narrow.
    is_terminal: bool,
}

impl Output {
    /// Standard output; colours only where they are wanted.
    pub(crate) fn stdout() -> Self {
        Self { stream: Box::new(anstream::stdout()), is_terminal: io::stdout().is_terminal() }
    }

    /// Any other stream.
    #[cfg(test)]
    pub(crate) fn new(stream: impl Write + Send + 'static) -> Self {
        Self { stream: Box::new(stream), is_terminal: false }
    }

    /// Writes text for people, which goes on in the next line where a terminal ends.
    pub(crate) fn line(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        match self.is_terminal {
            true => {
                let (text, width) = (text.to_string(), width());
                self.exact(text.lines().map(|line| wrap::line(line, width)).collect::<Vec<_>>().join("\n"))
            }
            false => self.exact(text),
        }
    }

    /// Writes what programs read: as it is.
    pub(crate) fn exact(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        writeln!(self.stream, "{text}").and_then(|()| self.stream.flush()).map_err(|error| Failure::output(&error))
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::output(&io::Error::new(io::ErrorKind::InvalidData, error)))?;
        self.exact(text)
    }
}

/// How wide the terminal is; what is not a terminal has no end.
pub(crate) fn width() -> usize {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let measured = || terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    told.or_else(measured).unwrap_or(usize::MAX)
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
