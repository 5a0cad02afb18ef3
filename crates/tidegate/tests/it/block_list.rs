//! The block list against a plain list of entries, alone and shared.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tidegate::block::{
    BlockError, BlockList, BlockOrigin, Change, ChangeFeed, ChangeKind, ChangeStamp, Entry, Reason,
    Subject,
};
use tidegate::{Request, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_780_000_000);
const SECRET: [u8; 32] = [7; 32];

fn by_rule() -> BlockOrigin {
    BlockOrigin::Penalty { rule: "login".into() }
}

fn entry(subject: Subject, until: Timestamp, origin: BlockOrigin) -> Entry {
    Entry { subject, until, reason: Reason::default(), origin, added: START }
}

/// An entry as the store has it, older than any change of these tests.
fn stored(entry: Entry) -> Change {
    Change { stamp: ChangeStamp::default(), kind: ChangeKind::Add(Arc::new(entry)) }
}

fn after(seconds: u64) -> Timestamp {
    START + Span::from_secs(seconds)
}

/// Who can be blocked in these tests, and as whom a request comes: few enough to meet often.
const NAMES: [(&str, &str); 16] = [
    ("ip", "10.0.0.0/8"),
    ("ip", "10.1.0.0/16"),
    ("ip", "10.1.2.0/25"),
    ("ip", "10.1.2.128/25"),
    ("ip", "10.1.2.3"),
    ("ip", "10.1.2.4"),
    ("ip", "10.1.2.5"),
    ("ip", "::ffff:10.1.2.4"),
    ("ip", "::ffff:10.2.0.0/112"),
    ("ip", "2001:db8::/32"),
    ("ip", "2001:db8::/64"),
    ("ip", "2001:db8::7"),
    ("user", "alice"),
    ("user", "mallory"),
    ("api_key", "alice"),
    ("path", "10.1.2.3"),
];

fn requests() -> Vec<Request<'static>> {
    let addresses = ["10.1.2.3", "10.1.2.4", "::ffff:10.1.2.5", "10.2.9.9", "11.0.0.1"];
    let addresses = addresses.into_iter().chain(["2001:db8::7", "2001:db8:1::", "2001:db9::", ""]);
    let mut requests = vec![Request::new(), Request::new().with("ip", "no address").unwrap()];
    for address in addresses {
        for (name, value) in [("user", "alice"), ("user", "mallory"), ("api_key", "alice")] {
            let request = Request::new().with("ip", address).unwrap();
            requests.push(request.with(name, value).unwrap());
        }
    }
    requests
}

/// Whether a request is the one that a name is about, read anew.
fn concerns((attribute, value): (&str, &str), request: &Request<'_>) -> bool {
    let Some(found) = request.get(attribute) else { return false };
    if attribute != "ip" {
        return found == value;
    }
    let Ok(address) = found.parse::<IpAddr>().map(|address| address.to_canonical()) else {
        return false;
    };
    let (base, length) = match value.split_once('/') {
        Some((base, length)) => (base.parse::<IpAddr>().unwrap(), length.parse::<u32>().unwrap()),
        None => (value.parse().unwrap(), 128),
    };
    let (base, length) = match base.to_canonical() {
        IpAddr::V4(v4) if base.is_ipv6() => (IpAddr::V4(v4), length - 96),
        IpAddr::V4(v4) => (IpAddr::V4(v4), length.min(32)),
        v6 => (v6, length),
    };
    match (base, address) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            (base.to_bits() ^ address.to_bits()).leading_zeros() >= length
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            (base.to_bits() ^ address.to_bits()).leading_zeros() >= length
        }
        _ => false,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add { name: usize, seconds: u64, penalty: bool },
    Remove(usize),
    Pass(u64),
    Sweep,
    Replace(Vec<(usize, u64)>),
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..NAMES.len();
    prop_oneof![
        6 => (name.clone(), 0_u64..100, any::<bool>())
            .prop_map(|(name, seconds, penalty)| Step::Add { name, seconds, penalty }),
        2 => name.clone().prop_map(Step::Remove),
        2 => (0_u64..60).prop_map(Step::Pass),
        1 => Just(Step::Sweep),
        1 => proptest::collection::vec((name, 0_u64..100), 0..6).prop_map(Step::Replace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn whoever_is_on_the_list_is_found_and_nobody_else(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let list = BlockList::new(SECRET);
        let subject = |name: usize| list.client(NAMES[name].0, NAMES[name].1).unwrap();
        let mut now = START;
        // By subject, because two names may be of one.
        let mut naive: BTreeMap<Subject, (usize, Timestamp)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Add { name, seconds, penalty } => {
                    let until = now + Span::from_secs(seconds);
                    let origin = if penalty { by_rule() } else { BlockOrigin::Operator };
                    let added = list.add(entry(subject(name), until, origin), now);
                    prop_assert_eq!(added.is_ok(), until > now);
                    let there = naive.get(&subject(name)).map_or(now, |(_, until)| *until);
                    if until > now && (!penalty || until > there) {
                        naive.insert(subject(name), (name, until));
                    }
                }
                Step::Remove(name) => {
                    let there = naive.remove(&subject(name)).filter(|(_, until)| now < *until);
                    prop_assert_eq!(list.remove(&subject(name), now).is_some(), there.is_some());
                }
                Step::Pass(seconds) => now = now + Span::from_secs(seconds),
                Step::Sweep => {
                    list.sweep(now);
                    let live = naive.values().filter(|(_, until)| now < *until);
                    prop_assert_eq!(list.usage().entries, live.count());
                }
                Step::Replace(all) => {
                    let all = all.into_iter().map(|(name, seconds)| {
                        (subject(name), (name, now + Span::from_secs(seconds)))
                    });
                    naive = all.collect();
                    let entries = naive.iter();
                    let entries = entries
                        .map(|(subject, (_, until))| entry(subject.clone(), *until, BlockOrigin::Operator));
                    list.replace_all(1, entries.map(stored).collect(), now);
                }
            }
            naive.retain(|_, (_, until)| now < *until);
            for request in requests() {
                let about = naive.values().filter(|(name, _)| concerns(NAMES[*name], &request));
                let expected = about.map(|(_, until)| *until).max();
                let found = list.find(&request, now).map(|entry| entry.until);
                prop_assert_eq!(found, expected, "{:?}", request);
            }
            let entries = list.entries(now);
            let entries: Vec<_> = entries.iter().map(|e| (&e.subject, e.until)).collect();
            let expected: Vec<_> = naive.iter().map(|(s, (_, until))| (s, *until)).collect();
            prop_assert_eq!(entries, expected);
        }
    }

    #[test]
    fn the_export_covers_exactly_the_blocked_networks(
        blocked in proptest::collection::vec((any::<u8>(), 24_u8..=32, any::<bool>()), 0..40),
    ) {
        let list = BlockList::new(SECRET);
        let now = after(60);
        let mut live = Vec::new();
        for (last, length, over) in blocked {
            let network = ipnet::IpNet::new([192, 0, 2, last].into(), length).unwrap().trunc();
            let until = if over { now } else { after(120) };
            if over && live.contains(&network) {
                continue;
            }
            list.add(entry(Subject::Network(network), until, BlockOrigin::Operator), START).unwrap();
            if !over {
                live.push(network);
            }
        }
        list.add(entry(list.client("user", "mallory").unwrap(), after(120), BlockOrigin::Operator), now).unwrap();
        let export = list.export(now);
        for last in 0..=u8::MAX {
            let address = IpAddr::from([192, 0, 2, last]);
            let covers = |networks: &[ipnet::IpNet]| networks.iter().any(|n| n.contains(&address));
            prop_assert_eq!(covers(&export), covers(&live), "{}", address);
        }
        prop_assert!(export.is_sorted());
        // None is inside another, and no two make up a larger one.
        prop_assert_eq!(export.len(), ipnet::IpNet::aggregate(&export).len());
    }
}

#[test]
fn the_export_is_merged_and_in_order() {
    let list = BlockList::new(SECRET);
    for name in
        ["2001:db8::/33", "192.0.2.128/25", "2001:db8:8000::/33", "10.0.0.7", "192.0.2.0/25"]
    {
        let subject = list.client("ip", name).unwrap();
        list.add(entry(subject, after(60), BlockOrigin::Operator), START).unwrap();
    }
    let lines: Vec<String> = list.export(START).iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["10.0.0.7/32", "192.0.2.0/24", "2001:db8::/32"]);
    assert!(list.export(after(60)).is_empty());
}

#[test]
fn everybody_at_once_is_not_blocked() {
    let list = BlockList::new(SECRET);
    for name in ["0.0.0.0/0", "::/0", "::ffff:0:0/96"] {
        let subject = list.client("ip", name).unwrap();
        let refused = list.add(entry(subject, after(60), BlockOrigin::Operator), START);
        assert_eq!(refused, Err(BlockError::EveryAddress), "{name}");
    }
    let everybody = Subject::Network("::/0".parse().unwrap());
    list.replace_all(1, vec![stored(entry(everybody, after(60), BlockOrigin::Operator))], START);
    assert!(list.is_empty());
}

#[test]
fn a_full_list_refuses_penalties_and_makes_room_for_operators() {
    let list = BlockList::with_max_entries(SECRET, 3);
    let user = |name: &str| list.client("user", name).unwrap();
    let add =
        |name: &str, seconds, origin| list.add(entry(user(name), after(seconds), origin), START);
    add("a", 30, BlockOrigin::Operator).unwrap();
    add("b", 50, by_rule()).unwrap();
    add("c", 40, by_rule()).unwrap();
    assert_eq!(add("d", 60, by_rule()), Err(BlockError::Full { max_entries: 3 }));
    add("e", 10, BlockOrigin::Operator).unwrap();
    let on = |names: [&str; 3]| {
        let mut subjects = names.map(&user);
        subjects.sort();
        let entries = list.entries(START);
        assert_eq!(Vec::from_iter(entries.iter().map(|entry| &entry.subject)), subjects.each_ref());
    };
    on(["a", "b", "e"]);
    add("f", 10, BlockOrigin::Operator).unwrap();
    on(["a", "e", "f"]);
    assert_eq!(add("g", 10, BlockOrigin::Operator), Err(BlockError::Full { max_entries: 3 }));
    // The same subject needs no more room.
    add("a", 90, BlockOrigin::Operator).unwrap();
    assert_eq!((list.usage().refused, list.usage().evicted), (2, 2));
    // What is over goes first.
    assert_eq!(list.add(entry(user("h"), after(99), by_rule()), after(10)), Ok(()));
    assert_eq!(list.usage().entries, 2);
}

#[test]
fn a_list_from_the_store_that_is_too_long_loses_the_penalties_that_end_first() {
    let list = BlockList::with_max_entries(SECRET, 2);
    let user = |name: &str| list.client("user", name).unwrap();
    let entries = vec![
        entry(user("a"), after(10), BlockOrigin::Operator),
        entry(user("b"), after(20), by_rule()),
        entry(user("c"), after(30), by_rule()),
    ];
    list.replace_all(1, entries.into_iter().map(stored).collect(), START);
    assert!(list.find(&Request::new().with("user", "b").unwrap(), START).is_none());
    assert_eq!((list.usage().entries, list.usage().refused), (2, 1));
}

#[test]
fn clients_are_looked_for_by_a_bounded_number_of_attributes() {
    let list = BlockList::new(SECRET);
    let add = |attribute: &str, value: &str| {
        let subject = list.client(attribute, value).unwrap();
        list.add(entry(subject, after(60), BlockOrigin::Operator), START)
    };
    for index in 0..BlockList::MAX_KINDS {
        add(&format!("header.{index}"), "x").unwrap();
    }
    assert_eq!(add("one-more", "x"), Err(BlockError::TooManyKinds));
    add("header.0", "y").unwrap();
    add("ip", "192.0.2.7").unwrap();
    list.remove(&list.client("header.1", "x").unwrap(), START).unwrap();
    add("one-more", "x").unwrap();
}

#[test]
fn a_list_of_as_many_as_there_may_be_takes_more_without_copying() {
    let list = BlockList::new(SECRET);
    let subject = |index: u32| Subject::Network(IpAddr::V4(index.into()).into());
    for index in 0..100_000 {
        let until = after(60 + u64::from(index));
        list.add(entry(subject(1 << 24 | index), until, by_rule()), START).unwrap();
    }
    assert!(list.add(entry(subject(7), after(60), by_rule()), START).is_err());
    assert_eq!(list.entries(after(60_059)).len(), 40_000);
    assert_eq!(list.sweep(after(60_059)), 60_000);
    assert_eq!(list.usage().entries, 40_000);
}

#[test]
fn readers_find_who_stays_blocked_while_others_come_and_go() {
    let list = BlockList::new(SECRET);
    let stays = list.client("user", "mallory").unwrap();
    list.add(entry(stays, after(60), BlockOrigin::Operator), START).unwrap();
    let done = AtomicBool::new(false);
    let request = Request::new().with("user", "mallory").unwrap().with("ip", "192.0.2.7").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert!(list.find(&request, START).is_some());
                }
            });
        }
        for round in 0..300_u64 {
            let other = list.client(&format!("header.{}", round % 7), "x").unwrap();
            list.add(entry(other.clone(), after(30), by_rule()), START).unwrap();
            list.replace_all(
                round,
                list.entries(START).iter().map(|e| stored((**e).clone())).collect(),
                START,
            );
            list.remove(&other, START).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A store that keeps every change that was published, in the order of arrival, and a number that grows.
#[derive(Clone, Debug, Default)]
struct Shared {
    version: u64,
    changes: Vec<Change>,
}

impl Shared {
    fn publish(&mut self, changes: &[Change]) -> u64 {
        self.changes.extend_from_slice(changes);
        self.version += 1;
        self.version
    }

    fn hand_out(&self, list: &BlockList) {
        list.replace_all(self.version, self.changes.clone(), START);
    }
}

/// The end of a subject's block by all changes of it, found by reading them all: the newest change by an operator
/// counts, and a penalty that is newer and ends later.
fn newest(changes: &[Change], subject: &Subject) -> Option<Timestamp> {
    let until = |change: &Change| match &change.kind {
        ChangeKind::Add(entry) => Some(entry.until),
        ChangeKind::Remove(_) => None,
    };
    let of_subject = || changes.iter().filter(|change| change.subject() == subject);
    let operator = of_subject().filter(|change| !change.is_penalty()).max_by_key(|c| c.stamp);
    let penalty = of_subject().filter(|change| change.is_penalty()).max_by_key(|c| c.stamp);
    let penalty = penalty.filter(|penalty| operator.is_none_or(|o| o.stamp < penalty.stamp));
    operator.and_then(until).max(penalty.and_then(until))
}

fn blocked_until(list: &BlockList, subject: &Subject) -> Option<Timestamp> {
    let entries = list.entries(START);
    entries.iter().find(|entry| entry.subject == *subject).map(|entry| entry.until)
}

#[test]
fn what_is_not_published_survives_every_list_from_the_store() {
    let list = Arc::new(BlockList::new(SECRET));
    let user = |name: &str| list.client("user", name).unwrap();
    list.add(entry(user("before"), after(60), BlockOrigin::Operator), START).unwrap();
    let feed = list.share();
    let mut store = Shared::default();
    let old = store.clone();
    assert!(feed.pending(10, START).is_empty(), "no list was seen that a stamp could name");

    // Nothing is published: the store's empty list changes nothing.
    store.hand_out(&list);
    assert_eq!(list.usage().entries, 1);
    let changes = feed.pending(10, START);
    assert_eq!((changes.len(), &changes), (1, &feed.pending(10, START)));
    let version = store.publish(&changes);
    // Published, but this list was handed out before.
    feed.published(&changes, version);
    old.hand_out(&list);
    assert_eq!(list.usage().entries, 1);
    assert!(feed.pending(10, START).is_empty());
    store.hand_out(&list);
    assert_eq!(list.usage().entries, 1);

    // A removal that is not published is not undone.
    list.remove(&user("before"), START).unwrap();
    store.hand_out(&list);
    assert!(list.is_empty());
    // The latest change of a subject is the one that counts, published or not.
    assert_eq!(feed.pending(10, START).len(), 1);
    let removed = feed.pending(10, START);
    list.add(entry(user("before"), after(80), BlockOrigin::Operator), START).unwrap();
    list.add(entry(user("before"), after(90), BlockOrigin::Operator), START).unwrap();
    assert_eq!(feed.pending(10, START).len(), 1);
    let version = store.publish(&removed);
    feed.published(&removed, version);
    store.hand_out(&list);
    assert_eq!(list.entries(START)[0].until, after(90));
    // What another node removes goes, once that node has seen it.
    let changes = feed.pending(10, START);
    feed.published(&changes, store.publish(&changes));
    store.hand_out(&list);
    let stamp = ChangeStamp { version: store.version, node: 0, number: 0 };
    store.publish(&[Change { stamp, kind: ChangeKind::Remove(user("before")) }]);
    store.hand_out(&list);
    assert!(list.is_empty());
    // A longer block by another node is not cut short by a penalty of ours.
    list.add(entry(user("both"), after(10), by_rule()), START).unwrap();
    let longer = entry(user("both"), after(90), BlockOrigin::Operator);
    list.replace_all(store.version, vec![stored(longer.clone())], START);
    assert_eq!(*list.entries(START)[0], longer);
    list.remove(&user("both"), START).unwrap();
    // And what is over by the time it could be published is not.
    list.add(entry(user("short"), after(1), BlockOrigin::Operator), START).unwrap();
    assert_eq!(feed.pending(10, START).len(), 2);
    assert_eq!(feed.pending(10, after(1)).len(), 1);
    // A store that lost what it had gets all that is kept here once more.
    let changes = feed.pending(10, START);
    feed.published(&changes, store.version + 1);
    assert!(feed.pending(10, START).is_empty());
    feed.republish();
    assert_eq!(feed.pending(10, START), changes);
}

#[tokio::test]
async fn whoever_publishes_is_woken_by_a_change() {
    let list = Arc::new(BlockList::new(SECRET));
    let feed = list.share();
    list.replace_all(1, Vec::new(), START);
    let waiting = tokio::spawn(async move {
        feed.changed().await;
        feed.pending(10, START).len()
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    let subject = list.client("user", "mallory").unwrap();
    list.add(entry(subject, after(60), BlockOrigin::Operator), START).unwrap();
    assert_eq!(waiting.await.unwrap(), 1);
}

/// A node of a fleet whose store is [`Shared`].
struct Node {
    list: Arc<BlockList>,
    feed: ChangeFeed,
    fetched: Shared,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Block(u64),
    Penalize(u64),
    Unblock,
    Exchange,
}

impl Node {
    fn new() -> Self {
        let list = Arc::new(BlockList::new(SECRET));
        let feed = list.share();
        Self { list, feed, fetched: Shared::default() }
    }

    fn publish(&self, store: &mut Shared, most: usize) {
        let changes = self.feed.pending(most, START);
        let version = store.publish(&changes);
        self.feed.published(&changes, version);
    }

    /// Does it, and adds the change to those that were made.
    fn act(&self, action: Action, subject: &Subject, store: &mut Shared, made: &mut Vec<Change>) {
        let add = |seconds, origin| {
            self.list.add(entry(subject.clone(), after(seconds), origin), START).unwrap();
        };
        match action {
            Action::Block(seconds) => add(seconds, BlockOrigin::Operator),
            Action::Penalize(seconds) => add(seconds, by_rule()),
            Action::Unblock => drop(self.list.remove(subject, START)),
            Action::Exchange => {
                self.publish(store, usize::MAX);
                store.hand_out(&self.list);
            }
        }
        for change in self.feed.pending(usize::MAX, START) {
            if !made.contains(&change) {
                made.push(change);
            }
        }
    }
}

/// Every order in which nodes can go through their programs, each as the nodes in turn.
fn interleavings(left: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if left.iter().all(|left| *left == 0) {
        return each(order);
    }
    for node in 0..left.len() {
        if left[node] > 0 {
            left[node] -= 1;
            order.push(node);
            interleavings(left, order, each);
            order.pop();
            left[node] += 1;
        }
    }
}

/// Regression: the last change to arrive after a partition stayed, not the newest.
#[test]
fn every_interleaving_of_three_nodes_ends_with_the_newest_change_everywhere() {
    use Action::{Block, Exchange, Penalize, Unblock};
    let subject = BlockList::new(SECRET).client("user", "mallory").unwrap();
    let mut programs = Vec::new();
    for first in [Block(90), Unblock, Penalize(70)] {
        for second in [Block(20), Unblock, Penalize(95)] {
            for other in [Block(30), Unblock, Penalize(80)] {
                let third = [Block(99), Unblock][programs.len() % 2];
                let first = vec![first, Exchange, second, Exchange];
                programs.push([first, vec![other, Exchange], vec![third, Exchange]]);
            }
        }
    }
    for program in programs {
        let mut lengths = program.each_ref().map(Vec::len);
        interleavings(&mut lengths, &mut Vec::new(), &mut |order| {
            let (mut store, mut made) = (Shared::default(), Vec::new());
            let nodes = [Node::new(), Node::new(), Node::new()];
            // All know of one block before they part.
            store.hand_out(&nodes[0].list);
            nodes[0].act(Block(60), &subject, &mut store, &mut made);
            let every_node_twice = || nodes.iter().chain(&nodes);
            every_node_twice().for_each(|node| node.act(Exchange, &subject, &mut store, &mut made));
            let mut at = [0; 3];
            for node in order {
                let action = program[*node][at[*node]];
                at[*node] += 1;
                nodes[*node].act(action, &subject, &mut store, &mut made);
                if let Exchange = action {
                    let shown = blocked_until(&nodes[*node].list, &subject);
                    assert_eq!(shown, newest(&store.changes, &subject), "{program:?} {order:?}");
                }
            }
            every_node_twice().for_each(|node| node.act(Exchange, &subject, &mut store, &mut made));
            let expected = newest(&made, &subject);
            for node in &nodes {
                let shown = blocked_until(&node.list, &subject);
                assert_eq!(shown, expected, "{program:?} {order:?}\n{made:#?}");
            }
            assert_eq!(newest(&store.changes, &subject), expected);
        });
    }
}

#[derive(Clone, Debug)]
enum Move {
    Act {
        node: usize,
        name: usize,
        action: Action,
    },
    Publish {
        node: usize,
    },
    Fetch {
        node: usize,
    },
    /// Hands out what was fetched, however old it is by now.
    Apply {
        node: usize,
    },
    /// The store loses what it had; nodes give it back.
    Lose,
}

fn moves() -> impl Strategy<Value = Move> {
    let (node, name) = (0..3_usize, 0..4_usize);
    let action = prop_oneof![
        2 => (1_u64..1_000).prop_map(Action::Block),
        1 => (1_u64..1_000).prop_map(Action::Penalize),
        2 => Just(Action::Unblock),
    ];
    prop_oneof![
        10 => (node.clone(), name, action)
            .prop_map(|(node, name, action)| Move::Act { node, name, action }),
        6 => node.clone().prop_map(|node| Move::Publish { node }),
        4 => node.clone().prop_map(|node| Move::Fetch { node }),
        4 => node.prop_map(|node| Move::Apply { node }),
        1 => Just(Move::Lose),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nodes_agree_in_the_end_on_the_newest_change_of_each_subject(
        moves in proptest::collection::vec(moves(), 1..60),
    ) {
        let nodes = [Node::new(), Node::new(), Node::new()];
        let (mut store, mut made) = (Shared::default(), Vec::new());
        let mut fetched = nodes.each_ref().map(|node| node.fetched.clone());
        nodes.iter().for_each(|node| store.hand_out(&node.list));
        let names = ["a", "b", "c", "d"].map(|name| nodes[0].list.client("user", name).unwrap());
        for step in moves {
            match step {
                Move::Act { node, name, action } => {
                    nodes[node].act(action, &names[name], &mut store, &mut made);
                }
                Move::Publish { node } => nodes[node].publish(&mut store, 2),
                Move::Fetch { node } => fetched[node] = store.clone(),
                Move::Apply { node } => fetched[node].hand_out(&nodes[node].list),
                Move::Lose => {
                    // One of the nodes had fetched the latest version, and restores it.
                    let known = std::mem::take(&mut store.changes);
                    nodes.iter().for_each(|node| node.feed.republish());
                    store.publish(&known);
                }
            }
        }
        for node in nodes.iter().chain(&nodes) {
            node.publish(&mut store, usize::MAX);
            store.hand_out(&node.list);
        }
        for node in &nodes {
            for name in &names {
                prop_assert_eq!(blocked_until(&node.list, name), newest(&made, name));
            }
        }
    }
}
