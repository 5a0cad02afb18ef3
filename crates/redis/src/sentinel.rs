//! Finds the master through its sentinels, and follows it when they replace it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::address::Address;
use super::config::RedisConfig;
use super::connect::{connect, within};
use super::open_error::OpenError;
use super::subscription::Subscription;

/// Shortest time that a sentinel is given to answer.
const MIN_QUERY_TIMEOUT: Duration = Duration::from_millis(50);

/// Sentinels that are asked at the same time.
const MAX_CONCURRENT_QUERIES: usize = 16;

/// The master as one sentinel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MasterReport {
    pub(crate) address: Address,
    /// The configuration epoch, which grows with each failover; 0 if the sentinel does not permit
    /// `SENTINEL MASTER`.
    pub(crate) epoch: u64,
}

/// Returns the master after the latest failover that any sentinel knows of.
///
/// A sentinel that is cut off together with an old master still names that one, which then still reports to
/// be a master: only the epoch shows the difference. All sentinels are asked at once and share the connect
/// timeout. When a majority has answered and one of them has the epoch `seen`, the others are not waited for.
///
/// # Errors
/// [`OpenError::NoMaster`]: what became of each sentinel.
pub(crate) async fn master(
    config: &RedisConfig,
    sentinels: &[Address],
    name: &str,
    seen: u64,
) -> Result<MasterReport, OpenError> {
    let rounds = u32::try_from(sentinels.len().div_ceil(MAX_CONCURRENT_QUERIES));
    let each =
        (config.connect_timeout() / rounds.unwrap_or(u32::MAX).max(1)).max(MIN_QUERY_TIMEOUT);
    let query = |(place, sentinel)| async move {
        (place, sentinel, within(each, sentinel, query(config, sentinel, name)).await)
    };
    let queries: Vec<_> = sentinels.iter().enumerate().map(query).collect();
    let mut replies = stream::iter(queries).buffer_unordered(MAX_CONCURRENT_QUERIES);
    let mut latest: Option<MasterReport> = None;
    let (mut answers, mut tried) = (0, Vec::new());
    while let Some((place, sentinel, reply)) = replies.next().await {
        match reply {
            Ok(Some(report)) => {
                answers += 1;
                if latest.as_ref().is_none_or(|latest| latest.epoch < report.epoch) {
                    latest = Some(report);
                }
            }
            Ok(None) => tried.push((place, format!("redis {sentinel}: no master of that name"))),
            Err(error) => tried.push((place, error.to_string())),
        }
        if answers * 2 > sentinels.len()
            && latest.as_ref().is_some_and(|latest| latest.epoch >= seen)
        {
            break;
        }
    }
    latest.ok_or_else(|| {
        tried.sort_unstable();
        let tried = tried.into_iter().map(|(_, error)| error).collect();
        OpenError::NoMaster { master: name.to_owned(), tried }
    })
}

/// Asks one sentinel for the master; `None` if it does not know the name.
async fn query(
    config: &RedisConfig,
    sentinel: &Address,
    name: &str,
) -> Result<Option<MasterReport>, OpenError> {
    let login = config.sentinel_login();
    let mut connection = connect(config, sentinel, login, 0).await?;
    // The epoch first: if a failover comes between the two, the new address has the old epoch, and never
    // the other way round.
    let mut fields = redis::cmd("SENTINEL");
    fields.arg("MASTER").arg(name);
    let fields: Result<HashMap<String, String>, _> = fields.query_async(&mut connection).await;
    let epoch =
        fields.map(|fields| fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()));
    let epoch = epoch.unwrap_or_else(|error| {
        tracing::debug!(redis = %sentinel, %error, "sentinel does not answer SENTINEL MASTER");
        None
    });
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let place: Option<(String, u16)> = question
        .query_async(&mut connection)
        .await
        .map_err(|error| OpenError::new(sentinel, login, &error))?;
    let Some((host, port)) = place else { return Ok(None) };
    let address = Address::tcp(&host, port).map_err(|error| {
        OpenError::connect(sentinel, format!("master {name:?} can't be there: {error}"))
    })?;
    Ok(Some(MasterReport { address, epoch: epoch.unwrap_or(0) }))
}

/// The channel on which a sentinel publishes `<master name> <old host> <old port> <new host> <new port>`.
const SWITCH_CHANNEL: &str = "+switch-master";

/// The first and the longest pause between two attempts to subscribe.
const SUBSCRIBE_BACKOFF: (Duration, Duration) =
    (Duration::from_millis(100), Duration::from_secs(5));

/// Most sentinels that are subscribed to, one task each: the first ones of the configuration.
const MAX_WATCHED_SENTINELS: usize = 16;

/// Reports to the owner of a connection every master that the sentinels publish. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct MasterWatch {
    /// One subscription each.
    _tasks: JoinSet<()>,
}

impl MasterWatch {
    /// Subscribes to the sentinels in the background. `on_report` is called with the master of each sentinel after
    /// every subscription and every switch.
    pub(crate) fn start(
        runtime: &Handle,
        config: &RedisConfig,
        sentinels: &[Address],
        master: &str,
        on_report: impl Fn(&MasterReport) + Send + Sync + 'static,
    ) -> Self {
        if sentinels.len() > MAX_WATCHED_SENTINELS {
            let watched = MAX_WATCHED_SENTINELS;
            tracing::warn!(
                master,
                watched,
                "too many sentinels, subscribing to the first ones only"
            );
        }
        let on_report: Arc<dyn Fn(&MasterReport) + Send + Sync> = Arc::new(on_report);
        let mut tasks = JoinSet::new();
        for sentinel in sentinels.iter().take(MAX_WATCHED_SENTINELS) {
            let watcher = SentinelWatcher {
                on_report: Arc::clone(&on_report),
                config: config.clone(),
                sentinel: sentinel.clone(),
                master: master.to_owned(),
            };
            tasks.spawn_on(watcher.run(), runtime);
        }
        Self { _tasks: tasks }
    }
}

/// The subscription to one sentinel.
struct SentinelWatcher {
    on_report: Arc<dyn Fn(&MasterReport) + Send + Sync>,
    config: RedisConfig,
    sentinel: Address,
    master: String,
}

impl SentinelWatcher {
    /// Follows the sentinel for ever.
    #[allow(clippy::disallowed_methods, reason = "subscribing again has its own pace")]
    async fn run(self) {
        let (mut pause, longest) = SUBSCRIBE_BACKOFF;
        let mut is_logged = false;
        loop {
            let subscribed = self.subscribe().await;
            if subscribed.is_ok() {
                (pause, is_logged) = (SUBSCRIBE_BACKOFF.0, false);
            }
            let error = match subscribed {
                Ok(subscription) => self.follow(subscription).await,
                Err(error) => error,
            };
            let sentinel = &self.sentinel;
            if is_logged {
                tracing::debug!(%sentinel, error, "not subscribed to sentinel, retrying");
            } else {
                tracing::warn!(%sentinel, error, "not subscribed to sentinel, retrying");
            }
            is_logged = true;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    async fn subscribe(&self) -> Result<Subscription, String> {
        let (config, sentinel) = (&self.config, &self.sentinel);
        let subscribing =
            Subscription::open(config, sentinel, config.sentinel_login(), 0, SWITCH_CHANNEL);
        subscribing.await.map_err(|error| error.to_string())
    }

    /// Reports the sentinel's master: now, since a message may have been missed, and after each message. Returns
    /// why it ended.
    async fn follow(&self, mut subscription: Subscription) -> String {
        loop {
            let query = query(&self.config, &self.sentinel, &self.master);
            match within(self.config.connect_timeout(), &self.sentinel, query).await {
                Ok(Some(report)) => (self.on_report)(&report),
                Ok(None) => return format!("no master of the name {:?}", self.master),
                Err(error) => return error.to_string(),
            }
            loop {
                match subscription.next().await {
                    Ok(message) if is_about(message.get_payload_bytes(), &self.master) => break,
                    Ok(_) => {}
                    Err(reason) => return reason.to_owned(),
                }
            }
        }
    }
}

/// Returns whether a message is about the master of this name. Nothing else of it is used: the sentinel is queried.
fn is_about(payload: &[u8], master: &str) -> bool {
    payload.strip_prefix(master.as_bytes()).is_some_and(|rest| rest.starts_with(b" "))
}

#[cfg(test)]
mod tests;
