//! `/v1/top`: the clients with most requests or most denials.

use std::borrow::Cow;

use hyper::Response;
use tidegate_api::{ClientRanking, RankedClient};
use tidegate_core::{CallError, quote};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_rules::Rule;
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::service::{Service, unknown_rule};
use tidegate_service::top::{RankBy, TopClient, TopClients};

use crate::query;
use crate::rule_client::client_name;

const DEFAULT_CLIENTS: usize = 20;
const MAX_CLIENTS: usize = 1_000;

/// Returns the ranking of clients.
pub(crate) fn handle(
    service: &Service,
    active_rules: &ActiveRules,
    query: Option<&str>,
) -> Response<Body> {
    let (by, number, limit) = match parse_query(active_rules, query) {
        Ok(parsed) => parsed,
        Err(error) => return response::call_error(&error),
    };
    let now = service.clock().now();
    let ranking = service.stats().top.ranking(by, number, limit, now);
    let (rules, indices) = (active_rules.limiter().rules(), active_rules.counter_ids().by_number());
    // Clients of rules that are no longer active are left out.
    let rule = |client: &TopClient| rules.get(*indices.get(&client.number)?).map(Rule::name);
    let clients =
        ranking.iter().filter_map(|client| Some(ranked_client(by, client, rule(client)?)));
    let since = TopClients::period_start(now);
    let ranking = ClientRanking {
        by: name(by).into(),
        since: since.as_secs_ceil(),
        seconds: now.since(since).as_secs_ceil(),
        clients: clients.collect(),
    };
    response::json(200, JSON, &ranking)
}

fn parse_query(
    active_rules: &ActiveRules,
    query: Option<&str>,
) -> Result<(RankBy, Option<usize>, usize), CallError> {
    let (rules, ids) = (active_rules.limiter().rules(), active_rules.counter_ids());
    let [by, rule, limit] = query::known(query, ["by", "rule", "limit"], "by, rule or limit")?;
    let by = match by.as_deref() {
        None | Some("traffic") => RankBy::Traffic,
        Some("denials") => RankBy::Denials,
        Some(other) => return Err(CallError::invalid("by", quote(other), "traffic or denials")),
    };
    let number = |name: &str| rules.rule_index(name).and_then(|index| ids.number(index));
    let number = rule.map(|name| number(&name).ok_or_else(|| unknown_rule(&name, rules)));
    let limit = query::number("limit", limit.as_deref(), DEFAULT_CLIENTS, MAX_CLIENTS)?;
    Ok((by, number.transpose()?, limit))
}

/// Returns the JSON of a client in a ranking.
fn ranked_client<'a>(
    by: RankBy,
    ranked: &'a TopClient,
    rule: &'a str,
) -> RankedClient<Cow<'a, str>> {
    let (requests, denials) = match by {
        RankBy::Traffic => (Some(ranked.count), None),
        RankBy::Denials => (None, Some(ranked.count)),
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

const fn name(by: RankBy) -> &'static str {
    match by {
        RankBy::Traffic => "traffic",
        RankBy::Denials => "denials",
    }
}
