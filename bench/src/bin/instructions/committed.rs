//! The committed counts: one line for each path, and the compiler that they were taken with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Largest growth that passes.
pub(crate) const TOLERANCE_PERCENT: f64 = 2.0;

const COMPILER: &str = "rustc";

/// `bench/instructions.json`.
pub(crate) struct Committed {
    compiler: Option<String>,
    counts: BTreeMap<String, u64>,
}

impl Committed {
    pub(crate) fn read() -> Self {
        let text = std::fs::read_to_string(path()).unwrap_or_default();
        let (mut compiler, mut counts) = (None, BTreeMap::new());
        // One member to a line, as this writes it.
        for line in text.lines() {
            let Some((name, value)) = line.trim().trim_end_matches(',').split_once(": ") else {
                continue;
            };
            let name = name.trim_matches('"');
            match value.parse() {
                Ok(count) => drop(counts.insert(name.to_owned(), count)),
                Err(_) => compiler = Some(value.trim_matches('"').to_owned()),
            }
        }
        Self { compiler, counts }
    }

    pub(crate) fn warn_about_compiler(&self) {
        if self.compiler.as_ref().is_some_and(|compiler| *compiler != installed_compiler()) {
            eprintln!(
                "instructions: counts are of {}, this is {}: changes may be the compiler's",
                self.compiler.as_deref().unwrap_or_default(),
                installed_compiler()
            );
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<u64> {
        self.counts.get(name).copied()
    }

    pub(crate) fn set(&mut self, name: &str, count: u64) {
        self.counts.insert(name.to_owned(), count);
    }

    pub(crate) fn write(&self) {
        let counts = self.counts.iter().map(|(name, count)| format!("  \"{name}\": {count}"));
        let compiler = format!("  \"{COMPILER}\": \"{}\"", installed_compiler());
        let lines: Vec<String> = std::iter::once(compiler).chain(counts).collect();
        std::fs::write(path(), format!("{{\n{}\n}}\n", lines.join(",\n"))).unwrap();
    }
}

fn path() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.json").into()
}

fn installed_compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
