//! What must hold, from what the planes told and the client holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::serve::{ChainRoutes, Refusal};
use mainstay_xds::Time;
use mainstay_xds::client::ResourceStatus;
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::ResourceType;
use mainstay_xds::serve::{ListenerId, Output, Serving, ServingState};

use super::{
    Address, Connection, Defect, Drain, Invariant, Kind, ListenerSpec, Live, Mark, RoutesSpec, Violation, World,
    route_name,
};

/// What must become of an RPC on a chain whose routes are these.
pub(super) fn outcome(serving: &Serving, chain: usize, path: &str) -> Result<(), Refusal> {
    if path != "/service/method" {
        return Err(Refusal::Path);
    }
    match serving.routes.get(chain) {
        Some(Ok(routes)) => match mark_of(&routes.virtual_hosts[0].name) % 2 {
            0 => Ok(()),
            _ => Err(Refusal::Action("redirect")),
        },
        Some(Err(_)) | None => Err(Refusal::NoRoutes),
    }
}

fn mark_of(name: &str) -> Mark {
    name.parse().expect("hosts are named by their mark")
}

/// What the client holds of what an address needs.
struct Held<'a> {
    newest: Option<&'a ListenerSpec>,
    /// Each RouteConfiguration of the newest Listener.
    routes: BTreeMap<String, Option<&'a ResourceStatus>>,
    /// Whether all that is held is of one plane.
    is_clean: bool,
}

impl World {
    fn held<'a>(&'a self, dump: &'a [ResourceStatus], address: &Address) -> Held<'a> {
        let find = |kind: ResourceType, name: &str| {
            dump.iter().find(|status| status.resource.resource_type == kind && *status.resource.name == *name)
        };
        let listener = find(ResourceType::Listener, &address.name);
        let value = listener.and_then(|status| status.value.as_ref());
        let newest = value.and_then(|value| self.listeners.get(&value.bytes));
        let names: BTreeSet<_> = newest.into_iter().flat_map(ListenerSpec::names).collect();
        let routes: BTreeMap<_, _> =
            names.into_iter().map(|name| (name.clone(), find(ResourceType::RouteConfig, &name))).collect();
        let of_routes = routes.values().filter_map(|status| status.as_ref()?.value.as_ref());
        let servers: BTreeSet<_> =
            value.into_iter().chain(of_routes).map(|value| &value.provenance.server.server_uri).collect();
        Held { newest, routes, is_clean: servers.len() < 2 }
    }

    /// The core wants this to be served.
    pub(super) fn publish(&mut self, id: ListenerId, serving: Option<Arc<Serving>>) -> Result<(), Violation> {
        let dump = self.core.client().dump();
        let Some(address) = self.addresses.get(&id) else { return Ok(()) };
        let Some(serving) = serving else {
            let held = self.held(&dump, address).newest.filter(|newest| newest.is_usable());
            Invariant::Generations.holds(held.is_none(), || {
                format!("{}: nothing is served any more, and the client has {held:?} (S-6)", id.0)
            })?;
            self.note(|| format!("  > {}: publish nothing", id.0));
            if let Some(address) = self.addresses.get_mut(&id) {
                address.published = None;
                address.failed = address.failed.filter(|listen| !listen); // Nobody wants it any more.
            }
            return Ok(());
        };
        let generation = serving.generation;
        let known = address.generations.get(&generation).map(|live| live.spec.clone());
        let before = address.published;
        let spec = match known {
            Some(spec) => {
                Invariant::Generations
                    .holds(before == Some(generation), || format!("{generation:?} comes back after it was replaced"))?;
                self.history.routes += 1;
                spec
            }
            None => {
                let held = self.held(&dump, address);
                let Some(newest) = held.newest.filter(|newest| newest.is_usable()) else {
                    return Err(Invariant::Generations.broken("something is served that the client does not have"));
                };
                let in_force = before.and_then(|before| address.generations.get(&before));
                Invariant::Generations.holds(in_force.is_none_or(|live| live.spec != *newest), || {
                    format!("an equal Listener is another generation: {newest:?} (SV-12)")
                })?;
                let in_trouble = self.core.client().server_states().iter().any(|server| server.last_error.is_some());
                for (name, status) in &held.routes {
                    let is_answered = status.is_some_and(|status| status.value.is_some() || status.error.is_some());
                    Invariant::Generations.holds(is_answered || (in_force.is_none() && in_trouble), || {
                        format!("{newest:?} is served before {name} was loaded (SV-11)")
                    })?;
                }
                Invariant::Generations.holds(serving.mixed_sources != held.is_clean, || {
                    format!("mixed: {}, and of one plane: {}", serving.mixed_sources, held.is_clean)
                })?;
                let newest = newest.clone();
                self.history.mixed += u64::from(serving.mixed_sources);
                self.history.generations += 1;
                newest
            }
        };
        self.note(|| format!("  > {}: publish {generation:?} {spec:?}", id.0));
        let chains = serving
            .chains()
            .map(|(chain, routes)| ChainRoutes::new(&chain.http, routes.as_ref().ok().map(|routes| &**routes)));
        let live = Live { spec, chains: chains.collect(), serving: serving.clone(), drain: None };
        let Some(address) = self.addresses.get_mut(&id) else { return Ok(()) };
        let drain = address.generations.get(&generation).and_then(|live| live.drain);
        address.generations.insert(generation, Live { drain, ..live });
        address.published = Some(generation);
        Ok(())
    }

    pub(super) fn drain(&mut self, id: ListenerId, drain: Drain) -> Result<(), Violation> {
        self.note(|| format!("  > {}: drain {:?}", id.0, drain.generation));
        let now = self.now;
        let ends = self.defect == Some(Defect::EndsConnections);
        let at_once = self.defect == Some(Defect::DrainsAtOnce);
        let Some(address) = self.addresses.get_mut(&id) else { return Ok(()) };
        Invariant::Generations.holds(address.published != Some(drain.generation) || address.is_shut_down, || {
            format!("{:?} is in force, and drained", drain.generation)
        })?;
        let Some(live) = address.generations.get_mut(&drain.generation) else {
            return Err(Invariant::Generations.broken("what never was in force is drained"));
        };
        Invariant::Generations.holds(live.drain.is_none(), || format!("{:?} is drained twice", drain.generation))?;
        Invariant::Generations
            .holds((drain.at, drain.until) == (now, now + GRACE), || format!("{drain:?} at {now:?}"))?;
        live.drain = Some(drain);
        let of_generation = |connection: &&mut Connection| connection.generation == drain.generation;
        let count = address.connections.iter_mut().filter(of_generation).count();
        let mut hasty = 0;
        for connection in address.connections.iter_mut().filter(of_generation) {
            let at = if at_once { drain.at } else { drain.goaway_at(count, &mut self.draw) };
            let latest = if count > 100 { drain.at + Duration::from_secs(1) } else { drain.at };
            Invariant::Traffic.holds(at >= drain.at && at <= latest, || format!("one of {count} is told at {at:?}"))?;
            hasty += usize::from(at < drain.at + Duration::from_millis(100));
            connection.goaway_at = Some(at);
            self.history.drained += 1;
        }
        Invariant::Traffic.holds(count <= 100 || hasty < count / 2, || {
            format!("{hasty} of {count} connections are told within a tenth of the time that there is (SV-23)")
        })?;
        if ends {
            Invariant::Traffic.holds(count == 0 || drain.until <= now, || {
                format!("{count} connections end with their Listener, and so do their RPCs (SV-5)")
            })?;
        }
        Ok(())
    }

    pub(super) fn tell(&mut self, id: ListenerId, state: ServingState) -> Result<(), Violation> {
        self.note(|| format!("  > {}: {state:?}", id.0));
        let Some(address) = self.addresses.get_mut(&id) else { return Ok(()) };
        Invariant::Ports.holds(address.state != state, || format!("{state:?} is told twice (SV-13)"))?;
        if let ServingState::NotServing(why) = &state {
            let text = why.to_string();
            let says =
                text.contains(&*address.name) || text.contains("listen on 10.0.0.1") || text.contains("shut down");
            Invariant::Ports.holds(says, || format!("{text:?} does not say what is wrong with what (SV-13)"))?;
        }
        self.history.served += u64::from(state.is_serving());
        address.state = state;
        Ok(())
    }

    /// What must hold whenever the core has nothing left to do.
    pub(super) fn judge(&mut self) -> Result<(), Violation> {
        let dump = self.core.client().dump();
        let mut needed = BTreeSet::new();
        let mut mixed = Vec::new();
        for (id, address) in &self.addresses {
            let held = self.held(&dump, address);
            self.judge_port(*id, address)?;
            let since = if held.is_clean { None } else { Some(address.mixed_since.unwrap_or(self.now)) };
            mixed.push((*id, since));
            let in_force = address.published.and_then(|generation| address.generations.get(&generation));
            for (generation, live) in &address.generations {
                let is_old = address.published != Some(*generation) || address.is_shut_down;
                Invariant::Generations.holds(live.drain.is_some() == is_old, || {
                    format!("{}: {generation:?} is drained: {}, and replaced: {is_old}", id.0, live.drain.is_some())
                })?;
            }
            needed.insert(address.name.to_string());
            needed.extend(in_force.into_iter().flat_map(|live| live.spec.names()));
            if address.is_shut_down {
                continue;
            }
            let usable = held.newest.filter(|newest| newest.is_usable());
            needed.extend(usable.into_iter().flat_map(ListenerSpec::names));
            self.judge_newest(*id, &held, usable, in_force, since)?;
        }
        for (id, since) in mixed {
            if let Some(address) = self.addresses.get_mut(&id) {
                address.mixed_since = since;
            }
        }
        let watched: BTreeSet<String> = dump.iter().map(|status| status.resource.name.to_string()).collect();
        let spare: Vec<_> = watched.difference(&needed).collect();
        // What a server that is shut down needed last stays watched.
        let is_shut_down = self.addresses.values().any(|address| address.is_shut_down);
        Invariant::Watches
            .holds(spare.is_empty() || is_shut_down, || format!("{spare:?} are watched and not needed"))?;
        let missing: Vec<_> = needed.difference(&watched).collect();
        Invariant::Watches.holds(missing.is_empty(), || format!("{missing:?} are needed and not watched"))
    }

    /// A port is open exactly while its address is served (SV-5).
    fn judge_port(&self, id: ListenerId, address: &Address) -> Result<(), Violation> {
        Invariant::Ports.holds(self.core.state(id) == Some(&address.state), || "another state was told".to_owned())?;
        let is_serving = address.state.is_serving();
        let is_quiet = address.asked.is_none() && address.failed.is_none();
        Invariant::Ports.holds(!is_quiet || address.is_open == is_serving, || {
            format!("{}: the port is open: {}, and told is {:?}", id.0, address.is_open, address.state)
        })?;
        // While it is asked to stop it may be open still; nothing else excuses it.
        let is_stopping = address.asked.is_some();
        Invariant::Ports.holds(is_serving || !address.is_open || is_stopping, || {
            format!("{}: the port is open, and told is {:?}", id.0, address.state)
        })?;
        let wants = address.published.is_some() && !address.is_shut_down;
        Invariant::Ports.holds(!is_quiet || wants == is_serving, || {
            format!("{}: something is in force: {wants}, and told is {:?}", id.0, address.state)
        })
    }

    /// What the client holds is in force, if it is whole (SV-11).
    fn judge_newest(
        &self,
        id: ListenerId,
        held: &Held<'_>,
        usable: Option<&ListenerSpec>,
        in_force: Option<&Live>,
        mixed_since: Option<Time>,
    ) -> Result<(), Violation> {
        let Some(newest) = usable else {
            return Invariant::Generations.holds(in_force.is_none(), || {
                format!(
                    "{}: {:?} is in force, and the client has {:?}",
                    id.0,
                    in_force.map(|live| &live.spec),
                    held.newest
                )
            });
        };
        let is_answered = |status: &Option<&ResourceStatus>| {
            status.is_some_and(|status| status.value.is_some() || status.error.is_some())
        };
        let is_whole = held.routes.values().all(is_answered);
        let may_wait = mixed_since.is_some_and(|since| self.now.since(since) <= 2 * SWITCH);
        if !is_whole || may_wait {
            return Ok(());
        }
        let Some(live) = in_force.filter(|live| live.spec == *newest) else {
            return Err(Invariant::Generations.broken(format!(
                "{}: {newest:?} is there with its routes, and in force is {:?}",
                id.0,
                in_force.map(|live| &live.spec)
            )));
        };
        for (place, chain) in newest.all_chains().enumerate() {
            let expected = match &chain.routes {
                RoutesSpec::Inline(mark) => Some(*mark),
                RoutesSpec::Rds(number) => {
                    let status = held.routes.get(&route_name(*number)).copied().flatten();
                    status.and_then(|status| self.marks.get(&status.value.as_ref()?.bytes)).copied()
                }
            };
            let published = live.serving.routes.get(place).and_then(|routes| routes.as_ref().ok());
            let published = published.map(|routes| mark_of(&routes.virtual_hosts[0].name));
            Invariant::Generations.holds(published == expected, || {
                format!("{}: chain {place} of {newest:?} has routes {published:?}: expected {expected:?}", id.0)
            })?;
        }
        Ok(())
    }

    /// When everything works, all is as the first plane says.
    pub(super) fn converge(&mut self) -> Result<(), Violation> {
        self.note(|| "everything works".to_owned());
        self.up.fill(true);
        for _ in 0..200 {
            while self.links.iter().any(|(_, (plane, session))| session.has_news(&self.planes[*plane])) {
                self.respond(false)?;
                self.settle()?;
            }
            while let Some((id, listen)) = self.addresses.iter().find_map(|(id, address)| Some((*id, address.asked?))) {
                if let Some(address) = self.addresses.get_mut(&id) {
                    address.asked = None;
                    address.is_open = listen;
                }
                self.core.handle_socket(self.now, id, Ok(()));
                self.settle()?;
            }
            self.now = self.now + Duration::from_secs(1);
            self.core.handle_timeout(self.now, &mut self.draw);
            self.expire();
            self.settle()?;
        }
        for (id, address) in &self.addresses {
            Invariant::Convergence
                .holds(address.failed.is_none(), || format!("{}: a socket that failed is given up", id.0))?;
        }
        for (id, address) in self.addresses.iter().filter(|(_, address)| !address.is_shut_down) {
            let key = ResourceKey { resource_type: ResourceType::Listener, name: address.name.clone() };
            let Some(told) = self.planes[0].truth.resources.get(&key) else { continue };
            let Some(spec) = self.listeners.get(&told.bytes).filter(|spec| spec.kind != Kind::Invalid) else {
                continue;
            };
            Invariant::Convergence.holds(address.is_open == spec.is_usable(), || {
                format!("{}: the port is open: {}, and {spec:?} is told by the first plane", id.0, address.is_open)
            })?;
        }
        Ok(())
    }

    /// After the last address nothing is left.
    pub(super) fn end(&mut self) -> Result<(), Violation> {
        let ids: Vec<_> = self.addresses.keys().copied().collect();
        for id in ids {
            self.core.remove(self.now, id);
            while let Output::Do(action) = self.core.poll_output() {
                self.act(action)?;
            }
            self.addresses.remove(&id);
        }
        let deadline = match self.core.poll_output() {
            Output::Wait(deadline) => deadline,
            Output::Do(action) => return Err(Invariant::Leak.broken(format!("{action:?} is left to do"))),
        };
        let is_idle = self.links.is_empty() && deadline.is_none() && self.core.client().is_idle();
        Invariant::Leak
            .holds(is_idle, || format!("{} streams are left, and a deadline: {deadline:?}", self.links.len()))
    }
}

/// What A36 gives connections to end.
const GRACE: Duration = Duration::from_secs(600);

/// How long a mixture may be held back.
const SWITCH: Duration = Duration::from_secs(15);
