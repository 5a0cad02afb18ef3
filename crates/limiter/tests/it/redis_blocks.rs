//! One block list for a fleet, through a real Redis.

use std::sync::Arc;

use tidegate::block::{By, Entry, Reason};
use tidegate::{Clock, Limiter, RedisStore, Request, RuleSet, Span, Timestamp};
use tidegate_testkit::{Cluster, Redis, poll};

type Node = Limiter<RedisStore>;

async fn node(url: &str) -> Node {
    let store = RedisStore::connect(url.parse().unwrap()).await.unwrap();
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
    let entry = Entry {
        subject: node.blocks().client(attribute, value).unwrap(),
        until: now() + Span::HOUR,
        reason: Reason::new("a test").unwrap(),
        by: By::Operator,
        added: now(),
    };
    node.blocks().add(entry, now()).unwrap();
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
