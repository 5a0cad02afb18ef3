//! Faults of an episode: their choice by the seed, their injection and their records.

use std::time::Duration;

use tidegate_testkit::Redis;

use super::fleet::{SoakFleet, StateServers};
use super::history::{FaultEffect, FaultRecord, Micros, RulesVersion, now};
use super::random::SeededNumbers;
use super::scenario::{
    EpisodeScenario, LaneAccuracy, LaneLimit, LimitAlgorithm, LoadLane, StoreTopology,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    KillNode,
    PauseNode,
    CutLink,
    StallLink,
    DelayLink,
    DelayReplies,
    CutReplies,
    PauseStore,
    RestartStoreEmpty,
    StepClock,
    Failover,
    FailoverByPause,
    MigrateSlot,
    PushLimit,
    PushAlgorithm,
    /// A failover that no fault caused, because the machine was too busy. It is detected after the episode.
    UnplannedFailover,
}

/// One scheduled fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedFault {
    pub(crate) kind: FaultKind,
    pub(crate) at_millis: u64,
    lasts_millis: u64,
    /// Index of a node or of a server.
    target: usize,
    /// Seconds of a clock step, milliseconds of a delay, or the lane of a push.
    number: i64,
    /// The new limit of that lane.
    limit: Option<LaneLimit>,
}

/// Returns the part of the fleet that a fault affects. Faults of the same part do not overlap.
fn affected_part(fault: &PlannedFault) -> usize {
    match fault.kind {
        FaultKind::KillNode
        | FaultKind::PauseNode
        | FaultKind::CutLink
        | FaultKind::StallLink
        | FaultKind::DelayLink
        | FaultKind::DelayReplies
        | FaultKind::CutReplies => 1 + fault.target,
        _ => 0,
    }
}

/// Chooses the faults of an episode.
pub(crate) fn plan(scenario: &EpisodeScenario, numbers: &mut SeededNumbers) -> Vec<PlannedFault> {
    let mut kinds = vec![(10, FaultKind::KillNode), (10, FaultKind::PauseNode)];
    match scenario.topology {
        StoreTopology::Memory => {}
        StoreTopology::Single => kinds.extend([
            (6, FaultKind::CutLink),
            (6, FaultKind::StallLink),
            (5, FaultKind::DelayLink),
            (5, FaultKind::DelayReplies),
            (6, FaultKind::CutReplies),
            (8, FaultKind::PauseStore),
            (8, FaultKind::RestartStoreEmpty),
            (14, FaultKind::StepClock),
        ]),
        StoreTopology::Shards => {
            kinds.extend([(15, FaultKind::PauseStore), (15, FaultKind::RestartStoreEmpty)]);
        }
        StoreTopology::Sentinel => {
            kinds.extend([(20, FaultKind::Failover), (15, FaultKind::FailoverByPause)]);
        }
        StoreTopology::Cluster => kinds.extend([
            (15, FaultKind::Failover),
            (10, FaultKind::FailoverByPause),
            (20, FaultKind::MigrateSlot),
        ]),
    }
    if scenario.has_rule_pushes() {
        kinds.extend([(8, FaultKind::PushLimit), (7, FaultKind::PushAlgorithm)]);
    }
    let mut planned: Vec<PlannedFault> = Vec::new();
    let mut limits = scenario.first_limits();
    for _ in 0..numbers.between(1, 5) {
        let kind = numbers.weighted(&kinds);
        let mut fault = PlannedFault {
            kind,
            at_millis: numbers.between(800, scenario.length_millis - 3_500),
            lasts_millis: numbers.pick(&[50, 200, 600, 1_200, 2_500, 3_500]),
            target: numbers.index(scenario.nodes()),
            number: match kind {
                FaultKind::StepClock => numbers.pick(&[1, 3, 10, 60, -1, -2, -4]),
                _ => numbers.pick(&[5, 30, 90, 300]),
            },
            limit: None,
        };
        if matches!(kind, FaultKind::PushLimit | FaultKind::PushAlgorithm) {
            let Some((lane, limit)) = choose_push(scenario, &limits, kind, numbers) else {
                continue;
            };
            limits[lane] = limit;
            fault.number = i64::try_from(lane).unwrap();
            fault.limit = Some(limit);
        }
        let end = |fault: &PlannedFault| fault.at_millis + fault.lasts_millis + 300;
        let overlaps = |other: &PlannedFault| {
            affected_part(other) == affected_part(&fault)
                && other.at_millis < end(&fault)
                && fault.at_millis < end(other)
        };
        if !planned.iter().any(overlaps) {
            planned.push(fault);
        }
    }
    planned.sort_by_key(|fault| fault.at_millis);
    planned
}

/// Chooses a lane and its new limit. Returns `None` if no lane may change.
fn choose_push(
    scenario: &EpisodeScenario,
    limits: &[LaneLimit],
    kind: FaultKind,
    numbers: &mut SeededNumbers,
) -> Option<(usize, LaneLimit)> {
    let may_change = |lane: &LoadLane| match kind {
        // Shares and shards are rounded one by one, so the stated bound after a change is not exact.
        FaultKind::PushLimit => {
            lane.limit.algorithm != LimitAlgorithm::Concurrency
                && !matches!(lane.accuracy, LaneAccuracy::Split | LaneAccuracy::Sharded(_))
        }
        _ => {
            lane.accuracy == LaneAccuracy::Exact
                && !matches!(
                    lane.limit.algorithm,
                    LimitAlgorithm::Concurrency | LimitAlgorithm::LeakyBucket
                )
        }
    };
    let lanes: Vec<usize> =
        (0..limits.len()).filter(|lane| may_change(&scenario.lanes[*lane])).collect();
    if lanes.is_empty() {
        return None;
    }
    let lane = numbers.pick(&lanes);
    let mut limit = limits[lane];
    if kind == FaultKind::PushLimit {
        limit.amount = (limit.amount * numbers.pick(&[50, 80, 150, 200]) / 100).max(2);
    } else {
        let others = [
            LimitAlgorithm::TokenBucket,
            LimitAlgorithm::FixedWindow,
            LimitAlgorithm::SlidingWindow,
            LimitAlgorithm::SlidingLog,
        ];
        let others: Vec<LimitAlgorithm> =
            others.into_iter().filter(|other| *other != limit.algorithm).collect();
        limit.algorithm = numbers.pick(&others);
    }
    Some((lane, limit))
}

/// Injects the faults of a scenario, and records them.
pub(crate) struct FaultInjection<'a> {
    scenario: &'a EpisodeScenario,
    fleet: &'a SoakFleet,
    limits: Vec<LaneLimit>,
    clock_offset: Micros,
    /// Failovers and slot migrations that this injection caused.
    pub(crate) planned_epochs: u64,
    pub(crate) records: Vec<FaultRecord>,
    /// The scheduled fault of each record.
    recorded_faults: Vec<PlannedFault>,
    pub(crate) versions: Vec<RulesVersion>,
}

impl<'a> FaultInjection<'a> {
    pub(crate) fn new(scenario: &'a EpisodeScenario, fleet: &'a SoakFleet) -> Self {
        let limits = scenario.first_limits();
        let first = RulesVersion {
            limits: limits.clone(),
            pushed: now(),
            number: Some(1),
            adopted: Some(now()),
        };
        Self {
            scenario,
            fleet,
            limits,
            clock_offset: fleet.first_offset,
            planned_epochs: 0,
            records: Vec::new(),
            recorded_faults: Vec::new(),
            versions: vec![first],
        }
    }

    /// Begins and ends all faults at their times. `wait_until` sleeps until an instant of the episode, in milliseconds.
    pub(crate) fn run(&mut self, mut wait_until: impl FnMut(u64)) {
        let mut steps: Vec<(u64, bool, PlannedFault)> = Vec::new();
        for fault in &self.scenario.faults {
            steps.push((fault.at_millis, true, *fault));
            steps.push((fault.at_millis + fault.lasts_millis, false, *fault));
        }
        steps.sort_by_key(|(at, begins, fault)| (*at, *begins, fault.at_millis));
        for (at, begins, fault) in steps {
            wait_until(at);
            if begins { self.begin(&fault) } else { self.end(&fault) }
        }
    }

    fn record(&mut self, fault: &PlannedFault, note: String, effect: FaultEffect, began: Micros) {
        let ended = now();
        self.records.push(FaultRecord { kind: fault.kind, note, began, ended, effect });
        self.recorded_faults.push(*fault);
    }

    fn begin(&mut self, fault: &PlannedFault) {
        let began = now();
        let PlannedFault { target, number, .. } = *fault;
        let delay = Duration::from_millis(number.unsigned_abs());
        let mut note = format!("node {target}");
        let mut effect = FaultEffect::None;
        match (&self.fleet.servers, fault.kind) {
            (servers, FaultKind::KillNode) => {
                self.fleet.kill_node(target);
                if matches!(servers, StateServers::Memory) {
                    effect = FaultEffect::LostData;
                }
            }
            (_, FaultKind::PauseNode) => self.fleet.pause_node(target),
            (StateServers::Single { proxies, .. }, FaultKind::CutLink) => {
                proxies[target].refuse();
                proxies[target].drop_connections();
            }
            (StateServers::Single { proxies, .. }, FaultKind::StallLink) => proxies[target].stall(),
            (StateServers::Single { proxies, .. }, FaultKind::DelayLink) => {
                note = format!("node {target} by {number} ms each way");
                proxies[target].delay(delay);
            }
            (StateServers::Single { proxies, .. }, FaultKind::DelayReplies) => {
                note = format!("node {target} by {number} ms");
                proxies[target].delay_replies(delay);
            }
            (StateServers::Single { proxies, .. }, FaultKind::CutReplies) => {
                proxies[target].cut_reply_after(0);
            }
            (servers, FaultKind::PauseStore) => {
                note = format!("server {}", self.server_index(servers, fault));
                self.server(servers, fault).pause();
            }
            (servers, FaultKind::RestartStoreEmpty) => {
                note = format!("server {}", self.server_index(servers, fault));
                self.server(servers, fault).kill();
                effect = FaultEffect::LostData;
            }
            (StateServers::Single { redis, .. }, FaultKind::StepClock) => {
                let before = self.clock_offset;
                let after = before + number * 1_000_000;
                redis.set_clock(after / 1_000);
                self.clock_offset = after;
                let total = (after - self.fleet.first_offset) / 1_000_000;
                note = format!("{number:+} s, {total:+} s since its start");
                effect = FaultEffect::ClockStep { before, after };
            }
            (servers, FaultKind::Failover) => {
                note = fail_over(servers, fault, false);
                self.planned_epochs += 1;
                effect = FaultEffect::Failover { old_master_lived: false };
            }
            (servers, FaultKind::FailoverByPause) => {
                note = fail_over(servers, fault, true);
                self.planned_epochs += 1;
                effect = FaultEffect::Failover { old_master_lived: true };
            }
            (StateServers::Cluster(cluster), FaultKind::MigrateSlot) => {
                note = match slot_to_migrate(cluster, fault) {
                    Some((slot, to)) => {
                        let epoch = self.fleet.servers.failover_epoch();
                        cluster.begin_migration(slot, to);
                        while cluster.migrate_keys(slot, 10) > 0 {}
                        cluster.finish_migration(slot);
                        // A migration may increase the epoch or not.
                        self.planned_epochs += (self.fleet.servers.failover_epoch() - epoch).min(1);
                        format!("slot {slot} to server {to}")
                    }
                    None => "no slot with a key".to_owned(),
                };
            }
            (_, FaultKind::PushLimit | FaultKind::PushAlgorithm) => {
                let lane = usize::try_from(number).unwrap();
                self.limits[lane] = fault.limit.unwrap();
                let text = self.scenario.rules(&self.limits);
                let number = self.fleet.push(target, &text);
                let limits = self.limits.clone();
                self.versions.push(RulesVersion { limits, pushed: began, number, adopted: None });
                note = format!(
                    "lane {lane} through node {target}: version {number:?}, {:?}",
                    fault.limit
                );
            }
            (_, kind) => unreachable!("{kind:?} is not planned for this topology"),
        }
        self.record(fault, note, effect, began);
    }

    fn end(&mut self, fault: &PlannedFault) {
        let target = fault.target;
        match (&self.fleet.servers, fault.kind) {
            (_, FaultKind::KillNode) => self.fleet.restart_node(target),
            (_, FaultKind::PauseNode) => self.fleet.resume_node(target),
            (
                StateServers::Single { proxies, .. },
                FaultKind::CutLink
                | FaultKind::StallLink
                | FaultKind::DelayLink
                | FaultKind::DelayReplies
                | FaultKind::CutReplies,
            ) => proxies[target].pass(),
            (servers, FaultKind::PauseStore) => self.server(servers, fault).resume(),
            (servers, FaultKind::RestartStoreEmpty) => self.server(servers, fault).restart(),
            _ => return,
        }
        let index = self.recorded_faults.iter().position(|recorded| recorded == fault).unwrap();
        self.records[index].ended = now();
    }

    fn server_index(&self, servers: &StateServers, fault: &PlannedFault) -> usize {
        match servers {
            StateServers::Shards(servers) => fault.target % servers.len(),
            _ => 0,
        }
    }

    fn server<'s>(&self, servers: &'s StateServers, fault: &PlannedFault) -> &'s Redis {
        match servers {
            StateServers::Single { redis, .. } => redis,
            StateServers::Shards(servers) => {
                &servers[self.server_index(&self.fleet.servers, fault)]
            }
            _ => unreachable!("not planned for this topology"),
        }
    }
}

/// Stops a master until its replica is promoted. Returns when the old master is a replica.
fn fail_over(servers: &StateServers, fault: &PlannedFault, by_pause: bool) -> String {
    match servers {
        StateServers::Sentinel(sentinel) => {
            let master = sentinel.master();
            pause_or_kill(master, by_pause);
            let switched = sentinel.wait_for_switch();
            resume_or_restart(master, by_pause);
            sentinel.wait_until_whole();
            format!("{} to {switched}", master.address())
        }
        StateServers::Cluster(cluster) => {
            let masters = cluster.masters();
            let index = masters[fault.target % masters.len()];
            pause_or_kill(cluster.node(index), by_pause);
            cluster.wait_until_whole();
            resume_or_restart(cluster.node(index), by_pause);
            cluster.wait_until_whole();
            format!("of server {index}")
        }
        _ => unreachable!("not planned for this topology"),
    }
}

fn pause_or_kill(master: &Redis, by_pause: bool) {
    if by_pause { master.pause() } else { master.kill() }
}

fn resume_or_restart(master: &Redis, by_pause: bool) {
    if by_pause { master.resume() } else { master.restart() }
}

/// Returns a hash slot that contains a counter, and another master as the target of its migration.
fn slot_to_migrate(
    cluster: &tidegate_testkit::Cluster,
    fault: &PlannedFault,
) -> Option<(u16, usize)> {
    let masters = cluster.masters();
    for master in &masters {
        let keys: Vec<String> = cluster.node(*master).try_query(&["KEYS", "tg:*"]).ok()?;
        // Keys of counters have no second colon.
        let counters: Vec<&String> = keys.iter().filter(|key| !key[3..].contains(':')).collect();
        if let Some(key) = counters.get(fault.target % counters.len().max(1)) {
            let others: Vec<usize> =
                masters.iter().filter(|other| *other != master).copied().collect();
            return Some((cluster.slot_of(key), others[fault.target % others.len()]));
        }
    }
    None
}
