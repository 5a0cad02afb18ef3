//! Rules that the server counts by itself.

use tidegate_core::{CallError, CallStatus, quote};
use tidegate_rules::{Rule, RuleError, RuleSet};

use crate::service::{rls, throttle};

/// Most rules that an error lists.
const LISTED: usize = 10;

/// Returns the rules for limits that come with a call. No document has them.
///
/// # Errors
/// Never; they are rules like any other.
pub fn internal_rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![throttle::rule()?, rls::override_rule()?])
}

/// Returns the error of a call that names a rule which does not exist, with the nearest name.
pub fn unknown_rule(name: &str, rules: &RuleSet) -> CallError {
    let names = rules.rules().iter().map(Rule::name);
    let (more, names) = (names.clone().skip(LISTED).count(), names.take(LISTED));
    let names: Vec<&str> = names.collect();
    let wanted = match more {
        0 => format!("one of {}", names.join(", ")),
        more => format!("one of {} and {more} more", names.join(", ")),
    };
    CallError {
        status: CallStatus::UnknownRule,
        path: "rule".to_owned(),
        found: quote(name),
        wanted,
    }
}
