//! The protocol core of Mainstay: everything that decides, and nothing that moves a byte.
//!
//! **Unstable.** This crate is a part of [`mainstay`](https://docs.rs/mainstay), published because crates cannot be
//! published without their dependencies. It makes no semver promises: any release may change or remove anything. Use
//! `mainstay`, whose API has nothing of this crate in it.
//!
//! State machines in this crate are synchronous and deterministic. Time ([`Time`]), randomness
//! ([`Choose`]) and events are arguments; what to do next comes out as plain values. They own no
//! socket, clock, task or lock, so the same code runs in production and in a simulator.
//!
//! Data flows one way: a [`Bootstrap`](bootstrap::Bootstrap) names servers; the
//! [`XdsClient`](client::XdsClient) turns bytes from them into cached, validated
//! [`Resource`](resource::Resource)s; the [`DependencyManager`](deps::DependencyManager) turns
//! those into one complete [`XdsConfig`](deps::XdsConfig), and the [`ServerCore`](serve::ServerCore) into what each
//! listening address of a server serves.

// A variant that is added is looked at wherever variants are told apart.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod bootstrap;
pub mod client;
pub mod deps;
pub mod invalid;
pub mod local;
pub mod lrs;
pub mod name;
pub mod orca;
pub mod resource;
pub mod serve;
pub mod shared;
pub mod target;

mod backoff;
mod choose;
mod code;
mod resource_type;
mod time;

pub use backoff::Backoff;
pub use choose::Choose;
pub use code::Code;
pub use time::Time;
