//! Tests of the client as conversations: see [`talk`] for how to read them.

mod chaos;
mod charge;
mod crossing;
mod deferral;
mod delta;
mod errors;
mod fallback;
mod globs;
mod growth;
mod life;
mod planes;
mod protocol;
mod talk;
mod unusual;
