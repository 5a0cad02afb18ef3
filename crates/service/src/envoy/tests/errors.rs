//! Error messages: file and line, the found and the wanted value.

use super::*;

fn error(text: &str) -> String {
    parsed(text).err().map_or_else(|| "fine".to_owned(), |error| error.to_string())
}

#[test]
fn error_has_line_found_and_wanted_value() {
    let one = |descriptor: &str| format!("domain: d\ndescriptors:\n  - {descriptor}\n");
    let limit = |limit: &str| one(&format!("key: k\n    rate_limit:\n      {limit}"));
    for (text, wanted) in [
        (String::new(), "limits.yaml:1: domain must be a text, found nothing"),
        ("descriptors: []".to_owned(), "limits.yaml:1: domain must be a text, found nothing"),
        ("domain: ''".to_owned(), "limits.yaml:1: domain must be a text, found nothing"),
        (
            "domain: d\nlimits: []".to_owned(),
            "limits.yaml:2: there is no key \"limits\", wanted domain, descriptors",
        ),
        (one("value: v"), "limits.yaml:3: key must be a text, found nothing"),
        (
            one("key: k\n    ratelimit: {}"),
            "limits.yaml:4: there is no key \"ratelimit\", wanted key, value, rate_limit, \
             descriptors, shadow_mode, quota_mode, share_threshold, detailed_metric, \
             value_to_metric, metadata (did you mean rate_limit?)",
        ),
        (
            limit("{unit: day, requests_per_unit: 1, shadow_mode: true}"),
            "limits.yaml:5: there is no key \"shadow_mode\", wanted unit, requests_per_unit, \
             unlimited, name, replaces",
        ),
        (
            limit("unit: fortnight\n      requests_per_unit: 1"),
            "limits.yaml:5: unit must be one of second, minute, hour, day, week, month, year, \
             found \"fortnight\"",
        ),
        (
            limit("requests_per_unit: 1"),
            "limits.yaml:5: unit must be one of second, minute, hour, day, week, month, year, \
             found nothing",
        ),
        (
            limit("unit: day"),
            "limits.yaml:5: requests_per_unit must be a whole number up to 4294967295, found nothing",
        ),
        (
            limit("unit: day\n      requests_per_unit: -1"),
            "limits.yaml:6: requests_per_unit must be a whole number up to 4294967295, found \"-1\"",
        ),
        (
            limit("unit: day\n      unlimited: true"),
            "limits.yaml:5: unlimited needs no unit, found \"day\"",
        ),
        (
            limit("{unlimited: true, name: n, replaces: [{name: n}]}"),
            "limits.yaml:5: replaces must name another limit, found its own name \"n\"",
        ),
        (
            limit("{unlimited: true, replaces: [{}]}"),
            "limits.yaml:5: replaces needs a name, found nothing",
        ),
        (
            one("{key: k, value: v}\n  - {key: k, value: v}"),
            "limits.yaml:4: descriptor \"d.k_v\" must be unique, found it twice",
        ),
        (
            one("{key: k}\n  - {key: k, value: ''}"),
            "limits.yaml:4: descriptor \"d.k\" must be unique, found it twice",
        ),
        (
            one("{key: k, value: v, share_threshold: true}"),
            "limits.yaml:3: share_threshold needs a value with '*', found \"v\"",
        ),
        (
            one(&format!("{{key: {}}}", "k".repeat(121))),
            "limits.yaml:3: key must be at most 120 bytes long, found 121",
        ),
        (
            one(&format!("{{key: k, value: {}}}", "v".repeat(1025))),
            "limits.yaml:3: value must be at most 1024 bytes long, found 1025",
        ),
    ] {
        assert_eq!(error(&text), wanted, "{text}");
    }
}

#[test]
fn all_errors_of_all_files_are_listed() {
    let files = [
        (
            "a.yaml",
            "domain: d\ndescriptors: [{key: k, rate_limit: {unit: x, requests_per_unit: y}}]",
        ),
        ("b.yaml", "domain: [d]"),
        ("c.yaml", "domain: d"),
    ];
    let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let error = EnvoyRules::parse(&files).unwrap_err().to_string();
    let places: Vec<&str> = error.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(places, ["a.yaml:2:", "a.yaml:2:", "b.yaml:1:", "c.yaml:1:"], "{error}");
    assert!(error.ends_with("domain \"d\" must be unique, found it in a.yaml too"), "{error}");
}

#[test]
fn nesting_is_limited_to_16_levels() {
    let deep = |levels: usize| {
        let open = "descriptors: [{key: k, ".repeat(levels);
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        format!("{{domain: d, {open}{limit}{}}}", "}]".repeat(levels))
    };
    let entries = [("k", "v"); 16];
    assert_eq!(limit_text(&rules(&deep(16)), "d", &entries), "1/DAY");
    assert_eq!(error(&deep(17)), "limits.yaml:1: descriptors must be nested at most 16 deep");
    assert!(error(&deep(10_000)).starts_with("limits.yaml:1: "));
}

#[test]
fn paths_with_the_same_text_have_separate_limits() {
    let rules = rules(
        "{domain: d, descriptors: [
           {key: a, value: b_c, rate_limit: {unit: day, requests_per_unit: 1}},
           {key: a_b, value: c, rate_limit: {unit: day, requests_per_unit: 2}}]}",
    );
    assert_eq!(limit_text(&rules, "d", &[("a", "b_c")]), "1/DAY");
    assert_eq!(limit_text(&rules, "d", &[("a_b", "c")]), "2/DAY");
}

#[test]
fn scalars_keep_their_text() {
    let rules = rules(
        "{domain: 1.10, descriptors: [
           {key: true, value: 0x10, rate_limit: {unit: DAY, requests_per_unit: 1_000}},
           {key: yes, value: ~, rate_limit: {unit: Week, requests_per_unit: 7}}]}",
    );
    assert_eq!(limit_text(&rules, "1.10", &[("true", "0x10")]), "1000/DAY");
    assert_eq!(limit_text(&rules, "1.10", &[("yes", "anything")]), "7/WEEK");
}

proptest::proptest! {
    #[test]
    fn damaged_file_is_parsed_or_rejected_with_a_position(
        start in 0..800usize,
        length in 0..40usize,
        put in "[ a-z{}\\[\\]:,*&~'\"|>\n-]{0,12}",
    ) {
        let text = include_str!("../../../tests/envoy_examples/12-everything.yml");
        let start = start.min(text.len());
        let end = (start + length).min(text.len());
        crate::fuzzing::envoy_yaml(&format!("{}{put}{}", &text[..start], &text[end..]));
    }
}
