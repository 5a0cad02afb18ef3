//! The load: wrk with one thread and persistent connections.

use std::process::Command;

use crate::contender::Contender;

pub(crate) const CONNECTIONS: u32 = 64;

/// Result of one run.
#[derive(Clone, Copy)]
pub(crate) struct LoadResult {
    /// Requests per second.
    pub(crate) rate: f64,
    /// CPU time of one request.
    pub(crate) cpu_micros: f64,
    /// 99th percentile of the latency.
    pub(crate) p99_millis: f64,
}

pub(crate) fn run(contender: &Contender, seconds: u32) -> LoadResult {
    let mut command = Command::new("wrk");
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), "--latency"]);
    command.arg(contender.url());
    let before = contender.cpu_micros();
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let cpu = contender.cpu_micros() - before;
    let text = String::from_utf8_lossy(&output.stdout);
    // Errors invalidate the measurement.
    let failed = text.contains("Non-2xx") || text.contains("Socket errors");
    let parsed = (!failed).then(|| parse_wrk_output(&text)).flatten();
    let (count, rate, p99_millis) = parsed.unwrap_or_else(|| {
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("{}: {command:?}: {text} {errors}", contender.name)
    });
    LoadResult { rate, cpu_micros: cpu / count, p99_millis }
}

/// Parses wrk's output: the number of requests, requests per second, and p99 in milliseconds.
fn parse_wrk_output(text: &str) -> Option<(f64, f64, f64)> {
    let (count, _) = text.split_once(" requests in ")?;
    let count = count.rsplit([' ', '\n']).next()?.parse().ok()?;
    Some((
        count,
        word_after(text, "Requests/sec:")?.parse().ok()?,
        parse_millis(word_after(text, " 99%")?)?,
    ))
}

fn word_after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.split_once(mark)?.1.split_whitespace().next()
}

/// Parses a duration such as `4.60ms`, `870.00us` or `1.02s`.
fn parse_millis(text: &str) -> Option<f64> {
    let units = [("us", 0.001), ("ms", 1.0), ("s", 1000.0)];
    let number = |(unit, millis_per_unit): (&str, f64)| {
        text.strip_suffix(unit)?.parse::<f64>().ok().map(|number| number * millis_per_unit)
    };
    units.into_iter().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_output_is_parsed() {
        let text = "Running 1s test @ http://127.0.0.1:1/\n  1 threads and 64 connections\n\
             Latency Distribution\n     50%  420.00us\n     99%    7.10ms\n  \
             66000 requests in 1.00s, 12.00MB read\nRequests/sec:  65990.12\nTransfer/sec: 12.00MB\n";
        assert_eq!(parse_wrk_output(text), Some((66_000.0, 65_990.12, 7.1)));
        assert_eq!(
            (parse_millis("870.00us"), parse_millis("1.5s"), parse_millis("x")),
            (Some(0.87), Some(1500.0), None)
        );
    }
}
