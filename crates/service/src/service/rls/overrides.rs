//! Limits that descriptors bring along.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_core::{Algorithm, Limit, Quota, QuotaError, Span};
use tidegate_rules::{Rule, RuleError};

use super::Unit;

/// The rule that counts them.
pub(crate) const OVERRIDE: &str = "rls.override";
/// What it counts by, beside the domain: the whole descriptor, and the unit.
pub(crate) const DESCRIPTOR: &str = "descriptor";
pub(crate) const UNIT: &str = "unit";

/// The rule that descriptors with a limit of their own are counted under. Nothing matches it.
///
/// A unit is part of what it counts by, so that a window is never taken for one of another length; a
/// number that changes meets the same counter.
///
/// # Errors
/// Never; it is a rule like any other.
pub(crate) fn override_rule() -> Result<Rule, RuleError> {
    Rule::new(OVERRIDE, Algorithm::FixedWindow, Quota::per_second(0))?
        .with_per("domain")?
        .with_per(UNIT)?
        .with_per(DESCRIPTOR)
}

/// The limits that were brought along lately, so that those who bring the same share one.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    known: RwLock<HashMap<(u32, Unit), Arc<Limit>>>,
}

impl Overrides {
    /// Most limits that are kept. Whoever sends more of them makes its own each time.
    const MOST: usize = 1_024;

    /// # Errors
    /// The unit is no window.
    pub(crate) fn limit(&self, amount: u32, unit: Unit) -> Result<Arc<Limit>, QuotaError> {
        if let Some(limit) = self.known.read().get(&(amount, unit)) {
            return Ok(Arc::clone(limit));
        }
        let window = unit.window().unwrap_or(Span::ZERO);
        let quota = Quota::per(u64::from(amount), window);
        let limit = Arc::new(Limit::new(Algorithm::FixedWindow, quota)?);
        let mut known = self.known.write();
        if known.len() < Self::MOST {
            known.insert((amount, unit), Arc::clone(&limit));
        }
        Ok(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_does_not_grow_with_the_limits_that_callers_bring() {
        let overrides = Overrides::default();
        for amount in 0..5_000 {
            let limit = overrides.limit(amount, Unit::Hour).unwrap();
            assert_eq!(limit.quota(), &Quota::per_hour(u64::from(amount)));
        }
        assert_eq!(overrides.known.read().len(), Overrides::MOST);
        let (first, again) = (overrides.limit(7, Unit::Hour), overrides.limit(7, Unit::Hour));
        assert!(Arc::ptr_eq(&first.unwrap(), &again.unwrap()));
    }
}
