//! `/v1/top`: who comes most, and who is denied most.

use std::borrow::Cow;

use hyper::Response;
use tidegate_api::{ClientRanking, RankedClient};
use tidegate_core::{CallError, quote};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_rules::Rule;
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::service::{Service, unknown_rule};
use tidegate_service::top::{By, Ranked, Top};

use crate::query;
use crate::standing::client_name;

const USUAL: usize = 20;
const MOST: usize = 1_000;

/// Answers a request for the busiest clients.
pub(crate) fn answer(
    service: &Service,
    active_rules: &ActiveRules,
    query: Option<&str>,
) -> Response<Body> {
    let (by, place, limit) = match asked(active_rules, query) {
        Ok(asked) => asked,
        Err(fault) => return response::call_error(&fault),
    };
    let now = service.clock().now();
    let first = service.stats().top.first(by, place, limit, now);
    let (rules, indices) = (active_rules.limiter().rules(), active_rules.counter_ids().by_number());
    // A rule that is gone is not asked about any more.
    let rule = |ranked: &Ranked| rules.get(*indices.get(&ranked.place)?).map(Rule::name);
    let clients = first.iter().filter_map(|ranked| Some(ranked_client(by, ranked, rule(ranked)?)));
    let since = Top::since(now);
    let ranking = ClientRanking {
        by: name(by).into(),
        since: since.as_secs_ceil(),
        seconds: now.since(since).as_secs_ceil(),
        clients: clients.collect(),
    };
    response::json(200, JSON, &ranking)
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

/// Returns the JSON of a client in a ranking.
fn ranked_client<'a>(by: By, ranked: &'a Ranked, rule: &'a str) -> RankedClient<Cow<'a, str>> {
    let (requests, denials) = match by {
        By::Traffic => (Some(ranked.count), None),
        By::Denials => (None, Some(ranked.count)),
    };
    RankedClient {
        rule: rule.into(),
        id: ranked.client.id().into(),
        client: ranked.client.name.as_ref().map(client_name),
        requests,
        denials,
        at_least: ranked.at_least,
    }
}

const fn name(by: By) -> &'static str {
    match by {
        By::Traffic => "traffic",
        By::Denials => "denials",
    }
}
