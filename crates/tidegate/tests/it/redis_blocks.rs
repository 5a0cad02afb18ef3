//! A block list shared by a fleet through a real Redis.

use std::sync::Arc;
use std::time::Duration;

use tidegate::block::{BlockAction, BlockOrigin, Entry, Reason};
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{Clock, Limiter, Request, RuleSet, Span, Timestamp};
use tidegate_testkit::{Cluster, FaultProxy, Redis, poll};

type FleetNode = Limiter<RedisStore>;

async fn start_node(url: &str) -> FleetNode {
    let config: RedisConfig = url.parse().unwrap();
    // A long timeout, so that a busy machine causes no store failure.
    let config = config
        .with_timeout(Duration::from_secs(5))
        .unwrap()
        .with_connect_timeout(crate::CONNECT_TIMEOUT)
        .unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    let rules = "rules: [{name: api, per: [api_key], limit: 2 per hour, \
                 penalty: {after: 5x, within: 1h, block: 10m}}]";
    let rules = RuleSet::parse("rules.yaml", rules).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::new(store)).build();
    limiter.store().share_blocks(limiter.blocks());
    limiter
}

fn now() -> Timestamp {
    Clock::system().now()
}

fn block(node: &FleetNode, attribute: &str, value: &str) {
    block_for(node, attribute, value, Span::HOUR);
}

fn block_for(node: &FleetNode, attribute: &str, value: &str, span: Span) {
    add_for(node, attribute, value, BlockAction::Block, span);
}

fn add_for(node: &FleetNode, attribute: &str, value: &str, action: BlockAction, span: Span) {
    let entry = Entry {
        subject: node.blocks().client(attribute, value).unwrap(),
        action,
        until: now() + span,
        reason: Reason::new("a test").unwrap(),
        origin: BlockOrigin::Operator,
        added: now(),
    };
    node.blocks().add(entry, now()).unwrap();
}

fn unblock(node: &FleetNode, attribute: &str, value: &str) {
    let subject = node.blocks().client(attribute, value).unwrap();
    assert!(node.blocks().remove(&subject, now()).is_some(), "{attribute} {value} is not blocked");
}

/// Returns the end of a user's block.
fn block_end(node: &FleetNode, user: &str) -> Option<Timestamp> {
    let request = Request::new().with("user", user).unwrap();
    node.blocks().find(&request, now()).map(|entry| entry.until)
}

/// Waits until the condition holds.
async fn wait_until(expectation: &str, mut holds: impl FnMut() -> bool + Send + 'static) {
    let held = tokio::task::spawn_blocking(move || poll(|| holds().then_some(())));
    assert!(held.await.unwrap().is_some(), "{expectation}");
}

/// Waits until every node blocks the client, or until none does.
async fn wait_for_agreement(
    nodes: &[FleetNode],
    attribute: &'static str,
    value: &'static str,
    blocked: bool,
) {
    let nodes = nodes.to_vec();
    let agreed = tokio::task::spawn_blocking(move || {
        let request = Request::new().with(attribute, value).unwrap();
        poll(|| {
            let finds = |node: &FleetNode| node.blocks().find(&request, now()).is_some() == blocked;
            nodes.iter().all(finds).then_some(())
        })
    });
    assert!(
        agreed.await.unwrap().is_some(),
        "{attribute} {value}: wanted blocked: {blocked} on every node"
    );
}

async fn expect_blocks_on_every_node(url: &str) -> Vec<FleetNode> {
    let nodes = [start_node(url).await, start_node(url).await, start_node(url).await];
    block(&nodes[0], "ip", "192.0.2.0/24");
    block(&nodes[1], "user", "mallory");
    wait_for_agreement(&nodes, "ip", "192.0.2.77", true).await;
    wait_for_agreement(&nodes, "user", "mallory", true).await;
    let subject = nodes[2].blocks().client("ip", "192.0.2.0/24").unwrap();
    assert!(nodes[2].blocks().remove(&subject, now()).is_some());
    wait_for_agreement(&nodes, "ip", "192.0.2.77", false).await;
    wait_for_agreement(&nodes, "user", "mallory", true).await;
    // A node that starts later receives the whole list.
    let late = [start_node(url).await];
    wait_for_agreement(&late, "user", "mallory", true).await;
    wait_for_agreement(&late, "ip", "192.0.2.77", false).await;
    nodes.to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn block_reaches_every_node_and_redis_contains_no_plain_identity() {
    let server = Redis::start();
    let nodes = expect_blocks_on_every_node(&server.url()).await;
    let dump: Vec<String> = server.query(&["HGETALL", "tg::{blocks}"]);
    assert!(!dump.is_empty() && !format!("{dump:?}").contains("mallory"), "{dump:?}");
    // Redis loses its data; the nodes restore it.
    server.query::<()>(&["FLUSHALL"]);
    block(&nodes[0], "ip", "198.51.100.7");
    wait_for_agreement(&nodes, "ip", "198.51.100.7", true).await;
    wait_for_agreement(&nodes, "user", "mallory", true).await;
    let late = [start_node(&server.url()).await];
    wait_for_agreement(&late, "user", "mallory", true).await;
    wait_for_agreement(&late, "ip", "198.51.100.7", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn block_reaches_every_node_in_a_cluster() {
    let cluster = Cluster::start();
    expect_blocks_on_every_node(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn penalty_on_one_node_blocks_the_client_on_all_nodes() {
    let server = Redis::start();
    let nodes = [start_node(&server.url()).await, start_node(&server.url()).await];
    let scraper = Request::new().with("api_key", "secret-key-1").unwrap();
    let mut denied_checks = 0;
    while nodes[0].check(&scraper).await.block().is_none() {
        denied_checks += 1;
        assert!(denied_checks <= 2 + 10, "never blocked");
    }
    wait_for_agreement(&nodes, "api_key", "secret-key-1", true).await;
    let before = nodes[1].store().counts();
    let denied = nodes[1].check(&scraper).await;
    assert!(denied.block().is_some());
    assert_eq!(
        nodes[1].store().counts().carried,
        before.carried,
        "the check did not reach the store"
    );
    let dump: Vec<String> = server.query(&["HVALS", "tg::{blocks}"]);
    assert!(!format!("{dump:?}").contains("secret-key-1"), "{dump:?}");
}

/// Two nodes that can be disconnected from Redis, and one that stays connected.
struct Partition {
    server: Redis,
    proxies: [FaultProxy; 2],
    nodes: [FleetNode; 3],
}

impl Partition {
    async fn new() -> Self {
        let server = Redis::start();
        let proxies = [FaultProxy::to(server.address()), FaultProxy::to(server.address())];
        let nodes = [
            start_node(&proxies[0].url()).await,
            start_node(&proxies[1].url()).await,
            start_node(&server.url()).await,
        ];
        Self { server, proxies, nodes }
    }

    fn disconnect(&self, node: usize) {
        let proxy = &self.proxies[node];
        proxy.refuse();
        proxy.drop_connections();
        let closed = poll(|| (proxy.open() == 0).then_some(()));
        assert!(closed.is_some(), "connections stay open");
    }

    fn reconnect(&self, node: usize) {
        self.proxies[node].pass();
    }

    /// Blocks a user on the node that stays connected, and waits until every node has the block.
    async fn block_on_every_node(&self, user: &'static str) {
        block(&self.nodes[2], "user", user);
        wait_for_agreement(&self.nodes, "user", user, true).await;
    }

    /// Waits until every connected node has received all earlier changes, and has published its own: each node makes
    /// one more change, which must reach all nodes.
    async fn wait_until_settled(&self, markers: [&'static str; 3]) {
        for (node, marker) in self.nodes.iter().zip(markers) {
            block(node, "user", marker);
        }
        for marker in markers {
            wait_for_agreement(&self.nodes, "user", marker, true).await;
        }
    }
}

/// Regression: the last change to arrive won, so the order of reconnection decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn newest_change_wins_in_any_order_of_reconnection() {
    let fleet = Partition::new().await;
    let rounds = [
        ("round-0", 0, ["marker-0", "marker-1", "marker-2"]),
        ("round-1", 1, ["marker-3", "marker-4", "marker-5"]),
    ];
    let mut winners = Vec::new();
    for (user, first, markers) in rounds {
        fleet.block_on_every_node(user).await;
        let spans = [Span::from_secs(7_200), Span::from_secs(10_800)];
        for (index, span) in spans.into_iter().enumerate() {
            fleet.disconnect(index);
            block_for(&fleet.nodes[index], "user", user, span);
        }
        let own_ends = [0, 1].map(|index| block_end(&fleet.nodes[index], user));
        // The first change arrives at the node that stayed connected.
        fleet.reconnect(first);
        let (connected_node, wanted) = (fleet.nodes[2].clone(), own_ends[first]);
        wait_until("the first change arrives", move || block_end(&connected_node, user) == wanted)
            .await;
        fleet.reconnect(1 - first);
        fleet.wait_until_settled(markers).await;
        let block_ends: Vec<_> = fleet.nodes.iter().map(|node| block_end(node, user)).collect();
        assert!(
            block_ends.iter().all(|end| *end == block_ends[0]),
            "{block_ends:?} of {own_ends:?}"
        );
        let late = [start_node(&fleet.server.url()).await];
        wait_for_agreement(&late, "user", user, true).await;
        assert_eq!(block_end(&late[0], user), block_ends[0], "in Redis");
        winners.push(own_ends.iter().position(|end| *end == block_ends[0]).unwrap());
    }
    assert_eq!(winners[0], winners[1], "the same node's change is the newest in both rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn older_block_of_a_partitioned_node_does_not_undo_a_newer_unblock() {
    let fleet = Partition::new().await;
    fleet.block_on_every_node("mallory").await;
    fleet.disconnect(0);
    block_for(&fleet.nodes[0], "user", "mallory", Span::from_secs(7_200));
    // The other nodes advance to a version that the first has not received.
    block(&fleet.nodes[2], "user", "another");
    wait_for_agreement(&fleet.nodes[1..], "user", "another", true).await;
    unblock(&fleet.nodes[1], "user", "mallory");
    wait_for_agreement(&fleet.nodes[1..], "user", "mallory", false).await;
    fleet.reconnect(0);
    fleet.wait_until_settled(["marker-0", "marker-1", "marker-2"]).await;
    for node in &fleet.nodes {
        assert_eq!(block_end(node, "mallory"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn reconnected_node_does_not_restore_entries_unblocked_meanwhile() {
    let fleet = Partition::new().await;
    fleet.block_on_every_node("mallory").await;
    fleet.block_on_every_node("stays").await;
    fleet.disconnect(0);
    unblock(&fleet.nodes[1], "user", "mallory");
    wait_for_agreement(&fleet.nodes[1..], "user", "mallory", false).await;
    fleet.server.query::<()>(&["FLUSHALL"]);
    // The connected nodes restored the list.
    let late = [start_node(&fleet.server.url()).await];
    wait_for_agreement(&late, "user", "stays", true).await;
    fleet.reconnect(0);
    fleet.wait_until_settled(["marker-0", "marker-1", "marker-2"]).await;
    for node in fleet.nodes.iter().chain(&late) {
        assert_eq!((block_end(node, "mallory"), block_end(node, "stays").is_some()), (None, true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn node_disconnected_longer_than_unblocks_are_kept_fetches_the_whole_list() {
    let fleet = Partition::new().await;
    fleet.block_on_every_node("mallory").await;
    fleet.disconnect(0);
    unblock(&fleet.nodes[1], "user", "mallory");
    wait_for_agreement(&fleet.nodes[1..], "user", "mallory", false).await;
    // A day later.
    let removed: Vec<String> = fleet.server.query(&["ZRANGE", "tg::{blocks}:removed", "0", "-1"]);
    assert_eq!(removed.len(), 1);
    fleet.server.query::<()>(&["ZADD", "tg::{blocks}:ends", "1", &removed[0]]);
    let (mut server, name) = (fleet.server.connection().unwrap(), removed[0].clone());
    wait_until("the unblock is dropped", move || {
        let record: Option<String> =
            redis::cmd("HGET").arg("tg::{blocks}").arg(&name).query(&mut server).unwrap();
        record.is_none()
    })
    .await;
    fleet.reconnect(0);
    fleet.wait_until_settled(["marker-0", "marker-1", "marker-2"]).await;
    for node in &fleet.nodes {
        assert_eq!(block_end(node, "mallory"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn writes_that_a_failover_lost_are_restored() {
    let fleet = Partition::new().await;
    fleet.block_on_every_node("kept").await;
    let keys = ["", ":versions", ":ends", ":removed"].map(|key| format!("tg::{{blocks}}{key}"));
    let mut server = fleet.server.connection().unwrap();
    let dumps: Vec<Option<Vec<u8>>> =
        keys.iter().map(|key| redis::cmd("DUMP").arg(key).query(&mut server).unwrap()).collect();
    fleet.block_on_every_node("lost").await;
    // Restore the keys to an earlier state, as on a replica that had not received the latest writes.
    let mut transaction = redis::pipe();
    transaction.atomic();
    for (key, dump) in keys.iter().zip(&dumps) {
        match dump {
            Some(dump) => transaction.cmd("RESTORE").arg(key).arg(0).arg(dump).arg("REPLACE"),
            None => transaction.cmd("DEL").arg(key),
        };
    }
    transaction.query::<()>(&mut server).unwrap();
    let late = [start_node(&fleet.server.url()).await];
    wait_for_agreement(&late, "user", "lost", true).await;
    wait_for_agreement(&late, "user", "kept", true).await;
    fleet.wait_until_settled(["marker-0", "marker-1", "marker-2"]).await;
    wait_for_agreement(&fleet.nodes, "user", "lost", true).await;
}

/// Waits until every node has an entry of this kind for a user.
async fn wait_for_action(nodes: &[FleetNode], user: &'static str, action: BlockAction) {
    let nodes = nodes.to_vec();
    wait_until("every node has the entry of this kind", move || {
        let request = Request::new().with("user", user).unwrap();
        let found = |node: &FleetNode| node.blocks().find(&request, now()).map(|e| e.action);
        nodes.iter().all(|node| found(node) == Some(action))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn allowed_client_is_shared_and_the_latest_change_of_any_node_applies() {
    let server = Redis::start();
    let nodes = [start_node(&server.url()).await, start_node(&server.url()).await];
    let alice = Request::new().with("user", "alice").unwrap().with("api_key", "k1").unwrap();
    add_for(&nodes[0], "user", "alice", BlockAction::Allow, Span::HOUR);
    wait_for_action(&nodes, "alice", BlockAction::Allow).await;
    for _ in 0..20 {
        assert!(nodes[1].check(&alice).await.is_allow_listed());
    }
    block(&nodes[1], "user", "alice");
    wait_for_action(&nodes, "alice", BlockAction::Block).await;
    assert!(!nodes[0].check(&alice).await.is_allowed());
    add_for(&nodes[0], "user", "alice", BlockAction::Allow, Span::HOUR);
    wait_for_action(&nodes, "alice", BlockAction::Allow).await;
    // Redis loses its data; the nodes restore the entry.
    server.query::<()>(&["FLUSHALL"]);
    let late = start_node(&server.url()).await;
    wait_for_action(std::slice::from_ref(&late), "alice", BlockAction::Allow).await;
    unblock(&late, "user", "alice");
    wait_for_agreement(&nodes, "user", "alice", false).await;
    assert!(!nodes[0].check(&alice).await.is_allow_listed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn entry_that_allows_does_not_block_on_nodes_of_an_earlier_release() {
    let server = Redis::start();
    let nodes = [start_node(&server.url()).await, start_node(&server.url()).await];
    block(&nodes[0], "user", "mallory");
    add_for(&nodes[0], "user", "alice", BlockAction::Allow, Span::HOUR);
    wait_for_action(&nodes, "mallory", BlockAction::Block).await;
    wait_for_action(&nodes, "alice", BlockAction::Allow).await;
    // An earlier release reads every record with the field `until` as a block, and skips all others.
    let records: Vec<String> = server.query(&["HVALS", "tg::{blocks}"]);
    let count = |field: &str| {
        let field = format!("\"{field}\":");
        records.iter().filter(|record| record.contains(&field)).count()
    };
    assert_eq!((count("until"), count("allowed_until")), (1, 1), "{records:?}");
}
