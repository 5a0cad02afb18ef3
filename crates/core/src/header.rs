//! The response headers of a decision, and the body of a denial.

use serde::Serialize;

use crate::algorithm::Limit;
use crate::decision::{Block, Decision, DecisionStatus, RuleOutcome};
use crate::quota::Quota;
use crate::time::{Span, Timestamp};

/// The largest integer of a structured field (RFC 9651). Larger limits are sent as this number.
const MAX_FIELD_INTEGER: u64 = 999_999_999_999_999;

/// The selection and format of the response headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyle {
    /// The format of `X-RateLimit-Reset`.
    pub reset: ResetFormat,
    /// The IETF draft of the `RateLimit` headers.
    pub ietf: IetfDraft,
}

/// The format of a reset header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResetFormat {
    /// Seconds from now.
    #[default]
    Delta,
    /// Seconds since the Unix epoch.
    Epoch,
}

/// A draft of the IETF's RateLimit headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IetfDraft {
    /// `RateLimit` and `RateLimit-Policy`, as of draft 11.
    #[default]
    Current,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`, as of draft 6.
    Six,
    /// None of them.
    Off,
}

/// A header's name, in lower case, and its value.
pub type Header = (&'static str, String);

impl HeaderStyle {
    /// Returns the headers of a decision; none when no rule applies.
    #[must_use]
    pub fn headers(self, decision: &Decision, now: Timestamp) -> Vec<Header> {
        let mut headers = Vec::with_capacity(6);
        self.visit_headers(decision, now, |name, value| headers.push((name, value.to_owned())));
        headers
    }

    /// Passes the name and the value of each header of a decision to `visit`, without an allocation for each of them.
    pub fn visit_headers(
        self,
        decision: &Decision,
        now: Timestamp,
        mut visit: impl FnMut(&'static str, &str),
    ) {
        let mut integer = |name, value: u64| visit(name, itoa::Buffer::new().format(value));
        if let Some(wait) = retry_after_seconds(decision) {
            integer("retry-after", wait);
        }
        let Some(policy) = decision.strictest_rule() else { return };
        let outcome = &policy.outcome;
        let delta = outcome.reset_after.as_secs_ceil();
        let reset = match self.reset {
            ResetFormat::Delta => delta,
            ResetFormat::Epoch => (now + outcome.reset_after).as_secs_ceil(),
        };
        integer("x-ratelimit-limit", outcome.limit);
        integer("x-ratelimit-remaining", outcome.remaining);
        integer("x-ratelimit-reset", reset);
        match self.ietf {
            IetfDraft::Current => {
                // Enough for the lists of most decisions.
                let mut text = String::with_capacity(64);
                list(&mut text, decision, policy_item);
                visit("ratelimit-policy", &text);
                text.clear();
                list(&mut text, decision, |text, policy| state_item(text, decision, policy));
                visit("ratelimit", &text);
            }
            IetfDraft::Six => {
                integer("ratelimit-limit", outcome.limit.min(MAX_FIELD_INTEGER));
                integer("ratelimit-remaining", outcome.remaining.min(MAX_FIELD_INTEGER));
                integer("ratelimit-reset", delta.min(MAX_FIELD_INTEGER));
            }
            IetfDraft::Off => {}
        }
    }
}

/// Returns the seconds after which a denied client may retry, rounded up; `None` if it was not denied, or if no wait
/// helps.
#[must_use]
pub fn retry_after_seconds(decision: &Decision) -> Option<u64> {
    match decision.status() {
        DecisionStatus::Deny => Some(decision.retry_after()?.as_secs_ceil()),
        // The end of a store failure is unknown. One second keeps clients from retrying at once.
        DecisionStatus::Unavailable => Some(1),
        DecisionStatus::Allow => None,
    }
}

fn list(text: &mut String, decision: &Decision, item: impl Fn(&mut String, &RuleOutcome)) {
    for policy in decision.enforced() {
        if !text.is_empty() {
            text.push_str(", ");
        }
        item(text, policy);
    }
}

/// Appends `"api";q=100;w=60`. The window is left out if it is not a whole number of seconds. A limit in flight has a
/// unit instead of a window.
fn policy_item(text: &mut String, policy: &RuleOutcome) {
    let quota = policy.limit.quota();
    named(text, policy, ";q=", quota.amount());
    let window = quota.window();
    if quota.is_in_flight() {
        text.push_str(";qu=\"concurrent-requests\"");
    } else if window.as_micros().is_multiple_of(1_000_000) {
        number(text, ";w=", window.as_secs_ceil());
    }
}

/// Appends `"api";r=50;t=30`: the remaining amount, and the effective window in seconds.
fn state_item(text: &mut String, decision: &Decision, policy: &RuleOutcome) {
    named(text, policy, ";r=", policy.outcome.remaining);
    if let Some(window) = effective_window(decision.status(), policy) {
        number(text, ";t=", window.as_secs_ceil());
    }
}

/// Returns the time in which a client can use no more than the remaining amount, if one can be stated.
///
/// The remaining amount divided by this time never exceeds the rate of the limit: a client may divide to pace itself.
/// `Retry-After` must not be earlier than the end of any effective window. So a denied request gets that of the rules
/// that deny, and a store failure, which has a fixed `Retry-After`, gets none.
fn effective_window(status: DecisionStatus, policy: &RuleOutcome) -> Option<Span> {
    let outcome = &policy.outcome;
    let quota = policy.limit.quota();
    match status {
        DecisionStatus::Allow => match &*policy.limit {
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                refill_time(quota, outcome.remaining.max(1))
            }
            Limit::FixedWindow(_) | Limit::SlidingWindow(_) | Limit::SlidingLog(_) => {
                let until_reset = outcome.reset_after.min(quota.window());
                Some(refill_time(quota, outcome.remaining)?.max(until_reset))
            }
            Limit::Concurrency(_) => None,
        },
        DecisionStatus::Deny => {
            let wait = outcome.retry_after()?;
            let paced = outcome.remaining == 0
                || quota.is_in_flight()
                || refill_time(quota, outcome.remaining)? <= wait;
            paced.then_some(wait)
        }
        DecisionStatus::Unavailable => None,
    }
}

/// Returns the time in which a limit admits `amount` at its rate, rounded up; `None` if it admits nothing.
fn refill_time(quota: &Quota, amount: u64) -> Option<Span> {
    let (window, divisor) = (quota.window().as_micros(), quota.amount());
    if divisor == 0 {
        return None;
    }
    let micros = match window.checked_mul(amount) {
        Some(total) => total.div_ceil(divisor),
        None => {
            let total = u128::from(window) * u128::from(amount);
            u64::try_from(total.div_ceil(u128::from(divisor))).unwrap_or(u64::MAX)
        }
    };
    Some(Span::from_micros(micros))
}

/// Appends `"api";q=100`. It avoids `format!`, since this runs for every response.
fn named(text: &mut String, policy: &RuleOutcome, parameter: &str, value: u64) {
    text.push('"');
    text.push_str(&policy.rule);
    text.push('"');
    number(text, parameter, value);
}

fn number(text: &mut String, parameter: &str, value: u64) {
    text.push_str(parameter);
    text.push_str(itoa::Buffer::new().format(value.min(MAX_FIELD_INTEGER)));
}

/// The body of a denial, as `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The URI of the problem type (RFC 9457).
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The problem type as text.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The reason for this request.
    pub detail: String,
    /// The rules that denied it.
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    pub violated_policies: Vec<String>,
}

impl Problem {
    /// The media type of the body.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// Returns the problem of a decision; `None` if it allows the request.
    #[must_use]
    pub fn of(decision: &Decision) -> Option<Self> {
        if let Some(block) = decision.block() {
            return Some(Self::blocked(block));
        }
        match decision.status() {
            DecisionStatus::Allow => None,
            DecisionStatus::Deny => {
                let denied = decision.enforced().filter(|policy| !policy.outcome.is_allowed());
                let violated_policies = denied.map(|policy| policy.rule.to_string()).collect();
                Some(Self {
                    kind: "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    title: "Too many requests",
                    status: 429,
                    detail: Self::wait(decision),
                    violated_policies,
                })
            }
            DecisionStatus::Unavailable => Some(Self {
                kind: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
                title: "The limit can't be checked right now",
                status: 503,
                detail: "the rate limiter's store does not answer".to_owned(),
                violated_policies: Vec::new(),
            }),
        }
    }

    fn blocked(block: &Block) -> Self {
        let detail = match &block.rule {
            Some(rule) => format!("blocked for going on after {rule:?} had denied"),
            None => "blocked".to_owned(),
        };
        Self {
            kind: "https://iana.org/assignments/http-problem-types#abnormal-usage-detected",
            title: "Abnormal usage detected",
            status: 429,
            detail: format!("{detail}, try again in {}", seconds(block.retry_after.as_secs_ceil())),
            violated_policies: block.rule.iter().map(ToString::to_string).collect(),
        }
    }

    fn wait(decision: &Decision) -> String {
        let name = decision.strictest_rule().map_or("", |policy| &*policy.rule);
        match retry_after_seconds(decision) {
            Some(wait) => format!("over the limit of {name:?}, try again in {}", seconds(wait)),
            None => format!("the request costs more than the limit of {name:?} ever admits"),
        }
    }
}

fn seconds(count: u64) -> String {
    if count == 1 { "1 second".to_owned() } else { format!("{count} seconds") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::decision::{RuleIndex, RuleOutcomes, UndecidedRule};
    use crate::outcome::{Outcome, Verdict};

    const NOW: Timestamp = Timestamp::from_secs(1_780_000_000);

    fn policy(rule: &str, quota: Quota, outcome: Outcome, shadow: bool) -> RuleOutcome {
        let limit = Arc::new(Limit::new(Algorithm::TokenBucket, quota).unwrap());
        RuleOutcome { rule_index: RuleIndex(0), rule: rule.into(), limit, outcome, shadow }
    }

    fn allow(limit: u64, remaining: u64, reset: Span) -> Outcome {
        let verdict = Verdict::Allow { delay: Span::ZERO, refund_token: None };
        Outcome { limit, remaining, reset_after: reset, verdict }
    }

    fn deny(limit: u64, wait: Option<Span>) -> Outcome {
        let verdict = Verdict::Deny { retry_after: wait };
        Outcome { limit, remaining: 0, reset_after: Span::from_secs(60), verdict }
    }

    fn shown(style: HeaderStyle, decision: &Decision) -> Vec<String> {
        let headers = style.headers(decision, NOW);
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    }

    fn two_rules() -> Decision {
        Decision::of(RuleOutcomes::from_vec(vec![
            policy("burst", Quota::per_second(10), allow(10, 3, Span::from_micros(700_000)), false),
            policy("daily", Quota::per_day(1000), allow(1000, 990, Span::from_secs(864)), false),
            policy("trial", Quota::per_day(1), deny(1, None), true),
        ]))
    }

    #[test]
    fn allowed_request_gets_the_strictest_limit_and_every_policy() {
        assert_eq!(
            shown(HeaderStyle::default(), &two_rules()),
            [
                "x-ratelimit-limit: 10",
                "x-ratelimit-remaining: 3",
                "x-ratelimit-reset: 1",
                r#"ratelimit-policy: "burst";q=10;w=1, "daily";q=1000;w=86400"#,
                r#"ratelimit: "burst";r=3;t=1, "daily";r=990;t=85536"#,
            ]
        );
        assert_eq!(Problem::of(&two_rules()), None);
    }

    #[test]
    fn retry_after_is_rounded_up_to_seconds() {
        let wait = Some(Span::from_micros(1_000_001));
        let decision = Decision::of(RuleOutcomes::from_vec(vec![policy(
            "api",
            Quota::per(5, Span::from_millis(100)),
            deny(5, wait),
            false,
        )]));
        let style = HeaderStyle { reset: ResetFormat::Epoch, ietf: IetfDraft::Six };
        assert_eq!(
            shown(style, &decision),
            [
                "retry-after: 2",
                "x-ratelimit-limit: 5",
                "x-ratelimit-remaining: 0",
                "x-ratelimit-reset: 1780000060",
                "ratelimit-limit: 5",
                "ratelimit-remaining: 0",
                "ratelimit-reset: 60",
            ]
        );
        let current = shown(HeaderStyle::default(), &decision);
        assert!(current.contains(&r#"ratelimit-policy: "api";q=5"#.to_owned()), "{current:?}");
        assert!(current.contains(&r#"ratelimit: "api";r=0;t=2"#.to_owned()), "{current:?}");
        assert_eq!(
            serde_json::to_string(&Problem::of(&decision)).unwrap(),
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"detail":"over the limit of \"api\", try again in 2 seconds","violated-policies":["api"]}"#
        );
    }

    #[test]
    fn retry_after_is_not_earlier_than_any_reset_time() {
        let decision = Decision::of(RuleOutcomes::from_vec(vec![
            policy("login", Quota::per_minute(5), deny(5, Some(Span::from_secs(9))), false),
            policy("ip", Quota::per_minute(9), deny(9, Some(Span::from_secs(4))), false),
            policy("daily", Quota::per_day(1000), allow(1000, 7, Span::from_secs(80_000)), false),
        ]));
        let headers = shown(HeaderStyle::default(), &decision);
        assert!(headers.contains(&"retry-after: 9".to_owned()), "{headers:?}");
        let expected = r#"ratelimit: "login";r=0;t=9, "ip";r=0;t=4, "daily";r=7"#;
        assert!(headers.contains(&expected.to_owned()), "{headers:?}");
    }

    #[test]
    fn denial_with_much_left_and_a_short_wait_has_no_effective_window() {
        let mut denied = deny(100, Some(Span::SECOND));
        denied.remaining = 99;
        let decision = Decision::of(RuleOutcomes::from_vec(vec![policy(
            "api",
            Quota::per_minute(100),
            denied,
            false,
        )]));
        let headers = shown(HeaderStyle::default(), &decision);
        assert!(headers.contains(&"retry-after: 1".to_owned()), "{headers:?}");
        assert!(headers.contains(&r#"ratelimit: "api";r=99"#.to_owned()), "{headers:?}");
    }

    #[test]
    fn store_failure_has_no_effective_window_after_its_retry_after() {
        let outcome = allow(10, 3, Span::from_secs(40));
        let undecided = UndecidedRule { rule_index: RuleIndex(1), rule: "daily".into() };
        let decided = vec![policy("api", Quota::per_minute(10), outcome, false)];
        let decision =
            Decision::of(RuleOutcomes::from_vec(decided)).with_undecided(vec![undecided], true);
        let headers = shown(HeaderStyle::default(), &decision);
        assert!(headers.contains(&"retry-after: 1".to_owned()), "{headers:?}");
        assert!(headers.contains(&r#"ratelimit: "api";r=3"#.to_owned()), "{headers:?}");
    }

    #[test]
    fn limits_above_fifteen_digits_stay_parseable() {
        let amount = Quota::MAX_AMOUNT;
        let outcome = allow(amount, amount - 1, Span::SECOND);
        let decision = Decision::of(RuleOutcomes::from_vec(vec![policy(
            "api",
            Quota::per_day(amount),
            outcome,
            false,
        )]));
        let headers = shown(HeaderStyle::default(), &decision);
        assert_eq!(headers[0], "x-ratelimit-limit: 4503599627370496");
        assert_eq!(headers[3], r#"ratelimit-policy: "api";q=999999999999999;w=86400"#);
        assert_eq!(headers[4], r#"ratelimit: "api";r=999999999999999;t=86400"#);
        let style = HeaderStyle { ietf: IetfDraft::Six, ..HeaderStyle::default() };
        let headers = shown(style, &decision);
        assert_eq!(headers[3], "ratelimit-limit: 999999999999999");
        assert_eq!(headers[4], "ratelimit-remaining: 999999999999999");
    }

    #[test]
    fn a_cost_that_never_fits_has_no_retry_after() {
        let decision = Decision::of(RuleOutcomes::from_vec(vec![policy(
            "api",
            Quota::per_second(5),
            deny(5, None),
            false,
        )]));
        let headers = shown(HeaderStyle::default(), &decision);
        assert!(!headers.iter().any(|header| header.starts_with("retry-after")), "{headers:?}");
        let problem = Problem::of(&decision).unwrap();
        assert_eq!(problem.detail, r#"the request costs more than the limit of "api" ever admits"#);
    }

    #[test]
    fn store_failure_has_another_status_than_a_denial() {
        let undecided = UndecidedRule { rule_index: RuleIndex(0), rule: "api".into() };
        let decision = Decision::of(RuleOutcomes::new()).with_undecided(vec![undecided], true);
        assert_eq!(shown(HeaderStyle::default(), &decision), ["retry-after: 1"]);
        assert_eq!(Problem::of(&decision).unwrap().status, 503);
    }

    #[test]
    fn blocked_client_gets_retry_after_and_no_limit_headers() {
        let retry_after = Span::from_micros(599_000_001);
        let decision = Decision::blocked(Block { retry_after, rule: Some("login".into()) });
        assert_eq!(decision.status(), DecisionStatus::Deny);
        assert_eq!(decision.retry_after(), Some(retry_after));
        assert_eq!(shown(HeaderStyle::default(), &decision), ["retry-after: 600"]);
        assert_eq!(
            serde_json::to_string(&Problem::of(&decision)).unwrap(),
            r#"{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal usage detected","status":429,"detail":"blocked for going on after \"login\" had denied, try again in 600 seconds","violated-policies":["login"]}"#
        );
        let decision = Decision::blocked(Block { retry_after: Span::SECOND, rule: None });
        assert_eq!(Problem::of(&decision).unwrap().detail, "blocked, try again in 1 second");
    }

    #[test]
    fn decision_without_rules_has_no_headers() {
        let decision = Decision::of(RuleOutcomes::new());
        assert_eq!(shown(HeaderStyle::default(), &decision), Vec::<String>::new());
    }

    #[test]
    fn the_current_draft_is_a_structured_field_list() {
        for (name, value) in HeaderStyle::default().headers(&two_rules(), NOW) {
            if name.starts_with("ratelimit") {
                let list = sfv::Parser::new(&value).parse::<sfv::List>().unwrap();
                assert_eq!(list.len(), 2, "{value}");
            }
        }
    }
}
