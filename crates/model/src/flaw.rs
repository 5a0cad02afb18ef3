//! Ways to get the protocol wrong, one rule of the page each.

/// A rule of the protocol that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Tokens that are taken ahead are charged at once, and the bucket refills meanwhile.
    ChargedAhead,
    /// A hold lasts from when the answer came, not from when the question was sent.
    LifeFromAnswer,
    /// A hold that was said to be closed goes on being used.
    ClosedUsedAgain,
    /// A hold that was given back is given back again when the report comes twice.
    ReturnedTwice,
    /// The store frees the room of a hold as soon as its life is over.
    NoMargin,
    /// What a report says is added to what earlier ones said.
    ReportAdded,
    /// An answer is used though the life of its hold is over.
    LateAnswerUsed,
    /// A hold that expires counts as never spent.
    ExpiredForgotten,
    /// A node that restarts names its holds as before.
    NamesUsedAgain,
    /// A node's clock stands still while its machine sleeps.
    ClockSleeps,
    /// In a window, a hold may be used up to the very end of it, without a margin.
    WindowToItsEnd,
    /// The store's clock is set forward.
    StoreLeaps,
    /// What a store that loses writes has lost is not allowed for.
    LossNotAllowedFor,
    /// The key of the leases expires when the last lease ends.
    LeaseKeyEndsWithLease,
    /// The time to live of the leases' key stays as it is when only the state changes.
    LeaseKeyNotRenewed,
    /// The key of the state expires when the state is over by itself, whatever is leased.
    StateKeyEndsAlone,
}
