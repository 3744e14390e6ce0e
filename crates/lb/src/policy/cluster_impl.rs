//! A leaf cluster: drops, circuit breaker, and its priorities (A32, A75, L-58, L-84 to L-92).

use std::sync::Arc;

use mainstay_xds::deps::{ClusterChildren, ClusterConfig, JoinedLocality, ResolvedEndpoints};
use mainstay_xds::lrs::{ClusterLoad, Forwarded};
use mainstay_xds::resource::cluster::ClusterKind;
use mainstay_xds::resource::endpoint::{DropCategory, EndpointCollection, EndpointSource, Priority as EdsPriority};
use mainstay_xds::resource::tls::HttpConnect;

use super::child_names::ChildNames;
use super::override_host::OverrideHost;
use super::priority::ChildConfig;
use super::{Cx, Event, LeafCluster, Policy};
use crate::breaker::Counter;
use crate::endpoint::{LocalityConfig, PriorityConfig};
use crate::helper::Observation;
use crate::picker::{ClusterPicker, Parts, Picker, Standing};
use crate::subchannel::{Origin, State, Subchannel};

/// One leaf cluster at work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClusterImpl {
    config: Arc<ClusterConfig>,
    eds_service: Arc<str>,
    counter: Arc<Counter>,
    drops: Arc<[DropCategory]>,
    /// Where its RPCs are counted, if its server wants load reports (C-67).
    load: Option<Arc<ClusterLoad>>,
    names: ChildNames,
    child: OverrideHost,
}

impl Policy for ClusterImpl {
    type Config = LeafCluster;

    fn new(cx: &mut Cx<'_>, cluster: &LeafCluster) -> Self {
        let LeafCluster { config, sessions, .. } = cluster;
        let mut names = ChildNames::default();
        let children = children(cluster, &mut names);
        let eds_service = eds_service(config);
        let drops = drops(config);
        let child = OverrideHost::new(cx, &config.cluster, *sessions, children);
        let load = load(cx, config, &eds_service, &drops, &child);
        let counter = (cx.breakers)(&config.name, &eds_service);
        Self { config: Arc::clone(config), eds_service, counter, drops, load, names, child }
    }

    fn update(&mut self, cx: &mut Cx<'_>, cluster: &LeafCluster) {
        let LeafCluster { config, sessions, .. } = cluster;
        let eds_service = eds_service(config);
        if self.eds_service != eds_service {
            self.counter = (cx.breakers)(&config.name, &eds_service);
            self.eds_service = eds_service;
        }
        self.config = Arc::clone(config);
        self.drops = drops(config);
        let children = children(cluster, &mut self.names);
        if self.load.take().is_some() {
            cx.loads.release();
        }
        self.child.update(cx, &config.cluster, *sessions, children);
        self.load = load(cx, config, &self.eds_service, &self.drops, &self.child);
    }

    fn handle(&mut self, cx: &mut Cx<'_>, event: &Event) -> bool {
        let before = self.child.standing();
        let handled = self.child.handle(cx, event);
        let Standing { position: to, count: of } = self.child.standing();
        if to != before.position {
            let cluster = Arc::clone(&self.config.name);
            cx.observations.push(Observation::Priority { cluster, from: before.position, to, of });
        }
        handled
    }

    fn exit_idle(&mut self, cx: &mut Cx<'_>) {
        self.child.exit_idle(cx);
    }

    fn shut_down(&mut self, cx: &mut Cx<'_>) {
        if self.load.take().is_some() {
            cx.loads.release();
        }
        self.child.shut_down(cx);
    }

    fn state(&self) -> State {
        let drops_all = self.drops.iter().any(|drop| drop.per_million >= 1_000_000);
        if drops_all { State::Ready } else { self.child.state() } // L-87
    }

    fn picker<S: Subchannel>(&self, parts: Parts<'_, S>) -> Picker<S> {
        Picker::Cluster(Box::new(ClusterPicker {
            name: Arc::clone(&self.config.name),
            note: Arc::clone(&self.config.note),
            priority: self.child.standing(),
            drops: Arc::clone(&self.drops),
            max_requests: self.config.cluster.max_requests,
            counter: Arc::clone(&self.counter),
            load: self.load.clone(),
            child: self.child.picker(parts.below(|before| {
                let Picker::Cluster(before) = before else { return None };
                Some(&before.child)
            })),
        }))
    }
}

/// The priorities of a cluster. There is always one, so that drops and errors work (L-58).
fn children(cluster: &LeafCluster, names: &mut ChildNames) -> Vec<ChildConfig<PriorityConfig>> {
    let config = &*cluster.config;
    let mut priorities = match &config.children {
        ClusterChildren::Endpoints(Some(endpoints)) => resolve(cluster, endpoints),
        ClusterChildren::Endpoints(None) | ClusterChildren::Aggregate(_) => Vec::new(),
    };
    if priorities.is_empty() {
        priorities.push(Vec::new());
    }
    let numbers = names.assign(&priorities);
    // Fresh DNS answers do nothing for endpoints that come from EDS (L-72).
    let ignore_reresolution = matches!(config.cluster.kind, ClusterKind::Eds { .. });
    let counted = cluster.outlier_detection().is_some();
    let child = |(number, localities)| ChildConfig {
        number,
        config: PriorityConfig { lb_policy: config.cluster.lb_policy.clone(), localities, counted },
        ignore_reresolution,
    };
    numbers.into_iter().zip(priorities).map(child).collect()
}

/// Where the RPCs of a cluster are counted; nowhere unless its server wants to know (C-67).
fn load(
    cx: &mut Cx<'_>,
    config: &ClusterConfig,
    eds_service: &Arc<str>,
    drops: &[DropCategory],
    child: &OverrideHost,
) -> Option<Arc<ClusterLoad>> {
    let server = config.cluster.lrs_server.as_ref()?;
    let localities = child.configs().flat_map(|config| &config.localities);
    let endpoints = localities.flat_map(|locality| {
        let addresses = locality.endpoints.endpoints.iter().flat_map(|endpoint| endpoint.addresses.as_slice());
        addresses.map(|address| (&locality.locality, *address))
    });
    let categories = drops.iter().map(|drop| drop.category.as_str());
    let forwarded = Forwarded::new(&config.cluster.lrs_report_endpoint_metrics);
    let load = cx.loads.cluster(cx.now, server, &config.name, eds_service, categories, endpoints, forwarded);
    Some(Arc::new(load))
}

/// The localities of each priority with the endpoints they really have.
fn resolve(cluster: &LeafCluster, resolved: &ResolvedEndpoints) -> Vec<Vec<Arc<LocalityConfig>>> {
    let LeafCluster { config, tls, .. } = cluster;
    let http_connect = config.cluster.http_connect;
    let priorities = resolved.priorities().zip(&resolved.endpoints.priorities);
    let localities = |(joined, priority): (Vec<JoinedLocality<'_>>, &EdsPriority)| {
        let localities = joined.into_iter().zip(&priority.localities);
        let localities = localities.map(|(joined, from)| LocalityConfig {
            locality: Arc::clone(joined.locality),
            origin: Arc::new(Origin { cluster: Arc::clone(&config.name), locality: Arc::clone(joined.locality) }),
            weight: joined.weight,
            endpoints: collection(resolved, joined, &from.source),
            http_connect: http_connect.map(|cluster| HttpConnect { default: from.proxy.or(cluster.default) }),
            tls: tls.clone(),
        });
        localities.map(Arc::new).collect()
    };
    priorities.map(localities).collect()
}

/// The endpoints of a locality: shared with the resource, unless some were left out.
fn collection(
    resolved: &ResolvedEndpoints,
    joined: JoinedLocality<'_>,
    source: &EndpointSource,
) -> Arc<EndpointCollection> {
    let whole = match source {
        EndpointSource::Inline(endpoints) => Some(endpoints),
        EndpointSource::Collection(name) => resolved.collections.get(name.as_str()),
    };
    match whole {
        Some(whole) if whole.endpoints.len() == joined.endpoints.len() => Arc::clone(whole),
        Some(_) | None => Arc::new(EndpointCollection { endpoints: joined.endpoints.into_iter().cloned().collect() }),
    }
}

fn drops(config: &ClusterConfig) -> Arc<[DropCategory]> {
    match &config.children {
        ClusterChildren::Endpoints(Some(endpoints)) => endpoints.endpoints.drops.as_slice().into(),
        ClusterChildren::Endpoints(None) | ClusterChildren::Aggregate(_) => Arc::default(),
    }
}

/// Empty if there is no such name.
fn eds_service(config: &ClusterConfig) -> Arc<str> {
    match &config.cluster.kind {
        ClusterKind::Eds { service_name } => service_name.as_deref().unwrap_or_default().into(),
        ClusterKind::LogicalDns { .. } | ClusterKind::Aggregate { .. } => Arc::default(),
    }
}
