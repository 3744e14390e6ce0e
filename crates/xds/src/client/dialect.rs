//! Which variant of ADS a server is spoken to in (DX-1 to DX-5), and what it may be told that we have (DX-16).

use std::sync::Arc;
use std::time::Duration;

use crate::Time;
use crate::bootstrap::DeltaMode;

/// A variant of ADS. A stream speaks one from its first message to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// State of the world: `StreamAggregatedResources`.
    Sotw,
    /// Incremental: `DeltaAggregatedResources`.
    Delta,
}

/// What the streams to one server have shown of the variants that it speaks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dialect {
    mode: DeltaMode,
    /// What the next stream speaks.
    next: Protocol,
    /// Refusals of delta in a row.
    refusals: u32,
    /// Until when delta is not tried, after many of them.
    not_before: Option<Time>,
}

/// Who a delta server says that it is.
///
/// Many control planes count versions from 1 in each process: an equal number may then stand for other content. So
/// versions are claimed only from a server that calls itself the same in all that it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    /// `control_plane.identifier` of the last response.
    identifier: Arc<str>,
    /// Counts identifiers: what came under an earlier one is not claimed any more.
    era: Era,
    /// Whether the next stream must do without claims, because those of the last one were for another server.
    pub distrusted: bool,
}

/// The time during which a server called itself by one name.
pub(super) type Era = u32;

// === impl Dialect ===

impl Dialect {
    pub(super) fn new(mode: DeltaMode) -> Self {
        let next = match mode {
            DeltaMode::Off => Protocol::Sotw,
            DeltaMode::Preferred | DeltaMode::Required => Protocol::Delta,
        };
        Self { mode, next, refusals: 0, not_before: None }
    }

    /// What the next stream speaks.
    pub(super) fn next(&self) -> Protocol {
        self.next
    }

    /// Whether a server that refuses delta, or says nothing in it, is spoken to in the other variant.
    pub(super) fn can_do_without(&self, protocol: Protocol) -> bool {
        protocol == Protocol::Delta && self.mode == DeltaMode::Preferred
    }

    /// The server does not speak delta, or seems not to: the next stream is of the other kind (DX-3).
    pub(super) fn refused(&mut self, now: Time) {
        self.next = Protocol::Sotw;
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals >= MAX_REFUSALS {
            self.not_before = Some(now + REST);
        }
    }

    /// A response came in this variant.
    pub(super) fn answered(&mut self, protocol: Protocol) {
        if protocol == Protocol::Delta {
            (self.refusals, self.not_before) = (0, None);
        }
    }

    /// A stream is over: the next one may find a server that was upgraded.
    pub(super) fn ended(&mut self, now: Time) {
        if self.not_before.is_none_or(|at| at <= now) {
            self.next = Self::new(self.mode).next;
        }
    }
}

// === impl Identity ===

impl Identity {
    /// Whether a server that answers with this identifier is the one that claims were made to.
    pub(super) fn is(&self, identifier: &str) -> bool {
        *self.identifier == *identifier
    }

    /// A response came from a server that calls itself so.
    pub(super) fn heard(&mut self, identifier: &str) {
        if !self.is(identifier) {
            self.identifier = identifier.into();
            self.era += 1;
        }
    }

    /// The era in which a response that comes now is taken in.
    pub(super) fn era(&self) -> Era {
        self.era
    }

    /// Whether content of this era may be claimed. Whoever trusts versions needs no name for it.
    pub(super) fn vouches_for(&self, era: Era, trusted: bool) -> bool {
        trusted || (!self.distrusted && !self.identifier.is_empty() && self.era == era)
    }
}

/// After so many refusals in a row delta is not tried for a while.
const MAX_REFUSALS: u32 = 3;
const REST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_refusal_the_next_stream_but_one_tries_again_and_after_three_in_an_hour_dx3() {
        let mut dialect = Dialect::new(DeltaMode::Preferred);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        for n in 0..2 {
            assert_eq!(dialect.next(), Protocol::Delta);
            dialect.refused(at(n));
            assert_eq!(dialect.next(), Protocol::Sotw);
            dialect.ended(at(n));
        }
        assert_eq!(dialect.next(), Protocol::Delta);
        dialect.refused(at(10));
        dialect.ended(at(3609));
        assert_eq!(dialect.next(), Protocol::Sotw);
        dialect.ended(at(3610));
        assert_eq!(dialect.next(), Protocol::Delta);
        // One more is enough for another hour; an answer forgives all.
        dialect.refused(at(3610));
        dialect.ended(at(7209));
        assert_eq!(dialect.next(), Protocol::Sotw);
        dialect.answered(Protocol::Sotw);
        dialect.ended(at(7209));
        assert_eq!(dialect.next(), Protocol::Sotw);
        dialect.answered(Protocol::Delta);
        dialect.ended(at(7209));
        assert_eq!(dialect.next(), Protocol::Delta);
    }

    #[test]
    fn only_who_prefers_delta_does_without_it_dx1_dx5() {
        for (mode, next, flexible) in [
            (DeltaMode::Off, Protocol::Sotw, false),
            (DeltaMode::Preferred, Protocol::Delta, true),
            (DeltaMode::Required, Protocol::Delta, false),
        ] {
            let dialect = Dialect::new(mode);
            assert_eq!((dialect.next(), dialect.can_do_without(Protocol::Delta)), (next, flexible));
            assert!(!dialect.can_do_without(Protocol::Sotw));
        }
    }

    #[test]
    fn an_identity_vouches_for_what_came_under_its_name_dx16() {
        let mut identity = Identity::default();
        assert!(!identity.vouches_for(0, false), "it has no name");
        assert!(identity.vouches_for(0, true));
        identity.heard("one");
        let one = identity.era();
        identity.heard("one");
        assert!(identity.vouches_for(one, false));
        identity.heard("two");
        assert!(!identity.vouches_for(one, false) && identity.vouches_for(identity.era(), false));
        identity.heard("one");
        assert!(!identity.vouches_for(one, false), "it was not the same in all responses");
        identity.distrusted = true;
        assert!(!identity.vouches_for(identity.era(), false));
    }
}
