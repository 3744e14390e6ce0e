//! Services, EndpointSlices and ConfigMaps of Kubernetes (KB-1 to KB-14).
//!
//! Each port of a Service gets a listener `service.namespace:port`, a route that leads everything to one cluster, and the
//! endpoints of that cluster, with zones as localities. ConfigMaps with the label `mainstay.dev/resources` hold anything
//! finer, in the format of the files of `serve`.

mod configmaps;
mod endpoints;
mod follow;
mod model;
mod names;
mod object;
mod parse;
mod reflector;
mod replica;

pub use configmaps::Judge;
pub use follow::{AccessError, Settings, follow};
