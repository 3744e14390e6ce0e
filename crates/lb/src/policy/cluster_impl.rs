//! A leaf cluster: drops, circuit breaker, and its priorities (A32, A75, L-58, L-84 to L-92).

use std::sync::Arc;

use mainstay_xds::deps::{ClusterChildren, ClusterConfig, ResolvedEndpoints};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::endpoint::{DropCategory, EndpointSource};

use super::child_names::ChildNames;
use super::endpoint_policy::EndpointPolicy;
use super::priority::{ChildConfig, Priority};
use super::{Cx, Event, LocalityConfig, Policy, PriorityConfig, State};
use crate::breaker::Counter;
use crate::picker::{ClusterPicker, Picker};
use crate::pool::{Handles, Pool};
use crate::tree::Subchannel;

/// One leaf cluster at work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterImpl {
    config: Arc<ClusterConfig>,
    counter: Arc<Counter>,
    drops: Arc<[DropCategory]>,
    names: ChildNames,
    priority: Priority<EndpointPolicy>,
}

impl Policy for ClusterImpl {
    type Config = Arc<ClusterConfig>;

    fn new(cx: &mut Cx<'_>, config: &Arc<ClusterConfig>) -> Self {
        let mut names = ChildNames::default();
        let priority = Priority::new(cx, children(config, &mut names));
        let counter = (cx.breakers)(&config.name, eds_service(config));
        Self { config: Arc::clone(config), counter, drops: drops(config), names, priority }
    }

    fn update(&mut self, cx: &mut Cx<'_>, config: &Arc<ClusterConfig>) {
        if eds_service(&self.config) != eds_service(config) {
            self.counter = (cx.breakers)(&config.name, eds_service(config));
        }
        self.config = Arc::clone(config);
        self.drops = drops(config);
        self.priority.update(cx, children(config, &mut self.names));
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        self.priority.handle(cx, event)
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        self.priority.shut_down(cx);
    }

    fn state(&self) -> State {
        let drops_all = self.drops.iter().any(|drop| drop.per_million >= 1_000_000);
        if drops_all { State::Ready } else { self.priority.state() } // L-87
    }

    fn picker<S: Subchannel>(&self, pool: &Pool, handles: &Handles<S>) -> Picker<S> {
        let (place, count) = self.priority.place();
        Picker::Cluster(Box::new(ClusterPicker {
            name: Arc::clone(&self.config.name),
            note: Arc::clone(&self.config.note),
            drops: Arc::clone(&self.drops),
            max_requests: self.config.cluster.max_requests,
            counter: Arc::clone(&self.counter),
            child: self.priority.picker(pool, handles).explain(&format!("priority {place} of {count}")),
        }))
    }
}

/// The priorities of a cluster. There is always one, so that drops and errors work (L-58).
fn children(config: &ClusterConfig, names: &mut ChildNames) -> Vec<ChildConfig<PriorityConfig>> {
    let mut priorities = match &config.children {
        ClusterChildren::Endpoints(Some(endpoints)) => resolve(endpoints),
        ClusterChildren::Endpoints(None) | ClusterChildren::Aggregate(_) => Vec::new(),
    };
    if priorities.is_empty() {
        priorities.push(Vec::new());
    }
    let numbers = names.assign(&priorities);
    // Fresh DNS answers do nothing for endpoints that come from EDS (L-72).
    let ignore_reresolution = matches!(config.cluster.kind, ClusterKind::Eds { .. });
    let child = |(number, localities)| ChildConfig {
        number,
        config: PriorityConfig { lb_policy: config.cluster.lb_policy.clone(), localities },
        ignore_reresolution,
    };
    numbers.into_iter().zip(priorities).map(child).collect()
}

/// The localities of each priority, collections looked up; one that cannot be had is empty.
fn resolve(resolved: &ResolvedEndpoints) -> Vec<Vec<LocalityConfig>> {
    let priorities = resolved.endpoints.priorities.iter().map(|priority| {
        let localities = priority.localities.iter().map(|locality| LocalityConfig {
            locality: Arc::clone(&locality.locality),
            weight: locality.weight,
            endpoints: match &locality.source {
                EndpointSource::Inline(endpoints) => Arc::clone(endpoints),
                EndpointSource::Collection(name) => {
                    resolved.collections.get(name.as_str()).cloned().unwrap_or_default()
                }
            },
        });
        localities.collect()
    });
    priorities.collect()
}

fn drops(config: &ClusterConfig) -> Arc<[DropCategory]> {
    match &config.children {
        ClusterChildren::Endpoints(Some(endpoints)) => endpoints.endpoints.drops.as_slice().into(),
        ClusterChildren::Endpoints(None) | ClusterChildren::Aggregate(_) => Arc::default(),
    }
}

fn eds_service(config: &ClusterConfig) -> &str {
    match &config.cluster.kind {
        ClusterKind::Eds { service_name: Some(name) } => name,
        _ => "",
    }
}
