//! What RPCs see (L-29, L-30, L-200).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use mainstay_lb::Decision;
use mainstay_xds::{Code, Time};

use crate::invariant::{Invariant, Violation};
use crate::oracle::picture::Picture;
use crate::resources::{Way, route};
use crate::scenario::Grain;
use crate::shell::{Handle, Shell, State};

/// What is in force.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InForce<'a> {
    Nothing,
    Error,
    Config(Option<&'a Picture>),
}

/// Checks what becomes of an RPC. It goes by what is in force, or by what was until a moment ago.
pub(crate) fn check(
    path: &str,
    decision: &Decision<'_, Handle>,
    in_force: InForce<'_>,
    recent: &[(Time, Arc<Picture>)],
    shell: &Shell,
    grain: Grain,
) -> Result<(), Violation> {
    let wrong = |what: &str| Err(Invariant::Traffic.broken(format!("{path}: {what}: {decision:?}")));
    let picture = match (in_force, decision) {
        (InForce::Nothing, Decision::Wait(..)) | (InForce::Error, Decision::Fail(_)) => return Ok(()),
        (InForce::Nothing, _) => return wrong("an RPC does not wait for the first configuration (L-30)"),
        (InForce::Error, _) => return wrong("an RPC does not fail without a configuration (L-29)"),
        (InForce::Config(None), _) => return Ok(()),
        (InForce::Config(Some(picture)), _) => picture,
    };
    if let Decision::Fail(failure) | Decision::Wait(failure, _) | Decision::Drop(failure) = decision
        && failure.code != Code::Unavailable
    {
        return wrong("a status that is not UNAVAILABLE (L-200)");
    }
    let now = check_by(path, decision, picture, &BTreeSet::new(), shell, grain);
    let earlier = || recent.iter().map(|(_, earlier)| &**earlier);
    let Err(what) = now else { return Ok(()) };
    if earlier().any(|earlier| check_by(path, decision, earlier, &BTreeSet::new(), shell, grain).is_ok()) {
        return Ok(());
    }
    // Endpoints that were replaced stay in use until one of the new ones is ready. And the routes of before, while new ones
    // get warm, lead to their clusters as these are now.
    let all = || earlier().chain([picture]);
    let names: BTreeSet<String> = all().flat_map(|picture| clusters(picture, path)).collect();
    let addresses: BTreeSet<SocketAddr> =
        all().flat_map(|picture| names.iter().flat_map(|name| picture.addresses(name))).collect();
    if all().any(|picture| check_by(path, decision, picture, &addresses, shell, grain).is_ok()) {
        return Ok(());
    }
    wrong(what)
}

fn check_by(
    path: &str,
    decision: &Decision<'_, Handle>,
    picture: &Picture,
    kept: &BTreeSet<SocketAddr>,
    shell: &Shell,
    grain: Grain,
) -> Result<(), &'static str> {
    let clusters = clusters(picture, path);
    if let Decision::Send(to) = decision {
        let state = shell.connections.get(&to.subchannel.id).map(|connection| connection.state);
        if state != Some(State::Ready) {
            return Err("a connection that is not ready");
        }
        if !clusters.iter().any(|cluster| **cluster == **to.cluster) {
            return Err("a cluster that the routes do not lead to");
        }
        let address = to.subchannel.address;
        let is_known = picture.addresses(to.cluster).contains(&address) || kept.contains(&address);
        return if is_known { Ok(()) } else { Err("a connection that its cluster does not have") };
    }
    if matches!(decision, Decision::Wait(_, Some(_))) {
        return Ok(()); // It is what wakes a policy that connects only when asked.
    }
    let [cluster] = clusters.as_slice() else { return Ok(()) };
    let addresses = picture.addresses(cluster);
    if addresses.is_empty() {
        return Ok(()); // Nothing to send it to: not a matter of this check.
    }
    let is_mine = |address: &SocketAddr| addresses.contains(address);
    if matches!(decision, Decision::Drop(_)) && shell.is_limited() {
        return Ok(()); // L-85
    }
    let connections = || shell.connections.values().filter(|connection| is_mine(&connection.handle.address));
    let is_failing = matches!(decision, Decision::Fail(_) | Decision::Drop(_));
    // Each use of a cluster draws a subset of its own: the ready one may be in that of another, if those that are not
    // ready are enough for one.
    let ready = connections().filter(|connection| connection.state == State::Ready).count();
    let uses_subset = picture.leaves(cluster).iter().any(|leaf| shell.subsets.contains(*leaf));
    if is_failing && ready > 0 && !(uses_subset && addresses.len() - ready >= SUBSET) {
        return Err("an RPC fails although its cluster has a ready connection");
    }
    let was_failing = picture.leaves(cluster).iter().any(|leaf| shell.failing.contains(*leaf));
    let calm = !was_failing && !addresses.iter().any(|address| shell.troubled.contains(address));
    if is_failing && calm {
        return Err("an RPC fails although no backend ever failed");
    }
    if grain == Grain::Coarse && calm && connections().all(|connection| connection.state == State::Ready) {
        return Err("an RPC is not sent although every backend is connected");
    }
    Ok(())
}

/// How many endpoints are in a subset.
const SUBSET: usize = crate::resources::SUBSET as usize;

/// The clusters that a path may lead to.
fn clusters(picture: &Picture, path: &str) -> Vec<String> {
    match route(&picture.roots, path, None) {
        None | Some(Way::Nowhere) => Vec::new(),
        Some(Way::To(cluster)) => vec![cluster.to_owned()],
        Some(Way::Split(clusters)) => clusters.into_iter().map(|(cluster, _)| cluster.to_owned()).collect(),
    }
}
