//! Whether a server serves, and why not.

use std::fmt;

use tokio::sync::watch;

/// Whether a server serves on an address (gRFC A36).
///
/// A server that does not serve does not listen, so the system refuses connections to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServingState {
    /// It accepts connections.
    Serving,
    /// It does not accept connections.
    #[non_exhaustive]
    NotServing {
        /// What is missing or wrong: it names the resource and the xDS server.
        reason: String,
    },
}

/// The serving state of one address as it changes, from [`Running::serving_state`](crate::Running::serving_state).
///
/// ```no_run
/// # async fn example(running: mainstay::Running) {
/// let address = running.local_addresses()[0];
/// if let Some(mut states) = running.serving_state(address) {
///     states.serving().await;
///     println!("{address} serves");
///     while let Some(state) = states.next().await {
///         println!("{address}: {state}");
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ServingStates(watch::Receiver<ServingState>);

impl ServingState {
    pub(crate) fn not_serving(reason: impl Into<String>) -> Self {
        Self::NotServing { reason: reason.into() }
    }

    /// Returns whether it serves.
    pub fn is_serving(&self) -> bool {
        *self == Self::Serving
    }
}

impl fmt::Display for ServingState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving => f.write_str("serving"),
            Self::NotServing { reason } => write!(f, "not serving: {reason}"),
        }
    }
}

impl ServingStates {
    pub(crate) fn new(mut states: watch::Receiver<ServingState>) -> Self {
        states.mark_unchanged();
        Self(states)
    }

    /// Returns the present state.
    pub fn current(&self) -> ServingState {
        self.0.borrow().clone()
    }

    /// Waits for another state than the last one that was seen here. States that last a moment only may be left out.
    /// Returns `None` when the server has ended.
    pub async fn next(&mut self) -> Option<ServingState> {
        self.0.changed().await.ok()?;
        Some(self.0.borrow_and_update().clone())
    }

    /// Waits until the server serves. Returns `false` if it has ended.
    pub async fn serving(&mut self) -> bool {
        self.0.wait_for(ServingState::is_serving).await.is_ok()
    }
}
