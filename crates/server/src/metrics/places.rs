//! From the name that a decision carries to the rule it is of, without reading the name.
//!
//! Every decision shares its names with the rules, so an address tells them apart: one multiplication
//! and, nearly always, one comparison.

use std::sync::Arc;

use tidegate::Rule;

/// Where each rule stands among the rules.
#[derive(Debug)]
pub(crate) struct Places {
    /// Open addressing, at most a quarter full; an address of 0 is nobody's.
    slots: Box<[(usize, usize)]>,
    shift: u32,
    /// Kept so that no other text gets the address of one of these.
    _names: Box<[Arc<str>]>,
}

impl Places {
    pub(crate) fn of(rules: &[Rule]) -> Self {
        let names: Box<[Arc<str>]> = rules.iter().map(Rule::shared_name).collect();
        let size = (names.len().max(1) * 4).next_power_of_two();
        let mut slots = vec![(0, 0); size].into_boxed_slice();
        let shift = 64 - size.trailing_zeros();
        for (place, name) in names.iter().enumerate() {
            let mut slot = home(address(name), shift);
            while slots[slot].0 != 0 {
                slot = (slot + 1) & (size - 1);
            }
            slots[slot] = (address(name), place);
        }
        Self { slots, shift, _names: names }
    }

    /// The place of the rule whose name this is; `None` for a name of other rules, however it reads.
    #[inline]
    pub(crate) fn find(&self, name: &Arc<str>) -> Option<usize> {
        let address = address(name);
        let mut slot = home(address, self.shift);
        loop {
            match *self.slots.get(slot)? {
                (0, _) => return None,
                (found, place) if found == address => return Some(place),
                _ => slot = (slot + 1) & (self.slots.len() - 1),
            }
        }
    }
}

#[inline]
fn address(name: &Arc<str>) -> usize {
    Arc::as_ptr(name).cast::<u8>().addr()
}

#[inline]
fn home(address: usize, shift: u32) -> usize {
    // Fibonacci hashing: the upper bits of the product depend on every bit of the address.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    ((address as u64).wrapping_mul(GOLDEN) >> shift) as usize
}

#[cfg(test)]
mod tests {
    use tidegate::{Algorithm, Quota};

    use super::*;

    #[test]
    fn every_rule_is_found_by_its_own_name_and_no_copy_is() {
        let rule = |index: usize| {
            Rule::new(&format!("r{index}"), Algorithm::TokenBucket, Quota::per_second(1)).unwrap()
        };
        let rules: Vec<Rule> = (0..3_000).map(rule).collect();
        let places = Places::of(&rules);
        for (place, rule) in rules.iter().enumerate() {
            assert_eq!(places.find(&rule.shared_name()), Some(place));
            assert_eq!(places.find(&Arc::from(rule.name())), None);
        }
        assert_eq!(Places::of(&[]).find(&Arc::from("r1")), None);
    }
}
