//! Frames as they are seen.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;
use crate::commands::top::feed::{Clients, News};

fn live(seconds: &[Value]) -> Value {
    fn outcomes(
        allowed: impl Into<Value>,
        denied: impl Into<Value>,
        failed_open: impl Into<Value>,
    ) -> Value {
        let (allowed, denied, failed_open): (Value, Value, Value) =
            (allowed.into(), denied.into(), failed_open.into());
        json!({"allowed": allowed, "denied": denied, "shadowAllowed": 0, "shadowDenied": 2,
            "failedOpen": failed_open, "failedClosed": 0, "blocked": 0})
    }
    json!({
        "node": "edge-1", "release": "0.1.0", "started": 1_763_300_000, "ready": true,
        "at": 1_763_300_192, "rulesVersion": 3, "rulesHash": "x", "store": "memory", "blocked": 2,
        "seconds": seconds,
        "rules": [
            {"rule": "api", "total": outcomes(120_000, 30, 0), "perSecond": outcomes(980.4, 0.0, 0.0)},
            {"rule": "login", "total": outcomes(10, 500, 0), "perSecond": outcomes(0.1, 12.25, 0.0)},
            {"rule": "pay", "total": outcomes(7, 0, 3), "perSecond": outcomes(0.7, 0.0, 0.3)},
        ],
    })
}

fn seconds() -> Vec<Value> {
    let second = |number: u64| {
        json!({"at": 1_763_300_152 + number, "allowed": 800 + number * 5, "denied": number % 8,
            "blocked": 0, "failedOpen": u64::from(number > 30), "unavailable": 0, "invalid": 1,
            "p50Micros": 12, "p99Micros": if number == 5 { Value::Null } else { json!(100 + number) }})
    };
    (0..40).map(second).collect()
}

fn fleet() -> Value {
    json!({
        "node": "edge-1", "latest": 3, "unknown": null,
        "nodes": [
            {"node": "edge-1", "source": "redis", "version": 3, "hash": "x", "behind": false,
                "problem": null, "seen": 1_763_300_180},
            {"node": "edge-2", "source": "redis", "version": 2, "hash": "y", "behind": true,
                "problem": "rules.yaml:3: limit: wrong", "seen": 1_763_300_100},
        ],
        "store": {"kind": "redis", "fleet": 2, "late": 4, "lost": 0, "remembered": 9, "failovers": 1,
            "leasedClients": 3, "leasedTokens": 250, "servers": [
                {"server": "127.0.0.1:6379", "up": true, "opened": 0, "timeouts": 1, "failures": 0,
                    "connections": 1, "p50Micros": 90, "p99Micros": 400, "memory": 1_500_000,
                    "maxMemory": 0, "keys": 1200, "evicted": 0},
                {"server": "127.0.0.1:6380", "up": false, "opened": 2, "timeouts": 30, "failures": 2,
                    "connections": 3, "p50Micros": null, "p99Micros": null, "memory": null,
                    "maxMemory": null, "keys": null, "evicted": null},
            ]},
        "listeners": [{"listener": "http", "open": 3, "accepted": 100, "most": 10_000}],
        "upstreams": [{"upstream": "default", "inFlight": 4, "most": null,
            "outcomes": {"answered": 90, "timeout": 2},
            "servers": [{"server": "127.0.0.1:3000", "up": true}, {"server": "127.0.0.1:3001", "up": false}]}],
        "process": {"cpuSeconds": 1.25, "residentBytes": 30_000_000, "threads": 9, "openFiles": 30},
    })
}

fn ranking(counted: &str) -> Value {
    json!({"by": "x", "since": 1, "seconds": 100, "clients": [
        {"rule": "login", "id": "user#1", "client": "mallory\u{1b}[2J\u{1b}]0;owned\u{7}", counted: 500, "atLeast": 500},
        {"rule": "api", "id": "api_key#77aa", "client": null, counted: 25, "atLeast": 20},
    ]})
}

fn picture() -> Picture {
    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }
    let mut picture = Picture::of("127.0.0.1:9090");
    picture.hear(News::Live(Ok(read(live(&seconds())))));
    let clients = Clients { traffic: read(ranking("requests")), denials: read(ranking("denials")) };
    picture.hear(News::Clients(Ok(clients)));
    picture.hear(News::Fleet(Ok(read(fleet()))));
    picture
}

fn seen(picture: &Picture, screen: &Screen, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        draw(picture, screen, Palette::new(true), frame.area(), frame.buffer_mut());
    };
    terminal.draw(draw).unwrap();
    terminal.backend().to_string()
}

const USUAL: (u16, u16) = (100, 24);
const NARROW: (u16, u16) = (60, 15);

fn on(page: Page) -> Screen {
    Screen { page, ..Screen::default() }
}

#[test]
fn every_page_fits_terminals_wide_and_narrow() {
    let picture = picture();
    for page in Page::ALL {
        for (name, size) in [("wide", USUAL), ("narrow", NARROW)] {
            insta::assert_snapshot!(
                format!("{}-{name}", page.name()),
                seen(&picture, &on(page), size)
            );
        }
    }
}

#[test]
fn a_server_that_is_away_is_said_to_be_and_what_was_known_stays() {
    let mut picture = picture();
    picture.hear(News::Live(Err("127.0.0.1:9090 can't be reached: refused".into())));
    let shown = seen(&picture, &on(Page::Overview), USUAL);
    assert!(shown.contains("away, trying again: 127.0.0.1:9090 can't be reached: refused"));
    assert!(shown.contains("login"), "{shown}");
    let mut nobody = Picture::of("127.0.0.1:9090");
    assert!(seen(&nobody, &on(Page::Fleet), USUAL).contains("tidegate at 127.0.0.1:9090"));
    nobody.hear(News::Live(Err("no".into())));
    assert!(seen(&nobody, &on(Page::Overview), NARROW).contains("away, trying again: no"));
}

#[test]
fn no_size_is_too_small_and_no_line_is_too_far() {
    let picture = picture();
    for page in Page::ALL {
        for (width, height) in [(1, 1), (2, 3), (7, 2), (20, 5), (59, 8), (300, 100)] {
            let screen = Screen { scroll: usize::MAX, shows_help: true, ..on(page) };
            seen(&picture, &screen, (width, height));
        }
    }
}

#[test]
fn what_clients_call_themselves_says_nothing_to_the_terminal() {
    let picture = picture();
    for shown in [seen(&picture, &on(Page::Clients), USUAL), text(&picture, 100)] {
        assert!(shown.contains("mallory") && shown.contains("owned"), "{shown}");
        assert!(!shown.chars().any(|letter| letter.is_control() && letter != '\n'), "{shown:?}");
    }
}

#[test]
fn rules_are_sorted_as_asked() {
    let picture = picture();
    for (order, first) in [
        (RuleOrder::AsWritten, "api"),
        (RuleOrder::Allowed, "api"),
        (RuleOrder::Denied, "login"),
        (RuleOrder::FailedOpen, "pay"),
    ] {
        assert_eq!(picture.rules(order)[0].rule.as_str(), first, "{order:?}");
    }
}

#[test]
fn what_has_no_room_can_be_scrolled_to() {
    let picture = picture();
    let screen = Screen { scroll: usize::MAX, ..on(Page::Fleet) };
    assert!(!seen(&picture, &on(Page::Fleet), NARROW).contains("process:"));
    assert!(seen(&picture, &screen, NARROW).contains("process:"));
}

#[test]
fn help_and_pause_are_seen() {
    let picture = picture();
    let screen = Screen { shows_help: true, ..Screen::default() };
    insta::assert_snapshot!("help", seen(&picture, &screen, NARROW));
    let screen = Screen { is_paused: true, ..Screen::default() };
    assert!(seen(&picture, &screen, NARROW).contains("paused: p goes on"));
}

#[test]
fn a_frame_for_scripts_has_every_page() {
    insta::assert_snapshot!("once", text(&picture(), 100));
}

#[test]
fn client_of_a_rule_by_several_attributes_is_drawn_with_all_of_them() {
    let mut picture = picture();
    let ranking = r#"{"by":"traffic","since":1,"seconds":100,"clients":[{"rule":"login","id":"ip+path#1",
        "client":{"path":"/login","ip":"192.0.2.7"},"requests":5,"atLeast":5}]}"#;
    picture.clients.traffic = serde_json::from_str(ranking).unwrap();
    let drawn = seen(&picture, &on(Page::Clients), USUAL);
    assert!(drawn.contains("path=/login ip=192.0.2.7"), "{drawn}");
}
