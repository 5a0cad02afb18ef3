//! Makes the load: connections that take turns, and who hands the turns out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tidegate::{Clock, Quota, Span};
use tokio::task::JoinSet;

use super::ask::{Ask, Clients};
use super::link::{Answer, Link, Lost, Message};
use super::report::Report;
use super::schedule::{Bounds, Schedule};
use super::tally::Tally;
use super::target::Target;
use crate::simulate::Chance;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection that can't be had is left alone.
const PAUSE: Span = Span::from_millis(100);
/// How often progress is told.
const TICK: Span = Span::from_millis(250);
/// How many connections are opened at once.
const OPENING: usize = 64;
/// How many tallies the connections share.
const TALLIES: usize = 16;

/// What is to be sent where, and how fast.
pub(crate) struct Load {
    pub(crate) target: Target,
    pub(crate) ask: Ask,
    /// Of requests that are got as they are.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) clients: Clients,
    /// How many requests are under way at the most, each on a connection of its own.
    pub(crate) connections: usize,
    /// Without one, a connection asks again as soon as it is answered.
    pub(crate) rate: Option<Quota>,
    pub(crate) bounds: Bounds,
    pub(crate) seed: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// From 0 to 1.
    pub(crate) part: f64,
    /// How many requests have ended.
    pub(crate) ended: u64,
    /// How many of them in a second since it was told last.
    pub(crate) per_second: f64,
}

/// What all connections share.
struct Shared {
    load: Load,
    message: Message,
    schedule: Schedule,
    clock: Clock,
    tallies: Vec<Mutex<Tally>>,
    ended: AtomicU64,
}

/// Opens every connection, then makes the load until its bounds are met or `stop` is there.
///
/// What is under way when it ends is waited for, so that every request that a server counts is counted here.
///
/// # Errors
/// A connection can't be had at the start, as text for a person.
pub(crate) async fn run(
    load: Load,
    clock: Clock,
    stop: impl Future<Output = ()>,
    mut progress: impl FnMut(Progress),
) -> Result<Report, String> {
    let opening = (0..load.connections).map(|_| Link::open(&load.target));
    let links: Vec<Link> = stream::iter(opening)
        .buffered(OPENING)
        .try_collect()
        .await
        .map_err(|lost: Lost| lost.into_text())?;
    let shared = Arc::new(Shared {
        message: Message::new(&load.target, &load.ask, &load.headers),
        schedule: Schedule::start(clock.clone(), load.rate, load.bounds),
        tallies: (0..TALLIES).map(|_| Mutex::default()).collect(),
        ended: AtomicU64::new(0),
        load,
        clock: clock.clone(),
    });
    let mut workers = JoinSet::new();
    for (number, link) in links.into_iter().enumerate() {
        workers.spawn(work(Arc::clone(&shared), number, link));
    }
    let pacer = shared.schedule.is_paced().then(|| pace(Arc::clone(&shared)));
    let pacer = pacer.transpose().map_err(|error| format!("no thread to keep time: {error}"))?;
    let (mut stop, mut interrupted) = (std::pin::pin!(stop), None);
    let (mut seen, mut told) = (0, clock.now());
    loop {
        tokio::select! {
            ended = workers.join_next() => if ended.is_none() { break },
            () = &mut stop, if interrupted.is_none() => {
                interrupted = Some(clock.now());
                shared.schedule.stop();
            }
            () = clock.sleep(TICK) => {
                let (now, ended) = (clock.now(), shared.ended.load(Ordering::Relaxed));
                let seconds = now.since(told).as_micros().max(1) as f64 / 1e6;
                let per_second = (ended - seen) as f64 / seconds;
                progress(Progress { part: shared.schedule.passed(now), ended, per_second });
                (seen, told) = (ended, now);
            }
        }
    }
    if let Some(pacer) = pacer {
        shared.schedule.stop();
        pacer.unpark();
    }
    let mut tally = Tally::default();
    shared.tallies.iter().for_each(|part| tally.merge(&part.lock()));
    let due = shared.schedule.due_by(interrupted.unwrap_or_else(|| clock.now()));
    let lasted = tally.last().since(shared.schedule.started());
    Ok(Report::new(&shared.load, &tally, lasted, due, interrupted.is_some()))
}

/// Hands out what is due, from a thread that does nothing else: the timers of a runtime are too coarse.
fn pace(shared: Arc<Shared>) -> std::io::Result<std::thread::Thread> {
    let keeper = std::thread::Builder::new().name("pace".to_owned()).spawn(move || {
        // The kernel may not put its wakeups together with others'; a thread that is late is told of anyway.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        while let Some(wait) = shared.schedule.release() {
            std::thread::park_timeout(wait.into());
        }
    })?;
    Ok(keeper.thread().clone())
}

/// Makes one request after another.
async fn work(shared: Arc<Shared>, number: usize, link: Link) {
    let Shared { load, message, schedule, clock, tallies, ended } = &*shared;
    let mut chance = Chance::new(load.seed.wrapping_add(number as u64));
    let mut link = Some(link);
    while let Some(turn) = schedule.next().await {
        let client = load.clients.name(turn.number, &mut chance);
        let sent = clock.now();
        let asking = ask(&load.target, &mut link, message, &client);
        let answer = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(answer) => answer,
            Err(_) => Err(Lost::Broken(format!("no answer within {PATIENCE:?}"))),
        };
        let unreachable = matches!(answer, Err(Lost::Unreachable(_)));
        if answer.is_err() {
            link = None;
        }
        tallies[number % TALLIES].lock().add(&turn, sent, clock.now(), answer);
        ended.fetch_add(1, Ordering::Relaxed);
        if unreachable {
            clock.sleep(PAUSE).await;
        }
    }
}

/// Asks on the connection that is there, or on a new one.
async fn ask(
    target: &Target,
    link: &mut Option<Link>,
    message: &Message,
    client: &str,
) -> Result<Answer, Lost> {
    let is_ready = match link {
        Some(open) => open.is_ready().await,
        None => false,
    };
    if !is_ready {
        *link = None;
    }
    let open = match link {
        Some(open) => open,
        None => link.insert(Link::open(target).await?),
    };
    open.ask(message, client).await
}
