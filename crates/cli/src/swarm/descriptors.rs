//! The limit of open files and sockets, which a swarm needs more of than a program usually has.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// Makes room for so many connections.
pub(super) fn raise(clients: usize) -> Result<(), Failure> {
    let needed = u64::try_from(clients).unwrap_or(u64::MAX).saturating_add(OTHERS);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit is none.
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if let Some(most) = maximum.filter(|most| *most < needed) {
        let room = most.saturating_sub(OTHERS);
        return Err(Failure::failed(format!(
            "{clients} clients need {needed} descriptors, and the system allows this process {most}"
        ))
        .tip(format!("raise the hard limit (`ulimit -Hn`, LimitNOFILE= of systemd), or take --clients {room}")));
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum })
        .map_err(|error| Failure::failed(format!("cannot raise the limit of descriptors to {needed}: {error}")))
}

/// What the program itself has open, generously.
const OTHERS: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_cannot_be_raised_is_named_with_what_would_fit() {
        assert!(raise(1).is_ok());
        if let Some(most) = getrlimit(Resource::Nofile).maximum {
            let failure = raise(usize::try_from(most).unwrap()).unwrap_err();
            assert!(failure.what().contains(&format!("allows this process {most}")), "{failure}");
        }
    }
}
