//! Where the master is, by the word of the sentinels.

use std::time::Duration;

use super::address::Address;
use super::config::RedisConfig;
use super::connect::{OpenError, connect, within};

/// Shortest time that a sentinel is given to answer.
const LEAST: Duration = Duration::from_millis(50);

/// Where the first sentinel that knows says the master is.
///
/// The sentinels are asked one after another, and share the connect timeout. A sentinel may be
/// the last to hear of a change: what is found there must still say that it is a master, which
/// [`open`](super::connect::open) makes sure of.
///
/// # Errors
/// [`OpenError::NoMaster`]: what became of each sentinel.
pub(super) async fn master(
    config: &RedisConfig,
    sentinels: &[Address],
    name: &str,
) -> Result<Address, OpenError> {
    let count = u32::try_from(sentinels.len()).unwrap_or(u32::MAX).max(1);
    let share = (config.connect_timeout() / count).max(LEAST);
    let mut tried = Vec::with_capacity(sentinels.len());
    for sentinel in sentinels {
        match within(share, sentinel, ask(config, sentinel, name)).await {
            Ok(Some(master)) => return Ok(master),
            Ok(None) => tried.push(format!("redis {sentinel}: no master of that name")),
            Err(error) => tried.push(error.to_string()),
        }
    }
    Err(OpenError::NoMaster { master: name.to_owned(), tried })
}

async fn ask(
    config: &RedisConfig,
    sentinel: &Address,
    name: &str,
) -> Result<Option<Address>, OpenError> {
    let login = config.sentinel_login();
    let mut connection = connect(config, sentinel, login, 0).await?;
    let mut question = redis::cmd("SENTINEL");
    question.arg("get-master-addr-by-name").arg(name);
    let place: Option<(String, u16)> = question
        .query_async(&mut connection)
        .await
        .map_err(|error| OpenError::new(sentinel, login, &error))?;
    let Some((host, port)) = place else { return Ok(None) };
    let master = Address::tcp(&host, port);
    master.map(Some).map_err(|error| OpenError::Connect {
        address: sentinel.clone(),
        reason: format!("master {name:?} can't be there: {error}"),
    })
}

#[cfg(test)]
mod tests;
