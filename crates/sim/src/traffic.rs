//! What RPCs see (L-29, L-30, L-200).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_lb::Decision;
use mainstay_xds::deps::{ClusterChildren, ConfigError, XdsConfig};

use crate::invariant::{Invariant, Violation};
use crate::scenario::Grain;
use crate::shell::{Handle, Shell, State};

/// Checks what becomes of an RPC.
pub(crate) fn check(
    path: &str,
    decision: &Decision<'_, Handle>,
    config: Option<Result<&Arc<XdsConfig>, &Arc<ConfigError>>>,
    shell: &Shell,
    grain: Grain,
) -> Result<(), Violation> {
    let wrong = |what: &str| Err(Invariant::Traffic.broken(format!("{path}: {what}: {decision:?}")));
    let config = match (config, decision) {
        (None, Decision::Wait(..)) | (Some(Err(_)), Decision::Fail(_)) => return Ok(()),
        (None, _) => return wrong("an RPC does not wait for the first configuration (L-30)"),
        (Some(Err(_)), _) => return wrong("an RPC does not fail without a configuration (L-29)"),
        (Some(Ok(config)), _) => config,
    };
    if let Decision::Fail(failure) | Decision::Wait(failure, _) | Decision::Drop(failure) = decision
        && failure.code != UNAVAILABLE
    {
        return wrong("a status that is not UNAVAILABLE (L-200)");
    }
    if let Decision::Send(to) = decision {
        let state = shell.connections.get(&to.subchannel.id).map(|connection| connection.state);
        if state != Some(State::Ready) {
            return wrong("a connection that is not ready");
        }
        return match addresses(config, to.cluster) {
            Some(addresses) if addresses.contains(&to.subchannel.address) => Ok(()),
            _ => wrong("a connection that its cluster does not have"),
        };
    }
    let cluster = chosen(config, path);
    let Some(addresses) = cluster.and_then(|cluster| addresses(config, &cluster)).filter(|all| !all.is_empty()) else {
        return Ok(()); // Nothing to send it to: not a matter of this check.
    };
    if matches!(decision, Decision::Drop(_)) && is_full(config, path, shell) {
        return Ok(()); // L-85
    }
    let connections = || shell.connections.values().filter(|c| addresses.contains(&c.handle.address));
    let is_failing = matches!(decision, Decision::Fail(_) | Decision::Drop(_));
    if is_failing && connections().any(|connection| connection.state == State::Ready) {
        return wrong("an RPC fails although its cluster has a ready connection");
    }
    let calm = !addresses.iter().any(|address| shell.troubled.contains(address));
    if is_failing && calm {
        return wrong("an RPC fails although no backend ever failed");
    }
    if grain == Grain::Coarse && calm && connections().all(|connection| connection.state == State::Ready) {
        return wrong("an RPC is not sent although every backend is connected");
    }
    Ok(())
}

/// The cluster that the path goes to, in the tables that scenarios make.
fn chosen(config: &XdsConfig, path: &str) -> Option<Arc<str>> {
    let clusters: Vec<&str> = config.virtual_host.clusters().collect();
    let number: usize = path.trim_start_matches('/').split('/').next()?.parse().ok()?;
    // The last route is that for all other paths.
    let own = clusters.get(..clusters.len().checked_sub(1)?)?.get(number);
    own.or(clusters.last()).map(|name| Arc::from(*name))
}

/// Whether the cluster that the path goes to, or a leaf of it, has as many RPCs in flight as it may.
fn is_full(config: &XdsConfig, path: &str, shell: &Shell) -> bool {
    let Some(root) = chosen(config, path) else { return false };
    let cluster = |name: &Arc<str>| config.clusters.get(name).and_then(|cluster| cluster.as_ref().ok());
    let leaves = match cluster(&root).map(|root| &root.children) {
        Some(ClusterChildren::Aggregate(leaves)) => leaves.to_vec(),
        _ => vec![root],
    };
    let mut counters = shell.counters.iter();
    counters.any(|((name, _), counter)| {
        let leaf = leaves.iter().find(|leaf| ***leaf == **name).and_then(cluster);
        leaf.is_some_and(|leaf| counter.in_flight() >= leaf.cluster.max_requests)
    })
}

/// All addresses of a cluster and its leaves; `None` if it cannot be used.
fn addresses(config: &XdsConfig, cluster: &str) -> Option<BTreeSet<SocketAddr>> {
    match &config.clusters.get(cluster)?.as_ref().ok()?.children {
        ClusterChildren::Endpoints(None) => Some(BTreeSet::new()),
        ClusterChildren::Endpoints(Some(resolved)) => {
            let localities = resolved.priorities().flatten();
            let endpoints = localities.flat_map(|locality| locality.endpoints);
            Some(endpoints.flat_map(|endpoint| endpoint.addresses.as_slice().to_vec()).collect())
        }
        ClusterChildren::Aggregate(leaves) => {
            Some(leaves.iter().filter_map(|leaf| addresses(config, leaf)).flatten().collect())
        }
    }
}

/// gRPC status code.
const UNAVAILABLE: u8 = 14;
