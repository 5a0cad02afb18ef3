//! CL.THROTTLE as redis-cell publishes it, computed naively and exactly, and ours beside it.

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

use super::super::reply::Replies;
use super::{Limits, Throttle};

/// One key. Times are microseconds times `count`, in which an emission interval is whole.
struct Model {
    max_burst: i128,
    count: i128,
    period: i128,
    /// The theoretical arrival time.
    arrival: i128,
}

impl Model {
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
            // Whoever gives back more than was taken has a full bucket, not a fuller one.
            self.arrival = next.max(now);
        }
        let wait = self.arrival.max(now) - now;
        let remaining = (tolerance - wait) / interval;
        let limit = self.max_burst + 1;
        [i128::from(limited), limit, remaining, retry_after, self.seconds(wait)]
    }

    /// Rounded up.
    fn seconds(&self, span: i128) -> i128 {
        let second = 1_000_000 * self.count;
        (span + second - 1) / second
    }
}

/// The real thing, on a clock of its own.
struct Subject {
    time: ManualClock,
    service: Service,
    limits: Limits,
    runtime: Runtime,
}

impl Subject {
    fn new() -> Self {
        let time = ManualClock::default();
        let store = Arc::new(AnyStore::Memory(Arc::new(MemoryStore::new(time.clock()))));
        let rules = RuleSet::default().with_internal(internal_rules().unwrap()).unwrap();
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).store(store).build();
        let service = Service::new(limiter, HeaderStyle::default());
        let runtime = Builder::new_current_thread().build().unwrap();
        Self { time, service, limits: Limits::default(), runtime }
    }

    fn throttle(&mut self, numbers: [i128; 4]) -> [i128; 5] {
        let words = numbers.map(|number| number.to_string());
        let words = ["CL.THROTTLE", "key"].into_iter().chain(words.iter().map(String::as_str));
        let mut arguments = words.map(|word| Cow::Borrowed(word.as_bytes())).collect();
        let throttle = Throttle::read(&mut arguments, &mut self.limits).unwrap();
        let standing = self.runtime.block_on(throttle.decide(&self.service)).unwrap();
        let mut replies = Replies::default();
        standing.write_five(&mut replies);
        let text = String::from_utf8(replies.as_bytes().to_vec()).unwrap();
        let numbers = text.split("\r\n:").skip(1).map(|number| number.trim().parse().unwrap());
        numbers.collect::<Vec<i128>>().try_into().unwrap()
    }
}

#[test]
fn the_documented_example_gets_the_documented_answer() {
    let mut subject = Subject::new();
    assert_eq!(subject.throttle([15, 30, 60, 1]), [0, 16, 15, -1, 2]);
}

#[test]
fn a_quantity_that_never_fits_is_told_no_time_to_come_back() {
    let mut subject = Subject::new();
    assert_eq!(subject.throttle([0, 1, 60, 2]), [1, 1, 1, -1, 0]);
    assert_eq!(subject.throttle([0, 1, 60, 1]), [0, 1, 0, -1, 60]);
    assert_eq!(subject.throttle([0, 1, 60, i128::from(i64::MAX)]), [1, 1, 0, -1, 60]);
}

#[test]
fn who_only_looks_is_never_limited() {
    let mut subject = Subject::new();
    assert_eq!(subject.throttle([0, 1, 60, 1]), [0, 1, 0, -1, 60]);
    assert_eq!(subject.throttle([0, 1, 60, 0]), [0, 1, 0, -1, 60]);
    assert_eq!(subject.throttle([0, 1, 60, 1]), [1, 1, 0, 60, 60]);
}

#[test]
fn nobody_gets_back_more_than_was_taken() {
    let mut subject = Subject::new();
    assert_eq!(subject.throttle([4, 1, 10, 3]), [0, 5, 2, -1, 30]);
    assert_eq!(subject.throttle([4, 1, 10, -2]), [0, 5, 4, -1, 10]);
    assert_eq!(subject.throttle([4, 1, 10, i128::from(i64::MIN)]), [0, 5, 5, -1, 0]);
    assert_eq!(subject.throttle([4, 1, 10, 5]), [0, 5, 0, -1, 50]);
}

/// Mostly what comes within a few intervals, sometimes far more, sometimes nothing.
fn step(most: i128) -> impl Strategy<Value = (u64, i128)> {
    let pause = prop_oneof![
        2 => Just(0),
        3 => 1..3_000_000u64,
        2 => 1..120_000_000u64,
        1 => 1..20_000_000_000u64,
    ];
    let quantity = prop_oneof![6 => Just(1), 2 => 0..=most + 2, 1 => -(most + 2)..=0];
    (pause, quantity)
}

fn sequence() -> impl Strategy<Value = ([i128; 3], Vec<(u64, i128)>)> {
    let numbers = (0..30i128, 1..200i128, 1..200i128);
    numbers.prop_flat_map(|(max_burst, count, period)| {
        (Just([max_burst, count, period]), vec(step(max_burst + 1), 1..40))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_field_is_the_published_one_whatever_comes(
        ([max_burst, count, period], steps) in sequence(),
    ) {
        let mut model = Model { max_burst, count, period, arrival: 0 };
        let mut subject = Subject::new();
        for (pause, quantity) in steps {
            subject.time.advance(Span::from_micros(pause));
            let expected = model.throttle(subject.time.now(), quantity);
            let found = subject.throttle([max_burst, count, period, quantity]);
            prop_assert_eq!(found, expected, "quantity {} after {} us", quantity, pause);
        }
    }
}
