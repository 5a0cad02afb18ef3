use tidegate_api::CheckCounts;
use tidegate_core::{HeaderStyle, Request};
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleSet;

use super::*;
use crate::call::{Call, Protocol};

struct LiveService {
    time: ManualClock,
    service: Arc<Service>,
    live: Arc<LiveHistory>,
}

impl LiveService {
    /// Starts a service and its history in the middle of a second.
    fn start() -> Self {
        let time = ManualClock::starting_at(Timestamp::from_micros(1_000_400_000));
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = "rules: [{name: api, per: [user], limit: 20/d}, {name: idle, match: {a: b}, limit: 1/d}]";
        let rules = RuleSet::parse("", rules).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
        let live = Arc::new(LiveHistory::new(time.now()));
        tokio::spawn(Arc::clone(&live).sample_every_second(Arc::clone(&service)));
        Self { time, service, live }
    }

    async fn check(&self, times: usize) {
        for _ in 0..times {
            let request = Request::new().with("user", "a").unwrap();
            let call = Call { request, ..Call::default() };
            self.service.check(Protocol::Http, call).await.unwrap();
        }
    }

    /// Advances the clock, and waits until the second that has ended is sampled.
    async fn pass(&self, span: Span) {
        let last_sample = || self.live.state.lock().samples.back().map(|sample| sample.at);
        let before = last_sample();
        // The sampling task has to wait for the clock before it moves.
        tokio::task::yield_now().await;
        self.time.advance(span);
        while last_sample() == before {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn checks_of_a_second_are_reported_once() {
    let service = LiveService::start();
    service.check(15).await;
    service.pass(Span::from_millis(600)).await;
    service.check(7).await;
    let unknown = Call { rule: Some("nothing".into()), ..Call::default() };
    assert!(service.service.check(Protocol::Grpc, unknown).await.is_err());
    service.pass(Span::SECOND).await;
    service.pass(Span::SECOND).await;
    let seconds: Vec<_> = service.live.seconds(0);
    let checks: Vec<_> = seconds
        .iter()
        .map(|second| {
            let CheckCounts { allowed, denied, invalid, .. } = second.checks;
            (second.at, allowed, denied, invalid)
        })
        .collect();
    assert_eq!(checks, [(1_000, 15, 0, 0), (1_001, 5, 2, 1), (1_002, 0, 0, 0)]);
    // The clock stands still during a check.
    assert_eq!((seconds[0].p50_micros, seconds[0].p99_micros), (Some(6), Some(10)));
    assert_eq!((seconds[2].p50_micros, seconds[2].p99_micros), (None, None));
    let after: Vec<u64> = service.live.seconds(1_001).iter().map(|second| second.at).collect();
    assert_eq!(after, [1_002]);
}

#[tokio::test]
async fn checks_of_a_missed_second_count_for_the_next_one() {
    let service = LiveService::start();
    service.pass(Span::from_millis(600)).await;
    service.check(3).await;
    service.pass(Span::from_millis(3_500)).await;
    let seconds = service.live.seconds(1_000);
    let seconds: Vec<_> = seconds.iter().map(|second| (second.at, second.checks.allowed)).collect();
    assert_eq!(seconds, [(1_003, 3)]);
}

#[tokio::test]
async fn rates_are_averaged_over_the_last_ten_seconds() {
    let service = LiveService::start();
    service.check(4).await;
    service.pass(Span::from_millis(600)).await;
    for _ in 0..5 {
        service.check(1).await;
        service.pass(Span::SECOND).await;
    }
    // Four checks in the first 600 ms, then one per second.
    let rate = |rule: &str| service.live.rates()[rule].allowed;
    assert_eq!((rate("api"), rate("idle")), (1.6, 0.0));
    for _ in 0..6 {
        service.pass(Span::SECOND).await;
    }
    assert_eq!(rate("api"), 0.4);
    assert_eq!(service.live.rates()["api"].denied, 0.0);
}

#[test]
fn oldest_second_is_evicted() {
    let live = LiveHistory::new(Timestamp::from_secs(1_000));
    for second in 1_001..=1_400 {
        let at = Timestamp::from_secs(second);
        live.add(TimedSample { at, counters: CounterSample::default(), calls: Vec::new() });
    }
    let seconds = live.seconds(0);
    let last = seconds[HISTORY_SECONDS - 1].at;
    assert_eq!((seconds.len(), seconds[0].at, last), (HISTORY_SECONDS, 1_100, 1_399));
    assert_eq!(live.state.lock().samples.len(), RATE_SECONDS + 1);
}

#[test]
fn redis_call_times_cover_the_last_ten_seconds() {
    let live = LiveHistory::new(Timestamp::from_secs(1_000));
    let calls = |fast, slow| {
        let mut counts = [0; Latency::CLASSES];
        (counts[0], counts[6]) = (fast, slow);
        vec![("redis a".to_owned(), counts)]
    };
    for second in 1..=20 {
        let calls = if second < 15 { calls(1_000, 5_000) } else { calls(1_100, 5_000) };
        let at = Timestamp::from_secs(1_000 + second);
        live.add(TimedSample { at, counters: CounterSample::default(), calls });
    }
    let usual = CallTimes { p50_micros: Some(50), p99_micros: Some(99) };
    assert_eq!(live.redis_call_times("redis a"), usual);
    assert_eq!(live.redis_call_times("redis b"), CallTimes::default());
}
