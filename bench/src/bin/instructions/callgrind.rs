//! Programs under callgrind, and the count that it writes at their end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::Process;

/// Where callgrind writes its counts, for one run.
pub(crate) struct CountFile(PathBuf);

impl CountFile {
    pub(crate) fn new(name: &str) -> Self {
        let file = format!("tidegate-instructions-{}-{name}", std::process::id());
        Self(std::env::temp_dir().join(file))
    }

    /// A command that runs a program under callgrind on one core, so that runs do not differ by how threads meet.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Process::command("taskset");
        command.args(["-c", "0", "valgrind", "--tool=callgrind", "-q"]);
        command.arg(format!("--callgrind-out-file={}", self.0.display())).arg(program);
        command
    }

    /// Instructions that the program has executed. It has ended.
    pub(crate) fn read(&self) -> u64 {
        total(&self.0).unwrap_or_else(|| panic!("{}: no line `totals: N`", self.0.display()))
    }
}

impl Drop for CountFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn total(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().rev().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}
