//! Instructions per operation on the hot paths, counted by callgrind and compared with the committed counts.
//!
//! `make instructions` builds this and `tidegate`, and fails when a path needs more instructions than
//! `bench/instructions.json` allows; `make instructions WRITE=1` replaces the counts in that file. Paths can be
//! named: `make instructions PATHS="http resp"`.
//!
//! Each path runs twice, with a number of operations and with three times that number. The difference of the instructions
//! is divided by the difference of the operations, so that startup, connections and shutdown do not count.
//!
//! Counts of the same programs differ by up to 0.7 % between runs, because hash seeds are random. They differ by up to 2 %
//! between an idle and a busy machine, because the server has periodic work. A path above the tolerance is counted again,
//! and the lowest count is compared.
//!
//! Counts depend on the compiler and the C library. The file contains the versions of its counts; with other versions the
//! table is printed and the command succeeds.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads its arguments and waits")]
#![allow(clippy::unwrap_used, reason = "a failed precondition ends the benchmark")]

mod callgrind;
mod committed;
mod in_process;
mod listener;

use std::process::ExitCode;

use committed::CommittedCounts;

/// Number of counts of a path above its limit before the command fails.
const MAX_ATTEMPTS: usize = 3;

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
    fn count(self, operations: u64, attempt: usize) -> u64 {
        match self {
            Self::Memory | Self::Redis => in_process::count(self, operations, attempt),
            Self::Http | Self::Rls | Self::Resp => listener::count(self, operations, attempt),
        }
    }

    /// Instructions per operation.
    fn instructions(self, attempt: usize) -> u64 {
        let operations = self.operations();
        let difference = self.count(3 * operations, attempt) - self.count(operations, attempt);
        difference / (2 * operations)
    }

    /// The lowest of up to [`MAX_ATTEMPTS`] counts, until one is within the limit.
    fn instructions_within(self, limit: f64) -> u64 {
        let mut lowest = u64::MAX;
        for attempt in 0..MAX_ATTEMPTS {
            lowest = lowest.min(self.instructions(attempt));
            if lowest as f64 <= limit {
                break;
            }
        }
        lowest
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, operations] = arguments.as_slice()
        && first == in_process::RUN_ARGUMENT
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
    let mut committed = CommittedCounts::read();
    let comparable = committed.is_comparable();
    println!("| path | instructions | committed | change |\n|---|---|---|---|");
    let mut exceeded = Vec::new();
    for path in HotPath::ALL.into_iter().filter(wanted) {
        let name = path.name();
        let found = match committed.get(name) {
            Some(before) => {
                let limit = before as f64 * (1.0 + committed::TOLERANCE_PERCENT / 100.0);
                let compares = comparable && !write;
                let found = path.instructions_within(if compares { limit } else { f64::INFINITY });
                let change = (found as f64 / before as f64 - 1.0) * 100.0;
                println!("| {name} | {found} | {before} | {change:+.1} % |");
                if compares && found as f64 > limit {
                    exceeded.push(name);
                }
                found
            }
            None => {
                let found = path.instructions(0);
                println!("| {name} | {found} | none | |");
                found
            }
        };
        committed.set(name, found);
    }
    if write {
        committed.write();
    } else if !exceeded.is_empty() {
        let tolerance = committed::TOLERANCE_PERCENT;
        eprintln!(
            "instructions: {} more than {tolerance} % above the committed count; to accept it: make instructions WRITE=1",
            exceeded.join(", ")
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
