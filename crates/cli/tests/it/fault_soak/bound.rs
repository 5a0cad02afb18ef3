//! The bounds that the documentation states, for one lane of one episode.

use super::history::{EpisodeHistory, FaultEffect, FaultRecord, Micros};
use super::scenario::{
    EpisodeScenario, LaneAccuracy, LaneLimit, LimitAlgorithm, LoadLane, StoreTopology,
};

const SECOND: Micros = 1_000_000;
/// Lifetime of a lease and its margin of one part in a hundred (docs/decisions/0011-leases.md), and a little for the
/// lease that was being granted.
const LEASE_LIFETIME: Micros = 2 * SECOND + SECOND / 10;
/// Time for which a node uses its part after a pulse, and its margin (docs/decisions/0013-synced-split-and-shards.md).
const PART_LIFETIME: Micros = 4 * SECOND + SECOND / 5;

/// Time for which a node uses a view: ten syncs of at most 400 ms, and the sync under way (0013).
const VIEW_LIFETIME: Micros = 4 * SECOND + SECOND / 2;

/// A limit, and the span of real time in which a node may have enforced it.
#[derive(Debug, Clone, Copy)]
struct LimitPeriod {
    limit: LaneLimit,
    from: Micros,
    until: Micros,
}

/// Tokens that may be admitted beside the limit, in every span that touches this one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundAllowance {
    pub(crate) tokens: u64,
    from: Micros,
    until: Micros,
    /// The fault and the page that states its cost.
    pub(crate) reason: &'static str,
}

impl BoundAllowance {
    fn touches(&self, from: Micros, until: Micros) -> bool {
        self.from <= until && self.until >= from
    }
}

/// The most that one lane may admit, for any span and window.
#[derive(Debug, Clone)]
pub(crate) struct StatedBound {
    limits: Vec<LimitPeriod>,
    allowances: Vec<BoundAllowance>,
    /// Tokens that each process of a node may be ahead, and when those processes ran.
    max_ahead: u64,
    node_lives: Vec<(Micros, Micros)>,
    max_cost: u64,
    /// Tokens that nodes may have admitted before the store counts them at a time of its own.
    pub(crate) unreported: u64,
    /// Whether the weight of the previous window is kept by every admission.
    pub(crate) keeps_weight: bool,
}

/// Collects the stated bound of a lane: each line names the page that states it.
pub(crate) fn stated_bound(
    scenario: &EpisodeScenario,
    place: usize,
    history: &EpisodeHistory,
) -> StatedBound {
    let lane = &scenario.lanes[place];
    let limits = limit_periods(place, history);
    let capacity = limits.iter().map(|period| period.limit.capacity()).max().unwrap();
    let mut allowances = Vec::new();
    for fault in &history.faults {
        allowances.extend(fault_allowance(scenario, lane, &limits, capacity, fault));
    }
    // 0011, "When rules change": what was held at that moment is admitted beside the new limit.
    if matches!(lane.accuracy, LaneAccuracy::Leased | LaneAccuracy::Hot) {
        let changes = history.versions.windows(2);
        let changes = changes.filter(|pair| pair[0].limits[place] != pair[1].limits[place]);
        allowances.extend(changes.map(|pair| BoundAllowance {
            tokens: capacity,
            from: pair[1].pushed,
            until: pair[1].adopted.map_or(Micros::MAX, |adopted| adopted + LEASE_LIFETIME),
            reason: "tokens held when the limit changed (0011, When rules change)",
        }));
    }
    // 0013, "Synced": the bound and `max_ahead` for each node; a node that crashed is one more.
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
                tokens: max_ahead * history.node_lives.len() as u64,
                from: fault.began,
                until: fault.ended + VIEW_LIFETIME,
                reason: "nodes that have not synced since the clock was set or data were lost (0013, Synced)",
            });
        }
    }
    StatedBound {
        limits,
        allowances,
        max_ahead,
        node_lives: history.node_lives.clone(),
        max_cost: lane.max_cost,
        unreported: match lane.accuracy {
            // 0011: what is held and not reported is at most the limit.
            LaneAccuracy::Leased | LaneAccuracy::Hot => capacity,
            _ => max_ahead * history.node_lives.len() as u64,
        },
        keeps_weight: !matches!(lane.accuracy, LaneAccuracy::Synced { .. } | LaneAccuracy::Split),
    }
}

/// 0009: a limit is in force from the first check under it, so from the push on until the last node has a later one.
fn limit_periods(place: usize, history: &EpisodeHistory) -> Vec<LimitPeriod> {
    let versions = &history.versions;
    let period = |number: usize| {
        let until = versions[number + 1..].iter().filter_map(|later| later.adopted).min();
        LimitPeriod {
            limit: versions[number].limits[place],
            from: if number == 0 { Micros::MIN } else { versions[number].pushed },
            until: until.unwrap_or(Micros::MAX),
        }
    };
    (0..versions.len()).map(period).collect()
}

fn fault_allowance(
    scenario: &EpisodeScenario,
    lane: &LoadLane,
    limits: &[LimitPeriod],
    capacity: u64,
    fault: &FaultRecord,
) -> Option<BoundAllowance> {
    let leased = matches!(lane.accuracy, LaneAccuracy::Leased | LaneAccuracy::Hot);
    let split = lane.accuracy == LaneAccuracy::Split && scenario.topology != StoreTopology::Memory;
    // 0011, "Faults": what was lost, used or held, can be admitted once more; held tokens last as long as their lease.
    let tail = if leased { LEASE_LIFETIME } else { 0 };
    let (from, until) = (fault.began, fault.ended + tail);
    match fault.effect {
        FaultEffect::None => None,
        // 0013, "Split": a store that forgets everything is no exception.
        FaultEffect::LostData if split => None,
        FaultEffect::LostData => Some(BoundAllowance {
            tokens: capacity,
            from,
            until,
            reason: "one more limit after a restart without data (redis.md, What a failing Redis costs)",
        }),
        // 0013, "Split": a replica without the last pulses; parts may add up to twice the limit.
        FaultEffect::Failover { .. } if split => Some(BoundAllowance {
            tokens: capacity,
            from,
            until: fault.ended + PART_LIFETIME,
            reason: "parts of twice the limit after a failover (0013, Split)",
        }),
        FaultEffect::Failover { old_master_lived: false } => Some(BoundAllowance {
            tokens: capacity,
            from,
            until,
            reason: "charges that had not reached the replica (redis.md, What a failing Redis costs)",
        }),
        // All that the old master admitted until it followed the new one is lost.
        FaultEffect::Failover { old_master_lived: true } => Some(BoundAllowance {
            tokens: limits.iter().map(|one| span_bound(&one.limit, until - from)).max()?,
            from,
            until,
            reason: "charges on the old master until it was replaced (redis.md, What a failing Redis costs)",
        }),
        // 0011, "Faults": forward, as if that time had passed, for holds too; what nodes still use comes on top.
        FaultEffect::ClockStep { before, after } if leased && after > before => {
            Some(BoundAllowance {
                tokens: capacity,
                from,
                until,
                reason: "held tokens after the store's clock was set forward (0011, Faults)",
            })
        }
        // 0013, "Split": a store whose clock is set forward forgets nodes that go on.
        FaultEffect::ClockStep { before, after } if split && after > before => {
            Some(BoundAllowance {
                tokens: capacity,
                from,
                until: fault.ended + PART_LIFETIME,
                reason: "parts of twice the limit after the store's clock was set forward (0013, Split)",
            })
        }
        // 0005: forward, as if that time had passed; back, a key's time stands still. `StoreClock` has both.
        FaultEffect::ClockStep { .. } => None,
    }
}

/// The most that an algorithm admits in any closed span of this length (`Bound`, docs/guide/rules.md, Limits).
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
    /// Limits that may have been enforced at some instant of a span.
    fn in_force(&self, from: Micros, until: Micros) -> impl Iterator<Item = &LimitPeriod> {
        self.limits.iter().filter(move |period| period.from <= until && period.until >= from)
    }

    /// Allowances that a span of real time touches.
    pub(crate) fn allowed(
        &self,
        from: Micros,
        until: Micros,
    ) -> impl Iterator<Item = &BoundAllowance> {
        self.allowances.iter().filter(move |allowance| allowance.touches(from, until))
    }

    /// Tokens that all processes that ran in a span may be ahead.
    fn ahead(&self, from: Micros, until: Micros) -> u64 {
        let lives = self.node_lives.iter().filter(|(start, end)| *start <= until && *end >= from);
        self.max_ahead * lives.count() as u64
    }

    fn beside(&self, from: Micros, until: Micros) -> u64 {
        self.ahead(from, until)
            + self.allowed(from, until).map(|allowance| allowance.tokens).sum::<u64>()
    }

    /// The most in a span of passed time, without allowances: no more than [`most_in_span`](Self::most_in_span).
    pub(crate) fn least_in_span(&self, length: Micros) -> u64 {
        self.limits.iter().map(|period| span_bound(&period.limit, length)).min().unwrap()
    }

    /// The most in a span of passed time whose admissions were made between two instants of real time.
    pub(crate) fn most_in_span(&self, length: Micros, from: Micros, until: Micros) -> u64 {
        let (mut in_force, mut algorithms) = (Vec::new(), Vec::new());
        for LimitPeriod { limit, .. } in self.in_force(from, until) {
            if !in_force.contains(limit) {
                in_force.push(*limit);
            }
            if !algorithms.contains(&limit.algorithm) {
                algorithms.push(limit.algorithm);
            }
        }
        // changing-rules.md, "While nodes have different versions": each algorithm keeps its own bound.
        let each = algorithms.into_iter().map(|algorithm| {
            let limits = in_force.iter().filter(|limit| limit.algorithm == algorithm);
            match algorithm {
                // The same page: numbers of a bucket that changed keep a bound each.
                LimitAlgorithm::TokenBucket | LimitAlgorithm::LeakyBucket => {
                    limits.map(|limit| span_bound(limit, length)).sum()
                }
                // 0013: `max_ahead` of each node comes on top in every window that the span touches.
                LimitAlgorithm::FixedWindow | LimitAlgorithm::SlidingWindow => {
                    let more_windows = (length / self.window()).unsigned_abs() + 1;
                    let most = limits.map(|limit| span_bound(limit, length)).max().unwrap();
                    most + more_windows * self.ahead(from, until)
                }
                // The same page: a log, or what is in flight, has at most the largest limit in force.
                _ => limits.map(|limit| span_bound(limit, length)).max().unwrap(),
            }
        });
        each.sum::<u64>() + self.beside(from, until)
    }

    /// The most in one window aligned to the clock, where the algorithm has such windows.
    pub(crate) fn most_in_window(&self, from: Micros, until: Micros) -> Option<u64> {
        let mut most = 0;
        for period in self.in_force(from, until) {
            match period.limit.algorithm {
                LimitAlgorithm::FixedWindow | LimitAlgorithm::SlidingWindow => {
                    most = most.max(period.limit.amount);
                }
                _ => return None,
            }
        }
        Some(most + self.beside(from, until))
    }

    /// The largest amount of a limit with windows aligned to the clock; 0 without one.
    pub(crate) fn window_amount(&self) -> u64 {
        let has_windows = |limit: &LaneLimit| {
            matches!(limit.algorithm, LimitAlgorithm::FixedWindow | LimitAlgorithm::SlidingWindow)
        };
        let limits = self.limits.iter().map(|period| period.limit);
        limits.filter(has_windows).map(|limit| limit.amount).max().unwrap_or(0)
    }

    /// The window of the limits, which no push changes.
    pub(crate) fn window(&self) -> Micros {
        self.limits[0].limit.window_micros()
    }

    /// Whether every limit that may have been in force has this algorithm.
    pub(crate) fn is_only(&self, algorithm: LimitAlgorithm) -> bool {
        self.limits.iter().all(|period| period.limit.algorithm == algorithm)
    }

    /// Cost that a leaky bucket releases in a span: one request, and one token for each interval. Numbers of a bucket that
    /// changed keep a bound each (changing-rules.md, "While nodes have different versions").
    pub(crate) fn most_releases(&self, length: Micros, from: Micros, until: Micros) -> u64 {
        let mut limits: Vec<LaneLimit> = Vec::new();
        for period in self.in_force(from, until) {
            if !limits.contains(&period.limit) {
                limits.push(period.limit);
            }
        }
        let paced = |limit: &LaneLimit| span_bound(limit, length) - limit.capacity();
        limits.iter().map(|limit| self.max_cost + paced(limit)).sum::<u64>()
            + self.beside(from, until)
    }

    /// The most slots in flight at an instant. Losses end the slots that they lost, so they allow nothing here.
    pub(crate) fn most_in_flight(&self) -> u64 {
        self.limits.iter().map(|period| period.limit.amount).max().unwrap()
    }
}
