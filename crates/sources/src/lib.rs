//! Where a control plane can have its resources from, beside files: engines that users run already (FB-23 to FB-28).
//!
//! With the feature `etcd`, `etcd` has generations of resources: one process publishes a directory as a whole, any number of
//! replicas serve it, and each switches to whole generations only.
//!
//! With the feature `kubernetes`, `kubernetes` makes resources of the Services and EndpointSlices of a cluster, and has anything
//! finer from ConfigMaps.
//!
//! An engine holds what is wanted, and replicas only read it: they elect nobody and do not talk to each other. What clients
//! see is a function of the content, so it does not matter which replica they are connected to. [`freshness`] says when a
//! replica that lost its engine lets others serve, and when it serves what it has; [`disk`] is where a replica keeps that
//! for its own next start.

#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod disk;
pub mod entries;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
mod following;
pub mod freshness;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub mod gate;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;

#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub use crate::following::Following;
