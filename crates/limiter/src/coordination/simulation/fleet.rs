//! A fleet and its store, and one look at each moment of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Key, Limit, Span, State, Timestamp};

use super::weather::{Chance, Weather};
use crate::coordination::membership::{HeartbeatReply, Membership, MembershipView, ShareStatus};
use crate::coordination::split::Split;
use crate::store::{Charge, ChargeMode, Share};

const SILENCE: Span = Span::from_secs(4);
/// On no round boundary.
const START: u64 = 1_780_000_000_123_457;
/// How long a fleet is looked at, and in which steps.
const LENGTH: u64 = 40_000_000;
const STEP: u64 = 20_000;
const CLIENTS: u128 = 3;

struct Node {
    name: u64,
    /// By how many hundredths of a percent its clock is too fast, plus as many as it may be too slow.
    pace: u64,
    membership: Membership,
    split: Split,
    next_pulse: u64,
    paused_until: u64,
}

enum Letter {
    Pulse { from: u64, sent: Timestamp },
    Leaving { from: u64 },
    Answer { to: u64, sent: Timestamp, share: Share, since: u64 },
}

pub(crate) struct World {
    chance: Chance,
    weather: Weather,
    now: u64,
    nodes: Vec<Node>,
    names: u64,
    letters: Vec<(u64, Letter)>,
    /// The store: until when it knows each node, and since when.
    known: BTreeMap<u64, (u64, u64)>,
    limit: Arc<Limit>,
    /// What a limit that everybody asks each time would have admitted, for each client.
    oracle: Limit,
    truth: Vec<State>,
    pub(crate) admitted: u64,
}

impl World {
    pub(crate) fn new(seed: u64, weather: Weather, limit: Limit, oracle: Limit) -> Self {
        let truth = (0..CLIENTS).map(|_| oracle.fresh()).collect();
        let mut world = Self {
            chance: Chance::new(seed),
            weather,
            now: 0,
            nodes: Vec::new(),
            names: 0,
            letters: Vec::new(),
            known: BTreeMap::new(),
            limit: Arc::new(limit),
            oracle,
            truth,
            admitted: 0,
        };
        (0..3).for_each(|_| world.join());
        world
    }

    fn join(&mut self) {
        self.start(None);
    }

    /// Starts a node, with its share from before a restart if there was one.
    fn start(&mut self, stored: Option<Share>) {
        let pace = 10_000 - self.weather.drift + self.chance.below(2 * self.weather.drift + 1);
        // Names come in any order.
        self.names += 1;
        let name = self.names.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (mut membership, split) = (Membership::new(SILENCE), Split::new());
        if let Some(stored) = stored {
            membership = membership.with_last_share(stored);
        }
        let next_pulse = self.now;
        self.nodes.push(Node { name, pace, membership, split, next_pulse, paused_until: 0 });
    }

    fn clock(&self, node: &Node) -> Timestamp {
        Timestamp::from_micros(START + self.now * node.pace / 10_000)
    }

    fn post(&mut self, letter: Letter) {
        if self.chance.happens(self.weather.lost) {
            return;
        }
        let late = self.chance.happens(self.weather.late);
        let delay = self.chance.below(if late { 6_000_000 } else { 30_000 });
        self.letters.push((self.now + delay, letter));
    }

    fn step(&mut self) {
        self.now += 1 + self.chance.below(2 * STEP);
        self.befall();
        self.pulse();
        self.deliver();
        self.check_shares();
        self.traffic();
    }

    fn befall(&mut self) {
        if self.chance.happens(self.weather.joins) && self.nodes.len() < 6 {
            self.join();
        }
        if self.chance.happens(self.weather.forgets) {
            self.known.clear();
        }
        for place in (0..self.nodes.len()).rev() {
            if self.chance.happens(self.weather.pauses) {
                self.nodes[place].paused_until = self.now + self.chance.below(12_000_000);
            }
            if self.chance.happens(self.weather.crashes) {
                self.nodes.remove(place);
            } else if self.chance.happens(self.weather.leaves) {
                let mut leaver = self.nodes.remove(place);
                leaver.membership.leave();
                self.post(Letter::Leaving { from: leaver.name });
            } else if self.chance.happens(self.weather.restarts) {
                let crashed = self.nodes.remove(place);
                self.start(Some(crashed.membership.last_share()));
            }
        }
    }

    fn pulse(&mut self) {
        for place in 0..self.nodes.len() {
            let node = &self.nodes[place];
            if node.paused_until > self.now || node.next_pulse > self.now {
                continue;
            }
            let letter = Letter::Pulse { from: node.name, sent: self.clock(node) };
            self.nodes[place].next_pulse = self.now + 1_000_000;
            self.post(letter);
        }
    }

    fn deliver(&mut self) {
        let due: Vec<Letter> = self
            .letters
            .extract_if(.., |(at, letter)| {
                let paused = |name: u64| {
                    let node = self.nodes.iter().find(|node| node.name == name);
                    node.is_some_and(|node| node.paused_until > self.now)
                };
                let waits = matches!(letter, Letter::Answer { to, .. } if paused(*to));
                *at <= self.now && !waits
            })
            .map(|(_, letter)| letter)
            .collect();
        for letter in due {
            match letter {
                Letter::Pulse { from, sent } => self.register(from, sent),
                Letter::Leaving { from } => {
                    self.known.remove(&from);
                }
                Letter::Answer { to, sent, share, since } => {
                    let Some(place) = self.nodes.iter().position(|node| node.name == to) else {
                        continue;
                    };
                    let received = self.clock(&self.nodes[place]);
                    let heard = HeartbeatReply { sent, received, share, since };
                    self.nodes[place].membership.on_heartbeat(heard);
                }
            }
        }
    }

    /// What the script does.
    fn register(&mut self, name: u64, sent: Timestamp) {
        self.known.retain(|_, (until, _)| *until > self.now);
        let until = self.now + SILENCE.as_micros();
        let entry = self.known.entry(name).or_insert((until, self.now));
        entry.0 = until;
        let since = entry.1;
        let place = self.known.keys().position(|known| *known == name).unwrap();
        let (index, of) = (place.try_into().unwrap(), self.known.len().try_into().unwrap());
        self.post(Letter::Answer { to: name, sent, share: Share { index, of }, since });
    }

    fn awake(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.paused_until <= self.now)
    }

    /// The parts of those who use one.
    pub(crate) fn parts(&self) -> Vec<Limit> {
        // A node that is paused may go on at any moment, in the middle of what it was doing.
        let parts = self.nodes.iter().filter_map(|node| {
            match node.membership.share_status(self.clock(node)) {
                ShareStatus::Active([.., era]) => {
                    Some(self.limit.share(era.share.index, era.share.of))
                }
                _ => None,
            }
        });
        parts.collect()
    }

    fn check_shares(&self) {
        let parts = self.parts();
        let capacity: u64 = parts.iter().map(Limit::capacity).sum();
        let amount: u64 = parts.iter().map(|part| part.quota().amount()).sum();
        let most = (self.limit.capacity(), self.limit.quota().amount());
        assert!(capacity <= most.0 && amount <= most.1, "{parts:?} at {}", self.now);
    }

    /// Whether every node would use its share, and no more, if the store failed now.
    pub(crate) fn all_know_the_fleet(&self) -> bool {
        let size = u64::try_from(self.nodes.len()).unwrap();
        self.nodes.iter().all(|node| node.membership.last_share().of >= size)
    }

    fn traffic(&mut self) {
        let names: Vec<u64> = self.awake().map(|node| node.name).collect();
        for _ in 0..3.min(names.len()) {
            let name = names[usize::try_from(self.chance.below(names.len() as u64)).unwrap()];
            let client = u128::from(self.chance.below(CLIENTS as u64));
            // Now one, now all that there is.
            let want = if self.chance.happens(3_000) { u64::MAX } else { 1 + self.chance.below(4) };
            let node = self.nodes.iter().find(|node| node.name == name).unwrap();
            let stake = MembershipView {
                at: self.clock(node),
                membership: Arc::new(node.membership.clone()),
            };
            let key = Key::from_u128(client);
            let charge = |cost| Charge {
                key,
                overflow_key: key,
                limit: &self.limit,
                cost,
                independent: false,
            };
            let Ok((look, _)) = node.split.charge(Some(&stake), &charge(0), ChargeMode::Peek)
            else {
                continue;
            };
            let cost = want.min(look.remaining);
            if cost == 0 {
                continue;
            }
            let (outcome, _) =
                node.split.charge(Some(&stake), &charge(cost), ChargeMode::Spend).unwrap();
            assert!(outcome.is_allowed(), "{cost} of {look:?}: {outcome:?}");
            let now = Timestamp::from_micros(START + self.now);
            let truth = &mut self.truth[usize::try_from(client).unwrap()];
            let judged = self.oracle.charge(truth, now, cost);
            assert!(judged.is_allowed(), "{cost} too many at {}: {judged:?}", self.now);
            self.admitted += cost;
        }
    }

    pub(crate) fn run(mut self) -> Self {
        while self.now < LENGTH {
            self.step();
        }
        self
    }

    /// Runs a fleet of which no node leaves: from when on all nodes know its size, none uses more than its
    /// share of a smaller fleet.
    pub(crate) fn run_with_outages_at_any_time(mut self) {
        while !self.all_know_the_fleet() {
            self.step();
        }
        while self.now < LENGTH {
            self.step();
            let shares: Vec<Share> =
                self.nodes.iter().map(|node| node.membership.last_share()).collect();
            assert!(self.all_know_the_fleet(), "{shares:?} at {}", self.now);
        }
    }
}
