//! What is drawn, and what is not.

use super::*;

fn excerpt(name: &str, text: &str, at: SourceRange) -> Option<String> {
    let mut sources = Sources::default();
    sources.keep(name, text);
    sources.source(name).unwrap().excerpt(at)
}

fn of_rules(line: &str, column: u64, width: u64) -> String {
    excerpt("rules.yaml", &format!("rules: []\n{line}\n"), SourceRange::new(2, column, width))
        .unwrap()
}

#[test]
fn a_caret_stands_under_each_character_that_is_wrong() {
    assert_eq!(of_rules("    limt: 5/s", 5, 4), "  |\n2 |     limt: 5/s\n  |     ^^^^\n");
    // A place without width, one behind the end, and more than there is.
    assert_eq!(of_rules("limit:", 3, 0), "  |\n2 | limit:\n  |   ^\n");
    assert_eq!(of_rules("limit:", 7, 0), "  |\n2 | limit:\n  |       ^\n");
    assert_eq!(of_rules("limit: |", 8, 500), "  |\n2 | limit: |\n  |        ^\n");
    assert_eq!(of_rules("limit: 5\r", 8, 1), "  |\n2 | limit: 5\n  |        ^\n");
}

#[test]
fn tabs_wide_letters_and_what_a_terminal_obeys_do_not_move_it() {
    assert_eq!(of_rules("\ta: b", 2, 1), "  |\n2 |     a: b\n  |     ^\n");
    assert_eq!(of_rules("日本: b", 5, 1), "  |\n2 | 日本: b\n  |       ^\n");
    assert_eq!(of_rules("e\u{301}: b", 5, 1), "  |\n2 | e\u{301}: b\n  |    ^\n");
    let raw = of_rules("a: \u{1b}[31m\u{202e}x\u{7}", 4, 1);
    assert_eq!(raw, "  |\n2 | a: \u{fffd}[31m\u{fffd}x\u{fffd}\n  |    ^\n");
}

#[test]
fn a_long_line_is_cut_around_what_is_wrong() {
    let line = format!("{}wrong{}", "x".repeat(500), "y".repeat(500));
    let text = of_rules(&line, 501, 5);
    let (drawn, carets) = (text.lines().nth(1).unwrap(), text.lines().nth(2).unwrap());
    assert_eq!(drawn, format!("2 | …{}wrong{}…", "x".repeat(30), "y".repeat(64)));
    assert_eq!(carets, format!("  | {}^^^^^", " ".repeat(31)));
    let text = of_rules(&line, 1, 2_000);
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 5), "{text}");
}

#[test]
fn a_secret_of_a_configuration_is_never_shown() {
    for (text, line, column, width) in [
        ("resp: {password: hunter2}", 1, 18, 7),
        ("resp:\n  password:\n    - hunter2", 3, 7, 7),
        ("resp:\n  password:\n  hunter2", 3, 3, 7),
        ("resp: {password:\n  hunter2}", 2, 3, 7),
        ("resp:\n  password: |\n    one\n    hunter2", 4, 5, 7),
        ("store: {redis: {url: 'redis://:hunter2@a'}}", 1, 22, 10),
        ("admin:\n  token: hunter2", 2, 10, 7),
        ("resp:\n  pasword: hunter2", 2, 3, 7),
        ("resp: {pasword: hunter2}", 1, 8, 7),
        ("identity: {jwt: {Secret: hunter2}}", 1, 1, 8),
    ] {
        let at = SourceRange::new(line, column, width);
        let shown = excerpt("tidegate.yaml", text, at).unwrap_or_default();
        assert!(!shown.contains("hunter2"), "{text}: {shown}");
    }
    let at = SourceRange::new(2, 3, 7);
    let shown = excerpt("tidegate.yaml", "resp:\n  pasword: hunter2", at).unwrap();
    assert_eq!(shown, "  |\n2 |   pasword: …\n  |   ^^^^^^^\n");
    assert_eq!(excerpt("tidegate.yaml", "resp:\n  x: hunter2", SourceRange::whole_line(2)), None);
}

#[test]
fn secret_values_in_rules_are_crossed_out() {
    for (line, shown) in [
        ("match: {api_key: partner-1}", "match: {api_key: *******-*}"),
        ("match: {api_key: [k1, 'k2'], path: /v1}", "match: {api_key: [**, '**'], path: /v1}"),
        ("match: {api_key: {is: \"k}1\"}, ip: x}", "match: {api_key: {is: \"*}*\"}, ip: x}"),
        ("  header.x-key: abc # why", "  header.x-key: *** # why"),
        ("rsp: {password: hunter2}", "rsp: {password: *******}"),
        ("  cookie.sid: abc", "  cookie.sid: ***"),
        ("per: [api_key, header.x-key]", "per: [api_key, header.x-key]"),
        ("match: {user: {present: true}}", "match: {user: {present: true}}"),
        ("this: that", "this: that"),
    ] {
        assert_eq!(secrecy::of_rules(line), shown);
    }
}

proptest::proptest! {
    #[test]
    fn anything_can_be_drawn(
        text in "[ a-z:{}\\[\\]'\"\t\u{1b}é日\r\n#,-]{0,200}",
        key in "(api_key|header.x|is|x)",
        line in 0u64..8, column in 0u64..250, width in 0u64..300,
    ) {
        for name in ["rules.yaml", "tidegate.yaml"] {
            let text = format!("{key}: {text}");
            let shown = excerpt(name, &text, SourceRange::new(line, column, width)).unwrap_or_default();
            let raw = ['\u{1b}', '\t', '\r'];
            proptest::prop_assert!(!shown.contains(raw));
            proptest::prop_assert!(shown.is_empty() || shown.lines().count() == 3);
        }
    }
}
