//! What is wrong with a piece of configuration: every fault, each with the path of its field.

use std::fmt;

/// One or more faults of a resource or of a bootstrap. Never empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Invalid {
    faults: Vec<Fault>,
}

/// One fault: where, and what.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Path of the field, such as `virtual_hosts[0].routes[1].match.prefix`; empty for the whole.
    pub path: String,
    /// What was found and what was expected.
    pub message: String,
}

/// Collects faults while a message is parsed, so that one error names them all.
///
/// A parser descends with [`Faults::field`] and [`Faults::index`], reports with [`Faults::add`]
/// and goes on. At the end [`Faults::finish`] says whether the value may be used.
///
/// The path is kept as segments and written out only for a fault, because a resource may have a
/// hundred thousand elements and usually has no fault.
#[derive(Debug, Default)]
pub struct Faults {
    path: Vec<Segment>,
    /// The keys in `path`, one after the other.
    keys: String,
    faults: Vec<Fault>,
    dropped: usize,
}

/// One step of a path. Keys are ranges of [`Faults::keys`].
#[derive(Clone, Copy, Debug)]
enum Segment {
    Field(&'static str),
    Index(usize),
    Key { start: usize, end: usize },
}

// === impl Invalid ===

impl Invalid {
    /// A single fault at `path`.
    pub fn one(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { faults: vec![Fault { path: path.into(), message: message.into() }] }
    }

    /// All faults in the order in which they were found.
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            if fault.path.is_empty() {
                f.write_str(&fault.message)?;
            } else {
                write!(f, "{}: {}", fault.path, fault.message)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

// === impl Faults ===

impl Faults {
    /// An empty collection at the root path.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `parse` one field deeper.
    #[inline]
    pub fn field<T>(&mut self, name: &'static str, parse: impl FnOnce(&mut Self) -> T) -> T {
        self.descend(Segment::Field(name), parse)
    }

    /// Runs `parse` inside element `index` of the current repeated field.
    pub fn index<T>(&mut self, index: usize, parse: impl FnOnce(&mut Self) -> T) -> T {
        self.descend(Segment::Index(index), parse)
    }

    /// Runs `parse` inside the value of map key `key` of the current field.
    pub fn key<T>(&mut self, key: &str, parse: impl FnOnce(&mut Self) -> T) -> T {
        let start = self.keys.len();
        self.keys.push_str(key);
        let out = self.descend(Segment::Key { start, end: self.keys.len() }, parse);
        self.keys.truncate(start);
        out
    }

    /// Reports a fault at the current path. After [`MAX_FAULTS`] only their number is kept, and of a text that
    /// quotes its input without end only the first [`MAX_TEXT`] bytes.
    pub fn add(&mut self, message: impl Into<String>) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { path: shorten(self.path_text()), message: shorten(message.into()) });
        } else {
            self.dropped += 1;
        }
    }

    /// Whether nothing was reported so far.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// How many faults were reported so far. Lets a parser ask whether a part of it was clean.
    pub fn count(&self) -> usize {
        self.faults.len() + self.dropped
    }

    /// `Ok(value)` if nothing was reported, all faults otherwise.
    pub fn finish<T>(mut self, value: T) -> Result<T, Invalid> {
        if self.faults.is_empty() {
            return Ok(value);
        }
        if self.dropped > 0 {
            self.faults.push(Fault { path: String::new(), message: format!("and {} more faults", self.dropped) });
        }
        Err(Invalid { faults: self.faults })
    }

    #[inline]
    fn descend<T>(&mut self, segment: Segment, parse: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(segment);
        let out = parse(self);
        self.path.pop();
        out
    }

    fn path_text(&self) -> String {
        let mut text = String::new();
        for segment in &self.path {
            match *segment {
                Segment::Field(name) => {
                    if !text.is_empty() {
                        text.push('.');
                    }
                    text.push_str(name);
                }
                Segment::Index(index) => text.push_str(&format!("[{index}]")),
                Segment::Key { start, end } => text.push_str(&format!("[{}]", &self.keys[start..end])),
            }
        }
        text
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// How many faults of one resource are kept: a hostile resource must not make a huge NACK.
pub const MAX_FAULTS: usize = 32;

/// How many bytes of a fault's path and of its message are kept, for the same reason. The deepest paths, of nested LB
/// policies, are shorter.
pub const MAX_TEXT: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_the_descent_and_return() {
        let mut faults = Faults::new();
        faults.field("virtual_hosts", |f| {
            f.index(2, |f| f.field("domains", |f| f.add("must not be empty")));
        });
        faults.add("too large");
        let invalid = faults.finish(()).unwrap_err();
        assert_eq!(invalid.to_string(), "virtual_hosts[2].domains: must not be empty; too large");
    }

    #[test]
    fn names_indices_and_keys_mix_in_one_path() {
        let mut faults = Faults::new();
        faults.field("metadata.typed_filter_metadata", |f| {
            f.key("a[b]", |f| f.field("value", |f| f.index(0, |f| f.index(7, |f| f.add("bad")))));
            f.key("c", |f| f.add("bad too"));
        });
        let invalid = faults.finish(()).unwrap_err();
        assert_eq!(
            invalid.to_string(),
            "metadata.typed_filter_metadata[a[b]].value[0][7]: bad; metadata.typed_filter_metadata[c]: bad too"
        );
    }

    #[test]
    fn a_flood_of_faults_is_bounded() {
        let mut faults = Faults::new();
        for _ in 0..1000 {
            faults.add("bad");
        }
        let invalid = faults.finish(()).unwrap_err();
        assert_eq!(invalid.faults().len(), MAX_FAULTS + 1);
        assert_eq!(invalid.faults().last().unwrap().message, "and 968 more faults");
    }

    #[test]
    fn a_text_that_quotes_a_huge_value_is_cut_between_characters() {
        let mut faults = Faults::new();
        faults.add("\u{20ac}".repeat(MAX_TEXT));
        let invalid = faults.finish(()).unwrap_err();
        assert_eq!(invalid.faults()[0].message, format!("{}...", "\u{20ac}".repeat(MAX_TEXT / 3)));
    }
}
