//! Why there is no bootstrap.

use std::fmt;
use std::path::Path;

use mainstay_xds::bootstrap as core;
use mainstay_xds::invalid::Invalid;

use crate::names::Fault;

/// Why there is no bootstrap, or none that can be used.
///
/// ```
/// use mainstay::bootstrap::{Bootstrap, BootstrapErrorKind};
///
/// let error = Bootstrap::from_json(r#"{ "xds_servers": [], "node": { "id": 7 } }"#).unwrap_err();
/// assert_eq!(error.kind(), BootstrapErrorKind::Invalid);
/// let paths: Vec<_> = error.faults().into_iter().map(|fault| fault.path).collect();
/// assert_eq!(paths, ["xds_servers", "node.id"]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct BootstrapError(Cause);

/// The kinds of [`BootstrapError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BootstrapErrorKind {
    /// No environment variable names a bootstrap.
    Missing,
    /// The file that `GRPC_XDS_BOOTSTRAP` names cannot be read.
    Unreadable,
    /// The bootstrap has faults; [`BootstrapError::faults`] lists them.
    Invalid,
}

#[derive(Clone, PartialEq, Eq)]
enum Cause {
    /// A bootstrap of the environment.
    Environment(core::BootstrapError),
    /// A bootstrap that the program brought.
    Value(Invalid),
}

impl BootstrapError {
    pub(super) fn of_environment(error: core::BootstrapError) -> Self {
        Self(Cause::Environment(error))
    }

    pub(super) fn of_value(invalid: Invalid) -> Self {
        Self(Cause::Value(invalid))
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> BootstrapErrorKind {
        match &self.0 {
            Cause::Environment(core::BootstrapError::Missing) => BootstrapErrorKind::Missing,
            Cause::Environment(core::BootstrapError::Unreadable { .. }) => BootstrapErrorKind::Unreadable,
            Cause::Environment(core::BootstrapError::Invalid { .. }) | Cause::Value(_) => BootstrapErrorKind::Invalid,
        }
    }

    /// Returns everything that is wrong with the bootstrap; empty unless the kind is
    /// [`Invalid`](BootstrapErrorKind::Invalid).
    pub fn faults(&self) -> Vec<Fault> {
        match &self.0 {
            Cause::Environment(core::BootstrapError::Invalid { invalid, .. }) | Cause::Value(invalid) => {
                Fault::all(invalid)
            }
            Cause::Environment(core::BootstrapError::Missing | core::BootstrapError::Unreadable { .. }) => Vec::new(),
        }
    }

    /// Returns the file that the bootstrap was read from, if it was read from one.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Cause::Environment(core::BootstrapError::Unreadable { path, .. })
            | Cause::Environment(core::BootstrapError::Invalid {
                found_in: core::BootstrapSource::File(path), ..
            }) => Some(path),
            Cause::Environment(
                core::BootstrapError::Missing
                | core::BootstrapError::Invalid { found_in: core::BootstrapSource::Variable(_), .. },
            )
            | Cause::Value(_) => None,
        }
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Environment(error) => error.fmt(f),
            Cause::Value(invalid) => invalid.fmt(f),
        }
    }
}

impl fmt::Debug for BootstrapError {
    /// Writes the text, which is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for BootstrapError {}
