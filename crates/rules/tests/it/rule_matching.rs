//! The index returns the same rules as a check of every rule.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::{Algorithm, Quota, Request, RuleIndex, Span, Timestamp};
use tidegate_rules::{
    Condition, IgnoredDifferences, LimitOrigin, Mode, Rule, RuleSet, ValuePattern, ValuePatterns,
    ValueTest,
};

const NAMES: [&str; 12] = ["path", "method", "ip", "user", "a", "b", "c", "d", "e", "f", "g", "h"];

const NETWORKS: [&str; 10] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.2.3/32",
    "192.0.2.0/31",
    "::/0",
    "2001:db8::/32",
    "2001:db8::1/128",
    "::ffff:10.0.0.0/104",
    "::ffff:0:0/95",
];

const ADDRESSES: [&str; 9] = [
    "10.1.2.3",
    "10.9.9.9",
    "192.0.2.1",
    "192.0.2.2",
    "::1",
    "2001:db8::1",
    "2001:db9::1",
    "::ffff:10.1.2.3",
    "10.1.2.3 ",
];

#[test]
fn named_rule_is_found_by_name_and_matches_no_request() {
    let rule = |name| Rule::new(name, Algorithm::FixedWindow, Quota::per_second(1)).unwrap();
    let rules = RuleSet::new(vec![rule("api")]).unwrap();
    let rules = rules.with_named(vec![rule("cl.throttle").with_per("key").unwrap()]).unwrap();
    assert_eq!(rules.rule_index("cl.throttle"), Some(RuleIndex(1)));
    assert_eq!(rules.rule("cl.throttle").unwrap().per()[0].as_str(), "key");
    let names: Vec<&str> = rules.matching(&Request::new()).iter().map(|rule| rule.name()).collect();
    assert_eq!(names, ["api"]);
    let more = rules.with_named(vec![rule("rls.override")]).unwrap();
    assert_eq!(more.rule_index("cl.throttle"), Some(RuleIndex(1)));
    assert_eq!(more.rule_index("rls.override"), Some(RuleIndex(2)));
}

#[test]
fn internal_rules_are_found_by_name_but_not_listed() {
    let rule = |name| Rule::new(name, Algorithm::FixedWindow, Quota::per_second(1)).unwrap();
    let rules = RuleSet::new(vec![rule("api")]).unwrap();
    let rules = rules.with_internal(vec![rule("cl.throttle"), rule("rls.override")]).unwrap();
    let names = |rules: &[Rule]| -> Vec<String> {
        rules.iter().map(|rule| rule.name().to_owned()).collect()
    };
    assert_eq!(names(rules.rules()), ["api"]);
    assert_eq!(names(rules.internal()), ["cl.throttle", "rls.override"]);
    let index = rules.rule_index("rls.override").unwrap();
    assert_eq!((index, rules.user_rule_index("rls.override")), (RuleIndex(2), None));
    assert_eq!(rules.get(index).unwrap().name(), "rls.override");
    assert_eq!(rules.all().map(|(index, _)| index.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(rules.get(RuleIndex(3)).map(Rule::name), None);
    assert_eq!(rules.matching(&Request::new()).len(), 1);
    let taken = RuleSet::new(vec![rule("cl.throttle")]).unwrap();
    let errors = taken.with_internal(vec![rule("cl.throttle")]).unwrap_err();
    let wanted = "rule \"cl.throttle\": this name is reserved, choose another";
    assert_eq!(errors.to_string(), wanted);
}

#[test]
fn reserved_and_duplicate_names_are_rejected() {
    let rule = |name| Rule::new(name, Algorithm::FixedWindow, Quota::per_second(1)).unwrap();
    let rules = RuleSet::new(vec![rule("api"), rule("cl.throttle")]).unwrap();
    let named = vec![rule("cl.throttle"), rule("twice"), rule("twice")];
    let errors = rules.with_named(named).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "rule \"cl.throttle\": this name is reserved, choose another\n\
         rule \"twice\": name must be unique, found it twice"
    );
}

/// Few names, so that conditions share attributes; sometimes more than the index probes one by one.
fn attribute() -> impl Strategy<Value = &'static str> {
    prop_oneof![1 => select(&NAMES[..3]), 1 => select(&NAMES[..])]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => "[abAB/]{0,5}",
        2 => "[ab/]{5,12}",
        2 => select(&ADDRESSES[..]).prop_map(str::to_owned),
        1 => "[ab*é/]{0,5}",
    ]
}

fn pattern() -> impl Strategy<Value = ValuePattern> {
    prop_oneof![
        3 => "[abAB/]{1,4}".prop_map(|text| ValuePattern::Exact(text.into())),
        2 => "[ab/]{0,3}[*]{1,2}[ab/]{0,2}".prop_map(|text| ValuePattern::like(&text)),
        1 => "[ab/*é]{1,6}".prop_map(|text| ValuePattern::like(&text)),
        3 => "[*]{1,2}[ab/]{1,3}([*]{1,2}[ab/]{1,3})?[*]{1,2}"
            .prop_map(|text| ValuePattern::like(&text)),
        1 => select(&ADDRESSES[..]).prop_map(ValuePattern::like),
    ]
}

fn ignored() -> impl Strategy<Value = IgnoredDifferences> {
    any::<(bool, bool)>()
        .prop_map(|(case, trailing_slash)| IgnoredDifferences { case, trailing_slash })
}

/// Returns whether a pattern matches a value, or a value that differs only in what is ignored.
fn matches_ignoring(pattern: &ValuePattern, value: &str, ignored: IgnoredDifferences) -> bool {
    let lower = |text: &str| if ignored.case { text.to_ascii_lowercase() } else { text.to_owned() };
    let lower_pattern = match pattern {
        ValuePattern::Exact(text) => ValuePattern::Exact(lower(text).into()),
        ValuePattern::Glob(glob) => ValuePattern::like(&lower(&glob.to_string())),
    };
    let test = ValueTest::OneOf(ValuePatterns::new([lower_pattern]));
    let value = lower(value);
    if !ignored.trailing_slash {
        return test.passes(Some(&value));
    }
    // Patterns of these tests have at most six slashes.
    let without = value.trim_end_matches('/');
    (0..8).any(|slashes| test.passes(Some(&format!("{without}{}", "/".repeat(slashes)))))
}

fn test() -> impl Strategy<Value = ValueTest> {
    prop_oneof![3 => positive_test(), 1 => positive_test().prop_map(ValueTest::negated)]
}

fn positive_test() -> impl Strategy<Value = ValueTest> {
    prop_oneof![
        6 => vec(pattern(), 1..4).prop_map(|patterns| ValueTest::OneOf(ValuePatterns::new(patterns))),
        3 => (vec(pattern(), 1..4), ignored()).prop_map(|(patterns, ignored)| {
            ValueTest::OneOf(ValuePatterns::ignoring(patterns, ignored))
        }),
        // Enough patterns to be matched together.
        1 => vec(pattern(), 10..30).prop_map(|patterns| ValueTest::OneOf(ValuePatterns::new(patterns))),
        2 => vec(select(&NETWORKS[..]), 1..3)
            .prop_map(|networks| ValueTest::within(networks.into_iter().map(|text| text.parse().unwrap()))),
        1 => Just(ValueTest::Present),
        1 => Just(ValueTest::Absent),
    ]
}

fn conditions() -> impl Strategy<Value = Vec<Condition>> {
    vec((attribute(), test()).prop_map(|(name, test)| Condition::new(name, test)), 0..4)
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![4 => Just(Mode::Enforce), 1 => Just(Mode::Shadow), 1 => Just(Mode::Off)]
}

fn requests() -> impl Strategy<Value = Vec<Vec<(&'static str, String)>>> {
    vec(vec((attribute(), value()), 0..6), 1..20)
}

fn request(attributes: &[(&'static str, String)]) -> Request<'static> {
    attributes
        .iter()
        .fold(Request::new(), |request, (name, value)| request.with(*name, value.clone()).unwrap())
}

fn rule(name: &str) -> Rule {
    Rule::new(name, Algorithm::TokenBucket, Quota::per_second(1)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn index_finds_the_same_rules_as_a_linear_search(
        rules in vec((conditions(), mode()), 0..80),
        requests in requests(),
    ) {
        let rules = (0..).zip(rules).map(|(index, (conditions, mode))| {
            conditions
                .into_iter()
                .fold(rule(&format!("r{index}")), Rule::with_condition)
                .with_mode(mode)
        });
        let rules = RuleSet::new(rules.collect()).unwrap();
        for attributes in &requests {
            let request = request(attributes);
            let found: Vec<&str> = rules.matching(&request).iter().map(|rule| rule.name()).collect();
            let checked: Vec<&str> = rules
                .rules()
                .iter()
                .filter(|rule| rule.matches(&request).is_ok())
                .map(Rule::name)
                .collect();
            prop_assert_eq!(found, checked, "{:?}", request);
        }
    }

    #[test]
    fn negated_test_passes_exactly_where_the_test_does_not(
        test in positive_test(),
        value in proptest::option::of(value()),
    ) {
        let value = value.as_deref().filter(|value| !value.is_empty());
        prop_assert_eq!(test.clone().negated().passes(value), !test.passes(value));
        prop_assert_eq!(test.clone().negated().negated(), test);
    }

    #[test]
    fn ignored_differences_do_not_matter(
        patterns in prop_oneof![vec(pattern(), 1..3), vec(pattern(), 10..30)],
        ignored in ignored(),
        values in vec("[abAB/]{1,6}", 1..20),
    ) {
        let test = ValueTest::OneOf(ValuePatterns::ignoring(patterns.clone(), ignored));
        for value in values {
            let wanted = patterns.iter().any(|pattern| matches_ignoring(pattern, &value, ignored));
            prop_assert_eq!(test.passes(Some(&value)), wanted, "{} {:?}", value, patterns);
        }
    }

    #[test]
    fn first_matching_override_that_has_not_ended_applies(
        overrides in vec((conditions(), proptest::option::of(0_u64..4)), 0..30),
        requests in requests(),
        now in 0_u64..4,
    ) {
        let now = Timestamp::EPOCH + Span::from_micros(now);
        let given = overrides.iter().map(|(conditions, until)| {
            (conditions.clone(), Quota::per_second(2), until.map(Timestamp::from_micros))
        });
        let rule = rule("a").with_overrides(given).unwrap();
        for attributes in &requests {
            let request = request(attributes);
            let first = overrides.iter().position(|(conditions, until)| {
                until.is_none_or(|until| now < Timestamp::from_micros(until))
                    && conditions.iter().all(|condition| condition.is_satisfied(&request))
            });
            let wanted = first.map_or(LimitOrigin::Rule, LimitOrigin::Override);
            prop_assert_eq!(rule.limit_for(&request, now).origin, wanted, "{:?}", request);
        }
    }
}

/// The index contains only the end of a long text. A value with that end and another start must not match.
#[test]
fn long_text_between_stars_is_compared_in_full() {
    let text = "/a-long-name-of-an-application-with-many-parts/";
    let rules = RuleSet::new(vec![
        rule("long")
            .with_condition(Condition::new("path", ValueTest::like(&format!("**{text}**")))),
        rule("end")
            .with_condition(Condition::new("path", ValueTest::like("**-with-many-parts/**"))),
    ]);
    let rules = rules.unwrap();
    for (path, wanted) in [
        (format!("/x{text}y"), &["long", "end"][..]),
        (format!("/x{}y", text.replace("/a-", "/b-")), &["end"]),
        ("/x/a-long-name".to_owned(), &[]),
    ] {
        let request = Request::new().with("path", path).unwrap();
        let found: Vec<&str> = rules.matching(&request).iter().map(|rule| rule.name()).collect();
        assert_eq!(found, wanted, "{request:?}");
    }
}

#[test]
fn matching_rules_are_returned_in_document_order() {
    let rules = RuleSet::parse(
        "rules.yaml",
        "
rules:
  - {name: exact, limit: 1/s, match: {path: /a/b}}
  - {name: all, limit: 1/s}
  - {name: off, limit: 1/s, mode: off}
  - {name: suffix, limit: 1/s, match: {path: '**b'}}
  - {name: list, limit: 1/s, match: {path: [/a/b, '/a/*', '/a/**']}}
  - {name: other, limit: 1/s, match: {path: /a}}
  - {name: present, limit: 1/s, match: {path: {present: true}}}
  - {name: prefix, limit: 1/s, match: {path: '/*/*'}}
",
    )
    .unwrap();
    let request = Request::new().with("path", "/a/b").unwrap();
    let found: Vec<&str> = rules.matching(&request).iter().map(|rule| rule.name()).collect();
    assert_eq!(found, ["exact", "all", "suffix", "list", "present", "prefix"]);
}

#[test]
fn case_and_trailing_slash_are_ignored_where_a_rule_states_it() {
    let rules = RuleSet::parse(
        "rules.yaml",
        "
rules:
  - {name: login, limit: 1/s, match: {path: {like: /Login, ignore: [case, trailing_slash]}}}
  - {name: exact, limit: 1/s, match: {path: {is: '/login*', ignore: case}}}
  - {name: list, limit: 1/s, match: {path: {ignore: trailing_slash, like: [/a/, '/b/*']}}}
  - {name: plain, limit: 1/s, match: {path: {like: '/log*'}}}
",
    )
    .unwrap();
    let names = |path: &str| {
        let request = Request::new().with("path", path.to_owned()).unwrap();
        let found: Vec<&str> = rules.matching(&request).iter().map(|rule| rule.name()).collect();
        found.join(" ")
    };
    assert_eq!(names("/login"), "login plain");
    assert_eq!(names("/LOGIN/"), "login");
    assert_eq!(names("/Login*"), "exact");
    assert_eq!(names("/login/x"), "");
    for path in ["/a", "/a/", "/b", "/b/", "/b/c", "/b/c/"] {
        assert_eq!(names(path), "list", "{path}");
    }
    assert_eq!(names("/A"), "");
    let shown: Vec<String> =
        rules.rules().iter().map(|rule| rule.conditions()[0].test().to_string()).collect();
    assert_eq!(
        shown,
        [
            r#""/login" in any case with or without a slash at the end"#,
            r#""/login*" in any case"#,
            r#""/a", "/b" or "/b/*" with or without a slash at the end"#,
            r#""/log*""#,
        ]
    );
}

#[test]
fn not_excludes_values_and_holds_if_the_attribute_is_absent() {
    let rules = RuleSet::parse(
        "rules.yaml",
        "
rules:
  - {name: one, limit: 1/s, match: {path: {not: /healthz}}}
  - {name: list, limit: 1/s, match: {path: {not: [/healthz, '/static/**']}}}
  - {name: both, limit: 1/s, match: {path: {like: '/v1/**', not: /v1/ping}}}
  - {name: case, limit: 1/s, match: {path: {not: /V1/Ping, like: '/V1/**', ignore: case}}}
  - {name: star, limit: 1/s, match: {path: {present: true, not: {is: '/static/**'}}}}
  - {name: net, limit: 1/s, match: {ip: {in: [10.0.0.0/8], not: {in: 10.1.0.0/16}}}}
",
    )
    .unwrap();
    let names = |name: &'static str, value: &str| {
        let request = Request::new().with(name, value.to_owned()).unwrap();
        let found: Vec<&str> = rules.matching(&request).iter().map(|rule| rule.name()).collect();
        found.join(" ")
    };
    assert_eq!(names("path", "/healthz"), "star");
    assert_eq!(names("path", "/static/a.css"), "one star");
    assert_eq!(names("path", "/static/**"), "one");
    assert_eq!(names("path", "/v1/ping"), "one list star");
    assert_eq!(names("path", "/v1/PING"), "one list both star");
    assert_eq!(names("path", "/V1/x"), "one list case star");
    assert_eq!(names("path", ""), "one list");
    assert_eq!(names("ip", "10.2.0.1"), "one list net");
    assert_eq!(names("ip", "10.1.0.1"), "one list");
    let request = Request::new().with("path", "/healthz").unwrap();
    let reason = rules.rules()[1].matches(&request).unwrap_err().to_string();
    assert_eq!(reason, r#"path is "/healthz", wanted anything but "/healthz" or "/static/**""#);
}

#[test]
fn excluded_values_that_may_be_secrets_are_not_shown() {
    let condition = Condition::new("api_key", ValueTest::is("k1").negated());
    assert_eq!(condition.redacted(), "anything but a value that is not shown");
    let public = Condition::new("path", ValueTest::is("/healthz").negated());
    assert_eq!(public.redacted(), r#"anything but "/healthz""#);
}
