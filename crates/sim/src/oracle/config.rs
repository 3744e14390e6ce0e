//! What is in force for RPCs, and what may be (A74).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mainstay_xds::Time;
use mainstay_xds::deps::{ConfigError, DnsName, XdsConfig};
use mainstay_xds::name::ResourceKey;

use super::picture::{Knowledge, Lookups, Made, Part, Picture, Unit};
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
    /// The hosts that may be looked up.
    hosts: BTreeSet<String>,
    subscribed: BTreeSet<String>,
    /// Somebody once subscribed: what that left goes with the next change.
    was_subscribed: bool,
    /// The newest Listener and routes that fit together.
    unit: Option<Unit>,
    before: Option<Result<Arc<XdsConfig>, Arc<ConfigError>>>,
    /// What it says.
    pub(crate) picture: Option<Arc<Picture>>,
    /// What it needs.
    needs: BTreeSet<ResourceKey>,
    /// What earlier ones needed and said, and until when RPCs may still go by them.
    recent: Vec<(Time, BTreeSet<ResourceKey>, Option<Arc<Picture>>)>,
    /// Since when a new configuration is complete, but a mixture.
    mixed_since: Option<Time>,
    /// When the switch began that led to a mixture. Servers that come and go meanwhile do not make it last longer.
    mixed_by: Option<Time>,
    changed: bool,
}

impl ConfigOracle {
    pub(crate) fn new(scenario: &Scenario) -> Self {
        Self {
            listener: scenario.target.listener.clone(),
            bound: scenario.deps.switch_timeout,
            lookups: Lookups::new(),
            hosts: BTreeSet::new(),
            subscribed: BTreeSet::new(),
            was_subscribed: false,
            unit: None,
            before: None,
            picture: None,
            needs: BTreeSet::new(),
            recent: Vec::new(),
            mixed_since: None,
            mixed_by: None,
            changed: true,
        }
    }

    /// A lookup is answered.
    pub(crate) fn resolved(&mut self, name: &DnsName, answer: &Result<Vec<SocketAddr>, String>) {
        let known = self.lookups.entry(name.host.clone()).or_default();
        match answer {
            Ok(addresses) => *known = (Some(addresses.clone()), false),
            Err(_) => known.1 = true,
        }
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
        is_resolving: bool,
    ) -> Result<(), Violation> {
        let shown = shown.map(|shown| shown.cloned().map_err(Clone::clone));
        let is_new = match (&shown, &self.before) {
            (Some(Ok(now)), Some(Ok(before))) => !Arc::ptr_eq(now, before),
            (now, before) => now != before,
        };
        if !(is_new || is_quiet || self.changed || oracle.changed || self.mixed_since.is_some()) {
            return Ok(());
        }
        (self.changed, oracle.changed) = (false, false);
        let had = self.picture.is_some();
        let mut unit = self.unit.take();
        // With nothing in force trouble is as good as an answer.
        let made = self.make(oracle, had, &mut unit);
        self.unit = unit;
        // A name that is being looked up may be one that was forgotten in between.
        let made = Made { awaited: made.awaited || is_resolving, ..made };
        self.hosts.extend(made.hosts.iter().cloned());
        self.lookups.retain(|host, _| self.hosts.contains(host));
        let picture = match &shown {
            Some(Ok(config)) if is_new => {
                let picture = Arc::new(Picture::of(config));
                Some(self.picture.clone().filter(|before| *before == picture).unwrap_or(picture))
            }
            Some(Ok(_)) => self.picture.clone(),
            _ => None,
        };
        self.judge(oracle, view, &made, &shown, picture.as_ref(), had)?;
        self.remember(view.now, is_new, &made, picture.as_ref());
        (self.before, self.picture) = (shown, picture);
        if is_quiet { self.check_watches(view, &made) } else { Ok(()) }
    }

    fn make(&self, oracle: &Oracle, patient: bool, unit: &mut Option<Unit>) -> Made {
        self.with_knowledge(oracle, patient, |knowledge| knowledge.make(&self.listener, unit, &self.subscribed))
    }

    fn with_knowledge<T>(&self, oracle: &Oracle, patient: bool, ask: impl FnOnce(&Knowledge<'_>) -> T) -> T {
        let known = |key: &ResourceKey| -> Known<'_> { oracle.known(key) };
        ask(&Knowledge { rules: &oracle.rules, known: &known, lookups: &self.lookups, patient })
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
        let mixed = made.sources.values().any(|planes| planes.len() > 1);
        let complete = made.picture.as_ref().filter(|_| !made.awaited);
        self.mixed_since = complete.filter(|_| mixed).map(|_| self.mixed_since.unwrap_or(view.now));
        if let Some(expected) = complete.filter(|_| !mixed) {
            return self.compare(expected, &made.optional, false, shown, picture);
        }
        let switches = made.sources.iter().filter(|(_, planes)| planes.len() > 1);
        let first = switches.filter_map(|(authority, _)| oracle.switched_at(authority)).min();
        self.mixed_by = first.map(|first| self.mixed_by.unwrap_or(first));
        if let Some(expected) = complete
            && self.compare(expected, &made.optional, true, shown, picture).is_ok()
        {
            let is_old = self.picture.as_ref().zip(picture).is_some_and(|(before, now)| Arc::ptr_eq(before, now));
            let was_mixed = matches!(&self.before, Some(Ok(before)) if before.mixed_sources);
            let is_due = self.mixed_by.is_none_or(|by| view.now.since(by) >= self.bound);
            return Invariant::Config.holds(is_old || was_mixed || is_due, || {
                "a mixture of servers is in force before the bound".to_owned()
            });
        }
        // A mixture that is complete is not held back for longer than the bound.
        let is_late = self.mixed_since.is_some_and(|since| view.now.since(since) > self.bound) && !oracle.is_asleep();
        if let Some(expected) = complete.filter(|_| is_late) {
            return self.compare(expected, &made.optional, true, shown, picture);
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
        let fresh =
            |name: &String| own_parts.get(name).or_else(|| now.picture.as_ref().and_then(|now| now.parts.get(name)));
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

    fn remember(&mut self, now: Time, is_new: bool, made: &Made, picture: Option<&Arc<Picture>>) {
        if is_new && picture.is_some() && !made.awaited {
            let before = std::mem::replace(&mut self.needs, made.needs.clone());
            self.recent.push((now + WARM, before, self.picture.clone()));
        }
        self.recent.retain(|(until, ..)| now <= *until);
        if self.recent.is_empty() && !made.awaited && made.picture.is_some() && self.mixed_since.is_none() {
            self.hosts.clone_from(&made.hosts);
        }
    }

    /// What is watched is what is needed: by what is in force, and by what is to come.
    fn check_watches(&self, view: &View<'_>, made: &Made) -> Result<(), Violation> {
        let watched: BTreeSet<_> = view.dump.iter().map(|status| &status.resource).collect();
        let missing = made.needs.iter().find(|key| !watched.contains(key));
        Invariant::Watches.holds(missing.is_none(), || format!("{missing:?} is needed and not watched"))?;
        if made.failed || made.picture.is_none() {
            return Ok(()); // What was in use may be wanted again.
        }
        let recent = |key: &ResourceKey| self.recent.iter().any(|(_, needs, _)| needs.contains(key));
        let is_needed = |key: &ResourceKey| made.needs.contains(key) || self.needs.contains(key) || recent(key);
        let spare = watched.iter().find(|key| !is_needed(key));
        Invariant::Watches.holds(spare.is_none() || made.awaited, || format!("{spare:?} is watched and not needed"))
    }
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
