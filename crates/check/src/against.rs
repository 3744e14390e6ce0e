//! What a change brings: new findings, and what it does to running clients and servers (OP-10).

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use mainstay_xds::resource::{Resource, ResourceType};
use prost::Message;

use crate::balancing::usable;
use crate::catalog::Id;
use crate::finding::{Finding, Findings};
use crate::input::{Body, Input, Item, Origin};
use crate::parse::Parser;
use crate::references::leds_name;
use crate::set::{Set, canonical};
use crate::{allow, check, walk};

/// What is wrong with `new` that is not wrong with `old`, and what the way from one to the other does.
pub fn against(new: &Input, old: &Input) -> Vec<Finding> {
    let mut known: BTreeMap<_, usize> = BTreeMap::new();
    check(old).iter().for_each(|finding| *known.entry(identity(finding)).or_default() += 1);
    let introduced = check(new).into_iter().filter(|finding| match known.get_mut(&identity(finding)) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        Some(_) | None => true,
    });
    let mut all = Findings::default();
    introduced.for_each(|finding| all.push(finding));
    let bootstrap = new.bootstrap.as_ref().and_then(|file| file.parsed());
    let (parser, before) = (Parser::new(&new.items, bootstrap.as_ref()), Parser::new(&old.items, bootstrap.as_ref()));
    let mut effects = Findings::default();
    let nodes = new.items.iter().chain(&old.items).filter_map(|item| item.node.as_deref());
    let nodes: std::collections::BTreeSet<&str> = nodes.collect();
    for node in std::iter::once(None).chain(nodes.into_iter().map(Some)) {
        let (new, old) = (Set::new(&new.items, node, &parser), Set::new(&old.items, node, &before));
        Change { new: &new, old: &old, findings: &mut effects }.look();
    }
    // Comments may allow these as well; those that allow nothing were told by `check`.
    let effects = allow::apply(&new.texts, effects.finish());
    effects.into_iter().filter(|finding| finding.id != Id::MS107).for_each(|finding| all.push(finding));
    all.finish()
}

/// What makes two findings the same, wherever in the file they have moved to.
fn identity(finding: &Finding) -> (Id, String, String, String) {
    let without_indices = |text: &str| text.chars().filter(|letter| !letter.is_ascii_digit()).collect::<String>();
    (finding.id, finding.resource.clone(), without_indices(&finding.path), without_indices(&finding.message))
}

struct Change<'s, 'i, 'f> {
    new: &'s Set<'i>,
    old: &'s Set<'i>,
    findings: &'f mut Findings,
}

impl Change<'_, '_, '_> {
    fn look(&mut self) {
        self.endpoints();
        self.listeners();
        self.tls();
        self.bytes();
    }

    /// MS611.
    fn endpoints(&mut self) {
        for (name, cluster) in &self.old.clusters {
            let (before, after) = (count(self.old, &cluster.message), self.new.clusters.get(name));
            let Some(before) = before.filter(|count| *count > 0) else { continue };
            let Some(after) = after else { continue }; // Who still names it is told by the checks of references.
            if count(self.new, &after.message) == Some(0) {
                let message = format!("this cluster loses all of its {before} endpoints: its RPCs fail from then on");
                let item = walk::eds_name(&after.message)
                    .and_then(|eds| self.new.endpoints.get(&canonical(ResourceType::Endpoints, eds)))
                    .map_or(after.item, |endpoints| endpoints.item);
                let resource = format!("Cluster {name}");
                self.findings.push(Finding::at(Id::MS611, &item.origin, &resource, "", message));
            }
        }
    }

    /// MS612 and MS614.
    fn listeners(&mut self) {
        for (name, old) in &self.old.listeners {
            let is_server = old.message.api_listener.is_none();
            match self.new.listeners.get(name) {
                None => {
                    let who =
                        if is_server { "the server stops serving" } else { "channels to it have nothing to go by" };
                    let message = format!("this Listener is gone: {who}");
                    let origin = Origin::new(old.item.origin.file.clone());
                    self.findings.push(Finding::at(Id::MS614, &origin, &format!("Listener {name}"), "", message));
                }
                Some(new) if is_server && new.value != old.value && new.value.is_some() => {
                    let message = "the server replaces its filter chains: connections that it has are drained";
                    self.findings.add(Id::MS612, new.item, "", message);
                }
                Some(_) => {}
            }
        }
    }

    /// MS613.
    fn tls(&mut self) {
        for (name, old) in &self.old.clusters {
            let Some(new) = self.new.clusters.get(name) else { continue };
            let (Some(Resource::Cluster(before)), Some(Resource::Cluster(after))) = (&old.value, &new.value) else {
                continue;
            };
            if before.tls != after.tls {
                let what = match (&before.tls, &after.tls) {
                    (None, _) => "TLS is turned on",
                    (Some(_), None) => "TLS is turned off",
                    (Some(_), Some(_)) => "the settings of TLS change",
                };
                let message = format!("{what}: clients with xDS credentials replace all connections of this cluster");
                self.findings.add(Id::MS613, new.item, "transport_socket", message);
            }
        }
    }

    /// MS603: the same message in other bytes.
    fn bytes(&mut self) {
        for (key, new) in &self.new.names {
            let Some(old) = self.old.names.get(key) else { continue };
            let (Body::Message(one), Body::Message(other)) = (&new.body, &old.body) else { continue };
            if one != other && is_same(self.new, self.old, key) {
                let message = "the content is the same, but its bytes are not, as when maps are written in a random order: \
                               every push like this is a change to clients, and drains servers";
                self.findings.add(Id::MS603, new, "", message);
            }
        }
    }
}

/// How many endpoints of its own a cluster has; nothing if that cannot be told.
fn count(set: &Set<'_>, cluster: &Cluster) -> Option<usize> {
    let eds = canonical(ResourceType::Endpoints, walk::eds_name(cluster)?);
    let endpoints = &set.endpoints.get(&eds)?.message;
    let has_collections = endpoints.endpoints.iter().any(|locality| leds_name(locality).is_some());
    (!has_collections).then(|| usable(endpoints).count())
}

fn is_same(new: &Set<'_>, old: &Set<'_>, (resource_type, name): &(ResourceType, String)) -> bool {
    fn same<M: Message + PartialEq + Default>(one: Option<&Item>, other: Option<&Item>) -> bool {
        let read = |item: Option<&Item>| match &item?.body {
            Body::Message(bytes) => M::decode(bytes.as_ref()).ok(),
            Body::Error | Body::Nothing { .. } => None,
        };
        read(one).is_some_and(|one| read(other).is_some_and(|other| one == other))
    }
    let key = (*resource_type, name.clone());
    let (one, other) = (new.names.get(&key).copied(), old.names.get(&key).copied());
    match resource_type {
        ResourceType::Listener => same::<envoy_types::pb::envoy::config::listener::v3::Listener>(one, other),
        ResourceType::RouteConfig => same::<envoy_types::pb::envoy::config::route::v3::RouteConfiguration>(one, other),
        ResourceType::Cluster => same::<Cluster>(one, other),
        ResourceType::Endpoints => {
            same::<envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment>(one, other)
        }
        ResourceType::EndpointCollection | ResourceType::EndpointGlob => false,
    }
}
