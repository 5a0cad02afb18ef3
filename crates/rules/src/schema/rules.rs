//! The JSON Schema of a rules document, from the tables that its reader uses.
//!
//! A document that satisfies the schema has the shape of rules. The parser checks the rest: whether a number is
//! too large, whether a name is unique.

use serde_json::json;
use tidegate_core::quota::UNITS;
use tidegate_core::{Quota, Request};

use crate::accuracy::Accuracy;
use crate::parse::condition::TESTS;
use crate::parse::{ACCURACIES, ALGORITHMS, ANSWERS, MODES, UNBOUNDED, WHEN_HOT};
use crate::per::Chain;
use crate::rule::Rule;
use crate::schema::Schema;
use crate::set::RuleSet;

impl RuleSet {
    /// The JSON Schema of a document that [`parse`](Self::parse) reads.
    #[must_use]
    pub fn schema() -> Schema {
        let rules = Schema::list(
            "The rules. Each that matches a request must admit it; if one denies, none is charged.",
            Schema::part("", "rule"),
        );
        let rules = rules.with("maxItems", Self::MAX_RULES);
        let document = Schema::map(
            "Which requests are limited, whom each limit counts, and how much it admits.",
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

/// The named parts that the schema of rules refers to.
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
    let algorithms = words(&ALGORITHMS.map(|(word, _)| word));
    let name = Schema::text("What metrics, headers, logs and calls that name the rule know it by.")
        .with("pattern", format!("^[A-Za-z0-9_.-]{{1,{}}}$", Rule::MAX_NAME));
    let per = Schema::list(
        "The attributes that name a client, each of which counts apart. `user | api_key | ip` takes the first \
         that the request has. Without any: one bucket for all.",
        Schema::text("An attribute, or a chain of them.")
            .with("minLength", 1)
            .with("pattern", format!("^[^|]+(\\|[^|]+){{0,{}}}$", Chain::MAX_ALTERNATIVES - 1)),
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
    let penalty = Schema::map("Blocks a client that goes on after it was denied. Needs `per`.")
        .required(
            "after",
            Schema::one_of(
                "How many denied requests are too many: a number, or so many times the limit.",
                [
                    Schema::whole("So many.", 1, Quota::MAX_AMOUNT),
                    Schema::text("So many times the limit.").with("pattern", "^[0-9][0-9_]*x$"),
                ],
            )
            .example("10x")
            .example(500),
        )
        .required(
            "within",
            Schema::part("How close together they have to be.", "window").example("1m"),
        )
        .required(
            "block",
            Schema::part("How long the client is blocked.", "window").example("10m"),
        );
    Schema::map("One limit: for which requests, for whom, how much.")
        .required("name", name.example("login").example("api-per-key"))
        .key(
            "match",
            Schema::part("Which requests it is for: all conditions must hold. Without it: every request.", "conditions")
                .example(json!({"path": "/v1/**", "method": ["GET", "POST"]})),
        )
        .key("per", per.with("maxItems", Rule::MAX_PER).example(json!(["ip"])).example(json!(["user | api_key", "path"])))
        .required("limit", Schema::part("How much is admitted, and for how long.", "limit").example("100 per second"))
        .key(
            "burst",
            Schema::whole("How much can be spent at once, for `token_bucket`. Without it: the limit's amount.", 1, Quota::MAX_AMOUNT)
                .example(200),
        )
        .key(
            "queue",
            Schema::whole("How many may wait for their turn, for `leaky_bucket`.", 0, Quota::MAX_AMOUNT)
                .usually(0)
                .example(20),
        )
        .key(
            "hold",
            Schema::part("After how long a holder that neither releases nor renews its slot loses it, for `concurrency`: `1s` to `1h`.", "window")
                .usually("60s")
                .example("5m"),
        )
        .key("algorithm", Schema::word("How it counts. A limit in flight is counted by `concurrency`.", algorithms).example("sliding_window"))
        .key("tiers", tiers.example(json!({"by": "claim.plan", "limits": {"free": "10 per second"}})))
        .key(
            "overrides",
            Schema::list("Other limits for some clients. The first that matches and has not ended counts, before any tier.", Schema::part("", "override"))
                .with("maxItems", RuleSet::MAX_OVERRIDES)
                .example(json!([{"match": {"api_key": "partner-1"}, "limit": "5000 per second"}])),
        )
        .key(
            "accuracy",
            Schema::word(
                "How it is kept where nodes share a store. `exact`: each admission is one step there. `leased`: nodes take tokens ahead of use. \
                 `synced`: nodes decide alone and tell each other now and then, which can admit more. `split`: each node keeps its part.",
                words(&ACCURACIES.map(|(word, _)| word)),
            )
            .example("leased"),
        )
        .key(
            "sync",
            Schema::part("How often a node tells what it admitted, for `synced`: `10ms` to `1m`.", "window")
                .usually("200ms")
                .example("200ms"),
        )
        .key(
            "max_ahead",
            Schema::one_of(
                "The most that a node admits before the store knows of it, for `synced`: N nodes admit at most N times that beyond the limit in each window or bucket. \
                 Without it: a tenth of what can be spent at once.",
                [
                    Schema::whole("So many.", 1, Quota::MAX_AMOUNT),
                    Schema::word("No bound but what the node believes to be left.", [UNBOUNDED]).without_usual(),
                ],
            )
            .example(50),
        )
        .key(
            "shards",
            Schema::whole(
                "In how many parts the limit of each client is kept, for `exact`, so that several servers share the work of one busy client.",
                u64::from(Accuracy::SHARDS.0),
                u64::from(Accuracy::SHARDS.1),
            )
            .example(4),
        )
        .key(
            "hot",
            Schema::word(
                "What becomes of a client whom a node sees very often, for `exact`: the node takes tokens ahead of use while it does.",
                words(&WHEN_HOT.map(|(word, _)| word)),
            )
            .without_usual()
            .example("leased"),
        )
        .key(
            "on_store_failure",
            Schema::word("What happens when the store can't be asked: the request passes, is answered 503, or meets this node's share of the limit by the last known number of nodes, a new share after each restart.", words(&ANSWERS.map(|(word, _)| word)))
                .example("deny"),
        )
        .key(
            "mode",
            Schema::word("Whether it denies, only counts what it would deny, or does nothing.", words(&MODES.map(|(word, _)| word)))
                .example("shadow"),
        )
        .key("rollout", share("The share of clients that the rule is for, always the same ones. Needs `per`."))
        .key("penalty", penalty.example(json!({"after": "10x", "within": "1m", "block": "10m"})))
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
    let value =
        |about: &str| Schema::scalar(about).with("minLength", 1).with("maxLength", Rule::MAX_VALUE);
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
        "is" => one_or_more("Is exactly this, stars and all.", &value("")).example("/a*b"),
        "in" => one_or_more("Is an address in one of these networks.", &network)
            .example(json!(["10.0.0.0/8", "2001:db8::/32"])),
        "present" => presence("Is there and not empty."),
        _ => presence("Is not there, or empty."),
    };
    let said = Schema::map("Something else than a value.")
        .with("minProperties", 1)
        .with("maxProperties", 1);
    let said = TESTS.iter().fold(said, |said, name| said.key(name, test(name)));
    Schema::map(
        "Conditions by attribute: a value, where `*` is anything but `/` and `**` anything; a list of values; \
         or one of `{is: …}`, `{in: [network, …]}`, `{present: true}`, `{absent: true}`.",
    )
    .with("maxProperties", Rule::MAX_CONDITIONS)
    .with("propertyNames", json!({"pattern": "^[^|\\s]([^|]*[^|\\s])?$", "maxLength": Request::MAX_NAME}))
    .open(Schema::one_of(
        "",
        [value("A value or a pattern."), values("Any of these.", value("")), said],
    ))
    .example(json!({"path": "/login", "method": "POST"}))
    .example(json!({"ip": {"in": ["10.0.0.0/8"]}}))
}

fn limit() -> Schema {
    let text = Schema::text("As people say it. Units are ms, second, minute, hour, day, week, month (30 days) and year (365 days), short or plural.")
        .with("pattern", format!("^ *[0-9][0-9_]*(( */ *| +per +){}| +in +flight) *$", length()));
    let map = Schema::map("In parts.")
        .required("amount", Schema::whole("How much.", 0, Quota::MAX_AMOUNT).example(250))
        .required("window", Schema::part("For how long.", "window").example("15m"))
        .key(
            "burst",
            Schema::whole("How much at once, for `token_bucket`.", 1, Quota::MAX_AMOUNT)
                .example(500),
        );
    Schema::one_of("How much, and for how long.", [text, map])
        .example("100 per second")
        .example("100/s")
        .example("250 per 15 minutes")
        .example("20 in flight")
        .example(json!({"amount": 250, "window": "15m", "burst": 500}))
}

fn overridden() -> Schema {
    Schema::map("Another limit for some clients.")
        .required(
            "match",
            Schema::part("Whom it is for.", "conditions").example(json!({"api_key": "partner-1"})),
        )
        .required("limit", Schema::part("What they get.", "limit").example("5000 per second"))
        .key(
            "until",
            Schema::text("When it ends; without it, never.")
                .with("format", "date-time")
                .with("pattern", "^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]+([Zz]|[+-][0-9:]+)$")
                .example("2027-01-01T00:00:00Z"),
        )
        .key("rollout", share("The share of those clients that get it."))
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

/// `15 minutes`, `15m`, `minute` as a pattern.
fn length() -> String {
    let units: Vec<&str> = UNITS.iter().flat_map(|(words, _)| words.iter().copied()).collect();
    format!("([0-9][0-9_]* *)?({})", units.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::RawRule;

    #[test]
    fn the_schema_has_the_keys_that_the_reader_knows() {
        let rule = rule();
        let keys: Vec<&str> = rule.keys().map(|(name, _)| name).collect();
        assert_eq!(keys, RawRule::KEYS);
    }
}
