//! Reads `match`: `{path: "/v1/**", method: [GET, POST], user: {present: true}}`.

use crate::condition::{Condition, ValuePattern, ValuePatterns, ValueTest};
use crate::error::{ErrorReport, choice, quote};
use crate::ignored::IgnoredDifferences;
use crate::nearest::did_you_mean;
use crate::network::{NetworkSet, parse_network};
use crate::per::check_attribute;
use crate::raw::{list, map, or_report, text};
use crate::rule::Rule;
use crate::yaml::{YamlNode, YamlValue};

/// Reads all conditions of a `match`.
pub(crate) fn all(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Vec<Condition>> {
    let entries = map(node, "match", report)?;
    if entries.len() > Rule::MAX_CONDITIONS {
        let (most, found) = (Rule::MAX_CONDITIONS, entries.len());
        report.add(node.at, format!("match must have at most {most} conditions, found {found}"));
        return None;
    }
    let conditions: Vec<Option<Condition>> = entries
        .iter()
        .map(|(name, node)| {
            let attribute =
                check_attribute(&name.text).map_err(|error| report.add(name.at, error)).ok();
            let test = test(&name.text, node, report);
            attribute?;
            Some(Condition::new(&name.text, test?))
        })
        .collect();
    conditions.into_iter().collect()
}

/// The keys of a condition that is neither a value nor a list of values.
pub(crate) const TEST_KEYS: [&str; 5] = ["like", "is", "in", "present", "absent"];

/// The key beside `like` or `is` with the differences that they ignore.
pub(crate) const IGNORE_KEY: &str = "ignore";

/// A function that converts a value to a pattern, with `*` as a wildcard or as a character.
type PatternReader = fn(&str) -> ValuePattern;

fn test(attribute: &str, node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<ValueTest> {
    let entries = match &node.value {
        YamlValue::Text(_) | YamlValue::List(_) => {
            return patterns(attribute, node, ValuePattern::like, IgnoredDifferences::NONE, report);
        }
        YamlValue::Map(entries) => entries.as_slice(),
        YamlValue::Nothing => &[],
    };
    let ((name, value), ignore) = match entries {
        [(key, ignore), test] | [test, (key, ignore)] if key.text == IGNORE_KEY => {
            (test, Some((key, ignore)))
        }
        [test] => (test, None),
        _ => {
            report.add(
            node.at,
            format!(
                "match.{attribute} must be a value, a list of values, {{like: …}}, {{is: …}}, {{in: [network, …]}}, \
                 {{present: true}} or {{absent: true}}, found {}",
                match entries.len() {
                    0 => node.describe(),
                    many => format!("a map of {many} keys"),
                }
            ),
        );
            return None;
        }
    };
    let ignored = match ignore {
        None => IgnoredDifferences::NONE,
        Some((_, ignore)) if matches!(&*name.text, "like" | "is") => {
            ignored_differences(attribute, ignore, report)?
        }
        Some((key, _)) => {
            let found = quote(&name.text);
            report.add(
                key.at,
                format!(
                    "match.{attribute}.ignore must be beside like or is, found it beside {found}"
                ),
            );
            return None;
        }
    };
    match &*name.text {
        "like" => patterns(attribute, value, ValuePattern::like, ignored, report),
        "is" => {
            patterns(attribute, value, |text| ValuePattern::Exact(text.into()), ignored, report)
        }
        "in" => networks(attribute, value, report),
        "present" => presence(attribute, "present", value, report),
        "absent" => presence(attribute, "absent", value, report).map(|test| match test {
            ValueTest::Present => ValueTest::Absent,
            _ => ValueTest::Present,
        }),
        other => {
            let (found, meant) = (quote(other), did_you_mean(other, TEST_KEYS));
            let wanted = choice(TEST_KEYS);
            report.add(
                name.at,
                format!("match.{attribute} has no key {found}, wanted {wanted}{meant}"),
            );
            None
        }
    }
}

/// Reads `ignore`: `case`, `trailing_slash`, or a list of them.
fn ignored_differences(
    attribute: &str,
    node: &YamlNode<'_>,
    report: &mut ErrorReport,
) -> Option<IgnoredDifferences> {
    let place = format!("match.{attribute}.{IGNORE_KEY}");
    let words = match &node.value {
        YamlValue::Text(_) => std::slice::from_ref(node),
        _ => list(node, &place, IgnoredDifferences::NAMES.len(), report)?,
    };
    let mut ignored = IgnoredDifferences::NONE;
    for word in words {
        match text(word, &place, report)? {
            "case" => ignored.case = true,
            "trailing_slash" => ignored.trailing_slash = true,
            other => {
                let (found, names) = (quote(other), IgnoredDifferences::NAMES);
                let (wanted, meant) = (choice(names), did_you_mean(other, names));
                report.add(word.at, format!("{place} must be {wanted}, found {found}{meant}"));
                return None;
            }
        }
    }
    Some(ignored)
}

fn presence(
    attribute: &str,
    key: &str,
    node: &YamlNode<'_>,
    report: &mut ErrorReport,
) -> Option<ValueTest> {
    match node.text() {
        Some("true") => Some(ValueTest::Present),
        Some("false") => Some(ValueTest::Absent),
        _ => {
            report.add(
                node.at,
                format!("match.{attribute}.{key} must be true or false, found {}", node.describe()),
            );
            None
        }
    }
}

fn patterns(
    attribute: &str,
    node: &YamlNode<'_>,
    reader: PatternReader,
    ignored: IgnoredDifferences,
    report: &mut ErrorReport,
) -> Option<ValueTest> {
    let items = alternatives(attribute, node, report)?;
    let patterns: Vec<Option<ValuePattern>> = items
        .iter()
        .map(|item| {
            let text = text(item, &format!("match.{attribute}"), report)?;
            if (1..=Rule::MAX_VALUE_BYTES).contains(&text.len()) {
                return Some(reader(text));
            }
            report.add(
                item.at,
                if text.is_empty() {
                    format!("match.{attribute} must not be empty (an empty value counts as absent, wanted {{absent: true}})")
                } else {
                    format!(
                        "match.{attribute} must be at most {} bytes long, found {}",
                        Rule::MAX_VALUE_BYTES,
                        text.len()
                    )
                },
            );
            None
        })
        .collect();
    let patterns: Option<Vec<ValuePattern>> = patterns.into_iter().collect();
    Some(ValueTest::OneOf(ValuePatterns::ignoring(patterns?, ignored)))
}

fn networks(attribute: &str, node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<ValueTest> {
    let items = alternatives(attribute, node, report)?;
    let networks: Vec<Option<ipnet::IpNet>> = items
        .iter()
        .map(|item| {
            let text = text(item, &format!("match.{attribute}.in"), report)?;
            let network = parse_network(text)
                .map_err(|error| format!("match.{attribute}.in {error}, found {}", quote(text)));
            or_report(network, item, report)
        })
        .collect();
    let networks: Option<Vec<ipnet::IpNet>> = networks.into_iter().collect();
    Some(ValueTest::In(NetworkSet::new(networks?)))
}

/// Returns the values of a list, or a single value.
fn alternatives<'n>(
    attribute: &str,
    node: &'n YamlNode<'n>,
    report: &mut ErrorReport,
) -> Option<&'n [YamlNode<'n>]> {
    let items = match &node.value {
        YamlValue::Text(_) => std::slice::from_ref(node),
        _ => list(node, &format!("match.{attribute}"), Rule::MAX_ALTERNATIVES, report)?,
    };
    if items.is_empty() {
        report.add(
            node.at,
            format!("match.{attribute} must have at least one value, found an empty list"),
        );
        return None;
    }
    Some(items)
}
