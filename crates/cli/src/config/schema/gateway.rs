//! The JSON Schema of `gateway`.

use serde_json::{Value, json};
use tidegate_core::EncodedSlashes;
use tidegate_gateway::{ForwardPath, Priority};
use tidegate_rules::schema::Schema;

use super::{file, time};
use crate::config::gateway::{MAX_IN_FLIGHT, MAX_SERVERS, NAME_PATTERN};

/// Returns the schema of `gateway`.
pub(crate) fn schema() -> Schema {
    let upstream_headers =
        Schema::any("Whether the request to the upstream also has the rate limit headers.");
    let upstreams = "Groups of servers that requests are forwarded to. `--upstream` replaces them.";
    let routes = "Routes to the upstreams. The first route that matches is used; a request without a route gets \
                  404. Default: all requests to the only upstream.";
    let example = json!({"upstreams": [{"name": "api", "servers": ["http://10.0.0.1:3000"]}]});
    Schema::map("The gateway, a reverse proxy that forwards the requests that the rules allow.")
        .key(
            "upstreams",
            Schema::list(upstreams, upstream())
                .example(json!([{"name": "api", "servers": ["http://10.0.0.1:3000"]}])),
        )
        .key(
            "routes",
            Schema::list(routes, route())
                .example(json!([{"path": "/checkout/**", "upstream": "api", "priority": "high"}])),
        )
        .key("timeouts", timeouts())
        .key(
            "max_wait",
            time(
                "Longest time that a request waits in the queue of a `leaky_bucket` rule: 0s to 1h.",
                "30s",
                "5s",
            ),
        )
        .key(
            "upstream_headers",
            upstream_headers.with("enum", vec![false, true]).with_default(false).example(true),
        )
        .example(example)
}

fn name(about: &str, example: &str) -> Schema {
    Schema::text(about).with("pattern", NAME_PATTERN).example(example)
}

fn upstream() -> Schema {
    let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let server = Schema::text("URL of a server.").with("pattern", "^(http|https|h2c)://[^@]+$");
    let servers = "URLs of replicas: `http://` uses HTTP/1.1, `h2c://` HTTP/2 without TLS, and `https://` the \
                   version that the server prefers.";
    let in_flight = "Most requests in flight from this node to the upstream. Default: unlimited.";
    let health = Schema::map("Active health check of each server.")
        .required(
            "path",
            Schema::text("Path of the request. A status from 200 to 399 means healthy.")
                .with("pattern", "^/[!-~]*$")
                .example("/healthz"),
        )
        .key(
            "every",
            Schema::part("Interval between two health checks: 1s to 1h.", "window")
                .with_default("5s")
                .example("10s"),
        )
        .key(
            "timeout",
            Schema::part("Longest time for a response, at most `every`.", "window")
                .with_default("2s")
                .example("1s"),
        )
        .example(json!({"path": "/healthz", "every": "5s", "timeout": "2s"}));
    Schema::map("A group of replicas, and the connections to them.")
        .required("name", name("Name of the upstream in routes, rules and metrics.", "api"))
        .required(
            "servers",
            Schema::list(servers, server)
                .with("minItems", 1)
                .with("maxItems", number(MAX_SERVERS))
                .with("uniqueItems", true)
                .example(json!(["http://10.0.0.1:3000", "http://10.0.0.2:3000"])),
        )
        .key(
            "ca",
            file(
                "CA certificates that `https://` servers are verified with. Default: those of the system.",
                "ca.pem",
            ),
        )
        .key("certificate", file("Client certificate, for servers that require one.", "client.pem"))
        .key("key", file("Private key of the client certificate.", "client.key"))
        .key("max_in_flight", Schema::whole(in_flight, 1, number(MAX_IN_FLIGHT)).example(200))
        .key("health", health)
        .with("dependentRequired", json!({"certificate": ["key"], "key": ["certificate"]}))
        .example(json!({"name": "api", "servers": ["http://10.0.0.1:3000"], "max_in_flight": 200}))
}

fn route() -> Schema {
    let method = Schema::text("A method in capitals.").with("pattern", "^[!-`{-~]+$");
    let methods = Schema::list("Accepted methods.", method.clone()).with("minItems", 1);
    let priorities = Priority::NAMES.map(|(word, _)| word);
    Schema::map("Conditions on requests, and the upstream and priority of those that match.")
        .key(
            "name",
            name("Name of the route in rules and metrics. Default: the name of the upstream.", "checkout"),
        )
        .key(
            "host",
            Schema::text("Host without a port: a text, or a pattern in which `*` matches any text.")
                .with("pattern", "^[A-Za-z0-9._*\\[\\]:-]+$")
                .example("shop.example.com")
                .example("*.example.com"),
        )
        .key(
            "path",
            Schema::text(
                "Path: a text, or a pattern in which `*` matches any text without `/`, and `**` any text.",
            )
            .with("pattern", "^/[^?# ]*$")
            .example("/checkout/**"),
        )
        .key(
            "method",
            Schema::one_of("One method or a list. Default: any method.", [method, methods])
                .example("POST")
                .example(json!(["GET", "HEAD"])),
        )
        .key(
            "upstream",
            name("Name of the upstream. Optional if there is only one.", "api"),
        )
        .key(
            "priority",
            Schema::word("Near `max_in_flight` of the upstream, requests of lower priority are rejected first.", priorities)
                .with_default("normal")
                .example("high"),
        )
        .key(
            "encoded_slashes",
            Schema::word(
                "Treatment of `%2F` and `%5C` in paths: `reject` with 400, or `keep` as a part of their segment.",
                EncodedSlashes::NAMES.map(|(word, _)| word),
            )
            .with_default("reject")
            .example("keep"),
        )
        .key(
            "forward_path",
            Schema::word(
                "Form of the path that the upstream gets: `canonical`, or `original` for signed URLs. Rules and routes \
                 see the canonical path.",
                ForwardPath::NAMES.map(|(word, _)| word),
            )
            .with_default("canonical")
            .example("original"),
        )
        .example(json!({"name": "checkout", "path": "/checkout/**", "upstream": "api"}))
}

fn timeouts() -> Schema {
    let time = |about: &str, default: &str, example: &str| -> Schema {
        Schema::part(about, "window").with_default(default).example(Value::from(example))
    };
    Schema::map("Timeouts of the steps of a forwarded request, 1ms to 1h each.")
        .key(
            "connect",
            time("Time to connect to a server, including the TLS handshake.", "5s", "2s"),
        )
        .key("response", time("Time from the request to the head of the response.", "60s", "10s"))
        .key(
            "body",
            time(
                "Time in which a client has to send or take 16 KiB of a body, or the rest of it.",
                "60s",
                "30s",
            ),
        )
        .key(
            "idle",
            time(
                "Time without a byte in either direction during a body or after an upgrade.",
                "60s",
                "5m",
            ),
        )
        .example(json!({"connect": "2s", "response": "10s"}))
}
