//! The counters of each rule, stable across changes of the rules.
//!
//! A rule has a number that selects its counters. It keeps the number as long as the active rules contain a rule of that
//! name, at any position.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tidegate_core::RuleIndex;
use tidegate_rules::RuleSet;

use super::rule_counts::MAX_NAMED_RULES;

/// The numbers of the rules of one set.
#[derive(Debug)]
pub struct CounterIds {
    /// The number of each rule, internal rules last.
    numbers: Box<[usize]>,
}

impl CounterIds {
    /// Returns the number of a rule.
    #[inline]
    pub fn number(&self, rule: RuleIndex) -> Option<usize> {
        self.numbers.get(rule.0).copied()
    }

    /// Returns the rule of each number.
    pub fn by_number(&self) -> HashMap<usize, RuleIndex> {
        (0..).map(RuleIndex).zip(&self.numbers).map(|(rule, number)| (*number, rule)).collect()
    }
}

/// The numbers in use, by the name of the rule.
#[derive(Debug, Default)]
pub(crate) struct CounterRegistry {
    numbers: HashMap<Arc<str>, usize>,
    /// Numbers of removed rules, the one removed first in front.
    free: VecDeque<usize>,
    next: usize,
}

impl CounterRegistry {
    /// Returns the numbers of rules, and assigns those of new rules. `on_reuse` is called with each number that another
    /// rule had before.
    pub(crate) fn register_rules(
        &mut self,
        rules: &RuleSet,
        mut on_reuse: impl FnMut(usize),
    ) -> CounterIds {
        let names: HashSet<&str> = rules.all().map(|(_, rule)| rule.name()).collect();
        let free = &mut self.free;
        self.numbers.retain(|name, number| {
            let stays = names.contains(&**name);
            if !stays {
                free.push_back(*number);
            }
            stays
        });
        let numbers = rules.all().map(|(_, rule)| {
            if let Some(number) = self.numbers.get(rule.name()) {
                return *number;
            }
            // Unused numbers are assigned first, as long as they have counters of their own. Then the number of the
            // rule that was removed first: calls that still run under old rules are least likely to count for it.
            let spare = if self.next < MAX_NAMED_RULES { None } else { self.free.pop_front() };
            let number = spare.unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            if spare.is_some() {
                on_reuse(number);
            }
            self.numbers.insert(rule.shared_name(), number);
            number
        });
        CounterIds { numbers: numbers.collect() }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Quota};
    use tidegate_rules::Rule;

    use super::*;

    fn rules(names: impl IntoIterator<Item = String>) -> RuleSet {
        let rule = |name: String| Rule::new(&name, Algorithm::TokenBucket, Quota::per_second(1));
        RuleSet::new(names.into_iter().map(|name| rule(name).unwrap()).collect()).unwrap()
    }

    fn numbers(registry: &mut CounterRegistry, names: &[&str]) -> Vec<usize> {
        let rules = rules(names.iter().map(|name| (*name).to_owned()));
        let ids = registry.register_rules(&rules, |number| panic!("{number} is reused"));
        (0..names.len()).map(|rule| ids.number(RuleIndex(rule)).unwrap()).collect()
    }

    #[test]
    fn rule_keeps_its_number_at_any_position() {
        let mut registry = CounterRegistry::default();
        assert_eq!(numbers(&mut registry, &["a", "b"]), [0, 1]);
        assert_eq!(numbers(&mut registry, &["c", "b", "a"]), [2, 1, 0]);
        assert_eq!(numbers(&mut registry, &["d", "b"]), [3, 1]);
        // A rule that was removed and added again has a new number.
        assert_eq!(numbers(&mut registry, &["a", "b"]), [4, 1]);
    }

    #[test]
    fn numbers_of_removed_rules_are_reused() {
        let mut registry = CounterRegistry::default();
        let named =
            |round: usize, count: usize| (0..count).map(move |rule| format!("{round}-{rule}"));
        for round in 0..10 {
            registry.register_rules(&rules(named(round, 600)), |_| {});
        }
        let (last, mut reused) = (rules(named(10, 600)), Vec::new());
        let ids = registry.register_rules(&last, |number| reused.push(number));
        assert_eq!(reused.len(), 600);
        assert!((0..600).all(|rule| ids.number(RuleIndex(rule)).unwrap() < 2 * MAX_NAMED_RULES));
        assert_eq!(ids.by_number().len(), 600);
    }
}
