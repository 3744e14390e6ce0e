//! The tree as a whole, from configuration to decision.

mod cluster_manager;
