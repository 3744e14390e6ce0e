//! What of an EDS resource gets no RPCs, and why.

use bytes::Bytes;
use envoy_types::pb::envoy::config::{
    core::v3::{HealthStatus, Locality},
    endpoint::v3::ClusterLoadAssignment,
};
use prost::Message as _;

/// The localities and endpoints of a ClusterLoadAssignment that are not used, and why.
pub(super) fn left_out(encoded: &Bytes) -> Vec<String> {
    let Ok(assignment) = ClusterLoadAssignment::decode(encoded.as_ref()) else { return Vec::new() };
    let mut lines = Vec::new();
    for locality in &assignment.endpoints {
        let name = name(locality.locality.as_ref());
        if locality.load_balancing_weight.is_none_or(|weight| weight.value == 0) {
            lines.push(format!("{name} is not used: it has no load_balancing_weight"));
            continue;
        }
        for status in [HealthStatus::Unhealthy, HealthStatus::Timeout, HealthStatus::Degraded] {
            let count = locality.lb_endpoints.iter().filter(|one| one.health_status == status as i32).count();
            if count > 0 {
                let (name, health) = (&name, status.as_str_name());
                lines.push(format!(
                    "{count} of {} endpoints of {name} are not used: {health}",
                    locality.lb_endpoints.len()
                ));
            }
        }
    }
    lines
}

fn name(locality: Option<&Locality>) -> String {
    match locality {
        Some(Locality { region, zone, sub_zone }) if !(region.is_empty() && zone.is_empty() && sub_zone.is_empty()) => {
            format!("locality {region}/{zone}/{sub_zone}")
        }
        _ => "the locality without a name".to_owned(),
    }
}
