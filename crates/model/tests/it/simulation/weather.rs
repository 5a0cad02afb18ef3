//! What a fleet has to bear.

use super::chance::Chance;

/// How bad it gets.
pub(crate) struct Weather {
    /// How long a message takes at the most.
    pub(crate) delay: u64,
    /// How many of a hundred messages are lost, doubled, late for good.
    pub(crate) bad: u64,
    /// How many of a hundred requests are denied elsewhere.
    pub(crate) put_back: u64,
    /// How many of a hundred times nobody comes for a while.
    pub(crate) quiet: u64,
    /// How many of a hundred requests cost more than one token.
    pub(crate) costly: u64,
    /// How many of a hundred holds end with everybody at the door.
    pub(crate) brink: u64,
    /// How many of a hundred fleets pause as a whole.
    pub(crate) lulls: u64,
    /// Whether idle clients give back, and for how many nodes there is said to be.
    pub(crate) sweeps: bool,
    pub(crate) share: u64,
    /// How long an answer is waited for.
    pub(crate) deadline: u64,
    /// How many of a hundred times the store's clock is set, or its replica takes over.
    pub(crate) clock_steps: u64,
}

impl Weather {
    pub(crate) fn new(chance: &mut Chance) -> Self {
        Self {
            delay: chance.pick(&[500, 5_000, 300_000]),
            bad: chance.pick(&[0, 1, 10]),
            put_back: chance.pick(&[0, 0, 20]),
            quiet: chance.pick(&[0, 5, 30]),
            costly: chance.pick(&[0, 10, 60]),
            brink: chance.pick(&[0, 50, 100]),
            lulls: chance.pick(&[0, 100]),
            sweeps: chance.percent(50),
            share: chance.pick(&[1, 3]),
            deadline: chance.pick(&[10_000, 1_000_000, 5_000_000]),
            clock_steps: chance.pick(&[0, 0, 50]),
        }
    }
}
