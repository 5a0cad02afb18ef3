//! One block list for a fleet, through a real Redis.

use std::sync::Arc;
use std::time::Duration;

use tidegate::block::{BlockOrigin, Entry, Reason};
use tidegate::{Clock, Limiter, RedisConfig, RedisStore, Request, RuleSet, Span, Timestamp};
use tidegate_testkit::{Cluster, FaultProxy, Redis, poll};

type Node = Limiter<RedisStore>;

async fn node(url: &str) -> Node {
    let config: RedisConfig = url.parse().unwrap();
    // A busy machine is not to be taken for a store that failed.
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

fn block(node: &Node, attribute: &str, value: &str) {
    block_for(node, attribute, value, Span::HOUR);
}

fn block_for(node: &Node, attribute: &str, value: &str, span: Span) {
    let entry = Entry {
        subject: node.blocks().client(attribute, value).unwrap(),
        until: now() + span,
        reason: Reason::new("a test").unwrap(),
        origin: BlockOrigin::Operator,
        added: now(),
    };
    node.blocks().add(entry, now()).unwrap();
}

fn unblock(node: &Node, attribute: &str, value: &str) {
    let subject = node.blocks().client(attribute, value).unwrap();
    assert!(node.blocks().remove(&subject, now()).is_some(), "{attribute} {value} is not blocked");
}

/// The end of a user's block.
fn until(node: &Node, user: &str) -> Option<Timestamp> {
    let request = Request::new().with("user", user).unwrap();
    node.blocks().find(&request, now()).map(|entry| entry.until)
}

/// Waits until something holds.
async fn wait(what: &str, mut holds: impl FnMut() -> bool + Send + 'static) {
    let held = tokio::task::spawn_blocking(move || poll(|| holds().then_some(())));
    assert!(held.await.unwrap().is_some(), "{what}");
}

/// Waits until every node agrees on whether a request is blocked.
async fn agree(nodes: &[Node], attribute: &'static str, value: &'static str, blocked: bool) {
    let nodes = nodes.to_vec();
    let agreed = tokio::task::spawn_blocking(move || {
        let request = Request::new().with(attribute, value).unwrap();
        poll(|| {
            let finds = |node: &Node| node.blocks().find(&request, now()).is_some() == blocked;
            nodes.iter().all(finds).then_some(())
        })
    });
    assert!(agreed.await.unwrap().is_some(), "{attribute} {value}: not {blocked} everywhere");
}

async fn what_one_node_blocks_every_node_does(url: &str) -> Vec<Node> {
    let nodes = [node(url).await, node(url).await, node(url).await];
    block(&nodes[0], "ip", "192.0.2.0/24");
    block(&nodes[1], "user", "mallory");
    agree(&nodes, "ip", "192.0.2.77", true).await;
    agree(&nodes, "user", "mallory", true).await;
    let subject = nodes[2].blocks().client("ip", "192.0.2.0/24").unwrap();
    assert!(nodes[2].blocks().remove(&subject, now()).is_some());
    agree(&nodes, "ip", "192.0.2.77", false).await;
    agree(&nodes, "user", "mallory", true).await;
    // A node that comes later hears of it all.
    let late = [node(url).await];
    agree(&late, "user", "mallory", true).await;
    agree(&late, "ip", "192.0.2.77", false).await;
    nodes.to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_one_node_blocks_every_node_does_and_nothing_of_it_is_in_the_clear() {
    let server = Redis::start();
    let nodes = what_one_node_blocks_every_node_does(&server.url()).await;
    let dump: Vec<String> = server.query(&["HGETALL", "tg::{blocks}"]);
    assert!(!dump.is_empty() && !format!("{dump:?}").contains("mallory"), "{dump:?}");
    // Redis forgets everything; the nodes do not.
    server.query::<()>(&["FLUSHALL"]);
    block(&nodes[0], "ip", "198.51.100.7");
    agree(&nodes, "ip", "198.51.100.7", true).await;
    agree(&nodes, "user", "mallory", true).await;
    let late = [node(&server.url()).await];
    agree(&late, "user", "mallory", true).await;
    agree(&late, "ip", "198.51.100.7", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn in_a_cluster_too() {
    let cluster = Cluster::start();
    what_one_node_blocks_every_node_does(&cluster.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_client_that_hammers_one_node_is_blocked_on_all() {
    let server = Redis::start();
    let nodes = [node(&server.url()).await, node(&server.url()).await];
    let scraper = Request::new().with("api_key", "secret-key-1").unwrap();
    let mut asked = 0;
    while nodes[0].check(&scraper).await.block().is_none() {
        asked += 1;
        assert!(asked <= 2 + 10, "never blocked");
    }
    agree(&nodes, "api_key", "secret-key-1", true).await;
    let before = nodes[1].store().counts();
    let denied = nodes[1].check(&scraper).await;
    assert!(denied.block().is_some());
    assert_eq!(nodes[1].store().counts().carried, before.carried, "the store was not asked");
    let dump: Vec<String> = server.query(&["HVALS", "tg::{blocks}"]);
    assert!(!format!("{dump:?}").contains("secret-key-1"), "{dump:?}");
}

/// Two nodes that can be cut off from Redis, and one that is not.
struct Partition {
    server: Redis,
    proxies: [FaultProxy; 2],
    nodes: [Node; 3],
}

impl Partition {
    async fn new() -> Self {
        let server = Redis::start();
        let proxies = [FaultProxy::to(server.address()), FaultProxy::to(server.address())];
        let nodes = [
            node(&proxies[0].url()).await,
            node(&proxies[1].url()).await,
            node(&server.url()).await,
        ];
        Self { server, proxies, nodes }
    }

    fn cut(&self, node: usize) {
        let proxy = &self.proxies[node];
        proxy.refuse();
        proxy.drop_connections();
        let closed = poll(|| (proxy.open() == 0).then_some(()));
        assert!(closed.is_some(), "connections stay open");
    }

    fn heal(&self, node: usize) {
        self.proxies[node].pass();
    }

    /// Blocks a user by the node that is never cut off, and waits until every node has the block.
    async fn blocked_everywhere(&self, user: &'static str) {
        block(&self.nodes[2], "user", user);
        agree(&self.nodes, "user", user, true).await;
    }

    /// Waits until every node that is not cut off has seen all changes before this call, and all nodes that were just
    /// healed have published theirs: a change made now by each of them has reached all.
    async fn settled(&self, markers: [&'static str; 3]) {
        for (node, marker) in self.nodes.iter().zip(markers) {
            block(node, "user", marker);
        }
        for marker in markers {
            agree(&self.nodes, "user", marker, true).await;
        }
    }
}

/// Regression: the last change to arrive stayed, so the order of healing decided.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn order_in_which_a_partition_heals_does_not_decide() {
    let fleet = Partition::new().await;
    let rounds = [
        ("round-0", 0, ["marker-0", "marker-1", "marker-2"]),
        ("round-1", 1, ["marker-3", "marker-4", "marker-5"]),
    ];
    let mut winners = Vec::new();
    for (user, first, markers) in rounds {
        fleet.blocked_everywhere(user).await;
        let spans = [Span::from_secs(7_200), Span::from_secs(10_800)];
        for (place, span) in spans.into_iter().enumerate() {
            fleet.cut(place);
            block_for(&fleet.nodes[place], "user", user, span);
        }
        let ends = [0, 1].map(|place| until(&fleet.nodes[place], user));
        // The first arrives; the node that was never cut off shows it.
        fleet.heal(first);
        let (witness, wanted) = (fleet.nodes[2].clone(), ends[first]);
        wait("the first change arrives", move || until(&witness, user) == wanted).await;
        fleet.heal(1 - first);
        fleet.settled(markers).await;
        let shown: Vec<_> = fleet.nodes.iter().map(|node| until(node, user)).collect();
        assert!(shown.iter().all(|end| *end == shown[0]), "{shown:?} of {ends:?}");
        let late = [node(&fleet.server.url()).await];
        agree(&late, "user", user, true).await;
        assert_eq!(until(&late[0], user), shown[0], "in Redis");
        winners.push(ends.iter().position(|end| *end == shown[0]).unwrap());
    }
    assert_eq!(winners[0], winners[1], "the same node's change is the newest in both rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn older_block_of_a_partitioned_node_does_not_undo_a_newer_unblock() {
    let fleet = Partition::new().await;
    fleet.blocked_everywhere("mallory").await;
    fleet.cut(0);
    block_for(&fleet.nodes[0], "user", "mallory", Span::from_secs(7_200));
    // The others go on to a version that the first has not seen.
    block(&fleet.nodes[2], "user", "another");
    agree(&fleet.nodes[1..], "user", "another", true).await;
    unblock(&fleet.nodes[1], "user", "mallory");
    agree(&fleet.nodes[1..], "user", "mallory", false).await;
    fleet.heal(0);
    fleet.settled(["marker-0", "marker-1", "marker-2"]).await;
    for node in &fleet.nodes {
        assert_eq!(until(node, "mallory"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn node_that_was_away_restores_nothing_that_was_unblocked_meanwhile() {
    let fleet = Partition::new().await;
    fleet.blocked_everywhere("mallory").await;
    fleet.blocked_everywhere("stays").await;
    fleet.cut(0);
    unblock(&fleet.nodes[1], "user", "mallory");
    agree(&fleet.nodes[1..], "user", "mallory", false).await;
    fleet.server.query::<()>(&["FLUSHALL"]);
    // Restored by those that were there.
    let late = [node(&fleet.server.url()).await];
    agree(&late, "user", "stays", true).await;
    fleet.heal(0);
    fleet.settled(["marker-0", "marker-1", "marker-2"]).await;
    for node in fleet.nodes.iter().chain(&late) {
        assert_eq!((until(node, "mallory"), until(node, "stays").is_some()), (None, true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn node_that_was_away_for_longer_than_unblocks_are_remembered_takes_the_whole_list() {
    let fleet = Partition::new().await;
    fleet.blocked_everywhere("mallory").await;
    fleet.cut(0);
    unblock(&fleet.nodes[1], "user", "mallory");
    agree(&fleet.nodes[1..], "user", "mallory", false).await;
    // A day later.
    let removed: Vec<String> = fleet.server.query(&["ZRANGE", "tg::{blocks}:removed", "0", "-1"]);
    assert_eq!(removed.len(), 1);
    fleet.server.query::<()>(&["ZADD", "tg::{blocks}:ends", "1", &removed[0]]);
    let (mut server, name) = (fleet.server.connection().unwrap(), removed[0].clone());
    wait("the unblock is dropped", move || {
        let record: Option<String> =
            redis::cmd("HGET").arg("tg::{blocks}").arg(&name).query(&mut server).unwrap();
        record.is_none()
    })
    .await;
    fleet.heal(0);
    fleet.settled(["marker-0", "marker-1", "marker-2"]).await;
    for node in &fleet.nodes {
        assert_eq!(until(node, "mallory"), None);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn writes_that_a_failover_lost_are_restored() {
    let fleet = Partition::new().await;
    fleet.blocked_everywhere("kept").await;
    let keys = ["", ":versions", ":ends", ":removed"].map(|key| format!("tg::{{blocks}}{key}"));
    let mut server = fleet.server.connection().unwrap();
    let dumps: Vec<Option<Vec<u8>>> =
        keys.iter().map(|key| redis::cmd("DUMP").arg(key).query(&mut server).unwrap()).collect();
    fleet.blocked_everywhere("lost").await;
    // As a replica that had not received the latest write.
    let mut transaction = redis::pipe();
    transaction.atomic();
    for (key, dump) in keys.iter().zip(&dumps) {
        match dump {
            Some(dump) => transaction.cmd("RESTORE").arg(key).arg(0).arg(dump).arg("REPLACE"),
            None => transaction.cmd("DEL").arg(key),
        };
    }
    transaction.query::<()>(&mut server).unwrap();
    let late = [node(&fleet.server.url()).await];
    agree(&late, "user", "lost", true).await;
    agree(&late, "user", "kept", true).await;
    fleet.settled(["marker-0", "marker-1", "marker-2"]).await;
    agree(&fleet.nodes, "user", "lost", true).await;
}
