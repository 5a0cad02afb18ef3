//! Visits every reachable state, in breadth-first order.

use core::fmt::{self, Display};

/// A system of states and steps.
pub trait StateSpace {
    /// A state.
    type State: Clone;
    /// A step from one state to the next.
    type Step: Clone + Display;

    /// Returns the initial state.
    fn first(&self) -> Self::State;

    /// Appends every possible step with the state after it.
    fn steps(&self, state: &Self::State, next: &mut Vec<(Self::Step, Self::State)>);

    /// Writes bytes that are equal for equal states only.
    fn write(&self, state: &Self::State, out: &mut Vec<u8>);

    /// Returns the invariant that this state violates.
    fn violation(&self, state: &Self::State) -> Option<&'static str>;

    /// Returns whether this is a goal state. An exploration without one proves nothing.
    fn reaches_goal(&self, state: &Self::State) -> bool;
}

/// The result of an exploration.
#[derive(Debug)]
pub struct Exploration<S> {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// The maximum length of a shortest path to a state.
    pub depth: usize,
    /// True if all reachable states were visited.
    pub complete: bool,
    /// True if a goal state was reached.
    pub reaches_goal: bool,
    /// The violated invariant, with a shortest trace.
    pub violation: Option<(&'static str, Vec<S>)>,
}

impl<S: Display> Display for Exploration<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, depth, .. } = self;
        let all = if self.complete { "all " } else { "" };
        write!(f, "{all}{states} states, {steps} steps, depth {depth}")?;
        if let Some((invariant, trace)) = &self.violation {
            write!(f, "\n  violated: {invariant}")?;
            for (at, step) in trace.iter().enumerate() {
                write!(f, "\n  {:>3}  {step}", at + 1)?;
            }
        }
        Ok(())
    }
}

/// Explores until an invariant is violated, all states are visited, or `most` of them.
///
/// States are compared in full, not by a hash.
pub fn explore<W: StateSpace>(world: &W, most: usize) -> Exploration<W::Step> {
    let mut visited = VisitedStates::default();
    let mut origins: Vec<(u32, W::Step)> = Vec::new();
    let mut layer = vec![(0_u32, world.first())];
    let (mut bytes, mut next, mut later) = (Vec::new(), Vec::new(), Vec::new());
    world.write(&layer[0].1, &mut bytes);
    visited.insert(&bytes);
    let mut result = Exploration {
        states: 1,
        steps: 0,
        depth: 0,
        complete: false,
        reaches_goal: false,
        violation: None,
    };
    while !layer.is_empty() {
        for (index, state) in layer.drain(..) {
            world.steps(&state, &mut next);
            for (step, state) in next.drain(..) {
                result.steps += 1;
                bytes.clear();
                world.write(&state, &mut bytes);
                let Some(new) = visited.insert(&bytes) else { continue };
                origins.push((index, step));
                result.states += 1;
                result.reaches_goal |= world.reaches_goal(&state);
                if let Some(invariant) = world.violation(&state) {
                    result.depth += 1;
                    result.violation = Some((invariant, trace(&origins, new)));
                    return result;
                }
                later.push((new, state));
            }
            if result.states >= most {
                return result;
            }
        }
        result.depth += usize::from(!later.is_empty());
        core::mem::swap(&mut layer, &mut later);
    }
    result.complete = true;
    result
}

/// Returns the steps to a state. `origins` contains, for each state but the first, its predecessor and the step.
fn trace<S: Clone>(origins: &[(u32, S)], mut index: u32) -> Vec<S> {
    let mut steps = Vec::new();
    while let Some((from, step)) = (index as usize).checked_sub(1).map(|at| &origins[at]) {
        steps.push(step.clone());
        index = *from;
    }
    steps.reverse();
    steps
}

/// A set of byte strings, numbered in the order of insertion.
#[derive(Default)]
struct VisitedStates {
    /// All strings, concatenated, and the end of each.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// A hash table of numbers plus one; 0 is a free slot. Less than half is in use.
    slots: Vec<u32>,
}

impl VisitedStates {
    /// Inserts a string. Returns its number, or `None` if the set contains it.
    fn insert(&mut self, string: &[u8]) -> Option<u32> {
        if self.ends.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let at = self.free_slot(string)?;
        let number = u32::try_from(self.ends.len()).ok()?;
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
        self.slots[at] = number + 1;
        Some(number)
    }

    /// Returns the free slot for a string, or `None` if the set contains it.
    fn free_slot(&self, string: &[u8]) -> Option<usize> {
        let mask = self.slots.len() - 1;
        let mut at = hash(string) & mask;
        while self.slots[at] != 0 {
            if self.string(self.slots[at] as usize - 1) == string {
                return None;
            }
            at = (at + 1) & mask;
        }
        Some(at)
    }

    fn string(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    fn grow(&mut self) {
        self.slots = vec![0; (self.slots.len() * 2).max(1024)];
        for number in 0..self.ends.len() {
            if let Some(at) = self.free_slot(self.string(number)) {
                self.slots[at] = number as u32 + 1;
            }
        }
    }
}

fn hash(string: &[u8]) -> usize {
    let mut hash = 0x9e37_79b9_7f4a_7c15_u64;
    for chunk in string.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 32;
    }
    hash as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_is_inserted_once() {
        let mut visited = VisitedStates::default();
        let string = |number: u32| number.to_string().into_bytes();
        assert!((0..10_000).all(|number| visited.insert(&string(number)) == Some(number)));
        assert!((0..10_000).all(|number| visited.insert(&string(number)).is_none()));
    }

    /// A state space that counts to ten in ones and threes.
    struct CountToTen;

    impl StateSpace for CountToTen {
        type State = u8;
        type Step = u8;

        fn first(&self) -> u8 {
            0
        }

        fn steps(&self, state: &u8, next: &mut Vec<(u8, u8)>) {
            next.extend([1, 3].map(|step| (step, state + step)).iter().filter(|next| next.1 <= 10));
        }

        fn write(&self, state: &u8, out: &mut Vec<u8>) {
            out.push(*state);
        }

        fn violation(&self, state: &u8) -> Option<&'static str> {
            (*state == 7).then_some("seven is never reached")
        }

        fn reaches_goal(&self, state: &u8) -> bool {
            *state == 3
        }
    }

    #[test]
    fn violation_has_a_shortest_trace() {
        let explored = explore(&CountToTen, usize::MAX);
        let (_, trace) = explored.violation.unwrap();
        assert_eq!((trace.len(), trace.iter().sum::<u8>()), (3, 7));
        assert!(explored.reaches_goal && !explored.complete);
    }
}
