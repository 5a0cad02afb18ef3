//! The file descriptors and the memory of this process, which limit its connections.

use std::path::Path;

use rustix::process::{Resource, getrlimit, setrlimit};
use tidegate_net::listener::ProcessResources;

/// Memory that is assumed if the system reports none, in bytes.
const UNKNOWN_MEMORY_BYTES: u64 = 1024 * 1024 * 1024;

/// Raises the limit of open files to the hard limit, and returns the resources of the process. The usual soft limit is
/// 1024.
pub(crate) fn raise_and_read() -> ProcessResources {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit of open files, fewer connections are possible");
        }
    }
    // `None` is no limit.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let memory_bytes = memory_bytes(|path| std::fs::read_to_string(path).ok());
    ProcessResources { files, memory_bytes }
}

/// Returns the memory of the control group, else that of the machine.
fn memory_bytes(read: impl Fn(&str) -> Option<String>) -> u64 {
    let machine = read("/proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().flat_map(group_limit_files);
    // A group without a limit reports "max", or in version 1 a number beyond any memory.
    let group = limits.filter_map(|file| read(&file)?.trim().parse().ok()).min();
    let known = [machine, group].into_iter().flatten().min();
    known.unwrap_or(UNKNOWN_MEMORY_BYTES)
}

/// Returns the files with the memory limit of a control group and of all groups around it. `line` is a line of
/// `/proc/self/cgroup`.
fn group_limit_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':');
    let (Some(number), Some(controllers), Some(group)) =
        (fields.next(), fields.next(), fields.next())
    else {
        return Vec::new();
    };
    let (root, file) = match (number, controllers) {
        ("0", "") => ("/sys/fs/cgroup", "memory.max"),
        (_, controllers) if controllers.split(',').any(|name| name == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    // In a container the path may be that of the host; the group of the container is then the root.
    let groups = Path::new(group).ancestors();
    groups
        .map(|group| {
            let group = group.display().to_string();
            format!("{root}{}/{file}", group.trim_end_matches('/'))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(files: &[(&str, &str)]) -> u64 {
        memory_bytes(|path| {
            let found = files.iter().find(|(name, _)| *name == path)?;
            Some(found.1.to_owned())
        })
    }

    const MACHINE: (&str, &str) = ("/proc/meminfo", "MemFree: 1 kB\nMemTotal:       4000 kB\n");

    #[test]
    fn memory_is_the_smallest_limit_of_the_control_groups_and_the_machine() {
        let v2 = ("/proc/self/cgroup", "0::/system.slice/tidegate.service\n");
        let own = "/sys/fs/cgroup/system.slice/tidegate.service/memory.max";
        let parent = "/sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(memory(&[MACHINE]), 4_096_000);
        assert_eq!(memory(&[MACHINE, v2, (own, "max\n")]), 4_096_000);
        assert_eq!(memory(&[MACHINE, v2, (own, "max\n"), (parent, "2000000\n")]), 2_000_000);
        assert_eq!(memory(&[MACHINE, v2, (own, "1000000\n"), (parent, "2000000\n")]), 1_000_000);
        assert_eq!(memory(&[MACHINE, v2, (own, "9000000\n")]), 4_096_000);
        assert_eq!(memory(&[]), UNKNOWN_MEMORY_BYTES);
    }

    #[test]
    fn memory_of_a_container_is_that_of_the_root_group() {
        let v1 = ("/proc/self/cgroup", "5:cpu:/\n4:memory:/docker/abc\n0::/\n");
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(memory(&[MACHINE, v1, (root, "3000000\n")]), 3_000_000);
        let v2 = ("/proc/self/cgroup", "0::/\n");
        assert_eq!(memory(&[MACHINE, v2, ("/sys/fs/cgroup/memory.max", "500000")]), 500_000);
    }
}
