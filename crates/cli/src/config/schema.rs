//! The JSON Schema of `tidegate.yaml`.
//!
//! The keys are held against those of the structs that read them by a test: it asks the reader, map by
//! map, which keys it knows.

mod gateway;

use serde_json::{Value, json};
use tidegate_limiter::MemoryStore;
use tidegate_rules::schema::{Schema, parts};

use super::file::{DRAFTS, MAX_KEYS, RESETS, RLS_HEADERS};
use super::tls::LISTENERS;
use super::{DEFAULT_ADMIN, DEFAULT_GATEWAY, DEFAULT_GRPC, DEFAULT_HTTP, DEFAULT_RESP};

/// The schema of a configuration.
pub(crate) fn schema() -> Schema {
    let config = Schema::map(
        "What a server listens on, where it keeps what was spent, and which rules it enforces. Paths are \
         relative to this file; flags of `tidegate serve` beat it.",
    )
    .with("$schema", Schema::DIALECT)
    .with("title", "Configuration of Tidegate")
    .key("listen", listen())
    .key("store", store())
    .key("rules", rules())
    .key("headers", headers())
    .key("resp", resp())
    .key("identity", identity())
    .key("admin", admin())
    .key("tls", tls())
    .key("drain", drain())
    .key("gateway", gateway::schema());
    parts().into_iter().fold(config, |config, (name, part)| config.define(name, part))
}

fn listen() -> Schema {
    let listener = |about: &str, usual: &str| {
        let about = format!("{about}: a host and a port, 0 for any that is free, or `off`.");
        Schema::text(&about).with("pattern", "^(off|.+:[0-9]+)$").with_default(usual).example(usual)
    };
    Schema::map("Which listeners are open, and where.")
        .key("http", listener("Where HTTP is answered", DEFAULT_HTTP))
        .key(
            "grpc",
            listener("Where gRPC is answered, Envoy's rate limit service among it", DEFAULT_GRPC),
        )
        .key("resp", listener("Where RESP is answered, as Redis speaks it", DEFAULT_RESP))
        .key(
            "admin",
            listener(
                "Where operators see and change things; off this machine it needs a token",
                DEFAULT_ADMIN,
            ),
        )
        .key(
            "gateway",
            listener(
                "Where requests are taken and forwarded, if there is an upstream",
                DEFAULT_GATEWAY,
            ),
        )
        .example(json!({"http": "0.0.0.0:8080", "resp": "off"}))
}

fn store() -> Schema {
    let memory = Schema::map("In this process.").key(
        "max_keys",
        Schema::whole(
            "Most clients that are remembered, each rule's apart. Newcomers share buckets when there is no room.",
            1,
            u64::try_from(MAX_KEYS).unwrap_or(u64::MAX),
        )
        .with_default(MemoryStore::DEFAULT_MAX_KEYS)
        .example(1_000_000),
    );
    Schema::map("Where what was spent is kept: `memory`, which is usual, or `redis`.")
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
        Schema::list(about, Schema::text("A host, with a port if it is not the usual one."))
    };
    let sentinel = Schema::map("The master that sentinels name.")
        .required("addresses", addresses("The sentinels.").example(json!(["a:26379", "b:26379"])))
        .required("master", Schema::text("What they call the master.").example("main"))
        .key("user", word("Who to be to sentinels.").example("watcher"))
        .key("password", secret("The password for sentinels."))
        .key("password_file", file("The file that has it.", "sentinel-password"))
        .with("not", json!({"required": ["password", "password_file"]}));
    let tls = Schema::map("How to speak TLS to the servers.")
        .key(
            "ca",
            file("The authority of their certificates. Without it: those of the system.", "ca.pem"),
        )
        .key("certificate", file("A certificate of our own, for servers that ask.", "client.pem"))
        .key("key", file("Its key.", "client.key"))
        .with("dependentRequired", json!({"certificate": ["key"], "key": ["certificate"]}));
    Schema::map("In Redis or Valkey, for all nodes together. One of `url`, `cluster`, `sentinel` and `shards` says which servers.")
        .key(
            "url",
            Schema::text("One server, or all in one text: `redis://`, `rediss://`, `redis+cluster://`, `redis+sentinel://`, `redis+unix://`.")
                .with("pattern", "^[a-z+]+://")
                .example("redis://cache.example.com:6379/0"),
        )
        .key("cluster", addresses("Some nodes of a Redis Cluster.").with("minItems", 1).example(json!(["a:6379", "b:6379"])))
        .key("sentinel", sentinel.example(json!({"addresses": ["a", "b"], "master": "main"})))
        .key(
            "shards",
            Schema::list("Independent servers, each of which keeps a part of the keys.", Schema::text("A URL or an address."))
                .with("minItems", 1)
                .example(json!(["redis-1:6379", "redis-2:6379"])),
        )
        .key("timeout", Schema::part("All the time that a check has.", "window").with_default("10ms").example("25ms"))
        .key("prefix", word("What every key begins with.").with_default("tg:").example("shop:"))
        .key(
            "denial_memory",
            Schema::text("How long a node answers a denied client itself, at most a second; `off` asks each time.").with_default("1s").example("500ms"),
        )
        .key("database", Schema::whole("The number of the database.", 0, 1_000_000).with_default(0).example(2))
        .key("user", word("Who to be to the servers.").example("tidegate"))
        .key("password", secret("The password. `password_file` and TIDEGATE_REDIS_PASSWORD keep it out of this file."))
        .key("password_file", file("The file that has it.", "redis-password"))
        .key("secret", secret("What names of keys are hashed with, the same on every node. `secret_file` and TIDEGATE_REDIS_SECRET keep it out of this file."))
        .key("secret_file", file("The file that has it.", "fleet-secret"))
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
        "In Redis, for all nodes together: `true` for the one of the store, or the URL of another.",
    )
    .with(
        "anyOf",
        json!([{"const": true}, {"type": "string", "pattern": "^(true|[a-z+]+://.+)$"}]),
    );
    let url = Schema::text("A document on the web, which is looked at again and again. TIDEGATE_RULES_TOKEN is what its server is shown.")
        .with("pattern", "^https?://[^@/]+(/.*)?$");
    Schema::map("Where the rules come from: one of `file`, `redis`, `url` and `inline`, or `envoy` beside it or alone. Without it: a few sample rules.")
        .key("file", file("A file of rules, which is watched.", "rules.yaml"))
        .key("redis", redis.example(true).example("redis://cache.example.com"))
        .key("url", url.example("https://config.example.com/rules.yaml"))
        .key(
            "inline",
            Schema::list("The rules themselves, as they stand in a file of rules.", Schema::part("", "rule"))
                .example(json!([{"name": "api", "per": ["user"], "limit": "100/s"}])),
        )
        .key("envoy", file("A directory of envoyproxy/ratelimit files.", "ratelimit/config"))
        .key("copy", file("A directory where the last good rules are kept, for a start without their source, and the size of the fleet, for a start without Redis.", "/var/lib/tidegate"))
        .key("poll", Schema::part("How often the source is looked at, whatever it says by itself: a second or more.", "window").example("30s"))
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
    let mut spelled: Vec<Value> = drafts.iter().map(|word| json!(word)).collect();
    spelled.extend(drafts.iter().filter_map(|word| word.parse::<u64>().ok()).map(Value::from));
    Schema::map("What responses tell clients about their limits.")
        .key(
            "reset",
            Schema::word("Whether X-RateLimit-Reset says in how many seconds, or when in Unix seconds.", RESETS.map(|(word, _)| word))
                .example("epoch"),
        )
        .key(
            "ietf",
            Schema::any("Which draft of the IETF's headers: 11 has RateLimit and RateLimit-Policy, 6 has RateLimit-Limit, -Remaining and -Reset.")
                .with("enum", spelled)
                .with_default(11)
                .example(6),
        )
        .key("rls", Schema::word("Which responses Envoy adds headers to.", RLS_HEADERS.map(|(word, _)| word)).example("all"))
        .example(json!({"reset": "epoch", "ietf": 6}))
}

fn resp() -> Schema {
    Schema::map("What clients of the RESP listener have to say first.")
        .key("password", secret("The password. `password_file` and TIDEGATE_RESP_PASSWORD keep it out of this file."))
        .key("password_file", file("The file that has it.", "resp-password"))
        .with("not", json!({"required": ["password", "password_file"]}))
        .example(json!({"password_file": "resp-password"}))
}

fn identity() -> Schema {
    let place = |about: &str, kinds: &[&str], example: Value| {
        let place = Schema::map(about).with("minProperties", 1).with("maxProperties", 1);
        let place = kinds.iter().fold(place, |place, kind| {
            let about = format!(
                "The name of a {}.",
                if *kind == "query" { "query parameter" } else { kind }
            );
            place.key(kind, Schema::text(&about).with("minLength", 1).example("x-api-key"))
        });
        place.example(example)
    };
    Schema::map("Who a client is, for requests that a proxy asks about.")
        .key(
            "trusted_proxies",
            Schema::list(
                "Addresses and networks whose word about a client's address counts.",
                Schema::text("An address or a network."),
            )
            .with_default(json!([]))
            .example(json!(["127.0.0.1", "10.0.0.0/8"])),
        )
        .key(
            "forwarded_header",
            Schema::word("The header that proxies say it in.", ["x-forwarded-for", "forwarded"])
                .example("forwarded"),
        )
        .key(
            "ipv6_prefix",
            Schema::whole("How many bits of an IPv6 address name a client.", 1, 128)
                .with_default(64)
                .example(56),
        )
        .key(
            "api_key",
            place(
                "Where API keys are. Without it: the header `x-api-key`.",
                &["header", "query", "cookie"],
                json!({"header": "x-api-key"}),
            ),
        )
        .key(
            "session",
            place(
                "Where sessions are. Without it: nowhere.",
                &["cookie", "header"],
                json!({"cookie": "sid"}),
            ),
        )
        .key("jwt", jwt())
        .key(
            "attributes",
            Schema::map("Attributes of your own, by their names.")
                .open(Schema::text("Where it is.").with("pattern", "^(header|query|cookie)\\..+$"))
                .example(json!({"tenant": "header.x-tenant", "plan": "query.plan"})),
        )
        .example(json!({"trusted_proxies": ["10.0.0.0/8"]}))
}

fn jwt() -> Schema {
    let one = |form: &str| json!({"required": [form]});
    let one_or_more = |about: &str, example: Value| {
        let text = Schema::text("One.");
        Schema::one_of(about, [text.clone(), Schema::list("Any of these.", text)]).example(example)
    };
    Schema::map("Tokens that give a client its `user` and `claim.*`. One of `secret`, `secret_file`, `public_key` and `jwks` verifies them.")
        .key("secret", secret("A secret of 32 bytes or more, for HS256, HS384 and HS512.").with("minLength", 32))
        .key("secret_file", file("The file that has it.", "jwt-secret"))
        .key("public_key", file("A public key: RSA, EC (P-256, P-384) or Ed25519.", "key.pem"))
        .key("jwks", file("A set of keys, found by a token's `kid`.", "keys.json"))
        .key(
            "algorithms",
            Schema::list("Which algorithms count. Without it: all that the key can do.", Schema::text("Its name.").with("pattern", "^[A-Z][A-Za-z]+[0-9]*$"))
                .example(json!(["RS256"])),
        )
        .key("issuer", one_or_more("Who a token must be from.", json!("https://id.example.com")))
        .key("audience", one_or_more("Whom it must be for.", json!(["shop", "api"])))
        .key("leeway", Schema::text("By how much clocks may differ.").with_default("60s").example("30s"))
        .key("header", Schema::text("The header that has it.").with_default("authorization").example("x-token"))
        .key("cookie", Schema::text("The cookie that has it.").example("session-token"))
        .with("oneOf", ["secret", "secret_file", "public_key", "jwks"].map(one).to_vec())
        .with("not", json!({"required": ["header", "cookie"]}))
        .example(json!({"jwks": "keys.json", "issuer": "https://id.example.com"}))
}

fn admin() -> Schema {
    let token = Schema::text(
        "What operators send as `Authorization: Bearer`. TIDEGATE_TOKEN keeps it out of this file.",
    )
    .with("pattern", "^[!-~]{16,256}$")
    .example("at-least-16-characters");
    Schema::map("Who may use the admin listener.")
        .key("token", token)
        .example(json!({"token": "at-least-16-characters"}))
}

fn tls() -> Schema {
    Schema::map(
        "Which listeners speak TLS, and how. Files are PEM and are looked at again when they change.",
    )
    .required(
        "certificate",
        file("The certificate, and those that lead to its authority.", "server.pem"),
    )
    .required("key", file("Its key.", "server.key"))
    .key(
        "client_ca",
        file(
            "The authority of the certificates that clients must show. Without it they need none.",
            "clients.pem",
        ),
    )
    .key(
        "listeners",
        Schema::list("The listeners.", Schema::word("", LISTENERS).without_default())
            .with_default(LISTENERS.to_vec())
            .example(json!(["grpc", "admin"])),
    )
    .example(json!({"certificate": "server.pem", "key": "server.key"}))
}

fn drain() -> Schema {
    Schema::map("How a server leaves after SIGTERM.")
        .key(
            "delay",
            time("How long it goes on as before and only says that it is not ready.", "2s", "5s"),
        )
        .key("timeout", time("How long it then waits for what is under way.", "25s", "20s"))
        .example(json!({"delay": "5s", "timeout": "20s"}))
}

/// A length of time, which may be none: `0s`.
fn time(about: &str, usual: &str, example: &str) -> Schema {
    Schema::any(about)
        .with("type", vec!["string", "integer"])
        .with("maximum", 0)
        .with_default(usual)
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
