//! The scenario of one episode: topology, nodes, limits, load and faults, all determined by the seed.

use std::fmt;

use super::faults::{self, PlannedFault};
use super::random::SeededNumbers;

/// The kind of servers that store the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreTopology {
    /// One node that stores its state in memory.
    Memory,
    /// One Redis, with a fault proxy between it and each node.
    Single,
    /// Three independent servers.
    Shards,
    /// A master and a replica, monitored by three sentinels.
    Sentinel,
    /// A Redis Cluster of three masters and three replicas.
    Cluster,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitAlgorithm {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    Concurrency,
}

impl LimitAlgorithm {
    fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::LeakyBucket => "leaky_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
            Self::SlidingLog => "sliding_log",
            Self::Concurrency => "concurrency",
        }
    }
}

/// The limit of one lane in one version of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneLimit {
    pub(crate) algorithm: LimitAlgorithm,
    pub(crate) amount: u64,
    /// The window, or the hold of a limit in flight.
    pub(crate) window_millis: u64,
    /// Capacity of a token bucket, in percent of the amount. A push that changes the amount keeps the percentage.
    pub(crate) burst_percent: u64,
    /// Queue length of a leaky bucket, without the request that is released first.
    pub(crate) queue: u64,
}

impl LaneLimit {
    /// Returns the maximum that can be spent at one instant.
    pub(crate) fn capacity(&self) -> u64 {
        match self.algorithm {
            LimitAlgorithm::TokenBucket => (self.amount * self.burst_percent / 100).max(1),
            LimitAlgorithm::LeakyBucket => self.queue + 1,
            _ => self.amount,
        }
    }

    pub(crate) fn window_micros(&self) -> i64 {
        i64::try_from(self.window_millis).unwrap() * 1000
    }

    fn yaml(&self) -> String {
        let Self { algorithm, amount, window_millis, queue, .. } = self;
        match algorithm {
            LimitAlgorithm::Concurrency => {
                format!("limit: {amount} in flight, hold: {window_millis}ms")
            }
            _ => {
                let extra = match algorithm {
                    LimitAlgorithm::TokenBucket => format!(", burst: {}", self.capacity()),
                    LimitAlgorithm::LeakyBucket => format!(", queue: {queue}"),
                    _ => String::new(),
                };
                let name = algorithm.name();
                format!("limit: {amount} per {window_millis} ms, algorithm: {name}{extra}")
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneAccuracy {
    Exact,
    /// `exact` with `hot: leased`.
    Hot,
    Leased,
    Synced {
        max_ahead: u64,
        sync_millis: u64,
    },
    Split,
    /// `exact` with `shards`.
    Sharded(u64),
}

impl LaneAccuracy {
    fn yaml(self) -> String {
        match self {
            Self::Exact => String::new(),
            Self::Hot => ", hot: leased".to_owned(),
            Self::Leased => ", accuracy: leased".to_owned(),
            Self::Synced { max_ahead, sync_millis } => {
                format!(", accuracy: synced, max_ahead: {max_ahead}, sync: {sync_millis}ms")
            }
            Self::Split => ", accuracy: split".to_owned(),
            Self::Sharded(shards) => format!(", shards: {shards}"),
        }
    }
}

/// Offered load over time, relative to the rate of the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadPattern {
    /// 80 % of the limit.
    Steady,
    /// 300 % of the limit.
    Over,
    /// 500 % of the limit for 1 s, then no request for 1.5 s.
    Burst,
    /// 400 % of the limit for 1.5 s, then 40 % for longer than the lifetime of a lease. In between, nodes spend leased
    /// tokens slowly, and the next wave reveals tokens that were not counted.
    Waves,
    /// 400 % of the limit at first, decreasing to 10 %.
    Slowing,
}

impl LoadPattern {
    /// Returns the rate at an instant of the episode, in percent of the limit's rate.
    pub(crate) fn percent(self, elapsed_millis: u64) -> u64 {
        match self {
            Self::Steady => 80,
            Self::Over => 300,
            Self::Burst if elapsed_millis % 2_500 < 1_000 => 500,
            Self::Burst => 0,
            Self::Waves if elapsed_millis % 4_200 < 1_500 => 400,
            Self::Waves => 40,
            Self::Slowing => 400_u64.saturating_sub(elapsed_millis / 20).max(10),
        }
    }
}

/// One rule with the load of its only client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadLane {
    pub(crate) name: String,
    pub(crate) limit: LaneLimit,
    pub(crate) accuracy: LaneAccuracy,
    /// True for `on_store_failure: allow`, false for `deny`.
    pub(crate) allows_on_failure: bool,
    pub(crate) load: LoadPattern,
    pub(crate) max_cost: u64,
    /// Percent of the load that the first node receives; the others share the rest.
    pub(crate) first_node_percent: u64,
}

impl LoadLane {
    fn yaml(&self, limit: &LaneLimit) -> String {
        let policy = if self.allows_on_failure { "allow" } else { "deny" };
        let (name, limit, accuracy) = (&self.name, limit.yaml(), self.accuracy.yaml());
        format!(
            "  - {{name: {name}, per: [client], {limit}{accuracy}, on_store_failure: {policy}}}\n"
        )
    }
}

/// All parameters of one episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpisodeScenario {
    pub(crate) seed: u64,
    pub(crate) episode: u64,
    pub(crate) topology: StoreTopology,
    /// Offset of each node's wall clock, in seconds.
    pub(crate) node_skews: Vec<i64>,
    pub(crate) timeout_millis: u64,
    pub(crate) caches_denials: bool,
    pub(crate) lanes: Vec<LoadLane>,
    pub(crate) length_millis: u64,
    pub(crate) faults: Vec<PlannedFault>,
    /// Time of the store at the start of the load, modulo [`PHASE_MILLIS`]. With it, windows start at the same times when
    /// the episode is repeated. Only [`StoreTopology::Single`] has a clock that can be set.
    pub(crate) phase_millis: u64,
}

/// A multiple of every window, in milliseconds.
pub(crate) const PHASE_MILLIS: u64 = 30_000;

const LANE_COUNT: usize = 3;

impl EpisodeScenario {
    /// Returns the scenario of an episode.
    pub(crate) fn choose(seed: u64, episode: u64) -> Self {
        let mut numbers = SeededNumbers::new(seed, episode);
        let topology = numbers.weighted(&[
            (12, StoreTopology::Memory),
            (52, StoreTopology::Single),
            (10, StoreTopology::Shards),
            (13, StoreTopology::Sentinel),
            (13, StoreTopology::Cluster),
        ]);
        let nodes = match topology {
            StoreTopology::Memory => 1,
            _ => numbers.weighted(&[(20, 1), (40, 2), (30, 3), (10, 4)]),
        };
        let lanes: Vec<LoadLane> = (0..LANE_COUNT)
            .map(|lane_index| choose_lane(&mut numbers, topology, nodes, lane_index))
            .collect();
        let is_split = |lane: &LoadLane| lane.accuracy == LaneAccuracy::Split;
        // Windows of a split limit follow the clocks of the nodes (docs/guide/redis.md).
        let may_skew = topology != StoreTopology::Memory && !lanes.iter().any(is_split);
        let skewed = may_skew && numbers.percent(30);
        let skew = |numbers: &mut SeededNumbers| numbers.pick(&[0, 7, -7, 120, -3600]);
        let node_skews = (0..nodes).map(|_| if skewed { skew(&mut numbers) } else { 0 }).collect();
        let longest = lanes.iter().map(|lane| lane.limit.window_millis).max().unwrap();
        let length_millis = numbers.between(6_000, 9_000).max(longest + 4_000);
        let mut scenario = Self {
            seed,
            episode,
            topology,
            node_skews,
            timeout_millis: numbers.pick(&[50, 100, 250]),
            caches_denials: numbers.percent(70),
            lanes,
            length_millis,
            faults: Vec::new(),
            phase_millis: 0,
        };
        scenario.faults = faults::plan(&scenario, &mut numbers);
        scenario.phase_millis = numbers.between(0, PHASE_MILLIS - 1);
        scenario
    }

    pub(crate) fn nodes(&self) -> usize {
        self.node_skews.len()
    }

    /// Returns the rules document with these limits, one for each lane.
    pub(crate) fn rules(&self, limits: &[LaneLimit]) -> String {
        let rules = self.lanes.iter().zip(limits).map(|(lane, limit)| lane.yaml(limit));
        std::iter::once("rules:\n".to_owned()).chain(rules).collect()
    }

    /// Returns the limits before the first push.
    pub(crate) fn first_limits(&self) -> Vec<LaneLimit> {
        self.lanes.iter().map(|lane| lane.limit).collect()
    }

    /// Returns whether the rules are stored in Redis, where they can be pushed.
    pub(crate) fn has_rule_pushes(&self) -> bool {
        !matches!(self.topology, StoreTopology::Memory | StoreTopology::Shards)
    }
}

fn choose_lane(
    numbers: &mut SeededNumbers,
    topology: StoreTopology,
    nodes: usize,
    lane_index: usize,
) -> LoadLane {
    #[derive(Clone, Copy)]
    enum AccuracyKind {
        Exact,
        Hot,
        Leased,
        Synced,
        Split,
        Sharded,
    }
    let kind = match topology {
        StoreTopology::Memory => AccuracyKind::Exact,
        _ => numbers.weighted(&[
            (28, AccuracyKind::Exact),
            (10, AccuracyKind::Hot),
            (26, AccuracyKind::Leased),
            (20, AccuracyKind::Synced),
            (8, AccuracyKind::Split),
            (8, AccuracyKind::Sharded),
        ]),
    };
    let leasable =
        [LimitAlgorithm::TokenBucket, LimitAlgorithm::FixedWindow, LimitAlgorithm::SlidingWindow];
    let algorithm = match kind {
        AccuracyKind::Exact => numbers.pick(&[
            LimitAlgorithm::TokenBucket,
            LimitAlgorithm::LeakyBucket,
            LimitAlgorithm::FixedWindow,
            LimitAlgorithm::SlidingWindow,
            LimitAlgorithm::SlidingLog,
            LimitAlgorithm::Concurrency,
        ]),
        AccuracyKind::Hot | AccuracyKind::Leased | AccuracyKind::Synced => numbers.pick(&leasable),
        AccuracyKind::Split | AccuracyKind::Sharded => numbers.pick(&[
            LimitAlgorithm::TokenBucket,
            LimitAlgorithm::FixedWindow,
            LimitAlgorithm::SlidingWindow,
            LimitAlgorithm::SlidingLog,
        ]),
    };
    // A lease lives for two seconds, so some windows are shorter and some are longer.
    let window_millis = match kind {
        AccuracyKind::Hot => numbers.pick(&[1_000, 2_000, 5_000, 10_000]),
        AccuracyKind::Leased => numbers.pick(&[1_000, 2_000, 5_000, 10_000]),
        _ => numbers.pick(&[1_000, 1_500, 2_000, 3_000, 5_000, 10_000]),
    };
    let per_second = match kind {
        // A node leases for `hot` only from 200 requests per second on.
        AccuracyKind::Hot => numbers.between(200, 400),
        _ => numbers.between(10, 120),
    };
    let (amount, window_millis) = match algorithm {
        LimitAlgorithm::Concurrency => {
            (numbers.between(2, 8), numbers.pick(&[1_000, 2_000, 3_000]))
        }
        _ => (per_second * window_millis / 1_000, window_millis),
    };
    let limit = LaneLimit {
        algorithm,
        amount,
        window_millis,
        burst_percent: numbers.pick(&[10, 20, 50, 100, 200]),
        queue: numbers.between(0, 20),
    };
    let accuracy = match kind {
        AccuracyKind::Exact => LaneAccuracy::Exact,
        AccuracyKind::Hot => LaneAccuracy::Hot,
        AccuracyKind::Leased => LaneAccuracy::Leased,
        AccuracyKind::Synced => LaneAccuracy::Synced {
            max_ahead: (limit.capacity() / 10).max(1),
            sync_millis: numbers.pick(&[100, 200, 400]),
        },
        AccuracyKind::Split => LaneAccuracy::Split,
        AccuracyKind::Sharded => LaneAccuracy::Sharded(numbers.between(2, 4)),
    };
    let even = 100 / nodes as u64;
    LoadLane {
        name: format!("lane-{lane_index}"),
        limit,
        accuracy,
        allows_on_failure: numbers.percent(15),
        load: numbers.pick(&[
            LoadPattern::Steady,
            LoadPattern::Over,
            LoadPattern::Over,
            LoadPattern::Burst,
            LoadPattern::Waves,
            LoadPattern::Waves,
            LoadPattern::Slowing,
        ]),
        max_cost: numbers.weighted(&[(75, 1), (25, 5)]).min(limit.capacity() / 4).max(1),
        first_node_percent: if matches!(kind, AccuracyKind::Hot) {
            70
        } else {
            numbers.pick(&[even, even, 80])
        },
    }
}

impl fmt::Display for EpisodeScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}, {} node(s) with clocks off by {:?} s, timeout {} ms, {} ms of load",
            self.topology,
            self.nodes(),
            self.node_skews,
            self.timeout_millis,
            self.length_millis
        )?;
        for lane in &self.lanes {
            write!(f, "{}", lane.yaml(&lane.limit))?;
            let (cost, first) = (lane.max_cost, lane.first_node_percent);
            writeln!(f, "    load {:?}, cost 1 to {cost}, {first} % on the first node", lane.load)?;
        }
        Ok(())
    }
}
