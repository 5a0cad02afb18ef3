//! Slots in flight at a gateway: per client, per upstream, on all nodes together; and who is turned away
//! when an upstream is full.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_testkit::{Redis, Upstream, wait_for};

use super::{Gateway, patiently_in};

fn ask(gateway: &Gateway, method: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(stream: TcpStream) -> String {
    answer(stream).split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn two_nodes_share_one_count() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let rules = "rules: [{name: exports, per: [api_key], limit: 2 in flight, hold: 1h}]";
    let node = || Gateway::launch(&["--upstream", &upstream.url()], &patiently_in(&redis), rules);
    let (one, other) = (node(), node());
    let held = [ask(&one, "GET", "/held"), ask(&other, "GET", "/held")];
    wait_for("both are under way", || (upstream.seen("GET /held") == 2).then_some(()));
    for node in [&one, &other] {
        let denied = answer(ask(node, "GET", "/bytes/1"));
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
        assert!(denied.contains("exports"), "{denied}");
    }
    upstream.release(2);
    for stream in held {
        assert_eq!(status(stream), "200");
    }
    wait_for("they are over", || (status(ask(&one, "GET", "/bytes/1")) == "200").then_some(()));
}

#[test]
fn requests_at_the_upstream_stay_within_the_limit_when_the_store_restarts_empty() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let rules = "rules: [{name: exports, per: [api_key], limit: 3 in flight, hold: 1h, on_store_failure: deny}]";
    let node = || Gateway::launch(&["--upstream", &upstream.url()], &patiently_in(&redis), rules);
    let nodes = [node(), node()];
    let held = [&nodes[0], &nodes[1], &nodes[0]].map(|node| ask(node, "GET", "/held"));
    wait_for("all are under way", || (upstream.seen("GET /held") == 3).then_some(()));
    for _ in 0..3 {
        redis.restart();
        for node in &nodes {
            // 503 while the node has no connection.
            wait_for("the store decides", || match status(ask(node, "GET", "/bytes/1")).as_str() {
                "503" => None,
                other => Some(other.to_owned()),
            });
        }
        for node in &nodes {
            assert_eq!(status(ask(node, "GET", "/bytes/1")), "429");
        }
    }
    upstream.release(3);
    for stream in held {
        assert_eq!(status(stream), "200");
    }
    wait_for("they are over", || {
        (status(ask(&nodes[0], "GET", "/bytes/1")) == "200").then_some(())
    });
}

#[test]
fn a_slot_is_held_until_the_last_byte_of_the_answer_was_taken() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: downloads, per: [api_key], limit: 1 in flight, hold: 1h}]";
    let gateway = Gateway::with_rules(&upstream.url(), rules);
    // More than all buffers on the way have room for, so that it can't be over before it is read.
    let mut download = ask(&gateway, "GET", "/bytes/50000000");
    let mut part = [0; 1000];
    download.read_exact(&mut part).unwrap();
    assert!(part.starts_with(b"HTTP/1.1 200 "));
    assert_eq!(status(ask(&gateway, "GET", "/bytes/1")), "429");
    let mut rest = Vec::new();
    download.read_to_end(&mut rest).unwrap();
    wait_for("it is over", || (status(ask(&gateway, "GET", "/bytes/1")) == "200").then_some(()));
}

#[test]
fn each_route_and_each_upstream_can_have_a_count_of_its_own() {
    let upstream = Upstream::start();
    let config = format!(
        "gateway:
  upstreams: [{{name: api, servers: ['{0}']}}, {{name: web, servers: ['{0}']}}]
  routes:
    - {{name: reports, path: /held, method: GET, upstream: api}}
    - {{name: uploads, path: /held, method: POST, upstream: api}}
    - {{name: pages, upstream: web}}
",
        upstream.url()
    );
    let rules = "
rules:
  - {name: by-route, per: [route], limit: 1 in flight, hold: 1h}
  - {name: by-upstream, match: {upstream: api}, per: [upstream], limit: 2 in flight, hold: 1h}
";
    let gateway = Gateway::launch(&[], &config, rules);
    let report = ask(&gateway, "GET", "/held");
    wait_for("a report is made", || (upstream.seen("GET /held") == 1).then_some(()));
    let denied = answer(ask(&gateway, "GET", "/held"));
    assert!(denied.contains("by-route"), "{denied}");
    let upload = ask(&gateway, "POST", "/held");
    wait_for("something is uploaded", || (upstream.seen("POST /held") == 1).then_some(()));
    assert_eq!(status(ask(&gateway, "GET", "/bytes/1")), "200");
    upstream.release(2);
    assert_eq!((status(report).as_str(), status(upload).as_str()), ("200", "200"));
}

#[test]
fn a_full_upstream_turns_away_who_matters_least_first_and_charges_nobody_for_it() {
    let upstream = Upstream::start();
    let config = format!(
        "gateway:
  upstreams: [{{name: api, servers: ['{}'], max_in_flight: 5}}]
  routes:
    - {{name: jobs, path: /bytes/1, priority: low}}
    - {{name: pages, path: /bytes/2}}
    - {{name: payments, path: /bytes/3, priority: high}}
    - {{name: held, path: /held, priority: high}}
",
        upstream.url()
    );
    let rules = "rules: [{name: api, per: [api_key], limit: 1000 per day}]";
    let gateway = Gateway::launch(&[], &config, rules);
    let all =
        || ["/bytes/1", "/bytes/2", "/bytes/3"].map(|path| status(ask(&gateway, "GET", path)));
    let mut held = Vec::new();
    for expected in [
        ["200", "200", "200"],
        ["200", "200", "200"],
        ["200", "200", "200"],
        ["503", "200", "200"],
        ["503", "503", "200"],
        ["503", "503", "503"],
    ] {
        assert_eq!(all(), expected, "{} in flight", held.len());
        held.push(ask(&gateway, "GET", "/held"));
        let under_way = held.len().min(5);
        wait_for("it is under way", || (upstream.seen("GET /held") == under_way).then_some(()));
    }
    let shed = answer(ask(&gateway, "GET", "/bytes/3"));
    assert!(shed.contains("\r\nretry-after: 1\r\n"), "{shed}");
    assert!(shed.contains("application/problem+json"), "{shed}");
    // Twelve were answered with 200, and five are held; the sixth of those was turned away too.
    let look = r#"{"rule":"api","client":"k","cost":0}"#;
    wait_for("who was turned away has it back", || {
        let remaining = gateway.server.check(look).json()["remaining"].as_u64().unwrap();
        (remaining == 1000 - 12 - 5).then_some(())
    });
    upstream.release(5);
    let answered = held.into_iter().map(status).filter(|status| status == "200").count();
    assert_eq!(answered, 5);
    let metrics = gateway.server.manage("GET", "/metrics", "").body;
    assert!(
        metrics.contains("tidegate_upstream_requests_total{upstream=\"api\",outcome=\"shed\"} 8"),
        "{metrics}"
    );
}
