//! A model of a store and its nodes, with the messages in flight between them.
//!
//! The model records the usage of nodes at the instant of spending. Requests and replies
//! wait until a step delivers, duplicates or loses them, in any order; a node's clock runs a hundredth
//! too slow or too fast.

use proptest::prelude::*;
use tidegate_core::{
    LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Limit, Outcome, Span, State, Timestamp,
    UsageReport,
};

/// Some time in 2026, on no round boundary.
pub(crate) const START: u64 = 1_780_000_000_123_457;
const NODES: usize = 3;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Time passes: thousandths of the window, and microseconds.
    Advance {
        thousandths: u64,
        micros: u64,
    },
    /// A node sends a lease request.
    Send(Sent),
    /// A node sends a question that is answered at once.
    Talk(Sent),
    /// A question reaches the store; it may do so again.
    Arrive {
        which: usize,
        again: bool,
    },
    LoseQuestion {
        which: usize,
    },
    /// An answer reaches its node.
    Hear {
        which: usize,
    },
    LoseAnswer {
        which: usize,
    },
    /// A node spends from its leases.
    Spend {
        node: usize,
        cost: u64,
    },
    /// Time passes until the last instant at which a node's newest hold may be used by its clock,
    /// another node talks up to `early` before that, and all of the hold is spent.
    Brink {
        node: usize,
        early: u64,
        talk: Sent,
    },
    /// A node restarts without its leases.
    Crash {
        node: usize,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    node: usize,
    cost: u64,
    want: u64,
    life: u64,
    nodes: u64,
    /// Bit set of the leases to report, and of those of them to close.
    report: u8,
    close: u8,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sent = || {
        let costs = prop_oneof![3 => Just(0u64), 3 => Just(1u64), 1 => 0u64..30];
        let wants = prop_oneof![1 => Just(0u64), 4 => 1u64..60];
        let lives = prop_oneof![1_000u64..30_000, 20_000u64..3_000_000];
        (0..NODES, costs, wants, lives, 0u64..4, any::<u8>(), any::<u8>()).prop_map(
            |(node, cost, want, life, nodes, report, close)| Sent {
                node,
                cost,
                want,
                life,
                nodes,
                report,
                close: close & 0x55,
            },
        )
    };
    let which = || any::<usize>();
    let step = prop_oneof![
        5 => (prop_oneof![Just(0u64), 0u64..100, 0u64..1_500], prop_oneof![0u64..3, 0u64..50_000])
            .prop_map(|(thousandths, micros)| Step::Advance { thousandths, micros }),
        3 => sent().prop_map(Step::Send),
        5 => sent().prop_map(Step::Talk),
        3 => (which(), any::<bool>()).prop_map(|(which, again)| Step::Arrive { which, again }),
        1 => which().prop_map(|which| Step::LoseQuestion { which }),
        3 => which().prop_map(|which| Step::Hear { which }),
        1 => which().prop_map(|which| Step::LoseAnswer { which }),
        12 => (0..NODES, prop_oneof![Just(1u64), 1u64..40])
            .prop_map(|(node, cost)| Step::Spend { node, cost }),
        2 => (0..NODES, 0u64..20_000, sent())
            .prop_map(|(node, early, talk)| Step::Brink { node, early, talk }),
        1 => (0..NODES).prop_map(|node| Step::Crash { node }),
    ];
    proptest::collection::vec(step, 1..150)
}

/// The node's record of one of its leases.
struct NodeLease {
    id: LeaseId,
    sent: u64,
    /// The grant; `None` until its reply arrived.
    granted: Option<(u64, Span)>,
    spent: u64,
    closed: bool,
}

struct Node {
    leases: Vec<NodeLease>,
    /// Speed of its clock: microseconds of the node per microseconds of the store.
    rate: (u64, u64),
    numbers: u32,
}

impl Node {
    fn can_use(&self, lease: &NodeLease, life: Span, now: u64) -> bool {
        let elapsed = (now - lease.sent) * self.rate.0 / self.rate.1;
        !lease.closed && elapsed < life.as_micros()
    }

    /// Returns the last instant at which the newest lease may be used, and its remaining tokens.
    fn last_instant(&self) -> Option<(u64, u64)> {
        let open =
            |lease: &&NodeLease| !lease.closed && lease.granted.is_some_and(|(held, _)| held > 0);
        let lease = self.leases.iter().rev().find(open)?;
        let (held, life) = lease.granted?;
        let elapsed = (life.as_micros() * self.rate.1).div_ceil(self.rate.0);
        Some((lease.sent + elapsed - 1, held - lease.spent))
    }
}

#[derive(Clone)]
struct Question {
    ask: LeaseRequest,
    node: usize,
    /// True if its cost was admitted before.
    admitted: bool,
}

pub(crate) struct Fleet {
    pub(crate) limit: Limit,
    pub(crate) state: State,
    pub(crate) leases: LeaseSet,
    pub(crate) now: u64,
    nodes: Vec<Node>,
    questions: Vec<Question>,
    answers: Vec<(usize, LeaseId, LeaseGrant)>,
    /// The amounts that were admitted, with their times.
    pub(crate) admitted: Vec<(u64, u64)>,
}

impl Fleet {
    pub(crate) fn new(limit: Limit) -> Self {
        let rates = [(100, 101), (1, 1), (101, 100)];
        let node = |rate| Node { leases: Vec::new(), rate, numbers: 0 };
        Self {
            state: limit.fresh(),
            limit,
            leases: LeaseSet::default(),
            now: START,
            nodes: rates.into_iter().map(node).collect(),
            questions: Vec::new(),
            answers: Vec::new(),
            admitted: Vec::new(),
        }
    }

    pub(crate) fn walk(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Advance { thousandths, micros } => {
                let window = self.limit.quota().window().as_micros();
                self.now += window * thousandths / 1_000 + micros;
            }
            Step::Send(ref sent) => {
                let question = self.send(sent);
                self.questions.push(question);
            }
            Step::Talk(ref sent) => {
                let mut question = self.send(sent);
                let granted = self.arrive(&mut question)?;
                self.hear(question.node, question.ask.id, &granted);
            }
            Step::Arrive { which, again } => {
                if let Some(mut question) = take(&mut self.questions, which) {
                    let granted = self.arrive(&mut question)?;
                    self.answers.push((question.node, question.ask.id, granted));
                    if again {
                        self.questions.push(question);
                    }
                }
            }
            Step::LoseQuestion { which } => drop(take(&mut self.questions, which)),
            Step::Hear { which } => {
                if let Some((node, id, granted)) = take(&mut self.answers, which) {
                    self.hear(node, id, &granted);
                }
            }
            Step::LoseAnswer { which } => drop(take(&mut self.answers, which)),
            Step::Spend { node, cost } => self.spend(node, cost),
            Step::Brink { node, early, ref talk } => {
                let Some((last, left)) = self.nodes[node].last_instant() else { return Ok(()) };
                self.now = self.now.max(last.saturating_sub(early));
                self.walk(&Step::Talk(talk.clone()))?;
                self.now = self.now.max(last);
                self.spend(node, left);
            }
            Step::Crash { node } => self.nodes[node].leases.clear(),
        }
        Ok(())
    }

    /// Builds the lease request of a node with its usage reports. The node stops using the leases that it closes.
    fn send(&mut self, sent: &Sent) -> Question {
        let node = &mut self.nodes[sent.node];
        let bit = |bits: u8, place: usize| bits >> (place % 8) & 1 == 1;
        let mut reports = Vec::new();
        for (place, lease) in node.leases.iter_mut().enumerate() {
            if bit(sent.report, place) {
                lease.closed |= bit(sent.close, place);
                let NodeLease { id, spent, closed, .. } = *lease;
                reports.push(UsageReport { id, spent, closed });
            }
        }
        node.numbers += 1;
        let id = LeaseId { node: sent.node as u64, number: node.numbers };
        if sent.want > 0 {
            let lease = NodeLease { id, sent: self.now, granted: None, spent: 0, closed: false };
            node.leases.push(lease);
        }
        let ask = LeaseRequest {
            cost: sent.cost,
            requested: sent.want,
            id,
            unreported: Vec::new().into(),
            reports: reports.into(),
            ttl: Span::from_micros(sent.life),
            fleet_size: sent.nodes,
        };
        Question { ask, node: sent.node, admitted: false }
    }

    /// Applies a request in the store, and checks the guarantees of one step.
    fn arrive(&mut self, question: &mut Question) -> Result<LeaseGrant, TestCaseError> {
        let (ask, now) = (&question.ask, Timestamp::from_micros(self.now));
        let was_there = self.leases.get(ask.id).filter(|lease| lease.until > now).copied();
        let granted = self.limit.apply_lease_request(&mut self.state, &mut self.leases, now, ask);
        let LeaseGrant { outcome, granted: held, ttl: life, .. } = &granted;
        if ask.cost > 0 && outcome.is_allowed() && !question.admitted {
            question.admitted = true;
            self.admitted.push((self.now, ask.cost));
        }
        let told = ask.reports.iter().any(|report| report.id == ask.id);
        match was_there {
            Some(known) if ask.requested > 0 && !told => {
                prop_assert_eq!(*held, known.amount);
                prop_assert_eq!(self.leases.get(ask.id), Some(&known), "it took more");
            }
            _ => self.is_a_fair_portion(ask, outcome, *held)?,
        }
        prop_assert!(*life <= ask.ttl);
        prop_assert!(self.leases.iter().len() <= LeaseSet::MAX_LEASES);
        self.used_and_held_fit(now)?;
        Ok(granted)
    }

    fn is_a_fair_portion(
        &self,
        ask: &LeaseRequest,
        outcome: &Outcome,
        held: u64,
    ) -> Result<(), TestCaseError> {
        let free = outcome.remaining;
        let most = (free / (2 * ask.fleet_size.max(1))).max(1);
        prop_assert!(held <= most && held <= free, "{held} of {free}");
        prop_assert!(held == 0 || (0..64).any(|halvings| ask.requested >> halvings == held));
        Ok(())
    }

    fn used_and_held_fit(&self, now: Timestamp) -> Result<(), TestCaseError> {
        let free = self.limit.peek(&mut self.state.clone(), now, 1).remaining;
        let held: u64 = self.leases.iter().map(|lease| lease.amount - lease.spent).sum();
        prop_assert_eq!(held, self.leases.reserved(self.limit.capacity()));
        prop_assert!(held <= free, "{held} held, {free} free: {:?}", self.leases);
        Ok(())
    }

    fn hear(&mut self, node: usize, id: LeaseId, granted: &LeaseGrant) {
        let leases = &mut self.nodes[node].leases;
        if let Some(lease) = leases.iter_mut().find(|lease| lease.id == id)
            && lease.granted.is_none()
        {
            lease.granted = Some((granted.granted, granted.ttl));
        }
    }

    /// Spends from the first usable lease with enough tokens.
    fn spend(&mut self, node: usize, cost: u64) {
        let (now, node) = (self.now, &mut self.nodes[node]);
        let usable = node.leases.iter().position(|lease| match lease.granted {
            Some((held, life)) => node.can_use(lease, life, now) && lease.spent + cost <= held,
            None => false,
        });
        if let Some(place) = usable {
            node.leases[place].spent += cost;
            self.admitted.push((now, cost));
        }
    }
}

fn take<T>(list: &mut Vec<T>, which: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.remove(which % list.len()))
}
