//! Tests of the client as conversations: see [`talk`] for how to read them.

mod chaos;
mod charge;
mod errors;
mod fallback;
mod life;
mod protocol;
mod talk;
mod unusual;
