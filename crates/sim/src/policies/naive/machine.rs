//! pick_first: the first address that answers (L-121 to L-126).

use std::time::Duration;

use mainstay_xds::Time;

use super::pick::Ready;
use super::{Addr, Connections, Deadline, Env, Key, Kind, Site, State, What, Who, set_of};

/// Looks for a connection among addresses.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) who: Who,
    /// Waits to be asked before it connects again.
    pub(super) lazy: bool,
    pub(super) list: Vec<Tried>,
    phase: Phase,
    failing: bool,
    ejected: bool,
    last_failed: usize,
    /// Where outlier detection counts its RPCs.
    pub(super) counter: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Tried {
    addr: Addr,
    held: bool,
    failed: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Phase {
    Idle,
    /// So many were tried; the next one is tried then.
    Pass(usize, Option<Time>),
    /// So many failed since re-resolution was last asked for.
    Again(usize),
    Ready(usize),
}

impl Machine {
    pub(super) fn new(who: Who, idle: bool) -> Self {
        let phase = if idle { Phase::Idle } else { Phase::Again(0) };
        let (list, counter) = (Vec::new(), None);
        Self { who, lazy: idle, list, phase, failing: false, ejected: false, last_failed: 0, counter }
    }

    pub(super) fn update(&mut self, env: &mut Env<'_>, addresses: &[Addr]) {
        let same = addresses.iter().map(|a| &a.key).eq(self.list.iter().map(|t| &t.addr.key));
        if same && !addresses.is_empty() {
            self.list.iter_mut().zip(addresses).for_each(|(tried, addr)| tried.addr = addr.clone());
            return;
        }
        let selected = self.connected();
        let held: Vec<Key> = self.list.iter().filter(|t| t.held).map(|t| t.addr.key.clone()).collect();
        let tried = |addr: &Addr| Tried { addr: addr.clone(), held: held.contains(&addr.key), failed: false };
        self.list = addresses.iter().map(tried).collect();
        for key in held.iter().filter(|key| !addresses.iter().any(|addr| addr.key == **key)) {
            env.connections.release(key, self.who);
        }
        if self.list.is_empty() {
            (self.phase, self.failing) = (Phase::Again(0), true);
            return;
        }
        let still = self.list.iter().position(|tried| Some(&tried.addr.key) == selected.as_ref());
        match (still, &self.phase) {
            (Some(at), _) => self.phase = Phase::Ready(at),
            (None, Phase::Idle) => {}
            (None, _) => self.begin(env),
        }
    }

    /// Takes in the addresses of one endpoint.
    pub(super) fn update_endpoint(&mut self, env: &mut Env<'_>, site: &Site) {
        let joined = env.health.as_mut().and_then(|health| health.join(&site.set, self.who));
        self.ejected = joined.is_some_and(|(_, ejected)| ejected);
        self.counter = joined.map(|(counter, _)| counter);
        self.update(env, &in_turn(&site.addresses));
    }

    pub(super) fn handle(&mut self, env: &mut Env<'_>, what: &What) {
        match what {
            What::Timer(_) => {
                if let Phase::Pass(tried, _) = self.phase {
                    self.phase = Phase::Pass(tried, None);
                    self.try_next(env);
                }
            }
            What::Wake if self.phase == Phase::Idle => self.begin(env),
            What::Wake => {}
            What::Health(ejected) => self.ejected = *ejected,
            What::Connection(key) => {
                if let Some(at) = self.list.iter().position(|tried| tried.held && tried.addr.key == *key) {
                    self.hear(env, at, key);
                }
            }
        }
    }

    pub(super) fn close(&mut self, env: &mut Env<'_>) {
        for tried in &mut self.list {
            if std::mem::take(&mut tried.held) {
                env.connections.release(&tried.addr.key, self.who);
            }
        }
        if self.counter.is_some()
            && let Some(health) = &mut env.health
        {
            health.leave(&set_of(self.list.iter().map(|tried| tried.addr.key.0)), self.who);
        }
    }

    pub(super) fn state(&self) -> State {
        match self.phase {
            Phase::Idle => State::Idle,
            Phase::Ready(_) if !self.ejected => State::Ready,
            Phase::Pass(..) if !self.failing => State::Connecting,
            Phase::Pass(..) | Phase::Again(_) | Phase::Ready(_) => State::Failing,
        }
    }

    /// The connection in use, ejected or not.
    pub(super) fn connected(&self) -> Option<Key> {
        match self.phase {
            Phase::Ready(at) => Some(self.list[at].addr.key.clone()),
            Phase::Idle | Phase::Pass(..) | Phase::Again(_) => None,
        }
    }

    pub(super) fn ready(&self) -> Option<Ready> {
        match self.phase {
            Phase::Ready(at) if !self.ejected => {
                Some(Ready { addr: self.list[at].addr.clone(), counter: self.counter })
            }
            Phase::Idle | Phase::Pass(..) | Phase::Again(_) | Phase::Ready(_) => None,
        }
    }

    pub(super) fn error(&self, connections: &Connections) -> Option<String> {
        match self.phase {
            Phase::Ready(at) if self.ejected => Some(format!("{}: ejected", self.list[at].addr.key.0)),
            Phase::Idle | Phase::Pass(..) | Phase::Again(_) | Phase::Ready(_) => {
                let last = self.list.get(self.last_failed).filter(|tried| tried.held)?;
                connections.error(&last.addr.key)
            }
        }
    }

    pub(super) fn deadlines(&self, into: &mut Vec<Deadline>) {
        if let Phase::Pass(_, Some(at)) = self.phase {
            into.push((at, self.who, Kind::NextAddress));
        }
    }

    fn hear(&mut self, env: &mut Env<'_>, at: usize, key: &Key) {
        match (self.phase.clone(), env.connections.state(key)) {
            (Phase::Ready(_), State::Ready) => {}
            // L-125: lost.
            (Phase::Ready(_), _) => {
                self.failing = self.ejected;
                env.reresolve();
                if self.lazy {
                    self.phase = Phase::Idle;
                } else {
                    self.begin(env);
                }
            }
            (_, State::Ready) => self.select(env, at),
            (Phase::Idle, _) | (_, State::Connecting) => {}
            (Phase::Pass(tried, timer), State::Failing) => {
                if at < tried {
                    self.list[at].failed = true;
                    self.last_failed = at;
                }
                if at + 1 == tried {
                    self.phase = Phase::Pass(tried, None);
                    self.try_next(env);
                } else {
                    self.phase = Phase::Pass(tried, timer);
                    self.end_pass(env);
                }
            }
            (Phase::Pass(tried, _), State::Idle) => {
                if at < tried && !self.list[at].failed {
                    env.connections.connect(key);
                }
            }
            (Phase::Again(failures), State::Failing) => {
                self.last_failed = at;
                let all = failures + 1 >= self.list.len();
                self.phase = Phase::Again(if all { 0 } else { failures + 1 });
                if all {
                    env.reresolve();
                }
            }
            (Phase::Again(_), State::Idle) => env.connections.connect(key),
        }
    }

    fn begin(&mut self, env: &mut Env<'_>) {
        for tried in &mut self.list {
            tried.failed = false;
            if !std::mem::replace(&mut tried.held, true) {
                env.connections.acquire(&tried.addr.key, self.who);
            }
        }
        self.phase = Phase::Pass(0, None);
        match self.list.iter().position(|tried| env.connections.state(&tried.addr.key) == State::Ready) {
            Some(at) => self.select(env, at),
            None => self.try_next(env),
        }
    }

    /// L-121.
    fn try_next(&mut self, env: &mut Env<'_>) {
        let Phase::Pass(mut tried, _) = self.phase else { return };
        let mut timer = None;
        while tried < self.list.len() {
            let key = self.list[tried].addr.key.clone();
            tried += 1;
            if env.connections.state(&key) != State::Failing {
                env.connections.connect(&key);
                timer = (tried < self.list.len()).then_some(env.now + DELAY);
                break;
            }
            self.list[tried - 1].failed = true;
            self.last_failed = tried - 1;
        }
        self.phase = Phase::Pass(tried, timer);
        self.end_pass(env);
    }

    /// L-123.
    fn end_pass(&mut self, env: &mut Env<'_>) {
        if self.list.iter().all(|tried| tried.failed) {
            (self.phase, self.failing) = (Phase::Again(0), true);
            env.reresolve();
            for tried in self.list.iter().filter(|tried| tried.held) {
                env.connections.connect(&tried.addr.key);
            }
        }
    }

    /// L-122.
    fn select(&mut self, env: &mut Env<'_>, at: usize) {
        for (other, tried) in self.list.iter_mut().enumerate() {
            if other != at && std::mem::take(&mut tried.held) {
                env.connections.release(&tried.addr.key, self.who);
            }
        }
        (self.phase, self.failing) = (Phase::Ready(at), false);
    }
}

/// Each address once, the families in turn (L-120).
pub(super) fn in_turn(addresses: &[Addr]) -> Vec<Addr> {
    let mut once: Vec<Addr> = Vec::new();
    for addr in addresses {
        if !once.iter().any(|known| known.key.0 == addr.key.0) {
            once.push(addr.clone());
        }
    }
    let mut mixed: Vec<Addr> = Vec::new();
    let mut family = once.first().is_some_and(|addr| addr.key.0.is_ipv6());
    while !once.is_empty() {
        let at = once.iter().position(|addr| addr.key.0.is_ipv6() == family).unwrap_or(0);
        mixed.push(once.remove(at));
        family = !mixed[mixed.len() - 1].key.0.is_ipv6();
    }
    mixed
}

const DELAY: Duration = Duration::from_millis(250);
