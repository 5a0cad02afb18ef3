//! What the system knows of this process.

use std::fs;

/// The unit of `stat`'s processor times: 100 in a second on every Linux that there is.
const TICKS: f64 = 100.0;

/// Figures of this process; what the system does not tell is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    /// Processor time, user and system.
    pub cpu_seconds: Option<f64>,
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    pub(crate) virtual_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    pub(crate) most_files: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// In Unix time.
    pub(crate) started: Option<f64>,
}

impl Process {
    /// The figures as they are now.
    pub fn read() -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").ok();
        // Looking takes a descriptor too.
        let open = files.and_then(|files| u64::try_from(files.count()).ok());
        Self {
            open_files: open.map(|open| open.saturating_sub(1)),
            ..Self::parse(&text("self/stat"), &text("self/status"), &text("self/limits"))
                .since_boot(&text("stat"), &text("self/stat"))
        }
    }

    fn parse(stat: &str, status: &str, limits: &str) -> Self {
        let ticks = |place| field(stat, place);
        let cpu = ticks(USER).zip(ticks(SYSTEM)).map(|(user, system)| user + system);
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        Self {
            cpu_seconds: cpu.map(|ticks| ticks as f64 / TICKS),
            resident_bytes: kib("VmRSS:").map(|kib| kib * 1024),
            virtual_bytes: kib("VmSize:").map(|kib| kib * 1024),
            threads: kib("Threads:"),
            most_files: files.and_then(|line| line.split_whitespace().next()?.parse().ok()),
            ..Self::default()
        }
    }

    fn since_boot(self, system: &str, stat: &str) -> Self {
        let boot = system.lines().find_map(|line| line.strip_prefix("btime "));
        let boot = boot.and_then(|seconds| seconds.trim().parse::<u64>().ok());
        let started = boot.zip(field(stat, STARTED));
        Self { started: started.map(|(boot, ticks)| boot as f64 + ticks as f64 / TICKS), ..self }
    }
}

/// Places in `stat`, counted from behind the name.
const USER: usize = 11;
const SYSTEM: usize = 12;
const STARTED: usize = 19;

/// A number of `stat`. The name of the process is in parentheses and may itself have some.
fn field(stat: &str, place: usize) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "4242 (a) (b) S 1 4242 4242 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 4 0 \
                        777 1000000 300 18446744073709551615 0 0 0";

    #[test]
    fn figures_are_read_whatever_the_process_is_called() {
        let status = "Name:\ta\nVmSize:\t   2048 kB\nVmRSS:\t   1024 kB\nThreads:\t4\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        let read = Process::parse(STAT, status, limits).since_boot("cpu 1\nbtime 1000\n", STAT);
        let expected = Process {
            cpu_seconds: Some(2.0),
            resident_bytes: Some(1024 * 1024),
            virtual_bytes: Some(2048 * 1024),
            open_files: None,
            most_files: Some(1024),
            threads: Some(4),
            started: Some(1007.77),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn what_the_system_does_not_tell_is_not_there() {
        assert_eq!(Process::parse("", "", "").since_boot("", ""), Process::default());
        assert_eq!(
            Process::parse("1 (x", "VmRSS:", "Max open files").since_boot("btime x", "1"),
            Process::default()
        );
    }
}
