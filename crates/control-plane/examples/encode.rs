//! Writes the resources of a directory of YAML and JSON files in binary, as fuzzers take them: `encode IN OUT` makes
//! `OUT/KIND/NAME` for each.

use std::error::Error;
use std::path::Path;

use mainstay_control_plane::{Body, load_directory};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(from), Some(to)) = (args.next(), args.next()) else { return Err("expected: encode IN OUT".into()) };
    let snapshots = load_directory(Path::new(&from)).map_err(|errors| format!("{errors:?}"))?;
    for resource in snapshots.default.resources() {
        let Body::Message(any) = resource.body else { continue };
        let kind = match any.type_url.rsplit('.').next() {
            Some("Listener") => "listener",
            Some("RouteConfiguration") => "route",
            Some("Cluster") => "cluster",
            Some("ClusterLoadAssignment") => "endpoints",
            Some("LbEndpointCollection") => "collection",
            _ => continue,
        };
        let directory = Path::new(&to).join(kind);
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join(&resource.name), any.value)?;
    }
    Ok(())
}
