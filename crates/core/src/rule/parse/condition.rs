//! Reads `match`: `{path: "/v1/**", method: [GET, POST], user: {present: true}}`.

use super::super::Rule;
use super::super::condition::{Condition, Pattern, Patterns, Test};
use super::super::error::{Report, choice, quoted};
use super::super::network::{Networks, network};
use super::super::raw::{list, map, noted, text};
use super::super::yaml::{Node, Value};
use super::check_attribute;
use crate::nearest::did_you_mean;

/// Every condition of a `match`.
pub(super) fn all(node: &Node<'_>, report: &mut Report) -> Option<Vec<Condition>> {
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

/// What a condition can say beside a value or a list of them.
pub(in super::super) const TESTS: [&str; 4] = ["is", "in", "present", "absent"];

/// How a value is taken: `*` is a star in one place and a letter in the other.
type Reading = fn(&str) -> Pattern;

fn test(attribute: &str, node: &Node<'_>, report: &mut Report) -> Option<Test> {
    let entries = match &node.value {
        Value::Text(_) | Value::List(_) => {
            return patterns(attribute, node, Pattern::like, report);
        }
        Value::Map(entries) => entries.as_slice(),
        Value::Nothing => &[],
    };
    let [(name, value)] = entries else {
        report.add(
            node.at,
            format!(
                "match.{attribute} must be a value, a list of values, {{is: …}}, {{in: [network, …]}}, \
                 {{present: true}} or {{absent: true}}, found {}",
                match entries.len() {
                    0 => node.shown(),
                    many => format!("a map of {many} keys"),
                }
            ),
        );
        return None;
    };
    match &*name.text {
        "is" => patterns(attribute, value, |text| Pattern::Exact(text.into()), report),
        "in" => networks(attribute, value, report),
        "present" => presence(attribute, "present", value, report),
        "absent" => presence(attribute, "absent", value, report).map(|test| match test {
            Test::Present => Test::Absent,
            _ => Test::Present,
        }),
        other => {
            let (found, meant) = (quoted(other), did_you_mean(other, TESTS));
            let wanted = choice(TESTS);
            report.add(
                name.at,
                format!("match.{attribute} has no key {found}, wanted {wanted}{meant}"),
            );
            None
        }
    }
}

fn presence(attribute: &str, key: &str, node: &Node<'_>, report: &mut Report) -> Option<Test> {
    match node.text() {
        Some("true") => Some(Test::Present),
        Some("false") => Some(Test::Absent),
        _ => {
            report.add(
                node.at,
                format!("match.{attribute}.{key} must be true or false, found {}", node.shown()),
            );
            None
        }
    }
}

fn patterns(
    attribute: &str,
    node: &Node<'_>,
    reading: Reading,
    report: &mut Report,
) -> Option<Test> {
    let items = alternatives(attribute, node, report)?;
    let patterns: Vec<Option<Pattern>> = items
        .iter()
        .map(|item| {
            let text = text(item, &format!("match.{attribute}"), report)?;
            if (1..=Rule::MAX_VALUE).contains(&text.len()) {
                return Some(reading(text));
            }
            report.add(
                item.at,
                if text.is_empty() {
                    format!("match.{attribute} must not be empty (an empty value counts as absent, wanted {{absent: true}})")
                } else {
                    format!(
                        "match.{attribute} must be at most {} bytes long, found {}",
                        Rule::MAX_VALUE,
                        text.len()
                    )
                },
            );
            None
        })
        .collect();
    let patterns: Option<Vec<Pattern>> = patterns.into_iter().collect();
    Some(Test::OneOf(Patterns::new(patterns?)))
}

fn networks(attribute: &str, node: &Node<'_>, report: &mut Report) -> Option<Test> {
    let items = alternatives(attribute, node, report)?;
    let networks: Vec<Option<ipnet::IpNet>> = items
        .iter()
        .map(|item| {
            let text = text(item, &format!("match.{attribute}.in"), report)?;
            let network = network(text)
                .map_err(|error| format!("match.{attribute}.in {error}, found {}", quoted(text)));
            noted(network, item, report)
        })
        .collect();
    let networks: Option<Vec<ipnet::IpNet>> = networks.into_iter().collect();
    Some(Test::In(Networks::new(networks?)))
}

/// The values of a list, or the one value that stands in its place.
fn alternatives<'n>(
    attribute: &str,
    node: &'n Node<'n>,
    report: &mut Report,
) -> Option<&'n [Node<'n>]> {
    let items = match &node.value {
        Value::Text(_) => std::slice::from_ref(node),
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
