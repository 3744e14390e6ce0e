//! The LB policy of a cluster as a typed tree. No JSON between policies.

/// A load-balancing policy and its config.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LbPolicy {
    /// `wrr_locality`: localities by weight, then the child among the endpoints of one.
    WrrLocality(Box<LbPolicy>),
    /// `round_robin`: each ready endpoint in turn.
    RoundRobin,
    /// `pick_first`: the first endpoint that answers.
    PickFirst {
        /// Shuffle the endpoints first (A62).
        shuffle: bool,
    },
}
