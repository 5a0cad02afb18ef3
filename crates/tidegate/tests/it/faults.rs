//! What happens when the store fails, with real servers that really fail.
//!
//! A fleet of three is under load before, during and after each fault. Every check is answered, each rule follows its
//! `on_store_failure`, service resumes without a restart, and then the limit is exact again.

mod clock;
mod cluster;
mod fleet;
mod load;
mod log;
mod network;
mod scene;
mod sentinel;
mod shards;
mod single;
mod table;
