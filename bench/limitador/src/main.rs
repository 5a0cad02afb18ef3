//! Decisions of limitador's library in memory, for the benchmark `in_process`.
//!
//! Reads runs from stdin: the number of threads, and for each thread the number of keys and its keys of 16 bytes. Numbers
//! are u32 in little endian. Checks every key once and writes one line per run: the nanoseconds per decision and thread,
//! the number of admissions, and the resident memory of the process in bytes.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Barrier;
use std::time::Instant;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};

type Key = [u8; 16];

/// The same limit as that of the other contenders: 1,000 per minute.
const LIMIT: u64 = 1_000;
const WINDOW_SECS: u64 = 60;
/// Maximum number of clients that it stores.
const MAX_CLIENTS: u64 = 2_000_000;

fn main() -> io::Result<()> {
    let limiter = RateLimiter::new(MAX_CLIENTS);
    let user = "user".try_into().expect("a variable");
    limiter.add_limit(Limit::new("bench", LIMIT, WINDOW_SECS, vec![], vec![user]));
    let mut input = io::stdin().lock();
    while let Some(threads) = read_number(&mut input)? {
        let threads: Vec<Vec<Key>> =
            (0..threads).map(|_| read_keys(&mut input)).collect::<io::Result<_>>()?;
        let (nanos, admitted) = run(&limiter, &threads);
        println!("{nanos} {admitted} {}", resident_bytes());
        io::stdout().flush()?;
    }
    Ok(())
}

fn read_number(input: &mut impl Read) -> io::Result<Option<u32>> {
    let mut bytes = [0; 4];
    match input.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(u32::from_le_bytes(bytes))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_keys(input: &mut impl Read) -> io::Result<Vec<Key>> {
    let count = read_number(input)?.unwrap_or_default();
    let mut bytes = vec![0; count as usize * 16];
    input.read_exact(&mut bytes)?;
    Ok(bytes.as_chunks().0.to_vec())
}

/// Returns the nanoseconds per decision and thread, and the number of admissions.
fn run(limiter: &RateLimiter, threads: &[Vec<Key>]) -> (f64, u64) {
    let barrier = Barrier::new(threads.len());
    let results: Vec<(f64, u64)> = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .iter()
            .map(|keys| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    let admitted = keys.iter().filter(|key| is_admitted(limiter, key)).count();
                    (start.elapsed().as_nanos() as f64 / keys.len() as f64, admitted as u64)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).collect()
    });
    let nanos = results.iter().map(|(nanos, _)| nanos).sum::<f64>() / results.len() as f64;
    (nanos, results.iter().map(|(_, admitted)| admitted).sum())
}

fn is_admitted(limiter: &RateLimiter, key: &Key) -> bool {
    let user = String::from_utf8_lossy(key).into_owned();
    let context = Context::from(HashMap::from([("user".to_owned(), user)]));
    let namespace: Namespace = "bench".into();
    let result = limiter.check_rate_limited_and_update(&namespace, &context, 1);
    !result.expect("a store in memory does not fail").limited
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_default() * 1_024
}
