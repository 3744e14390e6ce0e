//! Generations of resources in etcd (FB-25 to FB-28).
//!
//! [`publish`] writes a whole set of resources as a new generation, in as many transactions as it takes, and then makes it the
//! current one in a single step. [`follow`] brings the current generation to a control plane, on any number of replicas; each
//! switches from one whole generation to the next and never back.

mod client;
mod follow;
mod layout;
mod publish;
mod replica;

pub use client::{Endpoints, EndpointsError, TlsFiles};
pub use follow::{Settings, follow};
pub use layout::{Manifest, Scope, TooLarge};
pub use publish::{Plan, PublishError, Published, publish};

/// The part of etcd's API that is used, made from `proto/etcd.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
mod wire {
    include!("generated/etcdserverpb.rs");
}
