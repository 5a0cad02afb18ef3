//! Reads `match`: `{path: "/v1/**", method: [GET, POST], user: {present: true}}`.

use crate::condition::{Condition, Pattern, Patterns, Test};
use crate::error::{Report, choice, quote};
use crate::nearest::did_you_mean;
use crate::network::{Networks, network};
use crate::per::check_attribute;
use crate::raw::{list, map, noted, text};
use crate::rule::Rule;
use crate::yaml::{Node, Value};

/// Reads all conditions of a `match`.
pub(crate) fn all(node: &Node<'_>, report: &mut Report) -> Option<Vec<Condition>> {
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
pub(crate) const TESTS: [&str; 4] = ["is", "in", "present", "absent"];

/// Makes a pattern of a value, in which `*` is a star or a character.
type PatternReader = fn(&str) -> Pattern;

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
            let (found, meant) = (quote(other), did_you_mean(other, TESTS));
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
    reader: PatternReader,
    report: &mut Report,
) -> Option<Test> {
    let items = alternatives(attribute, node, report)?;
    let patterns: Vec<Option<Pattern>> = items
        .iter()
        .map(|item| {
            let text = text(item, &format!("match.{attribute}"), report)?;
            if (1..=Rule::MAX_VALUE).contains(&text.len()) {
                return Some(reader(text));
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
                .map_err(|error| format!("match.{attribute}.in {error}, found {}", quote(text)));
            noted(network, item, report)
        })
        .collect();
    let networks: Option<Vec<ipnet::IpNet>> = networks.into_iter().collect();
    Some(Test::In(Networks::new(networks?)))
}

/// The values of a list, or a single value.
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
