//! How much the servers hold: asked now and then, so that nobody who reads metrics waits for it.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;

use super::Inner;

/// How often the servers are asked.
const PACE: Duration = Duration::from_secs(10);

/// Asks every server what it holds.
pub(super) async fn weigh(store: &Inner) {
    let nodes = store.topology.nodes();
    join_all(nodes.iter().map(|node| node.weigh())).await;
}

/// Asks until the store is gone.
#[allow(clippy::disallowed_methods, reason = "asking has its own pace")]
pub(super) async fn keep_weighing(store: Weak<Inner>) {
    while let Some(store) = store.upgrade() {
        weigh(&store).await;
        drop(store);
        tokio::time::sleep(PACE).await;
    }
}
