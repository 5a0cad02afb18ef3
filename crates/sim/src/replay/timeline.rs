//! Counts over time, in pieces that grow with the length of the log.

use tidegate_core::{Span, Timestamp};

/// Maximum number of pieces of a timeline.
const MAX_PIECES: u64 = 240;

/// Lengths of pieces, each a multiple of the previous one.
const PIECE_LENGTHS_MILLIS: [u64; 17] = [
    1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000,
    3_600_000, 21_600_000, 86_400_000,
];

/// Counts by pieces that start at multiples of their length, and become longer when there are too many.
#[derive(Debug)]
pub(crate) struct TimelineCounter {
    /// Length of a piece in microseconds.
    length: u64,
    /// The number of the first piece since 1970.
    first: Option<u64>,
    pieces: usize,
    series: Vec<Vec<u64>>,
}

impl Default for TimelineCounter {
    fn default() -> Self {
        Self { length: PIECE_LENGTHS_MILLIS[0] * 1_000, first: None, pieces: 0, series: Vec::new() }
    }
}

impl TimelineCounter {
    /// Returns the piece of an instant, which is not before the first one.
    pub(crate) fn piece(&mut self, at: Timestamp) -> usize {
        let first = *self.first.get_or_insert(at.as_micros() / self.length);
        let mut index = (at.as_micros() / self.length).saturating_sub(first);
        while index >= MAX_PIECES {
            self.lengthen();
            let first = self.first.unwrap_or_default();
            index = (at.as_micros() / self.length).saturating_sub(first);
        }
        let index = usize::try_from(index).unwrap_or_default();
        self.pieces = self.pieces.max(index + 1);
        index
    }

    /// Counts one more of a series in the last piece that was returned.
    pub(crate) fn add(&mut self, series: usize, piece: usize) {
        if self.series.len() <= series {
            self.series.resize_with(series + 1, Vec::new);
        }
        let counts = &mut self.series[series];
        if counts.len() <= piece {
            counts.resize(piece + 1, 0);
        }
        counts[piece] += 1;
    }

    /// Returns the start of the first piece, and the length of each.
    pub(crate) fn pieces(&self) -> (Timestamp, Span) {
        let start = self.first.unwrap_or_default() * self.length;
        (Timestamp::from_micros(start), Span::from_micros(self.length))
    }

    /// Returns the counts of a series in all pieces.
    pub(crate) fn counts(&self, series: usize) -> Vec<u64> {
        let mut counts = self.series.get(series).cloned().unwrap_or_default();
        counts.resize(self.pieces, 0);
        counts
    }

    fn lengthen(&mut self) {
        let longer = PIECE_LENGTHS_MILLIS
            .iter()
            .map(|millis| millis * 1_000)
            .find(|next| *next > self.length);
        let factor = longer.map_or(2, |longer| longer / self.length);
        let first = self.first.unwrap_or_default();
        let moved = |index: usize| {
            let index = (first + index as u64) / factor - first / factor;
            usize::try_from(index).unwrap_or_default()
        };
        for counts in &mut self.series {
            let mut merged = vec![0; counts.len().min(moved(counts.len()) + 1)];
            for (index, count) in counts.iter().enumerate() {
                merged[moved(index)] += count;
            }
            *counts = merged;
        }
        self.pieces = self.pieces.checked_sub(1).map_or(0, |last| moved(last) + 1);
        self.length *= factor;
        self.first = Some(first / factor);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_instant_is_counted_in_its_piece(
            start in 0_u64..2_000_000_000_000_000,
            steps in proptest::collection::vec(0_u64..5_000_000_000, 1..200),
        ) {
            let mut timeline = TimelineCounter::default();
            let mut at = start;
            let instants: Vec<u64> = steps.iter().map(|step| { at += step; at }).collect();
            for at in &instants {
                let piece = timeline.piece(Timestamp::from_micros(*at));
                timeline.add(1, piece);
            }
            let ((from, length), counts) = (timeline.pieces(), timeline.counts(1));
            prop_assert!(counts.len() as u64 <= MAX_PIECES);
            let mut wanted = vec![0; counts.len()];
            for at in instants {
                let index = (at - from.as_micros()) / length.as_micros();
                wanted[usize::try_from(index).unwrap()] += 1;
            }
            prop_assert_eq!(counts, wanted);
            prop_assert!(from.as_micros().is_multiple_of(length.as_micros()));
        }
    }
}
