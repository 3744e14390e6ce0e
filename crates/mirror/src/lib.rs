//! A mirror: what a control plane tells each class of its clients, held by somebody else for the time when it is gone.
//!
//! A fallback server is not asked while the primary works, so it does not learn what clients need until it is too late
//! (FB-13). A mirror asks on behalf of them, beforehand: [`config`] says which classes of nodes there are and what each
//! of them watches, and for each class it follows the primary as one of its nodes. What it serves has the names, the
//! bytes and the versions of the primary.
//!
//! What decides is without a socket and a clock: [`class`], of which class a node is; [`brake`], which updates look like a
//! disaster; [`core`], what is in force. [`Mirror`] moves bytes for them: it follows targets by channels that connect to
//! no endpoint, so that it has the validation and every failure rule of a client.

// A variant that is added is looked at wherever variants are told apart.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod brake;
pub mod class;
pub mod combine;
pub mod config;
pub mod core;
pub mod set;

mod files;
mod follow;
mod learn;
mod mirror;
mod names;
mod node;
mod status;

pub use mirror::{CommandError, Mirror, Settings, StartError};
pub use status::{ClassStatus, HeldStatus, TargetStatus};
