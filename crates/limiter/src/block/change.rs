//! Changes of a shared list, and their order.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use tidegate_core::{Span, Timestamp};

use super::entry::{BlockAction, Entry};
use super::subject::Subject;

/// A change of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The order of the change among all changes of the subject.
    pub stamp: ChangeStamp,
    /// The change itself.
    pub kind: ChangeKind,
}

impl Change {
    /// Time for which an unblock is kept. An older block that arrives within this time does not take effect again.
    pub const UNBLOCK_LIFETIME: Span = Span::from_secs(24 * 60 * 60);

    /// Returns the subject that was changed.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        match &self.kind {
            ChangeKind::Add(entry) => &entry.subject,
            ChangeKind::Remove(subject) => subject,
        }
    }

    /// Returns whether the change is the penalty of a rule. It is kept beside an operator's change and does not replace
    /// it.
    #[must_use]
    pub fn is_penalty(&self) -> bool {
        matches!(&self.kind, ChangeKind::Add(entry) if entry.is_penalty())
    }
}

/// The kinds of changes of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// An entry was added, or replaced the entry of the same subject.
    Add(Arc<Entry>),
    /// A subject is no longer on the list.
    Remove(Subject),
}

/// The order of a change among the changes of one subject, made by any node and received in any order.
///
/// A change that was made on a later version of the list is newer. Of changes on the same version, the one with the
/// greater node id is newer; of one node's changes, the later one. Clocks do not decide.
///
/// The text form has a fixed length and the same order, so a store can compare it as bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChangeStamp {
    /// The last version of the store's list that the node had received.
    pub version: u64,
    /// The random id of the node.
    pub node: u64,
    /// The number of the change among the changes of that node.
    pub number: u64,
}

impl ChangeStamp {
    /// Length of the text form in bytes.
    pub const LENGTH: usize = 50;
}

impl fmt::Display for ChangeStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}-{:016x}", self.version, self.node, self.number)
    }
}

impl FromStr for ChangeStamp {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('-').map(|part| u64::from_str_radix(part, 16).map_err(drop));
        let mut next = || parts.next().unwrap_or(Err(()));
        Ok(Self { version: next()?, node: next()?, number: next()? })
    }
}

/// The newest change of one subject by an operator, and the newest penalty if it is newer than that.
///
/// Both are the greatest by their stamps, so the order in which changes are applied makes no difference. A penalty is
/// kept separately, because it never shortens an operator's block, even one that its node had not received.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubjectState {
    operator: Option<Change>,
    penalty: Option<Change>,
}

impl SubjectState {
    /// Applies a change, unless a newer one is known.
    pub(crate) fn apply(&mut self, change: Change) {
        let newer =
            |known: &Option<Change>| known.as_ref().is_none_or(|known| known.stamp < change.stamp);
        if !newer(&self.operator) {
            return;
        }
        if !change.is_penalty() {
            self.penalty = self.penalty.take().filter(|penalty| change.stamp < penalty.stamp);
            self.operator = Some(change);
        } else if newer(&self.penalty) {
            self.penalty = Some(change);
        }
    }

    /// Returns the entry of the subject at `now`. An operator's entry that allows replaces a penalty. If both changes
    /// block the subject, returns the one that ends last.
    pub(crate) fn entry(self, now: Timestamp) -> Option<Arc<Entry>> {
        let entries = [self.operator, self.penalty].into_iter().flatten();
        let active = entries.filter_map(|change| match change.kind {
            ChangeKind::Add(entry) if now < entry.until => Some(entry),
            ChangeKind::Add(_) | ChangeKind::Remove(_) => None,
        });
        // The operator's entry comes first, and wins if both end together.
        active.reduce(|one, other| {
            if other.until > one.until && one.action == BlockAction::Block { other } else { one }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_stamp_keeps_its_order_and_is_parsed_back() {
        let numbers = [0, 1, 9, 10, 255, 256, u64::MAX];
        let mut stamps = Vec::new();
        for version in numbers {
            for node in numbers {
                for number in numbers {
                    stamps.push(ChangeStamp { version, node, number });
                }
            }
        }
        let mut texts: Vec<String> = stamps.iter().map(ToString::to_string).collect();
        texts.sort_unstable();
        stamps.sort_unstable();
        let read: Vec<ChangeStamp> = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(read, stamps);
        assert!(texts.iter().all(|text| text.len() == ChangeStamp::LENGTH));
        assert!(["", "1-2", "x-1-2"].iter().all(|text| text.parse::<ChangeStamp>().is_err()));
    }
}
