//! Who comes most, and who is denied most, over the last minute or two.
//!
//! Bounded: a fixed number of rows for each of some rules, per group of threads. No check waits for
//! another: threads have sketches of their own, and one that meets a reader passes its check over.

mod client;
mod recent;
mod sampling;
mod sketch;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Keyer, Request, Scope, Timestamp};
use tidegate_limiter::{BlockList, ChargeMode};
use tidegate_rules::Rule;

pub use self::client::{Client, subject_of};
use self::recent::Recent;
use self::sampling::Sampling;
use crate::stats::shards;

/// What clients are put in order by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Checks that were charged or denied.
    Traffic,
    /// Checks that a rule denied, or would have in shadow.
    Denials,
}

/// A check as the sketches see it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Which rule counts it.
    place: usize,
    /// Which client, as a number nobody outside can foresee.
    key: u64,
    denied: bool,
    at: Timestamp,
}

/// Counts who comes, and keeps those who come most.
#[derive(Debug)]
pub struct Top {
    shards: Box<[Shard]>,
    scope: Scope,
    /// Checks that were not counted because somebody was looking.
    missed: AtomicU64,
}

/// What the threads of one place have seen, on cache lines of their own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard(Mutex<(Sampling, Recent)>);

/// A client and how often it came.
#[derive(Clone, Debug)]
pub struct Ranked {
    /// The rule that counts it.
    pub place: usize,
    /// The client.
    pub client: Arc<Client>,
    /// Never less than it came, except for what some threads saw too little of to keep.
    pub count: u64,
    /// Never more than it came.
    pub at_least: u64,
}

impl Top {
    pub(crate) fn new() -> Self {
        let state = RandomState::new();
        let shard = |place| {
            Shard(Mutex::new((Sampling::starting(state.hash_one(place)), Recent::default())))
        };
        let mut seed = [0; 32];
        for (index, part) in seed.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *part = state.hash_one((index, "client")).to_le_bytes();
        }
        Self {
            shards: (0..shards::places()).map(shard).collect(),
            scope: Keyer::Local { seed }.scope("top", []),
            missed: AtomicU64::new(0),
        }
    }

    /// Counts a check that a rule answered; `place` is any number of the rule's own.
    pub(crate) fn note(
        &self,
        place: usize,
        rule: &Rule,
        request: &Request<'_>,
        denied: bool,
        at: Timestamp,
        blocks: &BlockList,
    ) {
        // One bucket for all is nobody's, and a peek is no traffic.
        if rule.per().is_empty() || ChargeMode::of_cost(request.costs()) == ChargeMode::Peek {
            return;
        }
        let shard = self.shards.get(shards::place()).and_then(|shard| shard.0.try_lock());
        let Some(mut shard) = shard else {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let (sampling, recent) = &mut *shard;
        let Some(weight) = sampling.weight(at) else { return };
        // Half of a key is plenty to tell some hundred clients apart.
        let key = self.scope.key(rule.parts(request)).as_u128() as u64;
        let client = || Client::of(rule, request, blocks);
        recent.add(Seen { place, key, denied, at }, weight, client);
    }

    /// The clients of a rule, or of all rules, that come first, at most so many.
    pub fn first(&self, by: By, place: Option<usize>, limit: usize, at: Timestamp) -> Vec<Ranked> {
        let mut found: HashMap<(usize, u64), Ranked> = HashMap::new();
        for shard in &self.shards {
            let shard = shard.0.lock();
            for row in shard.1.rows(by, place, at) {
                let (place, client) = row.item;
                let ranked = found.entry((*place, row.key)).or_insert_with(|| {
                    let client = Arc::clone(client);
                    Ranked { place: *place, client, count: 0, at_least: 0 }
                });
                ranked.count = ranked.count.saturating_add(row.count);
                ranked.at_least = ranked.at_least.saturating_add(row.count - row.error);
            }
        }
        let mut ranked: Vec<Ranked> = found.into_values().collect();
        // Of equals the surer one; then by name, so that two looks agree.
        ranked.sort_by(|one, other| {
            let key = |ranked: &Ranked| (ranked.count, ranked.at_least);
            key(other)
                .cmp(&key(one))
                .then_with(|| one.place.cmp(&other.place))
                .then_with(|| one.client.subject.cmp(&other.client.subject))
        });
        ranked.truncate(limit);
        ranked
    }

    /// Forgets what was seen of a rule's number, and of those that share its rows.
    pub(crate) fn forget(&self, place: usize) {
        for shard in &self.shards {
            shard.0.lock().1.forget(place);
        }
    }

    /// From when on what is shown at `at` was counted.
    pub fn since(at: Timestamp) -> Timestamp {
        recent::since(at)
    }

    /// How many checks were passed over because somebody was looking.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Span;
    use tidegate_rules::RuleSet;

    use super::*;

    const RULES: &str = "
rules:
  - {name: per-ip, per: [ip], limit: 10/s}
  - {name: per-key, per: [api_key], limit: 10/s}
  - {name: all, limit: 10/s}
";

    struct Scene {
        rules: RuleSet,
        blocks: BlockList,
        top: Top,
    }

    impl Scene {
        fn new() -> Self {
            let rules = RuleSet::parse("", RULES).unwrap();
            Self { rules, blocks: BlockList::new([7; 32]), top: Top::new() }
        }

        fn note(&self, place: usize, request: &Request<'_>, denied: bool, at: Timestamp) {
            self.top.note(place, &self.rules.rules()[place], request, denied, at, &self.blocks);
        }

        fn first(&self, by: By, place: Option<usize>, at: Timestamp) -> Vec<(String, u64, u64)> {
            let first = self.top.first(by, place, 3, at).into_iter();
            first.map(|ranked| (ranked.client.id(), ranked.count, ranked.at_least)).collect()
        }
    }

    fn from(ip: &str) -> Request<'_> {
        Request::new().with("ip", ip).unwrap().with("api_key", "sk-live-1").unwrap()
    }

    #[test]
    fn the_busiest_come_first_and_the_denied_apart() {
        let (scene, at) = (Scene::new(), Timestamp::from_secs(60));
        for (ip, count, denied) in [("192.0.2.1", 5, 0), ("192.0.2.2", 9, 2), ("192.0.2.3", 3, 3)] {
            for index in 0..count {
                scene.note(0, &from(ip), index < denied, at);
            }
        }
        scene.note(1, &from("192.0.2.1"), false, at);
        let named = |ip: &str, count| (format!("{ip}/32"), count, count);
        assert_eq!(
            scene.first(By::Traffic, Some(0), at),
            [named("192.0.2.2", 9), named("192.0.2.1", 5), named("192.0.2.3", 3)]
        );
        assert_eq!(
            scene.first(By::Denials, None, at),
            [named("192.0.2.3", 3), named("192.0.2.2", 2)]
        );
        let [(id, 1, 1)] = &scene.first(By::Traffic, Some(1), at)[..] else { panic!("one client") };
        assert!(id.starts_with("api_key#"), "{id}");
        assert_eq!(scene.first(By::Traffic, None, at + Span::HOUR), []);
    }

    #[test]
    fn looks_and_buckets_for_all_are_no_clients_traffic() {
        let (scene, at) = (Scene::new(), Timestamp::from_secs(60));
        scene.note(0, &from("192.0.2.1").cost(0), false, at);
        scene.note(2, &from("192.0.2.1"), true, at);
        scene.note(0, &Request::new(), true, at);
        assert_eq!(scene.first(By::Traffic, None, at), []);
    }

    #[test]
    fn threads_are_added_up() {
        let (scene, at) = (Scene::new(), Timestamp::from_secs(60));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..50).for_each(|_| scene.note(0, &from("192.0.2.1"), false, at)));
            }
        });
        let [(_, count, at_least)] = scene.first(By::Traffic, None, at)[..] else {
            panic!("one client")
        };
        assert_eq!((count + scene.top.missed(), count), (400, at_least));
    }

    #[test]
    fn a_heavy_client_is_found_among_many_light_ones() {
        let (scene, at) = (Scene::new(), Timestamp::from_secs(60));
        for index in 0..20_000_u32 {
            let light = std::net::Ipv4Addr::from(index + (10 << 24)).to_string();
            scene.note(0, &from(&light), false, at);
            if index % 10 == 0 {
                scene.note(0, &from("192.0.2.1"), false, at);
            }
        }
        let first = scene.first(By::Traffic, None, at);
        let (id, count, at_least) = &first[0];
        assert_eq!(id, "192.0.2.1/32");
        // Sampled beyond the first thousand, so near the truth and not it.
        assert!((1_200..3_200).contains(count) && at_least <= count, "{first:?}");
    }
}
