//! A directory of an operator as a server, in the format of `mainstay serve` (FB-1).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_control_plane::{Body, ControlPlane, Deletions, DirectoryWatch, Reload, Resource};
use mainstay_xds::local::{LocalSet, LocalValue};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;

use super::LocalContext;

/// A directory that is followed.
pub(super) struct Directory {
    path: PathBuf,
    watch: DirectoryWatch,
    /// Holds what the files say, and serves nobody.
    content: ControlPlane,
    context: LocalContext,
}

impl Directory {
    /// Reads it. All of it must be right.
    pub(super) async fn open(path: PathBuf, context: &LocalContext) -> Result<(LocalSet, Self), String> {
        let content = ControlPlane::new();
        // What goes from it is not spoken of, so there is nothing to guard against but that there is nothing at all.
        let watch = content.watch_directory_with(&path, Deletions::Allowed).await.map_err(|error| error.to_string())?;
        let directory = Self { path, watch, content, context: context.clone() };
        let set = directory.set();
        if set.resources.is_empty() {
            return Err(format!("{} holds no resources", directory.path.display()));
        }
        Ok((set, directory))
    }

    /// Waits until it says something else. Files with errors change nothing, and are told.
    pub(super) async fn changed(&mut self) -> LocalSet {
        loop {
            match self.watch.next().await {
                Some(Reload::Applied { .. }) => return self.set(),
                Some(Reload::Rejected(errors)) => {
                    tracing::warn!(directory = %self.path.display(), "files are not used, and those before still are: {errors}");
                }
                Some(Reload::Waiting(_) | Reload::Unchanged) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn set(&self) -> LocalSet {
        let own = self.content.snapshot_for_node(&self.context.node_id);
        let snapshot = own.or_else(|| self.content.snapshot()).unwrap_or_default();
        LocalSet { resources: snapshot.resources().filter_map(|resource| self.read(resource)).collect() }
    }

    /// What is not of a type that clients ask for is not a resource; errors are not, as not knowing is not deletion.
    fn read(&self, resource: Resource) -> Option<(ResourceKey, LocalValue)> {
        let resource_type = ResourceType::from_type_url(resource.type_url.as_str())?;
        let Body::Message(any) = resource.body else { return None };
        let named = ResourceKey::parse(resource_type, &resource.name, self.context.federation);
        let (key, _) = named.inspect_err(|error| log(&self.path, &resource.name, error)).ok()?;
        let version: Arc<str> = self.content.version(&resource.type_url).unwrap_or_default().into();
        Some((key, LocalValue { version, value: any.value.into() }))
    }
}

fn log(directory: &Path, name: &str, error: &mainstay_xds::name::NameError) {
    tracing::warn!(directory = %directory.display(), "the resource {name:?} is not used: {error}");
}
