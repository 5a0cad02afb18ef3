//! The fleets that are explored: those that keep every rule, and those that break one.

use crate::algorithm::{Algorithm, Limit};
use crate::flaw::Flaw;
use crate::fleet::{Faults, Fleet};

/// A fleet with a name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What is looked at.
    pub name: &'static str,
    /// The fleet.
    pub fleet: Fleet,
}

const QUICK: Algorithm = Algorithm::TokenBucket { every: 1 };
const BUCKET: Algorithm = Algorithm::TokenBucket { every: 2 };
const FIXED: Algorithm = Algorithm::FixedWindow { window: 4 };
const SLIDING: Algorithm = Algorithm::SlidingWindow { window: 4 };

/// A cost and tokens to hold: one or the other, only holds, one token at a time.
const MIXED: &[(u8, u8)] = &[(0, 2), (1, 0)];
const HOLDS: &[(u8, u8)] = &[(0, 2)];
const SINGLE: &[(u8, u8)] = &[(0, 1)];
const BOTH: &[(u8, u8)] = &[(1, 1), (0, 0)];

const NONE: Faults = Faults { doubles: false, crashes: false, drift: 0, loss: false };
const DOUBLES: Faults = Faults { doubles: true, ..NONE };
const CRASHES: Faults = Faults { crashes: true, ..DOUBLES };
const DRIFT: Faults = Faults { drift: 1, ..NONE };
const LOSS: Faults = Faults { loss: true, ..NONE };

const fn fleet(amount: u8, algorithm: Algorithm, faults: Faults) -> Fleet {
    Fleet {
        nodes: 2,
        limit: Limit { amount, algorithm },
        life: 3,
        margin: faults.drift,
        asks: MIXED,
        leases: 1,
        flight: 2,
        expires: false,
        faults,
        flaw: None,
    }
}

/// Nobody asks for a single request.
const fn holding(algorithm: Algorithm, faults: Faults) -> Fleet {
    Fleet { asks: HOLDS, ..fleet(2, algorithm, faults) }
}

/// One token at a time, and shorter holds: small enough for every test run.
const fn single(algorithm: Algorithm, faults: Faults) -> Fleet {
    Fleet { asks: SINGLE, life: 2, ..fleet(2, algorithm, faults) }
}

/// A store whose keys expire. Some ask for every request, so that the state changes alone.
const fn expiring(algorithm: Algorithm) -> Fleet {
    Fleet { asks: MIXED, life: 2, expires: true, ..fleet(3, algorithm, NONE) }
}

/// Fleets that keep the rules: nothing they do may admit too much.
pub fn sound(deep: bool) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name, fleet| all.push(Scenario { name, fleet });
    add("bucket: doubled messages, crashes", holding(BUCKET, CRASHES));
    add("bucket: doubled messages, costs", fleet(2, BUCKET, DOUBLES));
    add("bucket: drifting clocks", single(BUCKET, DRIFT));
    add("bucket: lost writes", single(BUCKET, LOSS));
    add("fixed window: doubled messages, crashes", holding(FIXED, CRASHES));
    add("fixed window: drifting clocks", single(FIXED, DRIFT));
    add("fixed window: lost writes", single(FIXED, LOSS));
    add("sliding window: doubled messages, crashes", holding(SLIDING, CRASHES));
    add("sliding window: drifting clocks", single(SLIDING, DRIFT));
    add("sliding window: lost writes", single(SLIDING, LOSS));
    add("bucket: keys that expire", expiring(BUCKET));
    add("fixed window: keys that expire", expiring(FIXED));
    add("sliding window: keys that expire", expiring(SLIDING));
    if deep {
        deeper(add);
    }
    all
}

/// The same with more of everything, as far as it fits into memory.
fn deeper(mut add: impl FnMut(&'static str, Fleet)) {
    add("deep: bucket: doubled messages, crashes, costs", fleet(2, BUCKET, CRASHES));
    let both = Fleet { asks: BOTH, flight: 3, ..fleet(2, BUCKET, CRASHES) };
    add("deep: bucket: cost and hold at once", both);
    add("deep: bucket: three messages", Fleet { flight: 3, ..holding(BUCKET, CRASHES) });
    add("deep: bucket: three nodes", Fleet { nodes: 3, ..holding(BUCKET, CRASHES) });
    add("deep: bucket: two holds of a node", Fleet { leases: 2, ..single(BUCKET, CRASHES) });
    let more = Fleet { leases: 2, asks: HOLDS, ..fleet(3, QUICK, NONE) };
    add("deep: bucket of 3: two holds of a node", more);
    add("deep: bucket of 4", Fleet { asks: &[(0, 4)], life: 2, ..fleet(4, QUICK, NONE) });
    add("deep: bucket: drifting clocks", holding(BUCKET, DRIFT));
    let far = Faults { drift: 2, ..NONE };
    add("deep: bucket: clocks that drift twice as far", holding(QUICK, far));
    add("deep: bucket: lost writes", holding(BUCKET, LOSS));
    let doubled = Faults { doubles: true, ..LOSS };
    add("deep: bucket: lost writes, doubled messages", single(BUCKET, doubled));
    add("deep: fixed window: costs", fleet(2, FIXED, CRASHES));
    add("deep: fixed window: drifting clocks", fleet(2, FIXED, DRIFT));
    add("deep: fixed window: lost writes", holding(FIXED, LOSS));
    add("deep: sliding window: costs", fleet(2, SLIDING, CRASHES));
    add("deep: sliding window: drifting clocks", fleet(2, SLIDING, DRIFT));
    add("deep: sliding window: lost writes", holding(SLIDING, LOSS));
}

/// Fleets that break a rule each: each must be found to admit too much.
pub fn flawed() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name, flaw, fleet| {
        all.push(Scenario { name, fleet: Fleet { flaw: Some(flaw), ..fleet } });
    };
    add("flawed: charged ahead", Flaw::ChargedAhead, fleet(2, BUCKET, DOUBLES));
    add("flawed: life from answer", Flaw::LifeFromAnswer, fleet(2, QUICK, DOUBLES));
    add("flawed: closed used again", Flaw::ClosedUsedAgain, fleet(2, BUCKET, DOUBLES));
    add("flawed: returned twice", Flaw::ReturnedTwice, fleet(2, BUCKET, DOUBLES));
    add("flawed: no margin", Flaw::NoMargin, holding(QUICK, Faults { drift: 2, ..NONE }));
    add("flawed: report added", Flaw::ReportAdded, fleet(2, QUICK, DOUBLES));
    add("flawed: late answer used", Flaw::LateAnswerUsed, fleet(2, BUCKET, DOUBLES));
    add("flawed: expired forgotten", Flaw::ExpiredForgotten, fleet(2, BUCKET, DOUBLES));
    add("flawed: names used again", Flaw::NamesUsedAgain, fleet(2, BUCKET, CRASHES));
    add("flawed: clock sleeps", Flaw::ClockSleeps, holding(BUCKET, DRIFT));
    add("flawed: fixed window to its end", Flaw::WindowToItsEnd, holding(FIXED, DRIFT));
    add("flawed: sliding window to its end", Flaw::WindowToItsEnd, holding(SLIDING, DRIFT));
    add("flawed: store leaps", Flaw::StoreLeaps, fleet(2, BUCKET, DOUBLES));
    add("flawed: loss not allowed for", Flaw::LossNotAllowedFor, fleet(2, BUCKET, LOSS));
    add("flawed: fixed window, lease key ends early", Flaw::LeaseKeyEndsWithLease, expiring(FIXED));
    add("flawed: lease key ends early", Flaw::LeaseKeyEndsWithLease, expiring(BUCKET));
    add("flawed: lease key not renewed", Flaw::LeaseKeyNotRenewed, expiring(BUCKET));
    add("flawed: state key ends alone", Flaw::StateKeyEndsAlone, expiring(BUCKET));
    all
}
