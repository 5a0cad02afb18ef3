use tidegate_testkit::{FaultProxy, Flavour, Port, Redis, Sentinel, Tool, WAIT_TIMEOUT, lacking};

use super::*;
use crate::connect::open;
use crate::servers::Servers;

const REDIS: Tool = Tool::Server(Flavour::Redis);

fn config(url: &str) -> RedisConfig {
    let config: RedisConfig = url.parse().unwrap();
    // A busy machine is no reason to fail.
    config.with_connect_timeout(Duration::from_secs(30)).unwrap()
}

async fn found(config: &RedisConfig) -> Result<Address, OpenError> {
    let Servers::Sentinel { sentinels, master: name } = config.servers() else {
        panic!("{config} has no sentinels")
    };
    Ok(master(config, sentinels, name, 0).await?.address)
}

/// Waits until the master that a sentinel reports answers: on a busy machine sentinels may switch at any time.
async fn reached(config: &RedisConfig) -> Address {
    let reaching = async {
        loop {
            let address = found(config).await.unwrap();
            match open(config, &address).await {
                Ok(_) => return address,
                // It was the master a moment ago.
                Err(OpenError::Replica { .. } | OpenError::Connect { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, reaching).await.expect("a sentinel learns of a new master")
}

#[tokio::test]
async fn sentinels_lead_to_the_master_before_and_after_a_failover() {
    if lacking(&[REDIS]) {
        return;
    }
    let sentinel = Sentinel::start();
    let config = config(&sentinel.url());
    let first = reached(&config).await.to_string();
    assert!(sentinel.nodes().iter().any(|node| node.address() == first), "{first}");

    let killed = sentinel.kill_master();
    let promoted = sentinel.wait_for_switch();
    assert_eq!(reached(&config).await.to_string(), promoted);
    assert_ne!(promoted, killed);
}

#[tokio::test]
async fn sentinels_that_do_not_answer_or_do_not_know_are_passed_over() {
    if lacking(&[REDIS]) {
        return;
    }
    let sentinel = Sentinel::start();
    let knows = sentinel.sentinels()[0].address();
    let closed_port = Port::free();
    let no_sentinel = Redis::start();
    let silent = FaultProxy::to(&knows);
    silent.stall();
    let others = format!(
        "127.0.0.1:{},{},{}",
        closed_port.number(),
        no_sentinel.address(),
        silent.address()
    );
    let brief = |name: &str, more: &str| {
        let config = config(&format!("redis+sentinel://{others}{more}/{name}"));
        config.with_connect_timeout(Duration::from_secs(4)).unwrap()
    };
    let master = found(&brief(Sentinel::NAME, &format!(",{knows}"))).await.unwrap().to_string();
    assert!(sentinel.nodes().iter().any(|node| node.address() == master), "{master}");

    let error = found(&brief("stranger", &format!(",{knows}"))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no sentinel reports the address of master \"stranger\": \
             redis 127.0.0.1:{}: Connection refused (os error 111); \
             redis {}: ERR unknown command 'SENTINEL', with args beginning with: \
             'get-master-addr-by-name' 'stranger'; \
             redis {}: no connection within 4 s; \
             redis {knows}: no master of that name",
            closed_port.number(),
            no_sentinel.address(),
            silent.address(),
        )
    );
}

#[test]
fn message_about_another_master_or_without_a_master_is_ignored() {
    let is_ours = |payload: &[u8]| is_about(payload, "main");
    assert!(is_ours(b"main 10.0.0.1 6379 10.0.0.2 6379"));
    assert!(is_ours(b"main what follows is not read"));
    assert!(!is_ours(b"main-2 10.0.0.1 6379 10.0.0.2 6379"));
    assert!(!is_ours(b"other 10.0.0.1 6379 10.0.0.2 6379"));
    assert!(!is_ours(b"main"));
    assert!(!is_ours(b""));
    assert!(!is_ours(&[0xff, 0xfe, b' ']));
}
