//! Store failures on real servers: killed, paused, partitioned, failed over.
//!
//! A fleet of three nodes is under load before, during and after each fault. The tests expect four things: every check is
//! answered, each rule follows its `on_store_failure`, nodes recover without a restart, and the limit is exact afterwards.

mod background_load;
mod captured_log;
mod clock;
mod cluster;
mod membership;
mod network;
mod report_table;
mod scenario;
mod sentinel;
mod shards;
mod single_server;
