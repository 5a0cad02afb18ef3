//! Rates and lengths of simulated faults.

use super::rng::SimulationRng;

/// The faults of one simulation. Rates are percentages, times are microseconds.
pub(crate) struct FaultRates {
    /// Maximum delay of a message.
    pub(crate) delay: u64,
    /// Rate of lost, duplicated and very late messages.
    pub(crate) bad: u64,
    /// Rate of admitted requests that another rule denies.
    pub(crate) rolled_back: u64,
    /// Rate of long gaps between requests.
    pub(crate) quiet: u64,
    /// Rate of requests that cost more than one token.
    pub(crate) costly: u64,
    /// Rate of leases with a burst of requests just before their end.
    pub(crate) brink: u64,
    /// Rate of fleets that pause as a whole.
    pub(crate) fleet_pauses: u64,
    /// True if nodes release the leases of idle clients; and the fleet size in requests.
    pub(crate) sweeps: bool,
    pub(crate) share: u64,
    /// Timeout of a request.
    pub(crate) deadline: u64,
    /// Rate of clock steps and failovers of the store.
    pub(crate) clock_steps: u64,
}

impl FaultRates {
    pub(crate) fn new(rng: &mut SimulationRng) -> Self {
        Self {
            delay: rng.pick(&[500, 5_000, 300_000]),
            bad: rng.pick(&[0, 1, 10]),
            rolled_back: rng.pick(&[0, 0, 20]),
            quiet: rng.pick(&[0, 5, 30]),
            costly: rng.pick(&[0, 10, 60]),
            brink: rng.pick(&[0, 50, 100]),
            fleet_pauses: rng.pick(&[0, 100]),
            sweeps: rng.percent(50),
            share: rng.pick(&[1, 3]),
            deadline: rng.pick(&[10_000, 1_000_000, 5_000_000]),
            clock_steps: rng.pick(&[0, 0, 50]),
        }
    }
}
