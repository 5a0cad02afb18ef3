//! Globs by the texts between their stars.

use std::cmp::Reverse;
use std::collections::HashMap;

use aho_corasick::AhoCorasick;
use smallvec::SmallVec;

use crate::glob::{Glob, StarKind};
use crate::pattern_set::occurrences::{Occurrences, SeenTexts, TextHit};
use crate::pattern_set::{FixedHasher, ItemList};

/// Finds the globs that match a value, in one pass over the value and a few lookups for each candidate.
///
/// The pass finds all places of all texts. At each byte of a value at most [`MAX_NEEDLE_BYTES`](Self::MAX_NEEDLE_BYTES)
/// needles end, because no two of them have the same length there. A glob is a candidate if the value contains the text
/// of the glob that the fewest other globs have.
///
/// The texts of a glob form groups, with `*` between the texts of a group and `**` between groups. The places of a group
/// are computed once for all globs, from those of its rarest text. A candidate matches if each group has a place after
/// that of the group before, which is one binary search for each group. So the value is never searched again.
#[derive(Clone, Debug)]
pub(crate) struct InnerTextIndex {
    /// `None` if the texts are too many for an automaton: then each glob is compared.
    automaton: Option<AhoCorasick>,
    /// The texts that contain each needle of the automaton.
    needles: Box<[SmallVec<[u32; 2]>]>,
    texts: Box<[InnerText]>,
    /// The texts of each group.
    groups: Box<[SmallVec<[usize; 2]>]>,
    globs: Box<[InnerGlob]>,
}

/// Bytes that the automaton searches, and the texts that contain them.
type Needle<'p> = (&'p [u8], SmallVec<[u32; 2]>);

/// A text between two stars.
#[derive(Clone, Debug)]
struct InnerText {
    text: Box<str>,
    length: u32,
    /// Position of the needle in a text that is longer than a needle; else 0.
    needle_start: usize,
    /// The globs that are candidates if the value contains the text.
    globs: SmallVec<[u32; 2]>,
    /// Set if a glob needs the places of the text, rather than only its presence.
    is_located: bool,
}

/// A glob as a sequence of groups.
#[derive(Clone, Debug)]
struct InnerGlob {
    glob: Glob,
    items: ItemList,
    /// Set if the glob is `**text**`.
    is_contained_text: bool,
    groups: SmallVec<[usize; 2]>,
    /// Set if the first group follows `*`, and so starts in the segment in which the prefix ends.
    is_first_anchored: bool,
    /// Set if `*` follows the last group, which so ends in the segment in which the suffix starts.
    is_last_anchored: bool,
}

impl InnerTextIndex {
    /// Longest text of the automaton. Of a longer text of a glob, the part of this length is searched that the fewest
    /// other texts have.
    pub(crate) const MAX_NEEDLE_BYTES: usize = 32;

    /// Returns `None` if there are no globs. Each glob has a text between stars.
    pub(crate) fn new(globs: Vec<(&Glob, ItemList)>) -> Option<Self> {
        if globs.is_empty() {
            return None;
        }
        let mut numbers: HashMap<&str, usize, FixedHasher> = HashMap::default();
        let mut texts: Vec<&str> = Vec::new();
        let mut glob_counts: Vec<u32> = Vec::new();
        for text in globs.iter().flat_map(|(glob, _)| glob.inner_texts()) {
            let number = *numbers.entry(text).or_insert_with(|| {
                texts.push(text);
                glob_counts.push(0);
                texts.len() - 1
            });
            if let Some(count) = glob_counts.get_mut(number) {
                *count += 1;
            }
        }
        let (mut index, needles) = Self::with_texts(&texts);
        let number = |text: &str| numbers.get(text).copied().unwrap_or(usize::MAX);
        let mut group_numbers: HashMap<SmallVec<[usize; 2]>, usize, FixedHasher> =
            HashMap::default();
        let mut groups = Vec::new();
        let mut inner_globs = Vec::with_capacity(globs.len());
        for (position, (glob, items)) in (0..).zip(globs) {
            let key = glob.inner_texts().map(number).min_by_key(|&text| {
                (glob_counts.get(text), Reverse(texts.get(text).map(|text| text.len())))
            });
            if let Some(text) = key.and_then(|text| index.get_mut(text)) {
                text.globs.push(position);
            }
            let is_contained_text = glob.is_contained_text();
            for text in glob.inner_texts().map(number) {
                if let Some(text) = index.get_mut(text) {
                    text.is_located |= !is_contained_text;
                }
            }
            let mut glob_groups: SmallVec<[usize; 2]> = SmallVec::new();
            let mut group: SmallVec<[usize; 2]> = SmallVec::new();
            let mut finish_group = |group: SmallVec<[usize; 2]>| {
                *group_numbers.entry(group).or_insert_with_key(|group| {
                    groups.push(group.clone());
                    groups.len() - 1
                })
            };
            for (star, text) in glob.steps() {
                if star == StarKind::Anywhere && !group.is_empty() {
                    glob_groups.push(finish_group(std::mem::take(&mut group)));
                }
                group.push(number(text));
            }
            glob_groups.push(finish_group(group));
            inner_globs.push(InnerGlob {
                glob: glob.clone(),
                items,
                is_contained_text,
                groups: glob_groups,
                is_first_anchored: glob
                    .steps()
                    .next()
                    .is_some_and(|(star, _)| star == StarKind::WithinSegment),
                is_last_anchored: glob.last_star() == StarKind::WithinSegment,
            });
        }
        let automaton = AhoCorasick::builder()
            // A prefilter is slower for values in which every byte may start a text.
            .prefilter(false)
            .build(needles.iter().map(|(needle, _)| needle))
            .ok();
        Some(Self {
            automaton,
            needles: needles.into_iter().map(|(_, texts)| texts).collect(),
            texts: index.into(),
            groups: groups.into(),
            globs: inner_globs.into(),
        })
    }

    /// Returns the texts without globs, and the needles with their texts.
    fn with_texts<'p>(texts: &[&'p str]) -> (Vec<InnerText>, Vec<Needle<'p>>) {
        let parts = |text: &'p str| {
            let whole = text.len() <= Self::MAX_NEEDLE_BYTES;
            let size = if whole { text.len() } else { Self::MAX_NEEDLE_BYTES };
            text.as_bytes().rchunks_exact(size)
        };
        let mut part_counts: HashMap<&[u8], u32, FixedHasher> = HashMap::default();
        for part in texts.iter().flat_map(|text| parts(text)) {
            *part_counts.entry(part).or_default() += 1;
        }
        let mut needles: HashMap<&[u8], SmallVec<[u32; 2]>, FixedHasher> = HashMap::default();
        let mut index = Vec::with_capacity(texts.len());
        for (number, text) in (0..).zip(texts) {
            let best = parts(text).enumerate().min_by_key(|(_, part)| part_counts.get(part));
            let (position, needle) = best.unwrap_or_default();
            needles.entry(needle).or_default().push(number);
            index.push(InnerText {
                text: (*text).into(),
                length: u32::try_from(text.len()).unwrap_or(u32::MAX),
                needle_start: text.len() - (position + 1) * needle.len(),
                globs: SmallVec::new(),
                is_located: false,
            });
        }
        let mut needles: Vec<_> = needles.into_iter().collect();
        needles.sort_unstable();
        (index, needles)
    }

    /// Calls `found` with the items of every glob that matches the value, once for each glob. Returns the number of steps
    /// after the search for texts: places of texts, and lookups in them.
    #[inline(never)]
    pub(crate) fn visit(&self, value: &str, found: &mut impl FnMut(u32)) -> usize {
        let Some(automaton) = &self.automaton else {
            let matching = self.globs.iter().filter(|glob| glob.glob.matches(value));
            matching.flat_map(|glob| &glob.items).copied().for_each(found);
            return self.globs.len();
        };
        let mut seen = SeenTexts::default();
        let mut hits: Vec<TextHit> = Vec::new();
        for hit in automaton.find_overlapping_iter(value) {
            for &number in self.needles.get(hit.pattern().as_usize()).into_iter().flatten() {
                let Ok(number) = usize::try_from(number) else { continue };
                let Some((text, start)) = self.text_at(number, value, hit.start()) else {
                    continue;
                };
                let is_new = seen.insert(number, self.texts.len());
                if text.is_located {
                    hits.push(TextHit { text: number, start });
                } else if is_new {
                    self.find_contained(text, found);
                }
            }
        }
        if hits.is_empty() {
            return 0;
        }
        let mut search = GlobSearch {
            index: self,
            value,
            places: Occurrences::new(value, seen, &hits),
            group_places: HashMap::default(),
        };
        let candidates = (search.places.seen().iter())
            .filter_map(|text| self.texts.get(text).filter(|text| text.is_located))
            .flat_map(|text| text.globs.iter())
            .filter_map(|&glob| self.globs.get(usize::try_from(glob).ok()?))
            .collect::<SmallVec<[&InnerGlob; 8]>>();
        for glob in candidates {
            if glob.is_contained_text || search.matches(glob).is_some() {
                glob.items.iter().copied().for_each(&mut *found);
            }
        }
        hits.len() + search.places.lookup_count()
    }

    /// Returns a text if the value contains it around a needle, and its start.
    fn text_at(&self, number: usize, value: &str, needle: usize) -> Option<(&InnerText, u32)> {
        let text = self.texts.get(number)?;
        let start = needle.checked_sub(text.needle_start)?;
        if text.text.len() > Self::MAX_NEEDLE_BYTES
            && !value.as_bytes().get(start..)?.starts_with(text.text.as_bytes())
        {
            return None;
        }
        Some((text, u32::try_from(start).ok()?))
    }

    /// Calls `found` with the items of a text that is in globs `**text**` only.
    fn find_contained(&self, text: &InnerText, found: &mut impl FnMut(u32)) {
        let globs = text.globs.iter().filter_map(|&glob| usize::try_from(glob).ok());
        let globs = globs.filter_map(|glob| self.globs.get(glob));
        globs.flat_map(|glob| &glob.items).copied().for_each(found);
    }
}

/// Start and end of a group of texts in a value.
type GroupPlace = (u32, u32);

/// The search for globs in one value.
struct GlobSearch<'i> {
    index: &'i InnerTextIndex,
    value: &'i str,
    places: Occurrences<'i>,
    /// The places of groups with several texts, computed once.
    group_places: HashMap<usize, Vec<GroupPlace>, FixedHasher>,
}

impl GlobSearch<'_> {
    /// Returns `None` if the glob does not match the value.
    ///
    /// The first place of a group leaves the most of the value for the groups after it. The first group has no `**`
    /// before it if it is anchored, and the last one none after it; both have one place that must be considered.
    fn matches(&mut self, glob: &InnerGlob) -> Option<()> {
        let (start, end) = glob.glob.middle(self.value)?;
        let (mut position, mut limit) = (u32::try_from(start).ok()?, u32::try_from(end).ok()?);
        let mut groups = glob.groups.as_slice();
        if glob.is_first_anchored {
            let (first, rest) = groups.split_first()?;
            position = self.end_of_chain(self.texts(*first), position)?;
            groups = rest;
        }
        match groups.split_last() {
            Some((last, rest)) if glob.is_last_anchored => {
                limit = self.start_of_chain(self.texts(*last), limit)?;
                groups = rest;
            }
            None if glob.is_last_anchored && self.places.has_slash(position, limit) => return None,
            _ => {}
        }
        for &group in groups {
            position = self.end_of_group(group, position)?;
        }
        (position <= limit).then_some(())
    }

    fn texts(&self, group: usize) -> &[usize] {
        self.index.groups.get(group).map(SmallVec::as_slice).unwrap_or_default()
    }

    fn length(&self, text: usize) -> u32 {
        self.index.texts.get(text).map_or(0, |text| text.length)
    }

    /// Returns the earliest end of texts with `*` before each of them, the first of which is at `position`.
    ///
    /// The first place of a text is the best one if the text has no slash. It is the only one in reach of the star if the
    /// text has a slash, because the slashes must coincide. The same applies to the last place in the other direction.
    fn end_of_chain(&self, texts: &[usize], mut position: u32) -> Option<u32> {
        for &text in texts {
            let start = self.places.first_from(text, position)?;
            if self.places.has_slash(position, start) {
                return None;
            }
            position = start + self.length(text);
        }
        Some(position)
    }

    /// Returns the latest start of texts with `*` after each of them, the last of which is at `position`.
    fn start_of_chain(&self, texts: &[usize], mut position: u32) -> Option<u32> {
        for &text in texts.iter().rev() {
            let length = self.length(text);
            let start = self.places.last_until(text, position.checked_sub(length)?)?;
            if self.places.has_slash(start + length, position) {
                return None;
            }
            position = start;
        }
        Some(position)
    }

    /// Returns the end of the first place of a group at `position` or later.
    fn end_of_group(&mut self, group: usize, position: u32) -> Option<u32> {
        if let [text] = self.texts(group) {
            return Some(self.places.first_from(*text, position)? + self.length(*text));
        }
        if !self.group_places.contains_key(&group) {
            let places = self.places_of_group(self.texts(group));
            self.group_places.insert(group, places);
        }
        let places = self.group_places.get(&group)?;
        let first = places.get(places.partition_point(|(start, _)| *start < position))?;
        Some(first.1)
    }

    /// Returns the shortest place of the group around each place of its rarest text. Starts and ends are ascending.
    fn places_of_group(&self, texts: &[usize]) -> Vec<GroupPlace> {
        let rarest = texts.iter().enumerate().min_by_key(|(_, text)| self.places.of(**text).len());
        let Some((position, &rarest)) = rarest else { return Vec::new() };
        let (before, after) = (texts.get(..position), texts.get(position + 1..));
        let place = |&start: &u32| {
            let end = start + self.length(rarest);
            let start = self.start_of_chain(before?, start)?;
            Some((start, self.end_of_chain(after?, end)?))
        };
        self.places.of(rarest).iter().filter_map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of steps, and the number of matching globs.
    fn search(globs: &[String], value: &str) -> (usize, usize) {
        let globs: Vec<Glob> = globs.iter().map(|text| Glob::new(text).unwrap()).collect();
        let index = InnerTextIndex::new(
            (0..).zip(&globs).map(|(item, glob)| (glob, ItemList::from_slice(&[item]))).collect(),
        );
        let mut found = Vec::new();
        let steps = index.unwrap().visit(value, &mut |item| found.push(item));
        (steps, found.len())
    }

    fn globs(glob: impl Fn(usize) -> String) -> Vec<String> {
        (0..1_000).map(glob).collect()
    }

    fn repeated(text: impl Fn(usize) -> String) -> String {
        (0..1_000).map(text).collect()
    }

    /// Counts steps instead of time, so that the result is the same on every machine. Each value has all texts of all
    /// globs, and matches none or few of them.
    #[test]
    fn work_for_a_value_is_linear_in_its_length_and_the_number_of_globs() {
        let cases = [
            // In the wrong order.
            (
                globs(|n| format!("**/a{n}/**/b{n}/**")),
                repeated(|n| format!("/b{n}/")) + &repeated(|n| format!("/a{n}/")),
            ),
            // In different segments.
            (globs(|n| format!("**a{n}x*b{n}x**")), repeated(|n| format!("a{n}x/b{n}x/"))),
            // One text of all globs has many places.
            (globs(|n| format!("**/*/b{n}/*/c**")), repeated(|n| format!("/b{n}/"))),
            // The first group of all globs has many places, none of them in one segment.
            (globs(|n| format!("**a*b**x{n}x**")), repeated(|n| format!("a/b/x{n}x"))),
            // Pairs of 32 texts, none of which has a place between two slashes.
            (
                globs(|n| format!("**a{}x*b{}x**", n / 32, n % 32)),
                repeated(|n| format!("a{}x/b{}x/", n % 32, n % 32)),
            ),
            // Both ends are anchored.
            (globs(|n| format!("/*a{n}x*b{n}x*/")), repeated(|n| format!("/a{n}x/b{n}x/"))),
        ];
        for (globs, value) in cases {
            let (steps, found) = search(&globs, &value);
            let most = 8 * (value.len() + globs.len());
            assert!(steps < most, "{}: {steps} steps, {found} found, at most {most}", globs[7]);
            assert_eq!(found, 0, "{}", globs[7]);
        }
    }

    #[test]
    fn long_text_is_searched_by_the_part_that_others_do_not_have() {
        let same = "/segment".repeat(12);
        let globs = globs(|n| format!("**{same}/{n:07}{same}/**/end"));
        let value = format!("{}/0000007{same}/x/end", same.repeat(70));
        let (steps, found) = search(&globs, &value);
        assert_eq!(found, 1);
        assert!(steps < 100, "{steps}");
    }
}
