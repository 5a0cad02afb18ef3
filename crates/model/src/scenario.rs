//! The explored fleets: those that follow every rule of the protocol, and those that break one.

use crate::algorithm::{Algorithm, Limit};
use crate::flaw::ProtocolFlaw;
use crate::fleet::{FaultModel, FleetModel};

/// A fleet with a name.
#[derive(Clone, Copy, Debug)]
pub struct ModelScenario {
    /// The name.
    pub name: &'static str,
    /// The fleet.
    pub fleet: FleetModel,
}

const FAST_BUCKET: Algorithm = Algorithm::TokenBucket { every: 1 };
const BUCKET: Algorithm = Algorithm::TokenBucket { every: 2 };
const FIXED_WINDOW: Algorithm = Algorithm::FixedWindow { window: 4 };
const SLIDING_WINDOW: Algorithm = Algorithm::SlidingWindow { window: 4 };

/// Kinds of requests, each a cost and a number of tokens to lease.
const LEASE_OR_COST: &[(u8, u8)] = &[(0, 2), (1, 0)];
const LEASES_ONLY: &[(u8, u8)] = &[(0, 2)];
const ONE_TOKEN: &[(u8, u8)] = &[(0, 1)];
const COST_AND_LEASE: &[(u8, u8)] = &[(1, 1), (0, 0)];

const NO_FAULTS: FaultModel =
    FaultModel { duplicates: false, crashes: false, drift: 0, loss: false };
const DUPLICATES: FaultModel = FaultModel { duplicates: true, ..NO_FAULTS };
const CRASHES: FaultModel = FaultModel { crashes: true, ..DUPLICATES };
const DRIFT: FaultModel = FaultModel { drift: 1, ..NO_FAULTS };
const LOSS: FaultModel = FaultModel { loss: true, ..NO_FAULTS };

const fn fleet(amount: u8, algorithm: Algorithm, faults: FaultModel) -> FleetModel {
    FleetModel {
        nodes: 2,
        limit: Limit { amount, algorithm },
        ttl: 3,
        margin: faults.drift,
        request_kinds: LEASE_OR_COST,
        leases: 1,
        max_in_flight: 2,
        expires: false,
        faults,
        flaw: None,
    }
}

/// Returns a fleet that only requests leases.
const fn leases_only(algorithm: Algorithm, faults: FaultModel) -> FleetModel {
    FleetModel { request_kinds: LEASES_ONLY, ..fleet(2, algorithm, faults) }
}

/// Returns a fleet that leases one token at a time, with a shorter TTL: small enough for every test run.
const fn one_token(algorithm: Algorithm, faults: FaultModel) -> FleetModel {
    FleetModel { request_kinds: ONE_TOKEN, ttl: 2, ..fleet(2, algorithm, faults) }
}

/// Returns a fleet with a store in which keys expire. Some requests have a cost, so that the state changes alone.
const fn expiring(algorithm: Algorithm) -> FleetModel {
    FleetModel {
        request_kinds: LEASE_OR_COST,
        ttl: 2,
        expires: true,
        ..fleet(3, algorithm, NO_FAULTS)
    }
}

/// Returns the fleets that follow the protocol: none of their traces may admit too much.
pub fn sound_scenarios(deep: bool) -> Vec<ModelScenario> {
    let mut all = Vec::new();
    let mut add = |name, fleet| all.push(ModelScenario { name, fleet });
    add("bucket: doubled messages, crashes", leases_only(BUCKET, CRASHES));
    add("bucket: doubled messages, costs", fleet(2, BUCKET, DUPLICATES));
    add("bucket: drifting clocks", one_token(BUCKET, DRIFT));
    add("bucket: lost writes", one_token(BUCKET, LOSS));
    add("fixed window: doubled messages, crashes", leases_only(FIXED_WINDOW, CRASHES));
    add("fixed window: drifting clocks", one_token(FIXED_WINDOW, DRIFT));
    add("fixed window: lost writes", one_token(FIXED_WINDOW, LOSS));
    add("sliding window: doubled messages, crashes", leases_only(SLIDING_WINDOW, CRASHES));
    add("sliding window: drifting clocks", one_token(SLIDING_WINDOW, DRIFT));
    add("sliding window: lost writes", one_token(SLIDING_WINDOW, LOSS));
    add("bucket: keys that expire", expiring(BUCKET));
    add("fixed window: keys that expire", expiring(FIXED_WINDOW));
    add("sliding window: keys that expire", expiring(SLIDING_WINDOW));
    if deep {
        add_deep_scenarios(add);
    }
    all
}

/// Adds larger fleets, up to the available memory.
fn add_deep_scenarios(mut add: impl FnMut(&'static str, FleetModel)) {
    add("deep: bucket: doubled messages, crashes, costs", fleet(2, BUCKET, CRASHES));
    let both =
        FleetModel { request_kinds: COST_AND_LEASE, max_in_flight: 3, ..fleet(2, BUCKET, CRASHES) };
    add("deep: bucket: cost and lease at once", both);
    add(
        "deep: bucket: three messages",
        FleetModel { max_in_flight: 3, ..leases_only(BUCKET, CRASHES) },
    );
    add("deep: bucket: three nodes", FleetModel { nodes: 3, ..leases_only(BUCKET, CRASHES) });
    add(
        "deep: bucket: two leases of a node",
        FleetModel { leases: 2, ..one_token(BUCKET, CRASHES) },
    );
    let more =
        FleetModel { leases: 2, request_kinds: LEASES_ONLY, ..fleet(3, FAST_BUCKET, NO_FAULTS) };
    add("deep: bucket of 3: two leases of a node", more);
    add(
        "deep: bucket of 4",
        FleetModel { request_kinds: &[(0, 4)], ttl: 2, ..fleet(4, FAST_BUCKET, NO_FAULTS) },
    );
    add("deep: bucket: drifting clocks", leases_only(BUCKET, DRIFT));
    let far = FaultModel { drift: 2, ..NO_FAULTS };
    add("deep: bucket: clocks that drift twice as far", leases_only(FAST_BUCKET, far));
    add("deep: bucket: lost writes", leases_only(BUCKET, LOSS));
    let doubled = FaultModel { duplicates: true, ..LOSS };
    add("deep: bucket: lost writes, doubled messages", one_token(BUCKET, doubled));
    add("deep: fixed window: costs", fleet(2, FIXED_WINDOW, CRASHES));
    add("deep: fixed window: drifting clocks", fleet(2, FIXED_WINDOW, DRIFT));
    add("deep: fixed window: lost writes", leases_only(FIXED_WINDOW, LOSS));
    add("deep: sliding window: costs", fleet(2, SLIDING_WINDOW, CRASHES));
    add("deep: sliding window: drifting clocks", fleet(2, SLIDING_WINDOW, DRIFT));
    add("deep: sliding window: lost writes", leases_only(SLIDING_WINDOW, LOSS));
}

/// Returns the fleets that break one rule each: the exploration must find a trace that admits too much.
pub fn flawed_scenarios() -> Vec<ModelScenario> {
    let mut all = Vec::new();
    let mut add = |name, flaw, fleet| {
        all.push(ModelScenario { name, fleet: FleetModel { flaw: Some(flaw), ..fleet } });
    };
    add("flawed: charged ahead", ProtocolFlaw::ChargedAhead, fleet(2, BUCKET, DUPLICATES));
    add("flawed: TTL from reply", ProtocolFlaw::TtlFromReply, fleet(2, FAST_BUCKET, DUPLICATES));
    add("flawed: closed used again", ProtocolFlaw::ClosedUsedAgain, fleet(2, BUCKET, DUPLICATES));
    add("flawed: returned twice", ProtocolFlaw::ReturnedTwice, fleet(2, BUCKET, DUPLICATES));
    add(
        "flawed: no margin",
        ProtocolFlaw::NoMargin,
        leases_only(FAST_BUCKET, FaultModel { drift: 2, ..NO_FAULTS }),
    );
    add("flawed: report added", ProtocolFlaw::ReportAdded, fleet(2, FAST_BUCKET, DUPLICATES));
    add("flawed: late grant used", ProtocolFlaw::LateGrantUsed, fleet(2, BUCKET, DUPLICATES));
    add(
        "flawed: expired not charged",
        ProtocolFlaw::ExpiredNotCharged,
        fleet(2, BUCKET, DUPLICATES),
    );
    add("flawed: ids reused", ProtocolFlaw::IdsReused, fleet(2, BUCKET, CRASHES));
    add(
        "flawed: clock stops in sleep",
        ProtocolFlaw::ClockStopsInSleep,
        leases_only(BUCKET, DRIFT),
    );
    add(
        "flawed: fixed window to its end",
        ProtocolFlaw::WindowToItsEnd,
        leases_only(FIXED_WINDOW, DRIFT),
    );
    add(
        "flawed: sliding window to its end",
        ProtocolFlaw::WindowToItsEnd,
        leases_only(SLIDING_WINDOW, DRIFT),
    );
    add("flawed: store clock jumps", ProtocolFlaw::StoreClockJumps, fleet(2, BUCKET, DUPLICATES));
    add("flawed: loss not tolerated", ProtocolFlaw::LossNotTolerated, fleet(2, BUCKET, LOSS));
    add(
        "flawed: fixed window, lease key ends early",
        ProtocolFlaw::LeaseKeyEndsWithLease,
        expiring(FIXED_WINDOW),
    );
    add("flawed: lease key ends early", ProtocolFlaw::LeaseKeyEndsWithLease, expiring(BUCKET));
    add("flawed: lease key not renewed", ProtocolFlaw::LeaseKeyNotRenewed, expiring(BUCKET));
    add("flawed: state key ends alone", ProtocolFlaw::StateKeyEndsAlone, expiring(BUCKET));
    all
}
