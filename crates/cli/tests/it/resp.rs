//! The RESP listener: commands, logins and versions, over raw bytes.

mod clients;
mod store;
mod wire;

use std::io::{ErrorKind, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use self::wire::{Value, Wire};
use crate::kit::{Folder, Server, run, shown, tidegate};

const RULES: &str = "
rules:
  - {name: api, per: [user], limit: 5 per 10 days}
  - {name: pair, per: [user, path], limit: 2 per 10 days, tiers: {by: plan, limits: {pro: 9 per 10 days}}}
  - {name: all, limit: 3 per 10 days}
  - {name: queue, per: [user], limit: 1 per 10 seconds, algorithm: leaky_bucket, queue: 3}
  - {name: idle, per: [user], limit: 1 per second, mode: off}
";

fn connect(server: &Server) -> Wire {
    Wire::to(server.listener("resp"))
}

fn ok() -> Value {
    Value::Simple("OK".to_owned())
}

/// The numbers of a decision but for the last, which time changes.
fn standing(value: &Value) -> Vec<i64> {
    let mut numbers = value.integers();
    assert_eq!(numbers.len(), 5, "{value:?}");
    numbers.pop();
    numbers
}

#[test]
fn cl_throttle_answers_as_redis_cell_documents() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut wire = connect(&server);
    let answer = wire.ask(&["CL.THROTTLE", "user123", "15", "30", "60"]);
    assert_eq!(answer.integers(), [0, 16, 15, -1, 2]);
    for left in (0..3).rev() {
        let answer = wire.ask(&["cl.throttle", "k", "2", "1", "864000"]);
        assert_eq!(standing(&answer), [0, 3, left, -1]);
    }
    let denied = wire.ask(&["CL.THROTTLE", "k", "2", "1", "864000", "1"]);
    let numbers = standing(&denied);
    assert_eq!(numbers[..3], [1, 3, 0]);
    assert!((863_000..=864_000).contains(&numbers[3]), "{numbers:?}");
    let looked = wire.ask(&["CL.THROTTLE", "k", "2", "1", "864000", "0"]);
    assert_eq!(standing(&looked), [0, 3, 0, -1]);
    let given = wire.ask(&["CL.THROTTLE", "k", "2", "1", "864000", "-2"]);
    assert_eq!(standing(&given), [0, 3, 2, -1]);
}

#[test]
fn arguments_that_make_no_sense_are_refused_and_the_connection_goes_on() {
    let server = Server::with_rules(RULES);
    let mut wire = connect(&server);
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
        match wire.ask(command) {
            Value::Error(error) => assert!(error.starts_with(wanted), "{command:?}: {error}"),
            other => panic!("{command:?}: {other:?}"),
        }
    }
    let long = "x".repeat(8 * 1024 + 1);
    let Value::Error(error) = wire.ask(&["CL.THROTTLE", &long, "1", "1", "1"]) else { panic!() };
    assert_eq!(error, "ERR key: found 8193 bytes, wanted at most 8192 bytes");
    wire.send(b"*5\r\n$11\r\nCL.THROTTLE\r\n$2\r\n\xff\xfe\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n");
    let Value::Error(error) = wire.receive() else { panic!() };
    assert_eq!(error, "ERR key: found other bytes, wanted text in UTF-8");
    assert_eq!(wire.ask(&["PING"]), Value::Simple("PONG".to_owned()));
}

#[test]
fn tg_check_meets_the_buckets_that_http_meets() {
    let server = Server::with_rules(RULES);
    let mut wire = connect(&server);
    assert_eq!(server.check(r#"{"rule":"api","client":"alice"}"#).json()["remaining"], 4);
    let numbers = |answer: Value| {
        let numbers = answer.integers();
        assert_eq!(numbers.len(), 6, "{numbers:?}");
        (numbers[0], numbers[1], numbers[2], numbers[3] > 0, numbers[5])
    };
    assert_eq!(numbers(wire.ask(&["TG.CHECK", "api", "alice"])), (0, 5, 3, false, 0));
    assert_eq!(numbers(wire.ask(&["TG.CHECK", "api", "alice", "3"])), (0, 5, 0, false, 0));
    assert_eq!(numbers(wire.ask(&["tg.check", "api", "alice"])), (1, 5, 0, true, 0));
    assert_eq!(server.check(r#"{"rule":"api","client":"alice"}"#).status, 429);
    // More than the limit ever admits: no wait helps.
    assert_eq!(wire.ask(&["TG.CHECK", "api", "bob", "6"]).integers()[..4], [1, 5, 5, -1]);
    let pair = ["TG.CHECK", "pair", "1", "user", "alice", "path", "/a"];
    assert_eq!(numbers(wire.ask(&pair)), (0, 2, 1, false, 0));
    let body = r#"{"rule":"pair","client":{"user":"alice","path":"/a"}}"#;
    assert_eq!(server.check(body).json()["remaining"], 0);
    let pro = ["TG.CHECK", "pair", "1", "user", "carol", "path", "/a", "plan", "pro"];
    assert_eq!(numbers(wire.ask(&pro)), (0, 9, 8, false, 0));
    assert_eq!(numbers(wire.ask(&["TG.CHECK", "all", ""])), (0, 3, 2, false, 0));
    // A rule that is off counts nothing.
    assert_eq!(wire.ask(&["TG.CHECK", "idle", "alice"]).integers(), [0, -1, -1, -1, 0, 0]);
    assert_eq!(wire.ask(&["TG.CHECK", "queue", "alice"]).integers()[5], 0);
    let delay = wire.ask(&["TG.CHECK", "queue", "alice"]).integers()[5];
    assert!((9_000..=10_000).contains(&delay), "{delay}");
}

#[test]
fn what_is_asked_here_is_counted_as_everywhere() {
    let server = Server::with_rules(RULES);
    let mut wire = connect(&server);
    wire.ask(&["TG.CHECK", "api", "alice"]);
    for _ in 0..3 {
        wire.ask(&["CL.THROTTLE", "k", "0", "1", "864000"]);
    }
    wire.ask(&["TG.CHECK", "nope", "alice"]);
    wire.ask(&["CL.THROTTLE", "k", "0", "0", "0"]);
    let metrics = server.manage("GET", "/metrics", "").body;
    for line in [r#"tidegate_check_duration_seconds_count{listener="resp"} 4"#, "tidegate_rules 5"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} in {metrics}");
    }
    let rules = server.manage("GET", "/v1/rules", "").body;
    assert!(rules.contains("api") && !rules.contains("cl.throttle"), "{rules}");
}

#[test]
fn a_client_that_is_blocked_is_told_for_how_long() {
    let server = Server::with_rules(RULES);
    let blocked =
        server.manage("POST", "/v1/block", r#"{"attribute":"user","value":"mallory","for":"1h"}"#);
    assert!(blocked.status < 300, "{blocked:?}");
    let numbers = connect(&server).ask(&["TG.CHECK", "api", "mallory"]).integers();
    assert_eq!(numbers[..3], [1, -1, 0]);
    assert!((3_500..=3_600).contains(&numbers[3]), "{numbers:?}");
}

#[test]
fn what_clients_say_when_they_connect_is_understood() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut wire = connect(&server);
    assert_eq!(wire.ask(&["CLIENT", "GETNAME"]), Value::Null);
    for command in [
        &["CLIENT", "SETNAME", "app"][..],
        &["CLIENT", "SETINFO", "LIB-NAME", "redis-py"],
        &["CLIENT", "NO-EVICT", "on"],
        &["SELECT", "0"],
    ] {
        assert_eq!(wire.ask(command), ok(), "{command:?}");
    }
    assert_eq!(wire.ask(&["CLIENT", "GETNAME"]), Value::Bulk("app".to_owned()));
    assert!(wire.ask(&["CLIENT", "ID"]).integer() > 0);
    let Value::Bulk(info) = wire.ask(&["INFO", "server"]) else { panic!() };
    assert!(info.contains("redis_version:7.") && info.contains("\r\nloading:0\r\n"), "{info}");
    let count = wire.ask(&["COMMAND", "COUNT"]).integer();
    let Value::Array(all) = wire.ask(&["COMMAND"]) else { panic!() };
    assert_eq!(i64::try_from(all.len()).unwrap(), count);
    let Value::Array(info) = wire.ask(&["COMMAND", "INFO", "cl.throttle", "get"]) else { panic!() };
    assert!(matches!(&info[..], [Value::Array(_), Value::Null]), "{info:?}");
    let Value::Array(docs) = wire.ask(&["COMMAND", "DOCS", "ping"]) else { panic!() };
    assert_eq!(docs[0], Value::Bulk("ping".to_owned()));
    let save = wire.ask(&["CONFIG", "GET", "save"]);
    assert_eq!(
        save,
        Value::Array(vec![Value::Bulk("save".to_owned()), Value::Bulk(String::new())])
    );
    assert_eq!(wire.ask(&["ECHO", "a\r\nb"]), Value::Bulk("a\r\nb".to_owned()));
    assert_eq!(wire.ask(&["PING", "hi"]), Value::Bulk("hi".to_owned()));
    assert_eq!(wire.ask(&["QUIT"]), ok());
    assert_eq!(wire.rest(), "");
}

#[test]
fn hello_chooses_the_version() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut wire = connect(&server);
    let Value::Array(greeting) = wire.ask(&["HELLO"]) else { panic!() };
    assert_eq!(greeting.len(), 14);
    let Value::Map(greeting) = wire.ask(&["HELLO", "3", "SETNAME", "app"]) else { panic!() };
    let proto = greeting.iter().find(|(name, _)| *name == Value::Bulk("proto".to_owned())).unwrap();
    assert_eq!(proto.1, Value::Integer(3));
    assert_eq!(wire.ask(&["CLIENT", "GETNAME"]), Value::Bulk("app".to_owned()));
    assert!(matches!(wire.ask(&["CONFIG", "GET", "save"]), Value::Map(_)));
    // Decisions are arrays in both versions.
    assert_eq!(wire.ask(&["CL.THROTTLE", "k", "0", "1", "60"]).integers(), [0, 1, 0, -1, 60]);
    assert_eq!(wire.ask(&["RESET"]), Value::Simple("RESET".to_owned()));
    assert!(matches!(wire.ask(&["CONFIG", "GET", "save"]), Value::Array(_)));
}

/// What a stranger may do, and what it takes to be let in.
fn refuses_strangers(server: &Server, password: &str) {
    let mut wire = connect(server);
    let noauth = Value::Error("NOAUTH Authentication required.".to_owned());
    for command in
        [&["PING"][..], &["CL.THROTTLE", "k", "1", "1", "1"], &["INFO"], &["CLIENT", "ID"]]
    {
        assert_eq!(wire.ask(command), noauth, "{command:?}");
    }
    let Value::Error(error) = wire.ask(&["HELLO", "3"]) else { panic!() };
    assert!(error.starts_with("NOAUTH HELLO must be called with the client"), "{error}");
    for command in [
        &["AUTH", "wrong"][..],
        &["AUTH", "admin", password],
        &["HELLO", "3", "AUTH", "default", ""],
    ] {
        let Value::Error(error) = wire.ask(command) else { panic!() };
        assert!(error.starts_with("WRONGPASS "), "{error}");
    }
    assert_eq!(wire.ask(&["PING"]), noauth);
    assert_eq!(wire.ask(&["AUTH", password]), ok());
    assert_eq!(wire.ask(&["PING"]), Value::Simple("PONG".to_owned()));
    assert_eq!(wire.ask(&["RESET"]), Value::Simple("RESET".to_owned()));
    assert_eq!(wire.ask(&["PING"]), noauth);
    assert!(matches!(wire.ask(&["HELLO", "3", "AUTH", "default", password]), Value::Map(_)));
    assert_eq!(wire.ask(&["PING"]), Value::Simple("PONG".to_owned()));
}

#[test]
fn a_listener_with_a_password_answers_nobody_who_has_not_said_it() {
    let listen = "listen: {http: 127.0.0.1:0}\n";
    let here = Server::with_config(&format!("{listen}resp: {{password: open sesame}}"));
    refuses_strangers(&here, "open sesame");
    let folder = Folder::new();
    let file = folder.file("password", "from-a-file\n");
    let filed = Server::with_config(&format!("{listen}resp: {{password_file: {file}}}"));
    refuses_strangers(&filed, "from-a-file");
    let mut command = tidegate();
    command.env("TIDEGATE_RESP_PASSWORD", "from-outside").args(["serve", "--http", "127.0.0.1:0"]);
    refuses_strangers(&Server::launch_command(command), "from-outside");
}

#[test]
fn a_password_that_is_none_keeps_the_listener_shut() {
    let folder = Folder::new();
    let empty = folder.file("empty", "\n");
    for (resp, code, wanted) in [
        (
            "{password: a, password_file: b}".to_owned(),
            1,
            "resp must have password or password_file, found both",
        ),
        ("{password: ''}".to_owned(), 1, "resp.password must be some text, found none"),
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
fn a_taken_resp_port_names_its_own_flag() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let address = server.listener("resp").to_string();
    let (code, stdout, stderr) = shown(
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
             hint: --resp 127.0.0.1:0 takes any free port\n\
             hint: --resp off does without the listener\n"
        )
    );
}

#[test]
fn a_stop_ends_idle_clients_and_the_server() {
    let mut server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    let mut wire = connect(&server);
    assert_eq!(wire.ask(&["PING"]), Value::Simple("PONG".to_owned()));
    server.signal("INT");
    assert_eq!(wire.rest(), "");
    assert_eq!(server.wait().code(), Some(0));
}

/// What the server keeps in memory, in KiB.
fn memory(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

mod serial {
    use super::*;

    #[test]
    fn clients_that_do_not_read_cost_little_and_hurt_nobody() {
        let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
        let address = server.listener("resp");
        let mut other = connect(&server);
        assert_eq!(other.ask(&["PING"]), Value::Simple("PONG".to_owned()));
        let echo = [&b"*2\r\n$4\r\nECHO\r\n$16000\r\n"[..], &[b'x'; 16_000], b"\r\n"].concat();
        let come = |count: usize| -> Vec<(TcpStream, usize)> {
            let come = (0..count).map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
                // Until neither side takes any more; a socket's own buffers hold some megabytes.
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
            come.collect()
        };
        // For the first ones the allocator takes some megabytes that serve all of them.
        let first = come(20);
        let before = memory(&server);
        let deaf = come(40);
        assert!(deaf.iter().all(|(_, sent)| *sent > 100_000));
        assert_eq!(other.ask(&["PING"]), Value::Simple("PONG".to_owned()));
        let kept = memory(&server).saturating_sub(before);
        // Each may have a full buffer both ways, and what it asked last.
        assert!(kept < 40 * 500, "{kept} KiB for 40 clients");
        drop(first);
    }
}
