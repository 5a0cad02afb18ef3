//! The JSON Schema of a rules document, from the tables that its reader uses.
//!
//! A document that satisfies the schema has the shape of rules. The parser checks the rest: whether a number is
//! too large, whether a name is unique.

use serde_json::json;
use tidegate_core::quota::UNITS;
use tidegate_core::{Quota, Request};

use crate::accuracy::Accuracy;
use crate::ignored::IgnoredDifferences;
use crate::limits::Override;
use crate::parse::condition::{IGNORE_KEY, NEGATED_KEYS, NOT_KEY, TEST_KEYS};
use crate::parse::{
    ACCURACY_WORDS, ALGORITHM_WORDS, CALLER_REFUNDS_WORDS, HOT_WORDS, MODE_WORDS,
    ON_STORE_FAILURE_WORDS, UNBOUNDED_WORD,
};
use crate::per::AttributeChain;
use crate::rule::Rule;
use crate::schema::Schema;
use crate::set::RuleSet;

impl RuleSet {
    /// Returns the JSON Schema of a document that [`parse`](Self::parse) reads.
    #[must_use]
    pub fn schema() -> Schema {
        let rules = Schema::list(
            "The rules. Every matching rule must admit a request; if one denies it, none is charged.",
            Schema::part("", "rule"),
        );
        let rules = rules.with("maxItems", Self::MAX_RULES);
        let document = Schema::map(
            "The rate limits: the requests and clients that each limit applies to, and the amount that it admits.",
        )
        .with("$schema", Schema::DIALECT)
        .with("title", "Rules of Tidegate")
        .required(
            "rules",
            rules.example(json!([{"name": "api", "per": ["api_key"], "limit": "100 per second"}])),
        );
        parts().into_iter().fold(document, |document, (name, part)| document.define(name, part))
    }
}

/// Returns the named parts that the schema of rules refers to.
#[must_use]
pub fn parts() -> [(&'static str, Schema); 5] {
    [
        ("rule", rule()),
        ("conditions", conditions()),
        ("limit", limit()),
        ("override", overridden()),
        ("window", window()),
    ]
}

fn rule() -> Schema {
    let words = |table: &[&'static str]| table.to_vec();
    let algorithms = words(&ALGORITHM_WORDS.map(|(word, _)| word));
    let name = Schema::text("The name of the rule in metrics, headers, logs and calls.")
        .with("pattern", format!("^[A-Za-z0-9_.-]{{1,{}}}$", Rule::MAX_NAME_CHARS));
    let per = Schema::list(
        "The attributes that identify a client; each client has its own counter. `user | api_key | ip` uses the first \
         that the request has. Without `per`: one counter for all requests.",
        Schema::text("An attribute, or a chain of them.").with("minLength", 1).with(
            "pattern",
            format!("^[^|]+(\\|[^|]+){{0,{}}}$", AttributeChain::MAX_ALTERNATIVES - 1),
        ),
    );
    let tiers = Schema::map(
        "Limits by the value of an attribute. A value without a tier gets the rule's limit.",
    )
    .required("by", attribute("The attribute whose value chooses the limit.").example("claim.plan"))
    .required(
        "limits",
        Schema::map("A limit for each value.")
            .with("maxProperties", Rule::MAX_TIERS)
            .open(Schema::part("", "limit"))
            .example(json!({"free": "10 per second", "pro": "100 per second"})),
    );
    let penalty = Schema::map("Blocks a client that continues to send requests after it was denied. Needs `per`.")
        .required(
            "after",
            Schema::one_of(
                "The number of denied requests that leads to a block: a number, or a multiple of the limit.",
                [
                    Schema::whole("A number of requests.", 1, Quota::MAX_AMOUNT),
                    Schema::text("A multiple of the limit.").with("pattern", "^[0-9][0-9_]*x$"),
                ],
            )
            .example("10x")
            .example(500),
        )
        .required(
            "within",
            Schema::part("The time within which the denied requests are counted.", "window").example("1m"),
        )
        .required(
            "block",
            Schema::part("The duration of the block.", "window").example("10m"),
        );
    Schema::map("One rule: a limit, with the requests and clients that it applies to.")
        .required("name", name.example("login").example("api-per-key"))
        .key(
            "match",
            Schema::part("The conditions that a request must satisfy, all of them. Without `match`: every request.", "conditions")
                .example(json!({"path": "/v1/**", "method": ["GET", "POST"]})),
        )
        .key("per", per.with("maxItems", Rule::MAX_PER_ENTRIES).example(json!(["ip"])).example(json!(["user | api_key", "path"])))
        .required("limit", Schema::part("The amount that is admitted, and the time.", "limit").example("100 per second"))
        .key(
            "burst",
            Schema::whole("The amount that can be spent at once, for `token_bucket`. Without it: the limit's amount.", 1, Quota::MAX_AMOUNT)
                .example(200),
        )
        .key(
            "queue",
            Schema::whole("The number of requests that may wait, for `leaky_bucket`.", 0, Quota::MAX_AMOUNT)
                .with_default(0)
                .example(20),
        )
        .key(
            "hold",
            Schema::part("The time after which a slot that is neither released nor renewed expires, for `concurrency`: `1s` to `1h`.", "window")
                .with_default("60s")
                .example("5m"),
        )
        .key("algorithm", Schema::word("The counting algorithm. A limit in flight uses `concurrency`.", algorithms).example("sliding_window"))
        .key("tiers", tiers.example(json!({"by": "claim.plan", "limits": {"free": "10 per second"}})))
        .key(
            "overrides",
            Schema::list("Different limits, or exemptions, for some clients. The first override that matches and has not ended applies, before any tier.", Schema::part("", "override"))
                .with("maxItems", RuleSet::MAX_OVERRIDES)
                .example(json!([{"match": {"api_key": "partner-1"}, "limit": "5000 per second"}])),
        )
        .key(
            "accuracy",
            Schema::word(
                "How nodes that share a store enforce the limit. `exact`: each admission is one atomic step in the store. `leased`: nodes lease tokens ahead of use. \
                 `synced`: nodes decide alone and synchronise periodically, which can admit more than the limit. `split`: each node enforces its part of the limit.",
                words(&ACCURACY_WORDS.map(|(word, _)| word)),
            )
            .example("leased"),
        )
        .key(
            "sync",
            Schema::part("The time between two reports of a node to the store, for `synced`: `10ms` to `1m`.", "window")
                .with_default("200ms")
                .example("200ms"),
        )
        .key(
            "max_ahead",
            Schema::one_of(
                "The maximum that a node admits before it reports to the store, for `synced`: N nodes exceed the limit by at most N times this in each window or bucket. \
                 Without it: a tenth of the amount that can be spent at once.",
                [
                    Schema::whole("A number of tokens.", 1, Quota::MAX_AMOUNT),
                    Schema::word("No bound except the node's last view of the store.", [UNBOUNDED_WORD]).without_default(),
                ],
            )
            .example(50),
        )
        .key(
            "shards",
            Schema::whole(
                "The number of parts of each client's limit, for `exact`, so that several servers share the load of one client.",
                u64::from(Accuracy::SHARD_RANGE.0),
                u64::from(Accuracy::SHARD_RANGE.1),
            )
            .example(4),
        )
        .key(
            "hot",
            Schema::word(
                "The behaviour for a client with very many requests on one node, for `exact`: the node leases tokens ahead of use.",
                words(&HOT_WORDS.map(|(word, _)| word)),
            )
            .without_default()
            .example("leased"),
        )
        .key(
            "on_store_failure",
            Schema::word("The decision while the store is unavailable: `allow` admits the request, `deny` returns 503, `local` applies this node's share of the limit, by the last known number of nodes. A restart resets the share.", words(&ON_STORE_FAILURE_WORDS.map(|(word, _)| word)))
                .example("deny"),
        )
        .key(
            "mode",
            Schema::word("The effect of the rule: `enforce` denies, `shadow` only counts and reports, `off` applies to no request.", words(&MODE_WORDS.map(|(word, _)| word)))
                .example("shadow"),
        )
        .key("rollout", share("The share of clients that the rule applies to, always the same clients. Needs `per`."))
        .key("penalty", penalty.example(json!({"after": "10x", "within": "1m", "block": "10m"})))
        .key(
            "caller_refunds",
            Schema::word("The answer to callers of Envoy's rate limit service that send negative hits: `deny` rejects the call, `allow` refunds. Operators can always refund.", words(&CALLER_REFUNDS_WORDS.map(|(word, _)| word)))
                .example("allow"),
        )
        .with("dependentRequired", json!({"penalty": ["per"], "rollout": ["per"]}))
        .with(
            "allOf",
            json!([
                {
                    "if": {"required": ["queue"]},
                    "then": {"properties": {"algorithm": {"const": "leaky_bucket"}}, "required": ["algorithm"]}
                },
                {
                    "if": {"anyOf": [{"required": ["sync"]}, {"required": ["max_ahead"]}]},
                    "then": {"properties": {"accuracy": {"const": "synced"}}, "required": ["accuracy"]}
                },
                {
                    "if": {"anyOf": [{"required": ["shards"]}, {"required": ["hot"]}]},
                    "then": {"properties": {"accuracy": {"const": "exact"}}}
                },
                {
                    "if": {"required": ["hold"]},
                    "then": {"properties": {"algorithm": {"const": "concurrency"}}}
                },
                {
                    "if": {"required": ["burst"]},
                    "then": {"properties": {"algorithm": {"const": "token_bucket"}}}
                }
            ]),
        )
}

fn conditions() -> Schema {
    let value = |about: &str| {
        Schema::scalar(about).with("minLength", 1).with("maxLength", Rule::MAX_VALUE_BYTES)
    };
    let values = |about: &str, item: Schema| {
        Schema::list(about, item).with("minItems", 1).with("maxItems", Rule::MAX_ALTERNATIVES)
    };
    let one_or_more = |about: &str, item: &Schema| {
        Schema::one_of(about, [item.clone(), values("Any of them.", item.clone())])
    };
    let network =
        Schema::text("An address or a network.").with("pattern", "^[0-9A-Fa-f:.]+(/[0-9]+)?$");
    let presence =
        |about: &str| Schema::any(about).with("enum", json!([true, false])).example(true);
    let test = |name: &str| match name {
        "like" => {
            one_or_more("Equals this text, or matches this pattern.", &value("")).example("/v1/**")
        }
        "is" => one_or_more("Equals this text; a star is an ordinary character.", &value(""))
            .example("/a*b"),
        "in" => one_or_more("Is an address in one of these networks.", &network)
            .example(json!(["10.0.0.0/8", "2001:db8::/32"])),
        "present" => presence("Is present and not empty."),
        _ => presence("Is absent or empty."),
    };
    let negated_map = Schema::map("A test.").with("minProperties", 1).with("maxProperties", 1);
    let negated_map =
        NEGATED_KEYS.iter().fold(negated_map, |tests, name| tests.key(name, test(name)));
    let negated = Schema::one_of(
        "Is absent, or does not match: neither one of these values or patterns, nor `{like: …}`, `{is: …}` or `{in: …}`.",
        [value("A value or a pattern."), values("Any of these.", value("")), negated_map],
    );
    let ignored = Schema::text("A difference.").with("enum", json!(IgnoredDifferences::NAMES));
    let ignored = one_or_more(
        "Differences that do not matter, beside values or patterns: the `case` of ASCII letters, or a slash at the end (`trailing_slash`).",
        &ignored,
    );
    let tests = Schema::map(
        "A map has one of `like`, `is`, `in`, `present` and `absent`, or only `not`. `not` and `ignore` may be beside it.",
    );
    let tests = TEST_KEYS.iter().fold(tests, |tests, name| tests.key(name, test(name)));
    let only_not: serde_json::Map<String, serde_json::Value> =
        TEST_KEYS.iter().map(|name| ((*name).to_owned(), json!(false))).collect();
    let mut shapes: Vec<serde_json::Value> =
        TEST_KEYS.iter().map(|name| json!({"required": [name]})).collect();
    shapes.push(json!({"required": [NOT_KEY], "properties": only_not}));
    let has_patterns = json!([
        {"required": ["like"]},
        {"required": ["is"]},
        {"required": [NOT_KEY], "properties": {NOT_KEY: {"not": {"required": ["in"]}}}}
    ]);
    let tests = tests
        .key(NOT_KEY, negated.example(json!(["/healthz", "/static/**"])))
        .key(IGNORE_KEY, ignored.example(json!(["case", "trailing_slash"])))
        .with("oneOf", shapes)
        .with("dependentSchemas", json!({IGNORE_KEY: {"anyOf": has_patterns}}));
    Schema::map(
        "Conditions by attribute: a value, where `*` is anything but `/` and `**` anything; a list of values; \
         or a map: `{like: …}`, `{is: …}`, `{in: [network, …]}`, `{present: true}`, `{absent: true}`, `{not: …}`. `not` excludes \
         values, alone or beside another test. With `ignore`, the case or a slash at the end does not matter.",
    )
    .with("maxProperties", Rule::MAX_CONDITIONS)
    .with("propertyNames", json!({"pattern": "^[^|\\s]([^|]*[^|\\s])?$", "maxLength": Request::MAX_NAME}))
    .open(Schema::one_of(
        "",
        [value("A value or a pattern."), values("Any of these.", value("")), tests],
    ))
    .example(json!({"path": "/login", "method": "POST"}))
    .example(json!({"path": {"like": "/login", "ignore": ["case", "trailing_slash"]}}))
    .example(json!({"path": {"like": "/v1/**", "not": "/v1/healthz"}}))
    .example(json!({"ip": {"in": ["10.0.0.0/8"]}}))
}

fn limit() -> Schema {
    let text = Schema::text("A text. Units are ms, second, minute, hour, day, week, month (30 days) and year (365 days), short or plural.")
        .with("pattern", format!("^ *[0-9][0-9_]*(( */ *| +per +){}| +in +flight) *$", length()));
    let map = Schema::map("A map.")
        .required("amount", Schema::whole("The amount.", 0, Quota::MAX_AMOUNT).example(250))
        .required("window", Schema::part("The time.", "window").example("15m"))
        .key(
            "burst",
            Schema::whole(
                "The amount that can be spent at once, for `token_bucket`.",
                1,
                Quota::MAX_AMOUNT,
            )
            .example(500),
        );
    Schema::one_of("The amount that is admitted, and the time.", [text, map])
        .example("100 per second")
        .example("100/s")
        .example("250 per 15 minutes")
        .example("20 in flight")
        .example(json!({"amount": 250, "window": "15m", "burst": 500}))
}

fn overridden() -> Schema {
    let exempt =
        Schema::word("No limit.", [Override::EXEMPT_WORD]).without_default().example("exempt");
    let limit = Schema::one_of(
        "The limit of these clients. `exempt`: the rule does not count and limit them.",
        [Schema::part("A limit.", "limit"), exempt],
    );
    Schema::map("A different limit for some clients.")
        .required(
            "match",
            Schema::part("The conditions that a request must satisfy.", "conditions")
                .example(json!({"api_key": "partner-1"})),
        )
        .required("limit", limit.example("5000 per second").example(Override::EXEMPT_WORD))
        .key(
            "until",
            Schema::text("The end of the override. Without it, the override is permanent.")
                .with("format", "date-time")
                .with("pattern", "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+([Zz]|[+-][0-9:]+)$")
                .example("2027-01-01T00:00:00Z"),
        )
        .key("rollout", share("The share of these clients that the override applies to."))
}

fn share(about: &str) -> Schema {
    Schema::text(about)
        .with("pattern", "^[0-9]{1,3}([.][0-9]{1,4})?%$")
        .example("10%")
        .example("0.5%")
}

fn window() -> Schema {
    Schema::text("A length of time, from 1 ms to 10 years.")
        .with("pattern", format!("^ *{} *$", length()))
        .example("15m")
        .example("1 hour")
        .example("second")
}

fn attribute(about: &str) -> Schema {
    Schema::text(about)
        .with("minLength", 1)
        .with("maxLength", Request::MAX_NAME)
        .with("pattern", "^[^|]+$")
}

/// Returns a pattern for `15 minutes`, `15m` and `minute`.
fn length() -> String {
    let units: Vec<&str> = UNITS.iter().flat_map(|(words, _)| words.iter().copied()).collect();
    format!("([0-9][0-9_]* *)?({})", units.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawRule;

    #[test]
    fn schema_of_a_rule_has_the_keys_of_the_parser() {
        let rule = rule();
        let keys: Vec<&str> = rule.keys().map(|(name, _)| name).collect();
        assert_eq!(keys, RawRule::KEYS);
    }
}
