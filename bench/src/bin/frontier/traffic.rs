//! Who asks, at which node, and how often.

/// What a fleet is offered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    Under,
    Over,
    Uneven,
    Crowd,
    Changing,
    Window,
}

/// Of the client that comes alone, in a second and at once.
const RATE: u64 = 10_000;
/// Clients of the crowd, the first the busiest.
const CROWD: u64 = 2_000;
/// Of each of them.
const CROWD_LIMIT: u64 = 100;
/// What they all ask for together, in a second.
const CROWD_RATE: u64 = 12_000;

/// Seconds of a fixed window: much longer than a lease.
const WINDOW: u64 = 10;

impl Traffic {
    pub(crate) const ALL: [Self; 6] =
        [Self::Under, Self::Over, Self::Uneven, Self::Crowd, Self::Changing, Self::Window];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Under => "one client, 80 % of its limit",
            Self::Over => "one client, twice its limit",
            Self::Uneven => "twice its limit, most at one node",
            Self::Crowd => "2,000 clients, Zipf",
            Self::Changing => "twice its limit, a node joins and one is killed",
            Self::Window => "twice its limit, fixed window of 10 s",
        }
    }

    /// What a client may use at once: the burst, or the limit of a window.
    pub(crate) fn burst(self) -> u64 {
        match self {
            Self::Crowd => CROWD_LIMIT,
            Self::Window => RATE * WINDOW,
            _ => RATE,
        }
    }

    /// The limit of a client, as a rule states it.
    pub(crate) fn limit(self) -> String {
        let burst = self.burst();
        match self {
            Self::Window => format!("limit: {burst} per {WINDOW} seconds, algorithm: fixed_window"),
            _ => format!("limit: {burst} per second, burst: {burst}"),
        }
    }

    /// What the algorithm admits between two instants, in microseconds.
    pub(crate) fn bound(self, began: u64, ended: u64) -> u64 {
        let (burst, window) = (self.burst(), WINDOW * 1_000_000);
        match self {
            Self::Window => burst * (1 + ended / window - began / window),
            // One for the part of a token.
            _ => burst + burst * (ended - began) / 1_000_000 + 1,
        }
    }

    /// How long to wait before it begins, in microseconds: all of it is in one window.
    pub(crate) fn wait(self, now: u64) -> u64 {
        let window = WINDOW * 1_000_000;
        if self == Self::Window { window - now % window } else { 0 }
    }

    /// How long it goes on.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            // Time for a fleet to notice.
            Self::Changing => 15,
            _ => 8,
        }
    }

    /// Checks of one node in a second.
    pub(crate) fn offered(self, node: u64, nodes: u64) -> u64 {
        match self {
            Self::Over | Self::Changing | Self::Window => 2 * RATE / nodes,
            Self::Under => RATE * 8 / 10 / nodes,
            Self::Uneven if node == 0 => 2 * RATE * 8 / 10,
            Self::Uneven => 2 * RATE * 2 / 10 / (nodes - 1),
            Self::Crowd => CROWD_RATE / nodes,
        }
    }

    /// Who comes next.
    pub(crate) fn client(self, random: &mut u64) -> u64 {
        if self != Self::Crowd {
            return 0;
        }
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let part = (*random >> 11) as f64 / (1_u64 << 53) as f64;
        // The inverse of a distribution whose n-th client comes 1 / n as often as the first.
        ((CROWD as f64 + 1.0).powf(part) - 1.0) as u64
    }
}
