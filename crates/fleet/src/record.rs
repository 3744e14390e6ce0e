//! What was seen of a fleet: at each control plane over time, at each client in the end.

use std::fmt::Write as _;
use std::time::Duration;

use mainstay_xds::Time;

use crate::client::Life;

/// One run, and what it showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Which scenario it was.
    pub scenario: &'static str,
    /// How many clients there were.
    pub clients: u32,
    /// When what the scenario is about begins.
    pub outage_at: Duration,
    /// How many events there were.
    pub events: u64,
    /// One for each control plane; of last-good files, which are one as well, the last one.
    pub planes: Vec<PlaneReport>,
    /// From the start of a client until it could send RPCs.
    pub configured: Percentiles,
    /// From the outage until a client that was cut off had a stream again.
    pub back: Percentiles,
    /// From the outage until a client had the last edition, where there was a new one.
    pub updated: Percentiles,
    /// Clients whose RPCs failed after they had been served once.
    pub failed: u32,
    /// Clients that were told that a resource does not exist.
    pub absences: u32,
    /// Responses that were rejected.
    pub nacks: u32,
    /// How often a client fell back to another server.
    pub fallbacks: u32,
    /// What does not hold and must (SC-20).
    pub violations: Vec<String>,
    /// What one client did, where it was asked for.
    pub transcript: Vec<String>,
}

/// What a control plane was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaneReport {
    /// In each [`TICK`] since the start.
    pub moments: Moments,
    /// How many clients were connected to it at any time.
    pub met_by: u32,
}

/// What was counted, tick by tick.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moments(pub Vec<Seen>);

/// What a control plane saw in one tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Connections that came in.
    pub opens: u32,
    /// Connections that it refused, dropped for want of room, or streams that it sent away.
    pub refusals: u32,
    /// Responses that were sent.
    pub answers: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The longest wait for its processor, in microseconds.
    pub queue: u64,
}

/// Some of the clients, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// How many there are.
    pub count: usize,
    /// Half of them took no longer.
    pub p50: Duration,
    /// 99 of 100 took no longer.
    pub p99: Duration,
    /// None took longer.
    pub max: Duration,
}

/// How finely things are counted.
pub const TICK: Duration = Duration::from_millis(100);

impl Report {
    /// The most connections that came in at a control plane in a tick, from the outage on.
    pub fn peak_opens(&self, plane: usize) -> u32 {
        let from = tick(Time::from_start(self.outage_at));
        let moments = self.planes.get(plane).map_or(&[][..], |plane| &plane.moments.0);
        moments.iter().skip(from).map(|seen| seen.opens).max().unwrap_or(0)
    }

    /// All that was counted, a line for each tick and control plane in which anything happened.
    pub fn csv(&self) -> String {
        let mut text = "seconds,plane,opens,refusals,answers,bytes,queue_us\n".to_owned();
        for (plane, report) in self.planes.iter().enumerate() {
            for (at, seen) in report.moments.0.iter().enumerate().filter(|(_, seen)| **seen != Seen::default()) {
                let Seen { opens, refusals, answers, bytes, queue } = seen;
                let (seconds, tenths) = (at / 10, at % 10);
                _ = writeln!(text, "{seconds}.{tenths},{plane},{opens},{refusals},{answers},{bytes},{queue}");
            }
        }
        text
    }
}

impl Moments {
    pub(crate) fn at(&mut self, now: Time) -> &mut Seen {
        let at = tick(now);
        if self.0.len() <= at {
            self.0.resize(at + 1, Seen::default());
        }
        &mut self.0[at]
    }
}

impl Percentiles {
    pub(crate) fn of(mut spans: Vec<Duration>) -> Self {
        spans.sort_unstable();
        let rank = |percent: usize| (spans.len() * percent).div_ceil(100).saturating_sub(1);
        let at = |percent| spans.get(rank(percent)).copied().unwrap_or_default();
        Self { count: spans.len(), p50: at(50), p99: at(99), max: at(100) }
    }
}

/// Why a client did not end as all must.
pub(crate) fn ended_badly(life: &Life, edition: u32) -> Option<&'static str> {
    match life {
        Life { served: None, .. } => Some("never served"),
        Life { fails: true, .. } => Some("failing in the end"),
        Life { edition: Some((last, _)), .. } if *last == edition => None,
        Life { .. } => Some("without the last edition"),
    }
}

fn tick(now: Time) -> usize {
    usize::try_from(now.since_start().as_millis() / TICK.as_millis()).unwrap_or(usize::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let spans = (1..=200).rev().map(Duration::from_secs).collect();
        let of = Percentiles::of(spans);
        assert_eq!((of.count, of.p50.as_secs(), of.p99.as_secs(), of.max.as_secs()), (200, 100, 198, 200));
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }

    #[test]
    fn moments_are_tenths_of_seconds() {
        let mut moments = Moments::default();
        moments.at(Time::from_start(Duration::from_millis(250))).opens += 1;
        moments.at(Time::from_start(Duration::from_millis(299))).opens += 1;
        assert_eq!(moments.0.iter().map(|seen| seen.opens).collect::<Vec<_>>(), [0, 0, 2]);
    }
}
