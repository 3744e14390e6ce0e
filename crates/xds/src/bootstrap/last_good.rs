//! What clients themselves had last, as the last server of every list (FB-1).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Bootstrap, ChannelCreds, DeltaMode, Guards, ServerConfig, ServerFeatures, ServerUri};
use crate::invalid::Faults;
use crate::resource_type::ResourceType;

/// Where last-good files are kept, and when they are used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LastGood {
    /// The directory, which nobody else may write to (FB-7).
    pub directory: PathBuf,
    /// How old a file may be that is used (FB-9).
    pub max_age: Duration,
    /// Whether one that is older is used all the same.
    pub allow_expired: bool,
    /// Whether the files are used at once at the start, until another server has answered, and not only when none does
    /// (FB-10).
    pub eager: bool,
    /// Types of which nothing is written (FB-8).
    pub exclude_types: Vec<ResourceType>,
}

impl LastGood {
    /// The files in `directory`, with defaults for the rest.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            max_age: DEFAULT_MAX_AGE,
            allow_expired: false,
            eager: false,
            exclude_types: Vec::new(),
        }
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        if self.directory.as_os_str().is_empty() {
            faults.field("directory", |f| f.add("must not be empty"));
        }
        if self.max_age.is_zero() {
            faults.field("max_age", |f| f.add("must be greater than zero"));
        }
    }

    /// The server that stands for the files, below these others.
    fn server(&self, others: &[Arc<ServerConfig>], guards: Guards) -> Arc<ServerConfig> {
        // What is in the files came from any of them.
        let trusted = others.iter().all(|server| server.features.trusted_xds_server);
        Arc::new(ServerConfig {
            server_uri: ServerUri::of_last_good(&self.directory),
            channel_creds: ChannelCreds::Insecure,
            call_creds: Vec::new(),
            features: ServerFeatures { trusted_xds_server: trusted, ..local_features(guards) },
        })
    }
}

impl Bootstrap {
    /// The same bootstrap with last-good files at the end of every list of servers, in the place of those that it has.
    #[must_use]
    pub fn with_last_good(mut self, last_good: LastGood) -> Self {
        let guards = self.guards;
        let own_lists = self.authorities.values_mut().map(|authority| &mut authority.servers);
        for list in own_lists.filter(|list| !list.is_empty()).chain([&mut self.servers]) {
            list.retain(|server| !server.is_last_good());
            let server = last_good.server(list, guards);
            list.push(server);
        }
        self.last_good = Some(last_good);
        self
    }
}

impl ServerConfig {
    /// Whether it stands for last-good files.
    pub fn is_last_good(&self) -> bool {
        matches!(ServerUri::parse(&self.server_uri), Ok(ServerUri::LastGood(_)))
    }

    /// Whether it is a part of this process: last-good files or a directory.
    pub fn is_local(&self) -> bool {
        ServerUri::parse(&self.server_uri).is_ok_and(|uri| uri.is_local())
    }
}

/// How a server of this process is spoken to. Over delta absence is never a deletion (FB-3), versions are those of the
/// resources, and glob collections can be had; and its silence means nothing.
pub(super) fn local_features(guards: Guards) -> ServerFeatures {
    ServerFeatures {
        delta: DeltaMode::Required,
        resource_timer_is_transient_error: guards.data_error_handling,
        ..ServerFeatures::default()
    }
}

const DEFAULT_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
