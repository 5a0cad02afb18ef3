//! A node: a process that is offered checks by the clock.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Limiter, RedisConfig, RedisStore, Request, RuleSet};

use crate::kept::Kept;
use crate::traffic::Traffic;

/// How often a node looks at the clock.
const TICK: Duration = Duration::from_millis(1);
/// Samples of its times that a node tells.
const SAMPLES: usize = 4_000;

/// What a node has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) checks: u64,
    pub(crate) calls: u64,
    /// By client: offered and admitted.
    pub(crate) clients: BTreeMap<u64, (u64, u64)>,
    /// Microseconds of some checks.
    pub(crate) times: Vec<u32>,
}

impl Seen {
    /// One line of numbers.
    fn write(&self) -> String {
        let Self { checks, calls, clients, times } = self;
        let mut line = format!("seen {checks} {calls} {} {}", clients.len(), times.len());
        for (client, (offered, admitted)) in clients {
            line += &format!(" {client} {offered} {admitted}");
        }
        times.iter().for_each(|time| line += &format!(" {time}"));
        line
    }

    /// Adds what a line says.
    pub(crate) fn read(&mut self, line: &str) {
        let mut words = line.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap());
        let mut next = || words.next().unwrap();
        self.checks += next();
        self.calls += next();
        let (clients, times) = (next(), next());
        for _ in 0..clients {
            let (client, offered, admitted) = (next(), next(), next());
            self.add(client, offered, admitted);
        }
        self.times.extend((0..times).map(|_| u32::try_from(next()).unwrap_or(u32::MAX)));
    }

    pub(crate) fn add(&mut self, client: u64, offered: u64, admitted: u64) {
        let entry = self.clients.entry(client).or_default();
        *entry = (entry.0 + offered, entry.1 + admitted);
    }
}

/// A store and a limiter of a node.
pub(crate) async fn limiter(url: &str, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let store = RedisStore::connect(config.with_timeout(Duration::from_secs(1)).unwrap()).await;
    let rules = RuleSet::parse("frontier", rules).unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store.unwrap())).build()
}

/// Says something to who started this process.
pub(crate) fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().unwrap();
}

/// The next line of who started this process.
pub(crate) fn hear() -> String {
    std::io::stdin().lock().lines().next().unwrap().unwrap()
}

/// Arguments: where Redis is, how the limit is kept, which traffic, which node of how many, and a file for
/// what a process that is killed can't tell.
pub(crate) fn run(arguments: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, node(arguments));
}

async fn node(arguments: &[String]) {
    let [url, kept, traffic, index, nodes, file] = arguments else { panic!("six arguments") };
    let number = |text: &String| text.parse::<u64>().unwrap();
    let (index, nodes) = (number(index), number(nodes));
    let traffic = Traffic::ALL[usize::try_from(number(traffic)).unwrap()];
    let limiter = limiter(url, &Kept::of(kept).rules(traffic)).await;
    let file = Rc::new(File::create(file).unwrap());
    say("ready");
    // A node goes on pulsing while it waits.
    let seconds: u64 = tokio::task::spawn_blocking(hear).await.unwrap().parse().unwrap();
    limiter.store().announce().await;
    let before = limiter.store().counts();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let (start, mut sent, mut random) = (Instant::now(), 0, 0x9e37_79b9 + index);
    let each = traffic.offered(index, nodes);
    let mut tasks = tokio::task::JoinSet::new();
    while start.elapsed() < Duration::from_secs(seconds) {
        let due = each * u64::try_from(start.elapsed().as_micros()).unwrap() / 1_000_000;
        while sent < due {
            sent += 1;
            let client = traffic.client(&mut random);
            let (limiter, seen, file) = (limiter.clone(), Rc::clone(&seen), Rc::clone(&file));
            tasks.spawn_local(async move {
                let user = client.to_string();
                let request = Request::new().with("user", user.as_str()).unwrap();
                let began = Instant::now();
                let allowed = limiter.check(&request).await.is_allowed();
                let took = u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX);
                let mut seen = seen.borrow_mut();
                seen.checks += 1;
                seen.times.push(took);
                seen.add(client, 1, u64::from(allowed));
                if traffic == Traffic::Changing {
                    let (offered, admitted) = seen.clients[&client];
                    let counts = [offered.to_le_bytes(), admitted.to_le_bytes()].concat();
                    file.write_all_at(&counts, 0).unwrap();
                }
            });
        }
        while tasks.try_join_next().is_some() {}
        tokio::time::sleep(TICK).await;
    }
    while tasks.join_next().await.is_some() {}
    let after = limiter.store().counts();
    let mut seen = std::mem::take(&mut *seen.borrow_mut());
    // Some of them tell as much as all.
    let step = seen.times.len().div_ceil(SAMPLES).max(1);
    seen.times = seen.times.iter().copied().step_by(step).collect();
    seen.calls = after.calls + after.ask_calls - before.calls - before.ask_calls;
    say(&seen.write());
}

/// Offered and admitted by a process that was killed.
pub(crate) fn killed(file: &std::path::Path) -> (u64, u64) {
    let counts = std::fs::read(file).unwrap();
    let number = |place: usize| {
        let bytes = counts.get(place..place + 8).map(|bytes| bytes.try_into().unwrap());
        bytes.map_or(0, u64::from_le_bytes)
    };
    (number(0), number(8))
}
