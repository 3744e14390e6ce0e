//! Whether the steps that a recorder heard lead to what was decided.

use mainstay_lb::{Decision, Step};

use super::shell::Handle;
use crate::invariant::{Invariant, Violation};

/// Compares what the steps say with what was decided.
pub(super) fn judge(steps: &[Step], decision: &Decision<'_, Handle>) -> Result<(), Violation> {
    let broken = |text: &str| Err(Invariant::Traffic.broken(format!("{text}: {steps:?} for {decision:?}")));
    let passed = passed(steps);
    let matched =
        steps.iter().find_map(|step| if let Step::Matched { route, .. } = step { Some(*route) } else { None });
    let expected = matched.unwrap_or(passed.len());
    if !passed.iter().copied().eq(0..expected) {
        return broken("not every route before the one that matched is told to be passed, or others are");
    }
    let Decision::Send(to) = decision else { return Ok(()) };
    let address = to.subchannel.key.0;
    let is_endpoint = |step: &Step| match step {
        Step::Endpoints { candidates, .. } => {
            candidates.iter().any(|one| one.address == address && one.origin == *to.origin)
        }
        Step::Session(session) => *session == address,
        _ => false,
    };
    let clusters: Vec<_> = steps.iter().filter(|step| matches!(step, Step::Cluster(_))).collect();
    match (clusters.as_slice(), steps.last()) {
        ([Step::Cluster(cluster)], Some(last)) if cluster == to.cluster && is_endpoint(last) => {}
        _ => return broken("the cluster or the endpoint is another one"),
    }
    match steps.iter().find(|step| matches!(step, Step::Leaf { .. })) {
        Some(Step::Leaf { cluster, priority: (at, count) }) if *cluster == to.origin.cluster && at < count => Ok(()),
        _ => broken("the leaf or its priority is another one"),
    }
}

/// The routes that are told not to match.
pub(super) fn passed(steps: &[Step]) -> Vec<usize> {
    let route = |step: &Step| if let Step::Passed { route, .. } = step { Some(*route) } else { None };
    steps.iter().filter_map(route).collect()
}
