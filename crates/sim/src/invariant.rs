//! What must always hold, and how it is told when it does not.

use std::fmt;

/// What is checked after every step. Rule ids as in the crate's README.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// Each response gets one ACK or NACK, in order, with its own nonce, version and error; the node goes first and
    /// once; no first request is a wildcard; one request at a time (P-16, P-23, P-29 to P-31, P-35, P-39, P-48).
    Answers,
    /// Once a stream is quiet, the names on the wire are the names that are watched (P-27, P-46, C-9, C-44, C-47).
    Names,
    /// A server is told the version that we have from it, and none that we do not have (P-29, P-32).
    Versions,
    /// A server that shows no sign of life is left in time; one that does, or owes nothing, is not (proof of life).
    Life,
    /// What the client says of its servers is so.
    States,
    /// Watchers hear what is said of their resource, once and in order (C-10 to C-16).
    Notifications,
    /// The work that follows from one event is bounded, and nothing spins.
    Work,
    /// RPCs spread over endpoints as the policy says (L-60 and following).
    Spread,
    /// Load reports tell what happened (C-66 to C-82).
    Loads,
    /// What is watched is what the configuration needs: no more, no less (C-9, L-10 to L-17).
    Watches,
    /// What is shown of a resource is what the server in charge said last; nothing else takes data away, and what comes
    /// from a stream that is closed or from a server that is not in charge changes nothing (C-19, C-22, C-35, C-51, P-26).
    Cache,
    /// "Does not exist" is said only of a server that was alive after it was asked, after the time that it has, never
    /// over data, and always when it is due (P-55 to P-58, C-24, C-54).
    Absence,
    /// Another server is asked only if the one in charge is down and something is missing, or A95's knob is set;
    /// and always then (C-40 to C-46).
    Fallback,
    /// The first usable resource that a better server sends puts it in charge, and nothing else does (C-49).
    Recovery,
    /// Every server in use has one attempt or waits for its next; no other server has any (P-13, P-15, C-39, C-47).
    Attempts,
    /// Pauses between attempts are those of the backoff; answered streams are opened again at once (P-17 to P-20).
    Backoff,
    /// What is in force is what follows from the cache once that is complete and of one source, else what was in
    /// force before; a mixture only after the bound (A74, C-50, L-10 to L-22).
    Config,
    /// Errors beside a value that stays in use are told, and called off when their cause is gone (A88, C-11, C-16, L-19).
    Ambient,
    /// RPCs go to ready connections of their cluster, and none fails for reasons of configuration while a usable
    /// one is held (A57, L-29, L-30, L-200).
    Traffic,
    /// Circuit breakers count the RPCs in flight (L-85, L-86).
    Breaker,
    /// Connections are made, asked for and released in good order.
    Connections,
    /// When everything works again, all is as the first server says, within a bound (C-49, L-10).
    Convergence,
    /// A server is served by what its control planes say: one generation after the other, whole, and equal ones are one
    /// (SV-5, SV-6, SV-11 to SV-15).
    Generations,
    /// A port accepts connections exactly while its address is served, and the application is told (SV-5, SV-7, SV-13).
    Ports,
    /// Not one byte is in plaintext where TLS was asked for (TL-1).
    Security,
    /// After the last drop nothing is left: no stream, timer, lookup, connection or count (C-3, P-15).
    Leak,
}

/// Something that must hold does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What must hold.
    pub invariant: Invariant,
    /// What is the case.
    pub detail: String,
}

impl Invariant {
    pub(crate) fn broken(self, detail: impl Into<String>) -> Violation {
        Violation { invariant: self, detail: detail.into() }
    }

    /// Fails with `detail` unless it holds.
    pub(crate) fn holds(self, holds: bool, detail: impl FnOnce() -> String) -> Result<(), Violation> {
        if holds { Ok(()) } else { Err(self.broken(detail())) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.detail)
    }
}

impl std::error::Error for Violation {}
