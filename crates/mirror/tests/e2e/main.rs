//! Mirrors over real sockets: a primary, the mirror behind a server of its own, and channels that fall back to it.

mod classes;
mod common;
mod disasters;
mod names;
mod outages;
