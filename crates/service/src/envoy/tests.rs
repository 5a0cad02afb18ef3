//! Parsing of files, and the limits that descriptors match.

mod errors;
mod examples;
mod model;

use super::*;

/// Parses one file.
fn rules(text: &str) -> EnvoyRules {
    parsed(text).unwrap_or_else(|error| panic!("{error}"))
}

fn parsed(text: &str) -> Result<EnvoyRules, ConfigError> {
    EnvoyRules::parse(&[("limits.yaml".to_owned(), text.to_owned())])
}

/// Returns the limit of a descriptor as `amount/unit`, `unlimited`, or `-` for none.
fn limit_text(rules: &EnvoyRules, domain: &str, entries: &[(&str, &str)]) -> String {
    match rules.find(domain, entries) {
        EnvoyMatch::Nothing => "-".to_owned(),
        EnvoyMatch::Unlimited(_) => "unlimited".to_owned(),
        EnvoyMatch::Limited(limit, _) => format!("{}/{}", limit.requests_per_unit, limit.unit),
    }
}

/// Returns the rule of a descriptor, and the values that identify its counter.
fn counter(rules: &EnvoyRules, domain: &str, entries: &[(&str, &str)]) -> (String, Vec<String>) {
    let EnvoyMatch::Limited(limit, request) = rules.find(domain, entries) else {
        panic!("no limit for {entries:?}");
    };
    let rule = rules.rules.iter().find(|rule| *rule.name() == *limit.rule).unwrap();
    let per = rule.per().iter().map(|chain| request.get(chain.as_str()).unwrap().to_owned());
    (rule.name().to_owned(), per.collect())
}

#[test]
fn rule_name_is_the_path_or_has_a_hash() {
    let rules = rules(
        r#"
domain: a
descriptors:
  - {key: b_c, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: b, value: c, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: path, value: "/v1/*", rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
     rate_limit: {unit: day, requests_per_unit: 5}}
"#,
    );
    let names: Vec<String> = rules.rules().iter().map(|rule| rule.name().to_owned()).collect();
    assert_eq!(
        names,
        [
            "a.b_c-bc1a97569f92",
            "a.b_c-e039128148e7",
            "a.path__v1__-8096c2b4eec2",
            "a.user",
            "a.kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk-f6ff0ac299bd",
        ]
    );
    assert!(tidegate_rules::RuleSet::new(rules.rules()).is_ok());
}

#[test]
fn every_entry_becomes_an_attribute_with_a_unique_name() {
    let rules = rules(
        r#"
domain: d
descriptors:
  - key: domain
    descriptors:
      - key: k
        descriptors:
          - key: k
            descriptors:
              - key: "k#2"
                descriptors:
                  - {key: " | ", rate_limit: {unit: day, requests_per_unit: 1}}
"#,
    );
    let entries = [("domain", "1"), ("k", "2"), ("k", "3"), ("k#2", "4"), (" | ", "5")];
    let EnvoyMatch::Limited(_, request) = rules.find("d", &entries) else { panic!() };
    let attributes: Vec<(&str, &str)> = request.attributes().collect();
    let wanted =
        [("domain", "d"), ("domain#2", "1"), ("k", "2"), ("k#2", "3"), ("k#2#2", "4"), ("_", "5")];
    assert_eq!(attributes, wanted);
    assert_eq!(counter(&rules, "d", &entries).1, ["1", "2", "3", "4", "5"]);
}

#[test]
fn value_too_long_for_an_attribute_has_its_own_counter() {
    let rules = rules(
        "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}",
    );
    let (one, two) = ("x".repeat(100_000), "x".repeat(100_001));
    let counted = |value: &str| counter(&rules, "d", &[("k", value)]);
    assert_ne!(counted(&one), counted(&two));
    assert_eq!(counted(&one), counted(&one));
}

#[test]
fn limit_of_zero_denies_while_the_store_is_unreachable() {
    use tidegate_rules::OnStoreFailure;
    let rules = rules(
        "{domain: d, descriptors: [
           {key: a, rate_limit: {unit: day, requests_per_unit: 0}},
           {key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}",
    );
    let answers: Vec<OnStoreFailure> = rules.rules().iter().map(Rule::on_store_failure).collect();
    assert_eq!(answers, [OnStoreFailure::Deny, OnStoreFailure::Allow]);
}

#[test]
fn replaced_limit_still_replaces_others() {
    let rules = rules(
        "{domain: d, descriptors: [
           {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: a, replaces: [{name: b}]}},
           {key: b, rate_limit: {unit: day, requests_per_unit: 2, name: b, replaces: [{name: c}]}},
           {key: c, rate_limit: {unit: day, requests_per_unit: 3, name: c}},
           {key: u, rate_limit: {unlimited: true, name: u, replaces: [{name: a}]}},
           {key: n, rate_limit: {unit: day, requests_per_unit: 4}}]}",
    );
    let left = |keys: &[&str]| {
        let mut found: Vec<EnvoyMatch<'_>> =
            keys.iter().map(|key| rules.find("d", &[(*key, "x")])).collect();
        drop_replaced(&mut found);
        let shown = found.iter().map(|found| match found {
            EnvoyMatch::Nothing => "-".to_owned(),
            EnvoyMatch::Unlimited(_) => "unlimited".to_owned(),
            EnvoyMatch::Limited(limit, _) => limit.requests_per_unit.to_string(),
        });
        shown.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(left(&["a", "c", "n"]), "1 3 4");
    assert_eq!(left(&["c", "b", "b"]), "- 2 2");
    assert_eq!(left(&["a", "b", "c"]), "1 - -");
    assert_eq!(left(&["a", "u"]), "- unlimited");
    assert_eq!(left(&[]), "");
}
