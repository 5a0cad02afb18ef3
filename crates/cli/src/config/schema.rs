//! The JSON Schema of `tidegate.yaml`. Its descriptions become the reference.
//!
//! A test compares the keys of every map with the keys that the parser accepts.

mod gateway;

use serde_json::{Value, json};
use tidegate_limiter::MemoryStore;
use tidegate_rules::schema::{Schema, parts};

use super::connections::PerClient;
use super::file::{DRAFTS, MemorySettings, ON_INVALID_CALL, RESETS, RLS_HEADERS};
use super::tls::LISTENERS;
use super::{DEFAULT_ADMIN, DEFAULT_GATEWAY, DEFAULT_GRPC, DEFAULT_HTTP, DEFAULT_RESP};

/// Returns the schema of a configuration.
pub(crate) fn schema() -> Schema {
    let config = Schema::map(
        "Configuration of a server: listeners, store, rules and more. Every key is optional unless it is marked as \
         required. Paths are relative to this file. Flags of `tidegate serve` override it.",
    )
    .with("$schema", Schema::DIALECT)
    .with("title", "Configuration of Tidegate")
    .key("listen", listen())
    .key("store", store())
    .key("rules", rules())
    .key("headers", headers())
    .key(
        "on_invalid_call",
        Schema::word(
            "Answer to a call of Envoy or of another proxy that can't be decoded, is over a size limit or lacks a field: \
             `deny` or `allow` the request, or fail the call with an `error`. Proxies that fail open admit a request after an error.",
            ON_INVALID_CALL.map(|(word, _)| word),
        )
        .example("error"),
    )
    .key("resp", resp())
    .key("identity", identity())
    .key("admin", admin())
    .key("tls", tls())
    .key("drain", drain())
    .key("connections", connections())
    .key("gateway", gateway::schema());
    parts().into_iter().fold(config, |config, (name, part)| config.define(name, part))
}

fn listen() -> Schema {
    let listener = |about: &str, default: &str| {
        let about = format!("{about}. A host and a port, or `off`; port 0 selects any free port.");
        let schema = Schema::text(&about).with("pattern", "^(off|.+:[0-9]+)$");
        schema.with_default(default).example(default)
    };
    Schema::map("Addresses of the listeners.")
        .key("http", listener("HTTP listener", DEFAULT_HTTP))
        .key(
            "grpc",
            listener("gRPC listener with Envoy's rate limit service", DEFAULT_GRPC),
        )
        .key("resp", listener("Listener for RESP, the protocol of Redis", DEFAULT_RESP))
        .key(
            "admin",
            listener(
                "Admin listener with dashboard, admin API and metrics. An address that is not local needs `admin.token`",
                DEFAULT_ADMIN,
            ),
        )
        .key(
            "gateway",
            listener(
                "Gateway listener, off without an upstream",
                DEFAULT_GATEWAY,
            ),
        )
        .example(json!({"http": "[::1]:8080", "resp": "off"}))
}

fn store() -> Schema {
    let largest = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let memory = Schema::map("Counts in the memory of this process. The store is full when it reaches `max_keys` or `max_bytes`: then new clients share overflow buckets.")
        .key(
            "max_keys",
            Schema::whole(
                "Most keys in memory. Each client has one key per rule.",
                1,
                largest(MemorySettings::MAX_KEYS),
            )
            .with_default(MemoryStore::DEFAULT_MAX_KEYS)
            .example(1_000_000),
        )
        .key(
            "max_bytes",
            Schema::whole(
                "Most bytes of tables, logs and slots in flight. Without it: 64 for each of `max_keys`, at least 16 MiB. A `sliding_log` needs 16 to 32 bytes per request in its window, a request in flight 24 to 48. If a log or slots can't grow, their client is denied until older entries expire.",
                1,
                largest(MemorySettings::MAX_BYTES),
            )
            .with_default(MemoryStore::default_max_bytes(MemoryStore::DEFAULT_MAX_KEYS))
            .example(512_000_000),
        );
    Schema::map("Store of the counters: `memory` for one node, which is the default, or `redis` for all nodes together.")
        .with("maxProperties", 1)
        .key("memory", memory.example(json!({"max_keys": 1_000_000})))
        .key(
            "redis",
            redis().example(json!({"url": "redis://cache.example.com", "timeout": "10ms"})),
        )
        .example(json!({"redis": {"url": "redis://cache.example.com"}}))
}

fn redis() -> Schema {
    let one = |form: &str| json!({"required": [form]});
    let addresses = |about: &str| {
        Schema::list(about, Schema::text("A host and, if it is not the default, a port."))
    };
    let sentinel = Schema::map("A master that is found through sentinels.")
        .required(
            "addresses",
            addresses("Addresses of the sentinels.").example(json!(["a:26379", "b:26379"])),
        )
        .required("master", Schema::text("Name of the master at the sentinels.").example("main"))
        .key("user", word("User name for the sentinels.").example("watcher"))
        .key("password", secret("Password for the sentinels."))
        .key(
            "password_file",
            file("File with the password for the sentinels.", "sentinel-password"),
        )
        .with("not", json!({"required": ["password", "password_file"]}));
    let tls = Schema::map("TLS for connections to the Redis servers.")
        .key(
            "ca",
            file(
                "CA certificates that the servers are verified with. Default: those of the system.",
                "ca.pem",
            ),
        )
        .key("certificate", file("Client certificate, for servers that require one.", "client.pem"))
        .key("key", file("Private key of the client certificate.", "client.key"))
        .with("dependentRequired", json!({"certificate": ["key"], "key": ["certificate"]}));
    Schema::map("Counts in Redis or Valkey, for all nodes together. Exactly one of `url`, `cluster`, `sentinel` and `shards` names the servers.")
        .key(
            "url",
            Schema::text("URL of the server or servers: `redis://`, `rediss://` (TLS), `redis+cluster://`, `redis+sentinel://` or `redis+unix://`.")
                .with("pattern", "^[a-z+]+://")
                .example("redis://cache.example.com:6379/0"),
        )
        .key("cluster", addresses("Addresses of some nodes of a Redis Cluster. The others are discovered.").with("minItems", 1).example(json!(["a:6379", "b:6379"])))
        .key("sentinel", sentinel.example(json!({"addresses": ["a", "b"], "master": "main"})))
        .key(
            "shards",
            Schema::list("Independent servers. Each stores a part of the keys.", Schema::text("A URL or an address."))
                .with("minItems", 1)
                .example(json!(["redis-1:6379", "redis-2:6379"])),
        )
        .key("timeout", Schema::part("Longest time that a check waits for Redis. After that, the rule's `on_store_failure` decides.", "window").with_default("10ms").example("25ms"))
        .key("prefix", word("Prefix of every key in Redis.").with_default("tg:").example("shop:"))
        .key(
            "denial_memory",
            Schema::text("Longest time for which a node repeats a denial without a call to Redis, at most 1s; `off` disables it.").with_default("1s").example("500ms"),
        )
        .key("database", Schema::whole("Number of the Redis database.", 0, 1_000_000).with_default(0).example(2))
        .key("user", word("User name for the servers.").example("tidegate"))
        .key("password", secret("Password for the servers. Use `password_file` or TIDEGATE_REDIS_PASSWORD to keep it out of this file."))
        .key("password_file", file("File with the password.", "redis-password"))
        .key("secret", secret("Secret for the hashes in the names of keys, the same on every node. Use `secret_file` or TIDEGATE_REDIS_SECRET to keep it out of this file."))
        .key("secret_file", file("File with the secret.", "fleet-secret"))
        .key("tls", tls.example(json!({"ca": "ca.pem"})))
        .with("oneOf", ["url", "cluster", "sentinel", "shards"].map(one).to_vec())
        .with(
            "not",
            json!({"anyOf": [{"required": ["password", "password_file"]}, {"required": ["secret", "secret_file"]}]}),
        )
}

fn rules() -> Schema {
    let one = |form: &str| json!({"required": [form]});
    let redis = Schema::any(
        "Rules in Redis, for all nodes together: `true` for the Redis of the store, or the URL of another.",
    )
    .with(
        "anyOf",
        json!([{"const": true}, {"type": "string", "pattern": "^(true|[a-z+]+://.+)$"}]),
    );
    let url = Schema::text("URL of a rules document, which is polled. TIDEGATE_RULES_TOKEN is sent as the bearer token.")
        .with("pattern", "^https?://[^@/]+(/.*)?$");
    Schema::map("Source of the rules: one of `file`, `redis`, `url` and `inline`; `envoy` may be added or used alone. Default: sample rules.")
        .key("file", file("File of rules. Changes are activated without a restart.", "rules.yaml"))
        .key("redis", redis.example(true).example("redis://cache.example.com"))
        .key("url", url.example("https://config.example.com/rules.yaml"))
        .key(
            "inline",
            Schema::list("List of rules, as in a file of rules.", Schema::part("", "rule"))
                .example(json!([{"name": "api", "per": ["user"], "limit": "100/s"}])),
        )
        .key("envoy", file("Directory of envoyproxy/ratelimit files.", "ratelimit/config"))
        .key("copy", file("Directory for local copies of the last valid rules and of the fleet size. With them a node can start while the source or Redis is unreachable.", "/var/lib/tidegate"))
        .key("poll", Schema::part("Interval at which the source is read again: 1s or more. Default: 5s for a file, 30s for Redis and a URL.", "window").example("30s"))
        .with("anyOf", ["file", "redis", "url", "inline", "envoy"].map(one).to_vec())
        .with(
            "not",
            json!({"anyOf": [
                {"required": ["file", "redis"]}, {"required": ["file", "url"]}, {"required": ["file", "inline"]},
                {"required": ["redis", "url"]}, {"required": ["redis", "inline"]}, {"required": ["url", "inline"]}
            ]}),
        )
        .example(json!({"file": "rules.yaml"}))
}

fn headers() -> Schema {
    let drafts = DRAFTS.map(|(word, _)| word);
    let mut values: Vec<Value> = drafts.iter().map(|word| json!(word)).collect();
    values.extend(drafts.iter().filter_map(|word| word.parse::<u64>().ok()).map(Value::from));
    Schema::map("Rate limit headers of responses.")
        .key(
            "reset",
            Schema::word("Format of X-RateLimit-Reset: `delta` is the seconds until the reset, `epoch` is its Unix time.", RESETS.map(|(word, _)| word))
                .example("epoch"),
        )
        .key(
            "ietf",
            Schema::any("Draft of the IETF headers: 11 sends RateLimit and RateLimit-Policy; 6 sends RateLimit-Limit, -Remaining and -Reset.")
                .with("enum", values)
                .with_default(11)
                .example(6),
        )
        .key("rls", Schema::word("Responses to which Envoy adds these headers.", RLS_HEADERS.map(|(word, _)| word)).example("all"))
        .example(json!({"reset": "epoch", "ietf": 6}))
}

fn resp() -> Schema {
    Schema::map("Password of the RESP listener. Clients send it with AUTH or HELLO.")
        .key("password", secret("The password. Use `password_file` or TIDEGATE_RESP_PASSWORD to keep it out of this file."))
        .key("password_file", file("File with the password.", "resp-password"))
        .with("not", json!({"required": ["password", "password_file"]}))
        .example(json!({"password_file": "resp-password"}))
}

fn identity() -> Schema {
    let place = |about: &str, kinds: &[&str], example: Value| {
        let place = Schema::map(about).with("minProperties", 1).with("maxProperties", 1);
        let place = kinds.iter().fold(place, |place, kind| {
            let about =
                format!("Name of the {}.", if *kind == "query" { "query parameter" } else { kind });
            place.key(kind, Schema::text(&about).with("minLength", 1).example("x-api-key"))
        });
        place.example(example)
    };
    Schema::map("Attributes of a client, derived from the head of its request. Used by the gateway, and for proxies that request decisions.")
        .key(
            "trusted_proxies",
            Schema::list(
                "Addresses and networks of proxies. Only they may set the client's address in the forwarded header.",
                Schema::text("An address or a network."),
            )
            .with_default(json!([]))
            .example(json!(["127.0.0.1", "10.0.1.0/24"])),
        )
        .key(
            "forwarded_header",
            Schema::word("Header in which proxies send the client's address.", ["x-forwarded-for", "forwarded"])
                .example("forwarded"),
        )
        .key(
            "ipv6_prefix",
            Schema::whole("Length of the IPv6 prefix that identifies a client, in bits.", 1, 128)
                .with_default(64)
                .example(56),
        )
        .key(
            "api_key",
            place(
                "Place of the API key in a request. Default: the header `x-api-key`.",
                &["header", "query", "cookie"],
                json!({"header": "x-api-key"}),
            ),
        )
        .key(
            "session",
            place(
                "Place of the session in a request. Default: none.",
                &["cookie", "header"],
                json!({"cookie": "sid"}),
            ),
        )
        .key("jwt", jwt())
        .key(
            "attributes",
            Schema::map("Custom attributes: the name, and the place in a request.")
                .open(Schema::text("Place of the value.").with("pattern", "^(header|query|cookie)\\..+$"))
                .example(json!({"tenant": "header.x-tenant"})),
        )
        .example(json!({"trusted_proxies": ["10.0.1.0/24"]}))
}

fn jwt() -> Schema {
    let one = |form: &str| json!({"required": [form]});
    let one_or_more = |about: &str, example: Value| {
        let text = Schema::text("One value.");
        Schema::one_of(about, [text.clone(), Schema::list("Accepted values.", text)])
            .example(example)
    };
    Schema::map("JWTs that set the attributes `user` and `claim.*`. Exactly one of `secret`, `secret_file`, `public_key` and `jwks` verifies them.")
        .key("secret", secret("Secret of at least 32 bytes, for HS256, HS384 and HS512.").with("minLength", 32))
        .key("secret_file", file("File with the secret.", "jwt-secret"))
        .key("public_key", file("Public key: RSA, EC (P-256, P-384) or Ed25519.", "key.pem"))
        .key("jwks", file("Key set (JWKS). A key is selected by the `kid` of the token.", "keys.json"))
        .key(
            "algorithms",
            Schema::list("Accepted algorithms. Default: all that fit the key.", Schema::text("Name of the algorithm.").with("pattern", "^[A-Z][A-Za-z]+[0-9]*$"))
                .example(json!(["RS256"])),
        )
        .key("issuer", one_or_more("Required issuer (`iss`) of a token.", json!("https://id.example.com")))
        .key("audience", one_or_more("Required audience (`aud`) of a token.", json!(["shop", "api"])))
        .key("leeway", Schema::text("Tolerated difference between clocks, for `exp` and `nbf`.").with_default("60s").example("30s"))
        .key("header", Schema::text("Header with the token.").with_default("authorization").example("x-token"))
        .key("cookie", Schema::text("Cookie with the token.").example("session-token"))
        .with("oneOf", ["secret", "secret_file", "public_key", "jwks"].map(one).to_vec())
        .with("not", json!({"required": ["header", "cookie"]}))
        .example(json!({"jwks": "keys.json", "issuer": "https://id.example.com"}))
}

fn admin() -> Schema {
    let token = Schema::text(
        "Token that operators send as `Authorization: Bearer`. Use TIDEGATE_TOKEN to keep it out of this file.",
    )
    .with("pattern", "^[!-~]{16,256}$")
    .example("at-least-16-characters");
    let read_token = Schema::text(
        "Token for requests that change nothing, such as those of Prometheus. Needs `token`. Use TIDEGATE_READ_TOKEN to keep it out of this file.",
    )
    .with("pattern", "^[!-~]{16,256}$")
    .example("another-16-characters");
    Schema::map("Access to the admin listener.")
        .key("token", token)
        .key("read_token", read_token)
        .example(json!({"token": "at-least-16-characters"}))
}

fn tls() -> Schema {
    Schema::map(
        "TLS of the listeners. Files are PEM and are reloaded when they change.",
    )
    .required(
        "certificate",
        file("Certificate chain of the server, its own certificate first.", "server.pem"),
    )
    .required("key", file("Private key of the certificate.", "server.key"))
    .key(
        "client_ca",
        file(
            "CA of client certificates, which are then required. Default: clients need no certificate.",
            "clients.pem",
        ),
    )
    .key(
        "listeners",
        Schema::list("Listeners that use TLS.", Schema::word("", LISTENERS).without_default())
            .with_default(LISTENERS.to_vec())
            .example(json!(["grpc", "admin"])),
    )
    .example(json!({"certificate": "server.pem", "key": "server.key"}))
}

fn drain() -> Schema {
    Schema::map("Shutdown after SIGTERM.")
        .key(
            "delay",
            time("Time in which the server reports not ready but still accepts connections, so that load balancers can react.", "2s", "5s"),
        )
        .key("timeout", time("Time to complete requests in flight after that. Connections that are still open are then aborted.", "25s", "20s"))
        .example(json!({"delay": "5s", "timeout": "20s"}))
}

fn connections() -> Schema {
    Schema::map("Connections of clients. Their number at each listener follows from the limit of open files and from the memory.")
        .key(
            "per_client",
            Schema::any("Most connections of one client address at the gateway, or `off`: 1 to 1,000,000, and at most half of the listener's share. An IPv6 client has the prefix of `identity.ipv6_prefix`. Loopback and `identity.trusted_proxies` have no such limit.")
                .with("type", vec!["string", "integer"])
                .with("minimum", 1)
                .with("maximum", PerClient::MAX)
                .with("pattern", "^(off|[0-9_]+)$")
                .with_default(PerClient::DEFAULT)
                .example(100),
        )
        .example(json!({"per_client": 100}))
}

/// Returns the schema of a time, which may be `0s`.
fn time(about: &str, default: &str, example: &str) -> Schema {
    Schema::any(about)
        .with("type", vec!["string", "integer"])
        .with("maximum", 0)
        .with_default(default)
        .example(example)
}

fn word(about: &str) -> Schema {
    Schema::text(about).with("minLength", 1)
}

fn secret(about: &str) -> Schema {
    word(about).with("writeOnly", true).example("correct horse battery staple of old")
}

fn file(about: &str, example: &str) -> Schema {
    Schema::text(about).example(example)
}

#[cfg(test)]
mod tests;
