//! The endpoints of a policy (L-102, L-104).

use mainstay_xds::Time;

use super::machine::Machine;
use super::pick::Text;
use super::{Connections, Deadline, Env, Set, Site, State, What, Who};

/// What weighted_round_robin knows of an endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// The book that its reports go into.
    pub(super) book: Option<u64>,
    pub(super) seen: u32,
    pub(super) latest: Option<(Time, f64)>,
    pub(super) since: Option<Time>,
    pub(super) connection: Option<u64>,
    pub(super) watched: bool,
    pub(super) weight: Option<f64>,
}

/// Endpoints, each with a pick_first of its own.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    pub(super) who: Who,
    lazy: bool,
    /// In the order in which they came.
    pub(super) members: Vec<Member>,
    /// Slots in the order of the configuration.
    order: Vec<u32>,
    last_slot: u32,
    last_failed: Option<u32>,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    set: Set,
    pub(super) machine: Machine,
    /// For ring_hash.
    pub(super) key: String,
    pub(super) weight: u32,
    /// For least_request: where its RPCs are counted.
    pub(super) under_way: u64,
    /// For weighted_round_robin.
    pub(super) load: Load,
}

impl Roster {
    pub(super) fn new(env: &mut Env<'_>, lazy: bool) -> Self {
        Self { who: env.new_who(), lazy, members: Vec::new(), order: Vec::new(), last_slot: 0, last_failed: None }
    }

    pub(super) fn update(&mut self, env: &mut Env<'_>, sites: &[Site], mut mark: impl FnMut(&mut Member, &Site)) {
        self.order.clear();
        for site in sites {
            let known = self.members.iter().position(|member| member.set == site.set);
            let at = known.unwrap_or_else(|| {
                self.last_slot += 1;
                let machine = Machine::new(Who { slot: self.last_slot, ..self.who }, self.lazy);
                let (set, under_way) = (site.set.clone(), env.books.new_number());
                let load = Load::default();
                self.members.push(Member { set, machine, key: String::new(), weight: 0, under_way, load });
                self.members.len() - 1
            });
            let member = &mut self.members[at];
            if !self.order.contains(&member.machine.who.slot) {
                member.machine.update_endpoint(env, site);
                self.order.push(member.machine.who.slot);
            }
            mark(member, site);
        }
        let order = &self.order;
        self.members.retain_mut(|member| {
            let stays = order.contains(&member.machine.who.slot);
            if !stays {
                member.machine.close(env);
            }
            stays
        });
    }

    /// The states before and after, if it was for an endpoint of this policy that is still there.
    pub(super) fn tell(&mut self, env: &mut Env<'_>, slot: u32, what: &What) -> Option<(State, State)> {
        let member = self.members.iter_mut().find(|member| member.machine.who.slot == slot)?;
        let before = member.machine.state();
        member.machine.handle(env, what);
        let after = member.machine.state();
        if after == State::Failing {
            self.last_failed = Some(slot);
        }
        Some((before, after))
    }

    pub(super) fn close(&mut self, env: &mut Env<'_>) {
        self.members.iter_mut().for_each(|member| member.machine.close(env));
    }

    pub(super) fn serves(&self, who: Who) -> bool {
        self.members.iter().any(|member| member.machine.who == who && member.machine.state() == State::Ready)
    }

    pub(super) fn count(&self, state: State) -> usize {
        self.members.iter().filter(|member| member.machine.state() == state).count()
    }

    pub(super) fn in_order(&self) -> Vec<&Member> {
        let find = |slot: &u32| self.members.iter().find(|member| member.machine.who.slot == *slot);
        self.order.iter().filter_map(find).collect()
    }

    pub(super) fn state(&self) -> State {
        if self.count(State::Ready) > 0 {
            State::Ready
        } else if self.count(State::Connecting) + self.count(State::Idle) > 0 {
            State::Connecting
        } else {
            State::Failing
        }
    }

    /// What is said while no endpoint is connected.
    pub(super) fn text(&self, connections: &Connections) -> Text {
        let mut text = vec![match self.order.len() {
            0 if self.state() == State::Failing => "no endpoints".to_owned(),
            count => format!("{count} endpoints"),
        }];
        if !self.order.is_empty() {
            let of = |member: &Member| member.machine.error(connections);
            let latest = self.members.iter().find(|member| Some(member.machine.who.slot) == self.last_failed);
            text.extend(latest.and_then(of).or_else(|| self.members.iter().find_map(of)));
        }
        text
    }

    pub(super) fn deadlines(&self, into: &mut Vec<Deadline>) {
        self.members.iter().for_each(|member| member.machine.deadlines(into));
    }
}
