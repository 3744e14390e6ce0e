//! A directory and a mirror together (FB-20).

use std::collections::BTreeMap;

use mainstay_control_plane::{ControlPlane, Snapshot, Snapshots};

use crate::Mirror;

impl Mirror {
    /// Lets a control plane tell nodes apart by the classes of this mirror.
    pub fn classify(&self, control_plane: &ControlPlane) {
        let classes = self.classes().clone();
        control_plane.classify(move |node| match classes.of(node) {
            Ok(class) => Ok(class.name.clone()),
            Err(refusal) => Err(refusal.to_string()),
        });
    }

    /// Puts into force at a control plane what is in force here, under what a directory has.
    pub fn put(&self, control_plane: &ControlPlane, directory: Option<&Snapshots>) {
        control_plane.replace_classes(combine(directory, &self.snapshots()));
    }
}

/// What is served to the nodes of each class: what is mirrored for it, and what a directory has, which wins per name. A class
/// of which there is neither is not served yet.
pub fn combine(
    directory: Option<&Snapshots>,
    mirrored: &BTreeMap<String, Option<Snapshot>>,
) -> BTreeMap<String, Snapshots> {
    let nothing = Snapshots::default();
    let directory = directory.unwrap_or(&nothing);
    let mut classes = BTreeMap::new();
    for (class, mirrored) in mirrored {
        if mirrored.is_none() && directory.default.is_empty() && directory.nodes.is_empty() {
            continue;
        }
        let over = |own: &Snapshot| {
            let mut all = mirrored.clone().unwrap_or_default();
            all.overlay(own.clone());
            // There may be more at the primary than what is followed.
            all.partial()
        };
        let default = over(&directory.default);
        let nodes = directory.nodes.iter().map(|(id, own)| (id.clone(), over(own))).collect();
        classes.insert(class.clone(), Snapshots { default, nodes });
    }
    classes
}

#[cfg(test)]
mod tests {
    use mainstay_control_plane::{TypeUrl, resources};

    use super::*;

    #[test]
    fn the_directory_wins_per_name_and_for_its_nodes_fb20() {
        let endpoints =
            |name: &str, address: &str| Snapshot::builder().endpoints(resources::endpoints(name, [address]));
        let mirrored = endpoints("a", "1:1").endpoints(resources::endpoints("b", ["2:2"])).build();
        let own = endpoints("b", "9:9").build();
        let mut of_node = own.clone();
        of_node.insert(resources::endpoints("c", ["3:3"]));
        let directory = Snapshots { default: own, nodes: BTreeMap::from([("n".to_owned(), of_node)]) };
        let mirrored = BTreeMap::from([("x".to_owned(), Some(mirrored)), ("y".to_owned(), None)]);

        let classes = combine(Some(&directory), &mirrored);
        let expected = |all: mainstay_control_plane::SnapshotBuilder| all.build().partial();
        let of_x = endpoints("a", "1:1").endpoints(resources::endpoints("b", ["9:9"]));
        assert_eq!(classes["x"].default, expected(of_x.clone()));
        assert_eq!(classes["x"].nodes["n"], expected(of_x.endpoints(resources::endpoints("c", ["3:3"]))));
        assert!(classes["y"].default.contains(&TypeUrl::ENDPOINTS, "b"), "the directory alone");
        assert_eq!(combine(None, &mirrored).keys().collect::<Vec<_>>(), ["x"], "y has nothing");
    }
}
