//! What happens in the demo, as data.

use std::{fmt, time::Duration};

/// A part of the demo: something is done, and the traffic is watched until it is where it belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    pub(super) title: &'static str,
    /// What is done at its beginning, in order.
    pub(super) acts: &'static [Act],
    /// Which backends the traffic must reach in the end: all of these and no others.
    pub(super) expect: &'static [&'static str],
    /// How long it is watched at least, also when everything is in place at once.
    pub(super) at_least: Duration,
    /// How long the traffic may take to get there.
    pub(super) at_most: Duration,
}

/// Something that is done to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The control planes announce new endpoints of a cluster.
    Endpoints(Cluster, &'static [&'static str]),
    /// A backend dies without a word.
    KillBackend(&'static str),
    /// A backend returns on its old port.
    RestoreBackend(&'static str),
    /// Every control plane dies without a word.
    KillControlPlanes,
    /// They return on their old ports, with a route to this cluster.
    RestoreControlPlanes(Cluster),
}

/// The clusters of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cluster {
    Blue,
    Green,
}

impl Cluster {
    /// All of them.
    pub(super) const ALL: [Self; 2] = [Self::Blue, Self::Green];

    /// Its name in the resources.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blue => "blue",
            Self::Green => "green",
        }
    }

    /// Which backends it has before anything happens.
    pub(super) fn first_endpoints(self) -> &'static [&'static str] {
        match self {
            Self::Blue => &["one", "two", "three"],
            Self::Green => &["five", "six"],
        }
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoints(cluster, backends) => {
                write!(f, "EDS update: cluster {} is now {}", cluster.name(), backends.join(", "))
            }
            Self::KillBackend(name) => write!(f, "backend {name} is killed"),
            Self::RestoreBackend(name) => write!(f, "backend {name} is started again on its port"),
            Self::KillControlPlanes => f.write_str("both control planes are killed"),
            Self::RestoreControlPlanes(cluster) => {
                write!(f, "both control planes return; their route now leads to cluster {}", cluster.name())
            }
        }
    }
}

/// Every backend of the script.
pub(super) const BACKENDS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

/// The demo. It takes about 20 seconds.
pub(super) const SCRIPT: &[Scene] = &[
    Scene {
        title: "Traffic over three backends",
        acts: &[],
        expect: &["one", "two", "three"],
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(10),
    },
    Scene {
        title: "A backend is replaced by configuration: no RPC may fail",
        acts: &[Act::Endpoints(Cluster::Blue, &["one", "two", "four"])],
        expect: &["one", "two", "four"],
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(10),
    },
    Scene {
        title: "A backend dies: the others take over",
        acts: &[Act::KillBackend("two")],
        expect: &["one", "four"],
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(10),
    },
    Scene {
        title: "It returns: traffic finds it again",
        acts: &[Act::RestoreBackend("two")],
        expect: &["one", "two", "four"],
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(15),
    },
    Scene {
        title: "Every control plane dies: traffic goes on as if nothing had happened",
        acts: &[Act::KillControlPlanes],
        expect: &["one", "two", "four"],
        at_least: Duration::from_millis(3500),
        at_most: Duration::from_secs(10),
    },
    Scene {
        title: "They return with new routes: traffic moves to another cluster",
        acts: &[Act::RestoreControlPlanes(Cluster::Green)],
        expect: &["five", "six"],
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(30),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_about_its_own_backends_and_takes_about_twenty_seconds() {
        let total: Duration = SCRIPT.iter().map(|scene| scene.at_least).sum();
        assert!((14..=20).contains(&total.as_secs()), "{total:?}");
        for scene in SCRIPT {
            assert!(scene.at_least < scene.at_most, "{}", scene.title);
            assert!(scene.expect.iter().all(|name| BACKENDS.contains(name)), "{}", scene.title);
        }
        assert!(Cluster::ALL.iter().flat_map(|cluster| cluster.first_endpoints()).all(|name| BACKENDS.contains(name)));
    }
}
