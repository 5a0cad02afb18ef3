//! The load: wrk, one thread, connections that are kept.

use std::process::Command;

use crate::contender::Contender;

pub(crate) const CONNECTIONS: u32 = 64;

/// What one run came to.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time of one request.
    pub(crate) cpu_micros: f64,
    /// The time that one in a hundred takes longer than.
    pub(crate) p99_millis: f64,
}

pub(crate) fn run(contender: &Contender, seconds: u32) -> Measured {
    let mut command = Command::new("wrk");
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), "--latency"]);
    command.arg(contender.url());
    let before = contender.cpu_micros();
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let cpu = contender.cpu_micros() - before;
    let text = String::from_utf8_lossy(&output.stdout);
    // Whoever answers with errors is not measured but broken.
    let failed = text.contains("Non-2xx") || text.contains("Socket errors");
    let read = (!failed).then(|| read(&text)).flatten();
    let (count, rate, p99_millis) = read.unwrap_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("{}: {command:?}: {text} {errors}", contender.name)
    });
    Measured { rate, cpu_micros: cpu / count, p99_millis }
}

/// How many requests there were, how many per second, and p99 in milliseconds.
fn read(text: &str) -> Option<(f64, f64, f64)> {
    let (count, _) = text.split_once(" requests in ")?;
    let count = count.rsplit([' ', '\n']).next()?.parse().ok()?;
    Some((count, after(text, "Requests/sec:")?.parse().ok()?, millis(after(text, " 99%")?)?))
}

fn after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark)?.1.split_whitespace().next()
}

/// `4.60ms`, `870.00us`, `1.02s`
fn millis(text: &str) -> Option<f64> {
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1000.0)];
    let number = |(unit, worth): (&str, f64)| {
        text.strip_suffix(unit)?.parse::<f64>().ok().map(|number| number * worth)
    };
    units.into_iter().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_read() {
        let text = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n\
             Latency Distribution\n     50%  420.00us\n     99%    7.10ms\n  \
             66000 requests in 1.00s, 12.00MB read\nRequests/sec:  65990.12\nTransfer/sec: 12.00MB\n";
        assert_eq!(read(text), Some((66_000.0, 65_990.12, 7.1)));
        assert_eq!(
            (millis("870.00us"), millis("1.5s"), millis("x")),
            (Some(0.87), Some(1500.0), None)
        );
    }
}
