//! The block list against a plain list of entries, alone and shared.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tidegate::block::{BlockError, BlockList, By, Change, Entry, Reason, Subject, What};
use tidegate::{Request, Span, Timestamp};

const START: Timestamp = Timestamp::from_secs(1_780_000_000);
const SECRET: [u8; 32] = [7; 32];

fn by_rule() -> By {
    By::Penalty { rule: "login".into() }
}

fn entry(subject: Subject, until: Timestamp, by: By) -> Entry {
    Entry { subject, until, reason: Reason::default(), by, added: START }
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
                    let by = if penalty { by_rule() } else { By::Operator };
                    let added = list.add(entry(subject(name), until, by), now);
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
                        .map(|(subject, (_, until))| entry(subject.clone(), *until, By::Operator));
                    list.replace_all(1, entries.collect(), now);
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
            list.add(entry(Subject::Network(network), until, By::Operator), START).unwrap();
            if !over {
                live.push(network);
            }
        }
        list.add(entry(list.client("user", "mallory").unwrap(), after(120), By::Operator), now).unwrap();
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
        list.add(entry(subject, after(60), By::Operator), START).unwrap();
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
        let refused = list.add(entry(subject, after(60), By::Operator), START);
        assert_eq!(refused, Err(BlockError::Everybody), "{name}");
    }
    let everybody = Subject::Network("::/0".parse().unwrap());
    list.replace_all(1, vec![entry(everybody, after(60), By::Operator)], START);
    assert!(list.is_empty());
}

#[test]
fn a_full_list_refuses_penalties_and_makes_room_for_operators() {
    let list = BlockList::with_max_entries(SECRET, 3);
    let user = |name: &str| list.client("user", name).unwrap();
    let add = |name: &str, seconds, by| list.add(entry(user(name), after(seconds), by), START);
    add("a", 30, By::Operator).unwrap();
    add("b", 50, by_rule()).unwrap();
    add("c", 40, by_rule()).unwrap();
    assert_eq!(add("d", 60, by_rule()), Err(BlockError::Full { most: 3 }));
    add("e", 10, By::Operator).unwrap();
    let on = |names: [&str; 3]| {
        let mut subjects = names.map(&user);
        subjects.sort();
        let entries = list.entries(START);
        assert_eq!(Vec::from_iter(entries.iter().map(|entry| &entry.subject)), subjects.each_ref());
    };
    on(["a", "b", "e"]);
    add("f", 10, By::Operator).unwrap();
    on(["a", "e", "f"]);
    assert_eq!(add("g", 10, By::Operator), Err(BlockError::Full { most: 3 }));
    // The same subject needs no more room.
    add("a", 90, By::Operator).unwrap();
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
        entry(user("a"), after(10), By::Operator),
        entry(user("b"), after(20), by_rule()),
        entry(user("c"), after(30), by_rule()),
    ];
    list.replace_all(1, entries, START);
    assert!(list.find(&Request::new().with("user", "b").unwrap(), START).is_none());
    assert_eq!((list.usage().entries, list.usage().refused), (2, 1));
}

#[test]
fn clients_are_looked_for_by_a_bounded_number_of_attributes() {
    let list = BlockList::new(SECRET);
    let add = |attribute: &str, value: &str| {
        let subject = list.client(attribute, value).unwrap();
        list.add(entry(subject, after(60), By::Operator), START)
    };
    for index in 0..BlockList::MAX_KINDS {
        add(&format!("header.{index}"), "x").unwrap();
    }
    assert_eq!(add("one-more", "x"), Err(BlockError::Kinds));
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
    list.add(entry(stays, after(60), By::Operator), START).unwrap();
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
                list.entries(START).iter().map(|e| (**e).clone()).collect(),
                START,
            );
            list.remove(&other, START).unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// What nodes share in these tests: the entries by their names, and a number that grows.
#[derive(Clone, Debug, Default)]
struct Shared {
    version: u64,
    entries: BTreeMap<String, Entry>,
}

impl Shared {
    fn publish(&mut self, changes: &[Change]) -> u64 {
        for change in changes {
            match &change.what {
                What::Add(entry) => {
                    self.entries.insert(entry.subject.to_string(), (**entry).clone());
                }
                What::Remove(subject) => drop(self.entries.remove(&subject.to_string())),
            }
        }
        self.version += 1;
        self.version
    }

    fn hand_out(&self, list: &BlockList) {
        list.replace_all(self.version, self.entries.values().cloned().collect(), START);
    }
}

#[test]
fn what_is_not_published_survives_every_list_from_the_store() {
    let list = Arc::new(BlockList::new(SECRET));
    let user = |name: &str| list.client("user", name).unwrap();
    list.add(entry(user("before"), after(60), By::Operator), START).unwrap();
    let outlet = list.share();
    let mut store = Shared::default();
    let old = store.clone();
    let names = |changes: &[Change]| changes.iter().map(|c| c.what.clone()).collect::<Vec<_>>();

    // Nothing is published: the store's empty list changes nothing.
    store.hand_out(&list);
    assert_eq!(list.usage().entries, 1);
    let changes = outlet.pending(10, START);
    assert_eq!(names(&changes), names(&outlet.pending(10, START)));
    let version = store.publish(&changes);
    // Published, but this list was handed out before.
    outlet.published(&changes, version);
    old.hand_out(&list);
    assert_eq!(list.usage().entries, 1);
    assert!(outlet.pending(10, START).is_empty());
    store.hand_out(&list);
    assert_eq!(list.usage().entries, 1);

    // A removal that is not published is not undone.
    list.remove(&user("before"), START).unwrap();
    store.hand_out(&list);
    assert!(list.is_empty());
    // The latest word about a subject is the one that counts, published or not.
    assert_eq!(outlet.pending(10, START).len(), 1);
    let removed = outlet.pending(10, START);
    list.add(entry(user("before"), after(80), By::Operator), START).unwrap();
    list.add(entry(user("before"), after(90), By::Operator), START).unwrap();
    assert_eq!(outlet.pending(10, START).len(), 1);
    let version = store.publish(&removed);
    outlet.published(&removed, version);
    store.hand_out(&list);
    assert_eq!(list.entries(START)[0].until, after(90));
    // What another node removed goes once nothing here says otherwise.
    let changes = outlet.pending(10, START);
    outlet.published(&changes, store.publish(&changes));
    store.hand_out(&list);
    store.entries.clear();
    store.version += 1;
    store.hand_out(&list);
    assert!(list.is_empty());
    // A longer block by somebody else is not cut short by a penalty of ours.
    list.add(entry(user("both"), after(10), by_rule()), START).unwrap();
    let longer = entry(user("both"), after(90), By::Operator);
    list.replace_all(store.version, vec![longer.clone()], START);
    assert_eq!(*list.entries(START)[0], longer);
    list.remove(&user("both"), START).unwrap();
    // And what is over by the time it could be published is not.
    list.add(entry(user("short"), after(1), By::Operator), START).unwrap();
    assert_eq!(outlet.pending(10, START).len(), 2);
    assert_eq!(outlet.pending(10, after(1)).len(), 1);
}

#[tokio::test]
async fn whoever_publishes_is_woken_by_a_change() {
    let list = Arc::new(BlockList::new(SECRET));
    let outlet = list.share();
    let waiting = tokio::spawn(async move {
        outlet.changed().await;
        outlet.pending(10, START).len()
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    let subject = list.client("user", "mallory").unwrap();
    list.add(entry(subject, after(60), By::Operator), START).unwrap();
    assert_eq!(waiting.await.unwrap(), 1);
}

#[derive(Clone, Debug)]
enum Move {
    Add {
        node: usize,
        name: usize,
        seconds: u64,
    },
    Remove {
        node: usize,
        name: usize,
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
}

fn moves() -> impl Strategy<Value = Move> {
    let (node, name) = (0..2_usize, 0..4_usize);
    prop_oneof![
        3 => (node.clone(), name.clone(), 1_u64..1_000)
            .prop_map(|(node, name, seconds)| Move::Add { node, name, seconds }),
        2 => (node.clone(), name).prop_map(|(node, name)| Move::Remove { node, name }),
        3 => node.clone().prop_map(|node| Move::Publish { node }),
        2 => node.clone().prop_map(|node| Move::Fetch { node }),
        2 => node.prop_map(|node| Move::Apply { node }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nodes_agree_in_the_end_and_never_lose_their_own_word(
        moves in proptest::collection::vec(moves(), 1..60),
    ) {
        let lists = [0, 1].map(|_| Arc::new(BlockList::new(SECRET)));
        let outlets = lists.each_ref().map(|list| list.share());
        let mut store = Shared::default();
        let mut fetched: [Shared; 2] = Default::default();
        // What each node said last and may not be in the store.
        let mut own: [BTreeMap<Subject, Option<Timestamp>>; 2] = Default::default();
        let subject = |name: usize| lists[0].client("user", &format!("user-{name}")).unwrap();
        for step in moves {
            match step {
                Move::Add { node, name, seconds } => {
                    let entry = entry(subject(name), after(seconds), By::Operator);
                    lists[node].add(entry, START).unwrap();
                    own[node].insert(subject(name), Some(after(seconds)));
                }
                Move::Remove { node, name } => {
                    if lists[node].remove(&subject(name), START).is_some() {
                        own[node].insert(subject(name), None);
                    }
                }
                Move::Publish { node } => {
                    let changes = outlets[node].pending(2, START);
                    let version = store.publish(&changes);
                    outlets[node].published(&changes, version);
                    for change in &changes {
                        match &change.what {
                            What::Add(entry) => drop(own[node].remove(&entry.subject)),
                            What::Remove(subject) => drop(own[node].remove(subject)),
                        }
                    }
                }
                Move::Fetch { node } => fetched[node] = store.clone(),
                Move::Apply { node } => fetched[node].hand_out(&lists[node]),
            }
            for (list, own) in lists.iter().zip(&own) {
                let entries = list.entries(START);
                for (subject, said) in own {
                    let there = entries.iter().find(|entry| entry.subject == *subject);
                    prop_assert_eq!(there.map(|entry| entry.until), *said);
                }
            }
        }
        for (list, outlet) in lists.iter().zip(&outlets) {
            let changes = outlet.pending(usize::MAX, START);
            outlet.published(&changes, store.publish(&changes));
            store.hand_out(list);
        }
        store.hand_out(&lists[0]);
        let mut stored: Vec<Entry> = store.entries.values().cloned().collect();
        stored.sort_by(|one, other| one.subject.cmp(&other.subject));
        for list in &lists {
            let entries: Vec<Entry> = list.entries(START).iter().map(|e| (**e).clone()).collect();
            prop_assert_eq!(&entries, &stored);
        }
    }
}
