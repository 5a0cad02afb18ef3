//! `MULTI`, `EXEC` and `DISCARD` on the RESP listener.

use tidegate_testkit::{Flavour, Redis, Tool, lacking};

use super::connection::{RespConnection, RespValue, encode_command};
use super::{RULES, connect, ok, server_with_password, throttle_numbers};
use crate::kit::Server;

fn queued() -> RespValue {
    RespValue::Simple("QUEUED".to_owned())
}

fn error(text: &str) -> RespValue {
    RespValue::Error(text.to_owned())
}

/// Returns the remaining tokens of a key with the limit `9 1 864000`.
fn remaining(connection: &mut RespConnection, key: &str) -> i64 {
    connection.call(&["CL.THROTTLE", key, "9", "1", "864000", "0"]).integers()[2]
}

fn discarded() -> RespValue {
    error("EXECABORT Transaction discarded because of previous errors.")
}

#[test]
fn exec_runs_the_queued_commands_in_order() {
    let server = Server::with_rules(RULES);
    let mut connection = connect(&server);
    assert_eq!(connection.call(&["MULTI"]), ok());
    for command in [
        &["CL.THROTTLE", "k", "9", "1", "864000"][..],
        &["PING"],
        &["TG.CHECK", "nope", "a"],
        &["CL.THROTTLE", "k", "9", "1", "864000", "3"],
        &["TG.CHECK", "api", "alice", "2"],
    ] {
        assert_eq!(connection.call(command), queued(), "{command:?}");
    }
    let mut other = connect(&server);
    assert_eq!(remaining(&mut other, "k"), 10, "nothing is charged before EXEC");
    let RespValue::Array(replies) = connection.call(&["EXEC"]) else { panic!() };
    assert_eq!(throttle_numbers(&replies[0]), [0, 10, 9, -1]);
    assert_eq!(replies[1], RespValue::Simple("PONG".to_owned()));
    assert!(matches!(&replies[2], RespValue::Error(text) if text.starts_with("ERR rule: ")));
    assert_eq!(throttle_numbers(&replies[3]), [0, 10, 6, -1]);
    assert_eq!(replies[4].integers()[..3], [0, 5, 3]);
    assert_eq!(replies.len(), 5);
    assert_eq!(connection.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
    assert_eq!(connection.call(&["EXEC"]), error("ERR EXEC without MULTI"));
}

#[test]
fn transaction_with_a_rejected_command_charges_nothing() {
    let server = Server::with_rules(RULES);
    let throttle = ["CL.THROTTLE", "k", "9", "1", "864000"];
    let mut connection = connect(&server);
    let mut ended = encode_command(&throttle);
    ended.extend_from_slice(&encode_command(&["EXEC"]));
    for rejected in [
        &["GET", "a"][..],
        &["CL.THROTTLE", "k"],
        &["WATCH", "k"],
        &["CLIENT", "ID"],
        &["AUTH", "x"],
        &["HELLO", "3"],
    ] {
        assert_eq!(connection.call(&["MULTI"]), ok());
        assert_eq!(connection.call(&throttle), queued());
        let reply = connection.call(rejected);
        assert!(matches!(reply, RespValue::Error(_)), "{rejected:?}: {reply:?}");
        // Both commands arrive in one packet, as client libraries send them.
        connection.send(&ended);
        assert_eq!(connection.receive(), queued());
        assert_eq!(connection.receive(), discarded(), "{rejected:?}");
    }
    assert_eq!(remaining(&mut connection, "k"), 10);
}

#[test]
fn discard_reset_and_the_end_of_the_connection_charge_nothing() {
    let server = Server::with_rules(RULES);
    let throttle = ["CL.THROTTLE", "k", "9", "1", "864000"];
    let mut connection = connect(&server);
    for (end, reply) in [("DISCARD", "OK"), ("RESET", "RESET"), ("QUIT", "OK")] {
        assert_eq!(connection.call(&["MULTI"]), ok());
        assert_eq!(connection.call(&throttle), queued());
        assert_eq!(connection.call(&[end]), RespValue::Simple(reply.to_owned()));
        if end != "QUIT" {
            assert_eq!(connection.call(&["EXEC"]), error("ERR EXEC without MULTI"));
        }
    }
    assert_eq!(remaining(&mut connect(&server), "k"), 10);
}

#[test]
fn transaction_over_its_size_is_rejected_and_charges_nothing() {
    let server = Server::with_rules(RULES);
    let mut connection = connect(&server);
    let key = "k".repeat(8_000);
    let throttle = ["CL.THROTTLE", &key, "9", "1", "864000"];
    assert_eq!(connection.call(&["MULTI"]), ok());
    let first_error = (0..100).find_map(|count| match connection.call(&throttle) {
        RespValue::Error(text) => Some((count, text)),
        _ => None,
    });
    let (count, text) = first_error.unwrap();
    assert_eq!(count, 256 * 1024 / encode_command(&throttle).len());
    assert_eq!(text, "ERR transaction: found more than 262144 bytes, wanted at most 262144");
    assert_eq!(connection.call(&throttle), queued());
    assert_eq!(connection.call(&["EXEC"]), discarded());
    assert_eq!(remaining(&mut connection, &key), 10);
}

#[test]
fn transaction_requires_authentication() {
    let server = server_with_password();
    let mut connection = connect(&server);
    assert_eq!(connection.call(&["MULTI"]), error("NOAUTH Authentication required."));
    assert_eq!(connection.call(&["AUTH", "sesame"]), ok());
    assert_eq!(connection.call(&["MULTI"]), ok());
    assert_eq!(connection.call(&["RESET"]), RespValue::Simple("RESET".to_owned()));
    assert_eq!(connection.call(&["PING"]), error("NOAUTH Authentication required."));
}

/// Returns inputs that Redis rejects as well.
fn rejected_inputs() -> Vec<Vec<u8>> {
    let command = |words: &[&str]| encode_command(words);
    let inputs: [&[u8]; 11] = [
        b"ECHO \"a\r\n",
        b"ECHO 'a' \"b\"c\r\n",
        b"*x\r\n",
        b"*99999999999\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$999999999999\r\n",
        b"*1\r\nPING\r\n",
        b"*2\r\n$4\r\nECHO\r\n:1\r\n",
        b"ECHO\r\n",
        b"NOPE a 'b c'\r\n",
    ];
    let mut inputs: Vec<Vec<u8>> = inputs.iter().map(|input| input.to_vec()).collect();
    inputs.extend([
        command(&["ECHO", "a", "b"]),
        command(&["SELECT"]),
        command(&["CLIENT"]),
        command(&["CLIENT", "SETNAME"]),
        command(&["MULTI", "a"]),
        command(&["NOPE"]),
        command(&["SELECT", "99"]),
        command(&["HELLO", "9"]),
        command(&["EXEC"]),
        command(&["DISCARD"]),
        [command(&["MULTI"]), command(&["MULTI"])].concat(),
        [command(&["MULTI"]), command(&["NOPE"]), command(&["EXEC"])].concat(),
        [command(&["MULTI"]), command(&["ECHO"]), command(&["PING"]), command(&["EXEC"])].concat(),
    ]);
    inputs
}

/// Sends the input and `QUIT`, and returns the replies until the server closes the connection.
fn replies_to(mut connection: RespConnection, input: &[u8]) -> String {
    connection.send(input);
    connection.send(b"QUIT\r\n");
    connection.read_to_end()
}

#[test]
fn error_texts_start_with_those_of_redis() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, server) = (Redis::start(), Server::with_rules(RULES));
    let address = redis.address().parse().unwrap();
    for input in rejected_inputs() {
        let wanted = replies_to(RespConnection::connect(address), &input);
        let found = replies_to(connect(&server), &input);
        let context = format!("{}: {found:?}, Redis {wanted:?}", input.escape_ascii());
        assert!(wanted.contains("-ERR ") || wanted.contains("-NOPROTO"), "{context}");
        assert_eq!(found.lines().count(), wanted.lines().count(), "{context}");
        // Tidegate adds its own bound to some texts.
        for (found, wanted) in found.lines().zip(wanted.lines()) {
            assert!(found.starts_with(wanted), "{context}");
        }
    }
}
