//! The RESP listener with a Redis store: batched pipelines, and errors during an outage.

use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, lacking, wait_for};

use super::connection::{RespValue, encode_command};
use super::{connect, throttle_numbers};
use crate::kit::Server;

const REDIS: Tool = Tool::Server(Flavour::Redis);

fn server_on(url: &str) -> Server {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0", "--redis", url]);
    wait_for("the server is ready", || {
        (server.request("GET", "/readyz", "").status == 200).then_some(())
    });
    server
}

/// Returns the number of script calls that a Redis has executed.
fn script_calls(redis: &Redis) -> u64 {
    let stats = redis.info("cmdstat_evalsha").unwrap_or_default();
    let calls = stats.split(',').find_map(|part| part.strip_prefix("calls=")).unwrap_or("0");
    calls.parse().unwrap()
}

#[test]
fn pipeline_is_decided_in_order_with_few_store_calls() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let server = server_on(&format!("{}?timeout=5s", redis.url()));
    let mut connection = connect(&server);
    let before = script_calls(&redis);
    let one = encode_command(&["CL.THROTTLE", "k", "49", "1", "864000"]);
    let other = encode_command(&["CL.THROTTLE", "other", "0", "1", "864000"]);
    let pipeline = [one.repeat(30), other.repeat(4), one.repeat(30)].concat();
    connection.send(&pipeline);
    let replies: Vec<Vec<i64>> = (0..64).map(|_| throttle_numbers(&connection.receive())).collect();
    let replies_for_k = replies[..30].iter().chain(&replies[34..]);
    for (index, reply) in replies_for_k.enumerate() {
        let remaining = 49 - i64::try_from(index).unwrap();
        assert_eq!(
            reply[..3],
            [i64::from(remaining < 0), 50, remaining.max(0)],
            "{index}: {replies:?}"
        );
    }
    let admitted: Vec<i64> = replies[30..34].iter().map(|reply| reply[0]).collect();
    assert_eq!(admitted, [0, 1, 1, 1]);
    let calls = script_calls(&redis) - before;
    assert!(calls <= 32, "{calls} calls for 64 commands");
}

#[test]
fn refund_in_a_pipeline_is_available_to_the_next_command() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let server = server_on(&format!("{}?timeout=5s", redis.url()));
    let mut connection = connect(&server);
    let [charge, refund] = ["1", "-1"]
        .map(|quantity| encode_command(&["CL.THROTTLE", "k", "0", "1", "864000", quantity]));
    connection
        .send(&[&charge[..], &refund, &charge, &charge, &refund, b"PING\r\n", &charge].concat());
    let mut next = || connection.receive();
    assert_eq!(throttle_numbers(&next()), [0, 1, 0, -1]);
    assert_eq!(throttle_numbers(&next()), [0, 1, 1, -1]);
    assert_eq!(throttle_numbers(&next()), [0, 1, 0, -1]);
    assert_eq!(next().integers()[0], 1);
    assert_eq!(throttle_numbers(&next()), [0, 1, 1, -1]);
    assert_eq!(next(), RespValue::Simple("PONG".to_owned()));
    assert_eq!(throttle_numbers(&next()), [0, 1, 0, -1]);
}

#[test]
fn unreachable_store_returns_an_error_instead_of_a_decision() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let server = server_on(&format!("{}?timeout=50ms", proxy.url()));
    let mut connection = connect(&server);
    proxy.refuse();
    proxy.drop_connections();
    wait_for("the connections to the store are closed", || (proxy.open() == 0).then_some(()));
    for quantity in ["1", "0", "-1"] {
        let command = ["CL.THROTTLE", "k", "1", "1", "60", quantity];
        let RespValue::Error(error) = connection.call(&command) else { panic!("decided") };
        assert!(error.starts_with("UNAVAILABLE "), "{error}");
        assert!(!error.contains("127.0.0.1"), "{error}");
    }
    // The rule `per-key` allows requests while the store fails.
    let numbers = connection.call(&["TG.CHECK", "per-key", "alice"]).integers();
    assert_eq!(numbers, [0, -1, -1, -1, 0, 0]);
    proxy.pass();
    wait_for("the store is used again", || {
        let reply = connection.call(&["CL.THROTTLE", "k", "1", "1", "60"]);
        matches!(reply, RespValue::Array(_)).then_some(())
    });
}
