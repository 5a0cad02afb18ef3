//! The block list, compared with a plain map, on one node and shared by several.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tidegate::block::{
    BlockAction, BlockError, BlockList, BlockOrigin, Change, ChangeFeed, ChangeKind, ChangeStamp,
    Entry, Reason, Subject,
};
use tidegate::{Request, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_780_000_000);
const SECRET: [u8; 32] = [7; 32];

fn penalty_author() -> BlockOrigin {
    BlockOrigin::Penalty { rule: "login".into() }
}

fn entry(subject: Subject, until: Timestamp, origin: BlockOrigin) -> Entry {
    Entry {
        subject,
        action: BlockAction::Block,
        until,
        reason: Reason::default(),
        origin,
        added: START,
    }
}

/// Returns an entry as a change from the store, older than any change of these tests.
fn stored(entry: Entry) -> Change {
    Change { stamp: ChangeStamp::default(), kind: ChangeKind::Add(Arc::new(entry)) }
}

fn seconds_after_start(seconds: u64) -> Timestamp {
    START + Span::from_secs(seconds)
}

/// Clients that these tests block: few, so that requests often match one.
const BLOCKABLE_CLIENTS: [(&str, &str); 16] = [
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

/// Returns whether a request matches a client. Independent of the implementation under test.
fn matches_client((attribute, value): (&str, &str), request: &Request<'_>) -> bool {
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
enum ListStep {
    Add { name: usize, seconds: u64, penalty: bool },
    Remove(usize),
    Advance(u64),
    Sweep,
    Replace(Vec<(usize, u64)>),
}

fn list_step() -> impl Strategy<Value = ListStep> {
    let name = 0..BLOCKABLE_CLIENTS.len();
    prop_oneof![
        6 => (name.clone(), 0_u64..100, any::<bool>())
            .prop_map(|(name, seconds, penalty)| ListStep::Add { name, seconds, penalty }),
        2 => name.clone().prop_map(ListStep::Remove),
        2 => (0_u64..60).prop_map(ListStep::Advance),
        1 => Just(ListStep::Sweep),
        1 => proptest::collection::vec((name, 0_u64..100), 0..6).prop_map(ListStep::Replace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn list_finds_exactly_the_blocked_clients(
        steps in proptest::collection::vec(list_step(), 1..40),
    ) {
        let list = BlockList::new(SECRET);
        let subject = |name: usize| list.client(BLOCKABLE_CLIENTS[name].0, BLOCKABLE_CLIENTS[name].1).unwrap();
        let mut now = START;
        // Keyed by subject, because two names may denote the same one.
        let mut model: BTreeMap<Subject, (usize, Timestamp)> = BTreeMap::new();
        for list_step in steps {
            match list_step {
                ListStep::Add { name, seconds, penalty } => {
                    let until = now + Span::from_secs(seconds);
                    let by = if penalty { penalty_author() } else { BlockOrigin::Operator };
                    let added = list.add(entry(subject(name), until, by), now);
                    prop_assert_eq!(added.is_ok(), until > now);
                    let existing = model.get(&subject(name)).map_or(now, |(_, until)| *until);
                    if until > now && (!penalty || until > existing) {
                        model.insert(subject(name), (name, until));
                    }
                }
                ListStep::Remove(name) => {
                    let existing = model.remove(&subject(name)).filter(|(_, until)| now < *until);
                    prop_assert_eq!(list.remove(&subject(name), now).is_some(), existing.is_some());
                }
                ListStep::Advance(seconds) => now = now + Span::from_secs(seconds),
                ListStep::Sweep => {
                    list.sweep(now);
                    let live = model.values().filter(|(_, until)| now < *until);
                    prop_assert_eq!(list.usage().entries, live.count());
                }
                ListStep::Replace(all) => {
                    let all = all.into_iter().map(|(name, seconds)| {
                        (subject(name), (name, now + Span::from_secs(seconds)))
                    });
                    model = all.collect();
                    let entries = model.iter();
                    let entries = entries
                        .map(|(subject, (_, until))| entry(subject.clone(), *until, BlockOrigin::Operator));
                    list.replace_all(1, entries.map(stored).collect(), now);
                }
            }
            model.retain(|_, (_, until)| now < *until);
            for request in requests() {
                let matching = model.values().filter(|(name, _)| matches_client(BLOCKABLE_CLIENTS[*name], &request));
                let expected = matching.map(|(_, until)| *until).max();
                let found = list.find(&request, now).map(|entry| entry.until);
                prop_assert_eq!(found, expected, "{:?}", request);
            }
            let entries = list.entries(now);
            let entries: Vec<_> = entries.iter().map(|e| (&e.subject, e.until)).collect();
            let expected: Vec<_> = model.iter().map(|(s, (_, until))| (s, *until)).collect();
            prop_assert_eq!(entries, expected);
        }
    }

    #[test]
    fn export_covers_exactly_the_blocked_networks(
        blocked in proptest::collection::vec((any::<u8>(), 24_u8..=32, any::<bool>()), 0..40),
    ) {
        let list = BlockList::new(SECRET);
        let now = seconds_after_start(60);
        let mut live = Vec::new();
        for (last_octet, length, expired) in blocked {
            let network = ipnet::IpNet::new([192, 0, 2, last_octet].into(), length).unwrap().trunc();
            let until = if expired { now } else { seconds_after_start(120) };
            if expired && live.contains(&network) {
                continue;
            }
            list.add(entry(Subject::Network(network), until, BlockOrigin::Operator), START).unwrap();
            if !expired {
                live.push(network);
            }
        }
        list.add(entry(list.client("user", "mallory").unwrap(), seconds_after_start(120), BlockOrigin::Operator), now).unwrap();
        let export = list.export(now);
        for last_octet in 0..=u8::MAX {
            let address = IpAddr::from([192, 0, 2, last_octet]);
            let covers = |networks: &[ipnet::IpNet]| networks.iter().any(|n| n.contains(&address));
            prop_assert_eq!(covers(&export), covers(&live), "{}", address);
        }
        prop_assert!(export.is_sorted());
        // No network contains another, and no two can be merged.
        prop_assert_eq!(export.len(), ipnet::IpNet::aggregate(&export).len());
    }
}

#[test]
fn export_is_aggregated_and_sorted() {
    let list = BlockList::new(SECRET);
    for name in
        ["2001:db8::/33", "192.0.2.128/25", "2001:db8:8000::/33", "10.0.0.7", "192.0.2.0/25"]
    {
        let subject = list.client("ip", name).unwrap();
        list.add(entry(subject, seconds_after_start(60), BlockOrigin::Operator), START).unwrap();
    }
    let lines: Vec<String> = list.export(START).iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["10.0.0.7/32", "192.0.2.0/24", "2001:db8::/32"]);
    assert!(list.export(seconds_after_start(60)).is_empty());
}

#[test]
fn block_of_all_addresses_is_rejected() {
    let list = BlockList::new(SECRET);
    for name in ["0.0.0.0/0", "::/0", "::ffff:0:0/96"] {
        let subject = list.client("ip", name).unwrap();
        let rejection =
            list.add(entry(subject, seconds_after_start(60), BlockOrigin::Operator), START);
        assert_eq!(rejection, Err(BlockError::EveryAddress), "{name}");
    }
    let all_addresses = Subject::Network("::/0".parse().unwrap());
    list.replace_all(
        1,
        vec![stored(entry(all_addresses, seconds_after_start(60), BlockOrigin::Operator))],
        START,
    );
    assert!(list.is_empty());
}

#[test]
fn full_list_rejects_penalties_and_evicts_them_for_operator_blocks() {
    let list = BlockList::with_max_entries(SECRET, 3);
    let user = |name: &str| list.client("user", name).unwrap();
    let add = |name: &str, seconds, by| {
        list.add(entry(user(name), seconds_after_start(seconds), by), START)
    };
    add("a", 30, BlockOrigin::Operator).unwrap();
    add("b", 50, penalty_author()).unwrap();
    add("c", 40, penalty_author()).unwrap();
    assert_eq!(add("d", 60, penalty_author()), Err(BlockError::Full { max_entries: 3 }));
    add("e", 10, BlockOrigin::Operator).unwrap();
    let expect_entries = |names: [&str; 3]| {
        let mut subjects = names.map(&user);
        subjects.sort();
        let entries = list.entries(START);
        assert_eq!(Vec::from_iter(entries.iter().map(|entry| &entry.subject)), subjects.each_ref());
    };
    expect_entries(["a", "b", "e"]);
    add("f", 10, BlockOrigin::Operator).unwrap();
    expect_entries(["a", "e", "f"]);
    assert_eq!(add("g", 10, BlockOrigin::Operator), Err(BlockError::Full { max_entries: 3 }));
    // Replacing the entry of a subject needs no room.
    add("a", 90, BlockOrigin::Operator).unwrap();
    assert_eq!((list.usage().refused, list.usage().evicted), (2, 2));
    // Expired entries are evicted first.
    assert_eq!(
        list.add(
            entry(user("h"), seconds_after_start(99), penalty_author()),
            seconds_after_start(10)
        ),
        Ok(())
    );
    assert_eq!(list.usage().entries, 2);
}

#[test]
fn oversized_list_from_the_store_drops_the_penalties_that_end_first() {
    let list = BlockList::with_max_entries(SECRET, 2);
    let user = |name: &str| list.client("user", name).unwrap();
    let entries = vec![
        entry(user("a"), seconds_after_start(10), BlockOrigin::Operator),
        entry(user("b"), seconds_after_start(20), penalty_author()),
        entry(user("c"), seconds_after_start(30), penalty_author()),
    ];
    list.replace_all(1, entries.into_iter().map(stored).collect(), START);
    assert!(list.find(&Request::new().with("user", "b").unwrap(), START).is_none());
    assert_eq!((list.usage().entries, list.usage().refused), (2, 1));
}

#[test]
fn number_of_blocked_attributes_is_bounded() {
    let list = BlockList::new(SECRET);
    let add = |attribute: &str, value: &str| {
        let subject = list.client(attribute, value).unwrap();
        list.add(entry(subject, seconds_after_start(60), BlockOrigin::Operator), START)
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
fn full_list_of_100_000_entries_rejects_penalties_and_is_swept() {
    let list = BlockList::new(SECRET);
    let subject = |index: u32| Subject::Network(IpAddr::V4(index.into()).into());
    for index in 0..100_000 {
        let until = seconds_after_start(60 + u64::from(index));
        list.add(entry(subject(1 << 24 | index), until, penalty_author()), START).unwrap();
    }
    assert!(list.add(entry(subject(7), seconds_after_start(60), penalty_author()), START).is_err());
    assert_eq!(list.entries(seconds_after_start(60_059)).len(), 40_000);
    assert_eq!(list.sweep(seconds_after_start(60_059)), 60_000);
    assert_eq!(list.usage().entries, 40_000);
}

#[test]
fn concurrent_readers_always_find_a_blocked_client_while_others_change() {
    let list = BlockList::new(SECRET);
    let blocked_subject = list.client("user", "mallory").unwrap();
    list.add(entry(blocked_subject, seconds_after_start(60), BlockOrigin::Operator), START)
        .unwrap();
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
            list.add(entry(other.clone(), seconds_after_start(30), penalty_author()), START)
                .unwrap();
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

/// A shared store: every published change in the order of arrival, and a version that increases.
#[derive(Clone, Debug, Default)]
struct SharedStore {
    version: u64,
    changes: Vec<Change>,
}

impl SharedStore {
    fn publish(&mut self, changes: &[Change]) -> u64 {
        self.changes.extend_from_slice(changes);
        self.version += 1;
        self.version
    }

    fn send_list(&self, list: &BlockList) {
        list.replace_all(self.version, self.changes.clone(), START);
    }
}

/// Returns the end of a subject's block, computed from all of its changes. The newest operator change counts, and the
/// newest penalty if it is newer and ends later.
fn expected_end(changes: &[Change], subject: &Subject) -> Option<Timestamp> {
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
fn unpublished_changes_survive_every_list_from_the_store() {
    let list = Arc::new(BlockList::new(SECRET));
    let user = |name: &str| list.client("user", name).unwrap();
    list.add(entry(user("before"), seconds_after_start(60), BlockOrigin::Operator), START).unwrap();
    let feed = list.share();
    let mut store = SharedStore::default();
    let old = store.clone();
    assert!(
        feed.pending(10, START).is_empty(),
        "a change needs the version of a list from the store"
    );

    // The entry is not published yet, so the store's empty list does not remove it.
    store.send_list(&list);
    assert_eq!(list.usage().entries, 1);
    let changes = feed.pending(10, START);
    assert_eq!((changes.len(), &changes), (1, &feed.pending(10, START)));
    let version = store.publish(&changes);
    // The entry is published, but this list is older than the publication.
    feed.published(&changes, version);
    old.send_list(&list);
    assert_eq!(list.usage().entries, 1);
    assert!(feed.pending(10, START).is_empty());
    store.send_list(&list);
    assert_eq!(list.usage().entries, 1);

    // A removal that is not published is not undone.
    list.remove(&user("before"), START).unwrap();
    store.send_list(&list);
    assert!(list.is_empty());
    // The latest change of a subject counts, published or not.
    assert_eq!(feed.pending(10, START).len(), 1);
    let removed = feed.pending(10, START);
    list.add(entry(user("before"), seconds_after_start(80), BlockOrigin::Operator), START).unwrap();
    list.add(entry(user("before"), seconds_after_start(90), BlockOrigin::Operator), START).unwrap();
    assert_eq!(feed.pending(10, START).len(), 1);
    let version = store.publish(&removed);
    feed.published(&removed, version);
    store.send_list(&list);
    assert_eq!(list.entries(START)[0].until, seconds_after_start(90));
    // A removal by a node that has seen the entry removes it everywhere.
    let changes = feed.pending(10, START);
    feed.published(&changes, store.publish(&changes));
    store.send_list(&list);
    let stamp = ChangeStamp { version: store.version, node: 0, number: 0 };
    store.publish(&[Change { stamp, kind: ChangeKind::Remove(user("before")) }]);
    store.send_list(&list);
    assert!(list.is_empty());
    // A penalty of this node does not shorten a longer block by another node.
    list.add(entry(user("both"), seconds_after_start(10), penalty_author()), START).unwrap();
    let longer = entry(user("both"), seconds_after_start(90), BlockOrigin::Operator);
    list.replace_all(store.version, vec![stored(longer.clone())], START);
    assert_eq!(*list.entries(START)[0], longer);
    list.remove(&user("both"), START).unwrap();
    // An entry that expires before its publication is not published.
    list.add(entry(user("short"), seconds_after_start(1), BlockOrigin::Operator), START).unwrap();
    assert_eq!(feed.pending(10, START).len(), 2);
    assert_eq!(feed.pending(10, seconds_after_start(1)).len(), 1);
    // A store that lost its data receives all changes of this node again.
    let changes = feed.pending(10, START);
    feed.published(&changes, store.version + 1);
    assert!(feed.pending(10, START).is_empty());
    feed.republish();
    assert_eq!(feed.pending(10, START), changes);
}

#[tokio::test]
async fn change_wakes_the_publisher() {
    let list = Arc::new(BlockList::new(SECRET));
    let feed = list.share();
    list.replace_all(1, Vec::new(), START);
    let publisher = tokio::spawn(async move {
        feed.changed().await;
        feed.pending(10, START).len()
    });
    tokio::task::yield_now().await;
    assert!(!publisher.is_finished());
    let subject = list.client("user", "mallory").unwrap();
    list.add(entry(subject, seconds_after_start(60), BlockOrigin::Operator), START).unwrap();
    assert_eq!(publisher.await.unwrap(), 1);
}

/// A node of a fleet that shares a [`SharedStore`].
struct Node {
    list: Arc<BlockList>,
    feed: ChangeFeed,
    fetched: SharedStore,
}

#[derive(Clone, Copy, Debug)]
enum NodeAction {
    Block(u64),
    Penalize(u64),
    Unblock,
    PublishAndFetch,
}

impl Node {
    fn new() -> Self {
        let list = Arc::new(BlockList::new(SECRET));
        let feed = list.share();
        Self { list, feed, fetched: SharedStore::default() }
    }

    fn publish(&self, store: &mut SharedStore, max: usize) {
        let changes = self.feed.pending(max, START);
        let version = store.publish(&changes);
        self.feed.published(&changes, version);
    }

    /// Runs an action, and appends its changes to `made`.
    fn run_action(
        &self,
        action: NodeAction,
        subject: &Subject,
        store: &mut SharedStore,
        made: &mut Vec<Change>,
    ) {
        let add = |seconds, by| {
            self.list.add(entry(subject.clone(), seconds_after_start(seconds), by), START).unwrap();
        };
        match action {
            NodeAction::Block(seconds) => add(seconds, BlockOrigin::Operator),
            NodeAction::Penalize(seconds) => add(seconds, penalty_author()),
            NodeAction::Unblock => drop(self.list.remove(subject, START)),
            NodeAction::PublishAndFetch => {
                self.publish(store, usize::MAX);
                store.send_list(&self.list);
            }
        }
        for change in self.feed.pending(usize::MAX, START) {
            if !made.contains(&change) {
                made.push(change);
            }
        }
    }
}

/// Calls `each` with every order in which the nodes can run their steps. An order is a list of node numbers.
fn for_each_interleaving(
    steps_left: &mut [usize],
    order: &mut Vec<usize>,
    each: &mut impl FnMut(&[usize]),
) {
    if steps_left.iter().all(|steps_left| *steps_left == 0) {
        return each(order);
    }
    for node in 0..steps_left.len() {
        if steps_left[node] > 0 {
            steps_left[node] -= 1;
            order.push(node);
            for_each_interleaving(steps_left, order, each);
            order.pop();
            steps_left[node] += 1;
        }
    }
}

/// Regression: the last change to arrive after a partition stayed, not the newest.
#[test]
fn every_interleaving_of_three_nodes_converges_to_the_newest_change() {
    use NodeAction::{Block, Penalize, PublishAndFetch, Unblock};
    let subject = BlockList::new(SECRET).client("user", "mallory").unwrap();
    let mut programs = Vec::new();
    for first in [Block(90), Unblock, Penalize(70)] {
        for second in [Block(20), Unblock, Penalize(95)] {
            for other in [Block(30), Unblock, Penalize(80)] {
                let third = [Block(99), Unblock][programs.len() % 2];
                let first = vec![first, PublishAndFetch, second, PublishAndFetch];
                programs.push([first, vec![other, PublishAndFetch], vec![third, PublishAndFetch]]);
            }
        }
    }
    for program in programs {
        let mut lengths = program.each_ref().map(Vec::len);
        for_each_interleaving(&mut lengths, &mut Vec::new(), &mut |order| {
            let (mut store, mut made) = (SharedStore::default(), Vec::new());
            let nodes = [Node::new(), Node::new(), Node::new()];
            // All nodes have the same block before the partition.
            store.send_list(&nodes[0].list);
            nodes[0].run_action(Block(60), &subject, &mut store, &mut made);
            let every_node_twice = || nodes.iter().chain(&nodes);
            every_node_twice()
                .for_each(|node| node.run_action(PublishAndFetch, &subject, &mut store, &mut made));
            let mut next_step = [0; 3];
            for node in order {
                let action = program[*node][next_step[*node]];
                next_step[*node] += 1;
                nodes[*node].run_action(action, &subject, &mut store, &mut made);
                if let PublishAndFetch = action {
                    let found_end = blocked_until(&nodes[*node].list, &subject);
                    assert_eq!(
                        found_end,
                        expected_end(&store.changes, &subject),
                        "{program:?} {order:?}"
                    );
                }
            }
            every_node_twice()
                .for_each(|node| node.run_action(PublishAndFetch, &subject, &mut store, &mut made));
            let expected = expected_end(&made, &subject);
            for node in &nodes {
                let found_end = blocked_until(&node.list, &subject);
                assert_eq!(found_end, expected, "{program:?} {order:?}\n{made:#?}");
            }
            assert_eq!(expected_end(&store.changes, &subject), expected);
        });
    }
}

#[derive(Clone, Debug)]
enum FleetMove {
    Act {
        node: usize,
        name: usize,
        action: NodeAction,
    },
    Publish {
        node: usize,
    },
    Fetch {
        node: usize,
    },
    /// Applies the fetched list, which may be stale.
    Apply {
        node: usize,
    },
    /// The store loses its data, and nodes restore it.
    LoseData,
}

fn moves() -> impl Strategy<Value = FleetMove> {
    let (node, name) = (0..3_usize, 0..4_usize);
    let action = prop_oneof![
        2 => (1_u64..1_000).prop_map(NodeAction::Block),
        1 => (1_u64..1_000).prop_map(NodeAction::Penalize),
        2 => Just(NodeAction::Unblock),
    ];
    prop_oneof![
        10 => (node.clone(), name, action)
            .prop_map(|(node, name, action)| FleetMove::Act { node, name, action }),
        6 => node.clone().prop_map(|node| FleetMove::Publish { node }),
        4 => node.clone().prop_map(|node| FleetMove::Fetch { node }),
        4 => node.prop_map(|node| FleetMove::Apply { node }),
        1 => Just(FleetMove::LoseData),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nodes_converge_to_the_newest_change_of_each_subject(
        moves in proptest::collection::vec(moves(), 1..60),
    ) {
        let nodes = [Node::new(), Node::new(), Node::new()];
        let (mut store, mut made) = (SharedStore::default(), Vec::new());
        let mut fetched = nodes.each_ref().map(|node| node.fetched.clone());
        nodes.iter().for_each(|node| store.send_list(&node.list));
        let names = ["a", "b", "c", "d"].map(|name| nodes[0].list.client("user", name).unwrap());
        for list_step in moves {
            match list_step {
                FleetMove::Act { node, name, action } => {
                    nodes[node].run_action(action, &names[name], &mut store, &mut made);
                }
                FleetMove::Publish { node } => nodes[node].publish(&mut store, 2),
                FleetMove::Fetch { node } => fetched[node] = store.clone(),
                FleetMove::Apply { node } => fetched[node].send_list(&nodes[node].list),
                FleetMove::LoseData => {
                    // A node that has fetched the latest version restores it.
                    let known = std::mem::take(&mut store.changes);
                    nodes.iter().for_each(|node| node.feed.republish());
                    store.publish(&known);
                }
            }
        }
        for node in nodes.iter().chain(&nodes) {
            node.publish(&mut store, usize::MAX);
            store.send_list(&node.list);
        }
        for node in &nodes {
            for name in &names {
                prop_assert_eq!(blocked_until(&node.list, name), expected_end(&made, name));
            }
        }
    }
}
