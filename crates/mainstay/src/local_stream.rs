//! Streams to servers that are a part of this process: last-good files, and directories (FB-2).

use std::sync::Arc;

use bytes::Bytes;
use mainstay_xds::bootstrap::{ServerConfig, ServerUri};
use mainstay_xds::local::{LocalServer, LocalSet};

use crate::last_good::Store;

#[cfg(feature = "file-servers")]
mod directory;
#[cfg(not(feature = "file-servers"))]
#[path = "local_stream/no_directory.rs"]
mod directory;

use directory::Directory;

/// What the local servers of a client need to know of it.
#[derive(Clone, Default)]
pub(crate) struct LocalContext {
    /// Its last-good files.
    pub(crate) last_good: Option<Arc<Store>>,
    /// Who it is: directories may have resources for single nodes.
    #[cfg_attr(not(feature = "file-servers"), expect(dead_code, reason = "only directories need it"))]
    pub(crate) node_id: Arc<str>,
    /// Whether `xdstp:` names are understood.
    #[cfg_attr(not(feature = "file-servers"), expect(dead_code, reason = "only directories need it"))]
    pub(crate) federation: bool,
}

/// A stream to a local server.
pub(crate) struct LocalStream {
    server: LocalServer,
    source: Source,
}

/// Where the resources come from.
enum Source {
    /// They stay as they are.
    Files(Arc<Store>),
    /// They follow what an operator does.
    Directory(Directory),
}

impl LocalStream {
    /// Opens a stream, if there is anything to be had.
    ///
    /// # Errors
    /// If not, with the reason.
    pub(crate) async fn open(context: &LocalContext, server: &Arc<ServerConfig>) -> Result<Self, String> {
        let uri = ServerUri::parse(&server.server_uri).map_err(|error| error.to_string())?;
        let (set, source) = match (uri, &context.last_good) {
            (ServerUri::Directory(path), _) => {
                let (set, directory) = Directory::open(path, context).await?;
                (set, Source::Directory(directory))
            }
            (ServerUri::LastGood(_), Some(store)) => (load(store, server).await?, Source::Files(store.clone())),
            (ServerUri::LastGood(_), None) => return Err("last-good files are not turned on".to_owned()),
            (ServerUri::HostPort { .. } | ServerUri::Ip(_) | ServerUri::Unix(_), _) => {
                return Err(format!("{} is not a part of this process", server.server_uri));
            }
        };
        Ok(Self { server: LocalServer::new(server.server_uri.as_str(), Arc::new(set)), source })
    }

    /// The answer to a request, if it wants one.
    pub(crate) fn handle_request(&mut self, request: &[u8]) -> Result<Option<Bytes>, String> {
        self.server.handle_request(request)
    }

    /// The responses that come by themselves, when something is new.
    pub(crate) async fn news(&mut self) -> Vec<Bytes> {
        match &mut self.source {
            Source::Files(_) => std::future::pending().await,
            Source::Directory(directory) => {
                let set = directory.changed().await;
                self.server.replace(Arc::new(set))
            }
        }
    }
}

impl Drop for LocalStream {
    fn drop(&mut self) {
        if let Source::Files(store) = &self.source {
            store.left();
        }
    }
}

/// Disks may be slow: they are read where that holds up nobody.
async fn load(store: &Arc<Store>, server: &Arc<ServerConfig>) -> Result<LocalSet, String> {
    let (store, server) = (store.clone(), server.clone());
    let loaded = tokio::task::spawn_blocking(move || store.load(&server)).await;
    loaded.unwrap_or_else(|error| Err(format!("last-good files were not read: {error}")))
}
