//! Servers that the control plane configures (A36, A29), over real sockets.

mod admin;
mod crashes;
mod drains;
mod limits;
mod raw;
mod rbac;
mod rpcs;
pub(crate) mod security;
mod serving;
mod sharing;
pub(crate) mod stage;
mod updates;
