//! Measurements of time, and progress on the terminal.

use std::hint::black_box;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::keys::Key;

/// Returns whether `--quick` was given.
#[must_use]
pub fn is_quick() -> bool {
    std::env::args().any(|argument| argument == "--quick")
}

/// Returns the arguments that are no options.
#[must_use]
pub fn names() -> Vec<String> {
    std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect()
}

/// Returns the current time.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the average nanoseconds per call, of as many calls as the time allows.
pub fn nanos_per_call<T>(time: Duration, call: impl Fn() -> T) -> f64 {
    let (start, mut count) = (now(), 0_u32);
    loop {
        black_box(call());
        count += 1;
        let elapsed = start.elapsed();
        if elapsed >= time {
            return elapsed.as_nanos() as f64 / f64::from(count);
        }
    }
}

/// Returns the nanoseconds per key and thread while every thread checks its own keys.
///
/// # Panics
/// A thread panics.
pub fn threads_nanos<T>(threads: &[Vec<Key>], check_all: impl Fn(&[Key]) -> T + Sync) -> f64 {
    let barrier = Barrier::new(threads.len());
    let times: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .iter()
            .map(|keys| {
                let (barrier, check_all) = (&barrier, &check_all);
                scope.spawn(move || {
                    barrier.wait();
                    let start = now();
                    black_box(check_all(keys));
                    start.elapsed().as_nanos() as f64 / keys.len() as f64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

/// Returns a percentile of sorted durations, in microseconds.
#[must_use]
pub fn percentile_micros(sorted: &[Duration], share: f64) -> f64 {
    let index = ((sorted.len() as f64 - 1.0) * share) as usize;
    sorted.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
}

/// Prints the progress if stderr is a terminal.
#[allow(clippy::print_stderr, reason = "the progress of a measurement")]
pub fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        // The terminal may be closed; the measurement continues.
        let _ = std::io::stderr().flush();
    }
}
