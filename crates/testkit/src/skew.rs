//! Wall clocks that are off.

use std::fs;
use std::process::Command;

use crate::tool::Tool;

const OFFSET: &str = "FAKETIME";

/// Sets the wall clock of a program off by so many seconds.
pub(crate) fn set(command: &mut Command, offset_seconds: i64) {
    // With the C library's allocator first: libfaketime asks for memory before it can tell the time, and the allocator
    // that Debian's Redis comes with asks for the time before it can give memory.
    let library = Tool::Faketime.expect_path();
    command.env("LD_PRELOAD", format!("{}:libc.so.6", library.display()));
    command.env(OFFSET, format!("{offset_seconds:+}s"));
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// Whether the program's clock is off.
pub(crate) fn is_set(command: &Command) -> bool {
    command.get_envs().any(|(name, _)| name == OFFSET)
}

/// Removes what libfaketime leaves of a process that was killed.
pub(crate) fn tidy_up_after(id: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}_{id}"));
    }
}
