//! Anything in any order: nothing panics, and what must always hold does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use proptest::prelude::{Strategy, any, prop, prop_assert, proptest};
use prost::Message;

use super::talk::{Middle, Setup, Talk, resource_type, response};
use crate::bootstrap::ServerFeatures;
use crate::client::cache::{Cached, Entry};
use crate::client::notify::Watch;
use crate::client::subscription::Word;
use crate::client::wire::DiscoveryResponse;
use crate::client::{Action, CloseCause, Event, Output, Sign, StreamId, Update, WatchId};
use crate::resource::{Resource, ResourceType};

/// Something that happens. Numbers choose among what is there.
#[derive(Clone, Debug)]
enum Step {
    Watch(usize, usize),
    Unwatch(usize),
    Open(usize),
    Sent(usize),
    Respond(usize, usize, Vec<(usize, usize)>),
    Noise(usize, Vec<u8>),
    Mutated(usize, usize, usize, u8),
    Alive(usize, bool),
    Close(usize, usize),
    Pass(u16),
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let n = || any::<prop::sample::Index>().prop_map(|i| i.index(64));
    proptest::prop_oneof![
        4 => (n(), n()).prop_map(|(kind, name)| Step::Watch(kind, name)),
        2 => n().prop_map(Step::Unwatch),
        4 => n().prop_map(Step::Open),
        4 => n().prop_map(Step::Sent),
        6 => (n(), n(), prop::collection::vec((n(), n()), 0..5)).prop_map(|(s, k, items)| Step::Respond(s, k, items)),
        1 => (n(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(s, bytes)| Step::Noise(s, bytes)),
        1 => (n(), n(), n(), any::<u8>()).prop_map(|(s, k, at, byte)| Step::Mutated(s, k, at, byte)),
        2 => (n(), any::<bool>()).prop_map(|(s, data)| Step::Alive(s, data)),
        3 => (n(), n()).prop_map(|(s, cause)| Step::Close(s, cause)),
        2 => any::<u16>().prop_map(Step::Pass),
        8 => proptest::prelude::Just(Step::Drain),
    ]
}

/// A client among chaos, and what is known, to judge it by.
struct Chaos {
    talk: Talk,
    /// Streams that the client opened and nobody closed.
    streams: BTreeMap<StreamId, Peer>,
    /// Streams that ended by themselves. The client may have closed them in the same moment.
    ended: BTreeSet<StreamId>,
    watches: BTreeMap<WatchId, Heard>,
    nonces: usize,
    keeps_data: bool,
}

/// One stream, seen from its server.
#[derive(Default)]
struct Peer {
    open: bool,
    on_its_way: bool,
    greeted: bool,
    /// Names in the last request of each type.
    names: BTreeMap<ResourceType, Vec<String>>,
    /// Nonces that are owed an answer.
    owed: BTreeMap<ResourceType, VecDeque<String>>,
    last_nonce: BTreeMap<ResourceType, String>,
}

/// What a watcher believes.
#[derive(Default, Debug)]
struct Heard {
    value: Option<Resource>,
    error: bool,
}

proptest! {
    #[test]
    fn whatever_happens_the_conversation_stays_sound(steps in prop::collection::vec(step(), 0..120)) {
        Chaos::new(|_| {}, true).live(steps);
    }

    #[test]
    fn the_same_with_servers_that_drop_data(steps in prop::collection::vec(step(), 0..120)) {
        Chaos::new(|f| (f.fail_on_data_errors, f.resource_timer_is_transient_error) = (true, true), false).live(steps);
    }

    #[test]
    fn random_bytes_as_a_response_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut talk = Setup::new(&["a"]).start();
        talk.step("watch LDS l & watch CDS c & watch EDS e & watch RDS r & watch LEDS s");
        talk.step("up a");
        let event = Event::Received(talk.stream("a", 0), bytes.into());
        talk.client.handle_event(talk.now, &mut Middle, event);
        talk.step("wait 0 s");
        // The stream is not deaf (P-36).
        prop_assert!(talk.step("a< EDS 1 A: e:=80").contains(&"w2 changed: 80 from a 1".to_owned()));
    }

    #[test]
    fn a_good_response_with_some_other_bytes_is_survived(
        kind in 0..5_usize,
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let kinds = ["LDS l:=r", "RDS r:=x", "CDS c:=e", "EDS e:=80", "LEDS [s]:=80"];
        let (kind, item) = kinds[kind].split_once(' ').expect("a kind and an item");
        let mut bytes = response(&[kind, "1", "A:", item]).to_vec();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        let mut talk = Setup::new(&["a"]).start();
        talk.step("watch LDS l & watch CDS c & watch EDS e & watch RDS r & watch LEDS s");
        talk.step("up a");
        let event = Event::Received(talk.stream("a", 0), bytes.into());
        talk.client.handle_event(talk.now, &mut Middle, event);
        let done = talk.drain();
        prop_assert!(done.iter().filter(|line| line.starts_with("a>")).count() <= 1, "{done:?}");
        prop_assert!(talk.step("a< EDS 2 B: e:=90").contains(&"w2 changed: 90 from a 2".to_owned()));
    }

    #[test]
    fn nothing_changes_in_a_second_timeout(steps in prop::collection::vec(step(), 0..40), later in any::<u16>()) {
        let mut chaos = Chaos::new(|_| {}, true);
        for step in steps {
            chaos.happen(step);
        }
        let now = chaos.talk.now + std::time::Duration::from_millis(later.into());
        chaos.talk.client.handle_timeout(now, &mut Middle);
        let once = chaos.talk.client.clone();
        chaos.talk.client.handle_timeout(now, &mut Middle);
        prop_assert!(once == chaos.talk.client);
    }
}

impl Chaos {
    fn new(features: fn(&mut ServerFeatures), keeps_data: bool) -> Self {
        // The top level has a and b; authority x has b and c, and falls back readily.
        let setup = Setup::new(&["a", "b"]).features(features).authority("x", &["b", "c"], true);
        Self {
            talk: setup.start(),
            streams: BTreeMap::new(),
            ended: BTreeSet::new(),
            watches: BTreeMap::new(),
            nonces: 0,
            keeps_data,
        }
    }

    fn live(mut self, steps: Vec<Step>) {
        for step in steps {
            self.happen(step);
        }
        self.come_to_rest();
        self.check_at_rest();
        let watches: Vec<WatchId> = self.watches.keys().copied().collect();
        for watch in watches {
            self.watches.remove(&watch);
            self.talk.client.unwatch(self.talk.now, watch);
        }
        self.drain();
        assert!(self.streams.is_empty(), "streams outlive the last watch");
        assert!(self.talk.client.is_idle());
        assert_eq!(self.talk.client.cache.len(), 0);
        assert_eq!(self.talk.client.timers.len(), 0);
    }

    fn happen(&mut self, step: Step) {
        match step {
            Step::Watch(kind, name) => {
                let kind = KINDS[kind % KINDS.len()];
                let watch = self.talk.client.watch(self.talk.now, kind, &name_of(kind, name));
                self.watches.insert(watch, Heard::default());
            }
            Step::Unwatch(which) => {
                if let Some(&watch) = pick(&self.watches, which) {
                    self.watches.remove(&watch);
                    self.talk.client.unwatch(self.talk.now, watch);
                }
            }
            Step::Open(which) => {
                if let Some(&stream) = pick(&self.streams, which) {
                    self.streams.entry(stream).or_default().open = true;
                    self.event(Event::Opened(stream));
                }
            }
            Step::Sent(which) => {
                if let Some(&stream) = pick(&self.streams, which)
                    && std::mem::take(&mut self.streams.entry(stream).or_default().on_its_way)
                {
                    self.event(Event::Sent(stream));
                }
            }
            Step::Respond(which, kind, items) => self.respond(which, kind, &items),
            Step::Noise(which, bytes) => {
                if let Some(&stream) = pick(&self.streams, which)
                    && self.streams[&stream].open
                    && DiscoveryResponse::decode(&bytes[..]).is_err()
                {
                    self.event(Event::Received(stream, bytes.into()));
                }
            }
            Step::Mutated(which, kind, at, byte) => {
                // Of a type that nobody asks for, so that it is owed no answer whatever becomes of it.
                let Some(&stream) = pick(&self.streams, which) else { return };
                let items = format!("{}:=80", name_of(KINDS[kind % KINDS.len()], 1));
                let mut bytes = response(&["unheard.Of", "1", "M:", &items]).to_vec();
                let at = at % bytes.len();
                bytes[at] ^= byte;
                let decoded = DiscoveryResponse::decode(&bytes[..]);
                if decoded.is_ok_and(|r| ResourceType::from_type_url(&r.type_url).is_some()) {
                    return;
                }
                self.event(Event::Received(stream, bytes.into()));
            }
            Step::Alive(which, data) => {
                if let Some(&stream) = pick(&self.streams, which)
                    && self.streams[&stream].open
                {
                    self.event(Event::Alive(stream, if data { Sign::Data } else { Sign::Pong }));
                }
            }
            Step::Close(which, cause) => {
                if let Some(&stream) = pick(&self.streams, which) {
                    self.streams.remove(&stream);
                    self.ended.insert(stream);
                    let cause = match cause % 3 {
                        0 => CloseCause::ConnectFailed("refused".to_owned()),
                        1 => CloseCause::ConnectionLost("reset".to_owned()),
                        _ => CloseCause::Ended { code: 14, message: String::new() },
                    };
                    self.event(Event::Closed(stream, cause));
                }
            }
            Step::Pass(millis) => {
                self.talk.now = self.talk.now + std::time::Duration::from_millis(millis.into());
                self.talk.client.handle_timeout(self.talk.now, &mut Middle);
            }
            Step::Drain => self.drain(),
        }
    }

    fn event(&mut self, event: Event) {
        self.talk.client.handle_event(self.talk.now, &mut Middle, event);
    }

    /// A response with items (name, what of it) on one of the streams.
    fn respond(&mut self, which: usize, kind: usize, items: &[(usize, usize)]) {
        let kind = KINDS[kind % KINDS.len()];
        let Some(&stream) = pick(&self.streams, which) else { return };
        let peer = self.streams.entry(stream).or_default();
        if !peer.open {
            return;
        }
        self.nonces += 1;
        let nonce = format!("n{}", self.nonces);
        // What was asked before the client was told of it counts too: it knows what it handed out.
        if peer.names.contains_key(&kind) {
            peer.owed.entry(kind).or_default().push_back(nonce.clone());
        }
        let item = |&(name, what): &(usize, usize)| {
            let name = name_of(kind, name);
            match what % 8 {
                0 => format!("{name}!!"),
                1 => format!("{name}??5"),
                2 => format!("{name}??14"),
                3 => "~".to_owned(),
                what => format!("[{name}]:={}", 80 + what),
            }
        };
        let items: Vec<String> = items.iter().map(item).collect();
        let short = ["LDS", "RDS", "CDS", "EDS", "LEDS"].into_iter().find(|s| resource_type(s) == Some(kind));
        let mut words = vec![short.expect("a known type"), "1", &nonce];
        words.extend(items.iter().map(String::as_str));
        self.event(Event::Received(stream, response(&words)));
    }

    fn drain(&mut self) {
        while let Output::Do(action) = self.talk.client.poll_output() {
            match action {
                Action::Open { stream, .. } => {
                    assert!(self.streams.insert(stream, Peer::default()).is_none(), "{stream:?} is used twice");
                }
                Action::Close(stream) => {
                    let is_there = self.streams.remove(&stream).is_some() || self.ended.remove(&stream);
                    assert!(is_there, "closed twice: {stream:?}");
                }
                Action::Send(stream, bytes) => {
                    self.streams.get_mut(&stream).expect("a request on no stream").take_request(&bytes);
                }
                Action::Notify(watch, update) => {
                    let heard = self.watches.get_mut(&watch).expect("news for a watcher that is gone");
                    heard.take_update(update, self.keeps_data);
                }
                Action::Probe { stream, .. } => {
                    assert!(self.streams.contains_key(&stream) || self.ended.contains(&stream), "a probe of no stream");
                }
                Action::ActiveServer(..) | Action::Report(_) => {}
            }
        }
    }

    /// Everything that is on its way arrives.
    fn come_to_rest(&mut self) {
        loop {
            self.drain();
            let sent: Vec<StreamId> = self
                .streams
                .iter_mut()
                .filter_map(|(id, p)| std::mem::take(&mut p.on_its_way).then_some(*id))
                .collect();
            if sent.is_empty() {
                return;
            }
            sent.into_iter().for_each(|stream| self.event(Event::Sent(stream)));
        }
    }

    fn check_at_rest(&self) {
        let client = &self.talk.client;
        for (id, peer) in self.streams.iter().filter(|(_, peer)| peer.open) {
            for (kind, owed) in &peer.owed {
                assert!(owed.is_empty(), "{id:?} {kind}: without an answer: {owed:?}");
            }
            let server = client.servers.iter().position(|server| server.link.stream_id() == Some(*id)).expect("known");
            for kind in KINDS {
                let uses = |entry: &Entry| client.authorities[entry.authority.0].in_use().any(|s| s.0 == server);
                let wanted = client.cache.of_type(kind).filter(|(_, e)| !e.watchers.is_empty() && uses(e));
                let wanted: Vec<String> = wanted.map(|(name, _)| name.to_string()).collect();
                assert_eq!(peer.names.get(&kind).cloned().unwrap_or_default(), wanted, "{id:?} {kind}");
            }
        }
        // Watchers believe what the cache holds.
        for (watch, heard) in &self.watches {
            let Watch::Of(key, _) = &client.watches[watch] else { continue };
            let entry = client.cache.get(key.resource_type, &key.name).expect("watched, so cached");
            // What was dropped by a server that was left in the same moment stays in use until the next one speaks.
            if entry.cached != Cached::Requested {
                assert_eq!(heard.value.as_ref(), entry.cached.held().map(|held| &held.resource), "{key}");
            }
            let unreachable = client.authorities[entry.authority.0].unreachable.is_some();
            if heard.value.is_some() || unreachable {
                assert_eq!(heard.error, entry.cached.error().is_some() || unreachable, "{key}");
            }
        }
        self.check_nothing_is_forgotten();
        // Memory is bounded by what is watched and listed.
        let listed: usize = self.streams.values().flat_map(|peer| peer.names.values()).map(Vec::len).sum();
        assert!(client.cache.len() <= self.watches.len() + listed);
        assert!(client.timers.len() <= listed + 2 * client.servers.len());
        for authority in &client.authorities {
            assert_eq!(authority.watched == 0, authority.active().is_none(), "{}", authority.key);
            assert!(authority.watched > 0 || authority.unreachable.is_none(), "{}", authority.key);
        }
    }
}

impl Chaos {
    /// Of every watched resource there is a value, or an error, or somebody to wait for.
    fn check_nothing_is_forgotten(&self) {
        let client = &self.talk.client;
        for (key, entry) in client.cache.watched() {
            for server in &client.servers {
                let adopted = server.link.stream().and_then(|stream| stream.word(&key)) == Some(&Word::Adopted);
                let holder = entry.cached.held().map(|held| client.servers[held.server.0].config.clone());
                assert!(
                    !adopted || holder.as_ref() == Some(&server.config),
                    "{key} of {} is not there",
                    server.config.server_uri
                );
            }
            let authority = &client.authorities[entry.authority.0];
            let active = authority.active().expect("watched, so somebody is in charge");
            if let Some(fault) = entry.cached.fault() {
                assert_eq!(fault.server, active, "{key} has an error of a server that is not in charge");
            }
            let word = client.servers[active.0].link.stream().map(|stream| stream.word(&key).cloned());
            match word {
                None => {} // An attempt is under way, or a pause.
                Some(Some(Word::Waiting(_))) => {}
                Some(Some(Word::Adopted)) => assert!(entry.cached.held().is_some(), "{key}"),
                Some(Some(Word::Said(_))) => assert_ne!(entry.cached, Cached::Requested, "{key} was spoken of"),
                word => panic!("{key} is not asked for: {word:?}"),
            }
        }
    }
}

impl Peer {
    fn take_request(&mut self, bytes: &Bytes) {
        assert!(self.open, "sent on a stream that is not open");
        assert!(!std::mem::replace(&mut self.on_its_way, true), "two requests on their way (P-23)");
        let request = DiscoveryRequest::decode(bytes.clone()).expect("a DiscoveryRequest");
        let kind = ResourceType::from_type_url(&request.type_url).expect("a type of ours");
        assert_eq!(request.node.is_some(), !std::mem::replace(&mut self.greeted, true), "P-16");
        assert!(!request.resource_names.is_empty() || self.names.contains_key(&kind), "a wildcard (P-48)");
        let unique: BTreeSet<&String> = request.resource_names.iter().collect();
        assert_eq!(unique.len(), request.resource_names.len(), "P-33");
        self.names.insert(kind, request.resource_names);
        // Each response has its turn, once and in order; only then may its nonce be used again (P-30, P-35).
        let owed = self.owed.entry(kind).or_default();
        match owed.pop_front() {
            Some(nonce) => {
                assert_eq!(request.response_nonce, nonce);
                self.last_nonce.insert(kind, nonce);
            }
            None => {
                assert!(request.error_detail.is_none(), "a NACK of nothing");
                assert_eq!(request.response_nonce, self.last_nonce.get(&kind).cloned().unwrap_or_default());
            }
        }
    }
}

impl Heard {
    fn take_update(&mut self, update: Update, keeps_data: bool) {
        match update {
            Update::Changed(resource, _) => *self = Self { value: Some(resource), error: false },
            Update::Confirmed(_) => {
                assert!(self.value.is_some(), "nothing to confirm");
                self.error = false;
            }
            // The first promise: what can be used is not taken away.
            Update::Failed(error) => {
                assert!(!keeps_data || self.value.is_none(), "usable data was taken away: {error}");
                *self = Self { value: None, error: true };
            }
            Update::Ambient(error) => {
                assert!(self.value.is_some(), "ambient to what?");
                assert!(error.is_some() || self.error, "nothing to call off");
                self.error = error.is_some();
            }
        }
    }
}

fn pick<K: Ord, V>(map: &BTreeMap<K, V>, which: usize) -> Option<&K> {
    map.keys().nth(which.checked_rem(map.len())?)
}

fn name_of(kind: ResourceType, which: usize) -> String {
    match which % 6 {
        n @ 0..4 => format!("n{n}"),
        n => format!("xdstp://x/{}/n{n}", kind.message_name()),
    }
}

const KINDS: [ResourceType; 3] = [ResourceType::Listener, ResourceType::Endpoints, ResourceType::EndpointCollection];
