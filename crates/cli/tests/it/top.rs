//! `tidegate top` in a real terminal, for a server under load.

use std::fs;

use serde_json::json;
use tidegate_testkit::{Flavour, Port, Redis, Screen, Tool, lacking};

use crate::kit::{Folder, Server, run};

const RULES: &str = "
rules:
  - {name: api, per: [service], limit: 5 per 10 days}
  - {name: trial, match: {path: /trial}, per: [user], limit: 1 per 10 days, mode: shadow}
";

/// A shell that runs `tidegate top`, and records the terminal settings before and after it.
struct TopSession {
    screen: Screen,
    folder: Folder,
}

impl TopSession {
    fn start(server: &Server, columns: u16, lines: u16) -> Self {
        Self::start_at(&server.admin_url(), columns, lines)
    }

    fn start_at(url: &str, columns: u16, lines: u16) -> Self {
        let (screen, folder) = (Screen::open(columns, lines), Folder::new());
        let program = env!("CARGO_BIN_EXE_tidegate");
        let script = format!(
            "cd '{}'; echo before we came; stty -g > before
             sh -c 'echo $$ > id; exec env -u TIDEGATE_TOKEN \"{program}\" top --server {url}'
             echo \"left $?\"; stty -g > after; echo over >> after\n",
            folder.path()
        );
        let script = folder.file("watch.sh", &script);
        screen.record();
        screen.enter(&format!("sh {script}"));
        Self { screen, folder }
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(format!("{}/{name}", self.folder.path())).unwrap_or_default()
    }

    /// Waits until `top` has exited, and panics unless the terminal is as before.
    fn assert_restored(&self) {
        let text = self.screen.wait_for("left 0");
        assert!(text.lines().any(|line| line == "before we came"), "{text}");
        assert!(!text.contains("ALLOWED/s"), "{text}");
        self.screen.enter("echo typing=$((40 + 2))");
        self.screen.wait_for("typing=42");
        assert_eq!(self.file("before") + "over\n", self.file("after"));
        assert_eq!(self.screen.fact("alternate_on"), "0");
        assert_eq!(self.screen.fact("cursor_flag"), "1");
    }
}

fn send_load(server: &Server) {
    let arguments = ["--rule", "api", "-n", "300", "--clients", "10"];
    let (status, _, stderr) = run(&[&["bench", &server.url()], &arguments[..]].concat());
    assert_eq!(status, 0, "{stderr}");
}

/// Returns whether a line starts with the word `first` and contains all of `words`.
fn has_line(text: &str, first: &str, words: &[&str]) -> bool {
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .any(|line| line.first() == Some(&first) && words.iter().all(|word| line.contains(word)))
}

#[test]
fn screen_shows_rules_clients_and_listeners_under_load() {
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let session = TopSession::start(&server, 120, 30);
    let screen = &session.screen;
    screen.wait_for("ALLOWED/s");
    send_load(&server);
    // Of 300 requests, 5 of each of the 10 clients are allowed.
    // One condition for the whole screen: a part of it may be drawn earlier.
    screen.wait_until("the counts of the load", |text| {
        has_line(text, "api", &["50", "250"]) && text.contains("trial") && text.contains("p99")
    });
    screen.wait_until("history", |text| text.contains('█'));
    screen.press("Tab");
    screen.wait_until("clients", |text| {
        text.contains("REQUESTS") && has_line(text, "client-3", &["30", "api"])
    });
    screen.press("s");
    screen.wait_until("denials", |text| {
        text.contains("DENIALS") && has_line(text, "client-3", &["25", "api"])
    });
    screen.press("Tab");
    screen.wait_until("listeners", |text| {
        text.contains("LISTENER") && text.contains("store: memory")
    });
    screen.press("1");
    screen.resize(60, 15);
    screen.wait_until("a narrow terminal", |text| {
        let is_narrow = text.lines().all(|line| line.chars().count() <= 60);
        is_narrow
            && has_line(text, "api", &[])
            && text.contains("allowed")
            && text.contains("q quit")
    });
    screen.press("?");
    screen.wait_for("any key closes it");
    screen.press("x");
    screen.press("q");
    session.assert_restored();
}

#[test]
fn unreachable_server_is_retried_until_it_answers() {
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let port = Port::free();
    let admin = format!("127.0.0.1:{}", port.number());
    let arguments = ["--http", "127.0.0.1:0", "--admin", &admin];
    let session = TopSession::start_at(&format!("http://{admin}"), 100, 24);
    session.screen.wait_for("unreachable, retrying");
    let server = Server::with_arguments(&arguments);
    session.screen.wait_until("the server", |text| {
        text.contains("per-key") && !text.contains("unreachable, retrying")
    });
    drop(server);
    session.screen.wait_until("the last figures beside the error", |text| {
        text.contains("unreachable, retrying") && text.contains("per-key")
    });
    session.screen.press("C-c");
    session.assert_restored();
}

#[test]
fn redis_outage_shows_the_open_breaker_and_requests_that_failed_open() {
    if lacking(&[Tool::Tmux, Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let (rules, address) = (folder.file("rules.yaml", RULES), redis.address());
    let server = Server::with_arguments(&[
        "--rules",
        &rules,
        "--http",
        "127.0.0.1:0",
        "--redis",
        &redis.url(),
    ]);
    let session = TopSession::start(&server, 100, 24);
    let screen = &session.screen;
    screen.wait_for("ALLOWED/s");
    screen.press("3");
    screen.wait_until("a closed breaker", |text| has_line(text, &address, &["closed"]));
    redis.kill();
    send_load(&server);
    screen.wait_until("an open breaker", |text| has_line(text, &address, &["OPEN"]));
    screen.press("1");
    screen.wait_until("requests that failed open", |text| {
        text.lines().any(|line| line.starts_with(" failed open") && line.contains('█'))
    });
    screen.press("q");
    session.assert_restored();
}

#[test]
fn sigterm_restores_the_terminal() {
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let session = TopSession::start(&server, 100, 24);
    session.screen.wait_for("ALLOWED/s");
    let id = session.file("id");
    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -TERM {id}")]).status();
    assert!(sent.unwrap().success());
    session.assert_restored();
}

#[test]
fn control_characters_of_client_names_never_reach_the_terminal() {
    let evil = "evil\u{1b}]0;owned\u{7}\u{1b}[31m\u{9b}2J";
    let server = Server::with_rules("rules: [{name: names, per: [service], limit: 1 per 10 days}]");
    let request = json!({"rule": "names", "client": evil}).to_string();
    for status in [200, 429] {
        assert_eq!(server.check(&request).status, status);
    }
    let (status, frame, stderr) = run(&["top", "--once", "--server", &server.admin_url()]);
    assert_eq!(status, 0, "{stderr}");
    assert!(frame.contains("evil") && frame.contains("owned"), "{frame}");
    assert!(!frame.chars().any(|letter| letter.is_control() && letter != '\n'), "{frame:?}");
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let session = TopSession::start(&server, 100, 24);
    session.screen.wait_for("ALLOWED/s");
    session.screen.press("2");
    session.screen.wait_for("evil");
    session.screen.press("q");
    session.assert_restored();
    let bytes = session.screen.bytes();
    let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|found| found == wanted);
    assert!(has(b"evil") && has(b"owned"));
    assert!(!has(b"\x1b]0;owned") && !has(b"evil\x1b]") && !has("\u{9b}".as_bytes()));
}

#[test]
fn output_to_a_pipe_is_one_frame_and_an_unreachable_server_is_an_error() {
    let server = Server::with_rules(RULES);
    send_load(&server);
    let (status, frame, stderr) = run(&["top", "--server", &server.admin_url()]);
    assert_eq!(status, 0, "{stderr}");
    assert!(has_line(&frame, "api", &["50", "250"]) && frame.contains("store: memory"), "{frame}");
    let unused_port = Port::free();
    let url = format!("http://127.0.0.1:{}", unused_port.number());
    let (status, _, stderr) = run(&["top", "--once", "--server", &url]);
    assert_eq!(status, 2);
    assert!(stderr.contains("can't be reached") && stderr.contains("hint: "), "{stderr}");
    let (status, _, stderr) = run(&["top", "--once", "--server", &server.url()]);
    assert_eq!(status, 2);
    assert!(stderr.contains("admin listener"), "{stderr}");
}
