//! Worlds in which everything that happens is written down: outages that once went wrong, and those that the product
//! promises to survive.

use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::{Decision, Rpc};
use mainstay_xds::bootstrap::{DeltaMode, ServerFeatures};
use mainstay_xds::resource::ResourceType;

use crate::choose::{Choices, Narrow, Replayed};
use crate::invariant::{Invariant, Violation};
use crate::resources::{Lb, PrioritySpec, Spec};
use crate::scenario::{Limits, Scenario};
use crate::world::{Event, World};

/// A story: its name, and how it goes.
pub type Story = (&'static str, fn() -> Result<(), Violation>);

/// Every story.
pub const STORIES: [Story; 17] = [
    ("the last server dies in mid-update and stays away", the_last_server_dies),
    ("both servers die during a switch back", both_die_during_a_switch_back),
    ("endpoints roll while an update is withheld", endpoints_roll_while_an_update_is_withheld),
    ("a cold primary returns", a_cold_primary_returns),
    ("a primary is frozen in mid-update", a_primary_is_frozen),
    ("a primary hangs in mid-update", a_primary_hangs),
    ("the path to a primary drops packets for good", a_path_drops_packets),
    ("a live server lacks a resource", a_live_server_lacks_a_resource),
    ("our process is stopped while an answer is on its way", our_process_is_stopped),
    ("a primary comes back with bad clusters first", a_primary_comes_back_with_bad_clusters),
    ("a primary comes back with bad routes first", a_primary_comes_back_with_bad_routes),
    ("a primary comes back with bad endpoints first", a_primary_comes_back_with_bad_endpoints),
    ("a server has nothing new to say", a_server_has_nothing_new_to_say),
    ("silence is a failure before it is an absence", silence_is_a_failure_before_it_is_an_absence),
    ("a fallback has only a part of it", a_fallback_has_only_a_part),
    ("a replica with equal content takes over", || a_replica_takes_over(DeltaMode::Off)),
    ("a replica with equal content takes over, over delta", || a_replica_takes_over(DeltaMode::Required)),
];

/// A world and the way through it.
struct Stage {
    world: World,
    /// Draws: none, in a coarse world.
    choices: Choices,
}

impl Stage {
    /// Starts a world and lets everything happen that is under way.
    fn start(scenario: Scenario) -> Result<Self, Violation> {
        let mut stage = Self::raise(scenario)?;
        stage.quiet()?;
        Ok(stage)
    }

    /// Starts a world.
    fn raise(scenario: Scenario) -> Result<Self, Violation> {
        let scenario = scenario.limits(|limits| *limits = Limits { faults: 100, ..Limits::default() });
        let choices = Choices::default();
        let world = World::new(Arc::new(scenario), &mut Narrow { source: Replayed::new(&choices), limit: 0 })?;
        Ok(Self { world, choices })
    }

    fn on(&mut self, event: Event) -> Result<(), Violation> {
        let choose = &mut Narrow { source: Replayed::new(&self.choices), limit: 0 };
        self.world.apply(choose, &event)
    }

    /// Lets everything happen that is under way.
    fn quiet(&mut self) -> Result<(), Violation> {
        while let Some(event) = self.world.next_event() {
            self.on(event)?;
        }
        Ok(())
    }

    /// The control plane at this place sends one type, if it has anything to say about it.
    fn serves(&mut self, plane: usize, kind: ResourceType) -> Result<(), Violation> {
        match self.world.link_to(plane) {
            Some(link) => self.on(Event::Serve(link, kind)),
            None => Ok(()),
        }
    }

    /// Lets time pass. RPCs must be sent all the while if `served`.
    fn pass(&mut self, seconds: u64, served: bool) -> Result<(), Violation> {
        let end = self.world.age() + Duration::from_secs(seconds);
        while let Some(event) = self.world.fair_event(end) {
            self.on(event)?;
            if served {
                self.is_served()?;
            }
        }
        self.world.sleep_until(end);
        Ok(())
    }

    /// An RPC would be sent now.
    fn is_served(&self) -> Result<(), Violation> {
        self.world.shell.lend();
        let headers = http::HeaderMap::new();
        let choose = &mut Narrow { source: Replayed::new(&self.choices), limit: 0 };
        let decision = self.world.snapshot().decide(Rpc { path: "/", headers: &headers }, choose);
        Invariant::Traffic.holds(matches!(decision, Decision::Send(_)), || format!("an RPC is not sent: {decision:?}"))
    }

    /// The virtual host in force.
    fn goes_by(&self, host: &str) -> Result<(), Violation> {
        let found = self.world.host_in_force();
        Invariant::Config.holds(found.as_deref() == Some(host), || format!("{found:?} is in force: expected {host:?}"))
    }

    /// Everything works again, and the channel ends.
    fn end(mut self) -> Result<(), Violation> {
        let choose = &mut Narrow { source: Replayed::new(&self.choices), limit: 0 };
        self.world.converge(choose)?;
        self.world.shut_down(choose).map(drop)
    }
}

// --- Scenarios ---

fn shop(cluster: &str, mark: u32) -> (&'static str, Spec) {
    ("shop", Spec::InlineListener { clusters: vec![cluster.to_owned()], mark })
}

fn eds(name: &'static str, mark: u32) -> (&'static str, Spec) {
    (name, Spec::Eds { service: String::new(), mark, lb: Lb::default() })
}

fn endpoints(name: &'static str, backends: &[u16]) -> (&'static str, Spec) {
    (name, Spec::Endpoints { priorities: vec![PrioritySpec::Here(backends.to_vec())], drop: 0 })
}

/// Two servers. In their second versions the routes lead to another cluster.
fn two() -> Scenario {
    let old = |mark, backend| [shop("c", mark), eds("c", mark), endpoints("c", &[backend])];
    let new = |mark, backend| [shop("d", mark), eds("d", mark), endpoints("d", &[backend])];
    let (a1, a2) = (old(10, 10), new(11, 11));
    let (b1, b2) = (old(20, 20), new(21, 21));
    Scenario::new("story", &[("a", &[&a1, &a2]), ("b", &[&b1, &b2])])
}

/// The first of them alone.
fn one() -> Scenario {
    let (old, new) =
        ([shop("c", 10), eds("c", 10), endpoints("c", &[10])], [shop("d", 11), eds("d", 11), endpoints("d", &[11])]);
    Scenario::new("story", &[("a", &[&old, &new])])
}

// --- Stories ---

fn the_last_server_dies() -> Result<(), Violation> {
    let mut stage = Stage::start(one())?;
    stage.goes_by("shop 10")?;
    stage.on(Event::Publish(0))?;
    stage.serves(0, ResourceType::Listener)?;
    stage.on(Event::Kill(0))?;
    stage.pass(60, true)?;
    stage.goes_by("shop 10")?;
    stage.on(Event::Heal(0))?;
    stage.pass(60, true)?;
    stage.goes_by("shop 11")?;
    stage.end()
}

/// A mixture is held back for 15 s from the switch, not from the first word of a server that took its time (C-50).
fn a_fallback_has_only_a_part() -> Result<(), Violation> {
    let a = [shop("c", 10), eds("c", 10), endpoints("c", &[10])];
    let a_next = [shop("d", 11), eds("d", 11), endpoints("d", &[11])];
    let mut stage = Stage::start(Scenario::new("story", &[("a", &[&a, &a_next]), ("b", &[&[shop("c", 20)]])]))?;
    stage.on(Event::Mute(1))?;
    stage.on(Event::Publish(0))?;
    stage.serves(0, ResourceType::Listener)?;
    stage.on(Event::Kill(0))?;
    stage.pass(10, true)?;
    stage.on(Event::Heal(1))?;
    stage.pass(4, true)?;
    stage.goes_by("shop 10")?;
    stage.pass(2, true)?;
    stage.goes_by("shop 20")?;
    stage.end()
}

fn both_die_during_a_switch_back() -> Result<(), Violation> {
    let mut stage = Stage::start(two())?;
    stage.on(Event::Publish(0))?;
    stage.serves(0, ResourceType::Listener)?;
    stage.on(Event::Kill(0))?;
    stage.pass(10, true)?;
    stage.goes_by("shop 20")?;
    stage.on(Event::Heal(0))?;
    // It has sent no more than its Listener when both are gone.
    while stage.world.link_to(0).is_none() {
        stage.pass(1, true)?;
    }
    stage.serves(0, ResourceType::Listener)?;
    stage.on(Event::Kill(0))?;
    stage.on(Event::Kill(1))?;
    stage.pass(60, true)?;
    stage.end()
}

fn endpoints_roll_while_an_update_is_withheld() -> Result<(), Violation> {
    let old = [shop("c", 10), eds("c", 10), endpoints("c", &[10])];
    let new = [shop("d", 11), eds("c", 10), endpoints("c", &[11]), eds("d", 11)];
    let mut stage = Stage::start(Scenario::new("story", &[("a", &[&old, &new])]))?;
    stage.on(Event::Publish(0))?;
    stage.quiet()?;
    stage.goes_by("shop 10")?;
    stage.is_served()?;
    let used = stage.world.addresses_in_force("c");
    let moved = used.iter().any(|address| address.to_string() == "10.0.0.11:80");
    Invariant::Config.holds(moved, || format!("the endpoints in force are {used:?}: expected the new ones"))?;
    stage.pass(14, true)?;
    stage.end()
}

fn a_cold_primary_returns() -> Result<(), Violation> {
    let mut stage = Stage::start(two())?;
    stage.on(Event::Publish(0))?;
    stage.serves(0, ResourceType::Listener)?;
    stage.on(Event::Kill(0))?;
    stage.pass(10, true)?;
    stage.goes_by("shop 20")?;
    stage.on(Event::Heal(0))?;
    stage.on(Event::Restart(0))?;
    stage.pass(60, true)?;
    stage.goes_by("shop 20")?;
    stage.on(Event::Heal(0))?;
    stage.pass(60, true)?;
    stage.goes_by("shop 11")?;
    stage.end()
}

fn a_primary_is_frozen() -> Result<(), Violation> {
    left_in_time(Event::BlackHole(0))
}

fn a_primary_hangs() -> Result<(), Violation> {
    left_in_time(Event::Mute(0))
}

/// In mid-update, with a healthy fallback: served by that within eleven seconds.
fn left_in_time(fault: Event) -> Result<(), Violation> {
    let mut stage = Stage::start(two())?;
    stage.on(Event::Publish(0))?;
    stage.serves(0, ResourceType::Listener)?;
    stage.on(fault)?;
    stage.pass(11, true)?;
    stage.goes_by("shop 20")?;
    stage.on(Event::Heal(0))?;
    stage.pass(60, true)?;
    stage.goes_by("shop 11")?;
    stage.end()
}

fn a_path_drops_packets() -> Result<(), Violation> {
    let mut stage = Stage::raise(two())?;
    stage.on(Event::BlackHole(0))?;
    stage.pass(6, false)?;
    stage.goes_by("shop 20")?;
    stage.pass(120, true)?;
    stage.end()
}

fn a_live_server_lacks_a_resource() -> Result<(), Violation> {
    let mut stage = Stage::start(Scenario::new("story", &[("a", &[&[shop("c", 10), eds("c", 10)]])]))?;
    stage.pass(14, false)?;
    let found = stage.world.host_in_force();
    Invariant::Absence.holds(found.is_none(), || format!("{found:?} is in force before the time is up"))?;
    stage.pass(2, false)?;
    stage.goes_by("shop 10")?;
    stage.end()
}

fn our_process_is_stopped() -> Result<(), Violation> {
    let mut scenario = one();
    scenario.grain = crate::scenario::Grain::Fine;
    let mut stage = Stage::raise(scenario)?;
    // The request has left, and the answer is on its way when we are stopped.
    for _ in 0..4 {
        if let Some(event) = stage.world.next_event() {
            stage.on(event)?;
        }
    }
    stage.on(Event::Stop(40))?;
    stage.on(Event::Time)?;
    let found = stage.world.says();
    Invariant::Absence.holds(!found.contains("does not exist"), || found.clone())?;
    stage.quiet()?;
    stage.pass(20, false)?;
    stage.goes_by("shop 10")?;
    stage.end()
}

/// The primary dies in mid-update. When it is back, what it sends first is bad, and then comes something good.
fn comes_back_bad(new: &[(&str, Spec)], bad: ResourceType, good: ResourceType) -> Result<(), Violation> {
    let old = [shop("c", 10), eds("c", 10), endpoints("c", &[10])];
    let middle = [shop("d", 11), eds("d", 11)];
    let other = [shop("c", 20), eds("c", 20), endpoints("c", &[20])];
    let mut stage = Stage::start(Scenario::new("story", &[("a", &[&old, &middle, new]), ("b", &[&other])]))?;
    stage.on(Event::Publish(0))?;
    stage.serves(0, ResourceType::Listener)?;
    stage.on(Event::Kill(0))?;
    stage.pass(3, true)?;
    stage.goes_by("shop 20")?;
    stage.on(Event::Publish(0))?;
    stage.on(Event::Heal(0))?;
    while stage.world.link_to(0).is_none() {
        stage.pass(1, true)?;
    }
    stage.serves(0, bad)?;
    stage.serves(0, good)?;
    stage.pass(240, false)?;
    stage.end()
}

fn a_primary_comes_back_with_bad_clusters() -> Result<(), Violation> {
    let new = [shop("c", 12), ("c", Spec::Invalid(ResourceType::Cluster))];
    comes_back_bad(&new, ResourceType::Cluster, ResourceType::Listener)
}

fn a_primary_comes_back_with_bad_routes() -> Result<(), Violation> {
    let new = [("shop", Spec::Invalid(ResourceType::Listener)), eds("c", 12), endpoints("c", &[12])];
    comes_back_bad(&new, ResourceType::Listener, ResourceType::Cluster)
}

fn a_primary_comes_back_with_bad_endpoints() -> Result<(), Violation> {
    let new = [shop("c", 12), eds("c", 12), ("c", Spec::Invalid(ResourceType::Endpoints))];
    comes_back_bad(&new, ResourceType::Endpoints, ResourceType::Cluster)
}

fn a_server_has_nothing_new_to_say() -> Result<(), Violation> {
    let scenario = one().habits(|habits| (habits.resumes, habits.trusting) = (true, true));
    let mut stage = Stage::start(scenario)?;
    stage.on(Event::Kill(0))?;
    stage.pass(1, true)?;
    stage.on(Event::Heal(0))?;
    stage.pass(3_600, true)?;
    stage.end()
}

/// FB-24, DX-24: nothing changes downstream, however the content is told: not even another snapshot for RPCs is made.
fn a_replica_takes_over(delta: DeltaMode) -> Result<(), Violation> {
    let scenario = one().with_features(|_| ServerFeatures { delta, ..ServerFeatures::default() });
    let mut stage = Stage::start(scenario)?;
    stage.goes_by("shop 10")?;
    stage.pass(1, true)?;
    let before = stage.world.stats();
    // The stream is lost with its process. Whoever answers next under its address has the same content, and begins anew.
    stage.on(Event::Kill(0))?;
    stage.on(Event::Heal(0))?;
    stage.pass(60, true)?;
    let after = stage.world.stats();
    Invariant::Config.holds(stage.world.link_to(0).is_some() && before.configs == after.configs, || {
        format!("{delta:?}: {} snapshots were made for the same content", after.configs - before.configs)
    })?;
    stage.end()
}

/// `silent_stream_timeout` below the does-not-exist timer, and a server that has nothing of what is asked: it counts as
/// unreachable each time, and the watcher hears so; nothing is told to be absent.
fn silence_is_a_failure_before_it_is_an_absence() -> Result<(), Violation> {
    let mut scenario = Scenario::new("story", &[("a", &[&[shop("c", 10), eds("c", 10)]])]);
    scenario.client.silent_stream_timeout = Some(Duration::from_secs(7));
    let mut stage = Stage::start(scenario)?;
    stage.pass(240, false)?;
    stage.end()
}
