//! The control plane on real sockets and real files. One binary, so that it links once.

mod common;
mod faults;
mod files;
mod herd;
mod server;
