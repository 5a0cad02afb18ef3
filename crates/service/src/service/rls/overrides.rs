//! Limits that are part of a descriptor.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tidegate_core::{Algorithm, Limit, Quota, QuotaError, Span};
use tidegate_rules::{Rule, RuleError};

use super::Unit;

/// The name of the internal rule that counts them.
pub(crate) const OVERRIDE_RULE: &str = "rls.override";
/// The attribute with the canonical text of the descriptor. The rule counts by it, by the unit and by the domain.
pub(crate) const DESCRIPTOR_ATTRIBUTE: &str = "descriptor";
pub(crate) const UNIT_ATTRIBUTE: &str = "unit";

/// Returns the internal rule of descriptors with a limit. No request matches it.
///
/// The unit is part of the key, so windows of different lengths have different counters. An amount that changes keeps
/// the counter.
///
/// # Errors
/// None: the rule is valid.
pub(crate) fn override_rule() -> Result<Rule, RuleError> {
    Rule::new(OVERRIDE_RULE, Algorithm::FixedWindow, Quota::per_second(0))?
        .with_per("domain")?
        .with_per(UNIT_ATTRIBUTE)?
        .with_per(DESCRIPTOR_ATTRIBUTE)
}

/// A cache of the limits in descriptors. Descriptors with the same limit share one.
#[derive(Debug, Default)]
pub(crate) struct OverrideLimits {
    cached: RwLock<HashMap<(u32, Unit), Arc<Limit>>>,
}

impl OverrideLimits {
    /// Most cached limits. Further ones are computed for each call.
    const MAX_CACHED: usize = 1_024;

    /// Returns the limit of `amount` per `unit`.
    ///
    /// # Errors
    /// The unit has no window.
    pub(crate) fn limit(&self, amount: u32, unit: Unit) -> Result<Arc<Limit>, QuotaError> {
        if let Some(limit) = self.cached.read().get(&(amount, unit)) {
            return Ok(Arc::clone(limit));
        }
        let window = unit.window().unwrap_or(Span::ZERO);
        let quota = Quota::per(u64::from(amount), window);
        let limit = Arc::new(Limit::new(Algorithm::FixedWindow, quota)?);
        let mut cached = self.cached.write();
        if cached.len() < Self::MAX_CACHED {
            cached.insert((amount, unit), Arc::clone(&limit));
        }
        Ok(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_of_limits_is_bounded() {
        let overrides = OverrideLimits::default();
        for amount in 0..5_000 {
            let limit = overrides.limit(amount, Unit::Hour).unwrap();
            assert_eq!(limit.quota(), &Quota::per_hour(u64::from(amount)));
        }
        assert_eq!(overrides.cached.read().len(), OverrideLimits::MAX_CACHED);
        let (first, again) = (overrides.limit(7, Unit::Hour), overrides.limit(7, Unit::Hour));
        assert!(Arc::ptr_eq(&first.unwrap(), &again.unwrap()));
    }
}
