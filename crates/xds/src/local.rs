//! Servers that are a part of the process: files of what a client had last, and directories of operators (FB-1 to FB-12).
//!
//! Everything about them that can be decided without a disk: [`LastGoodFile`], the format of a file and the reasons for which
//! one is refused; [`LocalSet`], the resources of a server; [`LocalServer`], what it answers on a stream. To the client
//! it is a server like any other, that speaks the incremental variant of ADS.

mod file;
mod server;

#[cfg(test)]
mod tests;

pub use file::{Age, Expected, LastGoodFile, Refusal, Stored, file_name, servers_digest};
pub use server::{LocalServer, LocalSet, LocalValue};
