//! What a configuration in force is made of.

use std::collections::BTreeMap;

use mainstay_xds::client::{Capture, Captured};
use mainstay_xds::name::AuthorityKey;

use super::{Clock, ResourceValue};
use crate::names::ResourceName;

/// The resources that a configuration in force is made of: to be kept in files, or served by another control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recording {
    /// Whether the servers that sent them have all answered on their present streams, and so say the same now.
    pub is_current: bool,
    /// The resources, by type and name. Of a glob collection each member is one.
    pub resources: Vec<RecordedResource>,
}

/// A resource of a [`Recording`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedResource {
    /// The type and the name of the resource.
    pub resource: ResourceName,
    /// Its bytes, and where they came from.
    pub value: ResourceValue,
}

impl Recording {
    pub(super) fn of(captures: &BTreeMap<AuthorityKey, Capture>, clock: Clock) -> Self {
        let recorded = |captured: &Captured, server: &str| RecordedResource {
            resource: ResourceName::of(&captured.resource),
            value: ResourceValue {
                server: server.to_owned(),
                version: captured.version.to_string(),
                received_at: clock.at(captured.at),
                encoded: captured.value.clone(),
            },
        };
        let of_one = |capture: &Capture| -> Vec<_> {
            capture.resources.iter().map(|captured| recorded(captured, &capture.server.server_uri)).collect()
        };
        let mut resources: Vec<_> = captures.values().flat_map(of_one).collect();
        resources.sort_by(|a, b| a.resource.cmp(&b.resource));
        Self { is_current: captures.values().all(|capture| capture.is_current), resources }
    }
}
