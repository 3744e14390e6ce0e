//! Compiled RE2 patterns: one that must match the whole input, and one that searches and replaces.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use envoy_types::pb::envoy::r#type::matcher::v3 as pb;
use regex::{Captures, Regex, RegexBuilder};

use super::error::{MAX_PATTERN, MAX_PROGRAM, RegexError};
use super::re2;
use crate::invalid::Faults;

/// A compiled RE2 pattern that must match the whole input. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct FullRegex {
    pattern: String,
    regex: Regex,
}

/// Replaces every match of an RE2 pattern. Two are equal if their texts are.
#[derive(Clone, Debug)]
pub struct RegexRewrite {
    pattern: String,
    substitution: String,
    regex: Regex,
    template: Vec<Piece>,
}

/// A part of a substitution.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// Text that stands for itself.
    Literal(String),
    /// What group `0..=9` matched; `\0` is the whole match.
    Group(usize),
}

// === impl FullRegex ===

impl FullRegex {
    /// Compiles an RE2 pattern.
    pub fn new(pattern: &str) -> Result<Self, RegexError> {
        // The translation is balanced and has no comments, so it cannot leave the group.
        let regex = compile(pattern, |re| format!(r"\A(?:{re})\z"))?;
        Ok(Self { pattern: pattern.to_owned(), regex })
    }

    /// The pattern as written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// Whether all of `text` matches.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

impl PartialEq for FullRegex {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern
    }
}

impl Eq for FullRegex {}

impl Hash for FullRegex {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pattern.hash(state);
    }
}

// === impl RegexRewrite ===

impl RegexRewrite {
    /// Compiles an RE2 pattern and a substitution for it.
    pub fn new(pattern: &str, substitution: &str) -> Result<Self, RegexError> {
        let regex = compile(pattern, |re| re)?;
        let template = template(substitution, regex.captures_len())?;
        Ok(Self { pattern: pattern.to_owned(), substitution: substitution.to_owned(), regex, template })
    }

    /// Checks a RegexMatchAndSubstitute; `faults` is at it (R-53).
    pub(crate) fn parse(pb: &pb::RegexMatchAndSubstitute, faults: &mut Faults) -> Option<Self> {
        let Some(pattern) = &pb.pattern else {
            faults.field("pattern", |f| f.add("must be set"));
            return None;
        };
        let error = match Self::new(&pattern.regex, &pb.substitution) {
            Ok(rewrite) => return Some(rewrite),
            Err(error) => error,
        };
        let field = match error {
            RegexError::Substitution | RegexError::NoSuchGroup(_) => "substitution",
            RegexError::Parentheses
            | RegexError::Flag(_)
            | RegexError::GroupName
            | RegexError::Escape(_)
            | RegexError::Class
            | RegexError::Repetition
            | RegexError::Syntax(_)
            | RegexError::TooLarge => "pattern.regex",
        };
        faults.field(field, |f| f.add(error.to_string()));
        None
    }

    /// The pattern as written.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    /// The substitution as written: `\0` to `\9` are what a group matched, `\\` is a backslash.
    pub fn substitution(&self) -> &str {
        &self.substitution
    }

    /// Replaces every match in `text`.
    pub fn replace<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.regex.replace_all(text, |captures: &Captures<'_>| {
            let part = |piece| match piece {
                &Piece::Group(group) => captures.get(group).map_or("", |matched| matched.as_str()),
                Piece::Literal(text) => text.as_str(),
            };
            self.template.iter().map(part).collect::<String>()
        })
    }
}

impl PartialEq for RegexRewrite {
    fn eq(&self, other: &Self) -> bool {
        self.pattern == other.pattern && self.substitution == other.substitution
    }
}

impl Eq for RegexRewrite {}

impl Hash for RegexRewrite {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.pattern.hash(state);
        self.substitution.hash(state);
    }
}

// === helpers ===

fn compile(pattern: &str, wrap: impl FnOnce(String) -> String) -> Result<Regex, RegexError> {
    if pattern.len() > MAX_PATTERN {
        return Err(RegexError::TooLarge);
    }
    RegexBuilder::new(&wrap(re2::translate(pattern)?)).size_limit(MAX_PROGRAM).build().map_err(|error| {
        let regex::Error::Syntax(text) = error else { return RegexError::TooLarge };
        // The text shows the pattern again, over several lines; the last one says what is wrong.
        let reason = text.lines().last().unwrap_or_default();
        RegexError::Syntax(reason.strip_prefix("error: ").unwrap_or(reason).to_owned())
    })
}

/// Splits a substitution in RE2's notation; `groups` counts the whole match as well.
fn template(substitution: &str, groups: usize) -> Result<Vec<Piece>, RegexError> {
    let mut pieces = Vec::new();
    let mut literal = String::new();
    let mut chars = substitution.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            literal.push(c);
            continue;
        }
        match chars.next().map(|c| (c, c.to_digit(10))) {
            Some(('\\', _)) => literal.push('\\'),
            Some((_, Some(digit))) => {
                let group = digit as usize;
                if group >= groups {
                    return Err(RegexError::NoSuchGroup(group));
                }
                if !literal.is_empty() {
                    pieces.push(Piece::Literal(std::mem::take(&mut literal)));
                }
                pieces.push(Piece::Group(group));
            }
            _ => return Err(RegexError::Substitution),
        }
    }
    if !literal.is_empty() {
        pieces.push(Piece::Literal(literal));
    }
    Ok(pieces)
}
