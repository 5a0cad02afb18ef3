//! The places where a value contains given texts.

use std::cell::{Cell, OnceCell};

use memchr::memchr_iter;
use smallvec::SmallVec;

/// A text at a position of a value, both by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextHit {
    pub(crate) text: usize,
    pub(crate) start: u32,
}

/// A bit for each text that a value contains, allocated with the first of them.
#[derive(Debug, Default)]
pub(crate) struct SeenTexts(SmallVec<[u64; 16]>);

impl SeenTexts {
    /// Adds one of `count` texts, and returns whether it is new.
    pub(crate) fn insert(&mut self, text: usize, count: usize) -> bool {
        if self.0.is_empty() {
            self.0.resize(count.div_ceil(64), 0);
        }
        let Some(bits) = self.0.get_mut(text / 64) else { return false };
        let is_new = *bits & (1 << (text % 64)) == 0;
        *bits |= 1 << (text % 64);
        is_new
    }

    /// Returns the texts in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, &bits)| {
            let mut rest = bits;
            std::iter::from_fn(move || {
                let bit = usize::try_from(rest.trailing_zeros()).ok().filter(|_| rest != 0)?;
                rest &= rest - 1;
                Some(word * 64 + bit)
            })
        })
    }
}

/// The places of each text, in ascending order, for lookups by position.
#[derive(Debug)]
pub(crate) struct Occurrences<'v> {
    value: &'v str,
    seen: SeenTexts,
    /// Number of seen texts in the words before each word of `seen`.
    ranks: SmallVec<[usize; 16]>,
    /// The first place of each seen text in `starts`, and the total number at the end.
    offsets: Vec<usize>,
    starts: Vec<u32>,
    slashes: OnceCell<Vec<u32>>,
    lookup_count: Cell<usize>,
}

impl<'v> Occurrences<'v> {
    /// Sorts the hits, which have ascending positions, by text.
    pub(crate) fn new(value: &'v str, seen: SeenTexts, hits: &[TextHit]) -> Self {
        let mut total = 0;
        let ranks = seen.0.iter().map(|bits| {
            let before = total;
            total += usize::try_from(bits.count_ones()).unwrap_or(0);
            before
        });
        let mut places = Self {
            value,
            ranks: ranks.collect(),
            seen,
            offsets: Vec::new(),
            starts: vec![0; hits.len()],
            slashes: OnceCell::new(),
            lookup_count: Cell::new(0),
        };
        // Count, add up, and place each hit.
        let mut next = vec![0_usize; total + 1];
        let ranks: Vec<usize> = hits.iter().filter_map(|hit| places.rank(hit.text)).collect();
        for &rank in &ranks {
            if let Some(count) = next.get_mut(rank + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for count in &mut next {
            sum += *count;
            *count = sum;
        }
        places.offsets.clone_from(&next);
        for (hit, &rank) in hits.iter().zip(&ranks) {
            if let Some(offset) = next.get_mut(rank) {
                if let Some(start) = places.starts.get_mut(*offset) {
                    *start = hit.start;
                }
                *offset += 1;
            }
        }
        places
    }

    /// Returns the position of a text among the seen ones.
    fn rank(&self, text: usize) -> Option<usize> {
        let (bits, before) = (self.seen.0.get(text / 64)?, self.ranks.get(text / 64)?);
        let bit = 1_u64 << (text % 64);
        let rank = before + usize::try_from((bits & (bit - 1)).count_ones()).ok()?;
        (bits & bit != 0).then_some(rank)
    }

    /// Returns the seen texts.
    pub(crate) fn seen(&self) -> &SeenTexts {
        &self.seen
    }

    /// Returns the number of lookups so far: the work after the pass over the value.
    pub(crate) fn lookup_count(&self) -> usize {
        self.lookup_count.get()
    }

    fn count_lookup(&self) {
        self.lookup_count.set(self.lookup_count.get() + 1);
    }

    /// Returns the places of a text.
    pub(crate) fn of(&self, text: usize) -> &[u32] {
        self.count_lookup();
        let range = self.rank(text).and_then(|rank| {
            let (start, end) = (*self.offsets.get(rank)?, *self.offsets.get(rank + 1)?);
            self.starts.get(start..end)
        });
        range.unwrap_or_default()
    }

    /// Returns the first place of a text that does not start before `position`.
    pub(crate) fn first_from(&self, text: usize, position: u32) -> Option<u32> {
        let starts = self.of(text);
        starts.get(starts.partition_point(|&start| start < position)).copied()
    }

    /// Returns the last place of a text that does not start after `position`.
    pub(crate) fn last_until(&self, text: usize, position: u32) -> Option<u32> {
        let starts = self.of(text);
        let after = starts.partition_point(|&start| start <= position);
        starts.get(after.checked_sub(1)?).copied()
    }

    /// Returns whether the value has a slash at `start` or later, and before `end`.
    pub(crate) fn has_slash(&self, start: u32, end: u32) -> bool {
        self.count_lookup();
        let slashes = self.slashes.get_or_init(|| {
            let positions = memchr_iter(b'/', self.value.as_bytes());
            positions.filter_map(|position| u32::try_from(position).ok()).collect()
        });
        let next = slashes.get(slashes.partition_point(|&slash| slash < start));
        next.is_some_and(|&slash| slash < end)
    }
}
