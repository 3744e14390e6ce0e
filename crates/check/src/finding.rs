//! What is found.

use std::collections::BTreeSet;
use std::fmt;

use crate::catalog::Id;
use crate::input::{Item, Origin};

/// How bad it is (OP-7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Clients reject it, or RPCs fail.
    Error,
    /// It works, but not as whoever wrote it would think.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing that is wrong, or odd.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// The file as the user knows it, or the process.
    pub file: String,
    /// The line, counted from 1, if it is known.
    pub line: Option<u64>,
    /// Which check found it.
    pub id: Id,
    /// The resource, such as `Cluster greeter`; empty for a whole file.
    pub resource: String,
    /// The path of the field, such as `virtual_hosts[0].domains`; empty for the whole.
    pub path: String,
    /// What is wrong, and what follows.
    pub message: String,
}

impl Level {
    /// As output and users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Finding {
    /// How bad it is.
    pub fn level(&self) -> Level {
        self.id.level()
    }

    /// About a file as a whole.
    pub fn in_file(id: Id, file: impl Into<String>, line: Option<u64>, message: impl Into<String>) -> Self {
        let (resource, path) = (String::new(), String::new());
        Self { file: file.into(), line, id, resource, path, message: message.into() }
    }

    /// About a field of something that is written somewhere.
    pub(crate) fn at(id: Id, origin: &Origin, resource: &str, path: &str, message: impl Into<String>) -> Self {
        Self {
            file: origin.file.clone(),
            line: origin.line(path),
            id,
            resource: resource.to_owned(),
            path: path.to_owned(),
            message: message.into(),
        }
    }
}

/// Collects findings, each once.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    seen: BTreeSet<Finding>,
}

impl Findings {
    pub(crate) fn push(&mut self, finding: Finding) {
        if self.seen.insert(finding.clone()) {
            self.list.push(finding);
        }
    }

    /// Reports something about a field of a resource.
    pub(crate) fn add(&mut self, id: Id, item: &Item, path: &str, message: impl Into<String>) {
        self.push(Finding::at(id, &item.origin, &format!("{} {}", item.kind(), item.name), path, message));
    }

    pub(crate) fn finish(mut self) -> Vec<Finding> {
        self.list.sort();
        self.list
    }
}
