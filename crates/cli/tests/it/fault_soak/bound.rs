//! The bound that the documentation states for one lane of an episode. Numbers like 0011 refer to `docs/decisions`.

use super::history::{EpisodeHistory, FaultEffect, FaultRecord, Micros};
use super::scenario::{
    EpisodeScenario, LaneAccuracy, LaneLimit, LimitAlgorithm, LoadLane, StoreTopology,
};

const SECOND: Micros = 1_000_000;
/// Lifetime of a lease: 2 s, its clock margin of 1 % (docs/decisions/0011-leases.md), and time for a grant in flight.
const LEASE_LIFETIME: Micros = 2 * SECOND + SECOND / 10;
/// Time for which a node uses its share after a heartbeat, with its margin
/// (docs/decisions/0013-synced-split-and-shards.md).
const SHARE_LIFETIME: Micros = 4 * SECOND + SECOND / 5;
/// Time for which a node uses its view of the store: ten syncs of at most 400 ms, and a sync in flight (0013).
const VIEW_LIFETIME: Micros = 4 * SECOND + SECOND / 2;

/// A limit and the span of real time in which a node may have enforced it.
#[derive(Debug, Clone, Copy)]
struct LimitPeriod {
    limit: LaneLimit,
    from: Micros,
    until: Micros,
}

/// Tokens that may be admitted in addition to the limit, in every span that overlaps this one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundAllowance {
    pub(crate) tokens: u64,
    from: Micros,
    until: Micros,
    /// The fault, and the page that states how many tokens it allows.
    pub(crate) reason: &'static str,
}

impl BoundAllowance {
    fn overlaps(&self, from: Micros, until: Micros) -> bool {
        self.from <= until && self.until >= from
    }
}

/// The maximum that one lane may admit, for any span and window.
#[derive(Debug, Clone)]
pub(crate) struct StatedBound {
    limits: Vec<LimitPeriod>,
    allowances: Vec<BoundAllowance>,
    /// Tokens that each node process may admit before it syncs.
    max_ahead: u64,
    /// Start and end of every node process.
    process_lifetimes: Vec<(Micros, Micros)>,
    max_cost: u64,
    /// Tokens that nodes may have admitted and the store has not counted yet.
    pub(crate) unreported: u64,
    /// True if every admission of a sliding window respects the weight of the previous window.
    pub(crate) respects_weight: bool,
}

/// Returns the stated bound of a lane. Each comment names the page that states it.
pub(crate) fn stated_bound(
    scenario: &EpisodeScenario,
    lane_index: usize,
    history: &EpisodeHistory,
) -> StatedBound {
    let lane = &scenario.lanes[lane_index];
    let limits = limit_periods(lane_index, history);
    let capacity = limits.iter().map(|period| period.limit.capacity()).max().unwrap();
    let mut allowances = Vec::new();
    for fault in &history.faults {
        allowances.extend(fault_allowance(scenario, lane, &limits, capacity, fault));
    }
    // 0011, "When rules change": tokens that were leased at that moment are admitted in addition to the new limit.
    if matches!(lane.accuracy, LaneAccuracy::Leased | LaneAccuracy::Hot) {
        let changes = history.versions.windows(2);
        let changes =
            changes.filter(|pair| pair[0].limits[lane_index] != pair[1].limits[lane_index]);
        allowances.extend(changes.map(|pair| BoundAllowance {
            tokens: capacity,
            from: pair[1].pushed,
            until: pair[1].adopted.map_or(Micros::MAX, |adopted| adopted + LEASE_LIFETIME),
            reason: "tokens leased when the limit changed (0011, When rules change)",
        }));
    }
    // 0013, "Synced": the bound, and `max_ahead` for each node process. A restarted node is one more process.
    let max_ahead = match lane.accuracy {
        LaneAccuracy::Synced { max_ahead, .. } => max_ahead,
        _ => 0,
    };
    for fault in &history.faults {
        let stale = match fault.effect {
            FaultEffect::ClockStep { before, after } => after > before,
            FaultEffect::LostData | FaultEffect::Failover { .. } => true,
            FaultEffect::None => false,
        };
        if stale && max_ahead > 0 {
            allowances.push(BoundAllowance {
                tokens: max_ahead * history.process_lifetimes.len() as u64,
                from: fault.began,
                until: fault.ended + VIEW_LIFETIME,
                reason: "nodes that have not synced since the clock step or the data loss (0013, Synced)",
            });
        }
    }
    StatedBound {
        limits,
        allowances,
        max_ahead,
        process_lifetimes: history.process_lifetimes.clone(),
        max_cost: lane.max_cost,
        unreported: match lane.accuracy {
            // 0011: leased tokens that are not reported are at most the limit.
            LaneAccuracy::Leased | LaneAccuracy::Hot => capacity,
            _ => max_ahead * history.process_lifetimes.len() as u64,
        },
        respects_weight: !matches!(
            lane.accuracy,
            LaneAccuracy::Synced { .. } | LaneAccuracy::Split
        ),
    }
}

/// Returns the period in which each limit may be in force: from its push until every node has a later version (0009).
fn limit_periods(lane_index: usize, history: &EpisodeHistory) -> Vec<LimitPeriod> {
    let versions = &history.versions;
    let period = |number: usize| {
        let until = versions[number + 1..].iter().filter_map(|later| later.adopted).min();
        LimitPeriod {
            limit: versions[number].limits[lane_index],
            from: if number == 0 { Micros::MIN } else { versions[number].pushed },
            until: until.unwrap_or(Micros::MAX),
        }
    };
    (0..versions.len()).map(period).collect()
}

/// Returns the tokens that a fault allows in addition to the limit.
fn fault_allowance(
    scenario: &EpisodeScenario,
    lane: &LoadLane,
    limits: &[LimitPeriod],
    capacity: u64,
    fault: &FaultRecord,
) -> Option<BoundAllowance> {
    let leased = matches!(lane.accuracy, LaneAccuracy::Leased | LaneAccuracy::Hot);
    let split = lane.accuracy == LaneAccuracy::Split && scenario.topology != StoreTopology::Memory;
    // 0011, "Faults": lost tokens, used or leased, can be admitted once more. Nodes use leased tokens until the lease ends.
    let tail = if leased { LEASE_LIFETIME } else { 0 };
    let (from, until) = (fault.began, fault.ended + tail);
    match fault.effect {
        FaultEffect::None => None,
        // 0013, "Split": lost store data does not change the shares of the nodes.
        FaultEffect::LostData if split => None,
        FaultEffect::LostData => Some(BoundAllowance {
            tokens: capacity,
            from,
            until,
            reason: "one more limit after a restart without data (redis.md, What a failing Redis costs)",
        }),
        // 0013, "Split": the new master may lack the last heartbeats, so shares may add up to twice the limit.
        FaultEffect::Failover { .. } if split => Some(BoundAllowance {
            tokens: capacity,
            from,
            until: fault.ended + SHARE_LIFETIME,
            reason: "shares of twice the limit after a failover (0013, Split)",
        }),
        FaultEffect::Failover { old_master_lived: false } => Some(BoundAllowance {
            tokens: capacity,
            from,
            until,
            reason: "charges that had not reached the replica (redis.md, What a failing Redis costs)",
        }),
        // Charges on the old master are lost, until it follows the new one.
        FaultEffect::Failover { old_master_lived: true } => Some(BoundAllowance {
            tokens: limits.iter().map(|period| span_bound(&period.limit, until - from)).max()?,
            from,
            until,
            reason: "charges on the old master until it was replaced (redis.md, What a failing Redis costs)",
        }),
        // 0011, "Faults": the store expires leases at a step forward, while nodes still use their tokens.
        FaultEffect::ClockStep { before, after } if leased && after > before => {
            Some(BoundAllowance {
                tokens: capacity,
                from,
                until,
                reason: "leased tokens after the store's clock was set forward (0011, Faults)",
            })
        }
        // 0013, "Split": after a step forward, the store expires nodes that are still running.
        FaultEffect::ClockStep { before, after } if split && after > before => {
            Some(BoundAllowance {
                tokens: capacity,
                from,
                until: fault.ended + SHARE_LIFETIME,
                reason: "shares of twice the limit after the store's clock was set forward (0013, Split)",
            })
        }
        // 0005: a step forward counts as elapsed time, and a step back stops the time of a key. `StoreClock` models both.
        FaultEffect::ClockStep { .. } => None,
    }
}

/// Returns the maximum that an algorithm admits in any closed span of this length (`Bound`, docs/guide/rules.md, Limits).
fn span_bound(limit: &LaneLimit, length: Micros) -> u64 {
    let (length, window) = (length.max(0).unsigned_abs(), limit.window_micros().unsigned_abs());
    let LaneLimit { algorithm, amount, .. } = *limit;
    let refilled = || {
        let micros = u128::from(amount) * u128::from(length);
        u64::try_from(micros / u128::from(window)).unwrap()
    };
    match algorithm {
        LimitAlgorithm::TokenBucket | LimitAlgorithm::LeakyBucket => limit.capacity() + refilled(),
        LimitAlgorithm::FixedWindow => amount * (length / window + 2),
        LimitAlgorithm::SlidingWindow if length < window => 2 * amount - 1,
        LimitAlgorithm::SlidingWindow => amount * (length / window + 2),
        LimitAlgorithm::SlidingLog => amount * (length / window + 1),
        LimitAlgorithm::Concurrency => amount,
    }
}

impl StatedBound {
    /// Returns the limits that may have been in force at some instant of a span.
    fn in_force(&self, from: Micros, until: Micros) -> impl Iterator<Item = &LimitPeriod> {
        self.limits.iter().filter(move |period| period.from <= until && period.until >= from)
    }

    /// Returns the allowances that overlap a span of real time.
    pub(crate) fn allowances_within(
        &self,
        from: Micros,
        until: Micros,
    ) -> impl Iterator<Item = &BoundAllowance> {
        self.allowances.iter().filter(move |allowance| allowance.overlaps(from, until))
    }

    /// Returns the unsynced tokens of all processes that ran in a span.
    fn max_ahead_within(&self, from: Micros, until: Micros) -> u64 {
        let running = |(start, end): &&(Micros, Micros)| *start <= until && *end >= from;
        self.max_ahead * self.process_lifetimes.iter().filter(running).count() as u64
    }

    /// Returns the tokens that may be admitted in addition to the limit in a span.
    fn extra_within(&self, from: Micros, until: Micros) -> u64 {
        self.max_ahead_within(from, until)
            + self.allowances_within(from, until).map(|allowance| allowance.tokens).sum::<u64>()
    }

    /// Returns the smallest bound of any limit for a span, without allowances. It is at most
    /// [`max_in_span`](Self::max_in_span), and cheaper to compute.
    pub(crate) fn smallest_span_bound(&self, length: Micros) -> u64 {
        self.limits.iter().map(|period| span_bound(&period.limit, length)).min().unwrap()
    }

    /// Returns the maximum in a span of elapsed time of this length. Its admissions were made between two instants of real
    /// time.
    pub(crate) fn max_in_span(&self, length: Micros, from: Micros, until: Micros) -> u64 {
        let (mut in_force, mut algorithms) = (Vec::new(), Vec::new());
        for LimitPeriod { limit, .. } in self.in_force(from, until) {
            if !in_force.contains(limit) {
                in_force.push(*limit);
            }
            if !algorithms.contains(&limit.algorithm) {
                algorithms.push(limit.algorithm);
            }
        }
        // changing-rules.md, "While nodes have different versions": each algorithm has its own bound.
        let each = algorithms.into_iter().map(|algorithm| {
            let limits = in_force.iter().filter(|limit| limit.algorithm == algorithm);
            match algorithm {
                // The same page: each version of a bucket's numbers has its own bound.
                LimitAlgorithm::TokenBucket | LimitAlgorithm::LeakyBucket => {
                    limits.map(|limit| span_bound(limit, length)).sum()
                }
                // 0013: `max_ahead` of each node is added for every window that the span overlaps.
                LimitAlgorithm::FixedWindow | LimitAlgorithm::SlidingWindow => {
                    let more_windows = (length / self.window()).unsigned_abs() + 1;
                    let most = limits.map(|limit| span_bound(limit, length)).max().unwrap();
                    most + more_windows * self.max_ahead_within(from, until)
                }
                // The same page: a log or a limit in flight admits at most the largest limit in force.
                _ => limits.map(|limit| span_bound(limit, length)).max().unwrap(),
            }
        });
        each.sum::<u64>() + self.extra_within(from, until)
    }

    /// Returns the maximum in one window aligned to the clock, or `None` if an algorithm has no such windows.
    pub(crate) fn max_in_window(&self, from: Micros, until: Micros) -> Option<u64> {
        let mut most = 0;
        for period in self.in_force(from, until) {
            match period.limit.algorithm {
                LimitAlgorithm::FixedWindow | LimitAlgorithm::SlidingWindow => {
                    most = most.max(period.limit.amount);
                }
                _ => return None,
            }
        }
        Some(most + self.extra_within(from, until))
    }

    /// Returns the largest amount of a limit with windows aligned to the clock; 0 without such a limit.
    pub(crate) fn max_window_amount(&self) -> u64 {
        let has_windows = |limit: &LaneLimit| {
            matches!(limit.algorithm, LimitAlgorithm::FixedWindow | LimitAlgorithm::SlidingWindow)
        };
        let limits = self.limits.iter().map(|period| period.limit);
        limits.filter(has_windows).map(|limit| limit.amount).max().unwrap_or(0)
    }

    /// Returns the window of the limits. Pushes do not change it.
    pub(crate) fn window(&self) -> Micros {
        self.limits[0].limit.window_micros()
    }

    /// Returns whether every version of the limit has this algorithm.
    pub(crate) fn has_only(&self, algorithm: LimitAlgorithm) -> bool {
        self.limits.iter().all(|period| period.limit.algorithm == algorithm)
    }

    /// Returns the maximum cost that a leaky bucket releases in a span: one request, and one token for each interval. Each
    /// version of a bucket's numbers has its own bound (changing-rules.md, "While nodes have different versions").
    pub(crate) fn max_releases(&self, length: Micros, from: Micros, until: Micros) -> u64 {
        let mut limits: Vec<LaneLimit> = Vec::new();
        for period in self.in_force(from, until) {
            if !limits.contains(&period.limit) {
                limits.push(period.limit);
            }
        }
        let paced = |limit: &LaneLimit| span_bound(limit, length) - limit.capacity();
        limits.iter().map(|limit| self.max_cost + paced(limit)).sum::<u64>()
            + self.extra_within(from, until)
    }

    /// Returns the maximum of slots in flight at an instant. A store that loses data ends the lost slots, so it allows none
    /// in addition.
    pub(crate) fn max_in_flight(&self) -> u64 {
        self.limits.iter().map(|period| period.limit.amount).max().unwrap()
    }
}
