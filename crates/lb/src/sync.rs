//! What is shared between threads, by name: `crates/races` checks the files that use it under a model of the same names.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
