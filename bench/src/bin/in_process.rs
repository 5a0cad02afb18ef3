//! Decisions inside one process, compared with governor and throttlecrab.
//!
//! `cargo run --profile dist -p tidegate-bench --bin in_process [-- --quick]`
//!
//! 16-byte keys with a limit of 1000 per 60 s. Each round measures all contenders. A table contains the median, minimum and
//! maximum nanoseconds per decision and thread, and the median ratio to governor within the same round. Further tables: one
//! hot key under limits that admit every check, bytes per key and the longest call while the store grows, and the number of
//! admissions at a fixed instant.
#![allow(clippy::print_stdout, reason = "the tables are the result")]
#![allow(unsafe_code, reason = "a counting allocator has to implement an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant, SystemTime};

use governor::DefaultKeyedRateLimiter;
use throttlecrab::{PeriodicStore, RateLimiter};
use tidegate::{Clock, Limiter, ManualClock, PerKey, Quota};

type Key = [u8; 16];

const DEFAULT_LIMIT: u32 = 1000;

/// An amount per window, for every contender.
#[derive(Clone, Copy)]
struct Limit {
    amount: u32,
    window: Duration,
}

impl Limit {
    const DEFAULT: Self = Self { amount: DEFAULT_LIMIT, window: Duration::from_secs(60) };

    fn tidegate_quota(self) -> Quota {
        Quota::per(self.amount.into(), self.window.into())
    }

    fn governor_quota(self) -> governor::Quota {
        let amount = NonZeroU32::new(self.amount).expect("above zero");
        let each = self.window / self.amount;
        governor::Quota::with_period(each).expect("above zero").allow_burst(amount)
    }
}

/// An allocator that counts the allocated bytes.
struct CountingAllocator;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system allocator; only a counter is updated.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, and it is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, and it is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A rate limiter that several threads can use.
trait Contender: Sync {
    fn name(&self) -> &'static str;
    /// Checks each key once. Returns the number of admitted checks.
    fn check_all(&self, keys: &[Key]) -> usize;
}

struct Tidegate {
    name: &'static str,
    handle: PerKey,
    batch: Option<usize>,
}

impl Tidegate {
    fn new(name: &'static str, clock: Clock, batch: Option<usize>) -> Self {
        Self::with_limit(Limit::DEFAULT, name, clock, batch)
    }

    fn with_limit(limit: Limit, name: &'static str, clock: Clock, batch: Option<usize>) -> Self {
        let handle = Limiter::per_key_on(limit.tidegate_quota(), clock);
        Self { name, handle: handle.expect("the quota is valid"), batch }
    }
}

impl Contender for Tidegate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_all(&self, keys: &[Key]) -> usize {
        match self.batch {
            None => keys.iter().filter(|key| self.handle.check(key).is_allowed()).count(),
            Some(size) => {
                let batches = keys.chunks(size);
                batches
                    .map(|batch| {
                        let outcomes = self.handle.check_many(batch);
                        outcomes.iter().filter(|outcome| outcome.is_allowed()).count()
                    })
                    .sum()
            }
        }
    }
}

struct Governor(DefaultKeyedRateLimiter<Key>);

impl Governor {
    fn new() -> Self {
        Self::with_limit(Limit::DEFAULT)
    }

    fn with_limit(limit: Limit) -> Self {
        Self(governor::RateLimiter::keyed(limit.governor_quota()))
    }
}

impl Contender for Governor {
    fn name(&self) -> &'static str {
        "governor 0.10.4"
    }

    fn check_all(&self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}

/// throttlecrab behind a mutex, because its limiter requires exclusive access.
struct Throttlecrab<S: throttlecrab::Store> {
    name: &'static str,
    limiter: Mutex<RateLimiter<S>>,
}

impl<S: throttlecrab::Store + Send> Contender for Throttlecrab<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[allow(clippy::disallowed_methods, reason = "its interface takes the current time")]
    fn check_all(&self, keys: &[Key]) -> usize {
        let admitted = keys.iter().filter(|key| {
            let text = std::str::from_utf8(&key[..]).unwrap_or_default();
            let mut limiter = self.limiter.lock().expect("no thread panics while holding the lock");
            let answer = limiter.rate_limit(
                text,
                DEFAULT_LIMIT.into(),
                DEFAULT_LIMIT.into(),
                60,
                1,
                SystemTime::now(),
            );
            answer.is_ok_and(|(allowed, _)| allowed)
        });
        admitted.count()
    }
}

/// Returns the contenders with limits that can admit every check of a tight loop.
fn hot_contenders(limit: Limit) -> Vec<Box<dyn Contender>> {
    let cached = || Clock::cached(Duration::from_millis(1));
    let tidegate = |name, clock, batch| Box::new(Tidegate::with_limit(limit, name, clock, batch));
    vec![
        Box::new(Governor::with_limit(limit)),
        tidegate("tidegate, clock read each time", Clock::system(), None),
        tidegate("tidegate, cached clock", cached(), None),
        tidegate("tidegate, batches of 16", Clock::system(), Some(16)),
    ]
}

fn contenders() -> Vec<Box<dyn Contender>> {
    let cached = || Clock::cached(Duration::from_millis(1));
    vec![
        Box::new(Governor::new()),
        Box::new(Throttlecrab {
            name: "throttlecrab 0.4.40, periodic",
            limiter: Mutex::new(RateLimiter::new(PeriodicStore::new())),
        }),
        Box::new(Tidegate::new("tidegate, clock read each time", Clock::system(), None)),
        Box::new(Tidegate::new("tidegate, cached clock", cached(), None)),
        Box::new(Tidegate::new("tidegate, batches of 16", Clock::system(), Some(16))),
        Box::new(Tidegate::new("tidegate, batches of 256", Clock::system(), Some(256))),
    ]
}

/// A seeded generator of uniform bits, so that runs are repeatable.
struct SeededBits(u64);

impl SeededBits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Returns the key with this number: 16 hexadecimal digits of its hash.
fn key(number: u64) -> Key {
    let mut text = [0; 16];
    let spread = SeededBits(number).next();
    for (index, byte) in text.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[((spread >> (60 - 4 * index)) & 15) as usize];
    }
    text
}

fn uniform(keys: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut bits = SeededBits(seed);
    (0..count).map(|_| key(bits.next() % keys)).collect()
}

/// Draws keys by a Zipf distribution: key number n has a frequency proportional to 1 / n.
fn zipf(keys: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut bits = SeededBits(seed);
    let draw = |bits: &mut SeededBits| bits.next() as f64 / u64::MAX as f64 * sum;
    (0..count)
        .map(|_| {
            let drawn = draw(&mut bits);
            key(cumulated.partition_point(|reached| *reached < drawn) as u64)
        })
        .collect()
}

/// Returns the nanoseconds per decision and thread while every thread checks its own keys.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn measure(contender: &dyn Contender, threads: &[Vec<Key>]) -> f64 {
    let barrier = Barrier::new(threads.len());
    let times: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .iter()
            .map(|keys| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    black_box(contender.check_all(keys));
                    start.elapsed().as_nanos() as f64 / keys.len() as f64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

fn spread(mut costs: Vec<f64>) -> (f64, f64, f64) {
    costs.sort_by(f64::total_cmp);
    (costs[costs.len() / 2], costs[0], costs[costs.len() - 1])
}

type Workload<'a> = (&'a str, Vec<Vec<Key>>);

fn print_comparison(
    title: &str,
    contenders: &[Box<dyn Contender>],
    rounds: usize,
    workloads: &[Workload<'_>],
    warm: &[Key],
) {
    println!(
        "\n{title}\nns per decision and thread: median (min to max); x: governor's time / this time"
    );
    for contender in contenders {
        contender.check_all(warm);
    }
    for (workload, threads) in workloads {
        let mut costs = vec![Vec::new(); contenders.len()];
        for _ in 0..rounds {
            for (contender, costs) in contenders.iter().zip(&mut costs) {
                costs.push(measure(&**contender, threads));
            }
        }
        println!("  {workload}");
        for (contender, own) in contenders.iter().zip(&costs) {
            let ratios = own.iter().zip(&costs[0]).map(|(own, base)| base / own).collect();
            let (ratio, _, _) = spread(ratios);
            let (median, min, max) = spread(own.clone());
            println!(
                "    {:32} {median:7.1} ({min:.1} to {max:.1})  {ratio:5.2}x",
                contender.name()
            );
        }
    }
}

/// Prints the bytes per key for `count` keys, and the longest call while they were added.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn print_growth(name: &str, count: u64, mut check: impl FnMut(&Key)) {
    let before = LIVE_BYTES.load(Ordering::Relaxed);
    let (mut longest, mut over, start) = (Duration::ZERO, 0u32, Instant::now());
    let mut last = start;
    for number in 0..count {
        check(&key(number));
        let now = Instant::now();
        let elapsed = now - last;
        longest = longest.max(elapsed);
        over += u32::from(elapsed > Duration::from_millis(1));
        last = now;
    }
    let bytes = (LIVE_BYTES.load(Ordering::Relaxed) - before) as f64 / count as f64;
    println!(
        "    {name:32} {count:>9} keys: {bytes:6.1} bytes per key, longest call {:7.0} us, {over} over 1 ms, {:.1} s in all",
        longest.as_nanos() as f64 / 1e3,
        start.elapsed().as_secs_f64()
    );
}

fn print_memory(sizes: &[u64]) {
    println!("\nGrowth of an empty store, one new key per call");
    for &size in sizes {
        // The clock does not advance, so that no key expires.
        let tidegate = Tidegate::new("tidegate", ManualClock::default().clock(), None);
        print_growth("tidegate", size, |key| {
            black_box(tidegate.handle.check(key));
        });
        drop(tidegate);
        let governor = Governor::new();
        print_growth("governor 0.10.4", size, |key| {
            let _ = black_box(governor.0.check_key(key));
        });
        drop(governor);
        let crab = Throttlecrab {
            name: "throttlecrab 0.4.40, periodic",
            limiter: Mutex::new(RateLimiter::new(PeriodicStore::new())),
        };
        print_growth("throttlecrab 0.4.40, periodic", size, |key| {
            crab.check_all(std::slice::from_ref(key));
        });
    }
}

/// Prints the admissions of one key by two threads at a fixed instant, and their bound.
fn print_exactness() {
    let time = ManualClock::default();
    let tidegate = Tidegate::new("tidegate", time.clock(), None);
    let keys = vec![key(1); 100_000];
    let admitted = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| tidegate.check_all(&keys))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).sum::<usize>()
    });
    println!(
        "\nOne key, two threads, at a fixed instant: {admitted} admitted of 200000, bound {DEFAULT_LIMIT}"
    );
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, checks) = if quick { (5, 500_000) } else { (9, 2_000_000) };
    let million = 1_000_000;
    let warm: Vec<Key> = (0..million).map(key).collect();
    let two = |make: &dyn Fn(u64) -> Vec<Key>| vec![make(1), make(2)];
    let hot = |_| vec![key(7); checks];
    let workloads = [
        ("uniform, 1 thread", vec![uniform(million, checks, 1)]),
        ("uniform, 2 threads", two(&|seed| uniform(million, checks, seed))),
        ("Zipf, 1 thread", vec![zipf(million, checks, 1)]),
        ("Zipf, 2 threads", two(&|seed| zipf(million, checks, seed))),
        ("one hot key, 1 thread", vec![hot(1)]),
        ("one hot key, 2 threads", two(&hot)),
    ];
    print_comparison("1,000,000 keys", &contenders(), rounds, &workloads, &warm);
    let hot = [("1 thread", vec![hot(1)]), ("2 threads", two(&hot))];
    for (title, limit) in [
        ("One hot key, 10^9 per hour: spent faster than it refills", 3_600),
        ("One hot key, 10^9 per second: refilled faster than it is spent", 1),
    ] {
        let limit = Limit { amount: 1_000_000_000, window: Duration::from_secs(limit) };
        print_comparison(title, &hot_contenders(limit), rounds, &hot, &[key(7)]);
    }
    print_exactness();
    print_memory(if quick { &[1_000_000] } else { &[1_000_000, 10_000_000] });
}
