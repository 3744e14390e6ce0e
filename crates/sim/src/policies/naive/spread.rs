//! The policies that spread load over endpoints (L-99 to L-120).

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderName;
use mainstay_lb::Observation;
use mainstay_xds::Time;
use mainstay_xds::resource::endpoint::Locality;
use mainstay_xds::resource::lb_policy::{LbPolicy, WeightedRoundRobinConfig};
use xxhash_rust::xxh64::xxh64;

use super::machine::{Machine, in_turn};
use super::pick::{Picker, Position, Spot, Turn};
use super::roster::{Member, Roster};
use super::switch::{OfKind, Switch};
use super::{Addr, Area, Connections, Deadline, Env, Kind, Part, Policy, Site, State, What, Who, weights};

/// A policy that spreads load over endpoints.
#[derive(Clone, Debug)]
pub(super) enum Spread {
    RoundRobin {
        roster: Roster,
        start: u64,
    },
    LeastRequest {
        roster: Roster,
        choices: u8,
    },
    Ring {
        roster: Roster,
        sizes: (u32, u32),
        header: Option<HeaderName>,
    },
    Weighted {
        roster: Roster,
        config: WeightedRoundRobinConfig,
        of: (Arc<str>, Option<Arc<Locality>>),
        due: Time,
        turn: u64,
    },
    Subset {
        seed: u64,
        child: Box<Switch<Spread>>,
    },
    First(Machine),
    Localities(BTreeMap<Arc<Locality>, Target>),
}

/// A locality of wrr_locality.
#[derive(Clone, Debug)]
pub(super) struct Target {
    weight: u32,
    part: Part,
    policy: Switch<Spread>,
    failing: bool,
}

impl OfKind for Spread {
    fn fits(&self, part: &Part) -> bool {
        match self {
            Self::RoundRobin { .. } => matches!(part.lb, LbPolicy::RoundRobin),
            Self::LeastRequest { .. } => matches!(part.lb, LbPolicy::LeastRequest { .. }),
            Self::Ring { .. } => matches!(part.lb, LbPolicy::RingHash(_)),
            Self::Weighted { .. } => matches!(part.lb, LbPolicy::WeightedRoundRobin(_)),
            Self::Subset { .. } => matches!(part.lb, LbPolicy::RandomSubsetting { .. }),
            Self::First(_) => matches!(part.lb, LbPolicy::PickFirst { .. }),
            Self::Localities(_) => matches!(part.lb, LbPolicy::WrrLocality(_)),
        }
    }
}

impl Policy for Spread {
    type Config = Part;

    fn new(env: &mut Env<'_>, part: &Part) -> Self {
        let mut policy = match &part.lb {
            LbPolicy::LeastRequest { choices } => {
                Self::LeastRequest { roster: Roster::new(env, false), choices: *choices }
            }
            LbPolicy::RingHash(_) => Self::Ring { roster: Roster::new(env, true), sizes: (0, 0), header: None },
            LbPolicy::WeightedRoundRobin(config) => {
                let (roster, turn) = (Roster::new(env, false), env.books.new_number());
                let first = env.chance.choose(1 << 32);
                env.books.turns.insert(turn, first);
                Self::Weighted { roster, config: (**config).clone(), of: Default::default(), due: env.now, turn }
            }
            LbPolicy::RandomSubsetting { .. } => {
                let seed = env.chance.choose(u64::MAX);
                let child = Box::new(Switch::new(env, &subset(part, seed)));
                return Self::Subset { seed, child };
            }
            LbPolicy::PickFirst { .. } => {
                let mut machine = Machine::new(env.new_who(), false);
                machine.lazy = true;
                Self::First(machine)
            }
            LbPolicy::WrrLocality(_) => Self::Localities(BTreeMap::new()),
            _ => Self::RoundRobin { roster: Roster::new(env, false), start: 0 },
        };
        policy.take_in(env, part, true);
        policy
    }

    fn update(&mut self, env: &mut Env<'_>, part: &Part) {
        self.take_in(env, part, false);
    }

    fn handle(&mut self, env: &mut Env<'_>, who: Who, what: &What) -> bool {
        match self {
            Self::Subset { child, .. } => return child.handle(env, who, what),
            Self::First(machine) => {
                if machine.who.policy == who.policy {
                    machine.handle(env, what);
                }
                return machine.who.policy == who.policy;
            }
            Self::Localities(targets) => {
                let found = targets.values_mut().find_map(|target| {
                    let handled = target.policy.handle(env, who, what);
                    handled.then_some(target)
                });
                let handled = found.is_some();
                found.into_iter().for_each(|target| target.settle(env));
                return handled;
            }
            Self::Weighted { roster, config, due, .. } if roster.who == who && *what == What::Timer(Kind::Weights) => {
                *due = env.now + config.weight_update_period;
                self.look(env);
                return true;
            }
            Self::RoundRobin { .. } | Self::LeastRequest { .. } | Self::Ring { .. } | Self::Weighted { .. } => {}
        }
        let Some(roster) = self.roster_mut().filter(|roster| roster.who.policy == who.policy) else { return false };
        let change = roster.tell(env, who.slot, what);
        let about_ready = change.is_some_and(|(a, b)| (a == State::Ready) != (b == State::Ready));
        if about_ready {
            self.look(env);
            self.draw_start(env);
        }
        self.keep_trying(env);
        true
    }

    fn exit_idle(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Subset { child, .. } => child.exit_idle(env),
            Self::First(machine) => machine.handle(env, &What::Wake),
            Self::Ring { .. } if self.state() == State::Idle => {
                self.wake_any(env);
                self.keep_trying(env);
            }
            Self::RoundRobin { .. }
            | Self::LeastRequest { .. }
            | Self::Ring { .. }
            | Self::Weighted { .. }
            | Self::Localities(_) => {}
        }
    }

    fn serves(&self, who: Who) -> bool {
        match self {
            Self::Subset { child, .. } => child.serves(who),
            Self::First(machine) => machine.who == who && machine.state() == State::Ready,
            Self::Localities(targets) => targets.values().any(|target| target.policy.serves(who)),
            Self::RoundRobin { .. } | Self::LeastRequest { .. } | Self::Ring { .. } | Self::Weighted { .. } => {
                self.roster().is_some_and(|roster| roster.serves(who))
            }
        }
    }

    fn keeps(&self, connections: &Connections, part: &Part) -> bool {
        match self {
            Self::Subset { seed, child } => child.keeps(connections, &subset(part, *seed)),
            Self::RoundRobin { .. }
            | Self::LeastRequest { .. }
            | Self::Ring { .. }
            | Self::Weighted { .. }
            | Self::First(_)
            | Self::Localities(_) => part.has_any(connections, |who| self.serves(who)),
        }
    }

    fn close(&mut self, env: &mut Env<'_>) {
        match self {
            Self::Subset { child, .. } => child.close(env),
            Self::First(machine) => machine.close(env),
            Self::Localities(targets) => targets.values_mut().for_each(|target| target.policy.close(env)),
            Self::RoundRobin { .. } | Self::LeastRequest { .. } | Self::Ring { .. } | Self::Weighted { .. } => {
                self.roster_mut().into_iter().for_each(|roster| roster.close(env))
            }
        }
    }

    fn state(&self) -> State {
        match self {
            Self::Subset { child, .. } => child.state(),
            Self::First(machine) => machine.state(),
            Self::Localities(targets) => {
                let any = |state| targets.values().any(|target| target.state() == state);
                let order = [State::Ready, State::Connecting, State::Idle];
                order.into_iter().find(|state| any(*state)).unwrap_or(State::Failing)
            }
            // L-114.
            Self::Ring { roster, .. } => {
                if roster.count(State::Ready) > 0 {
                    State::Ready
                } else if roster.count(State::Failing) > 1 {
                    State::Failing
                } else if roster.count(State::Connecting) > 0
                    || (roster.count(State::Failing) == 1 && roster.members.len() > 1)
                {
                    State::Connecting
                } else if roster.count(State::Idle) > 0 {
                    State::Idle
                } else {
                    State::Failing
                }
            }
            Self::RoundRobin { roster, .. } | Self::LeastRequest { roster, .. } | Self::Weighted { roster, .. } => {
                roster.state()
            }
        }
    }

    fn picker(&self, connections: &Connections) -> Picker {
        let state = self.state();
        match self {
            Self::Subset { child, .. } => child.picker(connections),
            Self::First(machine) => match state {
                State::Ready => machine.ready().map_or(Picker::Wait(Vec::new()), Picker::One),
                State::Failing if machine.list.is_empty() => Picker::Fail(vec!["no endpoints".into()]),
                State::Failing => Picker::Fail(machine.error(connections).into_iter().collect()),
                State::Idle => Picker::Idle(machine.who),
                State::Connecting => Picker::Wait(vec![format!("{} addresses", machine.list.len())]),
            },
            Self::Localities(targets) => of_localities(targets, state, connections),
            Self::Ring { roster, sizes, header } => {
                if roster.count(State::Failing) == roster.members.len() {
                    return Picker::Fail(roster.text(connections));
                }
                let members = roster.in_order();
                let places: Vec<(String, u32)> = members.iter().map(|m| (m.key.clone(), m.weight)).collect();
                let spot = |member: &&Member| match member.machine.state() {
                    State::Ready => member.machine.ready().map_or(Spot::Connecting, Spot::Ready),
                    State::Connecting => Spot::Connecting,
                    State::Idle => Spot::Idle(member.machine.who),
                    State::Failing => Spot::Failing,
                };
                let ring = weights::ring(&places, sizes.0, sizes.1);
                Picker::Ring { ring, spots: members.iter().map(spot).collect(), header: header.clone() }
            }
            Self::RoundRobin { roster, .. } | Self::LeastRequest { roster, .. } | Self::Weighted { roster, .. }
                if state != State::Ready =>
            {
                let text = roster.text(connections);
                if state == State::Failing { Picker::Fail(text) } else { Picker::Wait(text) }
            }
            Self::RoundRobin { roster, start } => {
                let ready = roster.in_order().into_iter().filter_map(|member| member.machine.ready()).collect();
                Picker::InTurn(ready, Position(*start))
            }
            Self::LeastRequest { roster, choices } => {
                let of = |member: &Member| Some((member.machine.ready()?, member.under_way));
                Picker::Least(roster.in_order().into_iter().filter_map(of).collect(), *choices)
            }
            Self::Weighted { roster, config, turn, .. } => {
                let with_rpcs = config.oob_reporting_period.is_none();
                let of = |member: &Member| {
                    let ready = member.machine.ready()?;
                    let book = member.load.book.filter(|_| with_rpcs);
                    Some(((ready, book.map(|book| (book, config.weighing.clone()))), member.load.weight))
                };
                let (ready, weights): (Vec<_>, Vec<_>) = roster.in_order().into_iter().filter_map(of).unzip();
                Picker::Stride { ready, strides: weights::strides(&weights), turn: Turn(*turn) }
            }
        }
    }

    fn deadlines(&self, into: &mut Vec<Deadline>) {
        match self {
            Self::Subset { child, .. } => child.deadlines(into),
            Self::First(machine) => machine.deadlines(into),
            Self::Localities(targets) => targets.values().for_each(|target| target.policy.deadlines(into)),
            Self::RoundRobin { .. } | Self::LeastRequest { .. } | Self::Ring { .. } | Self::Weighted { .. } => {
                self.roster().into_iter().for_each(|roster| roster.deadlines(into))
            }
        }
        if let Self::Weighted { roster, due, .. } = self {
            into.push((*due, roster.who, Kind::Weights));
        }
    }
}

impl Spread {
    fn roster(&self) -> Option<&Roster> {
        match self {
            Self::RoundRobin { roster, .. }
            | Self::LeastRequest { roster, .. }
            | Self::Ring { roster, .. }
            | Self::Weighted { roster, .. } => Some(roster),
            Self::Subset { .. } | Self::First(_) | Self::Localities(_) => None,
        }
    }

    fn roster_mut(&mut self) -> Option<&mut Roster> {
        match self {
            Self::RoundRobin { roster, .. }
            | Self::LeastRequest { roster, .. }
            | Self::Ring { roster, .. }
            | Self::Weighted { roster, .. } => Some(roster),
            Self::Subset { .. } | Self::First(_) | Self::Localities(_) => None,
        }
    }

    fn take_in(&mut self, env: &mut Env<'_>, part: &Part, is_new: bool) {
        let sites = part.sites();
        match (&mut *self, &part.lb) {
            (Self::RoundRobin { roster, .. }, _) => {
                roster.update(env, &sites, |_, _| {});
                self.draw_start(env);
            }
            (Self::LeastRequest { roster, choices }, LbPolicy::LeastRequest { choices: new }) => {
                *choices = *new;
                roster.update(env, &sites, |_, _| {});
            }
            (Self::Ring { roster, sizes, header }, LbPolicy::RingHash(settings)) => {
                *sizes = (settings.min_ring_size, settings.max_ring_size);
                *header = settings.request_hash_header.as_ref().and_then(|name| name.parse().ok());
                roster.members.iter_mut().for_each(|member| member.weight = 0);
                let mut weights = weights::of_endpoints(part).into_iter();
                roster.update(env, &sites, |member, site| {
                    member.weight = member.weight.saturating_add(weights.next().unwrap_or(1));
                    let own = site.endpoint.hash_key().filter(|key| !key.is_empty());
                    member.key = own.map_or_else(|| site.addresses[0].key.0.to_string(), |key| key.to_string());
                });
                self.keep_trying(env);
            }
            (Self::Weighted { roster, config, of, due, .. }, LbPolicy::WeightedRoundRobin(new)) => {
                let other_rules =
                    (&config.weighing, config.oob_reporting_period) != (&new.weighing, new.oob_reporting_period);
                *config = (**new).clone();
                let cluster = part.localities.first().map(|area| area.cluster.clone()).unwrap_or_default();
                let locality = (part.localities.len() == 1).then(|| part.localities[0].locality.clone());
                *of = (cluster, locality);
                let mut books: Vec<u64> = sites.iter().map(|_| env.books.new_number()).collect();
                env.books.weighing.extend(books.iter().map(|book| (*book, new.weighing.clone())));
                roster.update(env, &sites, |member, _| {
                    let book = books.pop();
                    if is_new || other_rules || member.load.book.is_none() {
                        (member.load.book, member.load.seen, member.load.watched) = (book, 0, false);
                    }
                });
                *due = env.now + new.weight_update_period;
                self.look(env);
            }
            (Self::Subset { seed, child }, _) => child.update(env, &subset(part, *seed)),
            (Self::First(machine), LbPolicy::PickFirst { shuffle }) => {
                let mut sites: Vec<Site> = sites;
                if *shuffle {
                    sites = shuffled(part, env);
                }
                let addresses: Vec<Addr> = sites.into_iter().flat_map(|site| site.addresses).collect();
                machine.update(env, &in_turn(&addresses));
            }
            (Self::Localities(targets), LbPolicy::WrrLocality(child)) => {
                let mut old = std::mem::take(targets);
                for area in &part.localities {
                    if area.sites().is_empty() || targets.contains_key(&area.locality) {
                        continue;
                    }
                    let localities = vec![Area { weight: 1, ..area.clone() }];
                    let part = Part { lb: (**child).clone(), localities, counted: part.counted };
                    let mut target = match old.remove(&area.locality) {
                        Some(mut target) => {
                            if target.part != part {
                                target.policy.update(env, &part);
                            }
                            Target { weight: area.weight, part, ..target }
                        }
                        None => {
                            let policy = Switch::new(env, &part);
                            Target { weight: area.weight, part, policy, failing: false }
                        }
                    };
                    target.settle(env);
                    targets.insert(area.locality.clone(), target);
                }
                old.values_mut().for_each(|gone| gone.policy.close(env));
            }
            _ => {}
        }
    }

    /// L-103: somewhere among those that are ready.
    fn draw_start(&mut self, env: &mut Env<'_>) {
        if let Self::RoundRobin { roster, start } = self {
            let ready = roster.count(State::Ready) as u64;
            *start = if ready > 1 { env.chance.choose(ready) } else { 0 };
        }
    }

    /// L-115: while it connects or fails, some endpoint connects, as long as one is left that can.
    fn keep_trying(&mut self, env: &mut Env<'_>) {
        loop {
            let Self::Ring { roster, .. } = &*self else { return };
            let connects = roster.count(State::Connecting) > 0 || roster.count(State::Idle) == 0;
            if connects || matches!(self.state(), State::Ready | State::Idle) {
                return;
            }
            self.wake_any(env);
        }
    }

    fn wake_any(&mut self, env: &mut Env<'_>) {
        let Self::Ring { roster, .. } = self else { return };
        let idle: Vec<u32> = roster
            .in_order()
            .into_iter()
            .filter(|member| member.machine.state() == State::Idle)
            .map(|member| member.machine.who.slot)
            .collect();
        let which = if idle.len() > 1 { env.chance.choose(idle.len() as u64) as usize } else { 0 };
        if let Some(slot) = idle.get(which) {
            roster.tell(env, *slot, &What::Wake);
        }
    }

    /// Weighs the endpoints of weighted_round_robin (L-107, L-108).
    fn look(&mut self, env: &mut Env<'_>) {
        let Self::Weighted { roster, config, of, .. } = self else { return };
        let (mut not_yet_usable, mut stale, mut weights) = (0, 0, Vec::new());
        for member in &mut roster.members {
            let (load, key) = (&mut member.load, member.machine.connected());
            let connection = key.as_ref().map(|key| env.connections.all[key].number);
            if load.connection != connection {
                (load.connection, load.since, load.watched) = (connection, None, false);
            }
            if let (Some(key), Some(book)) = (key, load.book) {
                let (count, weight) = env.books.reports.get(&book).copied().unwrap_or_default();
                if count != load.seen {
                    load.seen = count;
                    load.latest = Some((env.now, weight));
                    load.since.get_or_insert(env.now);
                }
                if let (Some(period), false) = (config.oob_reporting_period, load.watched) {
                    load.watched = true;
                    env.connections.watched.push((key, period, book));
                }
            }
            let is_new = |since: Option<Time>| since.is_none_or(|since| env.now.since(since) < config.blackout_period);
            let (mut is_stale, mut weight) = (false, None);
            if let Some((updated, latest)) = load.latest {
                is_stale = env.now.since(updated) >= config.weight_expiration_period;
                if is_stale {
                    load.since = None;
                } else if config.blackout_period.is_zero() || !is_new(load.since) {
                    weight = Some(latest);
                }
            }
            load.weight = weight;
            if member.machine.state() == State::Ready {
                stale += u64::from(is_stale);
                not_yet_usable += u64::from(!is_stale && weight.is_none());
                weights.push(weight.unwrap_or(0.0));
            }
        }
        if !weights.is_empty() {
            let (cluster, locality) = of.clone();
            env.seen.push(Observation::Weights { cluster, locality, not_yet_usable, stale, weights });
        }
    }
}

impl Target {
    /// L-100.
    fn settle(&mut self, env: &mut Env<'_>) {
        if self.policy.state() == State::Idle {
            self.policy.exit_idle(env);
        }
        match self.policy.state() {
            State::Ready => self.failing = false,
            State::Failing => self.failing = true,
            State::Idle | State::Connecting => {}
        }
    }

    /// L-49: failure lasts until it is ready.
    fn state(&self) -> State {
        if self.failing { State::Failing } else { self.policy.state() }
    }
}

fn of_localities(targets: &BTreeMap<Arc<Locality>, Target>, state: State, connections: &Connections) -> Picker {
    let those: Vec<_> = targets.iter().filter(|(_, target)| target.state() == state).collect();
    if state == State::Ready {
        let mut pickers: Vec<(u32, Picker)> =
            those.iter().map(|(_, target)| (target.weight, target.policy.picker(connections))).collect();
        return if pickers.len() == 1 { pickers.remove(0).1 } else { Picker::Weighted(pickers) };
    }
    let mut text = Vec::new();
    for (locality, target) in those.iter().take(3) {
        text.push(locality.zone.clone());
        if let Picker::Wait(below) | Picker::Fail(below) = target.policy.picker(connections) {
            text.extend(below);
        }
    }
    if those.len() > 3 {
        text.push(format!("{} more", those.len() - 3));
    }
    if those.is_empty() {
        text.push("no endpoints".into());
    }
    if state == State::Failing { Picker::Fail(text) } else { Picker::Wait(text) }
}

/// The endpoints that rank first by their hash (L-110).
fn subset(part: &Part, seed: u64) -> Part {
    let LbPolicy::RandomSubsetting { size, child } = &part.lb else { return part.clone() };
    let rank = |site: &Site| {
        let first = site.addresses[0].key.0;
        (xxh64(first.to_string().as_bytes(), seed), first)
    };
    let mut ranks: Vec<_> = part.sites().iter().map(rank).collect();
    let (lb, size) = ((**child).clone(), *size as usize);
    if ranks.len() <= size {
        return Part { lb, ..part.clone() };
    }
    ranks.sort();
    let area = |area: &Area| {
        let chosen = area.sites().into_iter().filter(|site| ranks[..size].contains(&rank(site)));
        Area { endpoints: chosen.map(|site| site.endpoint).collect(), ..area.clone() }
    };
    Part { lb, localities: part.localities.iter().map(area).collect(), counted: part.counted }
}

/// By u^(1/weight), the largest first (A113).
fn shuffled(part: &Part, env: &mut Env<'_>) -> Vec<Site> {
    let mut keyed: Vec<(f64, Site)> = Vec::new();
    for (site, weight) in part.sites().into_iter().zip(weights::of_endpoints(part)) {
        let drawn = env.chance.choose(1 << 32);
        let u = (drawn + 1) as f64 / ((1_u64 << 32) + 1) as f64;
        keyed.push((u.ln() / f64::from(weight), site));
    }
    keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    keyed.into_iter().map(|(_, site)| site).collect()
}
