//! Cost follows change; and the graph that grew step by step is the graph made from scratch.

use proptest::prelude::*;

use super::*;
use crate::deps::config::ClusterResult;
use crate::deps::graph::steps_taken;
use crate::shared::SharedMap;

#[test]
fn one_change_among_ten_thousand_clusters_touches_one() {
    let names: Vec<String> = (0..10_000).map(|index| format!("c{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bed = Testbed::new();
    bed.inline(&names);
    // Polled after each update, as a slow control plane would have it.
    for name in &names {
        bed.eds(name);
        bed.endpoints(name, &[1]);
    }
    assert_eq!(bed.log.iter().filter(|line| line.starts_with('{')).count(), 1);
    let before = bed.config().clone();
    bed.log.clear();

    bed.endpoints("c5000", &[2]);
    assert_eq!(bed.log.len(), 1);
    let untouched = |name: &&Arc<str>| {
        let (Ok(before), Ok(after)) = (&before.clusters[*name], &bed.config().clusters[*name]) else { return false };
        Arc::ptr_eq(before, after)
    };
    let touched: Vec<_> = before.clusters.keys().filter(|name| !untouched(name)).collect();
    assert_eq!(touched, [&Arc::from("c5000")]);
    bed.log.clear();

    // A resend of everything, equal: nothing goes out, however often it is polled.
    for name in &names {
        bed.eds(name);
        bed.confirmed(EDS, name);
    }
    bed.inline(&names);
    assert!(bed.log.is_empty());

    // A switch to another server that changes one: one publication, when the last resource is confirmed.
    bed.switch("B");
    bed.endpoints("c7", &[3]);
    bed.inline(&names);
    for name in &names {
        bed.confirmed(EDS, name);
        bed.confirmed(CDS, name);
        assert_eq!(bed.log.len(), usize::from(*name == "c9999"));
    }
    assert!(!bed.config().mixed_sources);
}

#[test]
fn an_aggregate_of_ten_thousand_leaves_is_listed_once() {
    let names: Vec<String> = (0..10_000).map(|index| format!("c{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &names);
    for name in &names {
        bed.eds(name);
        bed.endpoints(name, &[1]);
    }
    let ClusterChildren::Aggregate(leaves) = &bed.cluster_config("agg").children else { panic!("an aggregate") };
    assert_eq!(leaves.len(), 10_000);
    let agg = bed.cluster_config("agg").clone();
    bed.endpoints("c1", &[2]);
    assert!(Arc::ptr_eq(&agg, bed.cluster_config("agg")));
}

#[test]
fn one_changed_aggregate_costs_its_ancestors_and_no_more() {
    // Two layers of k aggregates, each of all k below: k * k names in each layer. A change of one below concerns all k
    // above, which name k each: work in proportion to the names, and not to the ways through them, which are k * k * k.
    for (k, index) in [(50, 0), (50, 1), (200, 0), (200, 199)] {
        let layer = |letter: &str| (0..k).map(|n| format!("{letter}{n}")).collect::<Vec<_>>();
        let (upper, lower, leaves) = (layer("u"), layer("v"), layer("w"));
        let (u, v, w): (Vec<&str>, Vec<&str>, Vec<&str>) = (
            upper.iter().map(String::as_str).collect(),
            lower.iter().map(String::as_str).collect(),
            leaves.iter().map(String::as_str).collect(),
        );
        let mut bed = Testbed::routed(&u);
        let start = steps_taken();
        bed.together(|bed| u.iter().for_each(|name| bed.aggregate(name, &v)));
        bed.together(|bed| v.iter().for_each(|name| bed.aggregate(name, &w)));
        bed.together(|bed| w.iter().for_each(|name| bed.eds(name)));
        bed.together(|bed| w.iter().for_each(|name| bed.endpoints(name, &[1])));
        let names = (k * k) as u64;
        let words = k as u64 / 64 + 2;
        let first = steps_taken() - start;
        assert!(first <= names * (2 * words + 8), "{first} steps for two layers of {names} names");

        let mut fewer = w.clone();
        fewer.swap(0, 1);
        fewer.pop();
        let start = steps_taken();
        bed.aggregate(v[index], &fewer);
        let one = steps_taken() - start;
        assert!(one <= names * (words + 4), "{one} steps for one change below {names} names");
        assert!(matches!(&bed.cluster_config(u[0]).children, ClusterChildren::Aggregate(leaves) if leaves.len() == k));

        // Of endpoints no list knows anything.
        let start = steps_taken();
        bed.endpoints("w3", &[7]);
        assert_eq!(steps_taken(), start);
    }
}

#[test]
fn an_aggregate_in_force_that_moves_to_ten_thousand_leaves_is_not_listed_for_each() {
    let names: Vec<String> = (0..10_000).map(|index| format!("c{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut bed = Testbed::routed(&["agg"]);
    bed.aggregate("agg", &["a"]);
    bed.eds("a");
    bed.endpoints("a", &[1]);
    bed.aggregate("agg", &names);
    let start = steps_taken();
    for name in &names {
        bed.eds(name);
        bed.endpoints(name, &[1]);
    }
    let ClusterChildren::Aggregate(leaves) = &bed.cluster_config("agg").children else { panic!("an aggregate") };
    assert_eq!(leaves.len(), 10_000);
    assert!(steps_taken() - start < 50_000, "{} steps", steps_taken() - start);
}

/// A control plane that answers every watch with what it has.
#[derive(Clone, Default)]
struct Plane {
    resources: BTreeMap<ResourceKey, Update>,
}

impl Plane {
    /// Delivers to every new watch until nothing moves.
    fn serve(&self, bed: &mut Testbed) {
        let mut delivered = BTreeSet::new();
        loop {
            let new: Vec<_> = bed.watched.difference(&delivered).cloned().collect();
            if new.is_empty() {
                return;
            }
            for key in new {
                if let Some(update) = self.resources.get(&key) {
                    bed.update(key.resource_type, &key.name, update.clone());
                }
                delivered.insert(key);
            }
            delivered.retain(|key| bed.watched.contains(key));
        }
    }
}

impl Plane {
    /// The naive answer to what a configuration in force needs: what its clusters are made of now, and what they would be
    /// made of next.
    fn needed_in_force(&self, bed: &Testbed) -> BTreeSet<ResourceKey> {
        let Some(Ok(config)) = &bed.config else { return BTreeSet::new() };
        let mut alone = Testbed::new();
        config.clusters.keys().for_each(|name| alone.subscribe(name));
        self.serve(&mut alone);
        let mut needed = alone.watched;
        if let RouteSource::Rds(name) = &config.listener.routes {
            needed.insert(ResourceKey { resource_type: RDS, name: name.as_str().into() });
        }
        let key = |resource_type, name: &str| ResourceKey { resource_type, name: name.into() };
        let collections = |endpoints: &Endpoints| {
            let localities = endpoints.priorities.iter().flat_map(|priority| &priority.localities);
            let names = localities.filter_map(|locality| match &locality.source {
                EndpointSource::Inline(_) => None,
                EndpointSource::Collection(name) => Some(key(LEDS, name)),
            });
            names.collect::<Vec<_>>()
        };
        for (name, cluster) in config.clusters.iter().filter_map(|(name, result)| Some((name, result.as_ref().ok()?))) {
            let (Some(eds), ClusterChildren::Endpoints(Some(resolved))) =
                (cluster.cluster.eds_resource_name(name), &cluster.children)
            else {
                continue;
            };
            needed.extend(collections(&resolved.endpoints));
            needed.insert(key(EDS, eds));
            if let Some(Update::Changed(Resource::Endpoints(newest), _)) = self.resources.get(&key(EDS, eds)) {
                needed.extend(collections(newest));
            }
        }
        needed
    }

    /// The clusters in force that may be as they were before one of them was taken away: the newest routes do without
    /// them (D-35).
    fn kept(&self, bed: &Testbed) -> BTreeSet<Arc<str>> {
        let Some(Ok(config)) = &bed.config else { return BTreeSet::new() };
        let mut newest = Testbed::new();
        self.serve(&mut newest);
        let key = |name: &Arc<str>| ResourceKey { resource_type: CDS, name: name.clone() };
        let names = config.clusters.keys().filter(|name| !newest.watched.contains(&key(name)));
        let outgoing: BTreeSet<_> = names.cloned().collect();
        let is_gone = |name: &Arc<str>| matches!(self.resources.get(&key(name)), Some(Update::Failed(_)));
        if outgoing.iter().any(is_gone) { outgoing } else { BTreeSet::new() }
    }

    /// A configuration without routes that subscribes to `clusters`.
    fn on_its_own(&self, clusters: &SharedMap<Arc<str>, ClusterResult>) -> Arc<XdsConfig> {
        let mut bed = Testbed::new();
        clusters.keys().for_each(|name| bed.subscribe(name));
        bed.inline(&[]);
        let mut plane = self.clone();
        plane.resources.remove(&ResourceKey { resource_type: LDS, name: "l".into() });
        plane.serve(&mut bed);
        let mut config = (**bed.config()).clone();
        config.clusters.retain(|name, _| clusters.contains_key(name));
        Arc::new(config)
    }
}

/// What the control plane does next: which resource, and what becomes of it.
fn steps() -> impl Strategy<Value = Vec<(u8, u8, u8, bool)>> {
    prop::collection::vec((0..7u8, 0..6u8, any::<u8>(), any::<bool>()), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Loops, diamonds, renames, failures: whatever happened before, the configuration, the watches and the
    /// lookups are those of a manager that sees only the end.
    #[test]
    fn history_leaves_no_trace(steps in steps()) {
        let cluster_name = |index: u8| format!("c{}", index % 6);
        let mut plane = Plane::default();
        let mut bed = Testbed::new();
        let mut subscribed = BTreeSet::new();
        for (what, which, how, together) in steps {
            let name = cluster_name(which);
            let provenance = bed.provenance();
            let update = |resource: Resource| {
                let key = ResourceKey { resource_type: resource.resource_type(), name: name.as_str().into() };
                (key, Update::Changed(resource, provenance.clone()))
            };
            let chosen = (0..6u8).filter(|bit| how >> bit & 1 == 1).map(cluster_name).collect::<Vec<_>>();
            let kind = |kind| Resource::Cluster(Arc::new(cluster(kind)));
            let (key, update) = match what {
                0 => {
                    let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
                    let listener = Listener::Api(hcm(RouteSource::Inline(routes("svc", &chosen))));
                    let key = ResourceKey { resource_type: LDS, name: "l".into() };
                    (key, Update::Changed(Resource::Listener(Arc::new(listener)), provenance.clone()))
                }
                1 if how % 4 == 0 => {
                    let key = ResourceKey { resource_type: CDS, name: name.as_str().into() };
                    let error = ResourceError { kind: ErrorKind::Deleted, ..(*bed.error(CDS, &name)).clone() };
                    (key, Update::Failed(Arc::new(error)))
                }
                1 => update(kind(ClusterKind::Eds { service_name: Some(cluster_name(how)) })),
                2 if !chosen.is_empty() => update(kind(ClusterKind::Aggregate { clusters: chosen })),
                3 => update(kind(ClusterKind::LogicalDns { host: format!("192.0.2.{}", how % 3), port: 80 })),
                4 => update(Resource::Endpoints(Arc::new(localities(vec![EndpointSource::Collection(cluster_name(how))])))),
                5 => update(Resource::EndpointCollection(Arc::new(collection(&[how.into()])))),
                _ => {
                    if subscribed.remove(&name) {
                        bed.release(&name);
                    } else {
                        bed.subscribe(&name);
                        subscribed.insert(name.clone());
                    }
                    plane.serve(&mut bed);
                    continue;
                }
            };
            plane.resources.insert(key.clone(), update.clone());
            bed.batching = together;
            if bed.watched.contains(&key) {
                bed.update(key.resource_type, &key.name, update);
            }
            bed.batching = false;
        }
        bed.settle();
        plane.serve(&mut bed);

        let mut fresh = Testbed::new();
        for name in &subscribed {
            fresh.subscribe(name);
        }
        plane.serve(&mut fresh);
        let mut needed = fresh.watched.clone();
        needed.extend(plane.needed_in_force(&bed));
        prop_assert_eq!(&bed.watched, &needed);
        let kept = plane.kept(&bed);
        if let Some(Ok(config)) = &bed.config {
            // The clusters in force, each on its own: what is complete of them is in force.
            for (name, result) in plane.on_its_own(&config.clusters).clusters.iter() {
                if !kept.contains(name) {
                    prop_assert_eq!(&config.clusters[name], result);
                }
            }
        }
        if let Some(Ok(expected)) = &fresh.config {
            let all_there = subscribed.iter().all(|name| expected.clusters.contains_key(name.as_str()));
            if all_there {
                prop_assert_eq!(bed.config(), expected);
            }
            for (name, result) in expected.clusters.iter().filter(|(name, _)| !kept.contains(*name)) {
                prop_assert_eq!(&bed.config().clusters[name], result);
            }
            for result in bed.config().clusters.values() {
                if let Ok(config) = result && let ClusterChildren::Aggregate(leaves) = &config.children {
                    prop_assert!(leaves.iter().all(|leaf| bed.config().clusters.contains_key(leaf)));
                }
            }
        }
    }
}
