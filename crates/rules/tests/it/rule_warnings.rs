//! Warnings about valid rules that have no effect.

use tidegate_core::Timestamp;
use tidegate_rules::{RuleErrors, RuleSet, WarningContext};

/// An instant in May 2026.
const NOW: Timestamp = Timestamp::from_secs(1_780_000_000);

fn warnings_in(context: &WarningContext, yaml: &str) -> Vec<String> {
    let (_, warnings) =
        RuleSet::parse_with_warnings("rules.yaml", yaml, &[], context, NOW).unwrap();
    warnings.iter().map(ToString::to_string).collect()
}

/// Returns the warnings of a rule with these lines, without their common start.
fn warnings(lines: &str) -> Vec<String> {
    let yaml = format!("rules:\n  - name: a\n    limit: 1/s\n{lines}");
    let all = warnings_in(&WarningContext::default(), &yaml).into_iter();
    all.map(|warning| {
        let text = warning.strip_prefix("rules.yaml:").unwrap();
        text.replacen(": warning: rule \"a\": ", " ", 1)
    })
    .collect()
}

#[test]
fn misspelt_attributes_are_reported_with_their_line() {
    let lines = "    match: {pth: /login}
    per: [apikey | ip]
    tiers: {by: claims.plan, limits: {free: 1/s}}
    overrides:
      - match: {Host: a}
        limit: exempt
";
    let unset = "which no listener and no configuration sets, wanted";
    assert_eq!(
        warnings(lines),
        [
            format!("4 match: found attribute \"pth\", {unset} path"),
            format!("5 per: found attribute \"apikey\", {unset} api_key"),
            format!("6 tiers.by: found attribute \"claims.plan\", {unset} claim.plan"),
            format!("8 override.match: found attribute \"Host\", {unset} host"),
        ]
    );
}

#[test]
fn attributes_of_the_configuration_are_known() {
    let yaml = "rules: [{name: a, limit: 1/s, per: [usr], match: {path: any, pth: x, tenent: y}}]";
    let attributes = ["usr", "path", "pth", "tenant"].map(str::to_owned).into();
    let context = WarningContext { attributes, keeps_encoded_slashes: false };
    let found = warnings_in(&context, yaml);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains(r#"found attribute "tenent""#) && found[0].ends_with("wanted tenant")
    );
}

#[test]
fn values_that_no_request_has_are_reported_with_their_line() {
    let lines = "    match:
      method: [GET, post]
      path: {like: v1/x, not: [/ok, //a]}
      host: {not: {is: Example.com}}
      ip: 10.0.0.0/8
      user: get
";
    let never = "which no HTTP request has, wanted";
    assert_eq!(
        warnings(lines),
        [
            format!("5 match.method: found \"post\", {never} \"POST\""),
            format!("6 match.path: found \"v1/x\", {never} \"/v1/x\""),
            format!("6 match.path.not: found \"//a\", {never} \"/a\""),
            format!("7 match.host.not: found \"Example.com\", {never} \"example.com\""),
            format!("8 match.ip: found \"10.0.0.0/8\", {never} {{in: \"10.0.0.0/8\"}}"),
        ]
    );
    assert!(warnings("    match: {method: {like: get, ignore: case}}\n").is_empty());
}

#[test]
fn conditions_that_exclude_each_other_are_reported() {
    for (matching, is_reported) in [
        ("path: {like: /a, not: /a}", true),
        ("path: {like: [/a, /b], not: \"/**\"}", true),
        ("path: {like: [/a, /b], not: /a}", false),
        ("path: {like: \"/v1/**\", not: \"/v1/**\"}", true),
        ("path: {like: \"/v1/**\", not: \"/v1/x/**\"}", false),
        ("path: {like: /A, not: /a, ignore: case}", true),
        ("ip: {in: [10.1.0.0/16], not: {in: [10.0.0.0/8]}}", true),
        ("ip: {in: [10.0.0.0/8], not: {in: [10.1.0.0/16]}}", false),
        ("ip: {is: 192.0.2.7, not: {in: [192.0.2.0/24]}}", true),
        ("user: {absent: true, not: a}", false),
    ] {
        let found = warnings(&format!("    match: {{{matching}}}\n"));
        assert_eq!(found.len(), usize::from(is_reported), "{matching}: {found:?}");
    }
    assert_eq!(
        warnings("    match: {api_key: {is: k1, not: k1}}\n"),
        [
            "4 match.api_key: found a value that is not shown and anything but a value that is not shown, \
             wanted conditions that a value can satisfy together"
        ]
    );
}

#[test]
fn overrides_that_never_apply_are_reported() {
    let lines = "    match: {path: [/a, /b]}
    overrides:
      - {match: {user: u1}, limit: 2/s, until: 2026-01-01T00:00:00Z}
      - {match: {user: u1}, limit: 3/s, until: 2100-01-01T00:00:00Z}
      - {match: {user: u1}, limit: 4/s}
      - {match: {user: u1}, limit: 5/s}
      - {match: {path: /c}, limit: 6/s}
      - {match: {path: /a, user: u1}, limit: 7/s}
      - {match: {}, limit: 8/s}
      - {match: {user: u2}, limit: 9/s}
";
    assert_eq!(
        warnings(lines),
        [
            "6 override.until: found \"2026-01-01T00:00:00Z\", which is in the past, wanted a later time",
            "9 override.match: found requests that the override on line 8 matches first, wanted others",
            "10 override.match.path: found \"/c\", wanted requests that match the rule: \"/a\" or \"/b\"",
            "13 override.match: found requests that the override on line 12 matches first, wanted others",
        ]
    );
}

#[test]
fn empty_set_is_reported_and_rules_that_are_off_are_not() {
    assert_eq!(
        warnings_in(&WarningContext::default(), "rules: []"),
        [
            "rules.yaml:1: warning: rules: found an empty list, which allows every request, wanted at least one rule"
        ]
    );
    assert!(warnings("    mode: off\n    per: [apikey]\n").is_empty());
}

#[test]
fn number_of_stored_warnings_is_bounded() {
    let rules: String =
        (0..150).map(|n| format!("  - {{name: r{n}, limit: 1/s, per: [apikey]}}\n")).collect();
    let context = WarningContext::default();
    let (_, warnings) =
        RuleSet::parse_with_warnings("", &format!("rules:\n{rules}"), &[], &context, NOW).unwrap();
    assert_eq!(warnings.iter().len(), RuleErrors::MAX_LISTED);
    assert_eq!((warnings.unlisted(), warnings.count()), (50, 150));
}

#[test]
fn rules_inside_a_configuration_have_warnings_with_its_lines() {
    let yaml = "store: {}\nrules:\n  inline:\n    - {name: a, limit: 1/s, match: {method: get}}\n";
    let (rules, warnings) = RuleSet::parse_with_warnings(
        "tidegate.yaml",
        yaml,
        &["rules", "inline"],
        &WarningContext::default(),
        NOW,
    )
    .unwrap();
    assert_eq!(rules.rules().len(), 1);
    assert!(warnings.iter().next().unwrap().to_string().starts_with("tidegate.yaml:4: warning:"));
}
