//! The RESP listener in front of a Redis: one round trip for a pipeline, and errors when nobody knows.

use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, lacking, wait_for};

use super::wire::{Value, encoded};
use super::{connect, standing};
use crate::kit::Server;

const REDIS: Tool = Tool::Server(Flavour::Redis);

fn on(url: &str) -> Server {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0", "--redis", url]);
    wait_for("the server is ready", || {
        (server.ask("GET", "/readyz", "").status == 200).then_some(())
    });
    server
}

/// How many script calls a Redis has answered.
fn calls(redis: &Redis) -> u64 {
    let stats = redis.info("cmdstat_evalsha").unwrap_or_default();
    let calls = stats.split(',').find_map(|part| part.strip_prefix("calls=")).unwrap_or("0");
    calls.parse().unwrap()
}

#[test]
fn a_pipeline_is_decided_in_order_and_travels_together() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let server = on(&format!("{}?timeout=5s", redis.url()));
    let mut wire = connect(&server);
    let before = calls(&redis);
    let one = encoded(&["CL.THROTTLE", "k", "49", "1", "864000"]);
    let other = encoded(&["CL.THROTTLE", "other", "0", "1", "864000"]);
    let pipeline = [one.repeat(30), other.repeat(4), one.repeat(30)].concat();
    wire.send(&pipeline);
    let answers: Vec<Vec<i64>> = (0..64).map(|_| standing(&wire.receive())).collect();
    let ours = answers[..30].iter().chain(&answers[34..]);
    for (place, answer) in ours.enumerate() {
        let left = 49 - i64::try_from(place).unwrap();
        assert_eq!(answer[..3], [i64::from(left < 0), 50, left.max(0)], "{place}: {answers:?}");
    }
    let admitted: Vec<i64> = answers[30..34].iter().map(|answer| answer[0]).collect();
    assert_eq!(admitted, [0, 1, 1, 1]);
    let calls = calls(&redis) - before;
    assert!(calls <= 32, "{calls} calls for 64 commands");
}

#[test]
fn what_is_given_back_in_a_pipeline_is_there_for_the_next_command() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let server = on(&format!("{}?timeout=5s", redis.url()));
    let mut wire = connect(&server);
    let [take, give] = ["1", "-1"].map(|by| encoded(&["CL.THROTTLE", "k", "0", "1", "864000", by]));
    wire.send(&[&take[..], &give, &take, &take, &give, b"PING\r\n", &take].concat());
    let mut next = || wire.receive();
    assert_eq!(standing(&next()), [0, 1, 0, -1]);
    assert_eq!(standing(&next()), [0, 1, 1, -1]);
    assert_eq!(standing(&next()), [0, 1, 0, -1]);
    assert_eq!(next().integers()[0], 1);
    assert_eq!(standing(&next()), [0, 1, 1, -1]);
    assert_eq!(next(), Value::Simple("PONG".to_owned()));
    assert_eq!(standing(&next()), [0, 1, 0, -1]);
}

#[test]
fn a_store_that_does_not_answer_is_an_error_and_not_a_decision() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let server = on(&format!("{}?timeout=50ms", proxy.url()));
    let mut wire = connect(&server);
    proxy.refuse();
    proxy.drop_connections();
    wait_for("the store is out of reach", || (proxy.open() == 0).then_some(()));
    for quantity in ["1", "0", "-1"] {
        let command = ["CL.THROTTLE", "k", "1", "1", "60", quantity];
        let Value::Error(error) = wire.ask(&command) else { panic!("decided") };
        assert!(error.starts_with("UNAVAILABLE "), "{error}");
        assert!(!error.contains("127.0.0.1"), "{error}");
    }
    // A rule that allows then, does.
    let numbers = wire.ask(&["TG.CHECK", "per-key", "alice"]).integers();
    assert_eq!(numbers, [0, -1, -1, -1, 0, 0]);
    proxy.pass();
    wait_for("the store is back", || {
        let answer = wire.ask(&["CL.THROTTLE", "k", "1", "1", "60"]);
        matches!(answer, Value::Array(_)).then_some(())
    });
}
