//! The resources that are made of Services and EndpointSlices, kept up to date object by object (KB-1 to KB-9).
//!
//! What changes has only its own Service made anew, so what a change costs does not depend on how many there are.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_control_plane::{Resource, Snapshot, Snapshots, resources};

use crate::kubernetes::configmaps::{ConfigMaps, Judge};
use crate::kubernetes::object::{Key, Object, Service, Slice};
use crate::kubernetes::{endpoints, names};

/// What is the same for all Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// The DNS domain of the cluster.
    pub(crate) domain: String,
    /// The region of all localities.
    pub(crate) region: String,
}

/// Everything that was read, and what is made of it.
#[derive(Debug)]
pub(crate) struct Model {
    frame: Frame,
    services: BTreeMap<Key, Service>,
    slices: BTreeMap<Key, Slice>,
    /// Which slices each Service has, whether it is there already or not.
    of_service: BTreeMap<Key, BTreeSet<Key>>,
    config_maps: ConfigMaps,
    /// Services that are to be made anew.
    dirty: BTreeSet<Key>,
    /// What was made of each Service.
    made: BTreeMap<Key, Vec<Resource>>,
    generated: Snapshot,
    changed: bool,
    #[cfg(test)]
    pub(crate) computed: u64,
}

impl Model {
    pub(crate) fn new(frame: Frame, judge: Judge) -> Self {
        Self {
            frame,
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            of_service: BTreeMap::new(),
            config_maps: ConfigMaps::new(judge),
            dirty: BTreeSet::new(),
            made: BTreeMap::new(),
            generated: Snapshot::default(),
            changed: true,
            #[cfg(test)]
            computed: 0,
        }
    }

    /// An object is like this now.
    pub(crate) fn put(&mut self, key: Key, object: Object) {
        match object {
            Object::Service(service) => {
                if self.services.get(&key) != Some(&service) {
                    self.dirty.insert(key.clone());
                    self.services.insert(key, service);
                }
            }
            Object::Slice(slice) => {
                if self.slices.get(&key) != Some(&slice) {
                    self.take_slice(&key);
                    if let Some(owner) = owner(&key, &slice) {
                        self.of_service.entry(owner.clone()).or_default().insert(key.clone());
                        self.dirty.insert(owner);
                    }
                    self.slices.insert(key, slice);
                }
            }
            Object::ConfigMap(map) => {
                self.config_maps.set(key, Some(map));
                self.changed = true;
            }
        }
    }

    /// A Service is gone.
    pub(crate) fn remove_service(&mut self, key: Key) {
        if self.services.remove(&key).is_some() {
            self.dirty.insert(key);
        }
    }

    /// An EndpointSlice is gone.
    pub(crate) fn remove_slice(&mut self, key: &Key) {
        self.take_slice(key);
        self.slices.remove(key);
    }

    /// A ConfigMap is gone.
    pub(crate) fn remove_config_map(&mut self, key: Key) {
        self.config_maps.set(key, None);
        self.changed = true;
    }

    /// Whether anything was told since the last time that [`snapshots`](Self::snapshots) was asked.
    pub(crate) fn is_dirty(&self) -> bool {
        self.changed || !self.dirty.is_empty()
    }

    /// What is to be served, and what cannot be; `None` if it is what it was the last time.
    pub(crate) fn snapshots(&mut self) -> Option<(Snapshots, Vec<String>)> {
        for key in std::mem::take(&mut self.dirty) {
            let now = self.make(&key);
            let before = self.made.remove(&key).unwrap_or_default();
            if now == before {
                self.keep(key, now);
                continue;
            }
            self.changed = true;
            for old in before {
                self.generated.remove(&old.type_url, &old.name);
            }
            now.iter().for_each(|resource| self.generated.insert(resource.clone()));
            self.keep(key, now);
        }
        std::mem::take(&mut self.changed).then(|| self.config_maps.overlay(self.generated.clone()))
    }

    fn keep(&mut self, key: Key, resources: Vec<Resource>) {
        if !resources.is_empty() {
            self.made.insert(key, resources);
        }
    }

    /// Forgets whose slice it is.
    fn take_slice(&mut self, key: &Key) {
        let Some(owner) = self.slices.get(key).and_then(|slice| owner(key, slice)) else { return };
        if let Some(of_owner) = self.of_service.get_mut(&owner) {
            of_owner.remove(key);
            if of_owner.is_empty() {
                self.of_service.remove(&owner);
            }
        }
        self.dirty.insert(owner);
    }

    /// The resources of a Service.
    fn make(&mut self, key: &Key) -> Vec<Resource> {
        #[cfg(test)]
        {
            self.computed += 1;
        }
        let Some(Service::Sliced { ports, family }) = self.services.get(key) else { return Vec::new() };
        let slices = || self.of_service.get(key).into_iter().flatten().filter_map(|slice| self.slices.get(slice));
        let mut made = Vec::new();
        for port in ports {
            let name = names::cluster(key, port.number);
            let Frame { domain, region } = &self.frame;
            for listener in names::listeners(key, port.number, domain) {
                made.push(resources::listener(listener, resources::rds(&name)).into());
            }
            made.push(resources::route(&name, &name).into());
            made.push(resources::eds_cluster(&name).into());
            made.push(endpoints::assignment(name, &port.name, *family, region, slices()).into());
        }
        made
    }
}

fn owner(key: &Key, slice: &Slice) -> Option<Key> {
    Some(Key::new(&key.namespace, slice.service.as_ref()?))
}

#[cfg(test)]
mod tests;
