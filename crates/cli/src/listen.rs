//! Addresses to listen on.

use std::{
    fmt::Display,
    io,
    net::{SocketAddr, ToSocketAddrs as _},
};

use mainstay_control_plane::Address;

use crate::failure::Failure;

/// Resolves the `HOST:PORT` of a flag.
pub(crate) fn resolve(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let what = match text.to_socket_addrs() {
        Ok(mut addresses) => match addresses.next() {
            Some(address) => return Ok(address),
            None => "no address".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    Err(Failure::usage(format!("{flag} {text}: {what}"))
        .tip("give HOST:PORT, such as 127.0.0.1:50051; port 0 lets the system choose"))
}

/// The same where a socket in the file system will do, too: `unix:PATH`.
pub(crate) fn resolve_any(flag: &str, text: &str) -> Result<Address, Failure> {
    match text.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path)) {
        None => resolve(flag, text).map(Address::Tcp),
        Some("") => Err(Failure::usage(format!("{flag} {text}: expected the path of a socket after unix:"))),
        Some(path) => Ok(Address::Unix(path.into())),
    }
}

/// What to tell when `address` could not be taken.
pub(crate) fn failure(address: impl Display, error: &io::Error) -> Failure {
    let failure = Failure::failed(format!("cannot listen on {address}: {error}"));
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            failure.tip("another program listens there; stop it, or use port 0 to let the system choose")
        }
        io::ErrorKind::PermissionDenied => {
            failure.tip("ports below 1024 and the directories of others need privileges; choose another place")
        }
        io::ErrorKind::AddrNotAvailable => failure.tip("use an address of this machine, such as 127.0.0.1 or 0.0.0.0"),
        _ => failure,
    }
}
