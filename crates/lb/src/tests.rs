//! The tree as a whole, from configuration to decision.

mod cds;
mod cluster_impl;
mod cluster_manager;
mod decisions;
mod distribution;
mod graceful_switch;
mod growth;
mod handover;
mod identity;
mod least_request;
mod load;
mod outlier_detection;
mod override_host;
mod peers;
mod pick_first;
mod random_subsetting;
mod random_walk;
mod ring_hash;
mod round_robin;
mod warm;
mod weighted_round_robin;
mod weighted_target;
