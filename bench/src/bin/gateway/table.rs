//! The result table.

use std::fmt::Write as _;

use crate::load::LoadResult;

/// Index of the contender that ratios are relative to: NGINX with its limiter.
pub(crate) const BASE_INDEX: usize = 2;

/// Returns a Markdown table with one line per contender. `results` contains the rounds of each.
pub(crate) fn markdown_table(names: &[&str], results: &[Vec<LoadResult>]) -> String {
    let mut text = String::from(
        "| | requests/s | of NGINX's with limiter, by round | CPU per request, µs | of NGINX's with limiter, by round | p99, ms |\n\
         |---|---|---|---|---|---|\n",
    );
    for (name, results_of_contender) in names.iter().zip(results) {
        let rounds = results_of_contender.iter().zip(&results[BASE_INDEX]);
        let rates =
            Spread::from_values(results_of_contender.iter().map(|round| round.rate / 1000.0));
        let rate_ratio =
            Spread::from_values(rounds.clone().map(|(own, base)| own.rate / base.rate));
        let cpu = Spread::from_values(results_of_contender.iter().map(|round| round.cpu_micros));
        let cpu_ratio =
            Spread::from_values(rounds.map(|(own, base)| own.cpu_micros / base.cpu_micros));
        let p99 = Spread::from_values(results_of_contender.iter().map(|round| round.p99_millis));
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            rates.format(1, "k"),
            rate_ratio.format(2, ""),
            cpu.format(1, ""),
            cpu_ratio.format(2, ""),
            p99.format(1, ""),
        );
    }
    text
}

/// The median, the minimum and the maximum of several rounds.
struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    fn from_values(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Self { min: values[0], median: values[values.len() / 2], max: values[last] }
    }

    fn format(&self, digits: usize, unit: &str) -> String {
        let Self { min, median, max } = self;
        format!("{median:.digits$}{unit} ({min:.digits$} to {max:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_computed_within_a_round() {
        let round = |rate| LoadResult { rate, cpu_micros: 10.0, p99_millis: 1.0 };
        let base = vec![round(1000.0), round(2000.0), round(4000.0)];
        let own = vec![round(2000.0), round(2000.0), round(2000.0)];
        let text =
            markdown_table(&["a", "b", "nginx", "own"], &[own.clone(), own.clone(), base, own]);
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "| own | 2.0k (2.0 to 2.0) | 1.00 (0.50 to 2.00) | 10.0 (10.0 to 10.0) | 1.00 (1.00 to 1.00) | 1.0 (1.0 to 1.0) |"
        );
    }
}
