//! Instructions per operation on the hot paths, counted by callgrind, beside the committed counts.
//!
//! `make instructions` builds this and `tidegate`, and fails when a path needs more instructions than
//! `bench/instructions.json` allows; `make instructions WRITE=1` replaces the counts in that file. Paths can be
//! named: `make instructions PATHS="http resp"`.
//!
//! Each path runs twice, with a number of operations and with three times that number. The difference is
//! divided by the difference of operations, so that start, connections and end do not count. Counts depend on the
//! compiler: the file names the version that they were taken with.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments and waits")]
#![allow(clippy::unwrap_used, reason = "a benchmark that can't go on has failed")]

mod callgrind;
mod committed;
mod in_process;
mod listener;

use std::process::ExitCode;

use committed::Committed;

/// A hot path, measured from the process that decides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HotPath {
    /// One check by a rule on the memory store.
    Memory,
    /// One of 64 checks at once on the Redis store; Redis itself is not counted.
    Redis,
    /// One `POST /v1/check`.
    Http,
    /// One call of Envoy's rate limit service.
    Rls,
    /// One command of a RESP pipeline of 16.
    Resp,
}

impl HotPath {
    const ALL: [Self; 5] = [Self::Memory, Self::Redis, Self::Http, Self::Rls, Self::Resp];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Http => "http",
            Self::Rls => "rls",
            Self::Resp => "resp",
        }
    }

    /// Operations of the shorter run.
    fn operations(self) -> u64 {
        match self {
            Self::Memory => 100_000,
            Self::Redis | Self::Resp => 16_000,
            Self::Http | Self::Rls => 4_000,
        }
    }

    /// Instructions of a whole run.
    fn count(self, operations: u64) -> u64 {
        match self {
            Self::Memory | Self::Redis => in_process::count(self, operations),
            Self::Http | Self::Rls | Self::Resp => listener::count(self, operations),
        }
    }

    fn instructions(self) -> u64 {
        let few = self.operations();
        (self.count(3 * few) - self.count(few)) / (2 * few)
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, operations] = arguments.as_slice()
        && first == in_process::RUN
    {
        in_process::run(name, operations.parse().unwrap());
        return ExitCode::SUCCESS;
    }
    let (flags, names): (Vec<String>, Vec<String>) =
        arguments.into_iter().partition(|argument| argument.starts_with("--"));
    let write = match flags.as_slice() {
        [] => false,
        [flag] if flag == "--write" => true,
        other => panic!("found {other:?}, wanted --write or names of paths"),
    };
    let known: Vec<&str> = HotPath::ALL.map(HotPath::name).to_vec();
    for name in &names {
        assert!(known.contains(&name.as_str()), "found {name:?}, wanted one of {known:?}");
    }
    let wanted = |path: &HotPath| names.is_empty() || names.iter().any(|name| name == path.name());
    let mut committed = Committed::read();
    committed.warn_about_compiler();
    println!("| path | instructions | committed | change |\n|---|---|---|---|");
    let mut exceeded = Vec::new();
    for path in HotPath::ALL.into_iter().filter(wanted) {
        let (name, found) = (path.name(), path.instructions());
        match committed.get(name) {
            Some(before) => {
                let change = (found as f64 / before as f64 - 1.0) * 100.0;
                println!("| {name} | {found} | {before} | {change:+.1} % |");
                if change > committed::TOLERANCE_PERCENT {
                    exceeded.push(name);
                }
            }
            None => println!("| {name} | {found} | none | |"),
        }
        committed.set(name, found);
    }
    if write {
        committed.write();
    } else if !exceeded.is_empty() {
        let tolerance = committed::TOLERANCE_PERCENT;
        eprintln!(
            "instructions: {} over {tolerance} % more than committed; if that is meant: make instructions WRITE=1",
            exceeded.join(", ")
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
