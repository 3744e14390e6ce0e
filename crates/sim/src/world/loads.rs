//! Streams of load reports (C-66 to C-82).

use std::collections::BTreeMap;

use envoy_types::pb::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use envoy_types::pb::google::protobuf::Duration;
use mainstay_lb::Input;
use mainstay_xds::client::{CloseCause, Event, StreamId};
use mainstay_xds::lrs::Action;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::{Choose, Time};
use prost::Message;

use super::World;
use crate::invariant::{Invariant, Violation};
use crate::oracle::picture::Part;
use crate::plane::{Net, Plane};
use crate::resources::Spec;

/// The streams of load reports, and what was reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loads {
    streams: BTreeMap<StreamId, Load>,
    /// How many RPCs were sent to each leaf cluster.
    picked: BTreeMap<String, u64>,
    /// How often another configuration was put in force, and until when RPCs may still go by the one before.
    epoch: u64,
    warm_until: Option<Time>,
}

/// One stream.
#[derive(Clone, Debug)]
struct Load {
    plane: usize,
    is_open: bool,
    unsent: bool,
    greeted: bool,
    answered: bool,
    /// When the last report was made, and what had been counted then.
    last: Option<(Time, u64, BTreeMap<String, u64>)>,
}

impl Loads {
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// An RPC is sent to a leaf cluster.
    pub(crate) fn picked(&mut self, cluster: &str) {
        match self.picked.get_mut(cluster) {
            Some(count) => *count += 1,
            None => drop(self.picked.insert(cluster.to_owned(), 1)),
        }
    }

    /// Another configuration is in force: who reports what may be different.
    pub(crate) fn reconfigured(&mut self, warm_until: Time) {
        self.epoch += 1;
        self.warm_until = Some(warm_until);
    }

    /// Streams that can take a step.
    pub(crate) fn under_way(&self, planes: &[Plane]) -> impl Iterator<Item = StreamId> {
        let can_go_on = |load: &Load| {
            let plane = &planes[load.plane];
            plane.net != Net::BlackHole
                && (!load.is_open || load.unsent || (load.greeted && !load.answered && !plane.mute))
        };
        self.streams.iter().filter(move |(_, load)| can_go_on(load)).map(|(id, _)| *id)
    }
}

impl World {
    /// The core does something about load reports.
    pub(crate) fn load(&mut self, action: Action) -> Result<(), Violation> {
        match action {
            Action::Open { stream, server, .. } => {
                let plane = self.scenario.plane_of(&server);
                let plane = plane.ok_or_else(|| Invariant::Loads.broken("load is reported to an unknown server"))?;
                let twice = self.loads.streams.values().any(|load| load.plane == plane);
                Invariant::Loads.holds(!twice, || format!("two streams of load reports to {}", server.server_uri))?;
                let load = Load { plane, is_open: false, unsent: false, greeted: false, answered: false, last: None };
                self.loads.streams.insert(stream, load);
            }
            Action::Send(stream, bytes) => {
                let request = LoadStatsRequest::decode(bytes);
                let request = request.map_err(|error| Invariant::Loads.broken(format!("not a report: {error}")))?;
                let Some(load) = self.loads.streams.get_mut(&stream).filter(|load| load.is_open) else {
                    return Err(Invariant::Loads.broken("a report on a stream that is not open"));
                };
                let plane = load.plane;
                let first = !std::mem::replace(&mut load.greeted, true);
                Invariant::Loads.holds(first == request.node.is_some() && (first || load.answered), || {
                    "the first request says who we are, and reports follow when they are wanted (C-71)".to_owned()
                })?;
                Invariant::Loads.holds(!load.unsent, || "a second report before the first one left".to_owned())?;
                load.unsent = true;
                if first {
                    return Ok(());
                }
                let Loads { picked, epoch, warm_until, .. } = &self.loads;
                let before = load_of(&self.loads, stream).and_then(|load| load.last.clone());
                let same =
                    |(at, then, _): &&(Time, u64, _)| then == epoch && warm_until.is_none_or(|until| until < *at);
                for stats in &request.cluster_stats {
                    let issued: u64 = stats.upstream_locality_stats.iter().map(|l| l.total_issued_requests).sum();
                    let Some((_, _, then)) = before.as_ref().filter(same) else { continue };
                    let Some(reports) = self.reports_load(&stats.cluster_name, plane) else { continue };
                    let count =
                        |counts: &BTreeMap<String, u64>| counts.get(&stats.cluster_name).copied().unwrap_or_default();
                    // A cluster that reports no more is told of only while RPCs from before go on.
                    let expected = if reports { count(picked) - count(then) } else { 0 };
                    Invariant::Loads.holds(issued == expected, || {
                        format!("{issued} RPCs to {} are reported, and {expected} were sent", stats.cluster_name)
                    })?;
                }
                let soon = before.as_ref().is_some_and(|(then, _, _)| self.now.since(*then) < INTERVAL);
                Invariant::Loads.holds(!soon, || "a report before its time (C-73)".to_owned())?;
                let last = Some((self.now, *epoch, picked.clone()));
                if let Some(load) = self.loads.streams.get_mut(&stream) {
                    load.last = last;
                }
            }
            Action::Close(stream) => {
                let was_there = self.loads.streams.remove(&stream).is_some();
                Invariant::Loads.holds(was_there, || "a stream of load reports was closed twice".to_owned())?;
            }
        }
        Ok(())
    }

    /// Whether a cluster in force reports its load to a control plane; `None` if what that said last is not in force, or
    /// another tells of the cluster.
    fn reports_load(&self, cluster: &str, plane: usize) -> Option<bool> {
        let (client, config) = &**self.oracle.as_ref()?;
        let key = ResourceKey { resource_type: ResourceType::Cluster, name: cluster.into() };
        let held = client.entries.get(&key)?.held.as_ref().filter(|held| held.plane == plane)?;
        let part = config.picture.as_ref()?.parts.get(cluster)?;
        match (held.told.spec.as_ref()?, part) {
            (Spec::Eds { mark, lb, .. }, Part::Leaf(in_force, _)) if mark == in_force => Some(lb.reports_load),
            _ => None,
        }
    }

    /// A stream of load reports takes its next step.
    pub(crate) fn load_goes_on(&mut self, choose: &mut dyn Choose, id: StreamId) {
        let Some(plane) = self.loads.streams.get(&id).map(|load| load.plane) else { return };
        let refuses = self.planes()[plane].net == Net::Refusing;
        let Some(load) = self.loads.streams.get_mut(&id) else { return };
        let event = if !load.is_open {
            if refuses {
                self.loads.streams.remove(&id);
                Event::Closed(id, CloseCause::ConnectFailed("connection refused".to_owned()))
            } else {
                load.is_open = true;
                Event::Opened(id)
            }
        } else if load.unsent {
            load.unsent = false;
            Event::Sent(id)
        } else {
            load.answered = true;
            let response = LoadStatsResponse {
                send_all_clusters: true,
                load_reporting_interval: Some(Duration { seconds: 10, nanos: 0 }),
                ..LoadStatsResponse::default()
            };
            Event::Received(id, response.encode_to_vec().into())
        };
        self.hear_of_load(choose, event);
    }

    /// The streams to a control plane break.
    pub(crate) fn lose_loads(&mut self, choose: &mut dyn Choose, plane: usize) {
        let lost: Vec<_> =
            self.loads.streams.iter().filter(|(_, load)| load.plane == plane).map(|(id, _)| *id).collect();
        for id in lost {
            self.loads.streams.remove(&id);
            self.hear_of_load(choose, Event::Closed(id, CloseCause::ConnectionLost("connection reset".to_owned())));
        }
    }

    fn hear_of_load(&mut self, choose: &mut dyn Choose, event: Event) {
        self.input(choose, Input::Load(event));
    }
}

fn load_of(loads: &Loads, stream: StreamId) -> Option<&Load> {
    loads.streams.get(&stream)
}

/// How often control planes want to hear.
const INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);
