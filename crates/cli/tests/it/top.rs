//! `tidegate top` in a real terminal, beside a server under load.

use std::fs;

use serde_json::json;
use tidegate_testkit::{Flavour, Port, Redis, Screen, Tool, lacking};

use crate::kit::{Folder, Server, run};

const RULES: &str = "
rules:
  - {name: api, per: [service], limit: 5 per 10 days}
  - {name: trial, match: {path: /trial}, per: [user], limit: 1 per 10 days, mode: shadow}
";

/// A shell with `tidegate top` in it, which notes how the terminal was before and after.
struct Watched {
    screen: Screen,
    folder: Folder,
}

impl Watched {
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

    /// Waits until it has ended, and looks whether the terminal is as it was.
    fn assert_restored(&self) {
        let shown = self.screen.wait_for("left 0");
        assert!(shown.lines().any(|line| line == "before we came"), "{shown}");
        assert!(!shown.contains("ALLOWED/s"), "{shown}");
        self.screen.enter("echo typing=$((40 + 2))");
        self.screen.wait_for("typing=42");
        assert_eq!(self.file("before") + "over\n", self.file("after"));
        assert_eq!(self.screen.fact("alternate_on"), "0");
        assert_eq!(self.screen.fact("cursor_flag"), "1");
    }
}

fn load(server: &Server) {
    let arguments = ["--rule", "api", "-n", "300", "--clients", "10"];
    let (status, _, notes) = run(&[&["bench", &server.url()], &arguments[..]].concat());
    assert_eq!(status, 0, "{notes}");
}

/// Whether a line starts with a word and has these.
fn has_line(shown: &str, first: &str, words: &[&str]) -> bool {
    shown
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .any(|line| line.first() == Some(&first) && words.iter().all(|word| line.contains(word)))
}

#[test]
fn rules_clients_and_listeners_of_a_server_under_load_are_seen() {
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let watched = Watched::start(&server, 120, 30);
    let screen = &watched.screen;
    screen.wait_for("ALLOWED/s");
    load(&server);
    // 10 clients with 5 each, of 300.
    let shown =
        screen.wait_until("the counts of the load", |shown| has_line(shown, "api", &["50", "250"]));
    assert!(shown.contains("trial") && shown.contains("p99"), "{shown}");
    screen.wait_until("history", |shown| shown.contains('█'));
    screen.press("Tab");
    screen.wait_until("clients", |shown| {
        shown.contains("REQUESTS") && has_line(shown, "client-3", &["30", "api"])
    });
    screen.press("s");
    screen.wait_until("denials", |shown| {
        shown.contains("DENIALS") && has_line(shown, "client-3", &["25", "api"])
    });
    screen.press("Tab");
    screen.wait_until("listeners", |shown| {
        shown.contains("LISTENER") && shown.contains("store: memory")
    });
    screen.press("1");
    screen.resize(60, 15);
    let narrow = screen.wait_until("a narrow terminal", |shown| {
        has_line(shown, "api", &[]) && shown.lines().all(|line| line.chars().count() <= 60)
    });
    assert!(narrow.contains("allowed") && narrow.contains("q quit"), "{narrow}");
    screen.press("?");
    screen.wait_for("any key closes it");
    screen.press("x");
    screen.press("q");
    watched.assert_restored();
}

#[test]
fn a_server_that_is_away_is_waited_for() {
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let port = Port::free();
    let admin = format!("127.0.0.1:{}", port.number());
    let arguments = ["--http", "127.0.0.1:0", "--admin", &admin];
    let watched = Watched::start_at(&format!("http://{admin}"), 100, 24);
    watched.screen.wait_for("away, trying again");
    let server = Server::with_arguments(&arguments);
    watched.screen.wait_until("the server", |shown| {
        shown.contains("per-key") && !shown.contains("away, trying again")
    });
    drop(server);
    let shown = watched.screen.wait_for("away, trying again");
    assert!(shown.contains("per-key"), "{shown}");
    watched.screen.press("C-c");
    watched.assert_restored();
}

#[test]
fn a_redis_that_is_away_is_seen_with_what_that_costs() {
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
    let watched = Watched::start(&server, 100, 24);
    let screen = &watched.screen;
    screen.wait_for("ALLOWED/s");
    screen.press("3");
    screen.wait_until("a closed breaker", |shown| has_line(shown, &address, &["closed"]));
    redis.kill();
    load(&server);
    screen.wait_until("an open breaker", |shown| has_line(shown, &address, &["OPEN"]));
    screen.press("1");
    screen.wait_until("what was admitted without it", |shown| {
        shown.lines().any(|line| line.starts_with(" failed open") && line.contains('█'))
    });
    screen.press("q");
    watched.assert_restored();
}

#[test]
fn a_terminal_is_given_back_to_who_ends_it_from_outside() {
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let watched = Watched::start(&server, 100, 24);
    watched.screen.wait_for("ALLOWED/s");
    let id = watched.file("id");
    let sent = std::process::Command::new("sh").args(["-c", &format!("kill -TERM {id}")]).status();
    assert!(sent.unwrap().success());
    watched.assert_restored();
}

#[test]
fn what_clients_call_themselves_never_reaches_the_terminal_as_it_is() {
    let evil = "evil\u{1b}]0;owned\u{7}\u{1b}[31m\u{9b}2J";
    let server = Server::with_rules("rules: [{name: names, per: [service], limit: 1 per 10 days}]");
    let asked = json!({"rule": "names", "client": evil}).to_string();
    for status in [200, 429] {
        assert_eq!(server.check(&asked).status, status);
    }
    let (status, frame, notes) = run(&["top", "--once", "--server", &server.admin_url()]);
    assert_eq!(status, 0, "{notes}");
    assert!(frame.contains("evil") && frame.contains("owned"), "{frame}");
    assert!(!frame.chars().any(|letter| letter.is_control() && letter != '\n'), "{frame:?}");
    if lacking(&[Tool::Tmux]) {
        return;
    }
    let watched = Watched::start(&server, 100, 24);
    watched.screen.wait_for("ALLOWED/s");
    watched.screen.press("2");
    watched.screen.wait_for("evil");
    watched.screen.press("q");
    watched.assert_restored();
    let bytes = watched.screen.bytes();
    let has = |wanted: &[u8]| bytes.windows(wanted.len()).any(|found| found == wanted);
    assert!(has(b"evil") && has(b"owned"));
    assert!(!has(b"\x1b]0;owned") && !has(b"evil\x1b]") && !has("\u{9b}".as_bytes()));
}

#[test]
fn one_frame_is_for_scripts_and_a_server_that_is_away_is_a_failure() {
    let server = Server::with_rules(RULES);
    load(&server);
    let (status, frame, notes) = run(&["top", "--server", &server.admin_url()]);
    assert_eq!(status, 0, "{notes}");
    assert!(has_line(&frame, "api", &["50", "250"]) && frame.contains("store: memory"), "{frame}");
    let nobody = Port::free();
    let url = format!("http://127.0.0.1:{}", nobody.number());
    let (status, _, notes) = run(&["top", "--once", "--server", &url]);
    assert_eq!(status, 2);
    assert!(notes.contains("can't be reached") && notes.contains("hint: "), "{notes}");
    let (status, _, notes) = run(&["top", "--once", "--server", &server.url()]);
    assert_eq!(status, 2);
    assert!(notes.contains("admin listener"), "{notes}");
}
