//! The maximum number of requests of one client that were admitted in any span as long as a window.

use std::collections::VecDeque;

use tidegate_core::{Span, Timestamp};

/// Number of clients that are watched: the first ones, which in a Zipf population are the busiest.
const MAX_WATCHED_CLIENTS: usize = 10_000;
/// In a window longer than a minute, instants closer than this fraction of it count as one, the earlier.
const GRAINS_PER_WINDOW: u64 = 65_536;

/// The maximum number of requests that were admitted to one client within any window, and within a window that
/// starts at a multiple of its length.
///
/// Exact for windows of up to a minute. For longer ones it may be too low by the requests of one grain, never too high.
#[derive(Debug)]
pub(crate) struct WorstWindow {
    window: Span,
    grain: Span,
    clients: Vec<RecentAdmissions>,
    peak: Peak,
    aligned: u64,
}

/// The maximum number of requests in any one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peak {
    pub(crate) most: u64,
    /// From the first to the last of them.
    pub(crate) within: Span,
}

/// Requests of one client that were admitted within the last window.
#[derive(Clone, Debug, Default)]
struct RecentAdmissions {
    log: VecDeque<(Timestamp, u64)>,
    sum: u64,
    /// The aligned window of the last request, and the number of requests in it.
    aligned: (u64, u64),
}

impl WorstWindow {
    pub(crate) fn new(window: Span) -> Self {
        let grain = if window > Span::MINUTE { window.as_micros() / GRAINS_PER_WINDOW } else { 0 };
        Self {
            window,
            grain: Span::from_micros(grain),
            clients: Vec::new(),
            peak: Peak::default(),
            aligned: 0,
        }
    }

    pub(crate) fn window(&self) -> Span {
        self.window
    }

    pub(crate) fn peak(&self) -> Peak {
        self.peak
    }

    /// Returns the maximum number of requests in one window that starts at a multiple of its length.
    pub(crate) fn aligned(&self) -> u64 {
        self.aligned
    }

    /// Counts a request of a client that was admitted at an instant, not before the client's last one.
    pub(crate) fn record(&mut self, client: u64, at: Timestamp) {
        let index = usize::try_from(client).unwrap_or(usize::MAX);
        if index >= MAX_WATCHED_CLIENTS || self.window.is_zero() {
            return;
        }
        if self.clients.len() <= index {
            self.clients.resize_with(index + 1, RecentAdmissions::default);
        }
        let recent = &mut self.clients[index];
        while let Some((_, count)) = recent.log.pop_front_if(|(old, _)| *old + self.window <= at) {
            recent.sum -= count;
        }
        match recent.log.back_mut().filter(|(last, _)| at.since(*last) <= self.grain) {
            Some((_, count)) => *count += 1,
            None => recent.log.push_back((at, 1)),
        }
        recent.sum += 1;
        if recent.sum > self.peak.most {
            let first = recent.log.front().map_or(at, |(first, _)| *first);
            self.peak = Peak { most: recent.sum, within: at.since(first) };
        }
        let window = at.as_micros() / self.window.as_micros();
        let before = if recent.aligned.0 == window { recent.aligned.1 } else { 0 };
        recent.aligned = (window, before + 1);
        self.aligned = self.aligned.max(before + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(micros: &[u64]) -> (Peak, u64) {
        let mut watch = WorstWindow::new(Span::SECOND);
        micros.iter().for_each(|at| watch.record(0, Timestamp::from_micros(*at)));
        (watch.peak(), watch.aligned())
    }

    #[test]
    fn peak_is_found_in_a_window_with_any_start_and_an_exclusive_end() {
        let peak = |most, micros| Peak { most, within: Span::from_micros(micros) };
        assert_eq!(watched(&[0, 999_999]), (peak(2, 999_999), 2));
        assert_eq!(watched(&[0, 1_000_000]).0.most, 1);
        assert_eq!(watched(&[850_000, 850_000, 1_000_000, 1_000_000]), (peak(4, 150_000), 2));
    }

    #[test]
    fn clients_are_counted_separately() {
        let mut watch = WorstWindow::new(Span::SECOND);
        (0..5).for_each(|client| watch.record(client, Timestamp::EPOCH));
        assert_eq!((watch.peak().most, watch.aligned()), (1, 1));
    }

    #[test]
    fn long_window_is_never_overestimated() {
        let mut watch = WorstWindow::new(Span::HOUR);
        for tick in 0..200_000_u64 {
            watch.record(0, Timestamp::from_micros(tick * 100_000));
        }
        let most = watch.peak().most;
        assert!((35_990..=36_000).contains(&most), "{most}");
        assert!(watch.clients[0].log.len() <= 65_537);
    }
}
