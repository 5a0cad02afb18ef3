//! The committed counts: one line for each path, and the environment that they were taken in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Largest growth that passes. Two runs of one build differ by up to 2 %.
pub(crate) const TOLERANCE_PERCENT: f64 = 5.0;

const ENVIRONMENT: &str = "environment";

/// `bench/instructions.json`.
pub(crate) struct CommittedCounts {
    /// The compiler and the C library of the counts.
    environment: Option<String>,
    counts: BTreeMap<String, u64>,
}

impl CommittedCounts {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string(path()).unwrap_or_default();
        let (mut environment, mut counts) = (None, BTreeMap::new());
        // One member per line, as `write` formats it.
        for line in text.lines() {
            let Some((name, value)) = line.trim().trim_end_matches(',').split_once(": ") else {
                continue;
            };
            let name = name.trim_matches('"');
            match value.parse() {
                Ok(count) => drop(counts.insert(name.to_owned(), count)),
                Err(_) => environment = Some(value.trim_matches('"').to_owned()),
            }
        }
        Self { environment, counts }
    }

    /// Returns whether the counts were taken with this compiler and C library. If not, prints a notice.
    pub(crate) fn is_comparable(&self) -> bool {
        let Some(committed) = &self.environment else { return true };
        let current = current_environment();
        if *committed != current {
            eprintln!(
                "instructions: committed counts are of {committed}, this is {current}: changes are printed and do not fail"
            );
        }
        *committed == current
    }

    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.counts.get(name).copied()
    }

    pub(crate) fn set(&mut self, name: &str, count: u64) {
        self.counts.insert(name.to_owned(), count);
    }

    pub(crate) fn write(&self) {
        let counts = self.counts.iter().map(|(name, count)| format!("  \"{name}\": {count}"));
        let environment = format!("  \"{ENVIRONMENT}\": \"{}\"", current_environment());
        let lines: Vec<String> = std::iter::once(environment).chain(counts).collect();
        std::fs::write(path(), format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
    }
}

fn path() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json").into()
}

/// Returns the versions of the compiler and the C library, and the architecture.
fn current_environment() -> String {
    let rustc = first_line("rustc", &["--version"]);
    let libc = first_line("getconf", &["GNU_LIBC_VERSION"]);
    format!("{rustc}, {libc}, {}", std::env::consts::ARCH)
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned()
}
