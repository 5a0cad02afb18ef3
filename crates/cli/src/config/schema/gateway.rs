//! The JSON Schema of `gateway`.

use serde_json::{Value, json};
use tidegate_gateway::Priority;
use tidegate_rules::schema::Schema;

use super::{file, time};
use crate::config::gateway::{MAX_IN_FLIGHT, MAX_SERVERS, NAME_PATTERN};

pub(crate) fn schema() -> Schema {
    let tell = Schema::any(
        "Whether upstreams get the headers that tell a client how it stands, on the request.",
    );
    let upstreams = "The servers that requests are forwarded to. `--upstream` takes their place.";
    let routes = "Which requests go to which upstream; the first that matches counts, and what none \
                  matches is answered with 404. Without it: all to the only upstream.";
    let example = json!({"upstreams": [{"name": "api", "servers": ["http://10.0.0.1:3000"]}]});
    Schema::map("Where a gateway forwards the requests that the rules allow.")
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
                "How long a request may wait for its turn under a `leaky_bucket`: 0s to 1h.",
                "30s",
                "5s",
            ),
        )
        .key(
            "upstream_headers",
            tell.with("enum", vec![false, true]).with_default(false).example(true),
        )
        .example(example)
}

fn name(about: &str, example: &str) -> Schema {
    Schema::text(about).with("pattern", NAME_PATTERN).example(example)
}

fn upstream() -> Schema {
    let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let server = Schema::text("The URL of a server.").with("pattern", "^(http|https|h2c)://[^@]+$");
    let servers = "Servers that do the same: `http://` speaks HTTP/1.1, `h2c://` HTTP/2 without TLS, \
                   `https://` what the server prefers.";
    let in_flight = "Most requests that are under way there at once, from this node. Without it: any \
                     number.";
    let health = Schema::map("How each server is asked whether it is well.")
        .required(
            "path",
            Schema::text("What is fetched: a status from 200 to 399 means well.")
                .with("pattern", "^/[!-~]*$")
                .example("/healthz"),
        )
        .key(
            "every",
            Schema::part("How often: 1s to 1h.", "window").with_default("5s").example("10s"),
        )
        .key(
            "timeout",
            Schema::part("How long an answer may take, not longer than `every`.", "window")
                .with_default("2s")
                .example("1s"),
        )
        .example(json!({"path": "/healthz", "every": "5s", "timeout": "2s"}));
    Schema::map("Servers that do the same, and how they are reached.")
        .required("name", name("What routes, rules and metrics know it by.", "api"))
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
                "The authority of the certificates of `https://` servers. Without it: those of the system.",
                "ca.pem",
            ),
        )
        .key("certificate", file("A certificate of our own, for servers that ask.", "client.pem"))
        .key("key", file("Its key.", "client.key"))
        .key("max_in_flight", Schema::whole(in_flight, 1, number(MAX_IN_FLIGHT)).example(200))
        .key("health", health)
        .with("dependentRequired", json!({"certificate": ["key"], "key": ["certificate"]}))
        .example(json!({"name": "api", "servers": ["http://10.0.0.1:3000"], "max_in_flight": 200}))
}

fn route() -> Schema {
    let method = Schema::text("In capitals.").with("pattern", "^[!-`{-~]+$");
    let methods = Schema::list("Any of these.", method.clone()).with("minItems", 1);
    let priorities = Priority::NAMES.map(|(word, _)| word);
    Schema::map("Which requests go to an upstream, and how much they matter there.")
        .key(
            "name",
            name("What rules and metrics know it by. Without it: the upstream's name.", "checkout"),
        )
        .key(
            "host",
            Schema::text("The host, without a port: a text, or a pattern in which `*` is anything.")
                .with("pattern", "^[A-Za-z0-9._*\\[\\]:-]+$")
                .example("shop.example.com")
                .example("*.example.com"),
        )
        .key(
            "path",
            Schema::text(
                "The path: a text, or a pattern in which `*` is anything but `/`, and `**` anything.",
            )
            .with("pattern", "^/[^?# ]*$")
            .example("/checkout/**"),
        )
        .key(
            "method",
            Schema::one_of("The method, one or some. Without it: any.", [method, methods])
                .example("POST")
                .example(json!(["GET", "HEAD"])),
        )
        .key(
            "upstream",
            name("The upstream. It may be left out if there is only one.", "api"),
        )
        .key(
            "priority",
            Schema::word("Who is turned away first when the upstream has all it can take.", priorities)
                .with_default("normal")
                .example("high"),
        )
        .example(json!({"name": "checkout", "path": "/checkout/**", "upstream": "api"}))
}

fn timeouts() -> Schema {
    let time = |about: &str, usual: &str, example: &str| -> Schema {
        Schema::part(about, "window").with_default(usual).example(Value::from(example))
    };
    Schema::map("How long each step of a request may take: 1ms to 1h each.")
        .key("connect", time("To reach a server, TLS included.", "5s", "2s"))
        .key("response", time("From the request to the head of the answer.", "60s", "10s"))
        .key(
            "idle",
            time(
                "Without a byte in either direction while a body is under way, or after an upgrade.",
                "60s",
                "5m",
            ),
        )
        .example(json!({"connect": "2s", "response": "10s"}))
}
