//! The RESP listener: commands, authentication and protocol versions, as raw bytes.

mod clients;
mod connection;
mod store;
mod transactions;

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use self::clients::server_with_password;
use self::connection::{RespConnection, RespValue};
use crate::kit::{Folder, Server, exit_code_and_output, run, tidegate};

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 5 per 10 days}
  - {name: pair, per: [user, path], limit: 2 per 10 days, tiers: {by: plan, limits: {pro: 9 per 10 days}}}
  - {name: all, limit: 3 per 10 days}
  - {name: queue, per: [user], limit: 1 per 10 seconds, algorithm: leaky_bucket, queue: 3}
  - {name: idle, per: [user], limit: 1 per second, mode: off}
";

fn connect(server: &Server) -> RespConnection {
    RespConnection::connect(server.listener("resp"))
}

fn ok() -> RespValue {
    RespValue::Simple("OK".to_owned())
}

/// Returns the numbers of a `CL.THROTTLE` reply without the last one, which depends on the time.
fn throttle_numbers(value: &RespValue) -> Vec<i64> {
    let mut numbers = value.integers();
    assert_eq!(numbers.len(), 5, "{value:?}");
    numbers.pop();
    numbers
}

#[test]
fn cl_throttle_replies_as_redis_cell_documents() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut connection = connect(&server);
    let reply = connection.call(&["CL.THROTTLE", "user123", "15", "30", "60"]);
    assert_eq!(reply.integers(), [0, 16, 15, -1, 2]);
    for remaining in (0..3).rev() {
        let reply = connection.call(&["cl.throttle", "k", "2", "1", "864000"]);
        assert_eq!(throttle_numbers(&reply), [0, 3, remaining, -1]);
    }
    let denied = connection.call(&["CL.THROTTLE", "k", "2", "1", "864000", "1"]);
    let numbers = throttle_numbers(&denied);
    assert_eq!(numbers[..3], [1, 3, 0]);
    assert!((863_000..=864_000).contains(&numbers[3]), "{numbers:?}");
    let peeked = connection.call(&["CL.THROTTLE", "k", "2", "1", "864000", "0"]);
    assert_eq!(throttle_numbers(&peeked), [0, 3, 0, -1]);
    let refunded = connection.call(&["CL.THROTTLE", "k", "2", "1", "864000", "-2"]);
    assert_eq!(throttle_numbers(&refunded), [0, 3, 2, -1]);
}

#[test]
fn invalid_commands_get_an_error_and_keep_the_connection_open() {
    let server = Server::with_rules(RULES);
    let mut connection = connect(&server);
    for (command, wanted) in [
        (&["CL.THROTTLE", "k"][..], "ERR wrong number of arguments for 'cl.throttle' command"),
        (&["CL.THROTTLE", "k", "1", "1", "1", "1", "1"], "ERR wrong number of arguments for"),
        (&["CL.THROTTLE", "k", "1", "0", "60"], "ERR count: found \"0\", wanted a whole number"),
        (&["CL.THROTTLE", "k", "1", "1", "x\r\ny"], "ERR period: found \"x\\r\\ny\", wanted"),
        (&["TG.CHECK", "api"], "ERR wrong number of arguments for 'tg.check' command"),
        (&["TG.CHECK", "nope", "a"], "ERR rule: found \"nope\", wanted one of api, pair, all"),
        (&["TG.CHECK", "cl.throttle", "a"], "ERR rule: found \"cl.throttle\", wanted one of api"),
        (&["TG.CHECK", "api", "a", "-1"], "ERR cost: found \"-1\", wanted a whole number from 0"),
        (
            &["TG.CHECK", "pair", "a"],
            "ERR client: found a text, wanted an object with user and path",
        ),
        (&["GET", "k"], "ERR unknown command 'GET', with args beginning with: 'k'"),
        (&["SELECT", "1"], "ERR DB index is out of range"),
        (&["CLIENT", "KILL", "1"], "ERR unknown subcommand \"KILL\" of client"),
        (&["AUTH", "x"], "ERR AUTH <password> called without any password configured"),
        (&["HELLO", "4"], "NOPROTO unsupported protocol version"),
    ] {
        match connection.call(command) {
            RespValue::Error(error) => assert!(error.starts_with(wanted), "{command:?}: {error}"),
            other => panic!("{command:?}: {other:?}"),
        }
    }
    let long = "x".repeat(8 * 1024 + 1);
    let RespValue::Error(error) = connection.call(&["CL.THROTTLE", &long, "1", "1", "1"]) else {
        panic!()
    };
    assert_eq!(error, "ERR key: found 8193 bytes, wanted at most 8192 bytes");
    assert_eq!(connection.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
}

#[test]
fn key_of_any_bytes_has_a_bucket_of_its_own() {
    let server = Server::with_rules(RULES);
    let mut connection = connect(&server);
    for key in [&b"\xff\xfe"[..], b"\xff\xff", br"\xFF\xFE"] {
        for limited in [0, 0, 1] {
            let length = format!("*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n", key.len());
            let numbers = b"\r\n$1\r\n1\r\n$1\r\n1\r\n$6\r\n864000\r\n";
            connection.send(&[length.as_bytes(), key, numbers].concat());
            assert_eq!(connection.receive().integers()[0], limited, "{key:?}");
        }
    }
}

#[test]
fn tg_check_uses_the_same_buckets_as_http() {
    let server = Server::with_rules(RULES);
    let mut connection = connect(&server);
    assert_eq!(server.check(r#"{"rule":"api","client":"alice"}"#).json()["remaining"], 4);
    let numbers = |reply: RespValue| {
        let numbers = reply.integers();
        assert_eq!(numbers.len(), 6, "{numbers:?}");
        (numbers[0], numbers[1], numbers[2], numbers[3] > 0, numbers[5])
    };
    assert_eq!(numbers(connection.call(&["TG.CHECK", "api", "alice"])), (0, 5, 3, false, 0));
    assert_eq!(numbers(connection.call(&["TG.CHECK", "api", "alice", "3"])), (0, 5, 0, false, 0));
    assert_eq!(numbers(connection.call(&["tg.check", "api", "alice"])), (1, 5, 0, true, 0));
    assert_eq!(server.check(r#"{"rule":"api","client":"alice"}"#).status, 429);
    // A cost above the limit has no retry time.
    assert_eq!(connection.call(&["TG.CHECK", "api", "bob", "6"]).integers()[..4], [1, 5, 5, -1]);
    let pair = ["TG.CHECK", "pair", "1", "user", "alice", "path", "/a"];
    assert_eq!(numbers(connection.call(&pair)), (0, 2, 1, false, 0));
    let body = r#"{"rule":"pair","client":{"user":"alice","path":"/a"}}"#;
    assert_eq!(server.check(body).json()["remaining"], 0);
    let pro = ["TG.CHECK", "pair", "1", "user", "carol", "path", "/a", "plan", "pro"];
    assert_eq!(numbers(connection.call(&pro)), (0, 9, 8, false, 0));
    assert_eq!(numbers(connection.call(&["TG.CHECK", "all", ""])), (0, 3, 2, false, 0));
    // A rule with `mode: off` counts nothing.
    assert_eq!(connection.call(&["TG.CHECK", "idle", "alice"]).integers(), [0, -1, -1, -1, 0, 0]);
    assert_eq!(connection.call(&["TG.CHECK", "queue", "alice"]).integers()[5], 0);
    let delay = connection.call(&["TG.CHECK", "queue", "alice"]).integers()[5];
    assert!((9_000..=10_000).contains(&delay), "{delay}");
}

#[test]
fn resp_checks_are_counted_and_cl_throttle_is_not_listed_as_a_rule() {
    let server = Server::with_rules(RULES);
    let mut connection = connect(&server);
    connection.call(&["TG.CHECK", "api", "alice"]);
    for _ in 0..3 {
        connection.call(&["CL.THROTTLE", "k", "0", "1", "864000"]);
    }
    connection.call(&["TG.CHECK", "nope", "alice"]);
    connection.call(&["CL.THROTTLE", "k", "0", "0", "0"]);
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for line in [r#"tidegate_check_duration_seconds_count{listener="resp"} 4"#, "tidegate_rules 5"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    let rules = server.request_admin("GET", "/v1/rules", "").body;
    assert!(rules.contains("api") && !rules.contains("cl.throttle"), "{rules}");
}

#[test]
fn invalid_commands_are_counted_by_reason_and_logged_and_charge_nothing() {
    let server = Server::with_rules(RULES);
    assert_eq!(server.check("{").status, 400);
    let mut connection = connect(&server);
    let long = "x".repeat(9_000);
    for command in [
        &["NOPE", "s3cret"][..],
        &["CL.THROTTLE", "k"],
        &["CL.THROTTLE", "k", "1", "0", "60"],
        &["TG.CHECK", "api", "alice", "-1"],
        &["TG.CHECK", "pair", "s3cret"],
        &["TG.CHECK", "api", "1", "user", &long],
        &["TG.CHECK", "api", &long],
        &["CL.THROTTLE", &long, "1", "1", "60"],
        &["AUTH", "s3cret"],
        &["TG.CHECK", "nope", "alice"],
    ] {
        let reply = connection.call(command);
        assert!(matches!(reply, RespValue::Error(_)), "{command:?}: {reply:?}");
    }
    let inputs: [&[u8]; 3] = [b"*1\r\n:1\r\n", b"ECHO \"a\r\n", &[b'x'; 20_000]];
    for input in inputs {
        let mut broken = connect(&server);
        broken.send(input);
        assert!(broken.read_to_end().starts_with("-ERR Protocol error: "));
    }
    let metrics = server.request_admin("GET", "/metrics", "").body;
    for (reason, count) in [("malformed", 5), ("too_large", 4), ("undecodable", 2)] {
        let line = format!(
            "tidegate_invalid_calls_total{{listener=\"resp\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let line = server.wait_for_log("invalid call listener=\"resp\"");
    assert!(line.contains("malformed") && !line.contains("s3cret"), "{line}");
    assert_eq!(connection.call(&["TG.CHECK", "api", "alice", "0"]).integers()[2], 5);
}

#[test]
fn blocked_client_gets_the_remaining_block_time() {
    let server = Server::with_rules(RULES);
    let blocked = server.request_admin(
        "POST",
        "/v1/block",
        r#"{"attribute":"user","value":"mallory","for":"1h"}"#,
    );
    assert!(blocked.status < 300, "{blocked:?}");
    let numbers = connect(&server).call(&["TG.CHECK", "api", "mallory"]).integers();
    assert_eq!(numbers[..3], [1, -1, 0]);
    assert!((3_500..=3_600).contains(&numbers[3]), "{numbers:?}");
}

#[test]
fn handshake_commands_of_client_libraries_are_supported() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut connection = connect(&server);
    assert_eq!(connection.call(&["CLIENT", "GETNAME"]), RespValue::Null);
    for command in [
        &["CLIENT", "SETNAME", "app"][..],
        &["CLIENT", "SETINFO", "LIB-NAME", "redis-py"],
        &["CLIENT", "NO-EVICT", "on"],
        &["SELECT", "0"],
    ] {
        assert_eq!(connection.call(command), ok(), "{command:?}");
    }
    assert_eq!(connection.call(&["CLIENT", "GETNAME"]), RespValue::Bulk("app".to_owned()));
    assert!(connection.call(&["CLIENT", "ID"]).integer() > 0);
    let RespValue::Bulk(info) = connection.call(&["INFO", "server"]) else { panic!() };
    assert!(info.contains("redis_version:7.") && info.contains("\r\nloading:0\r\n"), "{info}");
    let count = connection.call(&["COMMAND", "COUNT"]).integer();
    let RespValue::Array(all) = connection.call(&["COMMAND"]) else { panic!() };
    assert_eq!(i64::try_from(all.len()).unwrap(), count);
    let RespValue::Array(info) = connection.call(&["COMMAND", "INFO", "cl.throttle", "get"]) else {
        panic!()
    };
    assert!(matches!(&info[..], [RespValue::Array(_), RespValue::Null]), "{info:?}");
    let RespValue::Array(docs) = connection.call(&["COMMAND", "DOCS", "ping"]) else { panic!() };
    assert_eq!(docs[0], RespValue::Bulk("ping".to_owned()));
    let save = connection.call(&["CONFIG", "GET", "save"]);
    assert_eq!(
        save,
        RespValue::Array(vec![RespValue::Bulk("save".to_owned()), RespValue::Bulk(String::new())])
    );
    assert_eq!(connection.call(&["ECHO", "a\r\nb"]), RespValue::Bulk("a\r\nb".to_owned()));
    assert_eq!(connection.call(&["PING", "hi"]), RespValue::Bulk("hi".to_owned()));
    assert_eq!(connection.call(&["QUIT"]), ok());
    assert_eq!(connection.read_to_end(), "");
}

#[test]
fn hello_selects_the_protocol_version() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut connection = connect(&server);
    let RespValue::Array(greeting) = connection.call(&["HELLO"]) else { panic!() };
    assert_eq!(greeting.len(), 14);
    let RespValue::Map(greeting) = connection.call(&["HELLO", "3", "SETNAME", "app"]) else {
        panic!()
    };
    let proto =
        greeting.iter().find(|(name, _)| *name == RespValue::Bulk("proto".to_owned())).unwrap();
    assert_eq!(proto.1, RespValue::Integer(3));
    assert_eq!(connection.call(&["CLIENT", "GETNAME"]), RespValue::Bulk("app".to_owned()));
    assert!(matches!(connection.call(&["CONFIG", "GET", "save"]), RespValue::Map(_)));
    // Decisions are arrays in both versions.
    assert_eq!(
        connection.call(&["CL.THROTTLE", "k", "0", "1", "60"]).integers(),
        [0, 1, 0, -1, 60]
    );
    assert_eq!(connection.call(&["RESET"]), RespValue::Simple("RESET".to_owned()));
    assert!(matches!(connection.call(&["CONFIG", "GET", "save"]), RespValue::Array(_)));
}

/// Panics unless every command needs this password, sent by AUTH or HELLO.
fn assert_password_is_required(server: &Server, password: &str) {
    let mut connection = connect(server);
    let noauth = RespValue::Error("NOAUTH Authentication required.".to_owned());
    for command in
        [&["PING"][..], &["CL.THROTTLE", "k", "1", "1", "1"], &["INFO"], &["CLIENT", "ID"]]
    {
        assert_eq!(connection.call(command), noauth, "{command:?}");
    }
    let RespValue::Error(error) = connection.call(&["HELLO", "3"]) else { panic!() };
    assert!(error.starts_with("NOAUTH HELLO must be called with the client"), "{error}");
    for command in [&["AUTH", "admin", password][..], &["HELLO", "3", "AUTH", "default", ""]] {
        let RespValue::Error(error) = connection.call(command) else { panic!() };
        assert!(error.starts_with("WRONGPASS "), "{error}");
    }
    assert_eq!(connection.call(&["PING"]), noauth);
    assert_eq!(connection.call(&["AUTH", password]), ok());
    assert_eq!(connection.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
    assert_eq!(connection.call(&["RESET"]), RespValue::Simple("RESET".to_owned()));
    assert_eq!(connection.call(&["PING"]), noauth);
    assert!(matches!(
        connection.call(&["HELLO", "3", "AUTH", "default", password]),
        RespValue::Map(_)
    ));
    assert_eq!(connection.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
}

#[test]
fn listener_with_a_password_requires_authentication() {
    let listen = "listen: {http: 127.0.0.1:0}\n";
    let inline = Server::with_config(&format!("{listen}resp: {{password: open sesame}}"));
    assert_password_is_required(&inline, "open sesame");
    let folder = Folder::new();
    let file = folder.file("password", "from-a-file\n");
    let from_file = Server::with_config(&format!("{listen}resp: {{password_file: {file}}}"));
    assert_password_is_required(&from_file, "from-a-file");
    let mut command = tidegate();
    command.env("TIDEGATE_RESP_PASSWORD", "from-outside").args(["serve", "--http", "127.0.0.1:0"]);
    assert_password_is_required(&Server::launch_command(command), "from-outside");
}

#[test]
fn invalid_password_setting_prevents_the_start() {
    let folder = Folder::new();
    let empty = folder.file("empty", "\n");
    for (resp, code, wanted) in [
        (
            "{password: a, password_file: b}".to_owned(),
            1,
            "resp must have password or password_file, found both",
        ),
        ("{password: ''}".to_owned(), 1, "resp.password must not be empty, found no text"),
        ("{pass: a}".to_owned(), 1, "there is no key \"pass\""),
        (format!("{{password_file: {empty}}}"), 2, "a password is wanted, found nothing"),
        ("{password_file: nowhere}".to_owned(), 2, "No such file"),
    ] {
        let config = folder.file("tidegate.yaml", &format!("resp: {resp}"));
        let (found, stdout, stderr) = run(&["serve", "--config", &config]);
        assert_eq!((found, &*stdout), (code, ""), "{stderr}");
        assert!(stderr.contains(wanted), "{stderr}");
    }
}

#[test]
fn error_of_a_used_resp_port_names_its_flag() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let address = server.listener("resp").to_string();
    let (code, stdout, stderr) = exit_code_and_output(
        tidegate()
            .args(["serve", "--http", "127.0.0.1:0", "--grpc", "off", "--resp", &address])
            .output()
            .unwrap(),
    );
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        format!(
            "error: resp can't listen on {address}: the address is already in use\n\
             hint: --resp 127.0.0.1:0 uses any free port\n\
             hint: --resp off disables the listener\n"
        )
    );
}

#[test]
fn sigint_closes_idle_connections_and_stops_the_server() {
    let mut server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut connection = connect(&server);
    assert_eq!(connection.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
    server.signal("INT");
    assert_eq!(connection.read_to_end(), "");
    assert_eq!(server.wait().code(), Some(0));
}

/// Returns the resident memory of the server in KiB.
fn resident_kib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

mod serial {
    use super::*;

    #[test]
    fn clients_that_do_not_read_use_little_memory_and_do_not_delay_others() {
        let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
        let address = server.listener("resp");
        let mut other = connect(&server);
        assert_eq!(other.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
        let echo = [&b"*2\r\n$4\r\nECHO\r\n$16000\r\n"[..], &[b'x'; 16_000], b"\r\n"].concat();
        let connect_without_reading = |count: usize| -> Vec<(TcpStream, usize)> {
            let streams = (0..count).map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
                // Write until all buffers are full. Those of the sockets hold some megabytes.
                let mut sent = 0;
                loop {
                    // A write that takes longer than the timeout is partial.
                    match stream.write(&echo[sent % echo.len()..]) {
                        Ok(length) => sent += length,
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            break (stream, sent);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            streams.collect()
        };
        // For the first clients the allocator reserves some megabytes that later clients use as well.
        let first = connect_without_reading(20);
        let before = resident_kib(&server);
        let clients = connect_without_reading(40);
        assert!(clients.iter().all(|(_, sent)| *sent > 100_000));
        assert_eq!(other.call(&["PING"]), RespValue::Simple("PONG".to_owned()));
        let growth = resident_kib(&server).saturating_sub(before);
        // Each client may have a full read buffer, a full write buffer and one command.
        assert!(growth < 40 * 500, "{growth} KiB for 40 clients");
        drop(first);
    }
}
