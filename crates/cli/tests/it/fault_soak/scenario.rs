//! The choice of one episode: topology, nodes, limits, load and faults, all of them by the seed.

use std::fmt;

use super::faults::{self, PlannedFault};
use super::random::SeededNumbers;

/// The servers that keep the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreTopology {
    /// One node that keeps its state in memory.
    Memory,
    /// One Redis, with a fault proxy between it and each node.
    Single,
    /// Three independent servers.
    Shards,
    /// A master and a replica, watched by three sentinels.
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

/// A limit of one lane, at one version of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneLimit {
    pub(crate) algorithm: LimitAlgorithm,
    pub(crate) amount: u64,
    /// The window; for a limit in flight, the hold.
    pub(crate) window_millis: u64,
    /// Capacity of a token bucket, in percent of the amount. It stays the same when the amount changes.
    pub(crate) burst_percent: u64,
    /// Places of a leaky bucket behind the first.
    pub(crate) queue: u64,
}

impl LaneLimit {
    /// The most that can be spent at one instant.
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
            Self::Sharded(parts) => format!(", shards: {parts}"),
        }
    }
}

/// Offered load over time, as a part of the limit's own rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadPattern {
    /// Four fifths of the limit.
    Steady,
    /// Three times the limit.
    Over,
    /// A second at five times the limit, then one and a half without a request.
    Burst,
    /// A second and a half at four times the limit, then at two fifths of it for longer than a lease lives: tokens that
    /// were taken ahead are used slowly, and the next wave shows what was not counted.
    Waves,
    /// Four times the limit at first, then less and less, down to a tenth.
    Slowing,
}

impl LoadPattern {
    /// The rate at an instant of the episode, in percent of the limit's rate.
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

/// One rule, and the one client that the load uses under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadLane {
    pub(crate) name: String,
    pub(crate) limit: LaneLimit,
    pub(crate) accuracy: LaneAccuracy,
    /// `on_store_failure: allow`; otherwise `deny`.
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

/// All choices of one episode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EpisodeScenario {
    pub(crate) seed: u64,
    pub(crate) episode: u64,
    pub(crate) topology: StoreTopology,
    /// The wall clock of each node is off by so many seconds.
    pub(crate) node_skews: Vec<i64>,
    pub(crate) timeout_millis: u64,
    pub(crate) remembers_denials: bool,
    pub(crate) lanes: Vec<LoadLane>,
    pub(crate) length_millis: u64,
    pub(crate) faults: Vec<PlannedFault>,
    /// Time of the store at the start of the load, from a multiple of [`PHASE_MILLIS`] on. Windows begin where they did
    /// when the episode is run again. Only one Redis has a clock that can be set so.
    pub(crate) phase_millis: u64,
}

/// A multiple of every window.
pub(crate) const PHASE_MILLIS: u64 = 30_000;

const LANES: usize = 3;

impl EpisodeScenario {
    /// The episode of this number under a seed.
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
        let lanes: Vec<LoadLane> =
            (0..LANES).map(|place| choose_lane(&mut numbers, topology, nodes, place)).collect();
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
            remembers_denials: numbers.percent(70),
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

    /// The rules document with these limits, one for each lane.
    pub(crate) fn rules(&self, limits: &[LaneLimit]) -> String {
        let rules = self.lanes.iter().zip(limits).map(|(lane, limit)| lane.yaml(limit));
        std::iter::once("rules:\n".to_owned()).chain(rules).collect()
    }

    /// The limits before any rule push.
    pub(crate) fn first_limits(&self) -> Vec<LaneLimit> {
        self.lanes.iter().map(|lane| lane.limit).collect()
    }

    /// Whether rules are in Redis, where they can be pushed.
    pub(crate) fn has_rule_pushes(&self) -> bool {
        !matches!(self.topology, StoreTopology::Memory | StoreTopology::Shards)
    }
}

fn choose_lane(
    numbers: &mut SeededNumbers,
    topology: StoreTopology,
    nodes: usize,
    place: usize,
) -> LoadLane {
    #[derive(Clone, Copy)]
    enum Kind {
        Exact,
        Hot,
        Leased,
        Synced,
        Split,
        Sharded,
    }
    let kind = match topology {
        StoreTopology::Memory => Kind::Exact,
        _ => numbers.weighted(&[
            (28, Kind::Exact),
            (10, Kind::Hot),
            (26, Kind::Leased),
            (20, Kind::Synced),
            (8, Kind::Split),
            (8, Kind::Sharded),
        ]),
    };
    let leasable =
        [LimitAlgorithm::TokenBucket, LimitAlgorithm::FixedWindow, LimitAlgorithm::SlidingWindow];
    let algorithm = match kind {
        Kind::Exact => numbers.pick(&[
            LimitAlgorithm::TokenBucket,
            LimitAlgorithm::LeakyBucket,
            LimitAlgorithm::FixedWindow,
            LimitAlgorithm::SlidingWindow,
            LimitAlgorithm::SlidingLog,
            LimitAlgorithm::Concurrency,
        ]),
        Kind::Hot | Kind::Leased | Kind::Synced => numbers.pick(&leasable),
        Kind::Split | Kind::Sharded => numbers.pick(&[
            LimitAlgorithm::TokenBucket,
            LimitAlgorithm::FixedWindow,
            LimitAlgorithm::SlidingWindow,
            LimitAlgorithm::SlidingLog,
        ]),
    };
    // Leases and syncs live for about two seconds: windows are shorter and longer than that.
    let window_millis = match kind {
        Kind::Hot => numbers.pick(&[1_000, 2_000, 5_000, 10_000]),
        Kind::Leased => numbers.pick(&[1_000, 2_000, 5_000, 10_000]),
        _ => numbers.pick(&[1_000, 1_500, 2_000, 3_000, 5_000, 10_000]),
    };
    let per_second = match kind {
        // One node has to see at least 200 requests in a second before it leases.
        Kind::Hot => numbers.between(200, 400),
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
        Kind::Exact => LaneAccuracy::Exact,
        Kind::Hot => LaneAccuracy::Hot,
        Kind::Leased => LaneAccuracy::Leased,
        Kind::Synced => LaneAccuracy::Synced {
            max_ahead: (limit.capacity() / 10).max(1),
            sync_millis: numbers.pick(&[100, 200, 400]),
        },
        Kind::Split => LaneAccuracy::Split,
        Kind::Sharded => LaneAccuracy::Sharded(numbers.between(2, 4)),
    };
    let even = 100 / nodes as u64;
    LoadLane {
        name: format!("lane-{place}"),
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
        first_node_percent: if matches!(kind, Kind::Hot) {
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
