//! Servers that share a Redis: limits, fallbacks during an outage, connection settings and fleet size.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Connection, Folder, Server, exit_code_and_output, tidegate};

const REDIS: Tool = Tool::Server(Flavour::Redis);

/// Store timeout that a busy machine does not exceed.
const LONG_TIMEOUT: &str = "timeout=5s";

const RULES: &str = "
rules:
  - {name: open, per: [user], limit: 4 per 10 days, on_store_failure: allow}
  - {name: closed, per: [user], limit: 4 per 10 days, on_store_failure: deny}
  - {name: local, per: [user], limit: 4 per 10 days, on_store_failure: local}
";

fn serve_command(folder: &Folder, more: &[&str]) -> Command {
    let rules = folder.file("rules.yaml", RULES);
    let mut command = tidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules]).args(more);
    command
}

fn server_on(url: &str) -> Server {
    Server::launch_command(serve_command(&Folder::new(), &["--redis", url]))
}

fn check_status(server: &Server, rule: &str, user: &str) -> u16 {
    server.check(&format!(r#"{{"rule":"{rule}","client":"{user}"}}"#)).status
}

fn wait_until_ready(server: &Server) {
    wait_for("the server is ready", || {
        (server.request("GET", "/readyz", "").status == 200).then_some(())
    });
}

/// Sends checks on several threads to every server, and returns how many are admitted.
///
/// # Panics
/// A status is neither 200 nor 429.
fn count_admitted(
    servers: &[Server],
    threads: usize,
    checks_per_thread: usize,
    rule: &str,
    user: &str,
) -> usize {
    let body = format!(r#"{{"rule":"{rule}","client":"{user}"}}"#);
    let send_checks = |mut connection: Connection| {
        let mut admitted = 0;
        for _ in 0..checks_per_thread {
            connection.send("POST", "/v1/check", &body);
            match connection.receive(false).status {
                200 => admitted += 1,
                429 => {}
                other => panic!("undecided: {other}"),
            }
        }
        admitted
    };
    let connections = servers.iter().flat_map(|server| (0..threads).map(|_| server.connect()));
    let connections: Vec<Connection> = connections.collect();
    std::thread::scope(|scope| {
        let threads =
            connections.into_iter().map(|connection| scope.spawn(|| send_checks(connection)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Returns the nodes of the fleet, each with the time of its last heartbeat.
fn fleet_nodes(redis: &Redis) -> Vec<(String, String)> {
    let names: Vec<String> = redis.query(&["KEYS", "*nodes*"]);
    let Some(name) = names.first() else { return Vec::new() };
    redis.query(&["ZRANGE", name, "0", "-1", "WITHSCORES"])
}

/// Waits until every node knows that the fleet has this size.
fn wait_for_fleet_size(redis: &Redis, size: usize) {
    wait_for("all nodes have joined", || (fleet_nodes(redis).len() == size).then_some(()));
    // A node sends a heartbeat only after the reply to the one before, which contains the fleet size.
    for _ in 0..2 {
        let before = fleet_nodes(redis);
        wait_for("all nodes sent another heartbeat", || {
            let now = fleet_nodes(redis);
            before.iter().all(|node| !now.contains(node)).then_some(())
        });
    }
}

#[test]
fn three_servers_share_one_limit_exactly() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let rules =
        "rules: [{name: api, per: [api_key], limit: 100 per 10 days, on_store_failure: deny}]";
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", rules);
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let servers = [(); 3].map(|()| {
        let http = ["--http", "127.0.0.1:0"];
        Server::with_arguments(&[&http[..], &["--rules", &rules, "--redis", &url]].concat())
    });
    servers.iter().for_each(wait_until_ready);
    assert_eq!(count_admitted(&servers, 4, 30, "api", "sk-live-0123456789"), 100);
    let keys: Vec<String> = redis.query(&["KEYS", "*"]);
    assert!(keys.iter().any(|key| key.starts_with("tg:")), "{keys:?}");
    assert!(!keys.iter().any(|key| key.contains("sk-live") || key.contains("api")), "{keys:?}");
}

#[test]
fn block_on_one_server_applies_to_all() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let (one, other) = (server_on(&url), server_on(&url));
    wait_until_ready(&one);
    wait_until_ready(&other);
    let response = one.request_admin(
        "POST",
        "/v1/block",
        r#"{"attribute":"user","value":"mallory","for":"1h"}"#,
    );
    assert!((200..300).contains(&response.status), "{response:?}");
    wait_for("the block applies to the other server", || {
        is_blocked(&other, "mallory").then_some(())
    });
    assert!(!is_blocked(&other, "alice"));
    let response =
        other.request_admin("DELETE", "/v1/block", r#"{"attribute":"user","value":"mallory"}"#);
    assert!((200..300).contains(&response.status), "{response:?}");
    wait_for("the block is removed from the first server", || {
        (!is_blocked(&one, "mallory")).then_some(())
    });
}

fn is_blocked(server: &Server, user: &str) -> bool {
    let response = server.check(&format!(r#"{{"rule":"open","client":"{user}","cost":0}}"#)).json();
    response["blocked"] == Value::Bool(true)
}

#[test]
fn each_rule_applies_its_fallback_during_a_redis_outage_and_its_limit_afterwards() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let servers = [server_on(&url), server_on(&url)];
    servers.iter().for_each(wait_until_ready);
    wait_for_fleet_size(&redis, 2);
    assert_eq!(check_status(&servers[0], "closed", "alice"), 200);

    redis.kill();
    for server in &servers {
        let answers = |rule: &str| -> Vec<u16> {
            (0..6).map(|_| check_status(server, rule, "alice")).collect()
        };
        assert_eq!(answers("open"), [200; 6]);
        assert_eq!(answers("closed"), [503; 6]);
        // Each of the two nodes has half of the limit of 4.
        assert_eq!(answers("local"), [200, 200, 429, 429, 429, 429]);
        for probe in ["/healthz", "/readyz"] {
            assert_eq!(server.request("GET", probe, "").status, 200);
        }
    }

    redis.restart();
    for server in &servers {
        wait_for("the store is used again", || {
            (check_status(server, "closed", "probe") != 503).then_some(())
        });
    }
    for rule in ["open", "closed", "local"] {
        assert_eq!(count_admitted(&servers, 2, 4, rule, "bob"), 4, "{rule}");
    }
}

#[test]
fn server_is_not_ready_until_redis_is_reachable() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    redis.kill();
    let server = server_on(&format!("{}?{LONG_TIMEOUT}", redis.url()));
    server.wait_for_log("cannot reach the store, starting without it and retrying");
    let ready = server.request("GET", "/readyz", "");
    assert_eq!(ready.status, 503);
    let wanted = format!("not ready: waiting for redis {}\n", redis.address());
    assert_eq!(ready.body, wanted);
    assert_eq!(server.request("GET", "/healthz", "").status, 200);
    assert_eq!(check_status(&server, "open", "alice"), 200);
    assert_eq!(check_status(&server, "closed", "alice"), 503);
    redis.restart();
    wait_until_ready(&server);
    assert_eq!(check_status(&server, "closed", "alice"), 200);
}

#[test]
fn start_logs_the_address_of_the_store() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let server = server_on(&format!("{}/3?{LONG_TIMEOUT}", redis.url()));
    let version = env!("CARGO_PKG_VERSION");
    let place = format!("redis://{}/3?timeout=5000ms", redis.address());
    assert_eq!(
        server.wait_for_log("tidegate "),
        format!("tidegate {version}, counting in {place}")
    );
    // The flag takes precedence over the configuration.
    let folder = Folder::new();
    let config = folder.file("tidegate.yaml", "store: {redis: {cluster: ['127.0.0.1:1']}}");
    let arguments = ["--http", "127.0.0.1:0", "--config", &config, "--redis", &redis.url()];
    let line = Server::with_arguments(&arguments).wait_for_log("counting in");
    assert_eq!(line, format!("tidegate {version}, counting in redis://{}", redis.address()));
}

#[test]
fn redis_password_is_never_logged() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::builder().password("hunter2").start();
    let address = redis.address();
    let folder = Folder::new();
    folder.file("password", "hunter2\n");
    let in_config =
        format!("store: {{redis: {{url: 'redis://{address}', timeout: 5s, password: hunter2}}}}");
    let in_file = format!(
        "store: {{redis: {{url: 'redis://{address}', timeout: 5s, password_file: password}}}}"
    );
    let in_config = folder.file("tidegate-1.yaml", &in_config);
    let in_file = folder.file("tidegate-2.yaml", &in_file);
    let plain = format!("redis://{address}?{LONG_TIMEOUT}");
    let with_password = format!("{}?{LONG_TIMEOUT}", redis.url());
    for (arguments, variable, is_correct) in [
        (["--redis", &with_password], None, true),
        (["--redis", &plain], Some("hunter2"), true),
        (["--config", &in_config], Some("hunter3"), true),
        (["--config", &in_file], None, true),
        (["--redis", &plain], Some("hunter3"), false),
        (["--redis", &plain], None, false),
    ] {
        let mut command = serve_command(&folder, &arguments);
        command.env("TIDEGATE_LOG", "trace");
        variable.map(|password| command.env("TIDEGATE_REDIS_PASSWORD", password));
        let server = Server::launch_command(command);
        let is_in_arguments = arguments[1].contains("hunter2");
        if is_correct {
            wait_until_ready(&server);
        } else {
            let wanted = format!("not ready: waiting for redis {address}\n");
            assert_eq!(server.request("GET", "/readyz", "").body, wanted);
        }
        assert_eq!(check_status(&server, "closed", "alice"), if is_correct { 200 } else { 503 });
        redis.query::<()>(&["FLUSHALL"]);
        let line = std::fs::read(format!("/proc/{}/cmdline", server.id())).unwrap();
        assert_eq!(String::from_utf8_lossy(&line).contains("hunter"), is_in_arguments);
        server.signal("TERM");
        let mut log = Vec::new();
        while log.last().is_none_or(|line: &String| !line.contains("stopping")) {
            log.push(server.wait_for_log(""));
        }
        let log = log.join("\n");
        assert!(!log.contains("hunter"), "{log}");
        assert!(log.contains(&format!("counting in redis://{address}")), "{log}");
        let hint = "hint: other users can read the password in --redis";
        assert_eq!(log.contains(hint), is_in_arguments, "{log}");
        let reason = match variable {
            Some(_) => "the password is not accepted",
            None => "a password is wanted, found none",
        };
        assert_eq!(log.contains(reason), !is_correct, "{log}");
    }
}

#[test]
fn unix_socket_and_tcp_port_reach_the_same_counters() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let socket = format!("redis+unix://{}?{LONG_TIMEOUT}", redis.socket().display());
    let servers = [server_on(&socket), server_on(&format!("{}?{LONG_TIMEOUT}", redis.url()))];
    servers.iter().for_each(wait_until_ready);
    assert_eq!(count_admitted(&servers, 2, 4, "closed", "alice"), 4);
}

#[test]
fn redis_with_tls_is_trusted_only_with_the_configured_ca() {
    if lacking(&[REDIS, Tool::Openssl]) {
        return;
    }
    let redis = Redis::builder().tls().start();
    let folder = Folder::new();
    let text =
        |tls: &str| format!("store: {{redis: {{url: '{}', timeout: 5s{tls}}}}}", redis.url());
    let with_ca = format!(", tls: {{ca: '{}'}}", redis.ca().display());
    let with_ca = folder.file("tidegate-1.yaml", &text(&with_ca));
    let without_ca = folder.file("tidegate-2.yaml", &text(""));
    let server = Server::launch_command(serve_command(&folder, &["--config", &with_ca]));
    wait_until_ready(&server);
    assert_eq!(check_status(&server, "closed", "alice"), 200);
    let server = Server::launch_command(serve_command(&folder, &["--config", &without_ca]));
    assert_eq!(server.request("GET", "/readyz", "").status, 503);
    assert_eq!(check_status(&server, "closed", "alice"), 503);
}

#[test]
fn servers_share_counters_only_with_the_same_fleet_secret() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let folder = Folder::new();
    let text = format!("store: {{redis: {{url: '{url}', secret: horse}}}}");
    let config = folder.file("tidegate.yaml", &text);
    let mut by_variable = serve_command(&folder, &["--redis", &url]);
    by_variable.env("TIDEGATE_REDIS_SECRET", "horse");
    let by_variable = Server::launch_command(by_variable);
    let by_config = Server::launch_command(serve_command(&folder, &["--config", &config]));
    let without = server_on(&url);
    let remaining_of = |server: &Server| -> Value {
        wait_until_ready(server);
        server.check(r#"{"rule":"closed","client":"alice"}"#).json()["remaining"].clone()
    };
    assert_eq!(
        [remaining_of(&by_variable), remaining_of(&by_config), remaining_of(&without)],
        [3, 2, 3]
    );
}

#[test]
fn configured_shards_form_one_store() {
    if lacking(&[REDIS]) {
        return;
    }
    let shards = [Redis::start(), Redis::start()];
    let folder = Folder::new();
    let [one, other] = [shards[0].address(), shards[1].address()];
    let text =
        format!("store:\n  redis:\n    shards: ['{one}', 'redis://{other}']\n    timeout: 5s\n");
    let config = folder.file("tidegate.yaml", &text);
    let servers =
        [(); 2].map(|()| Server::launch_command(serve_command(&folder, &["--config", &config])));
    servers.iter().for_each(wait_until_ready);
    for user in 0..40 {
        assert_eq!(count_admitted(&servers, 1, 3, "closed", &format!("user-{user}")), 4);
    }
    for shard in &shards {
        assert!(shard.query::<usize>(&["DBSIZE"]) > 4, "{}", shard.address());
    }
}

#[test]
fn servers_share_a_limit_through_a_cluster_or_a_sentinel_master() {
    if lacking(&[REDIS]) {
        return;
    }
    let cluster = tidegate_testkit::Cluster::start();
    let sentinel = tidegate_testkit::Sentinel::start();
    for url in [cluster.url(), sentinel.url()] {
        let url = format!("{url}?{LONG_TIMEOUT}");
        let servers = [server_on(&url), server_on(&url)];
        servers.iter().for_each(wait_until_ready);
        assert_eq!(count_admitted(&servers, 2, 4, "closed", "alice"), 4, "{url}");
    }
}

#[test]
fn stopping_server_leaves_the_fleet() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let _other = server_on(&url);
    let mut stopping = server_on(&url);
    wait_for("both nodes have joined", || (fleet_nodes(&redis).len() == 2).then_some(()));
    stopping.signal("TERM");
    assert_eq!(stopping.wait().code(), Some(0));
    stopping.wait_for_log("all requests completed");
    assert_eq!(fleet_nodes(&redis).len(), 1);
}

#[test]
fn server_stops_on_sigterm_while_redis_is_paused() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let mut server = server_on(&redis.url());
    wait_until_ready(&server);
    redis.pause();
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn unsupported_redis_version_prevents_the_start() {
    if lacking(&[Tool::Server(Flavour::Redis6)]) {
        return;
    }
    let redis = Redis::builder().flavour(Flavour::Redis6).start();
    let output = serve_command(&Folder::new(), &["--redis", &redis.url()]).output().unwrap();
    let (code, stdout, stderr) = exit_code_and_output(output);
    assert_eq!((code, &*stdout), (2, ""));
    let version = redis.info("redis_version").unwrap();
    let address = redis.address();
    assert_eq!(
        stderr,
        format!(
            "error: redis {address}: version 7.0 or later is wanted, found Redis {version}\n\
             hint: Redis 7 or later is required, or any Valkey\n"
        )
    );
}

#[test]
fn access_list_of_the_guide_permits_every_command_of_a_node() {
    if lacking(&[REDIS]) {
        return;
    }
    let guide = include_str!("../../../../docs/guide/redis.md");
    let grants = guide.split("A user of an access list needs").nth(1).unwrap();
    let (commands, keys) = (grants.split('`').nth(1).unwrap(), grants.split('`').nth(3).unwrap());
    let redis = Redis::start();
    let mut user = vec!["ACL", "SETUSER", "app", "on", ">hunter2", keys];
    user.extend(commands.split(' '));
    redis.query::<()>(&user);
    let folder = Folder::new();
    let mut servers = [(); 2].map(|()| {
        let url = format!("redis://app@{}?{LONG_TIMEOUT}", redis.address());
        let mut command = serve_command(&folder, &["--redis", &url]);
        command.env("TIDEGATE_REDIS_PASSWORD", "hunter2");
        Server::launch_command(command)
    });
    servers.iter().for_each(wait_until_ready);
    assert_eq!(count_admitted(&servers, 1, 4, "closed", "alice"), 4);
    wait_for_fleet_size(&redis, 2);
    servers[0].signal("TERM");
    assert_eq!(servers[0].wait().code(), Some(0));
    assert_eq!(fleet_nodes(&redis).len(), 1);
    // `ACL LOG` lists every command that Redis rejected.
    assert_eq!(redis.query::<Vec<Vec<String>>>(&["ACL", "LOG"]), Vec::<Vec<String>>::new());
}

/// A limit of 100, of which each of four nodes has a share of 25.
const LOCAL_RULES: &str =
    "rules: [{name: local, per: [user], limit: 100 per 10 days, on_store_failure: local}]";

/// Starts a node that stores its fleet size in `state`.
fn start_node(url: &str, state: &Folder) -> Server {
    let rules = state.file("rules.yaml", LOCAL_RULES);
    let mut command = tidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", url]);
    command.env("STATE_DIRECTORY", state.path());
    Server::launch_command(command)
}

/// Waits until a node has stored this fleet size, and returns the file.
fn wait_for_fleet_file(state: &Folder, nodes: usize) -> PathBuf {
    wait_for("the fleet size is stored", || {
        let files =
            std::fs::read_dir(state.path()).ok()?.filter_map(|file| Some(file.ok()?.path()));
        let mut stored = files.filter(|file| file.extension().is_some_and(|end| end == "json"));
        let has_size = |file: &PathBuf| {
            let text = std::fs::read_to_string(file);
            text.is_ok_and(|text| text.ends_with(&format!("\"nodes\":{nodes}}}")))
        };
        stored.find(has_size)
    })
}

/// Returns how many of 120 checks of one client a node admits.
fn count_local_admissions(server: &Server) -> usize {
    count_admitted(std::slice::from_ref(server), 1, 120, "local", "alice")
}

#[test]
fn restarts_while_redis_is_unreachable_admit_one_share_each() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let states: Vec<Folder> = (0..4).map(|_| Folder::new()).collect();
    let mut nodes: Vec<Server> = states.iter().map(|state| start_node(&url, state)).collect();
    states.iter().for_each(|state| drop(wait_for_fleet_file(state, 4)));
    redis.kill();
    let others = nodes.split_off(1);
    drop(nodes);
    let restarted: Vec<usize> = (0..4)
        .map(|_| {
            let server = start_node(&url, &states[0]);
            server.wait_for_log("use the last known fleet size");
            count_local_admissions(&server)
        })
        .collect();
    assert_eq!(restarted, [25; 4], "four restarts, one share of 25 each");
    let others: Vec<usize> = others.iter().map(count_local_admissions).collect();
    assert_eq!(others, [25; 3]);
}

#[test]
fn node_that_never_knew_its_fleet_warns_and_uses_the_whole_limit() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("{}?{LONG_TIMEOUT}", redis.url());
    let state = Folder::new();
    let first = start_node(&url, &state);
    let file = wait_for_fleet_file(&state, 1);
    redis.kill();
    drop(first);
    std::fs::remove_file(&file).unwrap();
    let missing = start_node(&url, &state);
    missing.wait_for_log("fleet size unknown");
    assert_eq!(count_local_admissions(&missing), 100);
    drop(missing);
    for text in ["", "{\"index\":0,\"nodes\":0}", "{\"index\":0,\"nodes\":4000000000}"] {
        std::fs::write(&file, text).unwrap();
        let damaged = start_node(&url, &state);
        let line = damaged.wait_for_log("stored fleet size can't be used");
        assert!(line.contains(file.to_str().unwrap()), "{line}");
        damaged.wait_for_log("fleet size unknown");
    }
}
