//! Processes, cores and installed programs of this machine.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testkit::Process;

/// Folder of the peers below the home directory. `tools/setup-bench.sh` installs them.
const PEERS_FOLDER: &str = ".cache/tidegate-tools/peers";

/// Core of the servers, where a measurement pins them.
pub const SERVER_CORE: usize = 0;
/// Core of the load, where a measurement pins it.
pub const LOAD_CORE: usize = 1;

/// Returns a command for a program on one core, or on all. The program ends with this process.
pub fn command(program: impl AsRef<OsStr>, core: Option<usize>) -> Command {
    let Some(core) = core else { return Process::command(program) };
    let mut command = Process::command("taskset");
    command.args(["-c", &core.to_string()]).arg(program);
    command
}

/// Pins a process to a core. Returns whether that succeeded.
#[must_use]
pub fn pin(process: u32, core: usize) -> bool {
    let mut taskset = Command::new("taskset");
    let pinned = taskset.args(["-a", "-p", "-c", &core.to_string(), &process.to_string()]).output();
    pinned.is_ok_and(|output| output.status.success())
}

/// Returns the path of a program in the folder of this one.
///
/// # Panics
/// There is no such program.
#[must_use]
pub fn sibling_binary(name: &str) -> PathBuf {
    let path = std::env::current_exe().expect("this program has a path").with_file_name(name);
    assert!(path.exists(), "no {}; make bench builds it", path.display());
    path
}

/// Returns the path of a file of a peer, or prints a warning if the peer is not installed.
#[allow(clippy::print_stderr, reason = "a warning about an incomplete comparison")]
#[must_use]
pub fn peer(file: &str) -> Option<PathBuf> {
    let path = std::env::home_dir()?.join(PEERS_FOLDER).join(file);
    if path.exists() {
        return Some(path);
    }
    eprintln!("warning: {file} is not installed, skipping it; tools/setup-bench.sh installs it");
    None
}

/// Returns the path of a program that is installed or not, or prints a warning.
#[allow(clippy::print_stderr, reason = "a warning about an incomplete comparison")]
#[must_use]
pub fn installed(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).chain([PathBuf::from("/usr/sbin")]);
    let path = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    if path.is_none() {
        eprintln!(
            "warning: {name} is not installed, skipping it; tools/setup-bench.sh installs it"
        );
    }
    path
}

/// Returns the CPU time that a process and its children have used so far, in microseconds.
#[must_use]
pub fn cpu_micros(process: u32) -> f64 {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = folders.filter_map(|entry| ProcessStat::read(&entry.path()));
    let own = all.filter(|stat| stat.id == process || stat.parent == process);
    own.map(|stat| stat.cpu_micros).sum()
}

/// Fields of `/proc/ID/stat`.
struct ProcessStat {
    id: u32,
    parent: u32,
    cpu_micros: f64,
}

impl ProcessStat {
    /// Reads the fields. Returns `None` if the folder is not that of a running process.
    fn read(folder: &Path) -> Option<Self> {
        let id = folder.file_name()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The fields follow the name in parentheses: state, parent, and so on. The 12th and 13th are user and system time,
        // in hundredths of a second.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        Some(Self { id, parent: fields.get(1)?.parse().ok()?, cpu_micros: ticks * 10_000.0 })
    }
}
