//! One episode: load and faults, then healing, then the checks.

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

/// Windows up to this length are waited for after the faults.
const MAX_AWAITED_WINDOW_MILLIS: u64 = 3_000;
const OBSERVE_EVERY: Duration = Duration::from_millis(250);

/// An episode that is over.
pub(crate) struct EpisodeResult {
    pub(crate) scenario: EpisodeScenario,
    pub(crate) history: EpisodeHistory,
    pub(crate) violations: Vec<BoundViolation>,
    /// The last lines of each node's log, if something is wrong.
    pub(crate) log: String,
}

impl EpisodeResult {
    pub(crate) fn failed(&self) -> bool {
        !self.violations.is_empty() || !self.history.broken.is_empty()
    }
}

/// Runs an episode with real processes.
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
                while !stop.wait(OBSERVE_EVERY) {
                    observe(&fleet, &adoptions, &broken);
                }
            });
        }
        let began = history.began;
        // A panic of the faults must end the load too.
        let _stopped = StopOnDrop(&stop);
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
        for (all, one) in history.lanes.iter_mut().zip(lanes) {
            all.answers.extend(one.answers);
            all.slots.extend(one.slots);
        }
        history.broken.extend(unexpected);
    }
    heal(&scenario, &fleet, &injection, &adoptions, &mut history);
    let planned_epochs = injection.planned_epochs;
    (history.faults, history.versions) = (injection.records, injection.versions);
    note_adoptions(&mut history, &adoptions.into_inner().unwrap());
    let epochs = fleet.servers.failover_epoch() - first_epoch;
    for _ in planned_epochs..epochs {
        history.faults.push(FaultRecord {
            kind: FaultKind::UnplannedFailover,
            note: "at some time of the episode".to_owned(),
            began: history.began,
            ended: now(),
            effect: FaultEffect::Failover { old_master_lived: true },
        });
    }
    history.node_lives = fleet.lives();
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

/// Waits until an instant: the plan of an episode is a plan in time.
fn wait_until(instant: Micros) {
    let never = StopSignal::default();
    let left = u64::try_from(instant - now()).unwrap_or(0);
    never.wait(Duration::from_micros(left));
}

fn observe(fleet: &SoakFleet, adoptions: &Mutex<Vec<(u64, Micros)>>, broken: &Mutex<Vec<String>>) {
    let version = fleet.observe_changes(|node, before, version| {
        let text = format!("node {node}: its rules went back from version {before} to {version}");
        broken.lock().unwrap().push(text);
    });
    adoptions.lock().unwrap().push((version, now()));
}

/// Checks that everything works again once all faults are over.
fn heal(
    scenario: &EpisodeScenario,
    fleet: &SoakFleet,
    injection: &FaultInjection<'_>,
    adoptions: &Mutex<Vec<(u64, Micros)>>,
    history: &mut EpisodeHistory,
) {
    history.broken.extend(fleet.wait_until_whole());
    if scenario.has_rule_pushes() {
        let confirmed = injection.versions.iter().filter_map(|version| version.number).max();
        // 0010: a version that Redis confirmed may be lost with the rest of its data.
        let lost = injection.records.iter().any(|fault| {
            !matches!(fault.effect, FaultEffect::None | FaultEffect::ClockStep { .. })
        });
        let wanted = if lost { 1 } else { confirmed.unwrap_or(1) };
        let broken = Mutex::new(Vec::new());
        let agreed = poll(|| {
            observe(fleet, adoptions, &broken);
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
    for (place, lane) in scenario.lanes.iter().enumerate() {
        let mut answered = vec![false; fleet.nodes()];
        let mut admitted = false;
        let fresh = poll(|| {
            for (node, answered) in answered.iter_mut().enumerate() {
                let kind = load::check_once(fleet.listeners(node)?, lane, "fresh").kind;
                admitted |= matches!(kind, AnswerKind::Admitted { .. });
                *answered |= matches!(kind, AnswerKind::Admitted { .. } | AnswerKind::Denied);
            }
            (admitted && answered.iter().all(|answered| *answered)).then_some(())
        });
        if fresh.is_none() {
            history.broken.push(format!(
                "lane {place}: after the faults, a new client is answered by nodes {answered:?}, admitted: {admitted}"
            ));
        }
        if lane.limit.window_millis > MAX_AWAITED_WINDOW_MILLIS {
            continue;
        }
        let answers = &mut history.lanes[place].answers;
        let freed = poll(|| {
            for node in 0..fleet.nodes() {
                let answer = load::check_once(fleet.listeners(node)?, lane, load::CLIENT);
                // A plain check takes a slot that is never released: it is not one of those that are compared.
                if lane.limit.algorithm != LimitAlgorithm::Concurrency {
                    answers.push(answer);
                }
                if matches!(answer.kind, AnswerKind::Admitted { .. }) {
                    return Some(());
                }
            }
            None
        });
        if freed.is_none() {
            history.broken.push(format!("lane {place}: its client is never admitted again"));
        }
    }
}

/// Notes when every node was seen with each version. A push that was not confirmed is over with the next that was.
fn note_adoptions(history: &mut EpisodeHistory, adoptions: &[(u64, Micros)]) {
    let mut later = None;
    for version in history.versions.iter_mut().skip(1).rev() {
        if let Some(number) = version.number {
            let seen = adoptions.iter().find(|(adopted, _)| *adopted >= number);
            later = seen.map(|(_, at)| *at).or(later);
        }
        version.adopted = later;
    }
}
