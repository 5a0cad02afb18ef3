//! Decisions inside one process, compared with governor, throttlecrab, limitador and the bare table.
//!
//! `cargo run --profile dist -p tidegate-bench --bin in_process [-- --quick]`
//!
//! 16-byte keys with a limit of 1000 per 60 s. Each round measures all contenders. The tables contain nanoseconds per decision
//! and thread, and ratios within the same round. Further tables: one hot key under limits that admit every check, bytes per
//! key and the longest call while the store grows, and the number of admissions at a fixed instant.
#![allow(unsafe_code, reason = "a counting allocator has to implement an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::{ManualClock, PerKey};
use tidegate_bench::chart::BarChart;
use tidegate_bench::contender::{
    BareTableContender, Contender, ContenderLimit, Governor, Throttlecrab, Tidegate,
};
use tidegate_bench::keys::{Key, key, uniform, zipf};
use tidegate_bench::limitador::Limitador;
use tidegate_bench::measure::{self, progress};
use tidegate_bench::results::record_goal;
use tidegate_bench::table::{Spread, Table};

const LIMIT: ContenderLimit = ContenderLimit::DEFAULT;
const MILLION: u64 = 1_000_000;

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

/// Keys of each thread, under the name of their distribution.
type Workload = (&'static str, Vec<Vec<Key>>);

fn contenders() -> Vec<Box<dyn Contender>> {
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Governor::new(LIMIT)),
        Box::new(Tidegate::with_system_clock(LIMIT)),
        Box::new(Tidegate::with_cached_clock(LIMIT)),
        Box::new(Tidegate::with_batches_of_16(LIMIT)),
        Box::new(Tidegate::with_batches_of_256(LIMIT)),
        Box::new(BareTableContender::new(LIMIT, MILLION as usize)),
        Box::new(Throttlecrab::new(LIMIT)),
    ];
    if let Some(limitador) = Limitador::start() {
        contenders.push(Box::new(limitador));
    }
    contenders
}

/// Nanoseconds of every contender in every round of one workload. `None` if a contender cannot run it.
struct WorkloadCosts(Vec<Option<Vec<f64>>>);

impl WorkloadCosts {
    fn measure(contenders: &[Box<dyn Contender>], threads: &[Vec<Key>], rounds: usize) -> Self {
        let can_run = |contender: &dyn Contender| threads.len() == 1 || contender.is_shared();
        let mut costs: Vec<_> =
            contenders.iter().map(|contender| can_run(&**contender).then(Vec::new)).collect();
        for round in 1..=rounds {
            for (contender, costs) in contenders.iter().zip(&mut costs) {
                progress(&format!("round {round} of {rounds}: {}", contender.name()));
                if let Some(costs) = costs {
                    costs.push(contender.measure(threads));
                }
            }
        }
        progress("");
        Self(costs)
    }

    fn spread(&self, contender: usize) -> Option<Spread> {
        Some(Spread::from_values(self.0[contender].clone()?))
    }

    /// Returns the time of the base divided by that of the contender, by round.
    fn speed_ratio(&self, base: usize, contender: usize) -> Option<Spread> {
        let (base, own) = (self.0[base].as_ref()?, self.0[contender].as_ref()?);
        Some(Spread::of_ratios(base, own))
    }
}

/// Prints a table with one column per workload. The first contender is the base of the ratios.
fn print_comparison(
    name: &str,
    caption: &str,
    contenders: &[Box<dyn Contender>],
    rounds: usize,
    workloads: &[Workload],
) -> Vec<WorkloadCosts> {
    let caption = format!(
        "{caption} {rounds} rounds. Nanoseconds per decision and thread: median (min to max), and the speed relative to {}.",
        contenders[0].name()
    );
    let columns = std::iter::once("").chain(workloads.iter().map(|(workload, _)| *workload));
    let mut table = Table::new(name, &caption, columns);
    let costs: Vec<WorkloadCosts> = workloads
        .iter()
        .map(|(_, threads)| WorkloadCosts::measure(contenders, threads, rounds))
        .collect();
    for (index, contender) in contenders.iter().enumerate() {
        let cell = |costs: &WorkloadCosts| {
            let ratio = costs.speed_ratio(0, index).map(|ratio| ratio.median);
            let spread = costs.spread(index)?;
            Some(format!("{}, {:.1}x", spread.format(0, ""), ratio?))
        };
        let cells = costs.iter().map(|costs| cell(costs).unwrap_or_else(|| "–".to_owned()));
        table.add_row(std::iter::once(contender.name().to_owned()).chain(cells));
    }
    table.print();
    costs
}

fn main() {
    let quick = measure::is_quick();
    let (rounds, checks) = if quick { (3, 500_000) } else { (9, 2_000_000) };
    let two = |make: &dyn Fn(u64) -> Vec<Key>| vec![make(1), make(2)];
    let hot = |_| vec![key(7); checks];
    let workloads = [
        ("uniform, 1 thread", vec![uniform(MILLION, checks, 1)]),
        ("uniform, 2 threads", two(&|seed| uniform(MILLION, checks, seed))),
        ("Zipf, 1 thread", vec![zipf(MILLION, checks, 1)]),
        ("Zipf, 2 threads", two(&|seed| zipf(MILLION, checks, seed))),
        ("one hot key, 1 thread", vec![hot(1)]),
        ("one hot key, 2 threads", two(&hot)),
    ];
    let contenders = contenders();
    let warm: Vec<Key> = (0..MILLION).map(key).collect();
    for contender in &contenders {
        progress(&format!("filling {}", contender.name()));
        contender.check_all(&warm);
    }
    let costs = print_comparison(
        "in_process",
        "1,000 per minute for each of 1,000,000 keys.",
        &contenders,
        rounds,
        &workloads,
    );
    let mut chart = BarChart::new(
        "One process: 1,000,000 random keys, 1 thread",
        "nanoseconds per decision, less is better",
    );
    for (index, contender) in contenders.iter().enumerate() {
        if let Some(spread) = costs[0].spread(index) {
            chart.add_bar(contender.name(), spread);
        }
    }
    chart.save("in_process");
    record_goals(&contenders, &costs);
    drop(contenders);
    print_hot_keys(rounds, checks);
    print_exactness();
    print_memory(if quick { &[MILLION] } else { &[MILLION, 10 * MILLION] });
}

fn record_goals(contenders: &[Box<dyn Contender>], costs: &[WorkloadCosts]) {
    let index = |name: &str| contenders.iter().position(|contender| contender.name() == name);
    let nanos = |workload: usize, name: &str| {
        index(name).and_then(|index| costs[workload].spread(index)).map_or(f64::NAN, |it| it.median)
    };
    let ratio = |base: &str, name: &str| {
        let ratio =
            index(base).zip(index(name)).and_then(|(base, own)| costs[0].speed_ratio(base, own));
        ratio.map_or(f64::NAN, |ratio| ratio.median)
    };
    let (batch, bare) = ("Tidegate, batches of 256", "bare table, batches of 256");
    let (cached, fresh) = ("Tidegate, cached clock", "Tidegate, clock read each time");
    let (own, governor) = (nanos(0, batch), ratio("governor 0.10.4", batch));
    record_goal(
        "in process, batches of 256, 1M random keys",
        "at most 25 ns, at least 10x governor",
        &format!(
            "{own:.0} ns, {governor:.1}x governor, {:.1}x the time of the bare table ({:.0} ns)",
            ratio(bare, batch).recip(),
            nanos(0, bare)
        ),
        own <= 25.0 && governor >= 10.0,
    );
    let (own, governor) = (nanos(0, cached), ratio("governor 0.10.4", cached));
    record_goal(
        "in process, one by one, cached clock, 1M random keys",
        "at most 100 ns, at least 2.5x governor",
        &format!("{own:.0} ns, {governor:.1}x governor"),
        own <= 100.0 && governor >= 2.5,
    );
    let own = nanos(0, fresh);
    record_goal(
        "in process, one by one, clock read each time, 1M random keys",
        "at most 200 ns",
        &format!("{own:.0} ns"),
        own <= 200.0,
    );
    let (one, two) = (nanos(4, cached), nanos(5, cached));
    record_goal(
        "in process, one hot key",
        "at most 27 ns on one thread; two threads together not slower than one",
        &format!("{one:.0} ns on one thread, {two:.0} ns per thread on two"),
        one <= 27.0 && two / 2.0 <= one,
    );
}

/// Compares contenders under limits that can admit every check of a tight loop.
fn print_hot_keys(rounds: usize, checks: usize) {
    let hot = || vec![key(7); checks];
    for (name, caption, seconds) in [
        ("in_process_hot_spent", "One key, 10^9 per hour: spent faster than it refills.", 3_600),
        (
            "in_process_hot_refilled",
            "One key, 10^9 per second: refilled faster than it is spent.",
            1,
        ),
    ] {
        let limit = ContenderLimit { amount: 1_000_000_000, window: Duration::from_secs(seconds) };
        let contenders: Vec<Box<dyn Contender>> = vec![
            Box::new(Governor::new(limit)),
            Box::new(Tidegate::with_system_clock(limit)),
            Box::new(Tidegate::with_cached_clock(limit)),
            Box::new(Tidegate::with_batches_of_16(limit)),
        ];
        let workloads = [("1 thread", vec![hot()]), ("2 threads", vec![hot(), hot()])];
        print_comparison(name, caption, &contenders, rounds, &workloads);
    }
}

/// Memory and pauses of a store that grows by one new key per call.
struct StoreGrowth {
    bytes_per_key: f64,
    longest: Duration,
    over_a_millisecond: u32,
    all: Duration,
}

impl StoreGrowth {
    fn measure(count: u64, mut check: impl FnMut(&Key)) -> Self {
        let before = LIVE_BYTES.load(Ordering::Relaxed);
        let (mut longest, mut over_a_millisecond, start) = (Duration::ZERO, 0, measure::now());
        let mut last = start;
        for number in 0..count {
            check(&key(number));
            let now = measure::now();
            let elapsed = now - last;
            longest = longest.max(elapsed);
            over_a_millisecond += u32::from(elapsed > Duration::from_millis(1));
            last = now;
        }
        let grown = LIVE_BYTES.load(Ordering::Relaxed) - before;
        let bytes_per_key = grown as f64 / count as f64;
        Self { bytes_per_key, longest, over_a_millisecond, all: last - start }
    }

    fn cells(&self) -> [String; 4] {
        [
            format!("{:.1}", self.bytes_per_key),
            format!("{:.0}", self.longest.as_nanos() as f64 / 1e3),
            self.over_a_millisecond.to_string(),
            format!("{:.1}", self.all.as_secs_f64()),
        ]
    }
}

fn print_memory(sizes: &[u64]) {
    let mut table = Table::new(
        "in_process_memory",
        "Growth of an empty store, one new key per call. limitador: resident memory of its process.",
        ["", "keys", "bytes per key", "longest call, us", "calls over 1 ms", "all calls, s"],
    );
    let row = |name: &str, count: u64, cells: [String; 4]| {
        [name.to_owned(), count.to_string()].into_iter().chain(cells)
    };
    let mut chart =
        BarChart::new("Memory per client", "bytes per key in one process, less is better");
    for &count in sizes {
        let mut add = |name: &str, growth: &StoreGrowth| {
            table.add_row(row(name, count, growth.cells()));
            let bytes = Spread::from_values([growth.bytes_per_key]);
            chart.add_bar(&format!("{name}, {}M keys", count / MILLION), bytes);
        };
        progress(&format!("growing to {count} keys"));
        let growth = grow_tidegate(count);
        add("Tidegate", &growth);
        if count > MILLION {
            let (bytes, longest) = (growth.bytes_per_key, growth.longest.as_secs_f64() * 1e3);
            record_goal(
                "memory per client at 10M clients",
                "at most 44 bytes",
                &format!("{bytes:.1} bytes"),
                bytes <= 44.0,
            );
            record_goal(
                "longest call while the store grows to 10M clients",
                "at most 1 ms",
                &format!("{longest:.1} ms"),
                longest <= 1.0,
            );
        }
        let governor = Governor::new(LIMIT);
        let growth = StoreGrowth::measure(count, |key| {
            let _ = black_box(governor.0.check_key(key));
        });
        add(governor.name(), &growth);
        drop(governor);
        let throttlecrab = Throttlecrab::new(LIMIT);
        let growth = StoreGrowth::measure(count, |key| {
            throttlecrab.check_all(std::slice::from_ref(key));
        });
        add(throttlecrab.name(), &growth);
    }
    if let Some(limitador) = Limitador::start() {
        let run = |from, to| {
            let keys: Vec<Key> = (from..to).map(key).collect();
            limitador.run(std::iter::once(&keys[..])).resident_bytes
        };
        let before = run(0, 1);
        let bytes = (run(1, MILLION) - before) / MILLION as f64;
        table.add_row([
            limitador.name(),
            &MILLION.to_string(),
            &format!("{bytes:.1}"),
            "–",
            "–",
            "–",
        ]);
        chart.add_bar(&format!("{}, 1M keys", limitador.name()), Spread::from_values([bytes]));
    }
    progress("");
    table.print();
    chart.save("in_process_memory");
}

fn grow_tidegate(count: u64) -> StoreGrowth {
    // The clock does not advance, so that no key expires.
    let tidegate = Tidegate::new(LIMIT, "Tidegate", ManualClock::default().clock(), None);
    let handle: &PerKey = &tidegate.handle;
    StoreGrowth::measure(count, |key| {
        black_box(handle.check(key));
    })
}

/// Prints the admissions of one key by two threads at a fixed instant, and their bound.
fn print_exactness() {
    let time = ManualClock::default();
    let tidegate = Tidegate::new(LIMIT, "Tidegate", time.clock(), None);
    let keys = vec![key(1); 100_000];
    let admitted: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| tidegate.check_all(&keys))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker finishes")).sum()
    });
    let mut table = Table::new(
        "in_process_exactness",
        "One key, two threads, at a fixed instant.",
        ["", "checks", "limit", "admitted", "over"],
    );
    let amount = LIMIT.amount as usize;
    let over = admitted.saturating_sub(amount);
    table.add_row([
        "Tidegate".to_owned(),
        (2 * keys.len()).to_string(),
        amount.to_string(),
        admitted.to_string(),
        over.to_string(),
    ]);
    table.print();
    record_goal("in process, admissions over the limit", "none", &over.to_string(), over == 0);
}
