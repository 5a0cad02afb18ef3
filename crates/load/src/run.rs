//! Runs a load: connections that take requests from the schedule, and the thread that releases them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tidegate_core::{Quota, Span};
use tidegate_limiter::Clock;
use tidegate_random::SeededRng;
use tokio::task::JoinSet;

use crate::connection::{LoadConnection, LoadMessage};
use crate::reply::{ConnectionError, LoadReply};
use crate::report::LoadReport;
use crate::request::{ClientPool, LoadRequest};
use crate::schedule::{LoadBounds, SendSchedule};
use crate::stats::LoadStats;
use crate::target::LoadTarget;

/// Longest time until a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed attempt to connect.
const RECONNECT_PAUSE: Span = Span::from_millis(100);
/// Interval of progress reports.
const PROGRESS_INTERVAL: Span = Span::from_millis(250);
/// Most connections that are opened at a time.
const MAX_OPENING: usize = 64;
/// Number of statistics shards, so that connections rarely wait for a lock.
const STATS_SHARDS: usize = 16;

/// A load: requests, their target and their rate.
pub struct LoadPlan {
    /// The listener.
    pub target: LoadTarget,
    /// The check.
    pub request: LoadRequest,
    /// Headers of requests to any URL.
    pub headers: Vec<(String, String)>,
    /// The clients that send it.
    pub clients: ClientPool,
    /// Number of connections. Each has at most one request in flight.
    pub connections: usize,
    /// Without a rate, a connection sends the next request after the reply.
    pub rate: Option<Quota>,
    /// The end of the load.
    pub bounds: LoadBounds,
    /// The seed of everything random.
    pub seed: u64,
}

/// The progress of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadProgress {
    /// The part that is done, from 0 to 1.
    pub part: f64,
    /// Requests that have ended.
    pub ended: u64,
    /// Requests that ended per second since the last report.
    pub per_second: f64,
}

/// The state that all connections share.
struct SharedLoad {
    plan: LoadPlan,
    message: LoadMessage,
    schedule: SendSchedule,
    clock: Clock,
    stats: Vec<Mutex<LoadStats>>,
    ended: AtomicU64,
}

/// Opens all connections, then sends requests until a bound is reached or `stop` is ready.
///
/// Requests in flight at the end are waited for, so that every request that a server counts is counted here.
///
/// # Errors
/// A connection can't be opened at the start.
pub async fn run(
    plan: LoadPlan,
    clock: Clock,
    stop: impl Future<Output = ()>,
    mut progress: impl FnMut(LoadProgress),
) -> Result<LoadReport, String> {
    let opening = (0..plan.connections).map(|_| LoadConnection::open(&plan.target));
    let connections: Vec<LoadConnection> = stream::iter(opening)
        .buffered(MAX_OPENING)
        .try_collect()
        .await
        .map_err(|error: ConnectionError| error.into_text())?;
    let shared = Arc::new(SharedLoad {
        message: LoadMessage::new(&plan.target, &plan.request, &plan.headers),
        schedule: SendSchedule::start(clock.clone(), plan.rate, plan.bounds),
        stats: (0..STATS_SHARDS).map(|_| Mutex::default()).collect(),
        ended: AtomicU64::new(0),
        plan,
        clock: clock.clone(),
    });
    let mut workers = JoinSet::new();
    for (number, connection) in connections.into_iter().enumerate() {
        workers.spawn(work(Arc::clone(&shared), number, connection));
    }
    let pacer = shared.schedule.is_paced().then(|| pace(Arc::clone(&shared)));
    let pacer =
        pacer.transpose().map_err(|error| format!("cannot start the pacer thread: {error}"))?;
    let (mut stop, mut interrupted) = (std::pin::pin!(stop), None);
    let (mut ended_before, mut reported_at) = (0, clock.now());
    loop {
        tokio::select! {
            ended = workers.join_next() => if ended.is_none() { break },
            () = &mut stop, if interrupted.is_none() => {
                interrupted = Some(clock.now());
                shared.schedule.stop();
            }
            () = clock.sleep(PROGRESS_INTERVAL) => {
                let (now, ended) = (clock.now(), shared.ended.load(Ordering::Relaxed));
                let seconds = now.since(reported_at).as_micros().max(1) as f64 / 1e6;
                let per_second = (ended - ended_before) as f64 / seconds;
                progress(LoadProgress { part: shared.schedule.progress(now), ended, per_second });
                (ended_before, reported_at) = (ended, now);
            }
        }
    }
    if let Some(pacer) = pacer {
        shared.schedule.stop();
        pacer.unpark();
    }
    let mut total = LoadStats::default();
    shared.stats.iter().for_each(|shard| total.merge(&shard.lock()));
    let due = shared.schedule.due_by(interrupted.unwrap_or_else(|| clock.now()));
    let duration = total.last().since(shared.schedule.started());
    Ok(LoadReport::new(&shared.plan, &total, duration, due, interrupted.is_some()))
}

/// Releases requests that are due, on a thread of its own: the timers of a runtime are too coarse.
fn pace(shared: Arc<SharedLoad>) -> std::io::Result<std::thread::Thread> {
    let pacer = std::thread::Builder::new().name("pace".to_owned()).spawn(move || {
        // The kernel must not delay wakeups to merge them; delays are reported anyway.
        #[cfg(target_os = "linux")]
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        while let Some(wait) = shared.schedule.release() {
            std::thread::park_timeout(wait.into());
        }
    })?;
    Ok(pacer.thread().clone())
}

/// Sends one request after another.
async fn work(shared: Arc<SharedLoad>, number: usize, connection: LoadConnection) {
    let SharedLoad { plan, message, schedule, clock, stats, ended } = &*shared;
    let mut rng = SeededRng::new(plan.seed.wrapping_add(number as u64));
    let mut connection = Some(connection);
    while let Some(scheduled) = schedule.next().await {
        let client = plan.clients.name(scheduled.number, &mut rng);
        let sent = clock.now();
        let sending = send(&plan.target, &mut connection, message, &client);
        let reply = match tokio::time::timeout(REPLY_TIMEOUT, sending).await {
            Ok(reply) => reply,
            Err(_) => Err(ConnectionError::Broken(format!("no answer within {REPLY_TIMEOUT:?}"))),
        };
        let unreachable = matches!(reply, Err(ConnectionError::Unreachable(_)));
        if reply.is_err() {
            connection = None;
        }
        stats[number % STATS_SHARDS].lock().add(&scheduled, sent, clock.now(), reply);
        ended.fetch_add(1, Ordering::Relaxed);
        if unreachable {
            clock.sleep(RECONNECT_PAUSE).await;
        }
    }
}

/// Sends a request on the open connection, or on a new one.
async fn send(
    target: &LoadTarget,
    connection: &mut Option<LoadConnection>,
    message: &LoadMessage,
    client: &str,
) -> Result<LoadReply, ConnectionError> {
    let is_ready = match connection {
        Some(open) => open.is_ready().await,
        None => false,
    };
    if !is_ready {
        *connection = None;
    }
    let open = match connection {
        Some(open) => open,
        None => connection.insert(LoadConnection::open(target).await?),
    };
    open.send(message, client).await
}
