//! `/v1/top`: who comes most, and who is denied most.

use hyper::Response;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use tidegate_core::{CallError, quote};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_rules::Rule;
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::service::{Service, unknown_rule};
use tidegate_service::top::{By, Ranked, Top};

use crate::query;

const USUAL: usize = 20;
const MOST: usize = 1_000;

/// Answers a request for the busiest clients.
pub(super) fn answer(
    service: &Service,
    active_rules: &ActiveRules,
    query: Option<&str>,
) -> Response<Body> {
    let (by, place, limit) = match asked(active_rules, query) {
        Ok(asked) => asked,
        Err(fault) => return response::fault(&fault),
    };
    let now = service.clock().now();
    let first = service.stats().top.first(by, place, limit, now);
    let (rules, indices) = (active_rules.limiter().rules(), active_rules.counter_ids().by_number());
    // A rule that is gone is not asked about any more.
    let rule = |ranked: &Ranked| rules.get(*indices.get(&ranked.place)?).map(Rule::name);
    let shown = |ranked| Some(Shown { by, ranked, rule: rule(ranked)? });
    let clients = first.iter().filter_map(shown).collect();
    let since = Top::since(now);
    let list = List {
        by: name(by),
        since: since.as_secs_ceil(),
        seconds: now.since(since).as_secs_ceil(),
        clients,
    };
    response::json(200, JSON, &list)
}

fn asked(by: &ActiveRules, query: Option<&str>) -> Result<(By, Option<usize>, usize), CallError> {
    let (rules, lines) = (by.limiter().rules(), by.counter_ids());
    let [by, rule, limit] = query::known(query, ["by", "rule", "limit"], "by, rule or limit")?;
    let by = match by.as_deref() {
        None | Some("traffic") => By::Traffic,
        Some("denials") => By::Denials,
        Some(other) => return Err(CallError::invalid("by", quote(other), "traffic or denials")),
    };
    let number = |name: &str| rules.rule_index(name).and_then(|index| lines.number(index));
    let place = rule.map(|name| number(&name).ok_or_else(|| unknown_rule(&name, rules)));
    let limit = query::number("limit", limit.as_deref(), USUAL, MOST)?;
    Ok((by, place.transpose()?, limit))
}

const fn name(by: By) -> &'static str {
    match by {
        By::Traffic => "traffic",
        By::Denials => "denials",
    }
}

#[derive(Serialize)]
struct List<'a> {
    by: &'static str,
    /// Unix seconds.
    since: u64,
    seconds: u64,
    clients: Vec<Shown<'a>>,
}

/// `{"rule":"login","id":"192.0.2.7/32","client":"192.0.2.7","requests":120,"atLeast":118}`.
struct Shown<'a> {
    by: By,
    ranked: &'a Ranked,
    rule: &'a str,
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Ranked { client, count, at_least, .. } = self.ranked;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("rule", self.rule)?;
        map.serialize_entry("id", &client.id())?;
        // Null when it is not to be shown.
        map.serialize_entry("client", &client.name)?;
        let counted = match self.by {
            By::Traffic => "requests",
            By::Denials => "denials",
        };
        map.serialize_entry(counted, count)?;
        map.serialize_entry("atLeast", at_least)?;
        map.end()
    }
}
