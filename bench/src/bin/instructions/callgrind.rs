//! Programs under callgrind, and the count that it writes at their end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::Process;

/// The file that callgrind writes the count of one run to.
pub(crate) struct CountFile {
    path: PathBuf,
    /// The number of the attempt.
    attempt: usize,
}

impl CountFile {
    pub(crate) fn new(name: &str, attempt: usize) -> Self {
        let file = format!("tidegate-instructions-{}-{name}", std::process::id());
        Self { path: std::env::temp_dir().join(file), attempt }
    }

    /// A command that runs a program under callgrind on one core, so that runs do not differ by how threads meet.
    ///
    /// Each attempt has an environment that is 16 bytes longer. It moves the stack, and whether the stack is
    /// aligned to 32 bytes changes the instructions of copies: by 1.3 % for a check in memory.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Process::command("taskset");
        command.args(["-c", "0", "valgrind", "--tool=callgrind", "-q"]);
        command.arg(format!("--callgrind-out-file={}", self.path.display())).arg(program);
        command.env("TIDEGATE_PADDING", "x".repeat(16 * self.attempt));
        command
    }

    /// Instructions that the program has executed. It has ended.
    pub(crate) fn read(&self) -> u64 {
        total(&self.path).unwrap_or_else(|| panic!("{}: no line `totals: N`", self.path.display()))
    }
}

impl Drop for CountFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn total(path: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().rev().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}
