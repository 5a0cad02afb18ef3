//! Rules that somebody wrote, and those that the server counts by itself.

use tidegate::rule::RuleError;
use tidegate::{Rule, RuleSet};

use super::{Ending, Fault, quoted, rls, throttle};

/// Most rules that an error lists.
const LISTED: usize = 10;

/// Rules that the doors count by and nobody names: for limits that come with a call.
///
/// # Errors
/// Never; they are rules like any other.
pub(crate) fn internal_rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![throttle::rule()?, rls::override_rule()?])
}

/// Whether somebody wrote this rule.
pub(crate) fn is_written(rule: &Rule) -> bool {
    ![throttle::NAME, rls::OVERRIDE].contains(&rule.name())
}

/// The rules that somebody wrote.
pub(crate) fn written(rules: &RuleSet) -> impl Iterator<Item = &Rule> + Clone {
    rules.rules().iter().filter(|rule| is_written(rule))
}

pub(crate) fn unknown_rule(name: &str, rules: &RuleSet) -> Fault {
    let names = written(rules).map(Rule::name);
    let (more, names) = (names.clone().skip(LISTED).count(), names.take(LISTED));
    let names: Vec<&str> = names.collect();
    let wanted = match more {
        0 => format!("one of {}", names.join(", ")),
        more => format!("one of {} and {more} more", names.join(", ")),
    };
    Fault { ending: Ending::UnknownRule, place: "rule".to_owned(), found: quoted(name), wanted }
}
