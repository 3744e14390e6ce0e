//! What happens in the demo, as data.

use std::{fmt, time::Duration};

/// A part of the demo: something is done, and the mesh is watched until everything is as it should be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    pub(super) title: &'static str,
    /// What is done at its beginning, in order.
    pub(super) acts: &'static [Act],
    /// Which backends the traffic must reach in the end: all of these and no others.
    pub(super) expect: &'static [&'static str],
    /// What else must be seen in the end.
    pub(super) sight: Option<Sight>,
    /// How long it is watched at least, also when everything is in place at once.
    pub(super) at_least: Duration,
    /// How long it may take until everything is as it should be.
    pub(super) at_most: Duration,
}

/// Something that is done to the mesh.
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
    /// The primary control plane will die without a word when it is asked for this cluster.
    DoomPrimary(Cluster),
    /// The primary returns on its old port, in good health.
    RestorePrimary,
    /// The control planes announce a new cluster and a route to it.
    Announce(Cluster),
    /// Client and servers get new certificates, and this server is started again.
    Rotate(&'static str),
}

/// Something that can be seen at the control planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    /// The fallback has this many connections.
    FallbackConnections(u64),
    /// The primary was told that the client rejects what it sent.
    Rejection,
    /// A server was shown the new certificate of the client, and the impostor no request.
    Identities,
}

/// The clusters of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cluster {
    Blue,
    Green,
    Amber,
    /// Of servers that prove who they are.
    Violet,
}

impl Cluster {
    /// Those that are announced before anything happens.
    pub(super) const FIRST: [Self; 2] = [Self::Blue, Self::Green];

    /// Its name in the resources.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blue => "blue",
            Self::Green => "green",
            Self::Amber => "amber",
            Self::Violet => "violet",
        }
    }

    /// Which backends it has when it is announced first.
    pub(super) fn first_endpoints(self) -> &'static [&'static str] {
        match self {
            Self::Blue => &["one", "two", "three"],
            Self::Green => &["five", "six"],
            Self::Amber => &["seven", "eight"],
            Self::Violet => &SECURED,
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
            Self::DoomPrimary(cluster) => {
                write!(f, "the primary control plane will die when it is asked for cluster {}", cluster.name())
            }
            Self::RestorePrimary => f.write_str("the primary control plane is started again on its port"),
            Self::Announce(cluster) => {
                let (name, backends) = (cluster.name(), cluster.first_endpoints().join(", "));
                write!(f, "RDS update: the route now leads to a new cluster, {name}: {backends}")
            }
            Self::Rotate(name) => {
                write!(f, "client and servers get new certificates, and server {name} is started again")
            }
        }
    }
}

impl fmt::Display for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FallbackConnections(1) => f.write_str("the fallback has 1 connection"),
            Self::FallbackConnections(count) => write!(f, "the fallback has {count} connections"),
            Self::Rejection => f.write_str("the primary was told of the rejection"),
            Self::Identities => {
                write!(f, "servers were shown the new certificate of the client, and {IMPOSTOR} got no request")
            }
        }
    }
}

/// Every backend of the script.
pub(super) const BACKENDS: [&str; 8] = ["one", "two", "three", "four", "five", "six", "seven", "eight"];

/// The servers that the control planes configure, and that are called over mTLS.
pub(super) const SECURED: [&str; 2] = ["nine", "ten"];

/// It has a certificate of the right authority with a wrong name in it.
pub(super) const IMPOSTOR: &str = "mallory";

/// A name that is no backend's and no address either.
pub(super) const NOWHERE: &str = "nowhere";

/// The demo. It takes about 30 seconds.
pub(super) const SCRIPT: &[Scene] = &[
    Scene {
        title: "Traffic over three backends",
        acts: &[],
        expect: &["one", "two", "three"],
        sight: None,
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(20),
    },
    Scene {
        title: "A backend is replaced by configuration: no RPC may fail",
        acts: &[Act::Endpoints(Cluster::Blue, &["one", "two", "four"])],
        expect: &["one", "two", "four"],
        sight: None,
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(20),
    },
    Scene {
        title: "A backend dies: the others take over",
        acts: &[Act::KillBackend("two")],
        expect: &["one", "four"],
        sight: None,
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(20),
    },
    Scene {
        title: "It returns: traffic finds it again",
        acts: &[Act::RestoreBackend("two")],
        expect: &["one", "two", "four"],
        sight: None,
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(30),
    },
    Scene {
        title: "Every control plane dies: traffic goes on as if nothing had happened",
        acts: &[Act::KillControlPlanes],
        expect: &["one", "two", "four"],
        sight: None,
        at_least: Duration::from_millis(3500),
        at_most: Duration::from_secs(20),
    },
    Scene {
        title: "They return with new routes: traffic moves to another cluster",
        acts: &[Act::RestoreControlPlanes(Cluster::Green)],
        expect: &["five", "six"],
        sight: None,
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(30),
    },
    Scene {
        title: "The primary announces a new cluster and dies before it sends it: the fallback takes over",
        acts: &[Act::DoomPrimary(Cluster::Amber), Act::Announce(Cluster::Amber)],
        expect: &["seven", "eight"],
        sight: Some(Sight::FallbackConnections(1)),
        at_least: Duration::from_millis(2000),
        at_most: Duration::from_secs(30),
    },
    Scene {
        title: "The primary returns: the client goes back to it, the fallback is let go",
        acts: &[Act::RestorePrimary],
        expect: &["seven", "eight"],
        sight: Some(Sight::FallbackConnections(0)),
        at_least: Duration::from_millis(2000),
        at_most: Duration::from_secs(60),
    },
    Scene {
        title: "The control planes announce nonsense: it is rejected, traffic stays",
        acts: &[Act::Endpoints(Cluster::Amber, &[NOWHERE])],
        expect: &["seven", "eight"],
        sight: Some(Sight::Rejection),
        at_least: Duration::from_millis(2000),
        at_most: Duration::from_secs(30),
    },
    Scene {
        title: "Servers that the control planes configure, with mTLS on both sides: traffic moves to them",
        acts: &[Act::Announce(Cluster::Violet)],
        expect: &SECURED,
        sight: None,
        at_least: Duration::from_millis(2000),
        at_most: Duration::from_secs(30),
    },
    Scene {
        title: "Certificates are rotated, and a server of another identity is refused: no RPC may fail",
        acts: &[Act::Rotate("ten"), Act::Endpoints(Cluster::Violet, &["nine", "ten", IMPOSTOR])],
        expect: &SECURED,
        sight: Some(Sight::Identities),
        at_least: Duration::from_millis(2500),
        at_most: Duration::from_secs(30),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_about_its_own_backends_and_takes_about_thirty_seconds() {
        let total: Duration = SCRIPT.iter().map(|scene| scene.at_least).sum();
        // Where connections are retried, it takes a few seconds more than the least.
        assert!((24..=28).contains(&total.as_secs()), "{total:?}");
        let is_known = |name: &&str| BACKENDS.contains(name) || SECURED.contains(name);
        for scene in SCRIPT {
            assert!(scene.at_least < scene.at_most, "{}", scene.title);
            assert!(scene.expect.iter().all(is_known), "{}", scene.title);
        }
        let clusters = [Cluster::Blue, Cluster::Green, Cluster::Amber, Cluster::Violet];
        assert!(clusters.iter().flat_map(|cluster| cluster.first_endpoints()).all(is_known));
        assert!(!BACKENDS.contains(&NOWHERE));
    }
}
