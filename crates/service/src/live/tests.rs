use tidegate_api::CheckCounts;
use tidegate_core::{HeaderStyle, Request};
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleSet;

use super::*;
use crate::call::{Call, Protocol};

struct Scene {
    time: ManualClock,
    service: Arc<Service>,
    live: Arc<Live>,
}

impl Scene {
    /// A server that is watched, started in the middle of a second.
    fn start() -> Self {
        let time = ManualClock::starting_at(Timestamp::from_micros(1_000_400_000));
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = "rules: [{name: api, per: [user], limit: 20/d}, {name: idle, match: {a: b}, limit: 1/d}]";
        let rules = RuleSet::parse("", rules).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        let service = Arc::new(Service::new(limiter, HeaderStyle::default()));
        let live = Arc::new(Live::new(time.now()));
        tokio::spawn(Arc::clone(&live).watch(Arc::clone(&service)));
        Self { time, service, live }
    }

    async fn check(&self, times: usize) {
        for _ in 0..times {
            let request = Request::new().with("user", "a").unwrap();
            let call = Call { request, ..Call::default() };
            self.service.check(Protocol::Http, call).await.unwrap();
        }
    }

    /// Lets time pass, and the second that has ended be looked at.
    async fn pass(&self, span: Span) {
        let moments = || self.live.seen.lock().moments.back().map(|moment| moment.at);
        let before = moments();
        // Whoever waits for the clock has to wait before it moves.
        tokio::task::yield_now().await;
        self.time.advance(span);
        while moments() == before {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn what_came_in_a_second_is_told_with_it_and_once() {
    let scene = Scene::start();
    scene.check(15).await;
    scene.pass(Span::from_millis(600)).await;
    scene.check(7).await;
    let unknown = Call { rule: Some("nothing".into()), ..Call::default() };
    assert!(scene.service.check(Protocol::Grpc, unknown).await.is_err());
    scene.pass(Span::SECOND).await;
    scene.pass(Span::SECOND).await;
    let told: Vec<_> = scene.live.seconds(0);
    let checks: Vec<_> = told
        .iter()
        .map(|second| {
            let CheckCounts { allowed, denied, invalid, .. } = second.checks;
            (second.at, allowed, denied, invalid)
        })
        .collect();
    assert_eq!(checks, [(1_000, 15, 0, 0), (1_001, 5, 2, 1), (1_002, 0, 0, 0)]);
    // The clock stands still while something is checked.
    assert_eq!((told[0].p50_micros, told[0].p99_micros), (Some(6), Some(10)));
    assert_eq!((told[2].p50_micros, told[2].p99_micros), (None, None));
    let after: Vec<u64> = scene.live.seconds(1_001).iter().map(|second| second.at).collect();
    assert_eq!(after, [1_002]);
}

#[tokio::test]
async fn what_came_while_nobody_looked_counts_for_the_second_after() {
    let scene = Scene::start();
    scene.pass(Span::from_millis(600)).await;
    scene.check(3).await;
    scene.pass(Span::from_millis(3_500)).await;
    let told = scene.live.seconds(1_000);
    let told: Vec<_> = told.iter().map(|second| (second.at, second.checks.allowed)).collect();
    assert_eq!(told, [(1_003, 3)]);
}

#[tokio::test]
async fn rates_are_those_of_the_last_ten_seconds() {
    let scene = Scene::start();
    scene.check(4).await;
    scene.pass(Span::from_millis(600)).await;
    for _ in 0..5 {
        scene.check(1).await;
        scene.pass(Span::SECOND).await;
    }
    // Four in the 600 ms at the start, and one a second after it.
    let rate = |rule: &str| scene.live.rates()[rule].allowed;
    assert_eq!((rate("api"), rate("idle")), (1.6, 0.0));
    for _ in 0..6 {
        scene.pass(Span::SECOND).await;
    }
    assert_eq!(rate("api"), 0.4);
    assert_eq!(scene.live.rates()["api"].denied, 0.0);
}

#[test]
fn the_oldest_second_makes_room() {
    let live = Live::new(Timestamp::from_secs(1_000));
    for second in 1_001..=1_400 {
        let at = Timestamp::from_secs(second);
        live.look(Moment { at, sample: Sample::default(), calls: Vec::new() });
    }
    let told = live.seconds(0);
    assert_eq!((told.len(), told[0].at, told[SECONDS - 1].at), (SECONDS, 1_100, 1_399));
    assert_eq!(live.seen.lock().moments.len(), RATES + 1);
}

#[test]
fn calls_of_a_server_are_those_of_the_last_ten_seconds() {
    let live = Live::new(Timestamp::from_secs(1_000));
    let calls = |fast, slow| {
        let mut counts = [0; Latency::CLASSES];
        (counts[0], counts[6]) = (fast, slow);
        vec![("redis a".to_owned(), counts)]
    };
    for second in 1..=20 {
        let calls = if second < 15 { calls(1_000, 5_000) } else { calls(1_100, 5_000) };
        let at = Timestamp::from_secs(1_000 + second);
        live.look(Moment { at, sample: Sample::default(), calls });
    }
    let usual = CallTimes { p50_micros: Some(50), p99_micros: Some(99) };
    assert_eq!(live.calls("redis a"), usual);
    assert_eq!(live.calls("redis b"), CallTimes::default());
}
