//! Memory, open files, tasks and processor time of this process, and whether they grow.

use std::{fmt, time::Duration};

use crate::cost;

/// Samples over time. On systems without `/proc` there are none.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Resident memory in bytes.
    memory: Vec<u64>,
    files: Vec<u64>,
    /// Tasks of this runtime.
    tasks: Vec<u64>,
    /// Hundredths of a second of processor time so far.
    cpu: Vec<u64>,
}

/// How a run ended compared to how it went before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) memory: Bytes,
    pub(super) files: Count,
    pub(super) tasks: Count,
    pub(super) cpu: Processors,
}

/// Usual values in the second and in the last quarter of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    before: u64,
    after: u64,
}

/// How many processors were busy, in hundredths, in the same quarters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Processors {
    before: u64,
    after: u64,
}

/// The same for things that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    before: u64,
    after: u64,
}

impl Meter {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Takes a sample.
    pub(super) fn sample(&mut self) {
        self.memory.extend(cost::resident_memory());
        self.files.extend(open_files().map(|files| files as u64));
        self.tasks.push(tokio::runtime::Handle::current().metrics().num_alive_tasks() as u64);
        self.cpu.extend(cost::processor_time().and_then(|time| u64::try_from(time.as_millis() / 10).ok()));
    }

    /// The latest sample, for people.
    pub(super) fn latest(&self) -> String {
        match (self.memory.last(), self.files.last()) {
            (Some(memory), Some(files)) => format!("{:.1} MiB, {files} files", mib(*memory)),
            _ => String::new(),
        }
    }

    /// The second quarter, in which everything was warm, against the last one. Medians: a server that is down for a
    /// moment has fewer connections.
    pub(super) fn growth(&self) -> Option<Growth> {
        let (memory_before, memory_after) = quarters(&self.memory)?;
        let (files_before, files_after) = quarters(&self.files)?;
        let (tasks_before, tasks_after) = quarters(&self.tasks)?;
        Some(Growth {
            memory: Bytes { before: memory_before, after: memory_after },
            files: Count { before: files_before, after: files_after },
            tasks: Count { before: tasks_before, after: tasks_after },
            cpu: Processors::of(&self.cpu)?,
        })
    }
}

impl Growth {
    /// Whether what there is more of may be chance.
    pub(super) fn is_flat(&self) -> bool {
        let Self { memory, files, tasks, cpu } = self;
        memory.after <= memory.before + (memory.before / 10).max(MEMORY_SLACK)
            && files.after <= files.before + (files.before / 10).max(FILES_SLACK)
            && tasks.after <= tasks.before + (tasks.before / 4).max(TASKS_SLACK)
            && cpu.after <= cpu.before + (cpu.before / 2).max(CPU_SLACK)
    }
}

impl Processors {
    fn of(time: &[u64]) -> Option<Self> {
        let quarter = time.len() / 4;
        let busy = |samples: &[u64]| {
            let spent = samples.last()?.checked_sub(*samples.first()?)?;
            let intervals = u64::try_from(samples.len()).ok()?.checked_sub(1).filter(|intervals| *intervals > 0)?;
            Some(spent * 1000 / (intervals * u64::try_from(SAMPLE.as_millis()).ok()?))
        };
        // A run that is too short to have quarters of more than a sample does not grow.
        let before = time.get(quarter..2 * quarter).and_then(busy).unwrap_or_default();
        Some(Self { before, after: time.get(3 * quarter..).and_then(busy).filter(|_| quarter > 1).unwrap_or(before) })
    }
}

impl fmt::Display for Processors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let busy = |hundredths: u64| hundredths as f64 / 100.0;
        write!(f, "{:.2} in the second quarter, {:.2} in the last", busy(self.before), busy(self.after))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB in the second quarter, {:.1} MiB in the last", mib(self.before), mib(self.after))
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in the second quarter, {} in the last", self.before, self.after)
    }
}

/// How many files, sockets among them, this process has open.
pub(super) fn open_files() -> Option<usize> {
    // One of them is the directory that is being read.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1))
}

fn quarters(samples: &[u64]) -> Option<(u64, u64)> {
    let quarter = samples.len() / 4;
    Some((median(samples.get(quarter..2 * quarter)?)?, median(samples.get(3 * quarter..)?)?))
}

fn median(samples: &[u64]) -> Option<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// How often everything is looked at.
pub(super) const SAMPLE: Duration = Duration::from_millis(500);

/// What an allocator may keep for itself.
const MEMORY_SLACK: u64 = 4 << 20;
/// Connections that happen to be there in one half and not in the other.
const FILES_SLACK: u64 = 6;
/// Calls that happen to be under way.
const TASKS_SLACK: u64 = 100;
/// What a busy machine takes or gives, in hundredths of a processor.
const CPU_SLACK: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_from_noise() {
        let meter = |memory: fn(u64) -> u64, files: fn(u64) -> u64| Meter {
            memory: (0..100).map(memory).collect(),
            files: (0..100).map(files).collect(),
            tasks: vec![100; 100],
            cpu: (0..100).map(|n| 10 * n).collect(),
        };
        let steady = meter(|n| (50 << 20) + ((n % 7) << 18), |n| 30 + n % 5);
        assert!(steady.growth().is_some_and(|growth| growth.is_flat()));
        let leak = meter(|n| (50 << 20) + (n << 18), |_| 30);
        assert!(leak.growth().is_some_and(|growth| !growth.is_flat()));
        let sockets = meter(|_| 50 << 20, |n| 30 + n);
        assert!(sockets.growth().is_some_and(|growth| !growth.is_flat()));
        assert_eq!(Meter::new().growth(), None);
        let mut tasks = meter(|_| 50 << 20, |_| 30);
        tasks.tasks = (0..100).map(|n| 100 + 10 * n).collect();
        assert!(tasks.growth().is_some_and(|growth| !growth.is_flat()));
        let mut spinning = meter(|_| 50 << 20, |_| 30);
        spinning.cpu = (0..100).map(|n| if n < 60 { 10 * n } else { 600 + 100 * (n - 60) }).collect();
        assert!(spinning.growth().is_some_and(|growth| !growth.is_flat()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_files() {
        let before = open_files().unwrap();
        assert!(before > 2);
    }
}
