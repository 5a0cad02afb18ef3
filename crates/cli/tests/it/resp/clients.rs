//! Unmodified Redis clients against the RESP listener.

use std::path::Path;
use std::process::{Command, Output};

use tidegate_testkit::{Tool, lacking};

use super::RULES;
use crate::kit::{Folder, Server};

/// Runs a program and returns its stdout.
///
/// # Panics
/// The program fails or prints a warning.
fn run_to_success(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    assert!(!stderr.contains("WARNING"), "{stderr}");
    stdout.into_owned()
}

fn resp_port(server: &Server) -> String {
    server.listener("resp").port().to_string()
}

/// Starts a server with the password `sesame`.
pub(crate) fn server_with_password() -> Server {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let listen = "listen: {http: 127.0.0.1:0}";
    // The server has read the rules before the folder is removed.
    Server::with_config(&format!("{listen}\nresp: {{password: sesame}}\nrules: {{file: {rules}}}"))
}

fn redis_cli(server: &Server, arguments: &[&str]) -> String {
    run_to_success(Command::new("redis-cli").args(["-p", &resp_port(server)]).args(arguments))
}

#[test]
fn redis_cli_works_unchanged() {
    if lacking(&[Tool::RedisCli]) {
        return;
    }
    let server = Server::with_rules(RULES);
    assert_eq!(redis_cli(&server, &["PING"]), "PONG\n");
    let throttle = ["CL.THROTTLE", "user123", "15", "30", "60"];
    assert_eq!(redis_cli(&server, &throttle), "0\n16\n15\n-1\n2\n");
    let resp3 = ["-3", "--json", "CL.THROTTLE", "other", "15", "30", "60"];
    assert_eq!(redis_cli(&server, &resp3).trim(), "[0,16,15,-1,2]");
    let check = redis_cli(&server, &["TG.CHECK", "api", "alice", "2"]);
    assert!(check.starts_with("0\n5\n3\n-1\n"), "{check}");
    let unknown = redis_cli(&server, &["GET", "a"]);
    assert_eq!(unknown.trim(), "ERR unknown command 'GET', with args beginning with: 'a'");
    let five = redis_cli(&server, &["-r", "5", "CL.THROTTLE", "rep", "2", "1", "864000"]);
    let limited: Vec<&str> = five.lines().step_by(5).collect();
    assert_eq!(limited, ["0", "0", "0", "1", "1"]);
    let protected = server_with_password();
    let greeting = redis_cli(&protected, &["--no-auth-warning", "-a", "sesame", "-3", "PING"]);
    assert_eq!(greeting, "PONG\n");
    assert!(redis_cli(&protected, &["PING"]).starts_with("NOAUTH "));
}

#[test]
fn redis_benchmark_works_unchanged() {
    if lacking(&[Tool::RedisBenchmark]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let load = ["-n", "20000", "-c", "20", "-P", "16", "--csv"];
    let command = ["CL.THROTTLE", "bench", "1000000", "1", "1000"];
    let mut benchmark = Command::new("redis-benchmark");
    benchmark.args(["-p", &resp_port(&server)]).args(load).args(command);
    let report = run_to_success(&mut benchmark);
    assert!(report.contains("CL.THROTTLE bench 1000000 1 1000"), "{report}");
    // Every command was charged.
    let remaining = redis_cli(&server, &["CL.THROTTLE", "bench", "1000000", "1", "1000", "0"]);
    assert_eq!(remaining.lines().nth(2), Some("980001"), "{remaining}");
}

fn script_path(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/resp");
    folder.join(name).to_str().unwrap().to_owned()
}

#[test]
fn redis_py_works_unchanged() {
    if lacking(&[Tool::RedisPy]) {
        return;
    }
    let (server, protected) = (Server::with_rules(RULES), server_with_password());
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", Tool::RedisPy.path().unwrap()).env("PYTHONDONTWRITEBYTECODE", "1");
    python.args([&script_path("redis_py.py"), &resp_port(&server), &resp_port(&protected)]);
    assert_eq!(run_to_success(&mut python), "fine\n");
}

#[test]
fn ioredis_works_unchanged() {
    if lacking(&[Tool::Ioredis]) {
        return;
    }
    let (server, protected) = (Server::with_rules(RULES), server_with_password());
    let mut node = Command::new("node");
    node.env("NODE_PATH", Tool::Ioredis.path().unwrap());
    node.args([&script_path("ioredis.js"), &resp_port(&server), &resp_port(&protected)]);
    assert_eq!(run_to_success(&mut node), "fine\n");
}
