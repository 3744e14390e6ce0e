//! Mainstay end to end: real control planes, real backends, real sockets. One binary, so that it links once.

mod channel;
mod common;
mod connections;
