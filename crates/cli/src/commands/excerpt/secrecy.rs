//! What of a line may be shown to whoever reads the output of a build.

use tidegate_service::config_error::SECRET_MARKS;

use crate::commands::excerpt::lines;

/// Keys whose values are secrets: `api_key: k1` in a condition of a rule, and those of a configuration that
/// was not known for one.
const KEYS: [&str; 10] = [
    "api_key:",
    "session:",
    "bearer:",
    "cookie.",
    "header.",
    "is:",
    "password:",
    "secret:",
    "token:",
    "url:",
];

/// A line of a configuration up to its `end`-th character; nothing if a secret may stand in it.
pub(crate) fn of_config(text: &str, place: usize, end: usize) -> Option<String> {
    let above: Vec<&str> = lines(text).take(place + 1).collect();
    let (line, above) = above.split_last()?;
    if is_secretive(line) {
        return None;
    }
    // What the line belongs to: every line above that stands further left, and the one right above
    // if it goes on here.
    let written = above.iter().rev().filter(|line| !line.trim().is_empty());
    let mut indent = indented(line);
    for (index, line) in written.enumerate() {
        let goes_on = index == 0 && line.trim_end().ends_with([':', ',', '[', '{', '-', '|', '>']);
        if indented(line) < indent || goes_on {
            if is_secretive(line) {
                return None;
            }
            indent = indent.min(indented(line));
        }
    }
    let mut shown: String = line.chars().take(end).collect();
    if shown.len() < line.trim_end().len() {
        // The colon says that it was a key.
        let rest = line.get(shown.len()..).unwrap_or_default();
        shown.push_str(if rest.starts_with(':') { ": …" } else { " …" });
    }
    Some(shown)
}

fn indented(line: &str) -> usize {
    line.chars().take_while(|letter| letter.is_whitespace()).count()
}

fn is_secretive(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    SECRET_MARKS.iter().any(|word| line.contains(word))
}

/// A line of rules in which each secret value is crossed out, letter by letter.
pub(crate) fn of_rules(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((start, key)) = KEYS
        .iter()
        .filter_map(|key| Some((find_word(rest, key)?, *key)))
        .min_by_key(|(start, _)| *start)
    {
        // `header.x-key:` goes on to its colon.
        let after = start + key.len();
        let colon = if key.ends_with(':') {
            Some(after)
        } else {
            let name =
                rest[after..].find(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_');
            name.filter(|end| rest[after + end..].starts_with(':')).map(|end| after + end + 1)
        };
        let value = colon.unwrap_or(after);
        shown.push_str(&rest[..value]);
        rest = &rest[value..];
        if colon.is_some() {
            let length = value_length(rest);
            let crossed = |letter: char| if letter.is_alphanumeric() { '*' } else { letter };
            shown.extend(rest[..length].chars().map(crossed));
            rest = &rest[length..];
        }
    }
    shown + rest
}

/// Where a word begins that does not stand at the end of a longer one.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let found = text.match_indices(word).find(|(start, _)| {
        !text[..*start]
            .ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    });
    found.map(|(start, _)| start)
}

/// How long a value is, the spaces before it among it. A map has its own keys.
fn value_length(text: &str) -> usize {
    let value = text.trim_start();
    let spaces = text.len() - value.len();
    let ends: &[char] = match value.chars().next() {
        Some('{') => return 0,
        Some('[') => &[']'],
        Some('"') => &['"'],
        Some('\'') => &['\''],
        _ => return spaces + value.find([',', '}', '#']).unwrap_or(value.len()),
    };
    // The first character is a bracket or a quote, of one byte.
    spaces + 1 + value[1..].find(ends).unwrap_or(value.len() - 1)
}
