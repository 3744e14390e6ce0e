//! What can be wrong with a regular expression.

/// Why a pattern or a substitution cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum RegexError {
    /// The parentheses do not match.
    #[error("the parentheses are not balanced")]
    Parentheses,
    /// A flag or a kind of group that RE2 does not have.
    #[error("(?{0} is not supported")]
    Flag(char),
    /// A group's name is empty or has other characters than letters, digits and underscores.
    #[error("a group name must consist of letters, digits and underscores")]
    GroupName,
    /// An unknown or incomplete escape.
    #[error("the escape sequence with {0:?} is unknown or incomplete")]
    Escape(char),
    /// A class that is not closed or has an unknown name.
    #[error("a character class is not closed or not known")]
    Class,
    /// A repetition of a repetition, or of too many times.
    #[error("a repetition is repeated, or is of more than 1000 times")]
    Repetition,
    /// Any other error of syntax.
    #[error("{0}")]
    Syntax(String),
    /// The pattern, or the program made from it, is larger than we allow.
    #[error("is too large: at most {MAX_PATTERN} bytes of text and {MAX_PROGRAM} bytes of program are allowed")]
    TooLarge,
    /// A substitution has a backslash that is not followed by a digit or a backslash.
    #[error("a backslash must be followed by a digit or another backslash")]
    Substitution,
    /// A substitution names a group that the pattern does not have.
    #[error("group {0} does not exist")]
    NoSuchGroup(usize),
}

/// Longest pattern, in bytes.
pub(super) const MAX_PATTERN: usize = 32 << 10;

/// Largest compiled program, in bytes: a short pattern such as `\pL{1000}` can ask for very much.
pub(super) const MAX_PROGRAM: usize = 1 << 20;
