//! Simulated nodes: production limiters, each with its own clock, on one store.
//!
//! Their background work runs here when it is due, so that a run is deterministic.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::sync::Arc;

use clap::ValueEnum;
use futures_util::FutureExt;
use tidegate_core::{Decision, Limit, Request, Span, Timestamp};
use tidegate_limiter::{FailureCounts, Limiter, ManualClock};
use tidegate_rules::{Accuracy, Rule, RuleSet, SyncSettings};

use crate::faults::FaultPlan;
use crate::store::{HEARTBEAT_INTERVAL, HEARTBEAT_RETRY, NodeStore, SimStore};

/// Interval at which nodes release leases of idle clients.
const SWEEP_INTERVAL: Span = Span::from_millis(250);
/// The due time of absent background work.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// The instants at which nodes sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SyncPhase {
    /// At the same instants: all nodes report, then all read, as in the textbook formula
    #[default]
    Together,
    /// At the same instants, one node after the other, each with one request that reports and reads.
    #[value(skip)]
    InTurn,
    /// As in production: each node independently, with one request that reports and reads
    Own,
}

/// A fleet of nodes on one store.
pub(crate) struct SimFleet {
    store: Arc<SimStore>,
    nodes: Vec<SimNode>,
    start: Timestamp,
    /// Nodes by the time at which they have background work, by the store's clock.
    due: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// The next heartbeat of all nodes, if a rule depends on heartbeats.
    next_heartbeat: Timestamp,
    sweeps: bool,
    /// The instants and the interval of syncs, if a rule is synced.
    syncs: Option<(SyncPhase, Span)>,
    /// The next sync of all nodes together, if there is something to sync.
    next_joint_sync: Timestamp,
    /// Clients with a state that all nodes have read since the last joint sync.
    read: HashSet<u64>,
}

struct SimNode {
    limiter: Limiter<NodeStore>,
    time: ManualClock,
    /// The lead of its clock over the store's clock.
    ahead: Span,
    /// The next and the last background work, by the store's clock.
    next: Timestamp,
    swept: Timestamp,
}

impl SimFleet {
    /// Creates nodes that joined before the start, by more than the longest window of the rules.
    pub(crate) fn new(
        rules: &RuleSet,
        nodes: u64,
        phase: SyncPhase,
        faults: FaultPlan,
        start: Timestamp,
    ) -> Self {
        let count = usize::try_from(nodes).unwrap_or(usize::MAX);
        let store = Arc::new(SimStore::new(count, start, faults));
        let node = |index: usize| {
            let ahead = faults.clock_offset(index, count);
            let time = ManualClock::starting_at(start + ahead);
            let store = Arc::new(NodeStore::new(&store, index as u64, time.clock()));
            let builder = Limiter::builder().rules(rules.clone()).clock(time.clock());
            SimNode {
                limiter: builder.store(store).build(),
                time,
                ahead,
                next: NEVER,
                swept: start,
            }
        };
        let nodes: Vec<SimNode> = (0..count).map(node).collect();
        let accuracies = || rules.rules().iter().map(Rule::accuracy);
        let splits = accuracies().any(|accuracy| accuracy == Accuracy::Split);
        if splits {
            let long = longest_memory(rules, start);
            nodes.iter().for_each(|node| node.limiter.store().join_before_start(long, node.ahead));
        }
        let leases = |accuracy| matches!(accuracy, Accuracy::Leased | Accuracy::LeasedWhenHot);
        let every = accuracies().find_map(|accuracy| match accuracy {
            Accuracy::Synced(SyncSettings { every, .. }) => Some(every.span()),
            _ => None,
        });
        Self {
            store,
            nodes,
            start,
            due: BinaryHeap::new(),
            next_heartbeat: if splits { start } else { NEVER },
            sweeps: accuracies().any(leases),
            syncs: every.map(|every| (phase, every)),
            next_joint_sync: NEVER,
            read: HashSet::new(),
        }
    }

    /// Decides a request of a client at a node. Time does not run backwards.
    pub(crate) fn check(
        &mut self,
        node: u64,
        client: u64,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Option<Decision> {
        self.catch_up(now);
        if let Some((phase, every)) = self.syncs.filter(|(phase, _)| *phase != SyncPhase::Own) {
            if self.read.is_empty() && phase == SyncPhase::Together {
                let passed = now.since(self.start).as_micros() / every.as_micros() + 1;
                let since_start = passed.saturating_mul(every.as_micros());
                self.next_joint_sync = self.start + Span::from_micros(since_start);
            }
            if self.read.insert(client) {
                self.read_at_all_nodes(request, now);
            }
        }
        let index = usize::try_from(node).unwrap_or(usize::MAX);
        let decision = self.nodes.get_mut(index)?.check(request, now);
        self.plan(index, now);
        decision
    }

    /// Does all background work that is due until `now`.
    fn catch_up(&mut self, now: Timestamp) {
        loop {
            let first = self.due.peek().map_or(NEVER, |Reverse((at, _))| *at);
            let next = first.min(self.next_heartbeat).min(self.next_joint_sync);
            if next > now {
                break;
            }
            self.store.advance(next);
            if self.next_heartbeat == next {
                self.send_heartbeats(next);
            } else if self.next_joint_sync == next {
                self.sync_together(next);
            } else if let Some(Reverse((at, index))) = self.due.pop() {
                let node = &mut self.nodes[index];
                // A node that was rescheduled also has an outdated entry.
                if node.next == at {
                    node.wake(at);
                    node.limiter.run_background_once().now_or_never();
                    (node.next, node.swept) = (NEVER, at);
                    self.plan(index, at);
                }
            }
        }
        self.store.advance(now);
    }

    fn send_heartbeats(&mut self, now: Timestamp) {
        let replied = |node: &SimNode| node.limiter.store().heartbeat(now, node.ahead);
        let replies = self.nodes.iter().filter(|node| replied(node)).count();
        let all = replies == self.nodes.len();
        self.next_heartbeat = now + if all { HEARTBEAT_INTERVAL } else { HEARTBEAT_RETRY };
    }

    /// Lets all nodes report, then drop their views. The next request of a client at any node makes all nodes read the
    /// client's state again, with all reports.
    fn sync_together(&mut self, now: Timestamp) {
        // A node drops only views without unreported usage; the second round drops all.
        for _round in 0..2 {
            for node in &mut self.nodes {
                node.wake(now);
                node.limiter.release_all().now_or_never();
            }
        }
        self.read.clear();
        self.next_joint_sync = NEVER;
    }

    /// Lets all nodes read the state of the request's client, without a charge.
    fn read_at_all_nodes(&mut self, request: &Request<'_>, now: Timestamp) {
        self.store.set_read_only(true);
        for index in 0..self.nodes.len() {
            self.nodes[index].check(request, now);
            self.plan(index, now);
        }
        self.store.set_read_only(false);
    }

    /// Schedules the next background work of a node.
    fn plan(&mut self, index: usize, now: Timestamp) {
        if matches!(self.syncs, Some((SyncPhase::Together, _))) {
            return;
        }
        let node = &mut self.nodes[index];
        let sync = node.limiter.next_sync_at().map_or(NEVER, |next| next - node.ahead);
        let sweep = if self.sweeps { node.swept + SWEEP_INTERVAL } else { NEVER };
        let next = sync.min(sweep).max(now + Span::MICROSECOND);
        if next < node.next {
            node.next = next;
            self.due.push(Reverse((next, index)));
        }
    }

    /// Returns for each rule the number of requests decided without the store, at all nodes together.
    pub(crate) fn failures(&self) -> Vec<FailureCounts> {
        let mut all = Vec::new();
        for node in &self.nodes {
            all.resize(node.limiter.rules().rules().len(), FailureCounts::default());
            for (sum, (_, counts)) in all.iter_mut().zip(node.limiter.failures()) {
                sum.open += counts.open;
                sum.closed += counts.closed;
                sum.local += counts.local;
            }
        }
        all
    }
}

impl SimNode {
    /// Advances its clock to the time that corresponds to the store's `now`.
    fn wake(&mut self, now: Timestamp) {
        self.time.advance((now + self.ahead).since(self.time.now()));
    }

    /// Decides a request; the store replies at once, so the check never waits.
    fn check(&mut self, request: &Request<'_>, now: Timestamp) -> Option<Decision> {
        self.wake(now);
        self.limiter.check(request).now_or_never()
    }
}

/// Returns the time after which the state of a client under every rule has expired.
fn longest_memory(rules: &RuleSet, now: Timestamp) -> Span {
    let whole = |limit: &Limit| {
        let mut state = limit.fresh();
        limit.charge(&mut state, now, limit.capacity());
        limit.expires_at(&mut state).since(now)
    };
    rules.rules().iter().map(|rule| whole(rule.limit())).max().unwrap_or(Span::ZERO)
}
