//! Statistics of this process, from `/proc`.

use std::fs;

/// Clock ticks per second, the unit of times in `/proc/self/stat`. Linux reports 100 on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

/// Statistics of this process. Fields that the system does not report are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    /// CPU time, user and system.
    pub cpu_seconds: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    pub(crate) virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    pub(crate) max_files: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Start of the process, in Unix seconds.
    pub(crate) started: Option<f64>,
}

impl ProcessStats {
    /// Reads the current statistics.
    pub fn read() -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").ok();
        // Reading the directory opens one more descriptor, which is subtracted below.
        let open = files.and_then(|files| u64::try_from(files.count()).ok());
        Self {
            open_files: open.map(|open| open.saturating_sub(1)),
            ..Self::parse(&text("self/stat"), &text("self/status"), &text("self/limits"))
                .with_start_time(&text("stat"), &text("self/stat"))
        }
    }

    /// Parses `/proc/self/stat`, `status` and `limits`.
    fn parse(stat: &str, status: &str, limits: &str) -> Self {
        let ticks = |index| stat_field(stat, index);
        let cpu = ticks(USER_FIELD).zip(ticks(SYSTEM_FIELD)).map(|(user, system)| user + system);
        let status_number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        Self {
            cpu_seconds: cpu.map(|ticks| ticks as f64 / TICKS_PER_SECOND),
            resident_bytes: status_number("VmRSS:").map(|kib| kib * 1024),
            virtual_bytes: status_number("VmSize:").map(|kib| kib * 1024),
            threads: status_number("Threads:"),
            max_files: files.and_then(|line| line.split_whitespace().next()?.parse().ok()),
            ..Self::default()
        }
    }

    /// Adds the start of the process: the boot time of `/proc/stat`, plus the ticks since then in `/proc/self/stat`.
    fn with_start_time(self, system_stat: &str, stat: &str) -> Self {
        let boot = system_stat.lines().find_map(|line| line.strip_prefix("btime "));
        let boot = boot.and_then(|seconds| seconds.trim().parse::<u64>().ok());
        let started = boot.zip(stat_field(stat, STARTED_FIELD));
        Self {
            started: started.map(|(boot, ticks)| boot as f64 + ticks as f64 / TICKS_PER_SECOND),
            ..self
        }
    }
}

/// Indices of fields in `/proc/self/stat`, counted from the field after the process name.
const USER_FIELD: usize = 11;
const SYSTEM_FIELD: usize = 12;
const STARTED_FIELD: usize = 19;

/// Returns a number of `/proc/self/stat`, counted after the last parenthesis: the process name before it is in
/// parentheses and may contain others.
fn stat_field(stat: &str, index: usize) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(index)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "4242 (a) (b) S 1 4242 4242 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 4 0 \
                        777 1000000 300 18446744073709551615 0 0 0";

    #[test]
    fn statistics_are_parsed_for_any_process_name() {
        let status = "Name:\ta\nVmSize:\t   2048 kB\nVmRSS:\t   1024 kB\nThreads:\t4\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        let read =
            ProcessStats::parse(STAT, status, limits).with_start_time("cpu 1\nbtime 1000\n", STAT);
        let expected = ProcessStats {
            cpu_seconds: Some(2.0),
            resident_bytes: Some(1024 * 1024),
            virtual_bytes: Some(2048 * 1024),
            open_files: None,
            max_files: Some(1024),
            threads: Some(4),
            started: Some(1007.77),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn missing_statistics_are_none() {
        assert_eq!(
            ProcessStats::parse("", "", "").with_start_time("", ""),
            ProcessStats::default()
        );
        assert_eq!(
            ProcessStats::parse("1 (x", "VmRSS:", "Max open files").with_start_time("btime x", "1"),
            ProcessStats::default()
        );
    }
}
