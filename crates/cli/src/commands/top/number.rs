//! Formats numbers so that they fit into a column.

/// Formats a count: `0`, `99999`, `123k`, `4.5M`.
pub(crate) fn count(count: u64) -> String {
    if count < 100_000 {
        return count.to_string();
    }
    scaled(count as f64, 1_000.0, &["k", "M", "G", "T", "P", "E"])
}

/// Formats a rate per second: `0`, `0.3`, `12.5`, `480`, `123k`.
pub(crate) fn rate(rate: f64) -> String {
    match rate {
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate < 99.95 => format!("{rate:.1}"),
        rate => count(rate.round() as u64),
    }
}

/// Formats a size in bytes: `512 B`, `1.5 KiB`, `3.0 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1_024 {
        return format!("{bytes} B");
    }
    scaled(bytes as f64, 1_024.0, &[" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
}

fn scaled(number: f64, step: f64, units: &[&str]) -> String {
    let (mut number, mut unit) = (number / step, 0);
    // A number that rounds up to one step takes the next unit.
    while number >= step - 0.5 && unit + 1 < units.len() {
        (number, unit) = (number / step, unit + 1);
    }
    match number {
        number if number < 99.95 => format!("{number:.1}{}", units[unit]),
        number => format!("{number:.0}{}", units[unit]),
    }
}

/// Formats a latency: `85 us`, `1.2 ms`, `2.5 s`; a dash for `None`.
pub(crate) fn micros(micros: Option<u64>) -> String {
    match micros {
        None => "-".to_owned(),
        Some(micros @ 0..1_000) => format!("{micros} us"),
        Some(micros @ 1_000..1_000_000) => format!("{:.1} ms", micros as f64 / 1e3),
        Some(micros) => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// Formats a duration: `42s`, `3m12s`, `5h02m`, `12d03h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{:02}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_numbers_fit_their_column() {
        assert_eq!([0, 99_999, 123_456, 4_500_000].map(count), ["0", "99999", "123k", "4.5M"]);
        assert_eq!([0.0, 0.25, 12.46, 480.4].map(rate), ["0", "0.2", "12.5", "480"]);
        assert_eq!([512, 1_536, 3 << 30].map(bytes), ["512 B", "1.5 KiB", "3.0 GiB"]);
        let times = [None, Some(85), Some(1_249), Some(2_500_000)].map(micros);
        assert_eq!(times, ["-", "85 us", "1.2 ms", "2.5 s"]);
        assert_eq!([42, 192, 18_120, 1_047_600].map(duration), ["42s", "3m12s", "5h02m", "12d03h"]);
        assert!([u64::MAX, 999_999, 999_999_999].map(count).iter().all(|shown| shown.len() <= 5));
    }
}
