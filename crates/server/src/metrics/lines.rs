//! Which counters are whose, whatever rules come and go.
//!
//! A rule counts by a number that it keeps as long as there is a rule of its name, wherever it stands
//! among the others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tidegate::Rule;

use super::places::Places;
use super::rules::NAMED;

/// The numbers of the rules of one set.
#[derive(Debug)]
pub(crate) struct Lines {
    places: Places,
    numbers: Box<[usize]>,
}

impl Lines {
    /// Where the rule stands whose name a decision carries.
    #[inline]
    pub(crate) fn place(&self, name: &Arc<str>) -> Option<usize> {
        self.places.find(name)
    }

    /// The number of the rule at a place.
    #[inline]
    pub(crate) fn number(&self, place: usize) -> Option<usize> {
        self.numbers.get(place).copied()
    }

    /// Where the rule with each number stands.
    pub(crate) fn by_number(&self) -> HashMap<usize, usize> {
        self.numbers.iter().enumerate().map(|(place, number)| (*number, place)).collect()
    }
}

/// Every number that is taken, and by whom.
#[derive(Debug, Default)]
pub(super) struct Register {
    numbers: HashMap<Arc<str>, usize>,
    /// Those of rules that are gone, the longest gone first.
    free: VecDeque<usize>,
    next: usize,
}

impl Register {
    /// Gives every rule its number. `anew` is told those that had been another rule's.
    pub(super) fn enlist(&mut self, rules: &[Rule], mut anew: impl FnMut(usize)) -> Lines {
        let names: HashSet<&str> = rules.iter().map(Rule::name).collect();
        let free = &mut self.free;
        self.numbers.retain(|name, number| {
            let stays = names.contains(&**name);
            if !stays {
                free.push_back(*number);
            }
            stays
        });
        let numbers = rules.iter().map(|rule| {
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
        let numbers = numbers.collect();
        Lines { places: Places::of(rules), numbers }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{Algorithm, Quota};

    use super::*;

    fn rules(names: impl IntoIterator<Item = String>) -> Vec<Rule> {
        let rule = |name: String| Rule::new(&name, Algorithm::TokenBucket, Quota::per_second(1));
        names.into_iter().map(|name| rule(name).unwrap()).collect()
    }

    fn enlist(register: &mut Register, names: &[&str]) -> Vec<usize> {
        let rules = rules(names.iter().map(|name| (*name).to_owned()));
        let lines = register.enlist(&rules, |number| panic!("{number} was another's"));
        (0..names.len()).map(|place| lines.number(place).unwrap()).collect()
    }

    #[test]
    fn a_rule_keeps_its_number_wherever_it_stands() {
        let mut register = Register::default();
        assert_eq!(enlist(&mut register, &["a", "b"]), [0, 1]);
        assert_eq!(enlist(&mut register, &["c", "b", "a"]), [2, 1, 0]);
        assert_eq!(enlist(&mut register, &["d", "b"]), [3, 1]);
        // Whoever is gone and comes back begins anew.
        assert_eq!(enlist(&mut register, &["a", "b"]), [4, 1]);
    }

    #[test]
    fn numbers_are_used_again_before_they_run_out() {
        let mut register = Register::default();
        let named =
            |round: usize, count: usize| (0..count).map(move |rule| format!("{round}-{rule}"));
        for round in 0..10 {
            register.enlist(&rules(named(round, 600)), |_| {});
        }
        let (last, mut anew) = (rules(named(10, 600)), Vec::new());
        let lines = register.enlist(&last, |number| anew.push(number));
        assert_eq!(anew.len(), 600);
        assert!((0..600).all(|place| lines.number(place).unwrap() < 2 * NAMED));
        assert_eq!(lines.by_number().len(), 600);
    }
}
