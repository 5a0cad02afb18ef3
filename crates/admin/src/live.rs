//! `/v1/live`: what happens now, second by second.

use hyper::Response;
use tidegate_api::{LiveReport, RuleActivity};
use tidegate_core::{CallError, quote};
use tidegate_net::http::response::{self, Body, JSON};
use tidegate_service::active_rules::ActiveRules;
use tidegate_service::live::second;
use tidegate_service::store::AnyStore;

use crate::{Admin, query};

/// Answers a request for the last seconds.
pub(crate) fn answer(admin: &Admin, now: &ActiveRules, query: Option<&str>) -> Response<Body> {
    let since = match since(query) {
        Ok(since) => since,
        Err(fault) => return response::call_error(&fault),
    };
    let (live, service, limiter) = (&admin.live, &admin.service, now.limiter());
    let rates = live.rates();
    let said = service.stats().counters.sample(now).rules;
    let rules = said.iter().map(|(rule, total)| RuleActivity {
        rule: &**rule,
        total: *total,
        per_second: rates.get(rule).copied().unwrap_or_default(),
    });
    let report = LiveReport {
        node: admin.manager.node(),
        release: env!("CARGO_PKG_VERSION"),
        started: second(live.started()),
        ready: service.not_ready_reason().is_none(),
        at: second(service.clock().now()),
        rules_version: now.version().number,
        rules_hash: &now.version().hash,
        store: match &**limiter.store() {
            AnyStore::Memory(_) => "memory",
            AnyStore::Redis(_) => "redis",
        },
        blocked: limiter.blocks().usage().entries as u64,
        seconds: live.seconds(since),
        rules: rules.collect(),
    };
    response::json(200, JSON, &report)
}

/// After which second; without a word all that are kept.
fn since(query: Option<&str>) -> Result<u64, CallError> {
    let [since] = query::known(query, ["since"], "since")?;
    let Some(since) = since else { return Ok(0) };
    since.parse().map_err(|_| CallError::invalid("since", quote(&since), "Unix seconds"))
}
