//! Which counters are whose, whatever rules come and go.
//!
//! A rule counts by a number that it keeps as long as there is a rule of its name, wherever it stands
//! among the others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tidegate_core::RuleIndex;
use tidegate_rules::RuleSet;

use super::rule_counts::NAMED;

/// The numbers of the rules of one set.
#[derive(Debug)]
pub struct CounterIds {
    /// For each rule, internal ones last.
    numbers: Box<[usize]>,
}

impl CounterIds {
    /// Returns the number of a rule.
    #[inline]
    pub fn number(&self, rule: RuleIndex) -> Option<usize> {
        self.numbers.get(rule.0).copied()
    }

    /// Returns the rule with each number.
    pub fn by_number(&self) -> HashMap<usize, RuleIndex> {
        (0..).map(RuleIndex).zip(&self.numbers).map(|(rule, number)| (*number, rule)).collect()
    }
}

/// Every number that is taken, and by whom.
#[derive(Debug, Default)]
pub(crate) struct CounterRegistry {
    numbers: HashMap<Arc<str>, usize>,
    /// Those of rules that are gone, the longest gone first.
    free: VecDeque<usize>,
    next: usize,
}

impl CounterRegistry {
    /// Gives every rule its number. `anew` is told those that had been another rule's.
    pub(crate) fn enlist(&mut self, rules: &RuleSet, mut anew: impl FnMut(usize)) -> CounterIds {
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
            // A number that was never used, as long as it has counters of its own; else the one whose
            // rule is gone the longest, so that late calls by old rules do not count for new ones.
            let spare = if self.next < NAMED { None } else { self.free.pop_front() };
            let number = spare.unwrap_or_else(|| {
                self.next += 1;
                self.next - 1
            });
            if spare.is_some() {
                anew(number);
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

    fn enlist(register: &mut CounterRegistry, names: &[&str]) -> Vec<usize> {
        let rules = rules(names.iter().map(|name| (*name).to_owned()));
        let lines = register.enlist(&rules, |number| panic!("{number} was another's"));
        (0..names.len()).map(|rule| lines.number(RuleIndex(rule)).unwrap()).collect()
    }

    #[test]
    fn a_rule_keeps_its_number_wherever_it_stands() {
        let mut register = CounterRegistry::default();
        assert_eq!(enlist(&mut register, &["a", "b"]), [0, 1]);
        assert_eq!(enlist(&mut register, &["c", "b", "a"]), [2, 1, 0]);
        assert_eq!(enlist(&mut register, &["d", "b"]), [3, 1]);
        // Whoever is gone and comes back begins anew.
        assert_eq!(enlist(&mut register, &["a", "b"]), [4, 1]);
    }

    #[test]
    fn numbers_are_used_again_before_they_run_out() {
        let mut register = CounterRegistry::default();
        let named =
            |round: usize, count: usize| (0..count).map(move |rule| format!("{round}-{rule}"));
        for round in 0..10 {
            register.enlist(&rules(named(round, 600)), |_| {});
        }
        let (last, mut anew) = (rules(named(10, 600)), Vec::new());
        let lines = register.enlist(&last, |number| anew.push(number));
        assert_eq!(anew.len(), 600);
        assert!((0..600).all(|rule| lines.number(RuleIndex(rule)).unwrap() < 2 * NAMED));
        assert_eq!(lines.by_number().len(), 600);
    }
}
