//! limitador's library, in a process of its own: `tools/setup-bench.sh` builds `bench/limitador`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Mutex;

use crate::contender::Contender;
use crate::host;
use crate::keys::Key;

/// Divisor of the number of checks: a check takes microseconds.
const CHECKS_DIVISOR: usize = 10;

/// Result of one run.
#[derive(Clone, Copy, Debug)]
pub struct LimitadorRun {
    /// Nanoseconds per decision and thread.
    pub nanos: f64,
    /// Number of admissions.
    pub admitted: usize,
    /// Resident memory of the process.
    pub resident_bytes: f64,
}

/// A running process with limitador's library.
#[derive(Debug)]
pub struct Limitador {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Limitador {
    /// Starts the process. Returns `None` if it is not installed.
    ///
    /// # Panics
    /// It is installed and does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        let mut command = host::command(host::peer("bin/limitador-bench")?, None);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("limitador-bench starts");
        let input = child.stdin.take().expect("stdin is piped");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Some(Self { child, pipes: Mutex::new((input, output)) })
    }

    /// Checks each key once, with one thread for each list of keys.
    ///
    /// # Panics
    /// The process ended.
    pub fn run<'a>(&self, threads: impl ExactSizeIterator<Item = &'a [Key]>) -> LimitadorRun {
        let number = |number: usize| u32::try_from(number).expect("below 2^32").to_le_bytes();
        let mut message = number(threads.len()).to_vec();
        for keys in threads {
            message.extend(number(keys.len()));
            message.extend(keys.as_flattened());
        }
        let mut pipes = self.pipes.lock().expect("no thread panics while holding the lock");
        pipes.0.write_all(&message).and_then(|()| pipes.0.flush()).expect("the process reads");
        let mut line = String::new();
        pipes.1.read_line(&mut line).expect("the process writes");
        let mut words = line.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
        let mut next = || words.next().expect("the process writes three numbers");
        LimitadorRun { nanos: next(), admitted: next() as usize, resident_bytes: next() }
    }
}

impl Drop for Limitador {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Contender for Limitador {
    fn name(&self) -> &'static str {
        "limitador 0.14.0"
    }

    fn check_all(&self, keys: &[Key]) -> usize {
        self.run(std::iter::once(keys)).admitted
    }

    fn measure(&self, threads: &[Vec<Key>]) -> f64 {
        let shorter = |keys: &'_ Vec<Key>| keys.len() / CHECKS_DIVISOR;
        self.run(threads.iter().map(|keys| &keys[..shorter(keys)])).nanos
    }
}
