//! Why a last-good file cannot be used.

use std::fmt;
use std::path::{Path, PathBuf};

/// Why a last-good file cannot be read or written. [`Display`](fmt::Display) names the file and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastGoodError {
    /// The file or the directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

impl LastGoodError {
    pub(super) fn new(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into() }
    }
}

impl fmt::Display for LastGoodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for LastGoodError {}
