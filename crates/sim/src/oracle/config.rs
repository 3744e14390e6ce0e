//! What is in force for RPCs, and what may be (A74).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::deps::{ConfigError, DnsName, XdsConfig};
use mainstay_xds::name::{AuthorityKey, ResourceKey};

use super::lookups::Lookups;
use super::picture::{Knowledge, Made, Part, Picture, Unit};
use super::{Known, Oracle, View};
use crate::invariant::{Invariant, Violation};
use crate::scenario::Scenario;

/// What is in force, as the channel shows it.
pub(crate) type Shown<'a> = Option<Result<&'a Arc<XdsConfig>, &'a Arc<ConfigError>>>;

/// What was in force, and what was said of names.
#[derive(Clone, Debug)]
pub(crate) struct ConfigOracle {
    listener: Arc<str>,
    bound: Duration,
    lookups: Lookups,
    subscribed: BTreeSet<String>,
    /// Somebody once subscribed: what that left goes with the next change.
    was_subscribed: bool,
    /// The newest Listener and routes that fit together.
    unit: Option<Unit>,
    /// The clusters of the last such routes, and of those in force last: they stay wanted while there are none.
    roots: [Vec<String>; 2],
    before: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    /// What it says.
    pub(crate) picture: Option<Arc<Picture>>,
    /// What it needs.
    needs: BTreeSet<ResourceKey>,
    /// What earlier ones needed and said, and until when RPCs may still go by them.
    recent: Vec<(Time, BTreeSet<ResourceKey>, Option<Arc<Picture>>)>,
    /// The authorities of which a new configuration, otherwise complete, has resources of several servers, and since
    /// when. Each has its own time to come to one.
    mixed_since: BTreeMap<AuthorityKey, Time>,
    /// When the switch began that led to each mixture. Servers that come and go meanwhile do not make it last longer.
    mixed_by: BTreeMap<AuthorityKey, Time>,
    changed: bool,
}

impl ConfigOracle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            listener: scenario.target.listener.clone(),
            bound: scenario.deps.switch_timeout,
            lookups: Lookups::default(),
            subscribed: BTreeSet::new(),
            was_subscribed: false,
            unit: None,
            roots: Default::default(),
            before: None,
            picture: None,
            needs: BTreeSet::new(),
            recent: Vec::new(),
            mixed_since: BTreeMap::new(),
            mixed_by: BTreeMap::new(),
            changed: true,
        }
    }

    /// A lookup begins.
    pub(crate) fn resolves(&mut self, name: &DnsName) {
        self.lookups.begun(&name.host);
        self.changed = true;
    }

    /// A lookup ends without an answer.
    pub(crate) fn stops_resolving(&mut self, name: &DnsName) {
        self.lookups.ended(&name.host);
        self.changed = true;
    }

    /// A lookup is answered.
    pub(crate) fn resolved(&mut self, name: &DnsName, answer: &Result<Vec<SocketAddr>, String>) {
        self.lookups.answered(&name.host, answer);
        self.changed = true;
    }

    /// Somebody subscribes to a cluster, or does not any more.
    pub(crate) fn subscribed(&mut self, clusters: BTreeSet<String>) {
        self.subscribed = clusters;
        self.was_subscribed = true;
        self.changed = true;
    }

    /// Judges what is in force. `is_quiet`: nothing is under way.
    pub(crate) fn check(
        &mut self,
        oracle: &mut Oracle,
        view: &View<'_>,
        shown: Shown<'_>,
        is_quiet: bool,
    ) -> Result<(), Violation> {
        let shown = shown.map(|shown| shown.cloned().map_err(Clone::clone));
        let is_new = match (&shown, &self.before) {
            (Some(Ok(now)), Some(Ok(before))) => !Arc::ptr_eq(now, before),
            (now, before) => now != before,
        };
        if !(is_new || is_quiet || self.changed || oracle.changed || !self.mixed_since.is_empty()) {
            return Ok(());
        }
        (self.changed, oracle.changed) = (false, false);
        let had = self.picture.is_some();
        let picture = match &shown {
            Some(Ok(config)) if is_new => {
                let picture = Arc::new(Picture::of(config));
                Some(self.picture.clone().filter(|before| *before == picture).unwrap_or(picture))
            }
            Some(Ok(_)) => self.picture.clone(),
            _ => None,
        };
        if !self.lookups.is_empty() {
            self.lookups.look_at(&addresses_in(picture.as_ref()));
        }
        let mut unit = self.unit.take();
        // With nothing in force trouble is as good as an answer.
        let made = self.make(oracle, had, &mut unit);
        self.unit = unit;
        self.judge(oracle, view, &made, &shown, picture.as_ref(), had)?;
        self.remember(oracle, view.now, is_new, &made, picture.as_ref());
        (self.before, self.picture) = (shown, picture);
        self.release_lookups(oracle);
        if is_quiet { self.check_watches(oracle, view, &made) } else { Ok(()) }
    }

    fn make(&self, oracle: &Oracle, patient: bool, unit: &mut Option<Unit>) -> Made {
        self.with_knowledge(oracle, patient, |knowledge| knowledge.make(&self.listener, unit, &self.subscribed))
    }

    fn with_knowledge<T>(&self, oracle: &Oracle, patient: bool, ask: impl FnOnce(&Knowledge<'_>) -> T) -> T {
        let known = |key: &ResourceKey| -> Known<'_> { oracle.known(key) };
        // As long as something is in force, trouble with a new Listener or its routes does not touch the pair before them.
        let keeps_unit = self.picture.is_some();
        let used = self.picture.as_deref();
        ask(&Knowledge { rules: &oracle.rules, known: &known, lookups: &self.lookups, patient, keeps_unit, used })
    }

    /// Whether what is made is still a mixture when `picture` is in force: who took something away has had its say.
    fn is_mixed_after(&self, oracle: &Oracle, had: bool, picture: Option<&Arc<Picture>>) -> bool {
        let after = Self { picture: picture.cloned(), ..self.clone() };
        let made = after.make(oracle, had, &mut self.unit.clone());
        made.sources.values().any(|planes| planes.len() > 1)
    }

    fn judge(
        &mut self,
        oracle: &Oracle,
        view: &View<'_>,
        made: &Made,
        shown: &Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
        picture: Option<&Arc<Picture>>,
        had: bool,
    ) -> Result<(), Violation> {
        let broken = |what: String| Err(Invariant::Config.broken(what));
        if made.failed {
            return match shown {
                Some(Err(_)) => Ok(()),
                _ => broken("there is no Listener, or none of its routes, and a configuration is in force".to_owned()),
            };
        }
        let complete = made.picture.as_ref().filter(|_| !made.awaited);
        let mixtures = made.sources.iter().filter(|(_, planes)| planes.len() > 1).map(|(authority, _)| authority);
        let mixtures: BTreeSet<_> = mixtures.collect();
        let mixed = !mixtures.is_empty();
        self.mixed_since.retain(|authority, _| complete.is_some() && mixtures.contains(authority));
        self.mixed_by.retain(|authority, _| mixtures.contains(authority));
        for authority in mixtures {
            if complete.is_some() {
                self.mixed_since.entry(authority.clone()).or_insert(view.now);
            }
            if let Some(switched) = oracle.switched_at(authority) {
                self.mixed_by.entry(authority.clone()).or_insert(switched);
            }
        }
        if let Some(expected) = complete.filter(|_| !mixed) {
            return self.compare(expected, &made.optional, false, shown, picture);
        }
        let compare = |expected: &Picture| {
            let marked = self.compare(expected, &made.optional, true, shown, picture);
            marked.or_else(|violation| match self.is_mixed_after(oracle, had, picture) {
                true => Err(violation),
                false => self.compare(expected, &made.optional, false, shown, picture),
            })
        };
        if complete.is_some_and(|expected| compare(expected).is_ok()) {
            let is_old = self.picture.as_ref().zip(picture).is_some_and(|(before, now)| Arc::ptr_eq(before, now));
            let was_mixed = matches!(&self.before, Some(Ok(before)) if before.mixed_sources);
            let is_due = self.mixed_by.values().all(|by| view.now.since(*by) >= self.bound);
            return Invariant::Config.holds(is_old || was_mixed || is_due, || {
                "a mixture of servers is in force before the bound".to_owned()
            });
        }
        // A mixture that is complete is not held back for longer than the bound.
        let is_late = |since: &Time| view.now.since(*since) > self.bound && !oracle.is_asleep();
        if let Some(expected) = complete.filter(|_| self.mixed_since.values().all(is_late)) {
            return compare(expected);
        }
        // Something is awaited, or of more than one server: what was in force stays.
        match (shown, had) {
            (None, false) => Ok(()),
            (None, true) => broken("the configuration in force is gone".to_owned()),
            // Without a configuration in force the trouble is told at once.
            (Some(Err(_)), false) => Ok(()),
            (Some(Err(error)), true) => {
                broken(format!("a configuration was in force, something is awaited, and now there is: {error}"))
            }
            (Some(Ok(config)), _) => {
                let Some(picture) = picture else { return Ok(()) };
                Invariant::Config.holds(!config.mixed_sources || mixed || had, || "not a mixture".to_owned())?;
                self.check_partial(oracle, picture)
            }
        }
    }

    /// What is in force while something new is awaited: the Listener and routes of before, and clusters as they were, or
    /// as they are now. Without anything before, what can be had.
    fn check_partial(&self, oracle: &Oracle, picture: &Arc<Picture>) -> Result<(), Violation> {
        let now = self.make(oracle, false, &mut self.unit.clone());
        let Some(before) = &self.picture else {
            let is_made = now.picture.as_ref() == Some(picture) && !now.awaited;
            return Invariant::Config
                .holds(is_made, || format!("{picture:?} is in force, and what can be had is {:?}", now.picture));
        };
        if Arc::ptr_eq(before, picture) {
            return Ok(());
        }
        // What is in force follows its own clusters, whatever the new routes say.
        let mut own = Made::default();
        let own_parts = self.with_knowledge(oracle, false, |knowledge| knowledge.clusters(&before.roots, &mut own));
        // So does what somebody subscribed to, with all that is below it.
        let fresh = |name: &String| {
            let routed = own_parts.get(name).or_else(|| now.picture.as_ref().and_then(|now| now.parts.get(name)));
            routed.or_else(|| now.optional.get(name))
        };
        let is_troubled = |name: &String| now.troubled.contains(name) || own.troubled.contains(name);
        let is_fine = |(name, part): (&String, &Part)| {
            let was = before.parts.get(name);
            was == Some(part)
                || (fresh(name) == Some(part)
                    && !(is_troubled(name) && was.is_some_and(Part::is_usable) && !part.is_usable()))
        };
        let torn = picture.parts.iter().find(|part| !is_fine(*part));
        Invariant::Config.holds(torn.is_none(), || {
            format!(
                "cluster {torn:?} is in force: it was {:?} and is {:?}",
                torn.map(|(name, _)| before.parts.get(name)),
                torn.map(|(name, _)| fresh(name))
            )
        })?;
        let usable = |picture: &Picture, name: &String| picture.parts.get(name).is_some_and(Part::is_usable);
        let same_unit = before.listener == picture.listener && before.host == picture.host;
        let whole =
            now.picture.as_ref().is_some_and(|now| now.listener == picture.listener && now.host == picture.host)
                && !now.awaited
                && now.troubled.iter().all(|name| !usable(before, name) || usable(picture, name));
        Invariant::Config.holds(same_unit || whole, || {
            format!("{} {:?} is in force before all of it is there", picture.listener, picture.host)
        })
    }

    fn compare(
        &self,
        expected: &Picture,
        optional: &BTreeMap<String, Part>,
        mixed: bool,
        shown: &Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
        picture: Option<&Arc<Picture>>,
    ) -> Result<(), Violation> {
        let (Some(Ok(config)), Some(picture)) = (shown, picture) else {
            return Err(Invariant::Config.broken(format!("everything is there and not in force: {shown:?}")));
        };
        // A cluster that somebody subscribed to may be as it was until it is complete again.
        // So may one that RPCs still go by while what is new gets warm.
        let was = |name: &String| self.picture.as_ref().is_some_and(|before| before.parts.contains_key(name));
        let warm = |name: &String| {
            let mut recent = self.recent.iter().filter_map(|(.., picture)| picture.as_ref());
            recent.any(|picture| picture.parts.contains_key(name))
        };
        let is_new = !self.picture.as_ref().is_some_and(|before| Arc::ptr_eq(before, picture));
        // What somebody subscribes to brings along all that is below it.
        let extra = |name: &String| warm(name) || self.was_subscribed || (was(name) && is_new);
        let missing = expected.parts.iter().find(|(name, part)| picture.parts.get(*name) != Some(part));
        let superfluous = picture
            .parts
            .keys()
            .find(|name| !expected.parts.contains_key(*name) && !extra(name) && !optional.contains_key(*name));
        let same = expected.listener == picture.listener
            && expected.host == picture.host
            && expected.roots == picture.roots
            && missing.is_none()
            && superfluous.is_none();
        Invariant::Config.holds(same, || {
            let of = |name: Option<&String>| name.and_then(|name| picture.parts.get(name).cloned());
            format!(
                "in force are {} {:?}: expected {} {:?}; differs: {missing:?} is {:?}; too much: {superfluous:?}",
                picture.listener,
                picture.host,
                expected.listener,
                expected.host,
                of(missing.map(|(name, _)| name))
            )
        })?;
        // What did not change need not be marked.
        let is_old = self.picture.as_ref().is_some_and(|before| Arc::ptr_eq(before, picture));
        Invariant::Config.holds(config.mixed_sources == mixed || (mixed && is_old), || {
            format!("the configuration says that it is a mixture: {}, and it is: {mixed}", config.mixed_sources)
        })
    }

    fn remember(&mut self, oracle: &Oracle, now: Time, is_new: bool, made: &Made, picture: Option<&Arc<Picture>>) {
        // What is in force may be told anew, with another note, while what is to come is complete and held back.
        let is_made = |picture: &&Arc<Picture>| {
            let made = made.picture.as_ref().filter(|_| !made.awaited);
            made.is_some_and(|made| (made.listener, &made.host) == (picture.listener, &picture.host))
        };
        if is_new && picture.filter(is_made).is_some() {
            let before = std::mem::replace(&mut self.needs, made.needs.clone());
            self.recent.push((now + WARM, before, self.picture.clone()));
        } else if let Some(picture) = picture.filter(|_| is_new) {
            // Of the clusters in force some came to be complete: it needs what they need from now on.
            let mut own = Made::default();
            self.with_knowledge(oracle, false, |knowledge| knowledge.clusters(&picture.roots, &mut own));
            self.needs.append(&mut own.needs);
        }
        self.recent.retain(|(until, ..)| now <= *until || oracle.is_asleep());
        if let Some(unit) = &self.unit {
            self.roots[0].clone_from(&unit.roots);
        }
        if let Some(picture) = picture {
            self.roots[1].clone_from(&picture.roots);
        }
    }

    /// Hosts that nothing needs may be forgotten from now on.
    fn release_lookups(&mut self, oracle: &Oracle) {
        if self.lookups.is_empty() {
            return;
        }
        let roots: Vec<String> = self.roots.iter().flatten().chain(&self.subscribed).cloned().collect();
        let mut needed = Made::default();
        self.with_knowledge(oracle, false, |knowledge| knowledge.clusters(&roots, &mut needed));
        self.lookups.need(&needed.hosts, &addresses_in(self.picture.as_ref()));
    }

    /// What is watched is what is needed: by what is in force, and by what is to come.
    fn check_watches(&self, oracle: &Oracle, view: &View<'_>, made: &Made) -> Result<(), Violation> {
        let watched: BTreeSet<_> = view.dump.iter().map(|status| &status.resource).collect();
        let missing = made.needs.iter().find(|key| !watched.contains(key));
        Invariant::Watches.holds(missing.is_none(), || format!("{missing:?} is needed and not watched"))?;
        if made.failed || made.picture.is_none() {
            return Ok(()); // What was in use may be wanted again.
        }
        let recent = |key: &ResourceKey| self.recent.iter().any(|(_, needs, _)| needs.contains(key));
        // What is in force follows its clusters as they are now, until it is replaced.
        let mut own = Made::default();
        if let Some(picture) = &self.picture {
            self.with_knowledge(oracle, false, |knowledge| knowledge.clusters(&picture.roots, &mut own));
        }
        let is_needed = |key: &ResourceKey| {
            made.needs.contains(key) || self.needs.contains(key) || own.needs.contains(key) || recent(key)
        };
        let spare = watched.iter().find(|key| !is_needed(key));
        Invariant::Watches.holds(spare.is_none() || made.awaited, || format!("{spare:?} is watched and not needed"))
    }
}

fn addresses_in(picture: Option<&Arc<Picture>>) -> BTreeSet<SocketAddr> {
    picture.into_iter().flat_map(|picture| picture.all_addresses()).collect()
}

impl Part {
    fn is_usable(&self) -> bool {
        match self {
            Self::Failed | Self::Leaf(_, None) => false,
            Self::Leaf(_, Some(priorities)) => priorities.iter().flatten().any(|(_, endpoints)| !endpoints.is_empty()),
            Self::Group(_) => true,
        }
    }
}

/// How long warm switching may keep what was in force.
const WARM: Duration = Duration::from_secs(5);
