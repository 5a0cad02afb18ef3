//! Errors of invalid rules documents: the line, the found and the wanted value.

use tidegate_rules::{RuleErrors, RuleSet};

fn parse_errors(yaml: &str) -> RuleErrors {
    match RuleSet::parse("rules.yaml", yaml) {
        Ok(_) => panic!("accepted:\n{yaml}"),
        Err(errors) => errors,
    }
}

fn error_text(yaml: &str) -> String {
    parse_errors(yaml).to_string()
}

#[test]
fn invalid_document_is_rejected_with_its_line() {
    for (yaml, error) in [
        ("", "1: document must be a map, found nothing"),
        ("rules", r#"1: document must be a map, found "rules""#),
        ("- a", "1: document must be a map, found a list"),
        ("{}", "1: rules is missing"),
        ("rules:", "1: rules must be a list, found nothing"),
        ("rules: {}", "1: rules must be a list, found a map"),
        ("\nrules:\n- a", r#"3: rule must be a map, found "a""#),
        (
            "rules: []\nrule: []",
            r#"2: document has no key "rule", wanted rules (did you mean rules?)"#,
        ),
        ("rules:\n- [", "2: unclosed bracket '['"),
        ("rules:\n- a: b: c", "2: mapping values are not allowed in this context"),
        ("rules: []\nrules: []", r#"2: keys must be unique, found "rules" twice"#),
        ("rules: []\n---\nrules: []", "3: one document is wanted, found another"),
        ("rules: *a", "1: alias without an anchor"),
        ("rules: &a [*a]", "1: an alias must not stand inside its own anchor"),
        ("rules: !x []", "1: unsupported tag `!x`"),
        ("? [a]\n: b", "1: expected string scalar"),
        ("~: b", "1: a key must be a text, found nothing"),
    ] {
        assert_eq!(error_text(yaml), format!("rules.yaml:{error}"), "{yaml:?}");
    }
}

#[test]
fn invalid_field_is_rejected_with_its_line_and_rule() {
    for (field, error) in [
        ("per: user", r#"per must be a list, found "user""#),
        ("per: [a | | b]", r#"attribute must be 1 to 128 bytes without '|', found """#),
        ("per: [[a]]", "per must be a text, found a list"),
        (
            "per: ['a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q']",
            "per must name at most 16 attributes in one chain, found 17",
        ),
        ("per: [a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]", "per must have at most 16 items, found 17"),
        ("burst: many", r#"burst must be a whole number, found "many""#),
        ("burst: -1", r#"burst must be a whole number, found "-1""#),
        ("burst: 0", "burst must be from 1 to 4503599627370496, found 0"),
        ("queue: 3", "queue needs algorithm leaky_bucket, found token_bucket"),
        (
            "algorithm: gcra",
            r#"algorithm must be token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log or concurrency, found "gcra""#,
        ),
        ("mode: on", r#"mode must be enforce, shadow or off, found "on""#),
        ("mode:", "mode must be enforce, shadow or off, found nothing"),
        (
            "per: [a]\n  rollout: 10",
            r#"rollout must be from 0% to 100%, like 10% or 0.5%, with at most 4 decimals, found "10""#,
        ),
        ("per: [a]\n  rollout: [10%]", "rollout must be a text, found a list"),
        ("rollout: 10%", "rollout needs per, found none"),
        (
            "per: [a]\n  overrides: [{match: {a: b}, limit: 1/s, rollout: 101%}]",
            r#"rollout must be from 0% to 100%, like 10% or 0.5%, with at most 4 decimals, found "101%""#,
        ),
        ("overrides: [{match: {a: b}, limit: 1/s, rollout: 10%}]", "rollout needs per, found none"),
        (
            "accuracy: roughly",
            r#"accuracy must be exact, leased, synced or split, found "roughly""#,
        ),
        (
            "algorithm: sliding_log\n  accuracy: synced",
            "accuracy synced needs token_bucket, fixed_window or sliding_window, found sliding_log",
        ),
        (
            "algorithm: sliding_log\n  hot: leased",
            "hot needs token_bucket, fixed_window or sliding_window, found sliding_log",
        ),
        (
            "algorithm: leaky_bucket\n  accuracy: split",
            "accuracy split needs an algorithm without a queue, found leaky_bucket",
        ),
        (
            "algorithm: leaky_bucket\n  shards: 2",
            "shards needs an algorithm without a queue, found leaky_bucket",
        ),
        ("shards: 1", r#"shards must be 2 to 64, found "1""#),
        ("sync: 200ms", "sync needs accuracy synced, found exact"),
        ("accuracy: split\n  max_ahead: 3", "max_ahead needs accuracy synced, found split"),
        ("accuracy: leased\n  shards: 3", "shards needs accuracy exact, found leased"),
        ("shards: 2\n  hot: leased", "hot must stand alone, found it beside shards"),
        ("accuracy: synced\n  sync: 2h", r#"sync must be 10 ms to 60 s, found "2h""#),
        (
            "accuracy: synced\n  max_ahead: 0",
            r#"max_ahead must be 1 or more, or unbounded, found "0""#,
        ),
        (
            "algorithm: sliding_log\n  accuracy: leased",
            "accuracy leased needs token_bucket, fixed_window or sliding_window, found sliding_log",
        ),
        (
            "on_store_failure: maybe",
            r#"on_store_failure must be allow, deny or local, found "maybe""#,
        ),
        ("tiers: []", "tiers must be a map, found a list"),
        ("tiers: {by: plan}", "tiers.limits is missing"),
        (
            "tiers: {by: 'a|b', limits: {free: 1/s}}",
            r#"attribute must be 1 to 128 bytes without '|', found "a|b""#,
        ),
        (
            "tiers: {by: plan, limits: {free: 10}}",
            r#"limit must read like "100 per minute", "100/s" or "20 in flight", found "10""#,
        ),
        ("tiers: {by: plan, limits: {'': 1/s}}", r#"tier must be 1 to 1024 bytes long, found """#),
        ("overrides: {}", "overrides must be a list, found a map"),
        ("overrides: [{limit: 1/s}]", "override.match is missing"),
        ("overrides: [{match: {a: b}}]", "override.limit is missing"),
        (
            "overrides: [{match: {a: b}, limit: 1/s, until: 2027-01-01}]",
            r#"until must read like "2027-01-01T00:00:00Z", found "2027-01-01""#,
        ),
        (
            "overrides: [{match: {a: b}, limit: exemt}]",
            r#"override.limit must be exempt, or read like "100 per minute", found "exemt" (did you mean exempt?)"#,
        ),
        (
            "overrides: [{match: {a: b}, limit: 1/s, til: x}]",
            r#"override has no key "til", wanted match, limit, until or rollout (did you mean until?)"#,
        ),
        ("match: [a]", "match must be a map, found a list"),
        ("match:", "match must be a map, found nothing"),
        ("match: {'': x}", r#"attribute must be 1 to 128 bytes without '|', found """#),
        (
            "match: {a: }",
            "match.a must be a value, a list of values, {like: …}, {is: …}, {in: [network, …]}, {present: true}, {absent: true} or {not: …}, found nothing",
        ),
        (
            "match: {a: {is: 1, in: []}}",
            "match.a must be a value, a list of values, {like: …}, {is: …}, {in: [network, …]}, {present: true}, {absent: true} or {not: …}, found a map of 2 keys",
        ),
        (
            "match: {a: {nott: 1}}",
            r#"match.a has no key "nott", wanted like, is, in, present, absent, not or ignore (did you mean not?)"#,
        ),
        (
            "match: {a: {not: {present: true}}}",
            "match.a.not must be a value, a list of values, {like: …}, {is: …} or {in: [network, …]}, found a map",
        ),
        (
            "match: {a: {not: {not: b}}}",
            "match.a.not must be a value, a list of values, {like: …}, {is: …} or {in: [network, …]}, found a map",
        ),
        (
            "match: {a: {like: b, not: []}}",
            "match.a must have at least one value, found an empty list",
        ),
        (
            "match: {a: {not: {in: x}}}",
            r#"match.a.in must be an address or a network like 10.0.0.0/8, found "x""#,
        ),
        (
            "match: {a: {like: b, ignore: cases}}",
            r#"match.a.ignore must be case or trailing_slash, found "cases" (did you mean case?)"#,
        ),
        ("match: {a: {ignore: [case, [b]], is: b}}", "match.a.ignore must be a text, found a list"),
        (
            "match: {a: {present: true, ignore: case}}",
            "match.a.ignore must be beside values or patterns in like, is or not, found none",
        ),
        (
            "match: {a: {ignore: case}}",
            "match.a must be a value, a list of values, {like: …}, {is: …}, {in: [network, …]}, {present: true}, {absent: true} or {not: …}, found only ignore",
        ),
        ("match: {a: []}", "match.a must have at least one value, found an empty list"),
        (
            "match: {a: ''}",
            "match.a must not be empty (an empty value counts as absent, wanted {absent: true})",
        ),
        ("match: {a: [[b]]}", "match.a must be a text, found a list"),
        ("match: {a: {in: {}}}", "match.a must be a list, found a map"),
        (
            "match: {a: {in: [300.1.2.3]}}",
            r#"match.a.in must be an address or a network like 10.0.0.0/8, found "300.1.2.3""#,
        ),
        (
            "match: {a: {in: [10.0.0.1/8]}}",
            r#"match.a.in must not have bits after its prefix (the network is 10.0.0.0/8), found "10.0.0.1/8""#,
        ),
        ("match: {a: {present: yes}}", r#"match.a.present must be true or false, found "yes""#),
        (
            "penalty: {after: 10x, within: 1m, block: 10m}",
            "penalty needs per, found none (one bucket for all would block every client)",
        ),
        ("per: [a]\n  penalty: 10x", r#"penalty must be a map, found "10x""#),
        ("per: [a]\n  penalty: {after: 10x, within: 1m}", "penalty.block is missing"),
        (
            "per: [a]\n  penalty: {after: ten, within: 1m, block: 10m}",
            r#"penalty.after must be a number of denied requests like 500, or of times the limit like 10x, found "ten""#,
        ),
        (
            "per: [a]\n  penalty: {after: 10x, within: soon, block: 10m}",
            r#"penalty.within: unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "soon""#,
        ),
        (
            "per: [a]\n  penalty: {after: 5, within: 1m, block: 0s}",
            "penalty.block: window must be from 1 ms to 3650 days, found 0 s",
        ),
        (
            "per: [a]\n  penalty: {after: 5, within: 1m, block: 1m, for: 10m}",
            r#"penalty has no key "for", wanted after, within or block"#,
        ),
        (
            "color: red",
            r#"rule has no key "color", wanted name, match, per, limit, burst, queue, hold, algorithm, tiers, overrides, accuracy, sync, max_ahead, shards, hot, on_store_failure, mode, rollout, penalty or caller_refunds"#,
        ),
        (
            "brust: 5",
            r#"rule has no key "brust", wanted name, match, per, limit, burst, queue, hold, algorithm, tiers, overrides, accuracy, sync, max_ahead, shards, hot, on_store_failure, mode, rollout, penalty or caller_refunds (did you mean burst?)"#,
        ),
    ] {
        assert_eq!(
            error_text(&format!("rules:\n- name: api\n  limit: 1/s\n  {field}\n")),
            format!(r#"rules.yaml:{}: rule "api": {error}"#, 4 + field.matches('\n').count()),
            "{field:?}"
        );
    }
}

#[test]
fn invalid_limit_is_rejected_with_its_line() {
    for (limit, error) in [
        (
            "limit: 100",
            r#"limit must read like "100 per minute", "100/s" or "20 in flight", found "100""#,
        ),
        (
            "limit: 100 per fortnight",
            r#"unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "fortnight""#,
        ),
        (
            "limit: [1]",
            r#"limit must read like "100 per minute" or {amount: 250, window: 15m}, found a list"#,
        ),
        (
            "limit:",
            r#"limit must read like "100 per minute" or {amount: 250, window: 15m}, found nothing"#,
        ),
        ("limit: {amount: 1}", "limit.window is missing"),
        ("limit: {window: 1s}", "limit.amount is missing"),
        ("limit: {amount: 1.5, window: 1s}", r#"limit.amount must be a whole number, found "1.5""#),
        ("limit: {amount: 1, window: 0s}", "window must be from 1 ms to 3650 days, found 0 s"),
        (
            "limit: {amount: 1, window: 60}",
            r#"window must read like "15m" or "15 minutes", found "60""#,
        ),
        (
            "limit: {amount: 1, window: 1d, burst: 400000}",
            "a burst of 400000 at 1 per 24 h takes more than 36500 days to refill",
        ),
        (
            "{limit: {amount: 1, window: 1d, burst: 4}, burst: 5}",
            "burst must be given once, found it beside limit and in it",
        ),
        (
            "{algorithm: leaky_bucket, limit: 1/s, queue: 4503599627370496}",
            "queue must be less than 4503599627370496, found 4503599627370496",
        ),
        (
            "{algorithm: fixed_window, limit: 1/s, burst: 3}",
            "burst needs algorithm token_bucket, found fixed_window",
        ),
        (
            "{algorithm: sliding_log, limit: 10001/s}",
            "sliding_log remembers each request, so its amount must be at most 10000, found 10001 \
             (sliding_window has no such bound)",
        ),
    ] {
        let yaml = match limit.strip_prefix('{') {
            Some(fields) => format!("rules:\n- {{name: api, {fields}"),
            None => format!("rules:\n- name: api\n  {limit}\n"),
        };
        let line = if limit.starts_with('{') { 2 } else { 3 };
        assert_eq!(
            error_text(&yaml),
            format!(r#"rules.yaml:{line}: rule "api": {error}"#),
            "{limit:?}"
        );
    }
}

#[test]
fn all_errors_are_reported_in_line_order() {
    let yaml = "
rules:
  - limit: 1/s
    mode: maybe
  - name: a
    match:
      ip: {in: [1.2.3.4/33,
                fine]}
    limit: {amount: many, window: soon}
    algorithm: leaky
    queue: long
  - name: a
    burst: 7
  - name: no spaces
    limit: 5
  - just a word
";
    assert_eq!(
        error_text(yaml),
        r#"rules.yaml:3: name is missing
rules.yaml:4: mode must be enforce, shadow or off, found "maybe"
rules.yaml:7: rule "a": match.ip.in must be an address or a network like 10.0.0.0/8, found "1.2.3.4/33"
rules.yaml:8: rule "a": match.ip.in must be an address or a network like 10.0.0.0/8, found "fine"
rules.yaml:9: rule "a": limit.amount must be a whole number, found "many"
rules.yaml:9: rule "a": unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "soon"
rules.yaml:10: rule "a": algorithm must be token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log or concurrency, found "leaky"
rules.yaml:11: rule "a": queue must be a whole number, found "long"
rules.yaml:12: rule "a": name must be unique, found it on line 5 too
rules.yaml:12: rule "a": limit is missing
rules.yaml:14: rule "no spaces": name must be 1 to 64 letters, digits, '_', '.' or '-', found "no spaces"
rules.yaml:15: rule "no spaces": limit must read like "100 per minute", "100/s" or "20 in flight", found "5"
rules.yaml:16: rule must be a map, found "just a word""#
    );
    let errors = parse_errors(yaml);
    let first =
        errors.iter().next().map(|error| (&*error.source, error.line(), error.rule.as_deref()));
    assert_eq!(first, Some(("rules.yaml", Some(3), None)));
}

#[test]
fn errors_beyond_the_maximum_are_counted_and_long_texts_are_truncated() {
    let yaml = format!("rules:\n{}", "- x\n".repeat(150));
    let errors = parse_errors(&yaml);
    assert_eq!((errors.iter().count(), errors.unlisted()), (RuleErrors::MAX_LISTED, 50));
    assert!(errors.to_string().ends_with("found \"x\"\nand 50 more"));

    let long = "x".repeat(2_000);
    let shown = format!("\"{}…\"", "x".repeat(64));
    assert_eq!(
        error_text(&format!("rules: [{{name: {long}, limit: 1/s}}]")),
        format!(
            "rules.yaml:1: rule {shown}: name must be 1 to 64 letters, digits, '_', '.' or '-', found {shown}"
        )
    );
    assert_eq!(
        error_text(&format!("rules: [{{name: a, limit: 1/s, match: {{a: {long}}}}}]")),
        r#"rules.yaml:1: rule "a": match.a must be at most 1024 bytes long, found 2000"#
    );
}

#[test]
fn document_over_the_size_limits_is_rejected() {
    let long = " ".repeat(RuleSet::MAX_DOCUMENT_BYTES + 1);
    assert_eq!(
        error_text(&long),
        "rules.yaml: document must be at most 16777216 bytes long, found 16777217"
    );
    let many = format!("rules:\n{}", "- a\n".repeat(RuleSet::MAX_RULES + 1));
    assert_eq!(
        error_text(&many),
        "rules.yaml:2: rules must have at most 100000 items, found 100001"
    );
}

#[test]
fn errors_of_nested_rules_have_the_lines_of_the_whole_document() {
    let yaml =
        "listen: {http: off}\nrules:\n  inline:\n    - name: a\n      limit: 5 per fortnight\n";
    let errors = RuleSet::parse_at("tidegate.yaml", yaml, &["rules", "inline"]).unwrap_err();
    assert!(errors.to_string().starts_with("tidegate.yaml:5: rule \"a\": "), "{errors}");
    let missing = RuleSet::parse_at("tidegate.yaml", yaml, &["rules", "file"]).unwrap_err();
    assert_eq!(missing.to_string(), "tidegate.yaml:3: file is missing");
}
