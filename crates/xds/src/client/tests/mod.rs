//! Tests of the client as conversations: see [`talk`] for how to read them.

mod chaos;
mod errors;
mod fallback;
mod protocol;
mod talk;
mod unusual;
