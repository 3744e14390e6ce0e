//! Worlds beyond the small ones, each made from a seed: several servers and authorities, many clusters, everything
//! that can go wrong.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Choose;
use mainstay_xds::bootstrap::{AuthorityOptions, Bootstrap, Guards, MetadataValue, Node, ServerConfig, ServerFeatures};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::target::Target;

use crate::choose::{Recorder, Seeded};
use crate::plane::{DeltaHabits, Habits};
use crate::resources::{Lb, Policy, PrioritySpec, SICK, Spec};
use crate::run::{self, Failure};
use crate::scenario::{Grain, Kinds, Limits, PlaneSpec, Scenario};
use crate::truth::Truth;
use crate::world::Stats;

pub mod clients;
pub mod mixed;

/// Runs the world of a seed. The same seed is the same world, event by event.
///
/// # Errors
/// If something does not hold; with a list of choices that is not made shorter yet.
pub fn run_seed(seed: u64) -> Result<Stats, Box<Failure>> {
    run_scenario(&Arc::new(scenario(seed)), seed)
}

/// Runs a scenario by the choices of a seed.
///
/// # Errors
/// See [`run_seed`].
pub fn run_scenario(scenario: &Arc<Scenario>, seed: u64) -> Result<Stats, Box<Failure>> {
    let mut choose = Recorder::new(Seeded::new(!seed));
    let events = 50 + choose_from(&mut Seeded::new(seed), 250);
    run::run(scenario, &mut choose, events).map_err(|violation| {
        let choices = choose.into_choices();
        Box::new(Failure {
            violation: Some(violation),
            scenario: scenario.name.clone(),
            choices,
            transcript: Vec::new(),
        })
    })
}

/// The scenario of a seed; its name is `swarm-` and the seed.
pub fn scenario(seed: u64) -> Scenario {
    let mut draw = Draw(Seeded::new(seed));
    let servers = 1 + draw.below(4);
    let features: Vec<_> = (0..servers).map(|_| draw.features()).collect();
    let configs: Vec<_> = (0..servers)
        .map(|index| ServerConfig { features: features[index], ..ServerConfig::insecure(format!("server{index}")) })
        .collect();
    let bootstrap = draw.bootstrap(&configs, None);
    let mut graph = draw.graph(&bootstrap);
    let editions = 1 + draw.below(5);
    let mut truths: Vec<Vec<Arc<Truth>>> = vec![Vec::new(); servers];
    let alike = draw.chance(4);
    for edition in 0..editions {
        for (index, truths) in truths.iter_mut().enumerate() {
            let offset = if alike { 0 } else { 100 * (index as u32 + 1) };
            let mut own = graph.clone();
            if draw.chance(5) {
                draw.mutate(&mut own);
            }
            let specs = own.iter().map(|((_, name), spec)| (name.clone(), marked(spec, offset)));
            let version = format!("{}", edition + 1);
            truths.push(Arc::new(Truth::of(version, &specs.collect::<Vec<_>>())));
        }
        (0..1 + draw.below(3)).for_each(|_| draw.mutate(&mut graph));
    }
    let planes = configs.iter().zip(truths).map(|(config, editions)| PlaneSpec {
        server: in_bootstrap(&bootstrap, config),
        editions,
        habits: draw.habits(),
    });
    let planes = planes.collect();
    let limits = Limits {
        faults: draw.below(12) as u32,
        kinds: Kinds::ALL,
        delays: draw.below(30) as u32,
        backend_faults: draw.below(6) as u32,
    };
    let subscribable = if draw.chance(4) { (0..3).map(|n| format!("c{n}")).collect() } else { Vec::new() };
    let side = if draw.chance(4) { draw.side(&graph) } else { Vec::new() };
    let client = ClientSettings {
        silent_stream_timeout: draw.chance(6).then_some(Duration::from_secs(7)),
        reconnect_spread: Duration::ZERO,
        trust_versions: true, // The oracle watches what is told of them.
        ..ClientSettings::default()
    };
    Scenario {
        name: format!("swarm-{seed}"),
        target: Target::resolve("xds:///shop", &bootstrap).expect("a good target"),
        deps: DepsSettings { federation: bootstrap.guards.federation, ..DepsSettings::default() },
        bootstrap: Arc::new(bootstrap),
        planes,
        client,
        limits,
        grain: if draw.chance(3) { Grain::Coarse } else { Grain::Fine },
        calm: [0, 4, 16, 40][draw.below(4)],
        subscribable,
        drills: draw.chance(3),
        side,
        meddling: None,
    }
}

/// A server as the bootstrap has it.
fn in_bootstrap(bootstrap: &Bootstrap, config: &ServerConfig) -> Arc<ServerConfig> {
    let authorities = bootstrap.authorities.values().flat_map(|authority| &authority.servers);
    let mut known = bootstrap.servers.iter().chain(authorities);
    let found = known.find(|known| known.server_uri == config.server_uri);
    found.cloned().unwrap_or_else(|| Arc::new(config.clone()))
}

/// Resources by type and name.
type Resources = BTreeMap<(ResourceType, String), Spec>;

/// Draws that make a scenario.
pub(crate) struct Draw(Seeded);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Seeded::new(seed))
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        choose_from(&mut self.0, bound)
    }

    /// Once in so many times.
    fn chance(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn features(&mut self) -> ServerFeatures {
        ServerFeatures {
            fail_on_data_errors: self.chance(6),
            resource_timer_is_transient_error: self.chance(6),
            ignore_resource_deletion: self.chance(4),
            ..ServerFeatures::default()
        }
    }

    fn habits(&mut self) -> Habits {
        let resumes = self.chance(3);
        Habits {
            resumes,
            trusting: resumes && self.chance(2),
            tells_errors: self.chance(4).then(|| [5, 7, 14][self.below(3)]),
            wraps: self.chance(4),
            generous: self.chance(6),
            one_version: !resumes && self.chance(6),
            short_nonces: false,
            delta: DeltaHabits::default(),
        }
    }

    /// What another client may watch: some of what there is, and something that is not.
    fn side(&mut self, graph: &Resources) -> Vec<ResourceKey> {
        let all: Vec<_> = graph.keys().collect();
        let mut keys: Vec<_> = (0..all.len().min(3))
            .map(|_| {
                let (resource_type, name) = all[self.below(all.len())];
                ResourceKey { resource_type: *resource_type, name: name.as_str().into() }
            })
            .collect();
        let nowhere = "xdstp://nowhere/envoy.config.cluster.v3.Cluster/c";
        keys.push(ResourceKey { resource_type: ResourceType::Cluster, name: nowhere.into() });
        keys.push(ResourceKey { resource_type: ResourceType::Listener, name: "nothing".into() });
        keys
    }

    /// Everything on, as a rule.
    fn guards(&mut self) -> Guards {
        Guards {
            fallback: !self.chance(12),
            endpoint_fallback: !self.chance(10),
            data_error_handling: !self.chance(8),
            federation: !self.chance(12),
            ..Guards::default()
        }
    }

    /// How a cluster spreads load.
    fn lb(&mut self) -> Lb {
        let others = [Policy::LeastRequest, Policy::RingHash, Policy::PickFirst, Policy::Weighted, Policy::Subset];
        Lb {
            policy: if self.chance(2) { Policy::RoundRobin } else { others[self.below(5)] },
            max_requests: self.chance(8).then(|| 2 + self.below(5) as u32),
            outlier_detection: self.chance(3),
            reports_load: self.chance(4),
        }
    }

    /// Where the endpoints of a priority are, if they are in the resource itself.
    fn priority(&mut self, first: u16) -> PrioritySpec {
        let mut next = first;
        let mut backends = |count: usize| -> Vec<u16> {
            let numbers = (next..).take(count).collect();
            next += count as u16;
            numbers
        };
        if self.chance(4) {
            let localities = (0..1 + self.below(3)).map(|_| (1 + self.below(4) as u32, backends(1 + self.below(2))));
            return PrioritySpec::Spread(localities.collect());
        }
        let mut backends = backends(1 + self.below(4));
        if self.chance(8) {
            backends.push(SICK + first % 5_000);
        }
        PrioritySpec::Here(backends)
    }

    /// Top-level servers and perhaps two authorities, which may share servers with the top level.
    fn bootstrap(&mut self, servers: &[ServerConfig], guards: Option<Guards>) -> Bootstrap {
        let top = 1 + self.below(servers.len());
        let label = |key: &str| (key.to_owned(), MetadataValue::String(key.to_uppercase()));
        let metadata = ["zone", "app", "version", "team"].map(label).into();
        let node = Node { id: "sim".to_owned(), metadata, ..Node::default() };
        let guards = guards.unwrap_or_else(|| self.guards());
        let mut builder = Bootstrap::builder().node(node).guards(guards);
        for server in &servers[..top] {
            builder = builder.server(server.clone());
        }
        for name in AUTHORITIES.iter().take(self.below(3)) {
            let first = self.below(servers.len());
            let options = AuthorityOptions {
                servers: servers[first..].to_vec(),
                fallback_on_reachability_only: self.chance(2),
                ..AuthorityOptions::default()
            };
            builder = builder.authority(*name, options);
        }
        builder.build().expect("a good bootstrap")
    }

    /// The first version of everything.
    fn graph(&mut self, bootstrap: &Bootstrap) -> Resources {
        let authorities: Vec<String> = bootstrap.authorities.keys().cloned().collect();
        let clusters = if self.chance(40) { 100 + self.below(200) } else { 1 + self.below(6) };
        let mut graph = Resources::new();
        let mut add = |name: String, spec: Spec| drop(graph.insert((spec.resource_type(), name), spec));
        let routed: Vec<String> = (0..1 + self.below(clusters.min(50))).map(|n| format!("c{n}")).collect();
        if self.chance(3) {
            add("shop".to_owned(), Spec::InlineListener { clusters: routed, mark: 0 });
        } else {
            add("shop".to_owned(), Spec::Listener { routes: "r0".to_owned(), mark: 0 });
            add("r0".to_owned(), Spec::Routes { clusters: routed.clone(), mark: 0 });
            add("r1".to_owned(), Spec::Routes { clusters: routed.into_iter().rev().collect(), mark: 1 });
        }
        for n in 0..clusters {
            let name = format!("c{n}");
            match self.below(6) {
                0 => add(name, Spec::Dns { host: format!("10.1.1.{}", n % 250), mark: 0 }),
                1 => add(name, Spec::Dns { host: format!("host{n}"), mark: 0 }),
                2 if n < 20 => {
                    let children = (0..1 + self.below(3)).map(|_| format!("c{}", self.below(clusters.min(8) + 1)));
                    let children = children.collect();
                    add(name, Spec::Aggregate { clusters: children });
                }
                _ => {
                    let service = self.name(ResourceType::Endpoints, &authorities, &format!("e{n}"));
                    let priorities: Vec<PrioritySpec> = (0..1 + self.below(2))
                        .map(|priority| {
                            let first = (30 * n + 10 * priority) as u16;
                            let backends = vec![first, first + 1];
                            if self.chance(4) {
                                let collection = format!("l{n}-{priority}");
                                let collection = self.name(ResourceType::EndpointCollection, &authorities, &collection);
                                add(collection.clone(), Spec::Collection { backends });
                                PrioritySpec::Collection(collection)
                            } else {
                                self.priority(first)
                            }
                        })
                        .collect();
                    let drop = if self.chance(12) { 10 + self.below(50) as u32 } else { 0 };
                    add(service.clone(), Spec::Endpoints { priorities, drop });
                    add(name, Spec::Eds { service, mark: 0, lb: self.lb() });
                }
            }
        }
        graph
    }

    /// A name, of one of the authorities or of none.
    fn name(&mut self, resource_type: ResourceType, authorities: &[String], name: &str) -> String {
        match authorities.get(self.below(authorities.len() + 1)) {
            Some(authority) => format!("xdstp://{authority}/{}/{name}", resource_type.message_name()),
            None => name.to_owned(),
        }
    }

    /// Changes one resource.
    fn mutate(&mut self, graph: &mut Resources) {
        let index = self.below(graph.len());
        let Some((key, spec)) = graph.iter_mut().nth(index) else { return };
        let key = key.clone();
        match self.below(8) {
            0 => drop(graph.remove(&key)),
            1 => *spec = Spec::Invalid(key.0),
            _ => match spec {
                Spec::Listener { routes, mark } => {
                    *mark += 1;
                    *routes = if self.chance(2) { "r1".to_owned() } else { "r0".to_owned() };
                }
                Spec::InlineListener { clusters, mark } | Spec::Routes { clusters, mark } => {
                    *mark += 1;
                    let more = format!("c{}", self.below(clusters.len() + 1));
                    if self.chance(2) && clusters.len() > 1 {
                        clusters.pop();
                    } else if !clusters.contains(&more) {
                        clusters.insert(0, more);
                    }
                }
                Spec::Eds { mark, lb, .. } => {
                    *mark += 1;
                    if self.chance(3) {
                        *lb = self.lb();
                    }
                }
                Spec::Dns { mark, .. } => *mark += 1,
                Spec::Aggregate { clusters } => clusters.reverse(),
                Spec::Endpoints { priorities, .. } if self.chance(3) => priorities.reverse(),
                Spec::Endpoints { priorities, .. } => priorities.iter_mut().for_each(roll),
                Spec::Collection { backends } => {
                    backends.reverse();
                    backends.truncate(1);
                }
                Spec::Invalid(_) => drop(graph.remove(&key)),
            },
        }
    }
}

/// Replaces all backends by others, as a rolling update does.
fn roll(priority: &mut PrioritySpec) {
    let other = |backend: &mut u16| {
        if *backend < SICK {
            *backend = if *backend < 40_000 { *backend + 20_000 } else { *backend - 40_000 };
        }
    };
    match priority {
        PrioritySpec::Here(backends) => backends.iter_mut().for_each(other),
        PrioritySpec::Spread(localities) => localities.iter_mut().flat_map(|(_, backends)| backends).for_each(other),
        PrioritySpec::Collection(_) => {}
    }
}

/// The same resource with another mark, so that servers differ.
fn marked(spec: &Spec, offset: u32) -> Spec {
    let mut spec = spec.clone();
    match &mut spec {
        Spec::Listener { mark, .. }
        | Spec::InlineListener { mark, .. }
        | Spec::Routes { mark, .. }
        | Spec::Eds { mark, .. }
        | Spec::Dns { mark, .. } => *mark += offset,
        Spec::Aggregate { .. } | Spec::Endpoints { .. } | Spec::Collection { .. } | Spec::Invalid(_) => {}
    }
    spec
}

fn choose_from(choose: &mut Seeded, bound: usize) -> usize {
    usize::try_from(choose.choose(bound.max(1) as u64)).unwrap_or_default()
}

const AUTHORITIES: [&str; 2] = ["east", "west"];
