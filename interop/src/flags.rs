//! The command line of interop programs: `--name=value`, names with `-` or `_`, unknown ones tolerated (I-1).

use std::collections::BTreeMap;
use std::fmt;

/// What the command line says, by name.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    values: BTreeMap<String, String>,
}

/// A flag whose value cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub struct FlagError {
    flag: &'static str,
    value: String,
    expected: String,
}

impl Flags {
    /// Reads the arguments after the program's name. The last one of a name counts.
    pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut values = BTreeMap::new();
        let mut arguments = arguments.into_iter().peekable();
        while let Some(argument) = arguments.next() {
            let Some(flag) = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-')) else {
                eprintln!("ignored: {argument:?} is not a flag: expected --name=value");
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                // Without "=": the next argument, or a switch that is on.
                None => match arguments.next_if(|next| !next.starts_with('-')) {
                    Some(value) => (flag, value),
                    None => (flag, "true".to_owned()),
                },
            };
            values.insert(canonical(name), value);
        }
        Self { values }
    }

    /// Takes the value of a flag out; `default` if it was not given.
    pub(crate) fn take<T>(
        &mut self,
        flag: &'static str,
        default: T,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FlagError> {
        let Some(value) = self.values.remove(flag) else { return Ok(default) };
        read(&value).ok_or(FlagError { flag, value, expected: expected.to_owned() })
    }

    pub(crate) fn text(&mut self, flag: &'static str, default: &str) -> String {
        self.values.remove(flag).unwrap_or_else(|| default.to_owned())
    }

    /// `true` or `false` in any case: drivers written in Python print `True`.
    pub(crate) fn switch(&mut self, flag: &'static str) -> Result<bool, FlagError> {
        self.take(flag, false, "true or false", |value| match value.to_ascii_lowercase().as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        })
    }

    pub(crate) fn port(&mut self, flag: &'static str, default: u16) -> Result<u16, FlagError> {
        self.take(flag, default, "a port, 0 to 65535", |value| value.parse().ok())
    }

    /// Says which flags nobody took, and goes on: drivers pass flags of newer features.
    pub(crate) fn warn_of_rest(self) {
        for (name, value) in self.values {
            eprintln!("ignored: unknown flag --{name}={value}");
        }
    }
}

impl fmt::Display for FlagError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}={}: expected {}", self.flag, self.value, self.expected)
    }
}

impl std::error::Error for FlagError {}

/// Names with `_`, as drivers write them.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_and_both_forms_of_values_are_read() {
        // I-1
        let mut flags = flags(&["--stats-port=1", "--server_id", "x", "-secure_mode=False", "--print_response"]);
        assert_eq!(flags.port("stats_port", 2), Ok(1));
        assert_eq!(flags.text("server_id", ""), "x");
        assert_eq!(flags.switch("secure_mode"), Ok(false));
        assert_eq!(flags.switch("print_response"), Ok(true));
        assert_eq!(flags.switch("absent"), Ok(false));
        assert!(flags.values.is_empty());
    }

    #[test]
    fn a_wrong_value_is_named_with_what_was_expected() {
        let error = flags(&["--port=70000"]).port("port", 1).unwrap_err();
        assert_eq!(error.to_string(), "--port=70000: expected a port, 0 to 65535");
    }

    #[test]
    fn unknown_flags_and_stray_words_do_no_harm() {
        // I-1
        let mut flags = flags(&["stray", "--from_the_future=1", "--", "--port=7"]);
        assert_eq!(flags.port("port", 1), Ok(7));
        flags.warn_of_rest();
    }

    fn flags(arguments: &[&str]) -> Flags {
        Flags::parse(arguments.iter().map(|&argument| argument.to_owned()))
    }
}
