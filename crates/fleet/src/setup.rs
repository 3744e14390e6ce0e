//! What a fleet is configured with: one service with a few clusters, in editions that can be told apart.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use mainstay_control_plane::{Snapshot, SnapshotBuilder, resources};

/// The name of the service.
pub(crate) const TARGET: &str = "shop";

/// The content of an edition, about 20 kB of it. Its routes lead to a cluster of its own beside those that every edition has, so
/// that a configuration in force says which edition it is of.
pub(crate) fn edition(number: u32) -> Snapshot {
    whole(number).build()
}

/// An edition without the endpoints of its own cluster: what a control plane leaves that dies in the middle of an update.
pub(crate) fn half(number: u32) -> Snapshot {
    let mut snapshot = edition(number);
    snapshot.remove(&mainstay_control_plane::TypeUrl::ENDPOINTS, &own_cluster(number));
    snapshot
}

/// An edition whose own cluster no client accepts.
pub(crate) fn rejected(number: u32) -> Snapshot {
    let nonsense = Cluster { name: own_cluster(number), lb_policy: 99, ..Cluster::default() };
    whole(number).cluster(nonsense).build()
}

fn whole(number: u32) -> SnapshotBuilder {
    let own = own_cluster(number);
    let mut routes = vec![resources::prefix_route("/own", own.clone())];
    routes.extend((0..COMMON).map(|n| resources::prefix_route(format!("/{n}"), common_cluster(n))));
    let mut snapshot = Snapshot::builder()
        .listener(resources::listener(TARGET, resources::rds("routes")))
        .route(resources::route_table("routes", routes))
        .cluster(padded(&own))
        .endpoints(resources::endpoints(own, addresses(COMMON)));
    for n in 0..COMMON {
        let name = common_cluster(n);
        snapshot = snapshot.cluster(padded(&name)).endpoints(resources::endpoints(name, addresses(n)));
    }
    snapshot
}

/// A cluster that is large on the wire and small in a client, which skips what gRPC does not know: many endpoints would be
/// as many connections of each of thousands of clients.
fn padded(name: &str) -> Cluster {
    Cluster { alt_stat_name: "x".repeat(PADDING), ..resources::eds_cluster(name) }
}

/// The edition of a configuration, by the clusters in it.
pub(crate) fn edition_of<'a>(clusters: impl IntoIterator<Item = &'a str>) -> Option<u32> {
    clusters.into_iter().find_map(|name| name.strip_prefix(OWN)?.parse().ok())
}

fn own_cluster(number: u32) -> String {
    format!("{OWN}{number}")
}

fn common_cluster(n: u32) -> String {
    format!("common-{n}")
}

fn addresses(cluster: u32) -> Vec<String> {
    (1..=ENDPOINTS).map(|n| format!("10.0.{cluster}.{n}:80")).collect()
}

const OWN: &str = "edition-";
/// Clusters that every edition has.
const COMMON: u32 = 2;
const ENDPOINTS: u32 = 2;
const PADDING: usize = 6_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edition_is_about_twenty_kilobytes_and_can_be_told_from_others() {
        let size = |snapshot: &Snapshot| {
            let bytes = snapshot.resources().map(|resource| match resource.body {
                mainstay_control_plane::Body::Message(any) => any.value.len() + any.type_url.len(),
                mainstay_control_plane::Body::Error { .. } => 0,
            });
            bytes.sum::<usize>()
        };
        let bytes = size(&edition(1));
        assert!((10_000..30_000).contains(&bytes), "{bytes}");
        assert!(size(&half(1)) < bytes);
        assert_eq!(edition_of(["common-1", "edition-7"]), Some(7));
        assert_eq!(edition_of(["common-1"]), None);
    }
}
