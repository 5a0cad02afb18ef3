//! How a node stands with its source of rules.

/// What a node knows of its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// The latest number that the source has, as far as this node has heard.
    pub latest: u64,
    /// What the source has is not what is in force, and why.
    pub(crate) problem: Option<String>,
    /// Whether the source could not be asked when it was last tried.
    pub(crate) is_away: bool,
    /// Why the local copy could not be used, until another is written.
    pub(crate) copy_problem: Option<String>,
    /// Documents that could not be used.
    pub(crate) rejected: u64,
    /// How often the source could not be asked.
    pub(crate) failures: u64,
}

impl SourceStatus {
    /// Whether the source has other rules than these.
    pub(crate) fn is_behind(&self, number: u64) -> bool {
        self.latest > number || (self.problem.is_some() && !self.is_away && self.latest > 0)
    }
}
