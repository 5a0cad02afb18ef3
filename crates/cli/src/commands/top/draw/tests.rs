//! Rendered frames, compared with snapshots.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};

use super::*;
use crate::commands::top::poller::{ClientRankings, Update};

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

fn sample_view() -> ViewModel {
    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }
    let mut view = ViewModel::new("127.0.0.1:9090");
    view.apply(Update::Live(Ok(read(live(&seconds())))));
    let clients =
        ClientRankings { traffic: read(ranking("requests")), denials: read(ranking("denials")) };
    view.apply(Update::Clients(Ok(clients)));
    view.apply(Update::Fleet(Ok(read(fleet()))));
    view
}

fn rendered(view: &ViewModel, state: &UiState, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        draw(view, state, Palette::new(true), frame.area(), frame.buffer_mut());
    };
    terminal.draw(draw).unwrap();
    terminal.backend().to_string()
}

const WIDE: (u16, u16) = (100, 24);
const NARROW: (u16, u16) = (60, 15);

fn on(page: Page) -> UiState {
    UiState { page, ..UiState::default() }
}

#[test]
fn every_page_fits_wide_and_narrow_terminals() {
    let view = sample_view();
    for page in Page::ALL {
        for (name, size) in [("wide", WIDE), ("narrow", NARROW)] {
            insta::assert_snapshot!(
                format!("{}-{name}", page.name()),
                rendered(&view, &on(page), size)
            );
        }
    }
}

#[test]
fn unreachable_server_is_reported_and_its_last_figures_stay() {
    let mut view = sample_view();
    view.apply(Update::Live(Err("127.0.0.1:9090 can't be reached: refused".into())));
    let shown = rendered(&view, &on(Page::Overview), WIDE);
    assert!(shown.contains("unreachable, retrying: 127.0.0.1:9090 can't be reached: refused"));
    assert!(shown.contains("login"), "{shown}");
    let mut empty = ViewModel::new("127.0.0.1:9090");
    assert!(rendered(&empty, &on(Page::Fleet), WIDE).contains("tidegate at 127.0.0.1:9090"));
    empty.apply(Update::Live(Err("no".into())));
    assert!(rendered(&empty, &on(Page::Overview), NARROW).contains("unreachable, retrying: no"));
}

#[test]
fn every_size_and_scroll_position_can_be_drawn() {
    let view = sample_view();
    for page in Page::ALL {
        for (width, height) in [(1, 1), (2, 3), (7, 2), (20, 5), (59, 8), (300, 100)] {
            let state = UiState { scroll: usize::MAX, shows_help: true, ..on(page) };
            rendered(&view, &state, (width, height));
        }
    }
}

#[test]
fn control_characters_in_client_names_are_replaced() {
    let view = sample_view();
    for shown in [rendered(&view, &on(Page::Clients), WIDE), text(&view, 100)] {
        assert!(shown.contains("mallory") && shown.contains("owned"), "{shown}");
        assert!(!shown.chars().any(|letter| letter.is_control() && letter != '\n'), "{shown:?}");
    }
}

#[test]
fn rules_are_sorted_by_the_chosen_order() {
    let view = sample_view();
    for (order, first) in [
        (RuleOrder::AsWritten, "api"),
        (RuleOrder::Allowed, "api"),
        (RuleOrder::Denied, "login"),
        (RuleOrder::FailedOpen, "pay"),
    ] {
        assert_eq!(view.rules(order)[0].rule.as_str(), first, "{order:?}");
    }
}

#[test]
fn lines_below_the_frame_can_be_scrolled_to() {
    let view = sample_view();
    let state = UiState { scroll: usize::MAX, ..on(Page::Fleet) };
    assert!(!rendered(&view, &on(Page::Fleet), NARROW).contains("process:"));
    assert!(rendered(&view, &state, NARROW).contains("process:"));
}

#[test]
fn help_and_pause_are_drawn() {
    let view = sample_view();
    let state = UiState { shows_help: true, ..UiState::default() };
    insta::assert_snapshot!("help", rendered(&view, &state, NARROW));
    let state = UiState { is_paused: true, ..UiState::default() };
    assert!(rendered(&view, &state, NARROW).contains("paused: p resumes"));
}

#[test]
fn printed_frame_has_every_page() {
    insta::assert_snapshot!("once", text(&sample_view(), 100));
}

#[test]
fn client_of_a_rule_by_several_attributes_is_drawn_with_all_of_them() {
    let mut view = sample_view();
    let ranking = r#"{"by":"traffic","since":1,"seconds":100,"clients":[{"rule":"login","id":"ip+path#1",
        "client":{"path":"/login","ip":"192.0.2.7"},"requests":5,"atLeast":5}]}"#;
    view.clients.traffic = serde_json::from_str(ranking).unwrap();
    let drawn = rendered(&view, &on(Page::Clients), WIDE);
    assert!(drawn.contains("path=/login ip=192.0.2.7"), "{drawn}");
}
