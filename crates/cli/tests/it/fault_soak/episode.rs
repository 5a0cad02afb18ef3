//! One episode: load and faults, then recovery, then the comparison with the bounds.

use std::sync::Mutex;
use std::time::Duration;

use tidegate_testkit::poll;

use super::check::{self, BoundViolation};
use super::faults::{FaultInjection, FaultKind};
use super::fleet::SoakFleet;
use super::history::{
    AnswerKind, EpisodeHistory, FaultEffect, FaultRecord, LaneHistory, Micros, now,
};
use super::load::{self, NodeLoad, StopSignal};
use super::scenario::{EpisodeScenario, LimitAlgorithm};

/// After the faults, the test waits for the end of windows up to this length.
const MAX_AWAITED_WINDOW_MILLIS: u64 = 3_000;
const VERSION_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The outcome of one episode.
pub(crate) struct EpisodeResult {
    pub(crate) scenario: EpisodeScenario,
    pub(crate) history: EpisodeHistory,
    pub(crate) violations: Vec<BoundViolation>,
    /// The last lines of each node's log; empty if the episode succeeded.
    pub(crate) log: String,
}

impl EpisodeResult {
    pub(crate) fn failed(&self) -> bool {
        !self.violations.is_empty() || !self.history.broken.is_empty()
    }
}

/// Runs an episode with real processes, and compares its history with the stated bounds.
pub(crate) fn run(scenario: EpisodeScenario) -> EpisodeResult {
    let fleet = SoakFleet::start(&scenario);
    let first_epoch = fleet.servers.failover_epoch();
    wait_until(fleet.load_starts);
    let first_offset = fleet.first_offset;
    let mut history = EpisodeHistory { began: now(), first_offset, ..EpisodeHistory::default() };
    let mut injection = FaultInjection::new(&scenario, &fleet);
    let (stop, adoptions) = (StopSignal::default(), Mutex::new(Vec::new()));
    let broken = Mutex::new(Vec::new());
    let loads = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..fleet.nodes())
            .map(|node| {
                scope.spawn({
                    let (load, stop) = (NodeLoad::new(&scenario, &fleet, node), &stop);
                    move || load.run(stop)
                })
            })
            .collect();
        if scenario.has_rule_pushes() {
            scope.spawn(|| {
                while !stop.wait(VERSION_POLL_INTERVAL) {
                    poll_versions(&fleet, &adoptions, &broken);
                }
            });
        }
        let began = history.began;
        // A panic in the fault injection must also end the load.
        let _stop_guard = StopOnDrop(&stop);
        let wait_until =
            |millis: u64| wait_until(began + Micros::try_from(millis).unwrap() * 1_000);
        injection.run(wait_until);
        wait_until(scenario.length_millis);
        stop.stop();
        loads.into_iter().map(|load| load.join().unwrap()).collect::<Vec<_>>()
    });
    history.lanes = vec![LaneHistory::default(); scenario.lanes.len()];
    history.broken = broken.into_inner().unwrap();
    for (lanes, unexpected) in loads {
        for (all, lane) in history.lanes.iter_mut().zip(lanes) {
            all.answers.extend(lane.answers);
            all.slots.extend(lane.slots);
        }
        history.broken.extend(unexpected);
    }
    check_recovery(&scenario, &fleet, &injection, &adoptions, &mut history);
    let planned_epochs = injection.planned_epochs;
    (history.faults, history.versions) = (injection.records, injection.versions);
    set_adoption_times(&mut history, &adoptions.into_inner().unwrap());
    let epochs = fleet.servers.failover_epoch() - first_epoch;
    for _ in planned_epochs..epochs {
        history.faults.push(FaultRecord {
            kind: FaultKind::UnplannedFailover,
            note: "at an unknown time of the episode".to_owned(),
            began: history.began,
            ended: now(),
            effect: FaultEffect::Failover { old_master_lived: true },
        });
    }
    history.process_lifetimes = fleet.process_lifetimes();
    let violations = check::violations(&scenario, &history);
    let failed = !violations.is_empty() || !history.broken.is_empty();
    let log = if failed { fleet.log_tail() } else { String::new() };
    EpisodeResult { scenario, history, violations, log }
}

struct StopOnDrop<'a>(&'a StopSignal);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Sleeps until an instant of the schedule.
fn wait_until(instant: Micros) {
    let never_stopped = StopSignal::default();
    let left = u64::try_from(instant - now()).unwrap_or(0);
    never_stopped.wait(Duration::from_micros(left));
}

/// Records the version of the rules that every node has, and each decrease of a node's version.
fn poll_versions(
    fleet: &SoakFleet,
    adoptions: &Mutex<Vec<(u64, Micros)>>,
    broken: &Mutex<Vec<String>>,
) {
    let version = fleet.poll_versions_with(|node, before, version| {
        let text = format!("node {node}: its rules went back from version {before} to {version}");
        broken.lock().unwrap().push(text);
    });
    adoptions.lock().unwrap().push((version, now()));
}

/// Checks that every node, version and lane has recovered after the last fault.
fn check_recovery(
    scenario: &EpisodeScenario,
    fleet: &SoakFleet,
    injection: &FaultInjection<'_>,
    adoptions: &Mutex<Vec<(u64, Micros)>>,
    history: &mut EpisodeHistory,
) {
    history.broken.extend(fleet.wait_until_whole());
    if scenario.has_rule_pushes() {
        let confirmed = injection.versions.iter().filter_map(|version| version.number).max();
        // 0010: a confirmed version can be lost with the other data of Redis.
        let lost = injection.records.iter().any(|fault| {
            !matches!(fault.effect, FaultEffect::None | FaultEffect::ClockStep { .. })
        });
        let wanted = if lost { 1 } else { confirmed.unwrap_or(1) };
        let broken = Mutex::new(Vec::new());
        let agreed = poll(|| {
            poll_versions(fleet, adoptions, &broken);
            let versions = fleet.versions();
            versions
                .iter()
                .all(|version| *version == versions[0] && *version >= wanted)
                .then_some(())
        });
        history.broken.extend(broken.into_inner().unwrap());
        if agreed.is_none() {
            let versions = fleet.versions();
            let text =
                format!("nodes have rules {versions:?}, wanted version {wanted} or later on all");
            history.broken.push(text);
        }
    }
    for (lane_index, lane) in scenario.lanes.iter().enumerate() {
        let mut answered = vec![false; fleet.nodes()];
        let mut admitted = false;
        let answered_new_client = poll(|| {
            for (node, answered) in answered.iter_mut().enumerate() {
                let kind = load::check_once(fleet.listeners(node)?, lane, "fresh").kind;
                admitted |= matches!(kind, AnswerKind::Admitted { .. });
                *answered |= matches!(kind, AnswerKind::Admitted { .. } | AnswerKind::Denied);
            }
            (admitted && answered.iter().all(|answered| *answered)).then_some(())
        });
        if answered_new_client.is_none() {
            history.broken.push(format!(
                "lane {lane_index}: after the faults, a new client is answered by nodes {answered:?}, admitted: {admitted}"
            ));
        }
        if lane.limit.window_millis > MAX_AWAITED_WINDOW_MILLIS {
            continue;
        }
        let answers = &mut history.lanes[lane_index].answers;
        let admitted_again = poll(|| {
            for node in 0..fleet.nodes() {
                let answer = load::check_once(fleet.listeners(node)?, lane, load::CLIENT);
                // A plain check acquires a slot and never releases it, so it is not part of the comparison.
                if lane.limit.algorithm != LimitAlgorithm::Concurrency {
                    answers.push(answer);
                }
                if matches!(answer.kind, AnswerKind::Admitted { .. }) {
                    return Some(());
                }
            }
            None
        });
        if admitted_again.is_none() {
            history.broken.push(format!("lane {lane_index}: its client is never admitted again"));
        }
    }
}

/// Sets the time when every node had each version. An unconfirmed push ends with the next confirmed one.
fn set_adoption_times(history: &mut EpisodeHistory, adoptions: &[(u64, Micros)]) {
    let mut later = None;
    for version in history.versions.iter_mut().skip(1).rev() {
        if let Some(number) = version.number {
            let seen = adoptions.iter().find(|(adopted, _)| *adopted >= number);
            later = seen.map(|(_, at)| *at).or(later);
        }
        version.adopted = later;
    }
}
