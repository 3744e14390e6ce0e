//! Memory and open files of this process, and whether they grow.

use std::fmt;

/// Samples over time. On systems without `/proc` there are none.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Resident memory in bytes.
    memory: Vec<u64>,
    files: Vec<u64>,
}

/// How a run ended compared to how it went before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) memory: Bytes,
    pub(super) files: Count,
}

/// Usual values in the second and in the last quarter of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
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
        self.memory.extend(resident_memory());
        self.files.extend(open_files().map(|files| files as u64));
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
        Some(Growth {
            memory: Bytes { before: memory_before, after: memory_after },
            files: Count { before: files_before, after: files_after },
        })
    }
}

impl Growth {
    /// Whether what there is more of may be chance.
    pub(super) fn is_flat(&self) -> bool {
        let Self { memory, files } = self;
        memory.after <= memory.before + (memory.before / 10).max(MEMORY_SLACK)
            && files.after <= files.before + FILES_SLACK
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

/// Resident memory of this process in bytes.
fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
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

/// What an allocator may keep for itself.
const MEMORY_SLACK: u64 = 4 << 20;
/// Connections that happen to be there in one half and not in the other.
const FILES_SLACK: u64 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_from_noise() {
        let meter = |memory: fn(u64) -> u64, files: fn(u64) -> u64| Meter {
            memory: (0..100).map(memory).collect(),
            files: (0..100).map(files).collect(),
        };
        let steady = meter(|n| (50 << 20) + ((n % 7) << 18), |n| 30 + n % 5);
        assert!(steady.growth().is_some_and(|growth| growth.is_flat()));
        let leak = meter(|n| (50 << 20) + (n << 18), |_| 30);
        assert!(leak.growth().is_some_and(|growth| !growth.is_flat()));
        let sockets = meter(|_| 50 << 20, |n| 30 + n);
        assert!(sockets.growth().is_some_and(|growth| !growth.is_flat()));
        assert_eq!(Meter::new().growth(), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_files() {
        let before = open_files().unwrap();
        assert!(resident_memory().unwrap() > 1 << 20 && before > 2);
    }
}
