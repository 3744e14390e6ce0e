//! Rehearses outages of somebody's own setup: what would its clients see?

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainstay_lb::{Chosen, Decision, Rpc};
use mainstay_xds::client::Report;

use crate::choose::{Choices, Narrow, Replayed};
use crate::invariant::Violation;
use crate::scenario::Scenario;
use crate::world::{Event, World};

/// One outage, from beginning to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// What goes wrong.
    pub outage: String,
    /// What is seen, in order.
    pub timeline: Vec<(Duration, Seen)>,
    /// How long RPCs would fail.
    pub failing: Duration,
    /// How long RPCs would wait.
    pub waiting: Duration,
    /// All of several servers were down from the start: whatever a client does, and whoever stands by, RPCs fail.
    pub hopeless: bool,
}

/// Something that can be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The outage begins or ends.
    Outage(String),
    /// The client does something about it.
    Client(String),
    /// What becomes of RPCs from now on.
    Rpcs(Fate, String),
}

/// What becomes of RPCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// They are sent.
    Sent,
    /// They wait.
    Wait,
    /// They fail.
    Fail,
}

/// An outage: which faults, and whether they are there from the start.
struct Outage {
    name: String,
    from_the_start: bool,
    faults: Vec<Event>,
}

/// Plays every outage of one server, and of all, from the start and in the middle.
///
/// # Errors
/// If something that must hold does not.
pub fn rehearse(scenario: &Arc<Scenario>) -> Result<Vec<Rehearsal>, Violation> {
    outages(scenario).into_iter().map(|outage| play(scenario, &outage)).collect()
}

fn outages(scenario: &Scenario) -> Vec<Outage> {
    let servers: Vec<String> = scenario.planes.iter().map(|plane| plane.server.server_uri.clone()).collect();
    let mut outages = Vec::new();
    for (index, server) in servers.iter().enumerate() {
        outages.push(Outage::new(format!("{server} is down at the start"), true, [Event::Kill(index)]));
        outages.push(Outage::new(format!("{server} swallows packets at the start"), true, [Event::BlackHole(index)]));
        outages.push(Outage::new(format!("{server} does not answer at the start"), true, [Event::Mute(index)]));
        outages.push(Outage::new(format!("{server} stops while in use"), false, [Event::Kill(index)]));
    }
    if servers.len() > 1 {
        outages.push(Outage::new("every server is down at the start", true, (0..servers.len()).map(Event::Kill)));
        outages.push(Outage::new("every server stops while in use", false, (0..servers.len()).map(Event::Kill)));
    }
    outages
}

fn play(scenario: &Arc<Scenario>, outage: &Outage) -> Result<Rehearsal, Violation> {
    let choices = Choices::default();
    let choose = &mut Narrow { source: Replayed::new(&choices), limit: 0 };
    let mut stage = Stage::new(World::observed(scenario.clone(), choose)?);
    if !outage.from_the_start {
        stage.run(choose, Duration::from_secs(1))?;
    }
    stage.see(Seen::Outage(outage.name.clone()));
    for fault in &outage.faults {
        stage.apply(choose, fault)?;
    }
    stage.run(choose, OUTAGE)?;
    stage.see(Seen::Outage("everything works again".to_owned()));
    for index in 0..scenario.planes.len() {
        stage.apply(choose, &Event::Heal(index))?;
    }
    stage.run(choose, AFTERMATH)?;
    let Stage { timeline, failing, waiting, .. } = stage;
    let servers = scenario.planes.len();
    let hopeless = outage.from_the_start && servers > 1 && outage.faults.len() == servers;
    Ok(Rehearsal { outage: outage.name.clone(), timeline, failing, waiting, hopeless })
}

/// A world and what was seen of it.
struct Stage {
    world: World,
    timeline: Vec<(Duration, Seen)>,
    fate: Option<(Fate, Duration)>,
    failing: Duration,
    waiting: Duration,
    /// Servers of which was told why they cannot be reached.
    unreachable: BTreeMap<String, String>,
}

impl Stage {
    fn new(world: World) -> Self {
        let mut stage = Self {
            world,
            timeline: Vec::new(),
            fate: None,
            failing: Duration::ZERO,
            waiting: Duration::ZERO,
            unreachable: BTreeMap::new(),
        };
        stage.look();
        stage
    }

    fn see(&mut self, seen: Seen) {
        self.timeline.push((self.world.age(), seen));
    }

    /// Lets the world go on without further faults for so long.
    fn run(&mut self, choose: &mut Narrow<Replayed<'_>>, span: Duration) -> Result<(), Violation> {
        let end = self.world.age() + span;
        for _ in 0..MAX_EVENTS {
            let next = self.world.fair_event(end);
            let Some(event) = next else { break };
            self.apply(choose, &event)?;
        }
        self.world.sleep_until(end);
        self.look();
        Ok(())
    }

    fn apply(&mut self, choose: &mut Narrow<Replayed<'_>>, event: &Event) -> Result<(), Violation> {
        self.world.apply(choose, event)?;
        self.look();
        Ok(())
    }

    /// Whether it was not told before: attempts that fail for the same reason, one after the other, are told once.
    fn is_news(&mut self, report: &Report) -> bool {
        match report {
            Report::Unreachable(server, cause, _) => {
                self.unreachable.insert(server.server_uri.clone(), cause.clone()).as_ref() != Some(cause)
            }
            Report::StreamEnded(server, ..) | Report::Recovered(_, server) => {
                self.unreachable.remove(&server.server_uri);
                true
            }
            Report::Connecting(_)
            | Report::Connected(..)
            | Report::Answered(_)
            | Report::Alive(_)
            | Report::DeltaRefused(..)
            | Report::FellBack(..)
            | Report::Acked(..)
            | Report::Nacked(..)
            | Report::TimedOut(..)
            | Report::Ignored(..)
            | Report::DeletionIgnored(..)
            | Report::DeletionOver(..)
            | Report::SecurityIgnored(_) => true,
        }
    }

    /// Takes down what is new.
    fn look(&mut self) {
        for report in self.world.take_reports() {
            if is_of_interest(&report) && self.is_news(&report) {
                self.see(Seen::Client(report.to_string()));
            }
        }
        let (fate, why) = self.world.fate();
        let now = self.world.age();
        if let Some((before, since)) = self.fate {
            let span = now - since;
            match before {
                Fate::Fail => self.failing += span,
                Fate::Wait => self.waiting += span,
                Fate::Sent => {}
            }
        }
        if self.fate.map(|(before, _)| before) != Some(fate) {
            self.see(Seen::Rpcs(fate, why));
        }
        self.fate = Some((fate, now));
    }
}

impl Outage {
    fn new(name: impl Into<String>, from_the_start: bool, faults: impl IntoIterator<Item = Event>) -> Self {
        Self { name: name.into(), from_the_start, faults: faults.into_iter().collect() }
    }
}

impl World {
    /// What becomes of RPCs now.
    pub(crate) fn fate(&self) -> (Fate, String) {
        self.shell.lend();
        let headers = http::HeaderMap::new();
        let choices = Choices::default();
        let choose = &mut Narrow { source: Replayed::new(&choices), limit: 0 };
        let mut chosen = Chosen::default();
        loop {
            return match self.snapshot().decide_again(Rpc { path: "/", headers: &headers }, &mut chosen, choose) {
                Decision::Send(to) => (Fate::Sent, format!("to cluster {:?}", to.cluster)),
                Decision::Wait(failure, _) => (Fate::Wait, failure.message),
                Decision::Fail(failure) | Decision::Drop(failure) => (Fate::Fail, failure.message),
                Decision::Inject(_) => continue, // Faults on purpose are no outage.
            };
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outage(what) | Self::Client(what) => f.write_str(what),
            Self::Rpcs(Fate::Sent, why) => write!(f, "RPCs are sent {why}"),
            Self::Rpcs(Fate::Wait, why) => write!(f, "RPCs wait: {why}"),
            Self::Rpcs(Fate::Fail, why) => write!(f, "RPCs fail: {why}"),
        }
    }
}

/// Whether whoever operates the setup wants to know.
fn is_of_interest(report: &Report) -> bool {
    matches!(
        report,
        Report::Unreachable(..)
            | Report::FellBack(..)
            | Report::Recovered(..)
            | Report::TimedOut(..)
            | Report::Nacked(..)
            | Report::StreamEnded(..)
    )
}

/// How long an outage takes.
const OUTAGE: Duration = Duration::from_secs(30);

/// How long is looked at what follows.
const AFTERMATH: Duration = Duration::from_secs(60);

/// At most so many events in one part.
const MAX_EVENTS: usize = 10_000;
