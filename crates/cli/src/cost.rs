//! What this process costs, as Linux counts; elsewhere nobody knows.

use std::time::Duration;

/// Resident memory in bytes.
pub(crate) fn resident_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Processor time so far.
pub(crate) fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process is in brackets and may hold anything. Fields 14 and 15 of proc_pid_stat(5).
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis(10 * (user + system)))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_a_processor() {
        assert!(resident_memory().unwrap() > 1 << 20 && processor_time().is_some());
    }
}
