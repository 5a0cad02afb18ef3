//! Removes secrets from source lines, because the output may end up in build logs.

use tidegate_service::config_error::SECRET_MARKS;

use crate::commands::snippet::lines;

/// Keys with secret values: `api_key: k1` in a condition of a rule, and keys of a configuration that was not
/// recognized as one.
const SECRET_KEYS: [&str; 10] = [
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

/// Returns a line of a configuration up to its `end`-th character; `None` if it may contain a secret.
pub(crate) fn config_line(text: &str, index: usize, end: usize) -> Option<String> {
    let above: Vec<&str> = lines(text).take(index + 1).collect();
    let (line, above) = above.split_last()?;
    if mentions_secret(line) {
        return None;
    }
    // The parents of the line are the lines above with less indentation, and the line directly above if it
    // continues here.
    let not_blank = above.iter().rev().filter(|line| !line.trim().is_empty());
    let mut indent = indentation(line);
    for (index, line) in not_blank.enumerate() {
        let continues =
            index == 0 && line.trim_end().ends_with([':', ',', '[', '{', '-', '|', '>']);
        if indentation(line) < indent || continues {
            if mentions_secret(line) {
                return None;
            }
            indent = indent.min(indentation(line));
        }
    }
    let mut shown: String = line.chars().take(end).collect();
    if shown.len() < line.trim_end().len() {
        // The colon shows that the error is in a key.
        let rest = line.get(shown.len()..).unwrap_or_default();
        shown.push_str(if rest.starts_with(':') { ": …" } else { " …" });
    }
    Some(shown)
}

fn indentation(line: &str) -> usize {
    line.chars().take_while(|letter| letter.is_whitespace()).count()
}

fn mentions_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    SECRET_MARKS.iter().any(|word| line.contains(word))
}

/// Returns a line of rules in which every letter and digit of a secret value is `*`.
pub(crate) fn rules_line(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((start, key)) = SECRET_KEYS
        .iter()
        .filter_map(|key| Some((find_word(rest, key)?, *key)))
        .min_by_key(|(start, _)| *start)
    {
        // `header.x-key:` ends at its colon.
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
            let masked = |letter: char| if letter.is_alphanumeric() { '*' } else { letter };
            shown.extend(rest[..length].chars().map(masked));
            rest = &rest[length..];
        }
    }
    shown + rest
}

/// Returns the start of a word that is not the end of a longer word.
fn find_word(text: &str, word: &str) -> Option<usize> {
    let found = text.match_indices(word).find(|(start, _)| {
        !text[..*start]
            .ends_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    });
    found.map(|(start, _)| start)
}

/// Returns the length of a value in bytes, including the spaces before it. A map has length 0: its own keys are masked.
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
    // The first character is a bracket or a quote, which has one byte.
    spaces + 1 + value[1..].find(ends).unwrap_or(value.len() - 1)
}
