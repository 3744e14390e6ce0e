//! An xDS control plane: an ADS server for tests, for demonstrations and as the last server of a fallback list.
//!
//! A [`ControlPlane`] holds [`Snapshot`]s of resources; a [`Server`] serves them, can be stopped, restarted and made to
//! fail in every way that matters to a client, and reports all that happens as [`Event`]s.
//!
//! ```
//! use mainstay_control_plane::{ControlPlane, Snapshot, resources};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let control_plane = ControlPlane::new();
//! control_plane.set(
//!     Snapshot::builder()
//!         .listener(resources::listener("greeter", resources::rds("routes")))
//!         .route(resources::route("routes", "cluster"))
//!         .cluster(resources::eds_cluster("cluster"))
//!         .endpoints(resources::endpoints("cluster", ["127.0.0.1:50051"])),
//! );
//! let server = control_plane.serve("127.0.0.1:0").await?;
//! println!("xDS server_uri: {}", server.addr());
//!
//! // Later: a new address for every client that is connected.
//! control_plane.update(|snapshot| snapshot.insert(resources::endpoints("cluster", ["127.0.0.1:50052"])));
//! # Ok(())
//! # }
//! ```
//!
//! It is also a load reporting server (LRS): see [`Server::loads`].
//!
//! Resources can come from [`files`], too, with hot reload. Where they come from several places, an [`Intake`] makes one whole of
//! them.
//!
//! The server speaks both variants of ADS, state of the world and incremental. A protocol is a plain value without I/O.

// A variant that is added is looked at wherever variants are told apart.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod admission;
mod delta;
mod encoding;
mod event;
mod faults;
mod few;
pub mod files;
mod glob;
mod guards;
mod intake;
mod load;
mod names;
mod protocol;
pub mod resources;
pub mod sans_io;
mod server;
mod snapshot;
mod sotw;
mod store;
mod tls;
mod type_url;
mod version;
mod view;

pub use crate::admission::Limits;
pub use crate::event::{
    ConnectionId, Event, Events, Refusal, SeenRequest, SentResponse, Stats, StreamId, TypeStats, Waits,
};
pub use crate::faults::{Corruption, Faults};
pub use crate::files::{
    Deletions, DirectoryWatch, ENVOY_DESCRIPTORS, ExportError, LoadError, LoadErrorKind, LoadErrors, Reload,
    follow_directory, load_directory,
};
pub use crate::intake::{Feed, FeedStatus, Intake, IntakeObserver, News, Told};
pub use crate::load::{ClusterTotals, LoadReport, LoadRequest, LoadTotals, LocalityTotals, locality_name};
pub use crate::protocol::RequestKind;
pub use crate::server::{Address, ClientStatus, Server, ServerOptions, TypeStatus};
pub use crate::snapshot::{Body, Resource, Snapshot, SnapshotBuilder};
pub use crate::store::{ControlPlane, Snapshots};
pub use crate::tls::{ServerTls, TlsError};
pub use crate::type_url::TypeUrl;

/// What the front page of the package shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
