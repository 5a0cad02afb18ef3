//! Who asks, at which node, and how often.

/// What a fleet is offered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    Under,
    Over,
    Uneven,
    Crowd,
    Changing,
}

/// Of the client that comes alone, in a second and at once.
const RATE: u64 = 10_000;
/// Clients of the crowd, the first the busiest.
const CROWD: u64 = 2_000;
/// Of each of them.
const CROWD_LIMIT: u64 = 100;
/// What they all ask for together, in a second.
const CROWD_RATE: u64 = 12_000;

impl Traffic {
    pub(crate) const ALL: [Self; 5] =
        [Self::Under, Self::Over, Self::Uneven, Self::Crowd, Self::Changing];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Under => "one client, 80 % of its limit",
            Self::Over => "one client, twice its limit",
            Self::Uneven => "twice its limit, most at one node",
            Self::Crowd => "2,000 clients, Zipf",
            Self::Changing => "twice its limit, a node joins and one is killed",
        }
    }

    /// A client's limit in a second, and its burst.
    pub(crate) fn limit(self) -> (u64, u64) {
        match self {
            Self::Crowd => (CROWD_LIMIT, CROWD_LIMIT),
            _ => (RATE, RATE),
        }
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
            Self::Over | Self::Changing => 2 * RATE / nodes,
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
