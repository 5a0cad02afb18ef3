//! Semantics of stars in patterns, and the bound on the matching time.

use proptest::prelude::*;
use tidegate_rules::{Glob, PatternSet, ValuePattern};

/// A reference implementation with backtracking: every star tries every run.
fn reference_matches(pattern: &[u8], value: &[u8]) -> bool {
    match pattern {
        [] => value.is_empty(),
        [b'*', b'*', rest @ ..] => {
            (0..=value.len()).any(|run| reference_matches(rest, &value[run..]))
        }
        [b'*', rest @ ..] => (0..=value.len())
            .take_while(|&run| !value[..run].contains(&b'/'))
            .any(|run| reference_matches(rest, &value[run..])),
        [byte, rest @ ..] => value.first() == Some(byte) && reference_matches(rest, &value[1..]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn glob_matches_like_a_backtracking_reference(
        pattern in "[ab/é*]{0,4}[*][ab/é*]{0,5}",
        value in "[ab/é]{0,9}",
    ) {
        let glob = Glob::new(&pattern).unwrap();
        prop_assert_eq!(
            glob.matches(&value),
            reference_matches(pattern.as_bytes(), value.as_bytes()),
            "{} against {}", pattern, value
        );
    }

    /// Few letters and many stars, so that literals overlap and a `*` often ends at a slash.
    #[test]
    fn glob_with_many_stars_matches_like_a_backtracking_reference(
        pattern in "[a/]{0,2}([*]{1,2}[a/]{1,3}){1,4}[*]{1,2}[ab/]{0,2}",
        value in "[a/]{0,3}[ab/]{0,6}[a/]{0,7}",
    ) {
        let glob = Glob::new(&pattern).unwrap();
        prop_assert_eq!(
            glob.matches(&value),
            reference_matches(pattern.as_bytes(), value.as_bytes()),
            "{} against {}", pattern, value
        );
    }
}

/// Patterns with few letters, so that their texts and ends coincide and overlap.
fn pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => "[ab/]{0,2}([*]{1,2}[ab/]{1,2}){1,4}[*]{1,2}[ab/]{0,2}",
        4 => "[*]{1,2}([ab/]{1,2}[*]{1,2}){1,4}",
        2 => "[*]{2}[ab/]{1,3}[*]{2}",
        2 => "[ab/]{0,3}[*]{1,2}[ab/]{0,3}",
        1 => "[ab/]{1,4}",
        // Texts that are longer than those of the automaton.
        1 => "[*]{2}(ab/){10,12}[ab/]{1,2}[*]{1,2}b[*]{1,2}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn pattern_set_matches_like_a_backtracking_reference(
        patterns in proptest::collection::vec(pattern(), 1..40),
        values in proptest::collection::vec("[ab/]{0,12}|(ab/){10,13}[ab/]{0,4}", 1..10),
    ) {
        let parsed: Vec<ValuePattern> =
            patterns.iter().map(|text| ValuePattern::like(text)).collect();
        let set = PatternSet::new(parsed.iter().enumerate());
        for value in values {
            let matches =
                |pattern: &String| reference_matches(pattern.as_bytes(), value.as_bytes());
            // The reference needs too long for long values.
            let wanted: Vec<usize> = if value.len() > 20 {
                (0..parsed.len()).filter(|&index| parsed[index].matches(&value)).collect()
            } else {
                (0..patterns.len()).filter(|&index| matches(&patterns[index])).collect()
            };
            let mut found = Vec::new();
            set.matching(&value, |position| found.push(position));
            found.sort_unstable();
            prop_assert_eq!(set.first(&value), wanted.first().copied());
            prop_assert_eq!(found, wanted, "{:?} against {}", patterns, value);
        }
    }
}

#[test]
fn single_star_stops_at_a_slash_and_double_star_does_not() {
    for (pattern, yes, no) in [
        ("/v1/**", &["/v1/", "/v1/a", "/v1/a/b"][..], &["/v1", "/v2/a", "x/v1/a"][..]),
        ("/v1/*", &["/v1/", "/v1/a"], &["/v1/a/b", "/v1"]),
        ("*.example.com", &["a.example.com", ".example.com"], &["example.com", "a/b.example.com"]),
        ("/users/*/orders", &["/users/7/orders"], &["/users/7/8/orders", "/users/orders"]),
        ("/**/a*c", &["/x/abc", "/x/y/ac", "//ac"], &["/ac", "/x/ab/c"]),
        ("***", &["", "a/b"], &[]),
        ("a*a", &["aa", "aba"], &["a"]),
    ] {
        let glob = Glob::new(pattern).unwrap();
        for value in yes {
            assert!(glob.matches(value), "{pattern} {value}");
        }
        for value in no {
            assert!(!glob.matches(value), "{pattern} {value}");
        }
    }
    assert_eq!(Glob::new("/plain"), None);
}

#[test]
fn glob_prefix_and_suffix_are_its_literal_ends() {
    let glob = Glob::new("/v1/*/x/**.js").unwrap();
    assert_eq!((glob.prefix(), glob.suffix()), ("/v1/", ".js"));
    assert_eq!(glob.to_string(), "/v1/*/x/**.js");
}

/// A backtracking matcher with sixteen stars would not end in any acceptable time.
#[test]
fn glob_matching_does_not_backtrack() {
    let value = "a".repeat(8 * 1024);
    for star in ["*", "**"] {
        let pattern = format!("{}b", format!("{star}a").repeat(16));
        assert!(!Glob::new(&pattern).unwrap().matches(&value));
        let pattern = format!("{}{star}", format!("{star}a").repeat(16));
        assert!(Glob::new(&pattern).unwrap().matches(&value));
    }
}
