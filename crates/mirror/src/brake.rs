//! Which updates look like a disaster (FB-19).
//!
//! The clients of the primary get an update at once, whatever it removes. A fallback that copied a mass removal would be of
//! no help against it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::set::Size;

/// What is held back, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Brake {
    /// An update is held back that leaves less of something than this part takes away: 0.5 holds back what removes more than
    /// half; 1 holds back nothing.
    pub threshold: f64,
    /// For how long, unless somebody decides earlier.
    pub hold: Duration,
}

/// Something of which an update would take too much away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Of what.
    pub what: Removed,
    /// How many there are.
    pub before: usize,
    /// How many would be left.
    pub after: usize,
}

/// What can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// Listeners of the class.
    Listeners,
    /// Routes of the class.
    Routes,
    /// Clusters of the class.
    Clusters,
    /// Endpoints of the class.
    Endpoints,
    /// Endpoints that this resource lists.
    EndpointsOf(Arc<str>),
}

impl Default for Brake {
    fn default() -> Self {
        Self { threshold: 0.5, hold: Duration::from_secs(300) }
    }
}

impl Brake {
    /// What an update would take too much of. Numbers are compared, not names: to replace things is what updates are for.
    pub fn removals(&self, before: &Size, after: &Size) -> Vec<Removal> {
        let mut compared = vec![
            (Removed::Listeners, before.listeners, after.listeners),
            (Removed::Routes, before.routes, after.routes),
            (Removed::Clusters, before.clusters, after.clusters),
            (Removed::Endpoints, before.all_endpoints, after.all_endpoints),
        ];
        // What is not listed at all any more went with its cluster.
        compared.extend(before.endpoints.iter().filter_map(|(name, count)| {
            let left = *after.endpoints.get(name)?;
            Some((Removed::EndpointsOf(name.clone()), *count, left))
        }));
        compared
            .into_iter()
            .filter(|(_, before, after)| self.is_too_much(*before, *after))
            .map(|(what, before, after)| Removal { what, before, after })
            .collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "nobody has so many endpoints")]
    fn is_too_much(&self, before: usize, after: usize) -> bool {
        before.saturating_sub(after) as f64 > before as f64 * self.threshold
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, before, after } = self;
        match what {
            Removed::Listeners => write!(f, "{after} of {before} Listeners would be left"),
            Removed::Routes => write!(f, "{after} of {before} routes would be left"),
            Removed::Clusters => write!(f, "{after} of {before} clusters would be left"),
            Removed::Endpoints => write!(f, "{after} of {before} endpoints would be left in all"),
            Removed::EndpointsOf(name) => write!(f, "{after} of {before} endpoints of {name:?} would be left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set::Set;
    use crate::set::tests::{service, set_of};

    #[test]
    fn more_than_half_is_too_much_and_half_is_not_fb19() {
        let brake = Brake::default();
        let set = |endpoints| Size::of(&set_of(service("a", endpoints), 1));
        for (before, after, held) in
            [(10, 5, false), (10, 4, true), (2, 1, false), (1, 0, true), (3, 1, true), (3, 9, false), (0, 0, false)]
        {
            let removals = brake.removals(&set(before), &set(after));
            assert_eq!(!removals.is_empty(), held, "{before} to {after}: {removals:?}");
        }
        let texts: Vec<_> = brake.removals(&set(10), &set(4)).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["4 of 10 endpoints would be left in all", "4 of 10 endpoints of \"a\" would be left"]);
        let lax = Brake { threshold: 1.0, ..brake };
        assert_eq!(lax.removals(&set(10), &set(0)), []);
    }

    #[test]
    fn clusters_and_routes_of_a_class_count_together_and_replacements_do_not_fb19() {
        let brake = Brake::default();
        let all = |names: &[&str]| {
            let mut set = Set::new();
            names.iter().for_each(|name| set.extend(set_of(service(name, 1), 1)));
            Size::of(&set)
        };
        let removals = brake.removals(&all(&["a", "b", "c"]), &all(&["a"]));
        let what: Vec<_> = removals.iter().map(|removal| removal.what.clone()).collect();
        assert_eq!(what, [Removed::Listeners, Removed::Routes, Removed::Clusters, Removed::Endpoints]);
        assert_eq!(brake.removals(&all(&["a", "b"]), &all(&["a"])), [], "half of it");
        assert_eq!(brake.removals(&all(&["a", "b"]), &all(&["c", "d"])), [], "others in their place");
    }

    #[test]
    fn another_cluster_without_endpoints_is_no_replacement() {
        let size = |name, endpoints| Size::of(&set_of(service(name, endpoints), 1));
        let removals = Brake::default().removals(&size("a", 4), &size("b", 0));
        assert_eq!(removals, [Removal { what: Removed::Endpoints, before: 4, after: 0 }]);
    }
}
