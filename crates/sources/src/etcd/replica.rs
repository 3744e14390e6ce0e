//! What a replica does, decided without I/O (FB-25 to FB-28): which generation to fetch, when to switch to it, and what
//! not to believe.
//!
//! The watch is the fast way by which news come, and nobody's truth: etcd has lost events at compactions, and its
//! notifications of progress have run ahead of events. Every few seconds `current` is read anew, with a quorum, which finds
//! what the watch did not tell; and every few minutes, and after every reconnect, the keys of the generation that is held
//! are compared with what etcd has. All of that must find nothing, and is counted if it does.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::entries::Entries;
use crate::etcd::layout::Manifest;
use crate::freshness::{Freshness, Limits, Standing};

/// One replica. Times are since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replica {
    freshness: Freshness,
    held: Option<Held>,
    session: Session,
    fetching: Option<Wanted>,
    /// A newer one, to be fetched next.
    next: Option<Wanted>,
    /// When somebody last wanted to know whether what is held is current.
    asked: Option<Duration>,
    failures: u32,
    differences: u64,
    trouble: Option<String>,
    actions: VecDeque<Action>,
}

/// The generation that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    at: At,
    digest: String,
    /// The revision in which each key was written; not known of what comes from the disk.
    revisions: Option<BTreeMap<String, i64>>,
}

/// Which generation: numbers of different clusters cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    /// The id of the etcd cluster.
    pub(crate) cluster: u64,
    /// The number.
    pub(crate) generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    at: At,
    manifest: Manifest,
    revision: i64,
    /// If it was learned from a read: when that was sent.
    read_at: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Session {
    Down { retry_at: Duration },
    Connecting,
    Open(Open),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    /// When the read that is under way was sent.
    reading: Option<Duration>,
    watching: Watching,
    read_again_at: Duration,
    compare_at: Duration,
    /// How often the watch was asked for a sign of life since the last one.
    silent: u32,
    /// The newest generation that the watch knows of.
    told: u64,
    /// One that a read has found and the watch had not told.
    untold: Option<u64>,
}

/// The watch begins after the first read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watching {
    No,
    Yes,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Connect to the next endpoint.
    Connect,
    /// Give up the connection, and everything that is under way on it.
    Disconnect,
    /// Read `current`, with a quorum. The time is for [`Replica::handle_read`].
    Read { sent: Duration },
    /// Watch `current` from this revision, in place of the watch that there is.
    Watch { from: i64 },
    /// Ask the watch for a sign of life.
    Progress,
    /// Read a generation as of this revision.
    Fetch { generation: u64, revision: i64 },
    /// Read its keys only.
    Compare { generation: u64 },
    /// Put this into force.
    Switch { at: At, entries: Entries },
}

/// What a read of `current` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) cluster: u64,
    pub(crate) revision: i64,
    pub(crate) current: Option<Current>,
}

/// The value of `current`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Current {
    Manifest(Manifest),
    /// Something that we did not write.
    Malformed,
}

/// Keys, relative to the generation, with the revisions in which they were written.
pub(crate) type Revisions = BTreeMap<String, i64>;

impl Replica {
    /// At the start, with what the disk has.
    pub(crate) fn new(limits: Limits, from_disk: Option<(At, String)>) -> Self {
        Self {
            freshness: Freshness::new(limits, from_disk.is_some()),
            held: from_disk.map(|(at, digest)| Held { at, digest, revisions: None }),
            session: Session::Down { retry_at: Duration::ZERO },
            fetching: None,
            next: None,
            asked: None,
            failures: 0,
            differences: 0,
            trouble: None,
            actions: VecDeque::new(),
        }
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub(crate) fn standing(&self, now: Duration) -> Standing {
        self.freshness.standing(now)
    }

    pub(crate) fn confirmed(&self) -> Option<Duration> {
        self.freshness.confirmed()
    }

    /// How often the watch, or a generation, was not what it should have been.
    pub(crate) fn differences(&self) -> u64 {
        self.differences
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When something is to be done, whatever happens.
    pub(crate) fn deadline(&self, now: Duration) -> Option<Duration> {
        let due = match &self.session {
            Session::Down { retry_at } => Some(*retry_at),
            Session::Connecting => None,
            Session::Open(open) => Some(open.read_again_at.min(open.compare_at)),
        };
        [due, self.freshness.changes_at(now)].into_iter().flatten().min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        let held = self.held.as_ref().map(|held| held.at.generation);
        match &mut self.session {
            Session::Down { retry_at } if *retry_at <= now => {
                self.session = Session::Connecting;
                self.actions.push_back(Action::Connect);
            }
            Session::Open(open) if open.read_again_at <= now || open.compare_at <= now => {
                if open.silent >= MOST_SILENT {
                    self.differences += 1;
                    return self.fail(now, "the watch gives no sign of life".to_owned());
                }
                if open.read_again_at <= now {
                    open.read_again_at = now + BEAT;
                    if open.watching == Watching::Yes {
                        open.silent += 1;
                        self.actions.push_back(Action::Progress);
                    }
                    self.read(now);
                } else {
                    open.compare_at = now + COMPARE;
                    if let Some(generation) = held {
                        self.actions.push_back(Action::Compare { generation });
                    }
                }
            }
            Session::Down { .. } | Session::Connecting | Session::Open(_) => {}
        }
    }

    /// Somebody wants to know whether what is held is current.
    pub(crate) fn handle_asked(&mut self, now: Duration) {
        self.asked = Some(now);
        self.read(now);
    }

    pub(crate) fn handle_connected(&mut self, now: Duration) {
        self.session = Session::Open(Open {
            reading: None,
            watching: Watching::No,
            read_again_at: now + BEAT,
            compare_at: now + COMPARE,
            silent: 0,
            told: 0,
            untold: None,
        });
        self.read(now);
    }

    /// The connection is of no use any more, or never was.
    pub(crate) fn handle_failure(&mut self, now: Duration, why: String) {
        self.fail(now, why);
    }

    /// A read has come back.
    pub(crate) fn handle_read(&mut self, now: Duration, sent: Duration, read: Read) {
        let Session::Open(open) = &mut self.session else { return };
        if open.reading != Some(sent) {
            return;
        }
        open.reading = None;
        self.failures = 0;
        let generation = match &read.current {
            Some(Current::Manifest(manifest)) => manifest.generation,
            Some(Current::Malformed) | None => 0,
        };
        let begins = open.watching == Watching::No;
        if begins {
            (open.watching, open.told) = (Watching::Yes, generation);
            self.actions.push_back(Action::Watch { from: read.revision + 1 });
        }
        if open.untold.is_some_and(|untold| open.told < untold) {
            self.differences += 1;
            return self.fail(now, "the watch did not tell of a new generation".to_owned());
        }
        open.untold = (open.told < generation).then_some(generation);
        match read.current {
            Some(Current::Manifest(manifest)) => {
                let at = At { cluster: read.cluster, generation };
                if begins && self.held.as_ref().is_some_and(|held| held.at == at) {
                    self.actions.push_back(Action::Compare { generation });
                }
                self.consider(Wanted { at, manifest, revision: read.revision, read_at: Some(sent) });
            }
            Some(Current::Malformed) => self.trouble = Some("the key \"current\" is none of ours".to_owned()),
            None => self.trouble = Some("nothing is published there".to_owned()),
        }
        if self.asked > Some(sent) {
            self.read(now);
        }
    }

    /// The watch tells what `current` is.
    pub(crate) fn handle_watched(&mut self, cluster: u64, revision: i64, current: Option<Current>) {
        let Session::Open(open) = &mut self.session else { return };
        open.silent = 0;
        match current {
            Some(Current::Manifest(manifest)) => {
                let generation = manifest.generation;
                open.told = open.told.max(generation);
                self.consider(Wanted { at: At { cluster, generation }, manifest, revision, read_at: None });
            }
            // What it was is still in force; the next read says so.
            Some(Current::Malformed) | None => {}
        }
    }

    /// The watch has given a sign of life.
    pub(crate) fn handle_progress(&mut self) {
        if let Session::Open(open) = &mut self.session {
            open.silent = 0;
        }
    }

    /// The revision that was asked for is not there any more: everything is read anew, as events may be missing.
    pub(crate) fn handle_compacted(&mut self, now: Duration) {
        let Session::Open(open) = &mut self.session else { return };
        open.watching = Watching::No;
        open.untold = None;
        // What is under way began before.
        open.reading = None;
        (self.fetching, self.next) = (None, None);
        self.read(now);
    }

    /// A generation has come, whole or not.
    pub(crate) fn handle_fetched(&mut self, generation: u64, entries: Entries, revisions: Revisions) {
        let Some(wanted) = self.fetching.take_if(|fetching| fetching.at.generation == generation) else { return };
        if wanted.manifest.fits(&entries) {
            self.switch(wanted, entries, revisions);
        } else {
            self.differences += 1;
            let (has, should) = (entries.len(), wanted.manifest.resources);
            self.trouble =
                Some(format!("generation {generation} is not whole: {has} resources of {should}, or others"));
        }
        if let Some(next) = self.next.take() {
            self.consider(next);
        }
    }

    fn switch(&mut self, wanted: Wanted, entries: Entries, revisions: Revisions) {
        let Wanted { at, manifest, read_at, .. } = wanted;
        self.trouble = None;
        if let Some(read_at) = read_at {
            self.freshness.confirm(read_at);
        }
        let is_new = self.held.as_ref().is_none_or(|held| held.at != at || held.digest != manifest.digest);
        self.held = Some(Held { at, digest: manifest.digest, revisions: Some(revisions) });
        if is_new {
            self.actions.push_back(Action::Switch { at, entries });
        }
    }

    /// The keys that etcd has of a generation.
    pub(crate) fn handle_compared(&mut self, now: Duration, generation: u64, found: &Revisions) {
        let Some(held) = &self.held else { return };
        if held.at.generation != generation {
            return;
        }
        let different = match &held.revisions {
            // What came from the disk was checked by its hash, which `current` still names.
            None => 0,
            Some(known) => {
                let lost = known.iter().filter(|(key, revision)| found.get(*key) != Some(*revision)).count();
                lost + found.keys().filter(|key| !known.contains_key(*key)).count()
            }
        };
        if different > 0 {
            self.differences += different as u64;
            self.trouble = Some(format!("{different} keys of generation {generation} are not as they were read"));
            // Read it again; what is held stays until that is whole.
            if let Some(held) = &mut self.held {
                held.revisions = None;
                held.digest.clear();
            }
            self.read(now);
        }
    }

    /// `current` says so: is it what is held, or something newer?
    fn consider(&mut self, wanted: Wanted) {
        if let Some(held) = &self.held
            && held.at.cluster == wanted.at.cluster
        {
            if held.at.generation > wanted.at.generation {
                // Only a read counts: events may come late.
                if wanted.read_at.is_some() {
                    let (held, found) = (held.at.generation, wanted.at.generation);
                    self.trouble = Some(format!("etcd has generation {found} where {held} was in force already"));
                }
                return;
            }
            if held.at.generation == wanted.at.generation && held.digest == wanted.manifest.digest {
                if let Some(read_at) = wanted.read_at {
                    self.freshness.confirm(read_at);
                    self.trouble = None;
                }
                return;
            }
        }
        match &mut self.fetching {
            None => {
                let (generation, revision) = (wanted.at.generation, wanted.revision);
                self.actions.push_back(Action::Fetch { generation, revision });
                self.fetching = Some(wanted);
            }
            // What a read has found is found by whoever has it.
            Some(fetching) if fetching.at == wanted.at => fetching.read_at = fetching.read_at.max(wanted.read_at),
            Some(fetching) => {
                let newest = self.next.as_ref().unwrap_or(fetching).at;
                if newest.cluster != wanted.at.cluster || newest.generation <= wanted.at.generation {
                    self.next = Some(wanted);
                }
            }
        }
    }

    fn read(&mut self, now: Duration) {
        if let Session::Open(open) = &mut self.session
            && open.reading.is_none()
        {
            open.reading = Some(now);
            self.actions.push_back(Action::Read { sent: now });
        }
    }

    fn fail(&mut self, now: Duration, why: String) {
        if let Session::Down { .. } = self.session {
            return;
        }
        let pause = (FIRST_PAUSE * 2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1).min(16);
        self.session = Session::Down { retry_at: now + pause };
        (self.fetching, self.next) = (None, None);
        self.trouble = Some(why);
        // What is whole is put into force all the same.
        self.actions.retain(|action| matches!(action, Action::Switch { .. }));
        self.actions.push_back(Action::Disconnect);
    }
}

/// How often `current` is read whatever the watch says, and the watch is asked for a sign of life.
const BEAT: Duration = Duration::from_secs(3);
/// How often the keys of the generation that is held are compared.
const COMPARE: Duration = Duration::from_secs(5 * 60);
/// A watch that has been asked so often in vain is dead. Once is not enough: etcd does not answer while it is catching up.
const MOST_SILENT: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
