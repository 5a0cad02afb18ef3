//! Valid rules documents, and the rules that result from them.

use std::fmt::Write as _;

use tidegate_core::{Algorithm, Limit, Part, Quota, Request, Span, Timestamp};
use tidegate_rules::{
    AttributeChain, DenialThreshold, LimitOrigin, Mode, OnStoreFailure, Override, Penalty, Rollout,
    RuleSet,
};

fn read(yaml: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", yaml).unwrap_or_else(|errors| panic!("{errors}"))
}

fn request<const N: usize>(attributes: [(&'static str, &'static str); N]) -> Request<'static> {
    attributes
        .into_iter()
        .fold(Request::new(), |request, (name, value)| request.with(name, value).unwrap())
}

fn limit(quota: Quota) -> Limit {
    Limit::new(Algorithm::TokenBucket, quota).unwrap()
}

const FULL: &str = r#"
rules:
  - name: api-per-key
    match: {path: "/v1/**", method: [GET, POST], user: {present: true}, ip: {in: [10.0.0.0/8]}}
    per: [api_key, user|  ip]
    limit: 100 per second
    burst: 200
    algorithm: token_bucket
    tiers: {by: claim.plan, limits: {free: 10 per second, pro: {amount: 100, window: 1m, burst: 7}}}
    overrides:
      - {match: {api_key: partner-1}, limit: 5000 per second, until: 2027-01-01T00:00:00Z}
      - {match: {api_key: "partner-*"}, limit: {amount: 4_000, window: 1s}, rollout: 100%}
    accuracy: exact
    on_store_failure: deny
    mode: shadow
    rollout: 12.5%
    penalty: {after: 10x, within: 1m, block: 10 minutes}
  - name: all
    limit: {amount: 250, window: 15m}
"#;

#[test]
fn every_field_of_a_document_is_parsed() {
    let rules = read(FULL);
    let rule = rules.rule("api-per-key").unwrap();
    assert_eq!(rule.mode(), Mode::Shadow);
    assert_eq!(rule.on_store_failure(), OnStoreFailure::Deny);
    assert_eq!(**rule.limit(), limit(Quota::per_second(100).burst(200)));
    let per: Vec<&str> = rule.per().iter().map(AttributeChain::as_str).collect();
    assert_eq!(per, ["api_key", "user | ip"]);
    let penalty =
        Penalty::new(DenialThreshold::Times(10), Span::MINUTE, Span::from_secs(600)).unwrap();
    assert_eq!(rule.penalty(), Some(&penalty));
    assert_eq!(rule.rollout(), Rollout::from_millionths(125_000));
    let shares: Vec<_> = rule.overrides().iter().map(Override::rollout).collect();
    assert_eq!(shares, [None, Some(Rollout::ALL_CLIENTS)]);

    let all = rules.rule("all").unwrap();
    assert_eq!(all.mode(), Mode::Enforce);
    assert_eq!(all.on_store_failure(), OnStoreFailure::Allow);
    assert_eq!(all.algorithm(), Algorithm::TokenBucket);
    let quarter = Span::MINUTE.checked_mul(15).unwrap();
    assert_eq!(**all.limit(), limit(Quota::per(250, quarter)));
    assert!(all.per().is_empty() && all.conditions().is_empty() && all.penalty().is_none());
    assert!(all.rollout().is_none() && rules.rule("none").is_none());
}

#[test]
fn override_precedes_tier_and_tier_precedes_rule() {
    let rules = read(FULL);
    let rule = &rules.rules()[0];
    let end = Timestamp::from_secs(1_798_761_600);
    let before = end - Span::MICROSECOND;
    let applied = |request: &Request<'static>, now| {
        let applied = rule.limit_for(request, now);
        let origin = match applied.origin {
            LimitOrigin::Rule => "rule".to_owned(),
            LimitOrigin::Tier(name) => format!("tier {name}"),
            LimitOrigin::Override(index) => format!("override {index}"),
        };
        (origin, applied.limit.unwrap().quota().to_string())
    };
    let expected = |origin: &str, quota: &str| (origin.to_owned(), quota.to_owned());

    let unknown_plan = request([("claim.plan", "gold")]);
    assert_eq!(applied(&unknown_plan, before), expected("rule", "100 per 1 s, burst 200"));
    let free = request([("claim.plan", "free")]);
    assert_eq!(applied(&free, before), expected("tier free", "10 per 1 s"));
    let pro = request([("claim.plan", "pro")]);
    assert_eq!(applied(&pro, before), expected("tier pro", "100 per 60 s, burst 7"));
    let partner = request([("claim.plan", "free"), ("api_key", "partner-1")]);
    assert_eq!(applied(&partner, before), expected("override 0", "5000 per 1 s"));
    assert_eq!(applied(&partner, end), expected("override 1", "4000 per 1 s"));
}

#[test]
fn mismatch_contains_the_found_and_the_wanted_value() {
    let rules = read(
        r#"
rules:
  - name: a
    limit: 1/s
    match:
      path: /v1/**
      method: [POST, GET]
      user: {present: true}
      ip: {in: [10.0.0.0/8, "::ffff:192.168.0.0/112"]}
      debug: {absent: true}
      region: {is: "*"}
      tenant: [a, b, c, d, e, f, g]
  - {name: b, limit: 1/s, mode: off}
"#,
    );
    let rule = &rules.rules()[0];
    let mut request = Request::new();
    let mut reasons = Vec::new();
    for (name, value) in [
        ("path", "/v1/users"),
        ("method", "GET"),
        ("user", "u"),
        ("ip", "::ffff:192.168.255.7"),
        ("region", "*"),
        ("tenant", "d"),
    ] {
        reasons.push(rule.matches(&request).unwrap_err().to_string());
        request.insert(name, value).unwrap();
    }
    assert_eq!(rule.matches(&request), Ok(()));
    request.insert("debug", "").unwrap();
    assert_eq!(rule.matches(&request), Ok(()));
    assert_eq!(
        reasons,
        [
            r#"path is absent, wanted "/v1/**""#,
            r#"method is absent, wanted "GET" or "POST""#,
            "user is absent, wanted any value",
            "ip is absent, wanted an address in 10.0.0.0/8 or 192.168.0.0/16",
            r#"region is absent, wanted "*""#,
            r#"tenant is absent, wanted "a", "b", "c", "d" or 3 others"#,
        ]
    );
    let reason = |name, value| {
        let mut other = Request::new().with(name, value).unwrap();
        for (name, value) in request.attributes() {
            other.insert(name, value).unwrap();
        }
        rule.matches(&other).unwrap_err().to_string()
    };
    assert_eq!(reason("path", "/v2"), r#"path is "/v2", wanted "/v1/**""#);
    assert_eq!(reason("debug", "1"), r#"debug is "1", wanted none"#);
    assert_eq!(reason("user", ""), "user is absent, wanted any value");
    assert_eq!(reason("region", "x"), r#"region is "x", wanted "*""#);
    let off = rules.rules()[1].matches(&request).unwrap_err();
    assert_eq!(off.to_string(), "the rule is off");
}

#[test]
fn empty_value_counts_as_absent() {
    let rules = read("rules: [{name: a, limit: 1/s, per: [user | api_key | ip, host]}]");
    let rule = &rules.rules()[0];
    let client = |request: &Request<'_>| {
        let picked: Vec<String> = rule
            .per()
            .iter()
            .map(|chain| chain.pick(request).map_or("-".into(), |picked| picked.attribute.into()))
            .collect();
        picked.join(" ")
    };
    let anonymous = request([("user", ""), ("api_key", ""), ("ip", "192.0.2.7"), ("host", "")]);
    let ip = Part::Value { alternative: 2, value: b"192.0.2.7" };
    assert_eq!(rule.parts(&anonymous).collect::<Vec<_>>(), [ip, Part::Absent]);
    assert_eq!(client(&anonymous), "ip -");
    let known = request([("user", "u"), ("ip", "192.0.2.7"), ("host", "h")]);
    let parts = [Part::first(b"u"), Part::first(b"h")];
    assert_eq!(rule.parts(&known).collect::<Vec<_>>(), parts);
    assert_eq!(client(&known), "user host");
}

#[test]
fn yaml_numbers_and_booleans_are_read_as_text() {
    let rules =
        read("rules: [{name: 7, limit: 1/s, match: {v: 1.10, country: NO, code: [007, off]}}]");
    let rule = rules.rule("7").unwrap();
    let matching = request([("v", "1.10"), ("country", "NO"), ("code", "off")]);
    assert_eq!(rule.matches(&matching), Ok(()));
}

#[test]
fn anchors_and_comments_are_allowed() {
    let comments = "# a line of prose\n".repeat(200);
    let mut yaml =
        format!("{comments}rules:\n{comments}- &base {{name: r, limit: 1/s, match: {{a: b}}}}\n");
    for index in 0..500 {
        writeln!(yaml, "- {{<<: *base, name: r{index}}}").unwrap();
    }
    assert_eq!(read(&yaml).rules().len(), 501);
}

#[test]
fn rules_created_in_code_are_validated() {
    let rule = |name| tidegate_rules::Rule::new(name, Algorithm::TokenBucket, Quota::per_second(1));
    assert_eq!(
        rule("a b").unwrap_err().to_string(),
        r#"rule "a b": name must be 1 to 64 letters, digits, '_', '.' or '-', found "a b""#
    );
    assert_eq!(
        rule("a").unwrap().with_per("user |").unwrap_err().to_string(),
        r#"rule "a": attribute must be 1 to 128 bytes without '|', found """#
    );
    let penalty = Penalty::new(DenialThreshold::Denials(9), Span::MINUTE, Span::HOUR).unwrap();
    assert_eq!(
        rule("a").unwrap().with_penalty(penalty).unwrap_err().to_string(),
        r#"rule "a": penalty needs per, found none (one bucket for all would block every client)"#
    );
    let punished = rule("a").unwrap().with_per("user").unwrap().with_penalty(penalty).unwrap();
    assert_eq!(punished.penalty(), Some(&penalty));
    let tenth = Rollout::from_millionths(100_000).unwrap();
    assert_eq!(
        rule("a").unwrap().with_rollout(tenth).unwrap_err().to_string(),
        r#"rule "a": rollout needs per, found none"#
    );
    let counted = || rule("a").unwrap().with_per("user").unwrap();
    assert_eq!(
        counted().with_override_rollout(0, tenth).unwrap_err().to_string(),
        r#"rule "a": rollout must name one of 0 overrides, found 0"#
    );
    assert_eq!(counted().with_rollout(tenth).unwrap().rollout(), Some(tenth));
    let twice = RuleSet::new(vec![rule("a").unwrap(), rule("a").unwrap()]);
    assert_eq!(twice.unwrap_err().to_string(), r#"rule "a": name must be unique, found it twice"#);
}

#[test]
fn parses_ten_thousand_rules_with_a_hundred_thousand_overrides() {
    let mut yaml = String::from("rules:\n");
    for rule in 0..10_000 {
        write!(
            yaml,
            "- name: tenant-{rule}\n  match: {{path: /v1/tenant-{rule}/**, method: GET}}\n  per: [api_key]\n  limit: 100 per second\n  overrides:\n"
        )
        .unwrap();
        for customer in 0..10 {
            writeln!(
                yaml,
                "  - {{match: {{api_key: key-{rule}-{customer}}}, limit: 500 per second}}"
            )
            .unwrap();
        }
    }
    let rules = read(&yaml);
    assert_eq!(rules.rules().len(), 10_000);
    let overrides: usize = rules.rules().iter().map(|rule| rule.overrides().len()).sum();
    assert_eq!(overrides, 100_000);
    let request =
        request([("method", "GET"), ("path", "/v1/tenant-1234/orders"), ("api_key", "key-1234-5")]);
    let matching = rules.matching(&request);
    assert_eq!(matching.len(), 1);
    let applied = matching[0].limit_for(&request, Timestamp::EPOCH);
    assert_eq!(applied.origin, LimitOrigin::Override(5));
}
