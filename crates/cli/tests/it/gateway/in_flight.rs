//! Limits in flight at a gateway, per client, route and upstream and across nodes, and load shedding of a full upstream.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_testkit::{Redis, Upstream, wait_for};

use super::{GatewayServer, redis_store_with_long_timeout};

/// Sends a request on a new connection, without reading the response.
fn send(gateway: &GatewayServer, method: &str, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: a\r\nx-api-key: k\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    stream
}

fn read_response(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn read_status(stream: TcpStream) -> String {
    read_response(stream).split(' ').nth(1).unwrap_or_default().to_owned()
}

#[test]
fn nodes_share_one_in_flight_count() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let rules = "rules: [{name: exports, per: [api_key], limit: 2 in flight, hold: 1h}]";
    let node = || {
        GatewayServer::launch(
            &["--upstream", &upstream.url()],
            &redis_store_with_long_timeout(&redis),
            rules,
        )
    };
    let (one, other) = (node(), node());
    let held = [send(&one, "GET", "/held"), send(&other, "GET", "/held")];
    wait_for("both requests are in flight", || (upstream.seen("GET /held") == 2).then_some(()));
    for node in [&one, &other] {
        let denied = read_response(send(node, "GET", "/bytes/1"));
        assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
        assert!(denied.contains("exports"), "{denied}");
    }
    upstream.release(2);
    for stream in held {
        assert_eq!(read_status(stream), "200");
    }
    wait_for("the slots are released", || {
        (read_status(send(&one, "GET", "/bytes/1")) == "200").then_some(())
    });
}

#[test]
fn requests_at_the_upstream_stay_within_the_limit_when_the_store_restarts_empty() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let rules = "rules: [{name: exports, per: [api_key], limit: 3 in flight, hold: 1h, on_store_failure: deny}]";
    let node = || {
        GatewayServer::launch(
            &["--upstream", &upstream.url()],
            &redis_store_with_long_timeout(&redis),
            rules,
        )
    };
    let nodes = [node(), node()];
    let held = [&nodes[0], &nodes[1], &nodes[0]].map(|node| send(node, "GET", "/held"));
    wait_for("all requests are in flight", || (upstream.seen("GET /held") == 3).then_some(()));
    for _ in 0..3 {
        redis.restart();
        for node in &nodes {
            // A node without a connection to Redis returns 503.
            wait_for("the node is connected to Redis", || {
                match read_status(send(node, "GET", "/bytes/1")).as_str() {
                    "503" => None,
                    other => Some(other.to_owned()),
                }
            });
        }
        for node in &nodes {
            assert_eq!(read_status(send(node, "GET", "/bytes/1")), "429");
        }
    }
    upstream.release(3);
    for stream in held {
        assert_eq!(read_status(stream), "200");
    }
    wait_for("the slots are released", || {
        (read_status(send(&nodes[0], "GET", "/bytes/1")) == "200").then_some(())
    });
}

#[test]
fn slot_is_held_until_the_client_has_read_the_whole_response() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: downloads, per: [api_key], limit: 1 in flight, hold: 1h}]";
    let gateway = GatewayServer::with_rules(&upstream.url(), rules);
    // The response is larger than all buffers on its way, so it ends only after the client has read it.
    let mut download = send(&gateway, "GET", "/bytes/50000000");
    let mut part = [0; 1000];
    download.read_exact(&mut part).unwrap();
    assert!(part.starts_with(b"HTTP/1.1 200 "));
    assert_eq!(read_status(send(&gateway, "GET", "/bytes/1")), "429");
    let mut rest = Vec::new();
    download.read_to_end(&mut rest).unwrap();
    wait_for("the slot is released", || {
        (read_status(send(&gateway, "GET", "/bytes/1")) == "200").then_some(())
    });
}

#[test]
fn routes_and_upstreams_have_separate_in_flight_counts() {
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
    let gateway = GatewayServer::launch(&[], &config, rules);
    let report = send(&gateway, "GET", "/held");
    wait_for("the GET is in flight", || (upstream.seen("GET /held") == 1).then_some(()));
    let denied = read_response(send(&gateway, "GET", "/held"));
    assert!(denied.contains("by-route"), "{denied}");
    let upload = send(&gateway, "POST", "/held");
    wait_for("the POST is in flight", || (upstream.seen("POST /held") == 1).then_some(()));
    assert_eq!(read_status(send(&gateway, "GET", "/bytes/1")), "200");
    upstream.release(2);
    assert_eq!((read_status(report).as_str(), read_status(upload).as_str()), ("200", "200"));
}

#[test]
fn full_upstream_sheds_low_priority_first_and_refunds_shed_requests() {
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
    let gateway = GatewayServer::launch(&[], &config, rules);
    let all = || {
        ["/bytes/1", "/bytes/2", "/bytes/3"].map(|path| read_status(send(&gateway, "GET", path)))
    };
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
        held.push(send(&gateway, "GET", "/held"));
        let in_flight = held.len().min(5);
        wait_for("the held requests are in flight", || {
            (upstream.seen("GET /held") == in_flight).then_some(())
        });
    }
    let shed = read_response(send(&gateway, "GET", "/bytes/3"));
    assert!(shed.contains("\r\nretry-after: 1\r\n"), "{shed}");
    assert!(shed.contains("application/problem+json"), "{shed}");
    // Twelve requests got 200, five are held, and the sixth held request was shed.
    let peek = r#"{"rule":"api","client":"k","cost":0}"#;
    wait_for("shed requests are refunded", || {
        let remaining = gateway.server.check(peek).json()["remaining"].as_u64().unwrap();
        (remaining == 1000 - 12 - 5).then_some(())
    });
    upstream.release(5);
    let answered = held.into_iter().map(read_status).filter(|status| status == "200").count();
    assert_eq!(answered, 5);
    let metrics = gateway.server.request_admin("GET", "/metrics", "").body;
    assert!(
        metrics.contains("tidegate_upstream_requests_total{upstream=\"api\",outcome=\"shed\"} 8"),
        "{metrics}"
    );
}
