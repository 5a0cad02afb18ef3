//! Sends the load to one node, and records every answer.

use std::io;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::connection::LoadConnection;
use super::fleet::{NodeListeners, SoakFleet};
use super::history::{AnswerKind, CheckAnswer, LaneHistory, Micros, SlotRecord, now};
use super::random::SeededNumbers;
use super::scenario::{EpisodeScenario, LimitAlgorithm, LoadLane};

/// The client of every lane.
pub(crate) const CLIENT: &str = "busy";

const TICK_INTERVAL: Duration = Duration::from_millis(20);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of checks in one pipeline.
const MAX_PIPELINE: u64 = 64;

/// A flag that ends the load and wakes waiting threads.
#[derive(Default)]
pub(crate) struct StopSignal(Mutex<bool>, Condvar);

impl StopSignal {
    pub(crate) fn stop(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    /// Waits for this time or until the stop. Returns whether the load was stopped.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let stopped = self.0.lock().unwrap();
        let waited = self.1.wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap().0
    }
}

/// A held slot with the times of its release and renewal.
struct HeldSlot {
    record: SlotRecord,
    token: String,
    /// Time of the release; `None` for an abandoned slot, which expires after its hold.
    release_at: Option<Micros>,
    renew_at: Option<Micros>,
}

/// Connections to one node process.
struct NodeConnections {
    listeners: NodeListeners,
    resp: LoadConnection,
    http: LoadConnection,
}

/// The load that is sent to one node.
pub(crate) struct NodeLoad<'a> {
    scenario: &'a EpisodeScenario,
    fleet: &'a SoakFleet,
    node: usize,
    numbers: SeededNumbers,
    connections: Option<NodeConnections>,
    began: Micros,
    last_tick: Micros,
    /// Due checks of each lane, in millionths of a check.
    due: Vec<u64>,
    lanes: Vec<LaneHistory>,
    held: Vec<Vec<HeldSlot>>,
    /// Replies that violate the protocol.
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
            connections: None,
            began: now(),
            last_tick: now(),
            due: vec![0; lanes],
            lanes: vec![LaneHistory::default(); lanes],
            held: (0..lanes).map(|_| Vec::new()).collect(),
            unexpected: Vec::new(),
        }
    }

    /// Sends checks until the stop. Returns the answers of each lane, and unexpected replies.
    pub(crate) fn run(mut self, stop: &StopSignal) -> (Vec<LaneHistory>, Vec<String>) {
        while !stop.wait(TICK_INTERVAL) {
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
        if !self.connect() {
            return;
        }
        for lane_index in 0..self.scenario.lanes.len() {
            let lane = &self.scenario.lanes[lane_index];
            let result = if lane.limit.algorithm == LimitAlgorithm::Concurrency {
                self.tick_slots(lane_index)
            } else {
                let elapsed_millis = elapsed.unsigned_abs() / 1_000;
                self.due[lane_index] +=
                    self.offered_load(lane, elapsed_millis, passed.unsigned_abs());
                let count = (self.due[lane_index] / 1_000_000).min(MAX_PIPELINE);
                self.due[lane_index] %= 1_000_000;
                self.send_checks(lane_index, count)
            };
            if let Err(error) = result {
                if error.kind() == io::ErrorKind::InvalidData {
                    self.unexpected.push(format!("lane {lane_index}, node {}: {error}", self.node));
                }
                self.connections = None;
                return;
            }
        }
    }

    /// Connects to the running process if it may serve. Returns whether there are connections.
    fn connect(&mut self) -> bool {
        let Some(listeners) = self.fleet.listeners(self.node) else {
            self.connections = None;
            return false;
        };
        if self.connections.as_ref().is_some_and(|connections| connections.listeners == listeners) {
            return true;
        }
        self.connections = None;
        if !self.fleet.may_serve(self.node) || self.fleet.listeners(self.node) != Some(listeners) {
            return false;
        }
        let resp = LoadConnection::open(listeners.resp, ANSWER_TIMEOUT);
        let http = LoadConnection::open(listeners.http, ANSWER_TIMEOUT);
        let (Ok(resp), Ok(http)) = (resp, http) else { return false };
        self.connections = Some(NodeConnections { listeners, resp, http });
        true
    }

    /// Returns the load of this node for `passed_micros`, in millionths of a check.
    fn offered_load(&self, lane: &LoadLane, elapsed_millis: u64, passed_micros: u64) -> u64 {
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

    fn send_checks(&mut self, lane_index: usize, count: u64) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let lane = &self.scenario.lanes[lane_index];
        let costs: Vec<u64> = (0..count).map(|_| self.numbers.between(1, lane.max_cost)).collect();
        let connections = self.connections.as_mut().unwrap();
        let sent = now();
        let mut failed = connections.resp.send_checks(&lane.name, CLIENT, &costs).err();
        for cost in costs {
            let kind = match &failed {
                Some(_) => AnswerKind::Lost,
                None => connections.resp.read_check().unwrap_or_else(|error| {
                    failed = Some(error);
                    AnswerKind::Lost
                }),
            };
            let answer = CheckAnswer { sent, received: now(), cost, kind };
            self.lanes[lane_index].answers.push(answer);
        }
        failed.map_or(Ok(()), Err)
    }

    /// Releases and renews slots that are due, and acquires one more.
    fn tick_slots(&mut self, lane_index: usize) -> io::Result<()> {
        let lane = &self.scenario.lanes[lane_index];
        let connections = self.connections.as_mut().unwrap();
        let mut kept = Vec::new();
        let mut failed = None;
        for mut slot in std::mem::take(&mut self.held[lane_index]) {
            let at = now();
            let body = json!({"slot": slot.token}).to_string();
            let mut post = |path: &str| match &failed {
                Some(_) => None,
                None => connections
                    .http
                    .send_http("POST", path, &body)
                    .map_err(|error| failed = Some(error))
                    .ok(),
            };
            if slot.release_at.is_some_and(|due| due <= at) {
                // The slot may be free after the first attempt, even if its reply is lost.
                slot.record.release_sent.get_or_insert(at);
                if post("/v1/release").is_some_and(|(status, _)| status == 200) {
                    self.lanes[lane_index].slots.push(slot.record);
                    continue;
                }
            } else if slot.renew_at.is_some_and(|due| due <= at) {
                slot.renew_at = None;
                match post("/v1/renew") {
                    Some((200, _)) => slot.record.renewed = Some((at, now())),
                    Some((410, _)) => {
                        slot.record.refused = Some((at, now()));
                        self.lanes[lane_index].slots.push(slot.record);
                        continue;
                    }
                    _ => {}
                }
            }
            kept.push(slot);
        }
        // An abandoned slot has certainly expired after three times its hold.
        let hold = lane.limit.window_micros();
        let at = now();
        let (expired, kept): (Vec<_>, Vec<_>) = kept.into_iter().partition(|slot| {
            let is_abandoned = slot.release_at.is_none() && slot.renew_at.is_none();
            is_abandoned && slot.record.acquire_received + 3 * hold < at
        });
        self.lanes[lane_index].slots.extend(expired.into_iter().map(|slot| slot.record));
        self.held[lane_index] = kept;
        if let Some(error) = failed {
            return Err(error);
        }
        self.acquire(lane_index, hold)
    }

    fn acquire(&mut self, lane_index: usize, hold: Micros) -> io::Result<()> {
        let lane = &self.scenario.lanes[lane_index];
        let connections = self.connections.as_mut().unwrap();
        let body = json!({"rule": lane.name, "client": CLIENT}).to_string();
        let sent = now();
        let answer = connections.http.send_http("POST", "/v1/acquire", &body);
        let received = now();
        let kind = match &answer {
            Err(_) => AnswerKind::Lost,
            Ok((200, text)) => {
                let answer: Value = serde_json::from_str(text)?;
                match answer["slot"].as_str() {
                    Some(token) => {
                        let hold = hold.unsigned_abs();
                        let lasts = Micros::try_from(self.numbers.between(hold / 20, hold * 3 / 4))
                            .unwrap();
                        let release_at = (!self.numbers.percent(20)).then_some(received + lasts);
                        let renews = self.numbers.percent(30);
                        let renew_at = renews.then_some(received + lasts / 2);
                        self.held[lane_index].push(HeldSlot {
                            record: SlotRecord {
                                acquire_sent: sent,
                                acquire_received: received,
                                renewed: None,
                                refused: None,
                                release_sent: None,
                            },
                            token: token.to_owned(),
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
        self.lanes[lane_index].answers.push(CheckAnswer { sent, received, cost: 1, kind });
        answer.map(|_| ())
    }
}

/// Sends one check on a new connection.
pub(crate) fn check_once(listeners: NodeListeners, lane: &LoadLane, client: &str) -> CheckAnswer {
    let sent = now();
    let kind = if lane.limit.algorithm == LimitAlgorithm::Concurrency {
        let body = json!({"rule": lane.name, "client": client}).to_string();
        let answer = LoadConnection::open(listeners.http, ANSWER_TIMEOUT)
            .and_then(|mut connection| connection.send_http("POST", "/v1/check", &body));
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
