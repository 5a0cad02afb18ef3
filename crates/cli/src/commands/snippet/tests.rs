//! Snippets, and the secrets that they hide.

use super::*;

fn snippet(name: &str, text: &str, at: SourceRange) -> Option<String> {
    let mut sources = SourceTexts::default();
    sources.insert(name, text);
    sources.source(name).unwrap().snippet(at)
}

fn rules_snippet(line: &str, column: u64, width: u64) -> String {
    snippet("rules.yaml", &format!("rules: []\n{line}\n"), SourceRange::new(2, column, width))
        .unwrap()
}

#[test]
fn each_character_of_the_error_has_a_caret() {
    assert_eq!(rules_snippet("    limt: 5/s", 5, 4), "  |\n2 |     limt: 5/s\n  |     ^^^^\n");
    // No width, a position behind the end, and more width than the line has.
    assert_eq!(rules_snippet("limit:", 3, 0), "  |\n2 | limit:\n  |   ^\n");
    assert_eq!(rules_snippet("limit:", 7, 0), "  |\n2 | limit:\n  |       ^\n");
    assert_eq!(rules_snippet("limit: |", 8, 500), "  |\n2 | limit: |\n  |        ^\n");
    assert_eq!(rules_snippet("limit: 5\r", 8, 1), "  |\n2 | limit: 5\n  |        ^\n");
}

#[test]
fn tabs_wide_letters_and_control_characters_do_not_move_the_caret() {
    assert_eq!(rules_snippet("\ta: b", 2, 1), "  |\n2 |     a: b\n  |     ^\n");
    assert_eq!(rules_snippet("日本: b", 5, 1), "  |\n2 | 日本: b\n  |       ^\n");
    assert_eq!(rules_snippet("e\u{301}: b", 5, 1), "  |\n2 | e\u{301}: b\n  |    ^\n");
    let raw = rules_snippet("a: \u{1b}[31m\u{202e}x\u{7}", 4, 1);
    assert_eq!(raw, "  |\n2 | a: \u{fffd}[31m\u{fffd}x\u{fffd}\n  |    ^\n");
}

#[test]
fn long_line_is_truncated_around_the_error() {
    let line = format!("{}wrong{}", "x".repeat(500), "y".repeat(500));
    let text = rules_snippet(&line, 501, 5);
    let (drawn, carets) = (text.lines().nth(1).unwrap(), text.lines().nth(2).unwrap());
    assert_eq!(drawn, format!("2 | …{}wrong{}…", "x".repeat(30), "y".repeat(64)));
    assert_eq!(carets, format!("  | {}^^^^^", " ".repeat(31)));
    let text = rules_snippet(&line, 1, 2_000);
    assert!(text.lines().all(|line| line.chars().count() <= MAX_WIDTH + 5), "{text}");
}

#[test]
fn secret_of_a_configuration_is_never_shown() {
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
        let shown = snippet("tidegate.yaml", text, at).unwrap_or_default();
        assert!(!shown.contains("hunter2"), "{text}: {shown}");
    }
    let at = SourceRange::new(2, 3, 7);
    let shown = snippet("tidegate.yaml", "resp:\n  pasword: hunter2", at).unwrap();
    assert_eq!(shown, "  |\n2 |   pasword: …\n  |   ^^^^^^^\n");
    assert_eq!(snippet("tidegate.yaml", "resp:\n  x: hunter2", SourceRange::whole_line(2)), None);
}

#[test]
fn secret_values_in_rules_are_masked() {
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
        assert_eq!(redact::rules_line(line), shown);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_can_be_drawn(
        text in "[ a-z:{}\\[\\]'\"\t\u{1b}é日\r\n#,-]{0,200}",
        key in "(api_key|header.x|is|x)",
        line in 0u64..8, column in 0u64..250, width in 0u64..300,
    ) {
        for name in ["rules.yaml", "tidegate.yaml"] {
            let text = format!("{key}: {text}");
            let shown = snippet(name, &text, SourceRange::new(line, column, width)).unwrap_or_default();
            let raw = ['\u{1b}', '\t', '\r'];
            proptest::prop_assert!(!shown.contains(raw));
            proptest::prop_assert!(shown.is_empty() || shown.lines().count() == 3);
        }
    }
}
