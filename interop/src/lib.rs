//! The client and the server of gRPC's xDS interop tests, on Mainstay.
//!
//! `xds_interop_client` sends RPCs at a constant rate and tells drivers what became of them; `xds_interop_server`
//! answers them as it is asked to. Both speak the contract of gRPC's own test programs, so that its drivers and our
//! suites (`interop/run`) can use them like any other language's.

pub mod client;
pub mod server;

mod admin;
mod flags;

pub use flags::FlagError;
