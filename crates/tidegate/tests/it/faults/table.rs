//! The table of a run: printed row by row, and kept whole in `target/tmp/faults.md`.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

static ROWS: Mutex<Vec<String>> = Mutex::new(Vec::new());

const HEAD: &str = "\
| fault                         | checks | slowest check | failed open | time to recover |
|-------------------------------|-------:|--------------:|------------:|----------------:|
";

/// What one fault cost.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) fault: &'static str,
    pub(crate) checks: u64,
    pub(crate) slowest: Duration,
    pub(crate) failed_open: u64,
    /// From when the server could be asked again, or replaced. None when no server was given up.
    pub(crate) recovered: Option<Duration>,
}

impl Row {
    /// Adds the row to the table.
    #[allow(clippy::print_stdout, reason = "who runs the tests wants to see it")]
    pub(crate) fn print(&self) {
        let Self { fault, checks, slowest, failed_open, recovered } = self;
        let ms = |time: &Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
        let (slowest, recovered) = (ms(slowest), recovered.as_ref().map_or("-".to_owned(), ms));
        let row = format!(
            "| {fault:<29} | {checks:>6} | {slowest:>13} | {failed_open:>11} | {recovered:>15} |\n"
        );
        print!("{row}");
        let mut rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
        rows.push(row);
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults.md");
        fs::write(file, format!("{HEAD}{}", rows.concat())).unwrap();
    }
}
