//! Decisions inside one process, beside governor and throttlecrab.
//!
//! `cargo run --profile dist -p tidegate-bench --bin in_process [-- --quick]`
//!
//! 16-byte keys, 1000 per 60 s. Contenders take turns within each round; a table gives the median,
//! least and most nanoseconds per decision and thread, and the median ratio to governor within the
//! same round. Then one hot key under limits that admit every time, bytes per key and the longest
//! single call while the table grows, and whether each contender admitted what its limit says.
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

const LIMIT: u32 = 1000;

/// An amount per window, for every contender.
#[derive(Clone, Copy)]
struct Limit {
    amount: u32,
    window: Duration,
}

impl Limit {
    const USUAL: Self = Self { amount: LIMIT, window: Duration::from_secs(60) };

    fn ours(self) -> Quota {
        Quota::per(self.amount.into(), self.window.into())
    }

    fn governors(self) -> governor::Quota {
        let amount = NonZeroU32::new(self.amount).expect("above zero");
        let each = self.window / self.amount;
        governor::Quota::with_period(each).expect("above zero").allow_burst(amount)
    }
}

/// Counts what is allocated and not yet freed.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; only a counter is kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, and it is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract, and it is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Something that can be asked for decisions from several threads.
trait Contender: Sync {
    fn name(&self) -> &'static str;
    /// Asks once for each key; how many were admitted.
    fn ask(&self, keys: &[Key]) -> usize;
}

struct Tidegate {
    name: &'static str,
    handle: PerKey,
    batch: Option<usize>,
}

impl Tidegate {
    fn new(name: &'static str, clock: Clock, batch: Option<usize>) -> Self {
        Self::under(Limit::USUAL, name, clock, batch)
    }

    fn under(limit: Limit, name: &'static str, clock: Clock, batch: Option<usize>) -> Self {
        let handle = Limiter::per_key_on(limit.ours(), clock);
        Self { name, handle: handle.expect("the quota is valid"), batch }
    }
}

impl Contender for Tidegate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn ask(&self, keys: &[Key]) -> usize {
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
        Self::under(Limit::USUAL)
    }

    fn under(limit: Limit) -> Self {
        Self(governor::RateLimiter::keyed(limit.governors()))
    }
}

impl Contender for Governor {
    fn name(&self) -> &'static str {
        "governor 0.10.4"
    }

    fn ask(&self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}

/// One thread at a time, as throttlecrab's limiter wants it.
struct Throttlecrab<S: throttlecrab::Store> {
    name: &'static str,
    limiter: Mutex<RateLimiter<S>>,
}

impl<S: throttlecrab::Store + Send> Contender for Throttlecrab<S> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[allow(clippy::disallowed_methods, reason = "its interface asks for the time")]
    fn ask(&self, keys: &[Key]) -> usize {
        let admitted = keys.iter().filter(|key| {
            let text = std::str::from_utf8(&key[..]).unwrap_or_default();
            let mut limiter = self.limiter.lock().expect("nobody panics holding it");
            let answer =
                limiter.rate_limit(text, LIMIT.into(), LIMIT.into(), 60, 1, SystemTime::now());
            answer.is_ok_and(|(allowed, _)| allowed)
        });
        admitted.count()
    }
}

/// Those that can admit one key at the pace of a tight loop.
fn hot_contenders(limit: Limit) -> Vec<Box<dyn Contender>> {
    let cached = || Clock::cached(Duration::from_millis(1));
    let ours = |name, clock, batch| Box::new(Tidegate::under(limit, name, clock, batch));
    vec![
        Box::new(Governor::under(limit)),
        ours("tidegate, clock read each time", Clock::system(), None),
        ours("tidegate, cached clock", cached(), None),
        ours("tidegate, batches of 16", Clock::system(), Some(16)),
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

/// A small generator of even bits, so that runs repeat.
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The text of a key number, 16 hexadecimal digits of a spread-out number.
fn key(number: u64) -> Key {
    let mut text = [0; 16];
    let spread = Bits(number).next();
    for (index, byte) in text.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[((spread >> (60 - 4 * index)) & 15) as usize];
    }
    text
}

fn uniform(keys: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut bits = Bits(seed);
    (0..count).map(|_| key(bits.next() % keys)).collect()
}

/// Key number n comes up in proportion to 1 / n.
fn zipf(keys: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut bits = Bits(seed);
    let draw = |bits: &mut Bits| bits.next() as f64 / u64::MAX as f64 * sum;
    (0..count)
        .map(|_| {
            let drawn = draw(&mut bits);
            key(cumulated.partition_point(|reached| *reached < drawn) as u64)
        })
        .collect()
}

/// Nanoseconds per decision and thread while every thread asks for its own keys.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn turn(contender: &dyn Contender, threads: &[Vec<Key>]) -> f64 {
    let barrier = Barrier::new(threads.len());
    let spent: Vec<f64> = std::thread::scope(|scope| {
        let workers: Vec<_> = threads
            .iter()
            .map(|keys| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    black_box(contender.ask(keys));
                    start.elapsed().as_nanos() as f64 / keys.len() as f64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).collect()
    });
    spent.iter().sum::<f64>() / spent.len() as f64
}

fn spread(mut costs: Vec<f64>) -> (f64, f64, f64) {
    costs.sort_by(f64::total_cmp);
    (costs[costs.len() / 2], costs[0], costs[costs.len() - 1])
}

type Workload<'a> = (&'a str, Vec<Vec<Key>>);

fn compare(
    title: &str,
    contenders: &[Box<dyn Contender>],
    rounds: usize,
    workloads: &[Workload<'_>],
    warm: &[Key],
) {
    println!(
        "\n{title}\nns per decision and thread: median (least to most); x: governor's time / ours"
    );
    for contender in contenders {
        contender.ask(warm);
    }
    for (workload, threads) in workloads {
        let mut costs = vec![Vec::new(); contenders.len()];
        for _ in 0..rounds {
            for (contender, costs) in contenders.iter().zip(&mut costs) {
                costs.push(turn(&**contender, threads));
            }
        }
        println!("  {workload}");
        for (contender, own) in contenders.iter().zip(&costs) {
            let ratios = own.iter().zip(&costs[0]).map(|(own, base)| base / own).collect();
            let (ratio, _, _) = spread(ratios);
            let (median, least, most) = spread(own.clone());
            println!(
                "    {:32} {median:7.1} ({least:.1} to {most:.1})  {ratio:5.2}x",
                contender.name()
            );
        }
    }
}

/// Bytes per key with `count` keys, and the longest single call on the way there.
#[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
fn growth(name: &str, count: u64, mut ask: impl FnMut(&Key)) {
    let before = LIVE.load(Ordering::Relaxed);
    let (mut longest, mut over, start) = (Duration::ZERO, 0u32, Instant::now());
    let mut last = start;
    for number in 0..count {
        ask(&key(number));
        let now = Instant::now();
        let took = now - last;
        longest = longest.max(took);
        over += u32::from(took > Duration::from_millis(1));
        last = now;
    }
    let bytes = (LIVE.load(Ordering::Relaxed) - before) as f64 / count as f64;
    println!(
        "    {name:32} {count:>9} keys: {bytes:6.1} bytes per key, longest call {:7.0} us, {over} over 1 ms, {:.1} s in all",
        longest.as_nanos() as f64 / 1e3,
        start.elapsed().as_secs_f64()
    );
}

fn memory(sizes: &[u64]) {
    println!("\nGrowing from nothing, one new key per call");
    for &size in sizes {
        // Time stands still, so that no key expires on the way.
        let ours = Tidegate::new("tidegate", ManualClock::default().clock(), None);
        growth("tidegate", size, |key| {
            black_box(ours.handle.check(key));
        });
        drop(ours);
        let governor = Governor::new();
        growth("governor 0.10.4", size, |key| {
            let _ = black_box(governor.0.check_key(key));
        });
        drop(governor);
        let crab = Throttlecrab {
            name: "throttlecrab 0.4.40, periodic",
            limiter: Mutex::new(RateLimiter::new(PeriodicStore::new())),
        };
        growth("throttlecrab 0.4.40, periodic", size, |key| {
            crab.ask(std::slice::from_ref(key));
        });
    }
}

/// What a frozen clock must admit of one key, and what it did.
fn exactness() {
    let time = ManualClock::default();
    let ours = Tidegate::new("tidegate", time.clock(), None);
    let keys = vec![key(1); 100_000];
    let admitted = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| ours.ask(&keys))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).sum::<usize>()
    });
    println!(
        "\nOne key, two threads, time standing still: {admitted} admitted of 200000, bound {LIMIT}"
    );
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, asks) = if quick { (5, 500_000) } else { (9, 2_000_000) };
    let million = 1_000_000;
    let warm: Vec<Key> = (0..million).map(key).collect();
    let two = |make: &dyn Fn(u64) -> Vec<Key>| vec![make(1), make(2)];
    let hot = |_| vec![key(7); asks];
    let workloads = [
        ("uniform, 1 thread", vec![uniform(million, asks, 1)]),
        ("uniform, 2 threads", two(&|seed| uniform(million, asks, seed))),
        ("Zipf, 1 thread", vec![zipf(million, asks, 1)]),
        ("Zipf, 2 threads", two(&|seed| zipf(million, asks, seed))),
        ("one hot key, 1 thread", vec![hot(1)]),
        ("one hot key, 2 threads", two(&hot)),
    ];
    compare("1,000,000 keys", &contenders(), rounds, &workloads, &warm);
    let hot = [("1 thread", vec![hot(1)]), ("2 threads", two(&hot))];
    for (title, limit) in [
        ("One hot key, 10^9 per hour: spent faster than it refills", 3_600),
        ("One hot key, 10^9 per second: refilled faster than it is spent", 1),
    ] {
        let limit = Limit { amount: 1_000_000_000, window: Duration::from_secs(limit) };
        compare(title, &hot_contenders(limit), rounds, &hot, &[key(7)]);
    }
    exactness();
    memory(if quick { &[1_000_000] } else { &[1_000_000, 10_000_000] });
}
