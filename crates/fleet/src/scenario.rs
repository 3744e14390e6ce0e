//! What happens to the control planes of a fleet (SC-21).

use std::time::Duration;

use mainstay_control_plane::Snapshot;
use mainstay_xds::client::ClientSettings;

use crate::fleet::Plan;
use crate::setup;

/// A story of control planes, for any number of clients.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its short name, such as `F1`.
    pub name: &'static str,
    /// What happens.
    pub title: &'static str,
    pub(crate) script: fn(&Plan) -> Script,
}

/// By which rules clients come back and fall back (SC-22).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// Ours.
    #[default]
    Mainstay,
    /// Those of C-core and grpc-go: at once after an answered stream, then pauses of up to two minutes, 20 s for connecting to
    /// whichever server. Our own code with these settings, not theirs.
    Peers,
}

impl Rules {
    pub(crate) fn settings(self) -> ClientSettings {
        match self {
            Self::Mainstay => ClientSettings::default(),
            Self::Peers => ClientSettings {
                reconnect_spread: Duration::ZERO,
                backoff_max: Duration::from_secs(120),
                connect_timeout: Duration::from_secs(20),
                ..ClientSettings::default()
            },
        }
    }
}

/// A scenario for one fleet.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// How many times as slow as the model each control plane is.
    pub(crate) planes: Vec<u32>,
    /// Clients by turns: the servers of each list, and the control planes behind each server.
    pub(crate) groups: Vec<Vec<Vec<usize>>>,
    /// Whether clients have last-good files of the first edition.
    pub(crate) last_good: bool,
    /// The time over which clients start.
    pub(crate) start: Duration,
    pub(crate) steps: Vec<(Duration, Step)>,
    /// From when on what happens is looked at.
    pub(crate) outage_at: Duration,
    pub(crate) end: Duration,
    /// Which edition all have in the end.
    pub(crate) edition: u32,
    /// Within which time after `outage_at` they have it, where that is promised.
    pub(crate) updated_within: Option<Duration>,
    /// Control planes that clients of a group must not be connected to: group and control plane.
    pub(crate) untouched: Vec<(usize, usize)>,
    /// One client of so many goes by the rules of peers.
    pub(crate) peers: Option<u32>,
}

/// Something that happens to a control plane.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Serve(usize, Snapshot),
    Kill(usize),
    Silence(usize),
    Return(usize),
}

impl Scenario {
    /// The scenario of that name, in any case.
    pub fn find(name: &str) -> Option<Self> {
        SCENARIOS.into_iter().find(|scenario| scenario.name.eq_ignore_ascii_case(name))
    }
}

/// All of them.
pub const SCENARIOS: [Scenario; 11] = [
    Scenario { name: "F1", title: "a replica hands all its clients over to another", script: hand_over },
    Scenario { name: "F2", title: "the primary crashes and returns", script: crash },
    Scenario { name: "F3", title: "everything sent to the primary is lost for a while", script: black_hole },
    Scenario { name: "F4", title: "the primary dies in the middle of an update", script: mid_update },
    Scenario { name: "F5", title: "all start while the primary is down", script: mass_start },
    Scenario { name: "F5L", title: "all start while everything is down, with last-good files", script: from_files },
    Scenario { name: "F6", title: "three replicas are restarted one after another", script: rolling },
    Scenario { name: "F7", title: "all start at a control plane that is ten times as slow", script: slow },
    Scenario { name: "F8", title: "a bad configuration is pushed, and corrected a minute later", script: bad_push },
    Scenario { name: "F9", title: "one of three regions loses its primary in an update", script: regions },
    Scenario { name: "F10", title: "F1, and one client in ten goes by the rules of peers", script: mixed_fleet },
];

impl Script {
    /// Clients start over ten seconds, and one minute later something happens.
    fn calm(planes: usize, groups: Vec<Vec<Vec<usize>>>) -> Self {
        Self {
            planes: vec![1; planes],
            groups,
            last_good: false,
            start: Duration::from_secs(10),
            steps: (0..planes).map(|plane| (Duration::ZERO, Step::Serve(plane, setup::edition(1)))).collect(),
            outage_at: OUTAGE,
            end: OUTAGE + Duration::from_secs(60),
            edition: 1,
            updated_within: None,
            untouched: Vec::new(),
            peers: None,
        }
    }

    fn then(mut self, after: Duration, step: Step) -> Self {
        self.steps.push((self.outage_at + after, step));
        self
    }
}

fn hand_over(_: &Plan) -> Script {
    Script::calm(2, vec![vec![vec![0, 1]]]).then(Duration::ZERO, Step::Kill(0))
}

fn crash(plan: &Plan) -> Script {
    let script = with_fallback().then(Duration::ZERO, Step::Kill(0)).then(plan.outage, Step::Return(0));
    // All are back within the longest pause.
    Script { end: OUTAGE + plan.outage + Duration::from_secs(180), untouched: vec![(0, 1)], ..script }
}

fn black_hole(plan: &Plan) -> Script {
    let script = with_fallback().then(Duration::ZERO, Step::Silence(0)).then(plan.outage, Step::Return(0));
    // Connections that were quiet are found to be dead by their next keepalive.
    Script { end: OUTAGE + plan.outage + Duration::from_secs(500), untouched: vec![(0, 1)], ..script }
}

fn mid_update(plan: &Plan) -> Script {
    // It goes on for as long as it takes to send all the half of the update, so that all are caught.
    let sending = Duration::from_micros(300) * plan.clients + Duration::from_millis(100);
    let begun = OUTAGE - sending;
    let mut script = with_fallback().then(Duration::ZERO, Step::Kill(0));
    script.steps.push((begun, Step::Serve(1, setup::edition(2))));
    script.steps.push((begun, Step::Serve(0, setup::half(2))));
    Script { edition: 2, updated_within: Some(Duration::from_secs(3)), ..script }
}

fn mass_start(_: &Plan) -> Script {
    let mut script = with_fallback();
    script.steps.push((Duration::ZERO, Step::Kill(0)));
    Script { start: Duration::from_secs(1), outage_at: Duration::ZERO, ..script }
}

fn from_files(plan: &Plan) -> Script {
    let mut script = Script::calm(1, vec![vec![vec![0]]]);
    script.steps.extend([(Duration::ZERO, Step::Kill(0)), (plan.outage, Step::Return(0))]);
    let end = plan.outage + Duration::from_secs(180);
    Script { start: Duration::from_secs(1), outage_at: Duration::ZERO, last_good: true, end, ..script }
}

fn rolling(_: &Plan) -> Script {
    let mut script = Script::calm(3, vec![vec![vec![0, 1, 2]]]);
    for replica in 0..3 {
        let at = Duration::from_secs(20) * u32::try_from(replica).unwrap_or_default();
        script = script.then(at, Step::Kill(replica)).then(at + Duration::from_secs(5), Step::Return(replica));
    }
    Script { end: OUTAGE + Duration::from_secs(120), ..script }
}

fn slow(_: &Plan) -> Script {
    let script = Script::calm(1, vec![vec![vec![0]]]);
    let end = Duration::from_secs(180);
    Script { planes: vec![10], start: Duration::from_secs(1), outage_at: Duration::ZERO, end, ..script }
}

fn bad_push(_: &Plan) -> Script {
    let script = with_fallback()
        .then(Duration::ZERO, Step::Serve(0, setup::rejected(2)))
        .then(Duration::from_secs(60), Step::Serve(0, setup::edition(3)));
    Script { edition: 3, untouched: vec![(0, 1)], end: OUTAGE + Duration::from_secs(120), ..script }
}

fn regions(plan: &Plan) -> Script {
    let begun = OUTAGE - Duration::from_micros(300) * (plan.clients / 3) - Duration::from_millis(100);
    let groups = (0..3).map(|region| vec![vec![region], vec![3]]).collect();
    let mut script = Script::calm(4, groups).then(Duration::ZERO, Step::Kill(0));
    script.steps.push((begun, Step::Serve(0, setup::half(2))));
    script.steps.extend([1, 2, 3].map(|plane| (begun, Step::Serve(plane, setup::edition(2)))));
    Script { edition: 2, updated_within: Some(Duration::from_secs(3)), untouched: vec![(1, 3), (2, 3)], ..script }
}

fn mixed_fleet(plan: &Plan) -> Script {
    Script { peers: Some(10), ..hand_over(plan) }
}

fn with_fallback() -> Script {
    Script::calm(2, vec![vec![vec![0], vec![1]]])
}

/// When something happens to a fleet that runs.
const OUTAGE: Duration = Duration::from_secs(70);
