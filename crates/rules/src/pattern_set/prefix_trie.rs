//! Items by the start of a value.

use std::collections::HashMap;

use crate::pattern_set::{FixedHasher, ItemList};

/// Finds the items of every prefix of a value in one pass over it.
///
/// The same trie serves suffixes, with words and values reversed.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixTrie {
    root: TrieNode,
}

/// A node: the words that share the labels above it.
#[derive(Clone, Debug, Default)]
struct TrieNode {
    /// Bytes of the value between the parent and this node.
    label: Box<[u8]>,
    /// Items of the word that ends here.
    items: ItemList,
    /// The first bytes of the children's labels, in order.
    branches: Box<[u8]>,
    children: Box<[TrieNode]>,
}

impl PrefixTrie {
    pub(crate) fn new(words: HashMap<Vec<u8>, ItemList, FixedHasher>) -> Self {
        let mut words: Vec<(Vec<u8>, ItemList)> = words.into_iter().collect();
        words.sort_unstable();
        Self { root: TrieNode::new(0, 0, &words) }
    }

    /// Calls `found` with the items of every word that the value starts with.
    #[inline]
    pub(crate) fn visit(&self, mut value: impl Iterator<Item = u8>, found: &mut impl FnMut(u32)) {
        let mut node = &self.root;
        loop {
            node.items.iter().copied().for_each(&mut *found);
            if node.branches.is_empty() {
                return;
            }
            let Some(byte) = value.next() else { return };
            let branch = node.branches.iter().position(|&branch| branch == byte);
            let Some(child) = branch.and_then(|branch| node.children.get(branch)) else {
                return;
            };
            // The branch was the first byte of the label.
            for &wanted in child.label.iter().skip(1) {
                if value.next() != Some(wanted) {
                    return;
                }
            }
            node = child;
        }
    }
}

impl TrieNode {
    /// Returns the node for `words`, which are sorted and share their first `start` bytes; its label
    /// takes those from `from` on, and all that the words share beyond.
    fn new(from: usize, start: usize, words: &[(Vec<u8>, ItemList)]) -> Self {
        let (Some((first, items)), Some((last, _))) = (words.first(), words.last()) else {
            return Self::default();
        };
        // The root has no label, whatever its words share.
        let end = if start == 0 { 0 } else { shared(first, last).max(start) };
        let here = first.len() == end;
        let below = if here { words.get(1..).unwrap_or_default() } else { words };
        let byte_at_end = |word: &(Vec<u8>, ItemList)| word.0.get(end).copied();
        let groups = below.chunk_by(|left, right| byte_at_end(left) == byte_at_end(right));
        Self {
            label: first.get(from..end).unwrap_or_default().into(),
            items: if here { items.clone() } else { ItemList::new() },
            branches: groups.clone().filter_map(|group| byte_at_end(group.first()?)).collect(),
            children: groups.map(|group| Self::new(end, end + 1, group)).collect(),
        }
    }
}

/// Returns the number of bytes that two words share at their start.
fn shared(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
