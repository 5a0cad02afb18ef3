//! Nodes as they ship, each a limiter with its own clock, on one store. What they do in the background is done
//! here when its time comes, so that a run can be had again to the last digit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use futures_util::FutureExt;
use tidegate::rule::Accuracy;
use tidegate::{
    Decision, FailureCounts, Limit, Limiter, ManualClock, Request, RuleSet, Span, Timestamp,
};

use super::hub::{Branch, Hub, INSISTING, PULSE};
use super::weather::Weather;

/// How often nodes look whether what they hold is still needed.
const SWEEP: Span = Span::from_millis(250);
/// Nothing is to be done.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// A fleet.
pub(super) struct Nodes {
    hub: Arc<Hub>,
    nodes: Vec<Node>,
    /// Who has something to do, and when, by the store's time.
    due: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// When all say next that they are there; if a rule depends on it.
    pulse: Timestamp,
    sweeps: bool,
}

struct Node {
    limiter: Limiter<Branch>,
    time: ManualClock,
    /// By how much its clock is ahead of the store's.
    ahead: Span,
    /// When it has something to do, and when it last looked, by the store's time.
    next: Timestamp,
    swept: Timestamp,
}

impl Nodes {
    /// So many nodes, that have been there for longer than any of the rules remembers.
    pub(super) fn new(rules: &RuleSet, nodes: u64, weather: Weather, start: Timestamp) -> Self {
        let count = usize::try_from(nodes).unwrap_or(usize::MAX);
        let hub = Arc::new(Hub::new(count, start, weather));
        let node = |index: usize| {
            let ahead = weather.ahead(index, count);
            let time = ManualClock::starting_at(start + ahead);
            let branch = Arc::new(Branch::new(&hub, index as u64, time.clock()));
            let builder = Limiter::builder().rules(rules.clone()).clock(time.clock());
            let limiter = builder.store(branch).build();
            Node { limiter, time, ahead, next: NEVER, swept: start }
        };
        let nodes: Vec<Node> = (0..count).map(node).collect();
        let accuracies = || rules.rules().iter().map(|rule| rule.accuracy());
        let splits = accuracies().any(|accuracy| accuracy == Accuracy::Split);
        if splits {
            let long = memory(rules, start);
            nodes.iter().for_each(|node| node.limiter.store().settle(long, node.ahead));
        }
        let leases = |accuracy| matches!(accuracy, Accuracy::Leased | Accuracy::LeasedWhenHot);
        let (pulse, sweeps) = (if splits { start } else { NEVER }, accuracies().any(leases));
        Self { hub, nodes, due: BinaryHeap::new(), pulse, sweeps }
    }

    /// Decides a request at a node. Time does not run backwards.
    pub(super) fn check(
        &mut self,
        node: u64,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Option<Decision> {
        self.catch_up(now);
        let place = usize::try_from(node).unwrap_or(usize::MAX);
        let node = self.nodes.get_mut(place)?;
        node.wake(now);
        // A store that answers at once makes nobody wait.
        let decision = node.limiter.check(request).now_or_never();
        self.plan(place, now);
        decision
    }

    /// All that was to be done until `now`.
    fn catch_up(&mut self, now: Timestamp) {
        loop {
            let first = self.due.peek().map_or(NEVER, |Reverse((at, _))| *at);
            let next = first.min(self.pulse);
            if next > now {
                break;
            }
            self.hub.advance(next);
            if self.pulse == next {
                let heard = |node: &Node| node.limiter.store().pulse(next, node.ahead);
                let heard = self.nodes.iter().filter(|node| heard(node)).count();
                let all = heard == self.nodes.len();
                self.pulse = next + if all { PULSE } else { INSISTING };
                continue;
            }
            let Some(Reverse((at, place))) = self.due.pop() else { break };
            let node = &mut self.nodes[place];
            // One that was planned anew is there twice.
            if node.next == at {
                node.wake(at);
                node.limiter.tend_fleet().now_or_never();
                (node.next, node.swept) = (NEVER, at);
                self.plan(place, at);
            }
        }
        self.hub.advance(now);
    }

    /// Sees to it that a node does in time what it has to do.
    fn plan(&mut self, place: usize, now: Timestamp) {
        let node = &mut self.nodes[place];
        let sync = node.limiter.next_sync().map_or(NEVER, |next| next - node.ahead);
        let sweep = if self.sweeps { node.swept + SWEEP } else { NEVER };
        let next = sync.min(sweep).max(now + Span::MICROSECOND);
        if next < node.next {
            node.next = next;
            self.due.push(Reverse((next, place)));
        }
    }

    /// How often each rule answered without the store, at all nodes together.
    pub(super) fn failures(&self) -> Vec<FailureCounts> {
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

impl Node {
    /// Moves its clock to what it shows when the store's shows `now`.
    fn wake(&mut self, now: Timestamp) {
        self.time.advance((now + self.ahead).since(self.time.now()));
    }
}

/// How long it takes until nothing is left of what a client has spent, by any of the rules.
fn memory(rules: &RuleSet, now: Timestamp) -> Span {
    let whole = |limit: &Limit| {
        let mut state = limit.fresh();
        limit.charge(&mut state, now, limit.capacity());
        limit.whole_at(&mut state).since(now)
    };
    rules.rules().iter().map(|rule| whole(rule.limit())).max().unwrap_or(Span::ZERO)
}
