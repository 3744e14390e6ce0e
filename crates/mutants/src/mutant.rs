//! A mutant: one place of the sources, and what stands there if it is on.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh64::xxh64;

/// One small logic error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// Path of the source file from the root of the workspace.
    pub(crate) file: String,
    pub(crate) line: usize,
    /// The function that it is in, with its type.
    pub(crate) within: String,
    pub(crate) operator: Operator,
    /// What stands there and what becomes of it, on one line.
    pub(crate) what: String,
    /// Tells apart those that are otherwise alike in one function.
    pub(crate) nth: usize,
    pub(crate) range: Range<usize>,
    pub(crate) wrap: Wrap,
}

/// How a place is mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operator {
    Comparison,
    Connective,
    Condition,
    Negation,
    Result,
    Skip,
    Number,
    Arithmetic,
    Nothing,
    Method,
    Always,
    Flag,
}

/// What is written around a place. The rest of the text stays as it is, and with the mutant off so does its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    /// A truth value becomes the other one.
    Negate,
    /// A truth value is true.
    True,
    /// A truth value is false; also before a condition with `let`.
    Never,
    /// Another expression.
    Instead(String),
    /// A statement is left out.
    Without,
    /// The same for one that is the end of a block.
    WithoutTail,
    /// A statement at the beginning of a body.
    Before(String),
    /// One more of a constant.
    More,
}

impl Mutant {
    /// Its name: the same in another version of the sources, unless its own function changed there.
    pub(crate) fn key(&self) -> String {
        let nth = if self.nth > 0 { format!(" #{}", self.nth + 1) } else { String::new() };
        format!("{} {}: {}{nth}", self.file, self.within, self.what)
    }

    /// The package that it is in.
    pub(crate) fn package(&self) -> &'static str {
        if self.file.starts_with("crates/xds/") { "mainstay-xds" } else { "mainstay-lb" }
    }

    /// Its place in the order of a seed. What else there is has no influence on it.
    pub(crate) fn rank(&self, seed: u64) -> u64 {
        xxh64(self.key().as_bytes(), seed)
    }
}

impl Operator {
    pub(crate) const ALL: [Self; 12] = [
        Self::Comparison,
        Self::Connective,
        Self::Condition,
        Self::Negation,
        Self::Result,
        Self::Skip,
        Self::Number,
        Self::Arithmetic,
        Self::Nothing,
        Self::Method,
        Self::Always,
        Self::Flag,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Comparison => "comparison",
            Self::Connective => "connective",
            Self::Condition => "condition",
            Self::Negation => "negation",
            Self::Result => "result",
            Self::Skip => "skip",
            Self::Number => "number",
            Self::Arithmetic => "arithmetic",
            Self::Nothing => "nothing",
            Self::Method => "method",
            Self::Always => "always",
            Self::Flag => "flag",
        }
    }

    /// For the table of the documentation.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Comparison => "`==` and `!=`, `<` and `<=`, `>` and `>=` change places",
            Self::Connective => "`&&` and `||` change places",
            Self::Condition => {
                "the condition of an `if`, a `while` or a match arm is negated, or never holds if it binds something"
            }
            Self::Negation => "a `!` is removed, or a `matches!` negated",
            Self::Result => "a function answers `true`, `false` or `None` at once",
            Self::Skip => "a call, an assignment, a `return`, `continue` or `break` is left out",
            Self::Number => "a number, a duration or a constant is one more",
            Self::Arithmetic => "`+` and `-` change places",
            Self::Nothing => "`None` stands in place of `Some(…)` or of what a `let … else` looks at",
            Self::Method => {
                "`min` and `max`, `first` and `last`, `any` and `all`, `is_some` and `is_none` and the like change places"
            }
            Self::Always => {
                "what filters lets all through; what asks whether an insertion was new hears yes, and nothing is inserted"
            }
            Self::Flag => "`true` and `false` change places",
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Wrap {
    /// What is written before and after the place.
    pub(crate) fn texts(&self, number: u32) -> (String, String) {
        let on = format!("::mutant::on({number})");
        let around = |before: String, after: &str| (before, after.to_owned());
        match self {
            Self::Negate => around(format!("({on} ^ ("), "))"),
            Self::True => around(format!("({on} || ("), "))"),
            Self::Never => around(format!("!{on} && "), ""),
            Self::Instead(other) => around(format!("(if {on} {{ {other} }} else {{ "), " })"),
            Self::Without => around(format!("if !{on} {{ "), " }"),
            Self::WithoutTail => around(format!("{{ if !{on} {{ "), " } }"),
            Self::Before(statement) => around(format!(" if {on} {{ {statement} }}"), ""),
            Self::More => around(format!("::mutant::more({number}, "), ")"),
        }
    }
}
