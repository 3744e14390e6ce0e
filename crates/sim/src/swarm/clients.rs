//! Worlds in which a client is alone with its watchers: what few channels need, and what few operators set.

use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::bootstrap::{Guards, ServerConfig, ServerFeatures};
use mainstay_xds::client::ClientSettings;
use mainstay_xds::deps::DepsSettings;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::target::Target;

use super::{Draw, Resources, in_bootstrap, marked, run_scenario};
use crate::choose::Seeded;
use crate::plane::Habits;
use crate::resources::{PrioritySpec, Spec};
use crate::run::Failure;
use crate::scenario::{Grain, Kinds, Limits, PlaneSpec, Scenario};
use crate::truth::Truth;
use crate::world::Stats;

/// Runs the world of a seed. The same seed is the same world, event by event.
///
/// # Errors
/// If something does not hold; with a list of choices that is not made shorter yet.
pub fn run_seed(seed: u64) -> Result<Stats, Box<Failure>> {
    run_scenario(&Arc::new(scenario(seed)), seed)
}

/// The scenario of a seed; its name is `clients-` and the seed. The channel in it has nothing to find; what happens
/// happens to the other client.
pub fn scenario(seed: u64) -> Scenario {
    let mut draw = Draw(Seeded::new(!seed));
    let has_old_rules = draw.chance(3);
    let features = |draw: &mut Draw| ServerFeatures {
        fail_on_data_errors: draw.chance(4),
        resource_timer_is_transient_error: draw.chance(6),
        ignore_resource_deletion: has_old_rules && draw.chance(2),
        ..ServerFeatures::default()
    };
    let servers = 1 + draw.below(3);
    let configs: Vec<_> = (0..servers)
        .map(|n| ServerConfig { features: features(&mut draw), ..ServerConfig::insecure(format!("server{n}")) })
        .collect();
    let guards = Guards {
        data_error_handling: !has_old_rules,
        endpoint_fallback: !draw.chance(3),
        fallback: !draw.chance(12),
        federation: !draw.chance(12),
        ..Guards::default()
    };
    let bootstrap = draw.bootstrap(&configs, Some(guards));
    let authorities: Vec<String> = bootstrap.authorities.keys().cloned().collect();
    let mut graph = draw.resources(&authorities);
    let side = graph.keys().map(|(kind, name)| ResourceKey { resource_type: *kind, name: name.as_str().into() });
    let nobody = "xdstp://nowhere/envoy.config.cluster.v3.Cluster/c";
    let absent =
        [(ResourceType::Cluster, nobody), (ResourceType::Listener, "nothing"), (ResourceType::Endpoints, "none")];
    let absent = absent.map(|(resource_type, name)| ResourceKey { resource_type, name: name.into() });
    let side: Vec<_> = side.chain(absent).collect();
    let is_faulty = draw.chance(8);
    if is_faulty {
        // So much is wrong that a NACK cannot name all of it.
        for n in 0..20 + draw.below(20) {
            let name = format!("{n}-{}", "x".repeat(700));
            graph.insert((ResourceType::Cluster, name), Spec::Invalid(ResourceType::Cluster));
        }
    }
    let mut truths: Vec<Vec<Arc<Truth>>> = vec![Vec::new(); servers];
    for edition in 0..2 + draw.below(5) {
        for (index, truths) in truths.iter_mut().enumerate() {
            let mut own = graph.clone();
            if draw.chance(3) {
                draw.mutate(&mut own);
            }
            let specs = own.iter().map(|((_, name), spec)| (name.clone(), marked(spec, 100 * (index as u32 + 1))));
            truths.push(Arc::new(Truth::of(format!("{}", edition + 1), &specs.collect::<Vec<_>>())));
        }
        let before = graph.clone();
        draw.mutate(&mut graph);
        if draw.chance(3) {
            graph.extend(before); // What was taken away is back.
        }
    }
    let planes = configs.iter().zip(truths).map(|(config, editions)| PlaneSpec {
        server: in_bootstrap(&bootstrap, config),
        editions,
        habits: Habits { generous: is_faulty, ..draw.habits() },
    });
    let planes = planes.collect();
    let client = ClientSettings {
        silent_stream_timeout: draw.chance(2).then(|| Duration::from_secs(4 + draw.below(6) as u64)),
        reconnect_spread: if draw.chance(2) { Duration::from_secs(2) } else { Duration::ZERO },
        trust_versions: true, // The oracle watches what is told of them.
        ..ClientSettings::default()
    };
    let limits = Limits {
        faults: 3 + draw.below(12) as u32,
        kinds: Kinds::ALL,
        delays: draw.below(30) as u32,
        backend_faults: 0,
    };
    Scenario {
        name: format!("{NAME}{seed}"),
        target: Target::resolve("xds:///shop", &bootstrap).expect("a good target"),
        deps: DepsSettings { federation: bootstrap.guards.federation, ..DepsSettings::default() },
        bootstrap: Arc::new(bootstrap),
        planes,
        client,
        limits,
        grain: Grain::Fine,
        calm: [0, 8, 16][draw.below(3)],
        subscribable: Vec::new(),
        drills: false,
        side,
        meddling: None,
    }
}

impl Draw {
    /// A few resources of each type that a client may watch, none of which needs another.
    fn resources(&mut self, authorities: &[String]) -> Resources {
        let mut all = Resources::new();
        let mut add = |name: String, spec: Spec| drop(all.insert((spec.resource_type(), name), spec));
        for n in 0..2 {
            add(format!("l{n}"), Spec::InlineListener { clusters: vec!["c0".to_owned()], mark: 0 });
            let name = self.name(ResourceType::Cluster, authorities, &format!("c{n}"));
            add(name, Spec::Dns { host: format!("10.1.1.{n}"), mark: 0 });
            let name = self.name(ResourceType::Endpoints, authorities, &format!("e{n}"));
            add(name, Spec::Endpoints { priorities: vec![PrioritySpec::Here(vec![n, n + 10])], drop: 0 });
        }
        let name = self.name(ResourceType::EndpointCollection, authorities, "g");
        add(name, Spec::Collection { backends: vec![1, 2] });
        all
    }
}

/// What the names of such worlds begin with; the seed follows.
pub(crate) const NAME: &str = "clients-";
