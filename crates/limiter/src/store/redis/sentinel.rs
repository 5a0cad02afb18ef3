//! Finds the master through its sentinels, and follows it when they replace it.

mod watch;

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;

use super::address::Address;
use super::config::RedisConfig;
use super::connect::{OpenError, connect, within};

pub(super) use watch::watch;

/// Shortest time that a sentinel is given to answer.
const LEAST: Duration = Duration::from_millis(50);

/// Sentinels that are asked at the same time.
const MAX_CONCURRENT_QUERIES: usize = 16;

/// The master as one sentinel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MasterReport {
    pub(super) address: Address,
    /// The configuration epoch, which grows with each failover; 0 if the sentinel does not permit
    /// `SENTINEL MASTER`.
    pub(super) epoch: u64,
}

/// Returns the master after the latest failover that any sentinel knows of.
///
/// A sentinel that is cut off together with an old master still names that one, which then still reports to
/// be a master: only the epoch shows the difference. All sentinels are asked at once and share the connect
/// timeout. When a majority has answered and one of them has the epoch `seen`, the others are not waited for.
///
/// # Errors
/// [`OpenError::NoMaster`]: what became of each sentinel.
pub(super) async fn master(
    config: &RedisConfig,
    sentinels: &[Address],
    name: &str,
    seen: u64,
) -> Result<MasterReport, OpenError> {
    let rounds = u32::try_from(sentinels.len().div_ceil(MAX_CONCURRENT_QUERIES));
    let each = (config.connect_timeout() / rounds.unwrap_or(u32::MAX).max(1)).max(LEAST);
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
    let address = Address::tcp(&host, port).map_err(|error| OpenError::Connect {
        address: sentinel.clone(),
        reason: format!("master {name:?} can't be there: {error}"),
    })?;
    Ok(Some(MasterReport { address, epoch: epoch.unwrap_or(0) }))
}

#[cfg(test)]
mod tests;
