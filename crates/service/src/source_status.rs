//! The status of the source of rules, as this node sees it.

/// The status of a node's source of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// The latest version number that this node has seen at the source.
    pub latest: u64,
    /// The reason why the document of the source is not the active one.
    pub(crate) problem: Option<String>,
    /// Set if the last read of the source failed.
    pub(crate) is_unreachable: bool,
    /// The error of the local copy. It is cleared when a new copy is written.
    pub(crate) copy_problem: Option<String>,
    /// Number of rejected documents.
    pub(crate) rejected: u64,
    /// Number of failed reads of the source.
    pub(crate) failures: u64,
}

impl SourceStatus {
    /// Returns whether the source has another document than the active one, of version `number`.
    pub(crate) fn is_behind(&self, number: u64) -> bool {
        self.latest > number || (self.problem.is_some() && !self.is_unreachable && self.latest > 0)
    }
}
