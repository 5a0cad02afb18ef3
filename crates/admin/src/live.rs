//! `/v1/live`: the counts of the last five minutes, second by second.

use hyper::Response;
use tidegate_api::{LiveReport, RuleActivity};
use tidegate_core::{CallError, quote};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::live::unix_second;
use tidegate_service::store::AnyStore;

use crate::{AdminApi, query};

/// Returns the counts of each second from `since` on, the state of the node, and the totals and rates of each rule.
pub(crate) fn handle(
    admin: &AdminApi,
    active: &ActiveRules,
    query: Option<&str>,
) -> Response<Body> {
    let since = match parse_since(query) {
        Ok(since) => since,
        Err(error) => return response::call_error(&error),
    };
    let (live, service, limiter) = (&admin.live, &admin.service, active.limiter());
    let rates = live.rates();
    let totals = service.stats().counters.sample(active).rules;
    let rules = totals.iter().map(|(rule, total)| RuleActivity {
        rule: &**rule,
        total: *total,
        per_second: rates.get(rule).copied().unwrap_or_default(),
    });
    let usage = limiter.blocks().usage();
    let report = LiveReport {
        node: admin.manager.node(),
        release: env!("CARGO_PKG_VERSION"),
        started: unix_second(live.started()),
        ready: service.not_ready_reason().is_none(),
        at: unix_second(service.clock().now()),
        rules_version: active.version().number,
        rules_hash: &active.version().hash,
        store: match &**limiter.store() {
            AnyStore::Memory(_) => "memory",
            AnyStore::Redis(_) => "redis",
        },
        blocked: usage.entries.saturating_sub(usage.allowed) as u64,
        seconds: live.seconds(since),
        rules: rules.collect(),
    };
    response::json(200, JSON, &report)
}

/// Parses `since`, a Unix second. Without it the result is 0, which selects the whole history.
fn parse_since(query: Option<&str>) -> Result<u64, CallError> {
    let [since] = query::known(query, ["since"], "since")?;
    let Some(since) = since else { return Ok(0) };
    since.parse().map_err(|_| CallError::invalid("since", quote(&since), "Unix seconds"))
}
