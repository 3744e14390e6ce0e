//! What is in force for the nodes of one class: complete configurations only, and no disaster unless somebody wants it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_xds::Time;

use crate::brake::{Brake, Removal};
use crate::set::{Set, Size, is_same, union};

/// The state of one class. Time is an argument; [`ClassCore::next_deadline`] says when to come back.
#[derive(Clone, Debug)]
pub struct ClassCore {
    brake: Brake,
    /// What is followed, and its newest complete configuration, if there was any.
    targets: BTreeMap<String, Option<Arc<Set>>>,
    in_force: Option<InForce>,
    /// How much was in force, and since when: what is in force now is the last one. What was replaced longer ago than things
    /// are held back is forgotten.
    recent: Vec<(Time, Size)>,
    held: Option<Held>,
}

/// A configuration in force.
#[derive(Clone, Debug)]
pub struct InForce {
    /// By target.
    pub targets: BTreeMap<String, Arc<Set>>,
    /// All of them together: what is served.
    pub all: Arc<Set>,
}

/// An update that is held back.
#[derive(Clone, Debug)]
pub struct Held {
    /// What it would take too much of.
    pub removals: Vec<Removal>,
    /// Since when something is held back.
    pub since: Time,
    /// Until when; `None` if somebody has refused it.
    pub until: Option<Time>,
    candidate: InForce,
    size: Size,
}

impl ClassCore {
    /// Nothing is followed yet.
    pub fn new(brake: Brake) -> Self {
        Self { brake, targets: BTreeMap::new(), in_force: None, recent: Vec::new(), held: None }
    }

    /// A target is followed from now on.
    pub fn follow(&mut self, target: &str) {
        self.targets.entry(target.to_owned()).or_default();
    }

    /// These targets do not exist any more. Whether something else is in force now.
    pub fn forget<'a>(&mut self, now: Time, targets: impl IntoIterator<Item = &'a str>) -> bool {
        let mut any = false;
        for target in targets {
            any |= self.targets.remove(target).is_some();
        }
        any && self.settle(now)
    }

    /// A complete configuration of a target came. Whether something else is in force now.
    pub fn handle_complete(&mut self, now: Time, target: &str, set: Set) -> bool {
        let Some(newest) = self.targets.get_mut(target) else { return false };
        if newest.as_ref().is_some_and(|newest| is_same(newest, &set)) {
            return false;
        }
        *newest = Some(Arc::new(set));
        self.settle(now)
    }

    /// The time has come that [`next_deadline`](Self::next_deadline) named. Whether something else is in force now.
    pub fn handle_timeout(&mut self, now: Time) -> bool {
        let is_over = self.held.as_ref().and_then(|held| held.until).is_some_and(|until| until <= now);
        is_over && self.accept(now)
    }

    /// Puts into force what is held back. Whether there was anything.
    pub fn accept(&mut self, now: Time) -> bool {
        let Some(held) = self.held.take() else { return false };
        // From here on it is measured by this.
        self.recent = vec![(now, held.size)];
        self.in_force = Some(held.candidate);
        true
    }

    /// Holds back what is held back until it is accepted, or until the primary says something else. Whether there was
    /// anything.
    pub fn refuse(&mut self) -> bool {
        let Some(held) = &mut self.held else { return false };
        held.until = None;
        true
    }

    /// When something is to be done without any event.
    pub fn next_deadline(&self) -> Option<Time> {
        self.held.as_ref()?.until
    }

    /// What is in force.
    pub fn in_force(&self) -> Option<&InForce> {
        self.in_force.as_ref()
    }

    /// What is held back.
    pub fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// What is followed, and whether it was ever complete.
    pub fn targets(&self) -> impl Iterator<Item = (&str, bool)> {
        self.targets.iter().map(|(target, set)| (target.as_str(), set.is_some()))
    }

    fn settle(&mut self, now: Time) -> bool {
        let complete = self.targets.iter().filter_map(|(target, set)| Some((target.clone(), set.clone()?)));
        let targets: BTreeMap<_, _> = complete.collect();
        let candidate = InForce { all: Arc::new(union(targets.values())), targets };
        if self.in_force.is_none() && candidate.targets.is_empty() {
            return false;
        }
        let size = Size::of(&candidate.all);
        let before = self.most_of_late(now);
        let removals = self.brake.removals(&before, &size);
        if removals.is_empty() {
            self.held = None;
            self.recent.push((now, size));
            self.in_force = Some(candidate);
            return true;
        }
        // The clock runs from the first one: others that come meanwhile would hold it back for ever.
        let (since, until) = match &self.held {
            Some(held) => (held.since, held.until),
            None => (now, Some(now + self.brake.hold)),
        };
        self.held = Some(Held { removals, since, until, candidate, size });
        false
    }

    /// The most that was in force of late. Targets are followed one by one, so that one update of the primary comes here in
    /// slices: each of them may be small.
    fn most_of_late(&mut self, now: Time) -> Size {
        let begin = now - self.brake.hold;
        let replaced_before = self.recent.iter().skip(1).take_while(|(since, _)| *since <= begin).count();
        self.recent.drain(..replaced_before);
        self.recent.iter().fold(Size::default(), |most, (_, size)| most.max(size))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::set::tests::{service, set_of};

    #[test]
    fn a_class_is_served_when_something_is_complete_fb18() {
        let mut core = ClassCore::new(Brake::default());
        core.follow("xds:///a");
        core.follow("xds:///b");
        assert!(core.in_force().is_none());
        assert!(!core.handle_complete(at(0), "xds:///other", set_of(service("o", 1), 1)), "it is not followed");
        assert!(core.handle_complete(at(0), "xds:///a", set_of(service("a", 2), 1)));
        assert_eq!(endpoints(&core), 2);
        assert!(!core.handle_complete(at(1), "xds:///a", set_of(service("a", 2), 9)), "the same content");
        assert!(core.handle_complete(at(1), "xds:///b", set_of(service("b", 3), 1)));
        assert_eq!(endpoints(&core), 5);
        assert_eq!(core.targets().collect::<Vec<_>>(), [("xds:///a", true), ("xds:///b", true)]);
    }

    #[test]
    fn a_mass_removal_is_held_back_and_passes_after_its_time_fb19() {
        let mut core = with_endpoints(10);
        assert!(!core.handle_complete(at(10), "xds:///a", set_of(service("a", 1), 2)));
        assert_eq!(endpoints(&core), 10, "what was in force still is");
        assert_eq!(core.held().unwrap().removals.len(), 2);
        assert_eq!(core.next_deadline(), Some(at(310)));
        // Another one does not turn the clock back.
        assert!(!core.handle_complete(at(200), "xds:///a", set_of(service("a", 2), 3)));
        assert_eq!(core.next_deadline(), Some(at(310)));
        assert!(!core.handle_timeout(at(309)));
        assert!(core.handle_timeout(at(310)));
        assert_eq!((endpoints(&core), core.next_deadline()), (2, None), "the newest");
        assert!(core.held().is_none());
    }

    #[test]
    fn what_the_primary_takes_back_was_never_there_fb19() {
        let mut core = with_endpoints(10);
        core.handle_complete(at(10), "xds:///a", set_of(service("a", 0), 2));
        assert!(core.handle_complete(at(20), "xds:///a", set_of(service("a", 9), 3)));
        assert_eq!((endpoints(&core), core.next_deadline()), (9, None));
        assert!(core.held().is_none() && !core.accept(at(21)) && !core.refuse());
    }

    #[test]
    fn a_removal_can_be_accepted_and_refused_fb19() {
        let mut core = with_endpoints(10);
        core.handle_complete(at(10), "xds:///a", set_of(service("a", 1), 2));
        assert!(core.refuse());
        assert_eq!(core.next_deadline(), None, "for as long as it takes");
        assert!(!core.handle_timeout(at(100_000)));
        assert!(!core.handle_complete(at(100_001), "xds:///a", set_of(service("a", 2), 3)));
        assert_eq!((endpoints(&core), core.next_deadline()), (10, None), "and so is another like it");
        assert!(core.accept(at(100_002)));
        assert_eq!(endpoints(&core), 2);
    }

    #[test]
    fn a_target_that_goes_is_a_removal_like_any_other_fb19() {
        let mut core = with_endpoints(10);
        core.follow("xds:///b");
        core.handle_complete(at(0), "xds:///b", set_of(service("b", 10), 1));
        assert!(core.forget(at(1), ["xds:///b"]), "half of it may go");
        assert!(!core.forget(at(2), ["xds:///b"]), "it is gone");
        assert!(!core.forget(at(2), ["xds:///a"]), "the rest may not");
        assert_eq!(endpoints(&core), 10);
        assert!(core.held().is_some());
        // It is back, with nothing yet; then whole.
        core.follow("xds:///a");
        assert!(core.handle_complete(at(3), "xds:///a", set_of(service("a", 11), 4)));
        assert!(core.held().is_none());
    }

    #[test]
    fn a_removal_in_slices_is_one_removal_fb19() {
        let names = ["a", "b", "c", "d"].map(|name| format!("xds:///{name}"));
        let mut core = ClassCore::new(Brake::default());
        for name in &names {
            core.follow(name);
            core.handle_complete(at(0), name, set_of(service(name, 1), 1));
        }
        assert!(core.forget(at(1), [names[0].as_str()]));
        assert!(core.forget(at(2), [names[1].as_str()]), "half");
        assert!(!core.forget(at(3), [names[2].as_str()]), "more than half of what there was a moment ago");
        assert_eq!(core.held().unwrap().removals[0].to_string(), "1 of 4 Listeners would be left");
        // What there was long ago does not count.
        core.follow(&names[2]);
        assert!(core.handle_complete(at(4), &names[2], set_of(service(&names[2], 1), 1)));
        assert!(core.forget(at(400), [names[2].as_str()]));
        assert_eq!(endpoints(&core), 1);
    }

    #[test]
    fn whatever_comes_what_is_in_force_was_complete_or_decided_on() {
        // Against a naive reference: a list of what was published, and what the rules allow after each step.
        let mut seed = 1u64;
        let mut next = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        let mut core = ClassCore::new(Brake::default());
        core.follow("xds:///a");
        let (mut shown, mut newest) = (None::<usize>, None::<usize>);
        let mut refused = false;
        // What was in force after each step, since the last time that somebody decided.
        let mut history: Vec<usize> = Vec::new();
        for step in 0..2_000u64 {
            let now = at(step * 60);
            let mut is_judged = false;
            match next(12) {
                0 if core.accept(now) => history.clear(),
                0 => {}
                1 => refused |= core.refuse(),
                _ => {
                    let count = usize::try_from(next(8)).unwrap();
                    is_judged = newest.replace(count) != Some(count);
                    core.handle_complete(now, "xds:///a", set_of(service("a", count), step));
                }
            }
            if core.handle_timeout(now) {
                history.clear();
            }
            let in_force = core.in_force().map(|_| endpoints(&core));
            if in_force != shown {
                assert_eq!(in_force, newest, "only the newest is ever put into force");
            }
            shown = in_force;
            match core.held() {
                None => {
                    assert_eq!(in_force, newest);
                    refused = false;
                }
                Some(held) => {
                    // The most of the last five minutes, and a step is one.
                    let before = *history.iter().rev().take(5).max().unwrap();
                    let after = newest.unwrap();
                    assert!(!is_judged || 2 * (before - after) > before, "{before} to {after} is no mass removal");
                    assert_eq!(held.until.is_none(), refused);
                    assert!(held.until.is_none_or(|until| until > now && until <= now + Duration::from_secs(300)));
                }
            }
            history.extend(in_force);
        }
    }

    fn with_endpoints(count: usize) -> ClassCore {
        let mut core = ClassCore::new(Brake::default());
        core.follow("xds:///a");
        assert!(core.handle_complete(at(0), "xds:///a", set_of(service("a", count), 1)));
        core
    }

    fn endpoints(core: &ClassCore) -> usize {
        Size::of(&core.in_force().unwrap().all).all_endpoints
    }

    fn at(seconds: u64) -> Time {
        Time::from_start(Duration::from_secs(seconds))
    }
}
