//! Stars mean what they say, at a cost that no value can blow up.

use proptest::prelude::*;
use tidegate_rules::Glob;

/// The meaning of a pattern, spelled out: every star tries every run.
fn describes(pattern: &[u8], value: &[u8]) -> bool {
    match pattern {
        [] => value.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=value.len()).any(|run| describes(rest, &value[run..])),
        [b'*', rest @ ..] => (0..=value.len())
            .take_while(|&run| !value[..run].contains(&b'/'))
            .any(|run| describes(rest, &value[run..])),
        [byte, rest @ ..] => value.first() == Some(byte) && describes(rest, &value[1..]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn a_glob_means_what_its_stars_spell(
        pattern in "[ab/é*]{0,4}[*][ab/é*]{0,5}",
        value in "[ab/é]{0,9}",
    ) {
        let glob = Glob::new(&pattern).unwrap();
        prop_assert_eq!(
            glob.matches(&value),
            describes(pattern.as_bytes(), value.as_bytes()),
            "{} against {}", pattern, value
        );
    }
}

#[test]
fn stars_stop_at_a_slash_unless_there_are_two() {
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
fn the_ends_of_a_glob_are_its_literal_parts() {
    let glob = Glob::new("/v1/*/x/**.js").unwrap();
    assert_eq!((glob.prefix(), glob.suffix()), ("/v1/", ".js"));
    assert_eq!(glob.to_string(), "/v1/*/x/**.js");
}

/// Trying the runs of sixteen stars one by one would outlive the machine.
#[test]
fn no_value_makes_a_glob_try_every_run() {
    let value = "a".repeat(8 * 1024);
    for star in ["*", "**"] {
        let pattern = format!("{}b", format!("{star}a").repeat(16));
        assert!(!Glob::new(&pattern).unwrap().matches(&value));
        let pattern = format!("{}{star}", format!("{star}a").repeat(16));
        assert!(Glob::new(&pattern).unwrap().matches(&value));
    }
}
