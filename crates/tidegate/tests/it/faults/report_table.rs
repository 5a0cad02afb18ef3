//! The result table of a run. Each row is printed; `target/tmp/faults.md` holds the whole table.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

static ROWS: Mutex<Vec<String>> = Mutex::new(Vec::new());

const TABLE_HEADER: &str = "\
| fault                         | checks | slowest check | failed open | time to recover |
|-------------------------------|-------:|--------------:|------------:|----------------:|
";

/// Measurements of one fault.
#[derive(Debug)]
pub(crate) struct FaultRow {
    pub(crate) fault: &'static str,
    pub(crate) checks: u64,
    pub(crate) slowest: Duration,
    pub(crate) failed_open: u64,
    /// Time from the repair of the server, or the start of its replacement, to the first decision of the store. `None`
    /// when no breaker opened.
    pub(crate) recovery_time: Option<Duration>,
}

impl FaultRow {
    /// Prints the row and appends it to the table file.
    #[allow(clippy::print_stdout, reason = "the table is the result of this run")]
    pub(crate) fn print(&self) {
        let Self { fault, checks, slowest, failed_open, recovery_time } = self;
        let ms = |time: &Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
        let (slowest, recovery_time) =
            (ms(slowest), recovery_time.as_ref().map_or("-".to_owned(), ms));
        let row = format!(
            "| {fault:<29} | {checks:>6} | {slowest:>13} | {failed_open:>11} | {recovery_time:>15} |\n"
        );
        print!("{row}");
        let mut rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
        rows.push(row);
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("faults.md");
        fs::write(file, format!("{TABLE_HEADER}{}", rows.concat())).unwrap();
    }
}
