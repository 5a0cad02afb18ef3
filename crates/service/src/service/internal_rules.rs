//! Internal rules: they count the limits that callers send, and no document contains them.

use tidegate_core::{CallError, CallStatus, quote};
use tidegate_rules::{Rule, RuleError, RuleSet};

use crate::service::{rls, throttle};

/// Most rule names that an error lists.
const MAX_LISTED_NAMES: usize = 10;

/// Returns the rules that count the limits of calls (`CL.THROTTLE`, Envoy's `limit` of a descriptor).
///
/// # Errors
/// None: the rules are valid.
pub fn internal_rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![throttle::rule()?, rls::override_rule()?])
}

/// Returns the error of a call that names an unknown rule. It lists the first known names.
pub fn unknown_rule(name: &str, rules: &RuleSet) -> CallError {
    let names = rules.rules().iter().map(Rule::name);
    let (more, names) =
        (names.clone().skip(MAX_LISTED_NAMES).count(), names.take(MAX_LISTED_NAMES));
    let names: Vec<&str> = names.collect();
    let wanted = match more {
        0 => format!("one of {}", names.join(", ")),
        more => format!("one of {} and {more} more", names.join(", ")),
    };
    CallError {
        status: CallStatus::UnknownRule,
        reason: None,
        path: "rule".to_owned(),
        found: quote(name),
        wanted,
    }
}
