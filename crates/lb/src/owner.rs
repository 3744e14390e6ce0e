//! Which part of the tree something is for.

/// Which policy something belongs to, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Owner {
    /// The cluster of the cluster manager it is below.
    pub(crate) cluster: u32,
    /// The policy; a number that is never used twice in a tree.
    pub(crate) policy: u64,
    /// The endpoint or child inside the policy.
    pub(crate) slot: u32,
}

/// A part of the tree that connects only when an RPC needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wake(pub(crate) Owner);
