//! Why a channel cannot be made.

use std::fmt;

use mainstay_xds::target;

use crate::bootstrap::BootstrapError;
use crate::credentials::CredentialsError;

/// Why a channel cannot be made, from [`ChannelBuilder::build`](crate::ChannelBuilder::build).
///
/// ```
/// use mainstay::bootstrap::{Bootstrap, ServerConfig};
/// use mainstay::{BuildError, Channel, TargetErrorKind};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BuildError> {
/// let bootstrap = Bootstrap::builder().server(ServerConfig::insecure("localhost:18000")).build()?;
/// match Channel::builder("greeter:50051").bootstrap(bootstrap).build() {
///     Err(BuildError::Target(error)) => assert_eq!(error.kind(), TargetErrorKind::Scheme),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no usable bootstrap.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The credentials do not fit the target.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The authority cannot be the `:authority` of a request.
    #[error("{0:?} cannot be the :authority of a request: {1}")]
    Authority(String, #[source] http::uri::InvalidUri),
    /// There is no tokio runtime, and channels run on one.
    #[error("no tokio runtime: make the channel inside one, for example in a function under #[tokio::main]")]
    NoRuntime,
}

/// Why a target cannot be used. The text names the target.
#[derive(Clone, PartialEq, Eq)]
pub struct TargetError(target::TargetError);

/// The kinds of [`TargetError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TargetErrorKind {
    /// The scheme is not `xds`.
    Scheme,
    /// The target names no service: it should be `xds:///name` or `xds://authority/name`.
    Path,
    /// The target is not UTF-8 once its percent-encoding is undone.
    NotUtf8,
    /// The authority is not in the bootstrap.
    UnknownAuthority,
    /// The template of the bootstrap makes a Listener name that cannot be used.
    ListenerName,
}

// === impl BuildError ===

impl fmt::Debug for BuildError {
    /// Writes the text, which is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl TargetError ===

impl TargetError {
    pub(crate) fn of(core: target::TargetError) -> Self {
        Self(core)
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> TargetErrorKind {
        match &self.0 {
            target::TargetError::Scheme(_) => TargetErrorKind::Scheme,
            target::TargetError::Path(_) => TargetErrorKind::Path,
            target::TargetError::NotUtf8(_) => TargetErrorKind::NotUtf8,
            target::TargetError::UnknownAuthority { .. } => TargetErrorKind::UnknownAuthority,
            target::TargetError::Listener { .. } => TargetErrorKind::ListenerName,
        }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TargetError {
    /// Writes the text, which is what a `main` that ends with `?` prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for TargetError {}
