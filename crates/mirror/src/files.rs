//! What was in force last, on disk, in the format of last-good files: one for each target of a class (FB-18).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use mainstay::last_good;
use mainstay_xds::local::{Expected, LastGoodFile, Stored, file_name, servers_digest};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use tokio::sync::mpsc;

use crate::set::Set;

/// The files of one class.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    directory: PathBuf,
    node_id: String,
}

/// What is to be written.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) targets: BTreeMap<String, Arc<Set>>,
}

impl Files {
    pub(crate) fn new(directory: &Path, class: &str, node_id: &str) -> Self {
        Self { directory: directory.join(class), node_id: node_id.to_owned() }
    }

    /// What can be used of what is there, by target; and of what cannot, why.
    pub(crate) fn load(&self) -> (BTreeMap<String, Set>, Vec<String>) {
        let (mut found, mut refused) = (BTreeMap::new(), Vec::new());
        if !self.directory.exists() {
            return (found, refused);
        }
        let paths = last_good::list(&self.directory).unwrap_or_else(|error| {
            refused.push(error.to_string());
            Vec::new()
        });
        // The one before counts only where there is no other.
        let mut spare = BTreeMap::new();
        for path in paths {
            let file = match last_good::read(&path) {
                Ok(file) => file,
                Err(error) => {
                    refused.push(error.to_string());
                    continue;
                }
            };
            let age = SystemTime::now().duration_since(file.created_at).unwrap_or_default();
            if file.node_id != self.node_id {
                refused.push(format!(
                    "{}: it is of the node {:?} and not of {:?}",
                    path.display(),
                    file.node_id,
                    self.node_id
                ));
            } else if age > MAX_AGE {
                refused.push(format!("{}: it is older than {} days", path.display(), MAX_AGE.as_secs() / 86400));
            } else {
                let files = if file.is_previous { &mut spare } else { &mut found };
                files.insert(file.key.clone(), set_of(&file));
            }
        }
        spare.append(&mut found);
        (spare, refused)
    }

    /// Writes what was in force, and removes the files of what is no more. It may block.
    fn write(&self, write: &Write, known: &mut BTreeSet<String>) {
        let now = since_1970(SystemTime::now());
        for (target, set) in &write.targets {
            let expected = self.expected(target);
            let file = LastGoodFile {
                key: expected.key.clone(),
                authority: expected.authority.clone(),
                node_id: expected.node_id.clone(),
                servers: expected.servers,
                created_at: now,
                resources: set.values().cloned().collect(),
            };
            if let Err(error) = last_good::write(&self.directory, &file_name(&expected), &file.encode()) {
                tracing::warn!("what is mirrored of {target} cannot be kept: {error}");
            }
        }
        for target in known.iter().filter(|target| !write.targets.contains_key(*target)) {
            let path = self.directory.join(file_name(&self.expected(target)));
            // It may never have been written.
            let _ = std::fs::remove_file(path.with_extension("lastgood-before"));
            let _ = std::fs::remove_file(path);
        }
        *known = write.targets.keys().cloned().collect();
    }

    fn expected(&self, target: &str) -> Expected {
        Expected {
            key: target.to_owned(),
            authority: String::new(),
            node_id: self.node_id.clone(),
            servers: servers_digest(&[]),
        }
    }
}

/// Writes what comes, at most once in `interval`, and the newest of what came meanwhile. The last is written before it ends.
pub(crate) async fn write_all(files: Files, mut writes: mpsc::UnboundedReceiver<Write>, interval: Duration) {
    let mut known = BTreeSet::new();
    let mut newest = writes.recv().await;
    while let Some(mut write) = newest.take() {
        while let Ok(newer) = writes.try_recv() {
            write = newer;
        }
        let files = files.clone();
        let written = tokio::task::spawn_blocking(move || {
            files.write(&write, &mut known);
            known
        });
        known = written.await.unwrap_or_default();
        newest = next_of(&mut writes, interval).await;
    }
}

/// The newest of what comes in `interval`, or else the first after it; nothing if nothing can come any more. An end is not
/// waited for.
async fn next_of(writes: &mut mpsc::UnboundedReceiver<Write>, interval: Duration) -> Option<Write> {
    let mut newest = None;
    let pause = tokio::time::sleep(interval);
    tokio::pin!(pause);
    loop {
        tokio::select! {
            () = &mut pause => break,
            write = writes.recv() => match write {
                Some(write) => newest = Some(write),
                None => return newest,
            },
        }
    }
    match newest {
        Some(newest) => Some(newest),
        None => writes.recv().await,
    }
}

pub(crate) fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn set_of(file: &last_good::LastGoodFile) -> Set {
    let stored = |resource: &last_good::LastGoodResource| {
        let resource_type = ResourceType::from_type_url(resource.resource.resource_type.type_url())?;
        let key = ResourceKey { resource_type, name: resource.resource.name.as_str().into() };
        let stored = Stored {
            resource: key.clone(),
            version: resource.version.as_str().into(),
            value: resource.encoded.clone(),
            source: resource.server.as_str().into(),
            received_at: since_1970(resource.received_at),
        };
        Some((key, stored))
    };
    file.resources.iter().filter_map(stored).collect()
}

/// As for channels.
const MAX_AGE: Duration = Duration::from_secs(7 * 86400);
