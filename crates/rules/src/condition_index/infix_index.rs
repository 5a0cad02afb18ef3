//! Items by a text that a value contains.

use std::collections::HashMap;

use aho_corasick::AhoCorasick;
use smallvec::SmallVec;

use crate::condition_index::{CERTAIN_FLAG, FixedHasher, ItemList};

/// Finds the items of every text that a value contains, in one pass over the value.
///
/// The number of texts does not matter for the time of the pass. At each byte of a value at most
/// [`MAX_TEXT_BYTES`](Self::MAX_TEXT_BYTES) texts end, because no two of them have the same length there.
#[derive(Clone, Debug)]
pub(crate) struct InfixIndex {
    /// `None` if the texts are too many for an automaton: then every value has all items as candidates.
    automaton: Option<AhoCorasick>,
    /// Items by the number of the text in the automaton.
    items: Box<[ItemList]>,
}

impl InfixIndex {
    /// Longest text that is searched. A longer text of a glob is indexed by its last bytes.
    pub(crate) const MAX_TEXT_BYTES: usize = 32;

    /// Returns `None` if there are no words.
    pub(crate) fn new(words: HashMap<&[u8], ItemList, FixedHasher>) -> Option<Self> {
        let mut words: Vec<(&[u8], ItemList)> = words.into_iter().collect();
        words.sort_unstable();
        let automaton = AhoCorasick::builder()
            // A prefilter is slower for values in which every byte may start a text.
            .prefilter(false)
            .build(words.iter().map(|(word, _)| word))
            .ok();
        let mut items: Box<[ItemList]> = words.into_iter().map(|(_, items)| items).collect();
        if automaton.is_none() {
            items.iter_mut().flatten().for_each(|item| *item &= !CERTAIN_FLAG);
        }
        (!items.is_empty()).then_some(Self { automaton, items })
    }

    /// Calls `found` with the items of every text that the value contains, once for each text.
    #[inline(never)]
    pub(crate) fn visit(&self, value: &str, found: &mut impl FnMut(u32)) {
        let Some(automaton) = &self.automaton else {
            self.items.iter().flatten().copied().for_each(found);
            return;
        };
        // One bit for each text, allocated with the first match.
        let mut seen: SmallVec<[u64; 16]> = SmallVec::new();
        let mut unseen_count = self.items.len();
        for text in automaton.find_overlapping_iter(value).map(|text| text.pattern().as_usize()) {
            if seen.is_empty() {
                seen.resize(self.items.len().div_ceil(64), 0);
            }
            let (Some(bits), Some(items)) = (seen.get_mut(text / 64), self.items.get(text)) else {
                continue;
            };
            let bit = 1 << (text % 64);
            if *bits & bit != 0 {
                continue;
            }
            *bits |= bit;
            items.iter().copied().for_each(&mut *found);
            unseen_count -= 1;
            if unseen_count == 0 {
                return;
            }
        }
    }
}
