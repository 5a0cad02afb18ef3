//! The clients with most requests and with most denials, over the last one to two minutes.
//!
//! Memory is bounded: each shard of threads has a fixed number of rows for each of a fixed number of rules. No check
//! waits: if a reader holds the lock of the shard, the check is not counted.

mod client;
mod recent_counts;
mod sampler;
mod sketch;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{Keyer, Request, Scope, Timestamp};
use tidegate_limiter::{BlockList, ChargeMode};
use tidegate_rules::Rule;

pub use self::client::{ClientIdentity, parse_client_id};
use self::recent_counts::RecentCounts;
use self::sampler::CheckSampler;
use crate::stats::shards;

/// The order of a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankBy {
    /// Checks that were charged or denied.
    Traffic,
    /// Checks that a rule denied, or would have in shadow.
    Denials,
}

/// A check of one rule, as input of the sketches.
#[derive(Clone, Copy, Debug)]
struct ObservedCheck {
    /// The number of the rule.
    number: usize,
    /// The keyed hash of the client. Clients can't predict it.
    key: u64,
    denied: bool,
    at: Timestamp,
}

/// Counters of clients, which keep the clients with the highest counts.
#[derive(Debug)]
pub struct TopClients {
    shards: Box<[RankingShard]>,
    scope: Scope,
    /// Checks that were not counted because of a concurrent read.
    missed: AtomicU64,
}

/// The counts of one shard of threads, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct RankingShard(Mutex<(CheckSampler, RecentCounts)>);

/// A check of one rule, with the request that names its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankedCheck<'a, 'q> {
    /// The number of the rule.
    pub(crate) number: usize,
    pub(crate) rule: &'a Rule,
    pub(crate) request: &'a Request<'q>,
    pub(crate) denied: bool,
}

/// The counts of the shard of this thread, which no other thread reads meanwhile.
pub(crate) struct LockedRanking<'t> {
    scope: &'t Scope,
    counts: MutexGuard<'t, (CheckSampler, RecentCounts)>,
}

impl LockedRanking<'_> {
    /// Returns the weight of the next check; `None` if it is not counted.
    #[inline]
    pub(crate) fn sample(&mut self, at: Timestamp) -> Option<u64> {
        self.counts.0.weight(at)
    }

    /// Counts a check with its weight.
    pub(crate) fn add(
        &mut self,
        check: RankedCheck<'_, '_>,
        at: Timestamp,
        weight: u64,
        blocks: &BlockList,
    ) {
        let RankedCheck { number, rule, request, denied } = check;
        // 64 bits of a key are enough: a sketch has some hundred clients.
        let key = self.scope.key(rule.parts(request)).as_u128() as u64;
        let client = || ClientIdentity::new(rule, request, blocks);
        self.counts.1.add(ObservedCheck { number, key, denied, at }, weight, client);
    }
}

/// A client of one rule, and its count.
#[derive(Clone, Debug)]
pub struct TopClient {
    /// The number of the rule.
    pub number: usize,
    /// The client.
    pub client: Arc<ClientIdentity>,
    /// The upper bound of its checks. Shards in which the client is too rare to have a row are not included.
    pub count: u64,
    /// The lower bound of its checks.
    pub at_least: u64,
}

impl TopClients {
    pub(crate) fn new() -> Self {
        let state = RandomState::new();
        let shard = |index| {
            let sampler = CheckSampler::new(state.hash_one(index));
            RankingShard(Mutex::new((sampler, RecentCounts::default())))
        };
        let mut seed = [0; 32];
        for (index, part) in seed.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *part = state.hash_one((index, "client")).to_le_bytes();
        }
        Self {
            shards: (0..shards::shard_count()).map(shard).collect(),
            scope: Keyer::Local { seed }.scope("top", []),
            missed: AtomicU64::new(0),
        }
    }

    /// Counts a check that a rule decided. `number` identifies the rule.
    pub(crate) fn record(
        &self,
        number: usize,
        rule: &Rule,
        request: &Request<'_>,
        denied: bool,
        at: Timestamp,
        blocks: &BlockList,
    ) {
        // A rule without `per` has no clients, and a peek is no traffic.
        if rule.per().is_empty() || ChargeMode::of_cost(request.costs()) == ChargeMode::Peek {
            return;
        }
        let Some(mut ranking) = self.lock(1) else { return };
        if let Some(weight) = ranking.sample(at) {
            ranking.add(RankedCheck { number, rule, request, denied }, at, weight, blocks);
        }
    }

    /// Locks the counts of this thread for so many checks. Returns `None` if a reader holds the lock; the checks are then
    /// not counted.
    #[inline]
    pub(crate) fn lock(&self, checks: usize) -> Option<LockedRanking<'_>> {
        let shard = self.shards.get(shards::current_shard());
        let counts = shard.and_then(|shard| shard.0.try_lock());
        if counts.is_none() {
            self.missed.fetch_add(checks as u64, Ordering::Relaxed);
        }
        Some(LockedRanking { scope: &self.scope, counts: counts? })
    }

    /// Returns the clients with the highest counts, of one rule or of all, at most `limit` of them.
    pub fn ranking(
        &self,
        by: RankBy,
        number: Option<usize>,
        limit: usize,
        at: Timestamp,
    ) -> Vec<TopClient> {
        let mut found: HashMap<(usize, u64), TopClient> = HashMap::new();
        for shard in &self.shards {
            let shard = shard.0.lock();
            for row in shard.1.rows(by, number, at) {
                let (number, client) = row.item;
                let ranked = found.entry((*number, row.key)).or_insert_with(|| {
                    let client = Arc::clone(client);
                    TopClient { number: *number, client, count: 0, at_least: 0 }
                });
                ranked.count = ranked.count.saturating_add(row.count);
                ranked.at_least = ranked.at_least.saturating_add(row.count - row.error);
            }
        }
        let mut ranked: Vec<TopClient> = found.into_values().collect();
        // Clients with equal counts are ordered by the lower bound, then by identity, so that the order is stable.
        ranked.sort_by(|one, other| {
            let key = |ranked: &TopClient| (ranked.count, ranked.at_least);
            key(other)
                .cmp(&key(one))
                .then_with(|| one.number.cmp(&other.number))
                .then_with(|| one.client.subject.cmp(&other.client.subject))
        });
        ranked.truncate(limit);
        ranked
    }

    /// Clears the counts of a rule, and of the rules that share its sketches.
    pub(crate) fn clear_rule(&self, number: usize) {
        for shard in &self.shards {
            shard.0.lock().1.clear_rule(number);
        }
    }

    /// Returns the start of the period that a ranking at `at` covers.
    pub fn period_start(at: Timestamp) -> Timestamp {
        recent_counts::period_start(at)
    }

    /// Returns the number of checks that were not counted because of a concurrent read.
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

    struct RankingFixture {
        rules: RuleSet,
        blocks: BlockList,
        top: TopClients,
    }

    impl RankingFixture {
        fn new() -> Self {
            let rules = RuleSet::parse("", RULES).unwrap();
            Self { rules, blocks: BlockList::new([7; 32]), top: TopClients::new() }
        }

        fn record(&self, number: usize, request: &Request<'_>, denied: bool, at: Timestamp) {
            self.top.record(number, &self.rules.rules()[number], request, denied, at, &self.blocks);
        }

        fn first(
            &self,
            by: RankBy,
            number: Option<usize>,
            at: Timestamp,
        ) -> Vec<(String, u64, u64)> {
            let first = self.top.ranking(by, number, 3, at).into_iter();
            first.map(|ranked| (ranked.client.id(), ranked.count, ranked.at_least)).collect()
        }
    }

    fn from(ip: &str) -> Request<'_> {
        Request::new().with("ip", ip).unwrap().with("api_key", "sk-live-1").unwrap()
    }

    #[test]
    fn traffic_and_denials_have_separate_rankings() {
        let (ranking, at) = (RankingFixture::new(), Timestamp::from_secs(60));
        for (ip, count, denied) in [("192.0.2.1", 5, 0), ("192.0.2.2", 9, 2), ("192.0.2.3", 3, 3)] {
            for index in 0..count {
                ranking.record(0, &from(ip), index < denied, at);
            }
        }
        ranking.record(1, &from("192.0.2.1"), false, at);
        let named = |ip: &str, count| (format!("{ip}/32"), count, count);
        assert_eq!(
            ranking.first(RankBy::Traffic, Some(0), at),
            [named("192.0.2.2", 9), named("192.0.2.1", 5), named("192.0.2.3", 3)]
        );
        assert_eq!(
            ranking.first(RankBy::Denials, None, at),
            [named("192.0.2.3", 3), named("192.0.2.2", 2)]
        );
        let [(id, 1, 1)] = &ranking.first(RankBy::Traffic, Some(1), at)[..] else {
            panic!("one client")
        };
        assert!(id.starts_with("api_key#"), "{id}");
        assert_eq!(ranking.first(RankBy::Traffic, None, at + Span::HOUR), []);
    }

    #[test]
    fn peeks_and_rules_without_clients_are_not_ranked() {
        let (ranking, at) = (RankingFixture::new(), Timestamp::from_secs(60));
        ranking.record(0, &from("192.0.2.1").cost(0), false, at);
        ranking.record(2, &from("192.0.2.1"), true, at);
        ranking.record(0, &Request::new(), true, at);
        assert_eq!(ranking.first(RankBy::Traffic, None, at), []);
    }

    #[test]
    fn counts_of_threads_are_summed() {
        let (ranking, at) = (RankingFixture::new(), Timestamp::from_secs(60));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..50).for_each(|_| ranking.record(0, &from("192.0.2.1"), false, at));
                });
            }
        });
        let [(_, count, at_least)] = ranking.first(RankBy::Traffic, None, at)[..] else {
            panic!("one client")
        };
        assert_eq!((count + ranking.top.missed(), count), (400, at_least));
    }

    #[test]
    fn busy_client_is_ranked_first_among_many_others() {
        let (ranking, at) = (RankingFixture::new(), Timestamp::from_secs(60));
        for index in 0..20_000_u32 {
            let light = std::net::Ipv4Addr::from(index + (10 << 24)).to_string();
            ranking.record(0, &from(&light), false, at);
            if index % 10 == 0 {
                ranking.record(0, &from("192.0.2.1"), false, at);
            }
        }
        let first = ranking.first(RankBy::Traffic, None, at);
        let (id, count, at_least) = &first[0];
        assert_eq!(id, "192.0.2.1/32");
        // Checks after the first thousand of a second are sampled, so the count is approximate.
        assert!((1_200..3_200).contains(count) && at_least <= count, "{first:?}");
    }
}
