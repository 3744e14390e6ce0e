//! What was told of a resource, as whoever watches it understands it.

use std::sync::Arc;

use mainstay_xds::bootstrap::ServerConfig;
use mainstay_xds::client::{ErrorKind, ResourceError, Update};
use mainstay_xds::resource::Resource;

/// All that was told of one resource since it is watched.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Told {
    pub(super) state: State,
    /// What is wrong although the value stays in use.
    pub(super) ambient: Option<Arc<ResourceError>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// No answer yet; what is in the way of one, if anything is known.
    Awaited(Option<Arc<ResourceError>>),
    Value(Resource, Arc<ServerConfig>),
    Failed(Arc<ResourceError>),
}

impl Told {
    pub(super) fn nothing() -> Self {
        Self { state: State::Awaited(None), ambient: None }
    }

    pub(super) fn hear(&mut self, update: Update) {
        match update {
            Update::Changed(resource, provenance) => {
                *self = Self { state: State::Value(resource, provenance.server), ambient: None };
            }
            Update::Confirmed(provenance) => {
                if let State::Value(_, server) = &mut self.state {
                    *server = provenance.server;
                    self.ambient = None;
                }
            }
            // Trouble with servers is no answer, unless it takes a value away.
            Update::Failed(error) => {
                self.ambient = None;
                self.state = match self.state {
                    State::Awaited(_) if !is_definite(&error.kind) => State::Awaited(Some(error)),
                    State::Awaited(_) | State::Value(..) | State::Failed(_) => State::Failed(error),
                };
            }
            Update::Ambient(error) => self.ambient = error,
        }
    }

    pub(super) fn value(&self) -> Option<&Resource> {
        match &self.state {
            State::Value(value, _) => Some(value),
            State::Awaited(_) | State::Failed(_) => None,
        }
    }

    pub(super) fn server(&self) -> Option<&Arc<ServerConfig>> {
        match &self.state {
            State::Value(_, server) => Some(server),
            State::Awaited(_) | State::Failed(_) => None,
        }
    }

    /// What is in the way of an answer.
    pub(super) fn trouble(&self) -> Option<&Arc<ResourceError>> {
        match &self.state {
            State::Awaited(trouble) => trouble.as_ref(),
            State::Value(..) | State::Failed(_) => None,
        }
    }
}

/// Whether an error says that there is nothing to be had, and not only that nobody could be asked.
fn is_definite(kind: &ErrorKind) -> bool {
    match kind {
        ErrorKind::Unreachable(_) | ErrorKind::TimedOut { .. } | ErrorKind::NeedsDelta => false,
        ErrorKind::FromServer { code, .. } => [5, 7].contains(code),
        ErrorKind::InvalidName(_)
        | ErrorKind::UnknownAuthority(_)
        | ErrorKind::DoesNotExist { .. }
        | ErrorKind::Deleted
        | ErrorKind::Rejected { .. } => true,
    }
}
