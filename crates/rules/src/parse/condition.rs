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
    let conditions: Vec<Option<Vec<Condition>>> = entries
        .iter()
        .map(|(name, node)| {
            let attribute =
                check_attribute(&name.text).map_err(|error| report.add(name.at, error)).ok();
            let tests = tests(&name.text, node, report);
            attribute?;
            Some(tests?.into_iter().map(|test| Condition::new(&name.text, test)).collect())
        })
        .collect();
    let conditions: Option<Vec<Vec<Condition>>> = conditions.into_iter().collect();
    Some(conditions?.into_iter().flatten().collect())
}

/// The keys of a condition that is neither a value nor a list of values. Each condition has one of them.
pub(crate) const TEST_KEYS: [&str; 5] = ["like", "is", "in", "present", "absent"];

/// The key with values that do not match, alone or beside one of [`TEST_KEYS`].
pub(crate) const NOT_KEY: &str = "not";

/// The keys of [`NOT_KEY`] if it is neither a value nor a list of values.
pub(crate) const NEGATED_KEYS: [&str; 3] = ["like", "is", "in"];

/// The key with the differences that the values of a condition ignore.
pub(crate) const IGNORE_KEY: &str = "ignore";

/// A function that converts a value to a pattern, with `*` as a wildcard or as a character.
type PatternReader = fn(&str) -> ValuePattern;

/// Reads the condition of one attribute, which is one test or two: `{like: "/v1/**", not: /v1/healthz}`.
fn tests(attribute: &str, node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Vec<ValueTest>> {
    let entries = match &node.value {
        YamlValue::Text(_) | YamlValue::List(_) => {
            let ignored = IgnoredDifferences::NONE;
            return Some(vec![value_test(attribute, "like", node, ignored, report)?]);
        }
        YamlValue::Map(entries) => entries.as_slice(),
        YamlValue::Nothing => &[],
    };
    let known = || TEST_KEYS.into_iter().chain([NOT_KEY, IGNORE_KEY]);
    for (name, _) in entries {
        if !known().any(|key| key == name.text) {
            let (found, wanted) = (quote(&name.text), choice(known()));
            let meant = did_you_mean(&name.text, known());
            report.add(
                name.at,
                format!("match.{attribute} has no key {found}, wanted {wanted}{meant}"),
            );
            return None;
        }
    }
    let entry = |key: &str| entries.iter().find(|(name, _)| name.text == key);
    let (negated, ignore) = (entry(NOT_KEY), entry(IGNORE_KEY));
    let mut positive =
        entries.iter().filter(|(name, _)| name.text != NOT_KEY && name.text != IGNORE_KEY);
    let test = positive.next();
    if positive.next().is_some() || (test.is_none() && negated.is_none()) {
        report.add(
            node.at,
            format!(
                "match.{attribute} must be a value, a list of values, {{like: …}}, {{is: …}}, {{in: [network, …]}}, \
                 {{present: true}}, {{absent: true}} or {{not: …}}, found {}",
                match entries {
                    [] => node.describe(),
                    [_] => format!("only {IGNORE_KEY}"),
                    many => format!("a map of {} keys", many.len()),
                }
            ),
        );
        return None;
    }
    let ignored = match ignore {
        Some((_, node)) => ignored_differences(attribute, node, report)?,
        None => IgnoredDifferences::NONE,
    };
    let test = test.map(|(name, value)| value_test(attribute, &name.text, value, ignored, report));
    let negated = negated.map(|(_, value)| negated_test(attribute, value, ignored, report));
    let tests: Vec<ValueTest> = test.into_iter().chain(negated).collect::<Option<_>>()?;
    let has_patterns = |test: &ValueTest| match test {
        ValueTest::Not(test) => matches!(**test, ValueTest::OneOf(_)),
        test => matches!(test, ValueTest::OneOf(_)),
    };
    if let Some((key, _)) = ignore.filter(|_| !tests.iter().any(has_patterns)) {
        let message = "must be beside values or patterns in like, is or not, found none";
        report.add(key.at, format!("match.{attribute}.{IGNORE_KEY} {message}"));
        return None;
    }
    Some(tests)
}

/// Reads the value of one of [`TEST_KEYS`].
fn value_test(
    attribute: &str,
    key: &str,
    value: &YamlNode<'_>,
    ignored: IgnoredDifferences,
    report: &mut ErrorReport,
) -> Option<ValueTest> {
    match key {
        "like" => patterns(attribute, value, ValuePattern::like, ignored, report),
        "is" => {
            patterns(attribute, value, |text| ValuePattern::Exact(text.into()), ignored, report)
        }
        "in" => networks(attribute, value, report),
        "present" => presence(attribute, key, value, report),
        _ => presence(attribute, key, value, report).map(ValueTest::negated),
    }
}

/// Reads `not`: a value, a list of values, or a map with one of [`NEGATED_KEYS`].
fn negated_test(
    attribute: &str,
    node: &YamlNode<'_>,
    ignored: IgnoredDifferences,
    report: &mut ErrorReport,
) -> Option<ValueTest> {
    let (key, value) = match &node.value {
        YamlValue::Text(_) | YamlValue::List(_) => ("like", node),
        YamlValue::Map(entries) => match entries.as_slice() {
            [(name, value)] if NEGATED_KEYS.contains(&&*name.text) => (&*name.text, value),
            _ => ("", node),
        },
        YamlValue::Nothing => ("", node),
    };
    if key.is_empty() {
        report.add(
            node.at,
            format!(
                "match.{attribute}.{NOT_KEY} must be a value, a list of values, {{like: …}}, {{is: …}} or \
                 {{in: [network, …]}}, found {}",
                node.describe()
            ),
        );
        return None;
    }
    value_test(attribute, key, value, ignored, report).map(ValueTest::negated)
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
