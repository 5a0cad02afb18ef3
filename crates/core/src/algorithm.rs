//! stub
use crate::quota::{Quota, QuotaError};
/// Which algorithm counts a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// token_bucket
    #[default]
    TokenBucket,
    /// leaky_bucket
    LeakyBucket {
        /// How many may wait.
        queue: u64,
    },
    /// fixed_window
    FixedWindow,
    /// sliding_window
    SlidingWindow,
    /// sliding_log
    SlidingLog,
}
/// A quota and the algorithm that counts it, checked and ready to decide.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit(Algorithm, Quota);
impl Limit {
    /// Checks.
    /// # Errors
    /// what can't be counted exactly
    pub fn new(algorithm: Algorithm, quota: Quota) -> Result<Self, QuotaError> {
        quota.validate()?;
        Ok(Self(algorithm, quota))
    }
    /// The quota.
    #[must_use]
    pub fn quota(&self) -> &Quota {
        &self.1
    }
}
