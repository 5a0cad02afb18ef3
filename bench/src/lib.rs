//! Shared parts of the measurements: contenders, servers under test, tables, charts and result files.
//!
//! Each binary prints its tables to stdout. If the environment variable `TIDEGATE_RESULTS` names a folder, tables, charts and
//! results that have a goal are also saved there, and `tools/write-benchmarks.py` puts them into `docs/benchmarks.md`.

pub mod bare_table;

pub mod chart;
pub mod contender;
pub mod documents;
pub mod fleet;
pub mod host;
pub mod keys;
pub mod limitador;
pub mod measure;
pub mod overshoot;
pub mod results;
pub mod server;
pub mod table;
