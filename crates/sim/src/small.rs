//! Small worlds: few enough states that all of them can be visited.
//!
//! Each has two servers, `a` before `b`, and few resources in two versions, and two things go wrong (one, where there
//! are many resources). They differ in what is worth a look.

use std::time::Duration;

use mainstay_xds::resource::ResourceType;

use crate::resources::{Lb, PrioritySpec, Spec};
use crate::scenario::{Kinds, Limits, Scenario, ServerHistory};

/// Every small world.
pub fn all() -> Vec<Scenario> {
    let mut scenarios = vec![
        inline(),
        rds(),
        eds(),
        aggregate(),
        leds(),
        invalid(),
        missing(),
        deleted(),
        same(),
        resumed(),
        told(),
        reachability(),
        silent(),
        lonely(),
    ];
    // Long pauses: how often a server was tried in vain makes few different states, as it matters little.
    scenarios.iter_mut().for_each(|scenario| scenario.client.backoff_base = Duration::from_secs(8));
    scenarios
}

/// A Listener with its routes in it, and a cluster that needs nothing.
fn inline() -> Scenario {
    let server = |mark| {
        [
            vec![("shop", shop(&["c"], mark)), ("c", ip(mark))],
            vec![("shop", shop(&["c"], mark + 1)), ("c", ip(mark + 1))],
        ]
    };
    two("inline", server(10), server(20))
}

/// The second version of a Listener names other routes.
fn rds() -> Scenario {
    let server = |mark| {
        let routes = |mark| Spec::Routes { clusters: vec!["c".to_owned()], mark };
        let listener = |routes: &str, mark| Spec::Listener { routes: routes.to_owned(), mark };
        [
            vec![("shop", listener("r1", mark)), ("r1", routes(mark)), ("c", ip(mark))],
            vec![("shop", listener("r2", mark)), ("r2", routes(mark + 1)), ("c", ip(mark))],
        ]
    };
    two("rds", server(10), server(20)).limits(|limits| limits.faults = 1)
}

/// Clusters with endpoints from EDS; the second version routes to another cluster.
fn eds() -> Scenario {
    let server = |mark: u16| {
        let cluster = || Spec::Eds { service: String::new(), mark: mark.into(), lb: Lb::default() };
        let listener = |cluster: &str| shop(&[cluster], mark.into());
        [
            vec![("shop", listener("c")), ("c", cluster()), ("c", backends(&[mark]))],
            vec![("shop", listener("d")), ("d", cluster()), ("d", backends(&[mark + 1]))],
        ]
    };
    two("eds", server(10), server(20)).limits(|limits| limits.faults = 1)
}

/// An aggregate whose second version has another leaf in front.
fn aggregate() -> Scenario {
    let server = |mark| {
        let aggregate =
            |clusters: &[&str]| Spec::Aggregate { clusters: clusters.iter().map(|c| (*c).to_owned()).collect() };
        [
            vec![("shop", shop(&["both"], mark)), ("both", aggregate(&["c"])), ("c", ip(mark))],
            vec![
                ("shop", shop(&["both"], mark)),
                ("both", aggregate(&["d", "c"])),
                ("c", ip(mark)),
                ("d", ip(mark + 1)),
            ],
        ]
    };
    two("aggregate", server(10), server(20))
}

/// Endpoints in collections; the second version moves them to another one.
fn leds() -> Scenario {
    let server = |mark: u16| {
        let cluster = Spec::Eds { service: String::new(), mark: mark.into(), lb: Lb::default() };
        let endpoints =
            |name: &str| Spec::Endpoints { priorities: vec![PrioritySpec::Collection(name.to_owned())], drop: 0 };
        let collection = |backend| Spec::Collection { backends: vec![backend] };
        let shop = shop(&["c"], mark.into());
        [
            vec![("shop", shop.clone()), ("c", cluster.clone()), ("c", endpoints("l1")), ("l1", collection(mark))],
            vec![("shop", shop), ("c", cluster), ("c", endpoints("l2")), ("l2", collection(mark + 1))],
        ]
    };
    two("leds", server(10), server(20)).limits(|limits| limits.faults = 1)
}

/// The second version is not valid: first the cluster, on the other server the Listener.
fn invalid() -> Scenario {
    let (a, b) = (10, 20);
    two(
        "invalid",
        [
            vec![("shop", shop(&["c"], a)), ("c", ip(a))],
            vec![("shop", shop(&["c"], a + 1)), ("c", Spec::Invalid(ResourceType::Cluster))],
        ],
        [
            vec![("shop", shop(&["c"], b)), ("c", ip(b))],
            vec![("shop", Spec::Invalid(ResourceType::Listener)), ("c", ip(b + 1))],
        ],
    )
}

/// The first server has no cluster until its second version; the other one loses its.
fn missing() -> Scenario {
    let (a, b) = (10, 20);
    two(
        "missing",
        [vec![("shop", shop(&["c"], a))], vec![("shop", shop(&["c"], a)), ("c", ip(a))]],
        [vec![("shop", shop(&["c"], b)), ("c", ip(b))], vec![("shop", shop(&["c"], b))]],
    )
}

/// The second version has nothing at all.
fn deleted() -> Scenario {
    let server = |mark| [vec![("shop", shop(&["c"], mark)), ("c", ip(mark))], vec![]];
    two("deleted", server(10), server(20))
}

/// Both servers say the same.
fn same() -> Scenario {
    let server = || [vec![("shop", shop(&["c"], 1)), ("c", ip(1))], vec![("shop", shop(&["c"], 2)), ("c", ip(1))]];
    two("same", server(), server())
}

/// Servers that do not repeat what the client says it has.
fn resumed() -> Scenario {
    let mut scenario = inline().habits(|habits| habits.resumes = true);
    scenario.name = "resumed".to_owned();
    scenario
}

/// Servers that tell what does not exist.
fn told() -> Scenario {
    let mut scenario = missing().habits(|habits| habits.tells_errors = Some(5));
    scenario.name = "told".to_owned();
    scenario
}

/// Endpoints of an authority with A95's knob, served by other servers than the rest.
fn reachability() -> Scenario {
    let cluster = || Spec::Eds { service: ENDPOINTS.to_owned(), mark: 1, lb: Lb::default() };
    let main: &[&[(&str, Spec)]] = &[&[("shop", shop(&["c"], 1)), ("c", cluster())]];
    let (x1, x2) = ([(ENDPOINTS, backends(&[10]))], [(ENDPOINTS, backends(&[11]))]);
    let (y1, y2) = ([(ENDPOINTS, backends(&[20]))], [(ENDPOINTS, backends(&[21]))]);
    let servers: [ServerHistory<'_>; 3] = [("main", main), ("a", &[&x1, &x2]), ("b", &[&y1, &y2])];
    Scenario::with_authorities("reachability", &servers, &[("eds", &[1, 2], true)])
}

/// Servers that fall silent, and packets that vanish.
fn silent() -> Scenario {
    let mut scenario = inline();
    scenario.name = "silent".to_owned();
    scenario.planes.iter_mut().for_each(|plane| plane.editions.truncate(1));
    scenario.limits(|limits| {
        limits.kinds = Kinds { mute: true, black_hole: true, half_open: true, kill: true, ..Kinds::default() };
        limits.delays = 1;
    })
}

/// One server, and more that goes wrong.
fn lonely() -> Scenario {
    let (one, two) = ([("shop", shop(&["c"], 1)), ("c", ip(1))], [("shop", shop(&["c"], 2)), ("c", ip(2))]);
    let scenario = Scenario::new("lonely", &[("a", &[&one, &two])]);
    scenario.limits(|limits| *limits = Limits { faults: 3, kinds: Kinds::ALL, delays: 1, backend_faults: 0 })
}

type Editions = [Vec<(&'static str, Spec)>; 2];

fn two(name: &str, a: Editions, b: Editions) -> Scenario {
    let (a, b) = (a.each_ref().map(Vec::as_slice), b.each_ref().map(Vec::as_slice));
    Scenario::new(name, &[("a", &a), ("b", &b)])
}

fn shop(clusters: &[&str], mark: u32) -> Spec {
    Spec::InlineListener { clusters: clusters.iter().map(|cluster| (*cluster).to_owned()).collect(), mark }
}

fn ip(mark: u32) -> Spec {
    Spec::Dns { host: format!("10.0.0.{mark}"), mark }
}

fn backends(backends: &[u16]) -> Spec {
    Spec::Endpoints { priorities: vec![PrioritySpec::Here(backends.to_vec())], drop: 0 }
}

const ENDPOINTS: &str = "xdstp://eds/envoy.config.endpoint.v3.ClusterLoadAssignment/c";
