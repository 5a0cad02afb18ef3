//! Compares CL.THROTTLE with an exact model of the algorithm that redis-cell documents.

use std::borrow::Cow;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::{HeaderStyle, Span, Timestamp};
use tidegate_limiter::{Limiter, ManualClock, MemoryStore};
use tidegate_rules::RuleSet;
use tidegate_service::service::{Service, internal_rules};
use tidegate_service::store::AnyStore;
use tokio::runtime::{Builder, Runtime};

use crate::resp::reply::ReplyBuffer;
use crate::resp::throttle::{LimitCache, ThrottleCommand};

/// The state of one key: `count` requests per `period` seconds, and `max_burst` more at once.
///
/// Times are in microseconds times `count`, so that the emission interval, `period / count`, is a whole number.
struct GcraModel {
    max_burst: i128,
    count: i128,
    period: i128,
    /// The theoretical arrival time.
    arrival: i128,
}

impl GcraModel {
    /// Returns the five numbers of a reply: limited (1 or 0), limit, remaining, seconds until a retry (-1 if there is
    /// none), seconds until the bucket is full.
    fn throttle(&mut self, now: Timestamp, quantity: i128) -> [i128; 5] {
        let now = i128::from(now.as_micros()) * self.count;
        let interval = self.period * 1_000_000;
        let tolerance = interval * (self.max_burst + 1);
        let arrival = self.arrival.max(now);
        let next = arrival + interval * quantity;
        let limited = now < next - tolerance;
        let mut retry_after = -1;
        if limited {
            if interval * quantity <= tolerance {
                retry_after = self.seconds(next - tolerance - now);
            }
        } else {
            // A refund of more than was spent fills the bucket, and no more.
            self.arrival = next.max(now);
        }
        let reset_after = self.arrival.max(now) - now;
        let remaining = (tolerance - reset_after) / interval;
        let limit = self.max_burst + 1;
        [i128::from(limited), limit, remaining, retry_after, self.seconds(reset_after)]
    }

    /// Converts a duration to seconds, rounded up.
    fn seconds(&self, span: i128) -> i128 {
        let second = 1_000_000 * self.count;
        (span + second - 1) / second
    }
}

/// The implementation under test, on a manual clock.
struct TestService {
    time: ManualClock,
    service: Service,
    limits: LimitCache,
    runtime: Runtime,
}

impl TestService {
    fn new() -> Self {
        let time = ManualClock::default();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = RuleSet::default().with_internal(internal_rules().unwrap()).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        let service = Service::new(limiter, HeaderStyle::default());
        let runtime = Builder::new_current_thread().build().unwrap();
        Self { time, service, limits: LimitCache::default(), runtime }
    }

    /// Sends `CL.THROTTLE key max_burst count period quantity`, and returns the five numbers of the reply.
    fn throttle(&mut self, numbers: [i128; 4]) -> [i128; 5] {
        let words = numbers.map(|number| number.to_string());
        let words = ["CL.THROTTLE", "key"].into_iter().chain(words.iter().map(String::as_str));
        let arguments = words.map(|word| Cow::Borrowed(word.as_bytes())).collect();
        let throttle = ThrottleCommand::parse(&arguments, &mut self.limits).unwrap();
        let reply = self.runtime.block_on(throttle.decide(&self.service)).unwrap();
        let mut replies = ReplyBuffer::default();
        reply.write_throttle(&mut replies);
        let text = String::from_utf8(replies.as_bytes().to_vec()).unwrap();
        let numbers = text.split("\r\n:").skip(1).map(|number| number.trim().parse().unwrap());
        numbers.collect::<Vec<i128>>().try_into().unwrap()
    }
}

#[test]
fn documented_example_gets_the_documented_reply() {
    let mut service = TestService::new();
    assert_eq!(service.throttle([15, 30, 60, 1]), [0, 16, 15, -1, 2]);
}

#[test]
fn quantity_above_the_capacity_has_no_retry_after() {
    let mut service = TestService::new();
    assert_eq!(service.throttle([0, 1, 60, 2]), [1, 1, 1, -1, 0]);
    assert_eq!(service.throttle([0, 1, 60, 1]), [0, 1, 0, -1, 60]);
    assert_eq!(service.throttle([0, 1, 60, i128::from(i64::MAX)]), [1, 1, 0, -1, 60]);
}

#[test]
fn peek_is_never_limited() {
    let mut service = TestService::new();
    assert_eq!(service.throttle([0, 1, 60, 1]), [0, 1, 0, -1, 60]);
    assert_eq!(service.throttle([0, 1, 60, 0]), [0, 1, 0, -1, 60]);
    assert_eq!(service.throttle([0, 1, 60, 1]), [1, 1, 0, 60, 60]);
}

#[test]
fn refund_never_exceeds_the_amount_spent() {
    let mut service = TestService::new();
    assert_eq!(service.throttle([4, 1, 10, 3]), [0, 5, 2, -1, 30]);
    assert_eq!(service.throttle([4, 1, 10, -2]), [0, 5, 4, -1, 10]);
    assert_eq!(service.throttle([4, 1, 10, i128::from(i64::MIN)]), [0, 5, 5, -1, 0]);
    assert_eq!(service.throttle([4, 1, 10, 5]), [0, 5, 0, -1, 50]);
}

/// Generates a pause and a quantity: mostly within a few intervals, sometimes far outside.
fn step(max_quantity: i128) -> impl Strategy<Value = (u64, i128)> {
    let pause = prop_oneof![
        2 => Just(0),
        3 => 1..3_000_000u64,
        2 => 1..120_000_000u64,
        1 => 1..20_000_000_000u64,
    ];
    let quantity =
        prop_oneof![6 => Just(1), 2 => 0..=max_quantity + 2, 1 => -(max_quantity + 2)..=0];
    (pause, quantity)
}

/// Generates `max_burst`, `count` and `period`, and the steps of one key.
fn sequence() -> impl Strategy<Value = ([i128; 3], Vec<(u64, i128)>)> {
    let numbers = (0..30i128, 1..200i128, 1..200i128);
    numbers.prop_flat_map(|(max_burst, count, period)| {
        (Just([max_burst, count, period]), vec(step(max_burst + 1), 1..40))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn replies_match_the_documented_algorithm(
        ([max_burst, count, period], steps) in sequence(),
    ) {
        let mut model = GcraModel { max_burst, count, period, arrival: 0 };
        let mut service = TestService::new();
        for (pause, quantity) in steps {
            service.time.advance(Span::from_micros(pause));
            let expected = model.throttle(service.time.now(), quantity);
            let found = service.throttle([max_burst, count, period, quantity]);
            prop_assert_eq!(found, expected, "quantity {} after {} us", quantity, pause);
        }
    }
}
