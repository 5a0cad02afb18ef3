//! Wall clocks with an offset.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::tool::Tool;

const OFFSET: &str = "FAKETIME";
const OFFSET_FILE: &str = "FAKETIME_TIMESTAMP_FILE";

/// Offsets the wall clock of a program by this many seconds.
pub(crate) fn set(command: &mut Command, offset_seconds: i64) {
    preload(command);
    command.env(OFFSET, format!("{offset_seconds:+}s"));
}

/// Makes a program add the offset in `file` to its wall clock. It reads the file at each call.
pub(crate) fn follow(command: &mut Command, file: &Path) {
    preload(command);
    command.env(OFFSET_FILE, file);
    command.env("FAKETIME_NO_CACHE", "1");
}

/// Writes the offset for programs that [`follow`] this file, in one step.
pub(crate) fn write(file: &Path, offset_millis: i64) {
    let (sign, size) = (if offset_millis < 0 { '-' } else { '+' }, offset_millis.unsigned_abs());
    let text = format!("{sign}{}.{:03}s\n", size / 1000, size % 1000);
    let new = file.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, file));
    written.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn preload(command: &mut Command) {
    // With the C library's allocator first: libfaketime allocates memory before it can return the time, and
    // the allocator of Debian's Redis reads the time before it can allocate.
    let library = Tool::Faketime.expect_path();
    command.env("LD_PRELOAD", format!("{}:libc.so.6", library.display()));
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// Returns whether the program's clock is off.
pub(crate) fn is_set(command: &Command) -> bool {
    command.get_envs().any(|(name, _)| name == OFFSET || name == OFFSET_FILE)
}

/// Removes files that libfaketime leaves behind for a killed process.
pub(crate) fn tidy_up_after(id: u32) {
    for name in ["faketime_shm", "sem.faketime_sem"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}_{id}"));
    }
}
