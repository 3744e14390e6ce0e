//! What domains, shares and effects are called.

use mainstay_lb::Effect;
use mainstay_xds::resource::route::{ClusterTarget, DomainPattern, ForwardAction, WeightedCluster};

pub(super) fn effect(effect: Effect) -> String {
    match effect {
        Effect::Delay(time) => format!("delayed by {time:?}"),
        Effect::Abort(code) => format!("aborted with {}", code.name()),
    }
}

pub(super) fn domain(domain: &DomainPattern) -> String {
    match domain {
        DomainPattern::Exact(text) => format!("{text:?}"),
        DomainPattern::Suffix(text) => format!("\"*{text}\""),
        DomainPattern::Prefix(text) => format!("\"{text}*\""),
        DomainPattern::Any => "\"*\"".to_owned(),
    }
}

/// The clusters of a route with their weights.
pub(super) fn shares(forward: &ForwardAction) -> Vec<(String, u32)> {
    match &forward.target {
        ClusterTarget::Cluster(name) => vec![(name.clone(), 1)],
        ClusterTarget::Weighted(choices) => choices.iter().map(|one| (one.name.clone(), one.weight)).collect(),
    }
}

/// One of the weighted clusters of a route.
pub(super) fn choice(forward: &ForwardAction, at: usize) -> Option<&WeightedCluster> {
    match &forward.target {
        ClusterTarget::Cluster(_) => None,
        ClusterTarget::Weighted(choices) => choices.get(at),
    }
}
