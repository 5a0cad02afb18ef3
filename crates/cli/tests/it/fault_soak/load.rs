//! The load on one node, with every answer recorded.

use std::io;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::fleet::{NodeListeners, SoakFleet};
use super::history::{AnswerKind, CheckAnswer, LaneHistory, Micros, SlotRecord, now};
use super::random::SeededNumbers;
use super::scenario::{EpisodeScenario, LimitAlgorithm, LoadLane};
use super::wire::LoadConnection;

/// The client of every lane.
pub(crate) const CLIENT: &str = "busy";

const TICK: Duration = Duration::from_millis(20);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_PIPELINE: u64 = 64;

/// An event that ends the load.
#[derive(Default)]
pub(crate) struct StopSignal(Mutex<bool>, Condvar);

impl StopSignal {
    pub(crate) fn stop(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    /// Waits for so long, or until the stop; true once there was one.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let stopped = self.0.lock().unwrap();
        let waited = self.1.wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap().0
    }
}

/// A slot in flight, and when to give it back.
struct HeldSlot {
    record: SlotRecord,
    text: String,
    /// When to release it; an abandoned one is left to its hold.
    release_at: Option<Micros>,
    renew_at: Option<Micros>,
}

/// Connections to one process of a node.
struct NodeLink {
    listeners: NodeListeners,
    resp: LoadConnection,
    http: LoadConnection,
}

/// The load on one node.
pub(crate) struct NodeLoad<'a> {
    scenario: &'a EpisodeScenario,
    fleet: &'a SoakFleet,
    node: usize,
    numbers: SeededNumbers,
    link: Option<NodeLink>,
    began: Micros,
    last_tick: Micros,
    /// Millionths of a check that are due, by lane.
    due: Vec<u64>,
    lanes: Vec<LaneHistory>,
    held: Vec<Vec<HeldSlot>>,
    pub(crate) unexpected: Vec<String>,
}

impl<'a> NodeLoad<'a> {
    pub(crate) fn new(scenario: &'a EpisodeScenario, fleet: &'a SoakFleet, node: usize) -> Self {
        let lanes = scenario.lanes.len();
        Self {
            scenario,
            fleet,
            node,
            numbers: SeededNumbers::new(
                scenario.seed,
                scenario.episode ^ (1_000_003 * (1 + node as u64)),
            ),
            link: None,
            began: now(),
            last_tick: now(),
            due: vec![0; lanes],
            lanes: vec![LaneHistory::default(); lanes],
            held: (0..lanes).map(|_| Vec::new()).collect(),
            unexpected: Vec::new(),
        }
    }

    /// Sends checks until the stop, and returns the answers of each lane.
    pub(crate) fn run(mut self, stop: &StopSignal) -> (Vec<LaneHistory>, Vec<String>) {
        while !stop.wait(TICK) {
            self.tick();
        }
        for (lane, held) in self.lanes.iter_mut().zip(self.held) {
            lane.slots.extend(held.into_iter().map(|held| held.record));
        }
        (self.lanes, self.unexpected)
    }

    fn tick(&mut self) {
        let at = now();
        let (elapsed, passed) = (at - self.began, (at - self.last_tick).min(500_000));
        self.last_tick = at;
        if !self.is_linked() {
            return;
        }
        for place in 0..self.scenario.lanes.len() {
            let lane = &self.scenario.lanes[place];
            let result = if lane.limit.algorithm == LimitAlgorithm::Concurrency {
                self.tick_slots(place)
            } else {
                let elapsed_millis = elapsed.unsigned_abs() / 1_000;
                self.due[place] += self.offered(lane, elapsed_millis, passed.unsigned_abs());
                let count = (self.due[place] / 1_000_000).min(MAX_PIPELINE);
                self.due[place] %= 1_000_000;
                self.send_checks(place, count)
            };
            if let Err(error) = result {
                if error.kind() == io::ErrorKind::InvalidData {
                    self.unexpected.push(format!("lane {place}, node {}: {error}", self.node));
                }
                self.link = None;
                return;
            }
        }
    }

    /// Connects to the process that runs now, if it may serve.
    fn is_linked(&mut self) -> bool {
        let Some(listeners) = self.fleet.listeners(self.node) else {
            self.link = None;
            return false;
        };
        if self.link.as_ref().is_some_and(|link| link.listeners == listeners) {
            return true;
        }
        self.link = None;
        if !self.fleet.may_serve(self.node) || self.fleet.listeners(self.node) != Some(listeners) {
            return false;
        }
        let resp = LoadConnection::open(listeners.resp, ANSWER_TIMEOUT);
        let http = LoadConnection::open(listeners.http, ANSWER_TIMEOUT);
        let (Ok(resp), Ok(http)) = (resp, http) else { return false };
        self.link = Some(NodeLink { listeners, resp, http });
        true
    }

    /// Millionths of a check that this node is offered in some microseconds.
    fn offered(&self, lane: &LoadLane, elapsed_millis: u64, passed_micros: u64) -> u64 {
        let nodes = self.fleet.nodes() as u64;
        let share = match (nodes, self.node) {
            (1, _) => 100,
            (_, 0) => lane.first_node_percent,
            _ => (100 - lane.first_node_percent) / (nodes - 1),
        };
        let per_second = lane.limit.amount * 1_000 * lane.load.percent(elapsed_millis) / 100;
        let per_second = per_second / lane.limit.window_millis * 2 / (1 + lane.max_cost);
        per_second * share / 100 * passed_micros
    }

    fn send_checks(&mut self, place: usize, count: u64) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let lane = &self.scenario.lanes[place];
        let costs: Vec<u64> = (0..count).map(|_| self.numbers.between(1, lane.max_cost)).collect();
        let link = self.link.as_mut().unwrap();
        let sent = now();
        let mut failed = link.resp.send_checks(&lane.name, CLIENT, &costs).err();
        for cost in costs {
            let kind = match &failed {
                Some(_) => AnswerKind::Lost,
                None => link.resp.read_check().unwrap_or_else(|error| {
                    failed = Some(error);
                    AnswerKind::Lost
                }),
            };
            let answer = CheckAnswer { sent, received: now(), cost, kind };
            self.lanes[place].answers.push(answer);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Releases and renews slots whose time has come, and acquires one more.
    fn tick_slots(&mut self, place: usize) -> io::Result<()> {
        let lane = &self.scenario.lanes[place];
        let link = self.link.as_mut().unwrap();
        let mut kept = Vec::new();
        let mut failed = None;
        for mut slot in std::mem::take(&mut self.held[place]) {
            let at = now();
            let body = json!({"slot": slot.text}).to_string();
            let mut ask = |path: &str| match &failed {
                Some(_) => None,
                None => {
                    link.http.ask("POST", path, &body).map_err(|error| failed = Some(error)).ok()
                }
            };
            if slot.release_at.is_some_and(|due| due <= at) {
                // It may be free from the first attempt on.
                slot.record.release_sent.get_or_insert(at);
                if ask("/v1/release").is_some_and(|(status, _)| status == 200) {
                    self.lanes[place].slots.push(slot.record);
                    continue;
                }
            } else if slot.renew_at.is_some_and(|due| due <= at) {
                slot.renew_at = None;
                match ask("/v1/renew") {
                    Some((200, _)) => slot.record.renewed = Some((at, now())),
                    Some((410, _)) => {
                        slot.record.refused = Some((at, now()));
                        self.lanes[place].slots.push(slot.record);
                        continue;
                    }
                    _ => {}
                }
            }
            kept.push(slot);
        }
        // Abandoned slots are of no interest to this node once their hold is over for sure.
        let hold = lane.limit.window_micros();
        let at = now();
        let (over, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|slot| {
            let is_abandoned = slot.release_at.is_none() && slot.renew_at.is_none();
            is_abandoned && slot.record.acquire_received + 3 * hold < at
        });
        self.lanes[place].slots.extend(over.into_iter().map(|slot| slot.record));
        self.held[place] = kept;
        if let Some(error) = failed {
            return Err(error);
        }
        self.acquire(place, hold)
    }

    fn acquire(&mut self, place: usize, hold: Micros) -> io::Result<()> {
        let lane = &self.scenario.lanes[place];
        let link = self.link.as_mut().unwrap();
        let body = json!({"rule": lane.name, "client": CLIENT}).to_string();
        let sent = now();
        let answer = link.http.ask("POST", "/v1/acquire", &body);
        let received = now();
        let kind = match &answer {
            Err(_) => AnswerKind::Lost,
            Ok((200, text)) => {
                let answer: Value = serde_json::from_str(text)?;
                match answer["slot"].as_str() {
                    Some(text) => {
                        let hold = hold.unsigned_abs();
                        let lasts = Micros::try_from(self.numbers.between(hold / 20, hold * 3 / 4))
                            .unwrap();
                        let release_at = (!self.numbers.percent(20)).then_some(received + lasts);
                        let renews = self.numbers.percent(30);
                        let renew_at = renews.then_some(received + lasts / 2);
                        self.held[place].push(HeldSlot {
                            record: SlotRecord {
                                acquire_sent: sent,
                                acquire_received: received,
                                renewed: None,
                                refused: None,
                                release_sent: None,
                            },
                            text: text.to_owned(),
                            release_at: release_at.map(|at| if renews { at + lasts } else { at }),
                            renew_at,
                        });
                        AnswerKind::Admitted { delay_millis: 0 }
                    }
                    None => AnswerKind::PassedUncounted,
                }
            }
            Ok((429, _)) => AnswerKind::Denied,
            Ok(_) => AnswerKind::Unavailable,
        };
        self.lanes[place].answers.push(CheckAnswer { sent, received, cost: 1, kind });
        answer.map(|_| ())
    }
}

/// One check on a connection of its own.
pub(crate) fn check_once(listeners: NodeListeners, lane: &LoadLane, client: &str) -> CheckAnswer {
    let sent = now();
    let kind = if lane.limit.algorithm == LimitAlgorithm::Concurrency {
        let body = json!({"rule": lane.name, "client": client}).to_string();
        let answer = LoadConnection::open(listeners.http, ANSWER_TIMEOUT)
            .and_then(|mut connection| connection.ask("POST", "/v1/check", &body));
        match answer {
            Ok((200, _)) => AnswerKind::Admitted { delay_millis: 0 },
            Ok((429, _)) => AnswerKind::Denied,
            Ok(_) => AnswerKind::Unavailable,
            Err(_) => AnswerKind::Lost,
        }
    } else {
        let answer =
            LoadConnection::open(listeners.resp, ANSWER_TIMEOUT).and_then(|mut connection| {
                connection.send_checks(&lane.name, client, &[1])?;
                connection.read_check()
            });
        answer.unwrap_or(AnswerKind::Lost)
    };
    CheckAnswer { sent, received: now(), cost: 1, kind }
}
