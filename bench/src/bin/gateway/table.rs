//! The table that comes of it.

use std::fmt::Write as _;

use crate::load::Measured;

/// Whom the ratios are to: NGINX with its limiter.
pub(crate) const BASE: usize = 2;

/// One line for each contender; `results` has its rounds.
pub(crate) fn table(names: &[&str], results: &[Vec<Measured>]) -> String {
    let mut text = String::from(
        "| | requests/s | of NGINX's with limiter, by round | CPU per request, µs | of NGINX's with limiter, by round | p99, ms |\n\
         |---|---|---|---|---|---|\n",
    );
    for (name, measured) in names.iter().zip(results) {
        let rounds = measured.iter().zip(&results[BASE]);
        let rates = Spread::of(measured.iter().map(|round| round.rate / 1000.0));
        let share = Spread::of(rounds.clone().map(|(own, base)| own.rate / base.rate));
        let cpu = Spread::of(measured.iter().map(|round| round.cpu_micros));
        let cpu_share = Spread::of(rounds.map(|(own, base)| own.cpu_micros / base.cpu_micros));
        let p99 = Spread::of(measured.iter().map(|round| round.p99_millis));
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            rates.shown(1, "k"),
            share.shown(2, ""),
            cpu.shown(1, ""),
            cpu_share.shown(2, ""),
            p99.shown(1, ""),
        );
    }
    text
}

/// The median, the smallest and the largest.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Self { least: values[0], median: values[values.len() / 2], most: values[last] }
    }

    fn shown(&self, digits: usize, unit: &str) -> String {
        let Self { least, median, most } = self;
        format!("{median:.digits$}{unit} ({least:.digits$} to {most:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let round = |rate| Measured { rate, cpu_micros: 10.0, p99_millis: 1.0 };
        let base = vec![round(1000.0), round(2000.0), round(4000.0)];
        let own = vec![round(2000.0), round(2000.0), round(2000.0)];
        let text = table(&["a", "b", "nginx", "own"], &[own.clone(), own.clone(), base, own]);
        let last = text.lines().last().unwrap();
        assert_eq!(
            last,
            "| own | 2.0k (2.0 to 2.0) | 1.00 (0.50 to 2.00) | 10.0 (10.0 to 10.0) | 1.00 (1.00 to 1.00) | 1.0 (1.0 to 1.0) |"
        );
    }
}
