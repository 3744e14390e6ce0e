//! Random histories with control planes that speak delta in all the ways that real ones do (DX, table of behaviours in
//! docs/rules/12-delta.md), mixed with state of the world. Whatever happened: in the end a client has what the preferred
//! server has, and stops talking.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use prost::Message;

use super::talk::{delta_response, response, short_name, short_version, value};
use crate::bootstrap::{Bootstrap, DeltaMode, Node, ServerConfig};
use crate::client::{
    Action, ClientSettings, CloseCause, Event, Output, Protocol, Sign, StreamId, Update, WatchId, XdsClient,
};
use crate::resource::ResourceType;
use crate::{Choose, Time};

#[test]
fn whatever_servers_do_a_client_ends_with_what_the_preferred_one_has() {
    for seed in 0..SEEDS {
        World::new(seed).run();
    }
}

#[test]
fn the_worlds_are_about_delta() {
    // Worlds in which nothing happens would prove nothing.
    let mut seen = Seen::default();
    for seed in 0..SEEDS / 4 {
        seen.add(&World::new(seed).run());
    }
    let Seen { delta, sotw, claims, refusals, removals, mismatches } = seen;
    for (what, count) in [
        ("delta streams", delta),
        ("other streams", sotw),
        ("claims", claims),
        ("refusals", refusals),
        ("removals", removals),
        ("streams closed because of another identifier", mismatches),
    ] {
        assert!(count > 20, "{what}: {count}");
    }
}

/// A client, a primary and a fallback.
struct World {
    seed: u64,
    dice: Dice,
    client: XdsClient,
    now: Time,
    planes: [Plane; 2],
    live: BTreeMap<StreamId, Live>,
    watches: BTreeMap<(ResourceType, &'static str), WatchId>,
    /// What watchers may use.
    values: BTreeMap<WatchId, String>,
    story: Vec<String>,
    messages: usize,
    seen: Seen,
}

/// What a history had in it.
#[derive(Clone, Debug, Default)]
struct Seen {
    delta: usize,
    sotw: usize,
    claims: usize,
    refusals: usize,
    removals: usize,
    mismatches: usize,
}

/// A control plane.
struct Plane {
    up: bool,
    manners: Manners,
    process: u32,
    content: BTreeMap<(ResourceType, &'static str), Content>,
    /// Counts from 1 in each process, if versions are counted.
    next_version: u32,
}

#[derive(Clone)]
struct Content {
    version: String,
    value: String,
}

/// How a control plane behaves: rows of the table.
#[derive(Clone, Copy, Debug)]
struct Manners {
    /// Knows no delta.
    no_delta: bool,
    /// Counts versions, and says another name in each process.
    counts: bool,
    /// Counts versions and never says who it is.
    anonymous: bool,
    /// Says nothing about names that it does not have (go-control-plane).
    silent_about_absent: bool,
    /// Does not answer a name that is subscribed already (go-control-plane).
    deaf_to_repeats: bool,
    /// Drops requests with an outdated nonce (istiod).
    drops_stale: bool,
    /// Forgets who asked for what it does not have (istiod).
    forgets_absent: bool,
    /// Does not look at claims (istiod).
    ignores_claims: bool,
    /// Sends each resource by itself.
    splits: bool,
}

/// A stream, both ends of it.
struct Live {
    plane: usize,
    protocol: Protocol,
    open: bool,
    to_plane: VecDeque<Bytes>,
    to_client: VecDeque<Bytes>,
    names: BTreeMap<ResourceType, BTreeSet<String>>,
    /// Versions that were sent, or claimed.
    sent: BTreeMap<(ResourceType, String), String>,
    nonces: BTreeMap<ResourceType, u32>,
    responses: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mode = [DeltaMode::Preferred, DeltaMode::Required, DeltaMode::Off];
        let modes = [mode[dice.roll(2)], mode[dice.roll(3)]];
        let mut builder = Bootstrap::builder().node(Node { id: "me".to_owned(), ..Node::default() });
        for (uri, mode) in ["a", "b"].into_iter().zip(modes) {
            let mut server = ServerConfig::insecure(uri);
            server.features.delta = mode;
            builder = builder.server(server);
        }
        let client = XdsClient::new(Arc::new(builder.build().unwrap()), ClientSettings::default());
        let planes = modes.map(|mode| Plane::new(&mut dice, mode));
        let (live, watches, values) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (story, now) = (Vec::new(), Time::ZERO);
        Self { seed, dice, client, now, planes, live, watches, values, story, messages: 0, seen: Seen::default() }
    }

    fn run(mut self) -> Seen {
        self.story.push(format!("{:?} {:?}", self.planes[0].manners, self.planes[1].manners));
        for _ in 0..STEPS {
            self.step();
            self.act();
        }
        // All is well from now on.
        for plane in &mut self.planes {
            plane.up = true;
        }
        for key in KEYS {
            self.watch(key);
        }
        self.wait(Duration::from_secs(1800));
        for key @ (kind, name) in KEYS {
            let Some(content) = self.planes[0].content.get(&key) else { continue };
            let found = self.watches.get(&key).and_then(|watch| self.values.get(watch));
            assert_eq!(found, Some(&content.value), "{kind} {name}, seed {}:\n{}", self.seed, self.story.join("\n"));
        }
        // And no more talk than asking again for what is absent, ever more rarely.
        let before = self.messages;
        self.wait(Duration::from_secs(3600));
        let talk = self.messages - before;
        assert!(talk <= MAX_TALK, "{talk} messages, seed {}:\n{}", self.seed, self.story.join("\n"));
        self.seen
    }

    fn step(&mut self) {
        let plane = self.dice.roll(2);
        match self.dice.roll(12) {
            0 => {
                let key = KEYS[self.dice.roll(KEYS.len())];
                match self.watches.remove(&key) {
                    Some(watch) => {
                        self.story.push(format!("unwatch {key:?}"));
                        self.client.unwatch(self.now, watch);
                        self.values.remove(&watch);
                    }
                    None => self.watch(key),
                }
            }
            1 | 2 => self.change(plane),
            3 => {
                self.story.push(format!("plane {plane} dies"));
                self.planes[plane].up = false;
                self.cut(plane);
            }
            4 => {
                self.story.push(format!("plane {plane} is there, in a new process"));
                self.cut(plane);
                self.planes[plane].restart(&mut self.dice);
            }
            5 => self.cut(plane),
            6 => {
                let seconds = self.dice.choose(40);
                self.wait(Duration::from_secs(seconds));
            }
            _ => {
                let streams: Vec<StreamId> = self.live.keys().copied().collect();
                if !streams.is_empty() {
                    let stream = streams[self.dice.roll(streams.len())];
                    self.deliver(stream);
                }
            }
        }
    }

    fn watch(&mut self, key: (ResourceType, &'static str)) {
        if !self.watches.contains_key(&key) {
            self.story.push(format!("watch {key:?}"));
            self.watches.insert(key, self.client.watch(self.now, key.0, key.1));
        }
    }

    fn change(&mut self, plane: usize) {
        let key = KEYS[self.dice.roll(KEYS.len())];
        let gone = self.dice.roll(4) == 0;
        let at = &mut self.planes[plane];
        if gone {
            at.content.remove(&key);
        } else {
            at.put(key, format!("v{}", self.dice.roll(1000)));
        }
        self.story.push(format!("plane {plane} has {key:?} {:?}", at.content.get(&key).map(|c| &c.value)));
        let streams: Vec<StreamId> = self.live.keys().copied().filter(|id| self.live[id].plane == plane).collect();
        for stream in streams {
            self.tell(stream, key.0, &BTreeSet::from([key.1.to_owned()]));
        }
    }

    fn cut(&mut self, plane: usize) {
        let streams: Vec<StreamId> = self.live.keys().copied().filter(|id| self.live[id].plane == plane).collect();
        for stream in streams {
            self.live.remove(&stream);
            self.event(Event::Closed(stream, CloseCause::ConnectionLost("cut".to_owned())));
        }
    }

    fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        loop {
            self.act();
            if let Some(stream) = self.live.keys().copied().find(|id| self.live[id].has_work()) {
                self.deliver(stream);
                continue;
            }
            let Output::Wait(next) = self.client.clone().poll_output() else { continue };
            match next.filter(|next| *next <= end) {
                Some(next) => {
                    self.now = next.max(self.now);
                    self.client.handle_timeout(self.now, &mut self.dice);
                }
                None => break,
            }
        }
        self.now = end;
    }

    fn event(&mut self, event: Event) {
        self.client.handle_event(self.now, &mut self.dice, event);
    }

    /// One thing that is on its way arrives.
    fn deliver(&mut self, id: StreamId) {
        let Some(live) = self.live.get_mut(&id) else { return };
        let plane = &self.planes[live.plane];
        if !live.open {
            live.open = true;
            let refused = live.protocol == Protocol::Delta && plane.manners.no_delta;
            let event = match (plane.up, refused) {
                (false, _) => Event::Closed(id, CloseCause::ConnectFailed("refused".to_owned())),
                (true, true) => Event::Closed(id, CloseCause::Ended { code: 12, message: "no delta".to_owned() }),
                (true, false) => Event::Opened(id),
            };
            self.seen.refusals += usize::from(plane.up && refused);
            if !matches!(event, Event::Opened(_)) {
                self.live.remove(&id);
            }
            return self.event(event);
        }
        let to_client = live.to_client.front().is_some() && (live.to_plane.is_empty() || self.dice.roll(2) == 0);
        if to_client {
            let message = live.to_client.pop_front().unwrap_or_default();
            self.messages += 1;
            self.story.push(format!("{} hears {}", id.0, String::from_utf8_lossy(&message).escape_debug()));
            self.event(Event::Received(id, message));
        } else if let Some(message) = live.to_plane.pop_front() {
            self.messages += 1;
            match live.protocol {
                Protocol::Sotw => self.hear_sotw(id, &message),
                Protocol::Delta => self.hear_delta(id, &message),
            }
        }
    }

    fn hear_sotw(&mut self, id: StreamId, message: &Bytes) {
        let request = DiscoveryRequest::decode(message.clone()).unwrap();
        let kind = ResourceType::from_type_url(&request.type_url).unwrap();
        let Some(live) = self.live.get_mut(&id) else { return };
        if !request.response_nonce.is_empty()
            && live.nonces.get(&kind).map(u32::to_string) != Some(request.response_nonce)
        {
            return;
        }
        let names: BTreeSet<String> = request.resource_names.into_iter().collect();
        let before = live.names.insert(kind, names.clone()).unwrap_or_default();
        let new: BTreeSet<String> = names.difference(&before).cloned().collect();
        live.sent.retain(|(of, name), _| *of != kind || names.contains(name));
        if !new.is_empty() || names.len() != before.len() {
            self.tell(id, kind, &new);
        }
    }

    fn hear_delta(&mut self, id: StreamId, message: &Bytes) {
        let request = DeltaDiscoveryRequest::decode(message.clone()).unwrap();
        let kind = ResourceType::from_type_url(&request.type_url).unwrap();
        self.seen.claims += request.initial_resource_versions.len();
        let Some(live) = self.live.get_mut(&id) else { return };
        let manners = self.planes[live.plane].manners;
        let is_stale = !request.response_nonce.is_empty()
            && live.nonces.get(&kind).map(u32::to_string).as_ref() != Some(&request.response_nonce);
        if is_stale && manners.drops_stale {
            return;
        }
        if !manners.ignores_claims {
            let claims = request.initial_resource_versions.into_iter();
            live.sent.extend(claims.map(|(name, version)| ((kind, name), short_version(&version).to_owned())));
        }
        let names = live.names.entry(kind).or_default();
        for name in &request.resource_names_unsubscribe {
            names.remove(name);
            live.sent.remove(&(kind, name.clone()));
        }
        let mut ask = BTreeSet::new();
        for name in request.resource_names_subscribe {
            if names.insert(name.clone()) {
                ask.insert(name);
            } else if !manners.deaf_to_repeats {
                live.sent.remove(&(kind, name.clone()));
                ask.insert(name);
            }
        }
        self.tell(id, kind, &ask);
    }

    /// A plane says what is new about these names.
    fn tell(&mut self, id: StreamId, kind: ResourceType, names: &BTreeSet<String>) {
        let Some(live) = self.live.get_mut(&id).filter(|live| live.open) else { return };
        let plane = &self.planes[live.plane];
        let wanted = live.names.get(&kind).cloned().unwrap_or_default();
        let of = |name: &String| {
            KEYS.iter().find(|key| key.0 == kind && key.1 == name).and_then(|key| plane.content.get(key))
        };
        let mut items = Vec::new();
        match live.protocol {
            Protocol::Sotw => {
                let is_full = kind.full_state();
                for name in wanted.iter().filter(|name| is_full || names.contains(*name)) {
                    items.extend(of(name).map(|content| format!("{name}:={}", content.value)));
                }
                if items.is_empty() && (!is_full || wanted.is_empty()) {
                    return;
                }
            }
            Protocol::Delta => {
                for name in names.iter().filter(|name| wanted.contains(*name)) {
                    let key = (kind, name.clone());
                    match of(name) {
                        Some(content) if live.sent.get(&key) == Some(&content.version) => {}
                        Some(content) => {
                            items.push(format!("{name}@{}:={}", content.version, content.value));
                            live.sent.insert(key, content.version.clone());
                        }
                        None => {
                            let had = live.sent.remove(&key).is_some();
                            if had || !plane.manners.silent_about_absent {
                                items.push(format!("-{name}"));
                                self.seen.removals += 1;
                            }
                            if plane.manners.forgets_absent {
                                live.names.entry(kind).or_default().remove(name);
                            }
                        }
                    }
                }
            }
        }
        let parts: Vec<Vec<String>> = match live.protocol {
            Protocol::Delta if plane.manners.splits => items.into_iter().map(|item| vec![item]).collect(),
            Protocol::Delta if items.is_empty() => Vec::new(),
            Protocol::Delta | Protocol::Sotw => vec![items],
        };
        let identifier = plane.identifier();
        for part in parts {
            live.responses += 1;
            live.nonces.insert(kind, live.responses);
            let nonce = format!("{}:", live.responses);
            let items = part.iter().map(String::as_str);
            let message = match live.protocol {
                Protocol::Sotw => {
                    let version = live.responses.to_string();
                    response(&[short_name(kind), &version, &nonce].into_iter().chain(items).collect::<Vec<_>>())
                }
                Protocol::Delta => {
                    let words: Vec<_> = [short_name(kind), &nonce].into_iter().chain(items).collect();
                    delta_response(&words, identifier.as_ref())
                }
            };
            live.to_client.push_back(message);
        }
    }

    /// Does what the client wants done.
    fn act(&mut self) {
        while let Output::Do(action) = self.client.poll_output() {
            match action {
                Action::Open { stream, server, protocol, .. } => {
                    let plane = usize::from(server.server_uri != "a");
                    match protocol {
                        Protocol::Sotw => self.seen.sotw += 1,
                        Protocol::Delta => self.seen.delta += 1,
                    }
                    self.story.push(format!("open {} to {plane} {protocol:?}", stream.0));
                    self.live.insert(stream, Live::new(plane, protocol));
                }
                Action::Send(stream, bytes) => {
                    self.story.push(format!("{} says {}", stream.0, String::from_utf8_lossy(&bytes).escape_debug()));
                    if let Some(live) = self.live.get_mut(&stream) {
                        live.to_plane.push_back(bytes);
                    }
                    self.event(Event::Sent(stream));
                }
                Action::Probe { stream, .. } => self.event(Event::Alive(stream, Sign::Data)),
                Action::Close(stream) => {
                    let live = self.live.remove(&stream);
                    self.seen.mismatches += usize::from(live.is_some_and(|live| live.plane == 0 && live.responses > 0));
                }
                Action::Notify(watch, Update::Changed(resource, _)) => {
                    drop(self.values.insert(watch, value(&resource)))
                }
                Action::Notify(watch, Update::Failed(_)) => drop(self.values.remove(&watch)),
                Action::Notify(_, Update::Confirmed(_) | Update::Ambient(_)) => {}
                Action::ActiveServer(..) | Action::Report(_) => {}
            }
        }
    }
}

impl Plane {
    fn new(dice: &mut Dice, mode: DeltaMode) -> Self {
        let absent = dice.roll(3);
        let manners = Manners {
            no_delta: mode == DeltaMode::Preferred && dice.roll(4) == 0,
            counts: dice.roll(2) == 0,
            anonymous: dice.roll(4) == 0,
            silent_about_absent: absent == 0,
            deaf_to_repeats: dice.roll(2) == 0,
            drops_stale: dice.roll(2) == 0,
            forgets_absent: absent == 1,
            ignores_claims: dice.roll(3) == 0,
            splits: dice.roll(2) == 0,
        };
        let mut plane = Self { up: dice.roll(3) > 0, manners, process: 0, content: BTreeMap::new(), next_version: 1 };
        plane.restart(dice);
        plane
    }

    /// Another process with other content, some of it as before.
    fn restart(&mut self, dice: &mut Dice) {
        (self.up, self.process, self.next_version) = (true, self.process + 1, 1);
        let before = std::mem::take(&mut self.content);
        for key in KEYS {
            match (dice.roll(3), before.get(&key)) {
                (0, _) => {}
                (1, Some(content)) => self.put(key, content.value.clone()),
                (_, _) => self.put(key, format!("v{}", dice.roll(1000))),
            }
        }
    }

    fn put(&mut self, key: (ResourceType, &'static str), value: String) {
        let version = if self.manners.counts || self.manners.anonymous {
            self.next_version += 1;
            (self.next_version - 1).to_string()
        } else {
            format!("hash-{value}")
        };
        self.content.insert(key, Content { version, value });
    }

    fn identifier(&self) -> Option<String> {
        match (self.manners.anonymous, self.manners.counts) {
            (true, _) => None,
            (false, true) => Some(format!("process-{}", self.process)),
            (false, false) => Some("deployment".to_owned()),
        }
    }
}

impl Live {
    fn new(plane: usize, protocol: Protocol) -> Self {
        Self {
            plane,
            protocol,
            open: false,
            to_plane: VecDeque::new(),
            to_client: VecDeque::new(),
            names: BTreeMap::new(),
            sent: BTreeMap::new(),
            nonces: BTreeMap::new(),
            responses: 0,
        }
    }

    fn has_work(&self) -> bool {
        !self.open || !self.to_plane.is_empty() || !self.to_client.is_empty()
    }
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.delta += other.delta;
        self.sotw += other.sotw;
        self.claims += other.claims;
        self.refusals += other.refusals;
        self.removals += other.removals;
        self.mismatches += other.mismatches;
    }
}

/// Numbers that look random and depend on nothing but the seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        usize::try_from(self.choose(sides as u64)).unwrap()
    }
}

impl Choose for Dice {
    fn choose(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

const KEYS: [(ResourceType, &str); 5] = [
    (ResourceType::Listener, "l"),
    (ResourceType::Cluster, "c1"),
    (ResourceType::Cluster, "c2"),
    (ResourceType::RouteConfig, "r1"),
    (ResourceType::RouteConfig, "r2"),
];

const SEEDS: u64 = 400;
const STEPS: usize = 120;
/// In an hour: absent names of three types are asked for every 8 minutes or more, in two messages each, and each of five
/// names may have a response and an answer of its own.
const MAX_TALK: usize = 8 * (3 * 2 + 5 * 2);
