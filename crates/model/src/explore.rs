//! Visits every state that can be reached, nearest first.

use core::fmt::{self, Display};

/// Something that goes on in steps.
pub trait World {
    /// All that there is at one instant.
    type State: Clone;
    /// What leads from one to the next.
    type Step: Clone + Display;

    /// Where it begins.
    fn first(&self) -> Self::State;

    /// Every step that can be taken, and where it leads.
    fn steps(&self, state: &Self::State, next: &mut Vec<(Self::Step, Self::State)>);

    /// Bytes that a state shares with its equals, and with no other.
    fn write(&self, state: &Self::State, out: &mut Vec<u8>);

    /// The promise that this state breaks.
    fn broken(&self, state: &Self::State) -> Option<&'static str>;

    /// Whether this is a state that must be reached, or nothing was shown.
    fn wanted(&self, state: &Self::State) -> bool;
}

/// What an exploration has seen.
#[derive(Debug)]
pub struct Explored<S> {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// The most steps that the nearest way to any state has.
    pub depth: usize,
    /// Whether there are no others.
    pub whole: bool,
    /// Whether a state that must be reached was.
    pub wanted: bool,
    /// The promise that does not hold, and a shortest way to see it.
    pub broken: Option<(&'static str, Vec<S>)>,
}

impl<S: Display> Display for Explored<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, steps, depth, .. } = self;
        let all = if self.whole { "all " } else { "" };
        write!(f, "{all}{states} states, {steps} steps, depth {depth}")?;
        if let Some((promise, trace)) = &self.broken {
            write!(f, "\n  broken: {promise}")?;
            for (at, step) in trace.iter().enumerate() {
                write!(f, "\n  {:>3}  {step}", at + 1)?;
            }
        }
        Ok(())
    }
}

/// Explores until a promise breaks, all states are seen, or `most` of them.
///
/// States are compared in full: no two are taken for one.
pub fn explore<W: World>(world: &W, most: usize) -> Explored<W::Step> {
    let mut visited = Visited::default();
    let mut origins: Vec<(u32, W::Step)> = Vec::new();
    let mut layer = vec![(0_u32, world.first())];
    let (mut bytes, mut next, mut later) = (Vec::new(), Vec::new(), Vec::new());
    world.write(&layer[0].1, &mut bytes);
    visited.insert(&bytes);
    let mut seen =
        Explored { states: 1, steps: 0, depth: 0, whole: false, wanted: false, broken: None };
    while !layer.is_empty() {
        for (index, state) in layer.drain(..) {
            world.steps(&state, &mut next);
            for (step, state) in next.drain(..) {
                seen.steps += 1;
                bytes.clear();
                world.write(&state, &mut bytes);
                let Some(new) = visited.insert(&bytes) else { continue };
                origins.push((index, step));
                seen.states += 1;
                seen.wanted |= world.wanted(&state);
                if let Some(promise) = world.broken(&state) {
                    seen.depth += 1;
                    seen.broken = Some((promise, trace(&origins, new)));
                    return seen;
                }
                later.push((new, state));
            }
            if seen.states >= most {
                return seen;
            }
        }
        seen.depth += usize::from(!later.is_empty());
        core::mem::swap(&mut layer, &mut later);
    }
    seen.whole = true;
    seen
}

/// The steps to a state: `origins` says, for each but the first, whence and how it was reached.
fn trace<S: Clone>(origins: &[(u32, S)], mut index: u32) -> Vec<S> {
    let mut steps = Vec::new();
    while let Some((from, step)) = (index as usize).checked_sub(1).map(|at| &origins[at]) {
        steps.push(step.clone());
        index = *from;
    }
    steps.reverse();
    steps
}

/// A set of byte strings, numbered as they come.
#[derive(Default)]
struct Visited {
    /// All strings, one after another, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Numbers, plus one, where their hash puts them; 0 is free. Less than half is in use.
    slots: Vec<u32>,
}

impl Visited {
    /// The number of a string that was not there.
    fn insert(&mut self, string: &[u8]) -> Option<u32> {
        if self.ends.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let at = self.place(string)?;
        let number = u32::try_from(self.ends.len()).ok()?;
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
        self.slots[at] = number + 1;
        Some(number)
    }

    /// The free slot for a string, or none if it is there.
    fn place(&self, string: &[u8]) -> Option<usize> {
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
            if let Some(at) = self.place(self.string(number)) {
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
    fn a_string_is_new_once() {
        let mut visited = Visited::default();
        let string = |number: u32| number.to_string().into_bytes();
        assert!((0..10_000).all(|number| visited.insert(&string(number)) == Some(number)));
        assert!((0..10_000).all(|number| visited.insert(&string(number)).is_none()));
    }

    /// Counts to ten in ones and threes.
    struct Counting;

    impl World for Counting {
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

        fn broken(&self, state: &u8) -> Option<&'static str> {
            (*state == 7).then_some("seven is never reached")
        }

        fn wanted(&self, state: &u8) -> bool {
            *state == 3
        }
    }

    #[test]
    fn a_broken_promise_is_shown_by_a_shortest_way() {
        let explored = explore(&Counting, usize::MAX);
        let (_, trace) = explored.broken.unwrap();
        assert_eq!((trace.len(), trace.iter().sum::<u8>()), (3, 7));
        assert!(explored.wanted && !explored.whole);
    }
}
