//! Traffic patterns: clients, nodes and rates.

/// A traffic pattern for a fleet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    UnderLimit,
    OverLimit,
    Uneven,
    Crowd,
    Changing,
    Window,
}

/// Limit per second, and burst, of a single client.
const SINGLE_CLIENT_LIMIT: u64 = 10_000;
/// Number of clients in [`Traffic::Crowd`]. The first one is the busiest.
const CROWD_SIZE: u64 = 2_000;
/// Limit per second of each of those clients.
const CROWD_LIMIT: u64 = 100;
/// Checks per second of those clients together.
const CROWD_RATE: u64 = 12_000;

/// Length of the fixed window in seconds, much longer than a lease.
const WINDOW_SECS: u64 = 10;

impl Traffic {
    pub(crate) const ALL: [Self; 6] = [
        Self::UnderLimit,
        Self::OverLimit,
        Self::Uneven,
        Self::Crowd,
        Self::Changing,
        Self::Window,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::UnderLimit => "one client, 80 % of its limit",
            Self::OverLimit => "one client, twice its limit",
            Self::Uneven => "twice its limit, most at one node",
            Self::Crowd => "2,000 clients, Zipf",
            Self::Changing => "twice its limit, a node joins and one is killed",
            Self::Window => "twice its limit, fixed window of 10 s",
        }
    }

    /// Returns the burst of a client, or the limit of a window.
    pub(crate) fn burst(self) -> u64 {
        match self {
            Self::Crowd => CROWD_LIMIT,
            Self::Window => SINGLE_CLIENT_LIMIT * WINDOW_SECS,
            _ => SINGLE_CLIENT_LIMIT,
        }
    }

    /// Returns the limit of a client in rule syntax.
    pub(crate) fn limit(self) -> String {
        let burst = self.burst();
        match self {
            Self::Window => {
                format!("limit: {burst} per {WINDOW_SECS} seconds, algorithm: fixed_window")
            }
            _ => format!("limit: {burst} per second, burst: {burst}"),
        }
    }

    /// Returns how many requests the algorithm admits between two instants, given in microseconds.
    pub(crate) fn bound(self, started_at: u64, ended_at: u64) -> u64 {
        let (burst, window) = (self.burst(), WINDOW_SECS * 1_000_000);
        match self {
            Self::Window => burst * (1 + ended_at / window - started_at / window),
            // Plus one for a fraction of a token.
            _ => burst + burst * (ended_at - started_at) / 1_000_000 + 1,
        }
    }

    /// Returns the microseconds to wait before the start, so that the run lies within one window.
    pub(crate) fn wait(self, now: u64) -> u64 {
        let window = WINDOW_SECS * 1_000_000;
        if self == Self::Window { window - now % window } else { 0 }
    }

    /// Returns the duration of the run.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            // Enough time for the fleet to detect the changes.
            Self::Changing => 15,
            _ => 8,
        }
    }

    /// Returns the checks per second of one node.
    pub(crate) fn offered(self, node: u64, nodes: u64) -> u64 {
        match self {
            Self::OverLimit | Self::Changing | Self::Window => 2 * SINGLE_CLIENT_LIMIT / nodes,
            Self::UnderLimit => SINGLE_CLIENT_LIMIT * 8 / 10 / nodes,
            Self::Uneven if node == 0 => 2 * SINGLE_CLIENT_LIMIT * 8 / 10,
            Self::Uneven => 2 * SINGLE_CLIENT_LIMIT * 2 / 10 / (nodes - 1),
            Self::Crowd => CROWD_RATE / nodes,
        }
    }

    /// Draws the client of the next check.
    pub(crate) fn client(self, random: &mut u64) -> u64 {
        if self != Self::Crowd {
            return 0;
        }
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let part = (*random >> 11) as f64 / (1_u64 << 53) as f64;
        // The inverse of a distribution in which the n-th client is 1 / n as frequent as the first.
        ((CROWD_SIZE as f64 + 1.0).powf(part) - 1.0) as u64
    }
}
