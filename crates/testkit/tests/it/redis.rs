//! One server: its settings, and its end.

use std::net::TcpStream;
use std::process::Command;
use std::thread;

use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

const REDIS: Tool = Tool::Server(Flavour::Redis);

#[test]
fn redis_replies_on_its_port_and_its_unix_socket() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    redis.query::<()>(&["SET", "place", "here"]);
    for url in [redis.url(), redis.unix_url()] {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let place: String = redis::cmd("GET").arg("place").query(&mut connection).unwrap();
        assert_eq!(place, "here");
    }
}

#[test]
fn concurrently_started_servers_are_independent() {
    if lacking(&[REDIS]) {
        return;
    }
    let starts: Vec<_> = (0..4).map(|_| thread::spawn(Redis::start)).collect();
    let servers: Vec<Redis> = starts.into_iter().map(|start| start.join().unwrap()).collect();
    for (place, redis) in servers.iter().enumerate() {
        redis.query::<()>(&["SET", "place", &place.to_string()]);
    }
    for (place, redis) in servers.iter().enumerate() {
        assert_eq!(redis.query::<usize>(&["GET", "place"]), place);
    }
}

#[test]
fn server_ends_when_its_handle_is_dropped_also_by_a_panic() {
    if lacking(&[REDIS]) {
        return;
    }
    let (send, port) = std::sync::mpsc::channel();
    let test = thread::spawn(move || {
        let redis = Redis::start();
        send.send((redis.port(), redis.folder().to_owned())).unwrap();
        assert!(redis.port() == 0, "this panic is meant");
    });
    assert!(test.join().is_err());
    let (port, folder) = port.recv().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(!folder.exists());
}

#[test]
fn server_continues_after_its_starting_thread_ends() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = thread::spawn(Redis::start).join().unwrap();
    assert_eq!(redis.query::<String>(&["PING"]), "PONG");
}

#[test]
fn restarted_server_is_empty_and_uses_the_same_port() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let address = redis.address();
    redis.query::<()>(&["SET", "key", "value"]);
    redis.kill();
    assert!(TcpStream::connect(&address).is_err());
    assert!(redis.try_query::<String>(&["PING"]).is_err());
    redis.restart();
    assert_eq!(redis.address(), address);
    assert!(TcpStream::connect(&address).is_ok());
    assert_eq!(redis.query::<Option<String>>(&["GET", "key"]), None);
}

#[test]
fn paused_server_does_not_reply_until_resumed() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let mut connection = redis.connection().unwrap();
    redis.pause();
    let (send, answered) = std::sync::mpsc::channel();
    let asking = thread::spawn(move || {
        let pong: String = redis::cmd("PING").query(&mut connection).unwrap();
        send.send(pong).unwrap();
    });
    assert!(answered.recv_timeout(std::time::Duration::from_millis(100)).is_err());
    redis.resume();
    assert_eq!(answered.recv().unwrap(), "PONG");
    asking.join().unwrap();
}

#[test]
fn server_accepts_configuration_lines_and_a_password() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::builder()
        .config("maxmemory", "64mb")
        .config("client-output-buffer-limit", "normal 1mb 1mb 10")
        .password("secret123")
        .start();
    let (_, maxmemory): (String, u64) = redis.query(&["CONFIG", "GET", "maxmemory"]);
    assert_eq!(maxmemory, 64 << 20);
    assert!(redis.url().starts_with("redis://:secret123@127.0.0.1:"));
    let stranger = redis::Client::open(format!("redis://{}", redis.address())).unwrap();
    let refused = stranger.get_connection().and_then(|mut connection| {
        redis::cmd("GET").arg("key").query::<Option<String>>(&mut connection)
    });
    assert!(refused.unwrap_err().to_string().contains("NOAUTH"));
}

#[test]
fn tls_server_accepts_clients_that_trust_its_authority() {
    if lacking(&[REDIS, Tool::Openssl]) {
        return;
    }
    let (redis, other) = (Redis::builder().tls().start(), Redis::builder().tls().start());
    let ping_trusting = |ca: std::path::PathBuf| {
        let mut command = Command::new("redis-cli");
        command.args(["-u", &redis.url(), "--tls", "--cacert"]).arg(ca).arg("PING");
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert_eq!(ping_trusting(redis.ca()).trim(), "PONG");
    assert_ne!(ping_trusting(other.ca()).trim(), "PONG");
}

#[test]
fn clock_offset_is_constant() {
    for flavour in [Flavour::Redis, Flavour::Valkey, Flavour::Redis6] {
        if lacking(&[Tool::Server(flavour), REDIS, Tool::Faketime]) {
            continue;
        }
        let right = Redis::start();
        for offset in [300, -5] {
            let wrong = Redis::builder().flavour(flavour).clock(offset).start();
            let before = i128::from(right.time_micros());
            let shown = i128::from(wrong.time_micros()) - i128::from(offset) * 1_000_000;
            let after = i128::from(right.time_micros());
            assert!(
                (before..=after).contains(&shown),
                "{flavour:?} {offset}: {before} {shown} {after}"
            );
            // What is set to expire does so after the time it was given, not at once and not never.
            wrong.query::<()>(&["SET", "key", "value", "PX", "50"]);
            wait_for("the key expires", || {
                wrong.query::<Option<String>>(&["GET", "key"]).is_none().then_some(())
            });
        }
    }
}

#[test]
fn flavour_selects_the_server_program() {
    for (flavour, field, majors) in [
        (Flavour::Redis, "redis_version", 7..100),
        (Flavour::Valkey, "valkey_version", 7..100),
        (Flavour::Redis6, "redis_version", 6..7),
    ] {
        if lacking(&[Tool::Server(flavour)]) {
            continue;
        }
        let version = Redis::builder().flavour(flavour).start().info(field).unwrap();
        let major: u32 = version.split('.').next().unwrap().parse().unwrap();
        assert!(majors.contains(&major), "{flavour:?} is {version}");
    }
}

#[test]
fn movable_clock_is_set_at_run_time_and_survives_a_restart() {
    for flavour in [Flavour::Redis, Flavour::Valkey] {
        if lacking(&[Tool::Server(flavour), REDIS, Tool::Faketime]) {
            continue;
        }
        let right = Redis::start();
        let moved = Redis::builder().flavour(flavour).movable_clock().start();
        let assert_off = |offset_millis: i64| {
            let before = i128::from(right.time_micros());
            let shown = i128::from(moved.time_micros()) - i128::from(offset_millis) * 1_000;
            let after = i128::from(right.time_micros());
            // A fraction of a second is added as a float.
            let expected = before - 10..=after + 10;
            assert!(expected.contains(&shown), "{flavour:?} {offset_millis}: {expected:?} {shown}");
        };
        assert_off(0);
        for offset_millis in [300_000, -2_500, 1] {
            moved.set_clock(offset_millis);
            assert_off(offset_millis);
        }
        moved.set_clock(-60_000);
        moved.restart();
        assert_off(-60_000);
    }
}

#[test]
fn query_is_repeated_after_the_process_was_stopped_and_continued() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    thread::scope(|scope| {
        let waiting =
            scope.spawn(|| redis.try_query::<Option<Vec<String>>>(&["BLPOP", "list", "2"]));
        wait_for("the query waits", || (redis.info("blocked_clients")? == "1").then_some(()));
        // The shell continues this process, which can't do it itself.
        let stopped =
            Command::new("sh").args(["-c", "kill -STOP $PPID && kill -CONT $PPID"]).status();
        assert!(stopped.unwrap().success());
        assert_eq!(waiting.join().unwrap().unwrap(), None);
    });
}
