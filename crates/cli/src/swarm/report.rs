//! What a swarm has seen, in figures.

use std::{fmt, time::Duration};

use serde::Serialize;

use super::client::Happened;
use crate::{cost, failure::Failure};

/// Counts what happens to clients.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) started: Duration,
    clients: Vec<Client>,
    refused: u64,
    unconnected: u64,
    lost: u64,
    absent: u64,
    failed: u64,
    resource_bytes: u64,
    cpu: Duration,
    memory: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// When it was answered or refused for the first time.
    heard: Option<Duration>,
    configured: Option<Duration>,
}

impl Tally {
    pub(super) fn new(clients: usize) -> Self {
        Self {
            started: Duration::ZERO,
            clients: vec![Client::default(); clients],
            refused: 0,
            unconnected: 0,
            lost: 0,
            absent: 0,
            failed: 0,
            resource_bytes: 0,
            cpu: Duration::ZERO,
            memory: 0,
        }
    }

    /// Something happened to a client, so long after the start.
    pub(super) fn note(&mut self, client: usize, happened: Happened, after: Duration) {
        let Some(client) = self.clients.get_mut(client) else { return };
        match happened {
            Happened::Answered => drop(client.heard.get_or_insert(after)),
            Happened::Refused => {
                client.heard.get_or_insert(after);
                self.refused += 1;
            }
            Happened::Unconnected => self.unconnected += 1,
            Happened::Lost => self.lost += 1,
            Happened::Absent => self.absent += 1,
            Happened::Failed => self.failed += 1,
            Happened::Configured { bytes } => {
                client.configured.get_or_insert(after);
                self.resource_bytes += bytes as u64;
            }
        }
    }

    /// Whether all have a configuration.
    pub(super) fn is_complete(&self) -> bool {
        self.clients.iter().all(|client| client.configured.is_some())
    }

    /// Looks at what it cost so far.
    pub(super) fn measure(&mut self) {
        self.cpu = cost::processor_time().unwrap_or_default();
        self.memory = cost::resident_memory().unwrap_or_default();
    }

    pub(super) fn report(&self) -> Report {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Report {
            clients: self.clients.len(),
            configured: self.clients.iter().filter(|client| client.configured.is_some()).count(),
            started_ms: millis(self.started),
            heard_ms: Percentiles::of(self.clients.iter().filter_map(|client| client.heard)),
            configured_ms: Percentiles::of(self.clients.iter().filter_map(|client| client.configured)),
            refused: self.refused,
            unconnected: self.unconnected,
            lost: self.lost,
            absent: self.absent,
            failed: self.failed,
            resource_bytes: self.resource_bytes,
            cpu_ms: millis(self.cpu),
            memory_bytes: self.memory,
        }
    }

    /// What the exit code says.
    pub(super) fn outcome(&self, timeout: Duration) -> Result<(), Failure> {
        let Report { clients, configured, absent, failed, .. } = self.report();
        if absent + failed > 0 {
            return Err(Failure::partial(format!(
                "resources were held for absent {absent} times, and {failed} times there was an error in the place of a \
                 configuration"
            )));
        }
        if configured < clients {
            let waiting = clients - configured;
            return Err(Failure::partial(format!(
                "{waiting} of {clients} clients had no configuration within {timeout:?}"
            ))
            .tip("--timeout gives them more time"));
        }
        Ok(())
    }
}

/// The figures.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    clients: usize,
    configured: usize,
    started_ms: u64,
    heard_ms: Option<Percentiles>,
    configured_ms: Option<Percentiles>,
    refused: u64,
    unconnected: u64,
    lost: u64,
    absent: u64,
    failed: u64,
    resource_bytes: u64,
    cpu_ms: u64,
    memory_bytes: u64,
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Percentiles {
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
}

impl Percentiles {
    fn of(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut millis: Vec<u64> = times.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).collect();
        millis.sort_unstable();
        // The smallest time within which so many of a hundred were done.
        let at = |percent: usize| millis.get((millis.len() * percent).div_ceil(100).saturating_sub(1)).copied();
        Some(Self { p50: at(50)?, p90: at(90)?, p99: at(99)?, max: at(100)? })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p90, p99, max } = self;
        write!(f, "p50 {p50} ms, p90 {p90} ms, p99 {p99} ms, last {max} ms")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = |times: &Option<Percentiles>| times.map_or_else(|| "-".to_owned(), |times| times.to_string());
        writeln!(f, "clients     {}, started within {} ms", self.clients, self.started_ms)?;
        writeln!(f, "heard       {}", times(&self.heard_ms))?;
        writeln!(f, "configured  {}: {}", self.configured, times(&self.configured_ms))?;
        let Self { refused, unconnected, lost, absent, failed, .. } = self;
        writeln!(f, "refused     {refused}, not connected {unconnected}, ended {lost}")?;
        writeln!(f, "absent      {absent}, failed {failed}")?;
        writeln!(f, "resources   {:.1} MiB", mib(self.resource_bytes))?;
        let each = (self.memory_bytes / self.clients.max(1) as u64) >> 10;
        write!(f, "cost        {} ms of CPU, {:.1} MiB, {each} KiB a client", self.cpu_ms, mib(self.memory_bytes))
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_heard_once_and_counted_as_often_as_it_is_refused() {
        let mut tally = Tally::new(2);
        let ms = Duration::from_millis;
        tally.note(0, Happened::Refused, ms(10));
        tally.note(0, Happened::Refused, ms(500));
        tally.note(0, Happened::Answered, ms(900));
        tally.note(0, Happened::Configured { bytes: 7 }, ms(9000));
        tally.note(1, Happened::Answered, ms(20));
        assert!(!tally.is_complete() && tally.outcome(ms(1)).is_err());
        tally.note(1, Happened::Configured { bytes: 7 }, ms(30));
        let report = tally.report();
        assert_eq!((report.refused, report.configured, report.resource_bytes), (2, 2, 14));
        assert_eq!(report.heard_ms.map(|times| (times.p50, times.max)), Some((10, 20)));
        assert_eq!(report.configured_ms.map(|times| (times.p50, times.max)), Some((30, 9000)));
        assert!(tally.is_complete() && tally.outcome(ms(1)).is_ok());
        tally.note(1, Happened::Absent, ms(40));
        assert!(tally.outcome(ms(1)).is_err());
    }
}
