use tidegate_testkit::{FaultProxy, Flavour, Port, Redis, Sentinel, Tool, lacking};

use super::super::connect::open;
use super::super::servers::Servers;
use super::*;

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
    master(config, sentinels, name).await
}

#[tokio::test]
async fn the_master_is_where_a_sentinel_says_before_and_after_a_failover() {
    if lacking(&[REDIS]) {
        return;
    }
    let sentinel = Sentinel::start();
    let config = config(&sentinel.url());
    let first = found(&config).await.unwrap();
    assert_eq!(first.to_string(), sentinel.master().address());
    open(&config, &first).await.unwrap();

    sentinel.kill_master();
    let second = sentinel.wait_for_switch();
    assert_eq!(found(&config).await.unwrap().to_string(), second);

    // The old master comes back as a replica, whatever a sentinel has not heard of yet.
    for node in sentinel.nodes() {
        if node.address() != second {
            node.restart();
        }
    }
    sentinel.wait_until_whole();
    open(&config, &found(&config).await.unwrap()).await.unwrap();
    assert_eq!(
        open(&config, &first).await.unwrap_err().to_string(),
        format!("redis {first}: a master is wanted, found a replica of {second}")
    );
}

#[tokio::test]
async fn sentinels_that_do_not_answer_or_do_not_know_are_passed_over() {
    if lacking(&[REDIS]) {
        return;
    }
    let sentinel = Sentinel::start();
    let knows = sentinel.sentinels()[0].address();
    let nobody = Port::free();
    let no_sentinel = Redis::start();
    let silent = FaultProxy::to(&knows);
    silent.stall();
    let others =
        format!("127.0.0.1:{},{},{}", nobody.number(), no_sentinel.address(), silent.address());
    let brief = |name: &str, more: &str| {
        let config = config(&format!("redis+sentinel://{others}{more}/{name}"));
        config.with_connect_timeout(Duration::from_secs(2)).unwrap()
    };
    let config = brief(Sentinel::NAME, &format!(",{knows}"));
    assert_eq!(found(&config).await.unwrap().to_string(), sentinel.master().address());

    let error = found(&brief("stranger", &format!(",{knows}"))).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no sentinel says where master \"stranger\" is: \
             redis 127.0.0.1:{}: Connection refused (os error 111); \
             redis {}: ERR unknown command 'SENTINEL', with args beginning with: \
             'get-master-addr-by-name' 'stranger' ; \
             redis {}: no connection within 500 ms; \
             redis {knows} does not know it",
            nobody.number(),
            no_sentinel.address(),
            silent.address(),
        )
    );
}
