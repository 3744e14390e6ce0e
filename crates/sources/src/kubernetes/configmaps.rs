//! Resources in ConfigMaps, in the format of the files of `serve` (KB-8, KB-9).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use mainstay_control_plane::files::{Source, Sources};
use mainstay_control_plane::{LoadError, LoadErrorKind, LoadErrors, Resource, Snapshot, Snapshots, TypeUrl};

use crate::kubernetes::names;
use crate::kubernetes::object::{ConfigMap, Key};

/// Says whether what ConfigMaps have may be put into force.
#[derive(Clone)]
pub struct Judge(Arc<Verdict>);

type Verdict = dyn Fn(&Sources) -> Result<(), LoadErrors> + Send + Sync;

impl Judge {
    /// One that asks this.
    pub fn new(judge: impl Fn(&Sources) -> Result<(), LoadErrors> + Send + Sync + 'static) -> Self {
        Self(Arc::new(judge))
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judge").finish_non_exhaustive()
    }
}

/// What all ConfigMaps have.
#[derive(Debug)]
pub(crate) struct ConfigMaps {
    judge: Judge,
    /// What each had when it was last without errors.
    good: BTreeMap<Key, Vec<Source>>,
    errors: BTreeMap<Key, LoadErrors>,
}

impl ConfigMaps {
    pub(crate) fn new(judge: Judge) -> Self {
        Self { judge, good: BTreeMap::new(), errors: BTreeMap::new() }
    }

    /// Takes what a ConfigMap has now; `None` if it is gone. What has errors changes nothing that is served.
    pub(crate) fn set(&mut self, key: Key, map: Option<ConfigMap>) {
        let Some(map) = map else {
            self.good.remove(&key);
            self.errors.remove(&key);
            return;
        };
        match read(&key, map, &self.judge) {
            Ok(resources) => {
                self.errors.remove(&key);
                self.good.insert(key, resources);
            }
            Err(errors) => {
                self.errors.insert(key, errors);
            }
        }
    }

    /// Lays all of it over what is made of Services, and says what cannot be used.
    pub(crate) fn overlay(&self, generated: Snapshot) -> (Snapshots, Vec<String>) {
        let mut problems: Vec<_> = self.errors.values().flat_map(|errors| errors.0.iter().map(told)).collect();
        let mut taken = BTreeMap::<(Option<&str>, &TypeUrl, &str), &Source>::new();
        for (key, source) in self.good.iter().flat_map(|(key, sources)| sources.iter().map(move |source| (key, source)))
        {
            let Resource { type_url, name, .. } = &source.resource;
            let foreign = names::namespace_of(name).filter(|namespace| *namespace != key.namespace);
            if let Some(namespace) = foreign.filter(|_| generated.contains(type_url, name)) {
                let whose =
                    format!("it is of a Service in namespace {namespace}, and only ConfigMaps there win over it");
                problems.push(problem(source, &whose));
                continue;
            }
            let id = (source.node.as_deref(), type_url, name.as_str());
            match taken.get(&id) {
                Some(other) => {
                    problems
                        .push(problem(source, &format!("{} has it, too, and wins", other.location.file().display())));
                }
                None => {
                    taken.insert(id, source);
                }
            }
        }
        let mut default = generated;
        let (for_all, for_nodes): (Vec<_>, Vec<_>) = taken.into_values().partition(|source| source.node.is_none());
        for_all.into_iter().for_each(|source| default.insert(source.resource.clone()));
        let mut nodes = BTreeMap::<String, Snapshot>::new();
        for source in for_nodes {
            let Some(node) = &source.node else { continue };
            let own = nodes.entry(node.clone()).or_insert_with(|| default.clone());
            own.insert(source.resource.clone());
        }
        (Snapshots { default, nodes }, problems)
    }
}

/// What the data of a ConfigMap are as files; all errors are told together.
fn read(key: &Key, map: ConfigMap, judge: &Judge) -> Result<Vec<Source>, LoadErrors> {
    let file = |name: &str| PathBuf::from(format!("{key}/{name}"));
    let (texts, others): (Vec<_>, Vec<_>) = map.data.into_iter().partition(|(name, _)| is_file(name));
    let wrong =
        others.iter().map(|(name, _)| malformed(file(name), "expected a key that ends in .yaml, .yml or .json"));
    let binary =
        map.binary.iter().map(|name| malformed(file(name), "expected text under data, found bytes under binaryData"));
    let wrong: Vec<_> = wrong.chain(binary).collect();
    let sources = Sources::of_texts(texts.into_iter().map(|(name, text)| (file(&name), text)));
    let errors: Vec<_> = wrong.into_iter().chain(sources.errors.iter().cloned()).collect();
    if !errors.is_empty() {
        return Err(LoadErrors(errors));
    }
    (judge.0)(&sources)?;
    Ok(sources.resources)
}

fn is_file(name: &str) -> bool {
    [".yaml", ".yml", ".json"].iter().any(|extension| name.ends_with(extension))
}

fn malformed(file: PathBuf, problem: &str) -> LoadError {
    let (kind, problem) = (LoadErrorKind::Malformed, problem.to_owned());
    LoadError { kind, file, line: None, resource: None, field: String::new(), problem }
}

fn told(error: &LoadError) -> String {
    format!("ConfigMap {error}")
}

fn problem(source: &Source, what: &str) -> String {
    let (file, Resource { type_url, name, .. }) = (source.location.file().display(), &source.resource);
    format!("ConfigMap {file}: {} {name}: {what}", type_url.message_name())
}

#[cfg(test)]
mod tests;
