//! MS2xx: names that lead nowhere, and resources that nothing leads to.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_xds::name::AuthorityKey;
use mainstay_xds::resource::ResourceType;

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::Item;
use crate::parse::Parser;
use crate::set::{Set, authority, canonical};
use crate::walk;

pub(crate) fn check(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    let mut seen = References { set, parser, findings, used: BTreeSet::new() };
    for listener in set.listeners.values() {
        seen.listener(listener.item, &walk::http(&listener.message));
    }
    let mut roots: BTreeMap<String, bool> = BTreeMap::new();
    walk::each_route_configuration(set, |item, path, routes, used| {
        for (path, route) in walk::routes(path, routes) {
            for (path, name) in walk::clusters(&path, route) {
                let is_there =
                    seen.refer(item, &path, ResourceType::Cluster, name, used.is_some().then_some(Id::MS201));
                if is_there {
                    *roots.entry(canonical(ResourceType::Cluster, name)).or_default() |= used.is_some();
                }
            }
        }
    });
    let reachable = seen.reachable(roots.iter().filter(|(_, used)| **used).map(|(name, _)| name.clone()).collect());
    for (name, cluster) in &set.clusters {
        let is_used = reachable.contains(name);
        if let Some(eds) = walk::eds_name(&cluster.message) {
            let path = "eds_cluster_config.service_name";
            let id = is_used.then_some(Id::MS203);
            if seen.refer(cluster.item, path, ResourceType::Endpoints, eds, id) {
                seen.collections(&canonical(ResourceType::Endpoints, eds), is_used);
            }
        }
        if let Some(members) = walk::members(&cluster.message) {
            seen.aggregate(name, cluster.item, &members, is_used);
        }
    }
    if !set.listeners.is_empty() {
        seen.unused();
    }
}

struct References<'s, 'i, 'f> {
    set: &'s Set<'i>,
    parser: &'s Parser<'s>,
    findings: &'f mut Findings,
    used: BTreeSet<(ResourceType, String)>,
}

impl References<'_, '_, '_> {
    /// Notes a reference and says whether it leads somewhere. Where it does not, `id` is what that means; without one, nobody
    /// gets that far.
    fn refer(&mut self, item: &Item, path: &str, to: ResourceType, name: &str, id: Option<Id>) -> bool {
        if name.is_empty() {
            return false; // A fault that the parser tells.
        }
        self.used.insert((to, canonical(to, name)));
        self.authority(item, path, to, name);
        if self.set.has(to, name) {
            return true;
        }
        let what = format!("there is no {to} {name:?}{}", self.set.absence(to, name));
        let then = match id {
            None => return self.nobody_cares(item, path, &what),
            Some(Id::MS201) => "RPCs of this route wait 15 s for it and fail",
            Some(Id::MS202) => "clients wait 15 s for it and all RPCs fail",
            Some(Id::MS204) => "this member is skipped",
            Some(_) => "RPCs to this cluster wait 15 s for it and fail",
        };
        self.findings.add(id.unwrap_or(Id::MS210), item, path, format!("{what}: {then}"));
        false
    }

    fn nobody_cares(&mut self, item: &Item, path: &str, what: &str) -> bool {
        self.findings.add(Id::MS210, item, path, format!("{what}; nothing here uses this resource yet"));
        false
    }

    /// MS607: an authority that the bootstrap does not have cannot be asked.
    fn authority(&mut self, item: &Item, path: &str, to: ResourceType, name: &str) {
        let (Some(bootstrap), Some(authority)) = (self.parser.real, authority(to, name)) else { return };
        if bootstrap.servers_of(&AuthorityKey::Named(authority.as_str().into())).is_none() {
            let message =
                format!("authority {authority:?} of {name:?} is not in the bootstrap: clients cannot ask for it");
            self.findings.add(Id::MS607, item, path, message);
        }
    }

    fn listener(&mut self, item: &Item, managers: &[walk::Http]) {
        for http in managers {
            if let Some((path, name)) = walk::rds(http) {
                self.refer(item, &path, ResourceType::RouteConfig, name, Some(Id::MS202));
            }
        }
    }

    /// The clusters that RPCs can come to: those that routes name, and the members of aggregates.
    fn reachable(&self, mut work: Vec<String>) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        while let Some(name) = work.pop() {
            let cluster = self.set.clusters.get(&name);
            if reached.insert(name) {
                let members = cluster.and_then(|cluster| walk::members(&cluster.message)).unwrap_or_default();
                work.extend(members.iter().map(|member| canonical(ResourceType::Cluster, member)));
            }
        }
        reached
    }

    fn aggregate(&mut self, name: &str, item: &Item, members: &[String], is_used: bool) {
        let base = "cluster_type.typed_config.clusters";
        let missing: Vec<_> = members.iter().filter(|member| !self.set.has(ResourceType::Cluster, member)).collect();
        if !members.is_empty() && missing.len() == members.len() {
            members.iter().for_each(|member| {
                self.used.insert((ResourceType::Cluster, canonical(ResourceType::Cluster, member)));
            });
            let what = format!("none of the clusters {missing:?} exists");
            if is_used {
                self.findings.add(Id::MS205, item, base, format!("{what}: RPCs to this cluster fail"));
            } else {
                self.nobody_cares(item, base, &what);
            }
            return;
        }
        for (i, member) in members.iter().enumerate() {
            self.refer(item, &format!("{base}[{i}]"), ResourceType::Cluster, member, Some(Id::MS204));
        }
        let mut leaves = Vec::new();
        match self.descend(name, &mut Vec::new(), &mut leaves) {
            Ok(()) => {}
            Err(Id::MS206) => {
                self.findings.add(
                    Id::MS206,
                    item,
                    base,
                    "this aggregate has itself among its members: RPCs to it fail",
                );
                return;
            }
            Err(_) => {
                let message = format!("clusters are nested more than {MAX_DEPTH} deep: RPCs to this one fail");
                return self.findings.add(Id::MS207, item, base, message);
            }
        }
        let mut seen = BTreeSet::new();
        for leaf in leaves {
            if !seen.insert(leaf.clone()) {
                let message = format!("cluster {leaf:?} is among its members twice: only the first place counts");
                self.findings.add(Id::MS208, item, base, message);
            }
        }
    }

    fn descend(&self, name: &str, way: &mut Vec<String>, leaves: &mut Vec<String>) -> Result<(), Id> {
        if way.iter().any(|above| above == name) {
            return Err(Id::MS206);
        }
        if way.len() > MAX_DEPTH {
            return Err(Id::MS207);
        }
        let Some(cluster) = self.set.clusters.get(name) else { return Ok(()) };
        let Some(members) = walk::members(&cluster.message) else {
            leaves.push(name.to_owned());
            return Ok(());
        };
        way.push(name.to_owned());
        for member in members {
            self.descend(&canonical(ResourceType::Cluster, &member), way, leaves)?;
        }
        way.pop();
        Ok(())
    }

    /// The collections that a ClusterLoadAssignment names (A95).
    fn collections(&mut self, name: &str, is_used: bool) {
        let Some(endpoints) = self.set.endpoints.get(name) else { return };
        for (i, locality) in endpoints.message.endpoints.iter().enumerate() {
            let Some(collection) = leds_name(locality) else { continue };
            let path = format!("endpoints[{i}].leds_cluster_locality_config.leds_collection_name");
            if let Some(prefix) = collection.strip_suffix('*') {
                // The members of a glob come one by one; that there is none yet is no fault.
                let members = self.set.names.keys().filter(|(kind, _)| *kind == ResourceType::EndpointGlob);
                let members = members.filter(|(_, name)| name.starts_with(prefix));
                self.used.extend(members.cloned());
                continue;
            }
            let id = is_used.then_some(Id::MS209);
            self.refer(endpoints.item, &path, ResourceType::EndpointCollection, collection, id);
        }
    }

    /// MS212. Listeners are asked for by those who use them, and members of globs by none in particular.
    fn unused(&mut self) {
        for ((resource_type, name), item) in &self.set.names {
            match resource_type {
                ResourceType::Listener | ResourceType::EndpointGlob => continue,
                ResourceType::RouteConfig
                | ResourceType::Cluster
                | ResourceType::Endpoints
                | ResourceType::EndpointCollection => {}
            }
            if !self.used.contains(&(*resource_type, name.clone())) {
                let message = format!("no other resource here refers to this {resource_type}");
                self.findings.add(Id::MS212, item, "", message);
            }
        }
    }
}

/// The collection that a locality takes its endpoints from.
pub(crate) fn leds_name(locality: &envoy_types::pb::envoy::config::endpoint::v3::LocalityLbEndpoints) -> Option<&str> {
    use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
    let name = match &locality.lb_config {
        Some(LbConfig::LedsClusterLocalityConfig(leds)) => Some(leds.leds_collection_name.as_str()),
        _ => None, // The other one is deprecated, and gRPC does not read it.
    };
    name.filter(|name| !name.is_empty())
}

/// How deep aggregates may be nested (A37).
const MAX_DEPTH: usize = 16;
