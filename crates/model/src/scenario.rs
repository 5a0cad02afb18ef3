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

const BUCKET: Algorithm = Algorithm::TokenBucket { every: 2 };
const FIXED: Algorithm = Algorithm::FixedWindow { window: 4 };
const SLIDING: Algorithm = Algorithm::SlidingWindow { window: 4 };

/// Tokens to hold, with the cost of a request or without; a cost alone, or only reports.
const MIXED: &[(u8, u8)] = &[(0, 2), (1, 0)];
const HOLDS: &[(u8, u8)] = &[(0, 2)];

const DOUBLES: Faults = Faults { doubles: true, crashes: false, drift: 0, loss: false };
const CRASHES: Faults = Faults { doubles: true, crashes: true, drift: 0, loss: false };
const DRIFT: Faults = Faults { doubles: false, crashes: false, drift: 1, loss: false };
const LOSS: Faults = Faults { doubles: true, crashes: false, drift: 0, loss: true };

const fn fleet(amount: u8, algorithm: Algorithm, faults: Faults) -> Fleet {
    Fleet {
        nodes: 2,
        limit: Limit { amount, algorithm },
        life: 3,
        margin: faults.drift,
        asks: MIXED,
        leases: 1,
        flight: 2,
        faults,
        flaw: None,
    }
}

/// Fleets that keep the rules: nothing they do may admit too much.
pub fn sound(deep: bool) -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name, fleet| all.push(Scenario { name, fleet });
    let small = |faults| Fleet { flight: 2, ..fleet(2, BUCKET, faults) };
    add("t1 bucket loss nodoubles", fleet(2, BUCKET, Faults { doubles: false, ..LOSS }));
    add("t2 bucket loss holds", Fleet { asks: HOLDS, ..fleet(2, BUCKET, LOSS) });
    add("t3 bucket crash holds", Fleet { asks: HOLDS, ..fleet(2, BUCKET, CRASHES) });
    add("t4 bucket crash holds flight 3", Fleet { asks: HOLDS, flight: 3, ..fleet(2, BUCKET, CRASHES) });
    add("t5 bucket drift holds", Fleet { asks: HOLDS, ..fleet(2, BUCKET, DRIFT) });
    add("t6 bucket crash holds 3 nodes", Fleet { nodes: 3, asks: HOLDS, ..fleet(2, BUCKET, CRASHES) });
    add("t7 bucket crash 2 leases", Fleet { asks: HOLDS, leases: 2, ..fleet(3, BUCKET, CRASHES) });
    add("t8 sliding loss holds", Fleet { asks: HOLDS, ..fleet(2, SLIDING, LOSS) });
    add("t9 sliding crashes", Fleet { ..fleet(2, SLIDING, CRASHES) });
    add("t0 fixed loss", Fleet {asks: HOLDS, ..fleet(2, FIXED, LOSS) });
    all
}

/// Fleets that break a rule each: each must be found to admit too much.
pub fn flawed() -> Vec<Scenario> {
    let mut all = Vec::new();
    let mut add = |name, flaw, fleet| {
        all.push(Scenario { name, fleet: Fleet { flaw: Some(flaw), ..fleet } });
    };
    let quick = Algorithm::TokenBucket { every: 1 };
    add("flawed: charged ahead", Flaw::ChargedAhead, fleet(2, BUCKET, DOUBLES));
    add("flawed: life from answer", Flaw::LifeFromAnswer, fleet(2, quick, DOUBLES));
    add("flawed: closed used again", Flaw::ClosedUsedAgain, fleet(2, BUCKET, DOUBLES));
    add("flawed: returned twice", Flaw::ReturnedTwice, fleet(2, BUCKET, DOUBLES));
    add("flawed: no margin", Flaw::NoMargin, fleet(2, quick, Faults { drift: 2, ..DRIFT }));
    add("flawed: report added", Flaw::ReportAdded, fleet(2, quick, DOUBLES));
    add("flawed: late answer used", Flaw::LateAnswerUsed, fleet(2, BUCKET, DOUBLES));
    add("flawed: expired forgotten", Flaw::ExpiredForgotten, fleet(2, BUCKET, DOUBLES));
    add("flawed: names used again", Flaw::NamesUsedAgain, fleet(2, BUCKET, CRASHES));
    add("flawed: clock sleeps", Flaw::ClockSleeps, fleet(2, BUCKET, DRIFT));
    add("flawed: fixed window to its end", Flaw::WindowToItsEnd, fleet(2, FIXED, DRIFT));
    add("flawed: sliding window to its end", Flaw::WindowToItsEnd, fleet(2, SLIDING, DRIFT));
    add("flawed: store leaps", Flaw::StoreLeaps, fleet(2, BUCKET, DOUBLES));
    add("flawed: loss not allowed for", Flaw::LossNotAllowedFor, fleet(2, BUCKET, LOSS));
    all
}
