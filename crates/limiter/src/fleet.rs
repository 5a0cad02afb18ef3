//! Limits that a fleet shares without asking its store each time.
//!
//! Leases are tokens that a node takes ahead of use; `docs/decisions/0011-leases.md` says why that admits
//! no more than the limit.

mod demand;
pub mod lease;
pub(crate) mod leases;
