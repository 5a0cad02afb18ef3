//! How a rule's limit is kept where nodes share a store, and what that adds to its bound.

use std::fmt;

use crate::algorithm::{Algorithm, Limit};
use crate::time::Span;

/// How a rule's limit is kept where nodes share a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accuracy {
    /// Every admission is one step on the store.
    #[default]
    Exact,
    /// Exact, in so many parts of each client's limit that servers share one busy client. A part that
    /// is used up borrows from the others.
    Sharded(u8),
    /// Exact, except that of a client whom a node sees very often it takes tokens ahead of use.
    LeasedWhenHot,
    /// Nodes take tokens ahead of use, and most checks ask nobody. The bound is the same.
    Leased,
    /// Nodes decide alone and tell each other now and then. They can admit more than the limit.
    Synced(Synced),
    /// Each of the live nodes enforces its part of the limit, and asks nobody.
    Split,
}

/// How often nodes tell each other what they admitted, and how much that may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Synced {
    /// How often.
    pub every: Every,
    /// The most that a node admits before the store knows of it.
    pub max_ahead: MaxAhead,
}

/// The time between two syncs of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Every(Span);

/// The most that a node admits before the store knows of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaxAhead {
    /// A tenth of what can be spent at once, at least one.
    #[default]
    Tenth,
    /// So many.
    Tokens(u64),
    /// Whatever the node believes to be left.
    Unbounded,
}

impl Synced {
    /// As it is unless told otherwise.
    pub const USUAL: Self = Self { every: Every::USUAL, max_ahead: MaxAhead::Tenth };
}

impl Every {
    /// As it is unless told otherwise.
    pub const USUAL: Self = Self(Span::from_millis(200));
    /// The shortest and the longest.
    pub const RANGE: (Span, Span) = (Span::from_millis(10), Span::MINUTE);

    /// That long, if it can be.
    #[must_use]
    pub fn new(span: Span) -> Option<Self> {
        let (least, most) = Self::RANGE;
        (least..=most).contains(&span).then_some(Self(span))
    }

    /// How long.
    #[must_use]
    pub const fn span(self) -> Span {
        self.0
    }
}

impl Default for Every {
    fn default() -> Self {
        Self::USUAL
    }
}

impl MaxAhead {
    /// How many tokens of a limit that is.
    #[must_use]
    pub fn of(self, limit: &Limit) -> u64 {
        match self {
            Self::Tenth => (limit.capacity() / 10).max(1),
            Self::Tokens(tokens) => tokens,
            Self::Unbounded => u64::MAX,
        }
    }
}

impl Accuracy {
    /// The fewest and the most parts of one client's limit.
    pub const SHARDS: (u8, u8) = (2, 64);

    /// The word for it in a rules file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact | Self::Sharded(_) | Self::LeasedWhenHot => "exact",
            Self::Leased => "leased",
            Self::Synced(_) => "synced",
            Self::Split => "split",
        }
    }

    /// Whether a limit can be kept like this; otherwise what is wanted and found.
    ///
    /// # Errors
    /// Its algorithm does not allow it, or it is too small to be divided.
    pub(super) fn suits(self, limit: &Limit) -> Result<(), String> {
        let algorithm = limit.algorithm();
        let lends = limit.leases();
        let queues = matches!(algorithm, Algorithm::LeakyBucket { .. });
        let holds = limit.is_held();
        let windows = "token_bucket, fixed_window or sliding_window";
        let (key, wanted) = match self {
            Self::Exact => return Ok(()),
            Self::Leased if !lends => ("accuracy leased", windows),
            Self::Synced(_) if !lends => ("accuracy synced", windows),
            Self::LeasedWhenHot if !lends => ("hot", windows),
            Self::Split if holds => ("accuracy split", "a limit per time"),
            Self::Sharded(_) if holds => ("shards", "a limit per time"),
            Self::Split if queues => ("accuracy split", "an algorithm without a queue"),
            Self::Sharded(_) if queues => ("shards", "an algorithm without a queue"),
            Self::Sharded(parts) => {
                let least = limit.capacity().min(limit.quota().amount());
                return match least == 0 || u64::from(parts) <= least {
                    true => Ok(()),
                    false => Err(format!(
                        "shards must be at most {least} for a limit of {limit}, found {parts}"
                    )),
                };
            }
            Self::Leased | Self::Synced(_) | Self::LeasedWhenHot | Self::Split => return Ok(()),
        };
        Err(format!("{key} needs {wanted}, found {}", algorithm.name()))
    }

    /// What becomes of a limit's bound when N nodes keep it like this, in words.
    #[must_use]
    pub fn bound(self, limit: &Limit) -> Option<FleetBound> {
        match self {
            Self::Exact => None,
            _ => {
                let windowed = limit.bound().aligned.is_some();
                Some(FleetBound { accuracy: self, ahead: self.ahead(limit), windowed })
            }
        }
    }

    /// The most that one node admits before the others can know.
    fn ahead(self, limit: &Limit) -> u64 {
        match self {
            Self::Synced(synced) => synced.max_ahead.of(limit),
            _ => 0,
        }
    }
}

/// What becomes of a limit's bound across a fleet, with the number of nodes open.
///
/// ```
/// use tidegate_core::rule::{Accuracy, MaxAhead, Synced};
/// use tidegate_core::{Algorithm, Limit, Quota};
///
/// let limit = Limit::new(Algorithm::TokenBucket, Quota::per_second(100))?;
/// let synced = Accuracy::Synced(Synced { max_ahead: MaxAhead::Tokens(20), ..Synced::default() });
/// let bound = synced.bound(&limit).unwrap();
/// assert_eq!(bound.to_string(), "synced every 200 ms: with N nodes up to N x 20 more than that");
/// assert_eq!(bound.overshoot(3), 60);
///
/// // A span as long as the window touches two windows, and each of them can be exceeded.
/// let limit = Limit::new(Algorithm::FixedWindow, Quota::per_second(100))?;
/// let bound = synced.bound(&limit).unwrap();
/// assert_eq!(
///     bound.to_string(),
///     "synced every 200 ms: with N nodes up to N x 40 more than that, N x 20 in each window",
/// );
/// assert_eq!((bound.overshoot(3), bound.aligned_overshoot(3)), (120, Some(60)));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetBound {
    accuracy: Accuracy,
    ahead: u64,
    /// Whether the limit counts by windows that are aligned to the clock.
    windowed: bool,
}

impl FleetBound {
    /// By how much so many nodes together can exceed [`Bound::most`](crate::algorithm::Bound::most), which
    /// is of any span as long as the window.
    #[must_use]
    pub fn overshoot(&self, nodes: u64) -> u64 {
        self.per_node().saturating_mul(nodes)
    }

    /// By how much they can exceed [`Bound::aligned`](crate::algorithm::Bound::aligned), if the limit counts by
    /// windows.
    #[must_use]
    pub fn aligned_overshoot(&self, nodes: u64) -> Option<u64> {
        self.windowed.then(|| self.ahead.saturating_mul(nodes))
    }

    /// The share of one node in the overshoot over any span: such a span touches two windows, or one bucket.
    fn per_node(&self) -> u64 {
        let touched = if self.windowed { 2 } else { 1 };
        self.ahead.saturating_mul(touched)
    }
}

impl fmt::Display for FleetBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.accuracy {
            Accuracy::Exact => f.write_str("exact: the same bound"),
            Accuracy::Sharded(parts) => {
                write!(f, "{parts} shards: the same bound, each client's limit in {parts} parts")
            }
            Accuracy::LeasedWhenHot => {
                f.write_str("leased when hot: the same bound, whatever the number of nodes")
            }
            Accuracy::Leased => f.write_str("leased: the same bound, whatever the number of nodes"),
            Accuracy::Split => {
                f.write_str("split: the same bound, each of N live nodes keeps an N-th of it")?;
                if self.windowed { f.write_str(" in windows by its own clock") } else { Ok(()) }
            }
            Accuracy::Synced(Synced { every, .. }) => {
                let every = every.span();
                match self.ahead {
                    u64::MAX => write!(
                        f,
                        "synced every {every}: without max_ahead each of N nodes can admit all of that"
                    ),
                    ahead => {
                        let most = self.per_node();
                        write!(
                            f,
                            "synced every {every}: with N nodes up to N x {most} more than that"
                        )?;
                        match self.windowed {
                            true => write!(f, ", N x {ahead} in each window"),
                            false => Ok(()),
                        }
                    }
                }
            }
        }
    }
}

/// `exact`, `exact, 4 shards`, `synced every 200 ms, 20 ahead`: all that was chosen.
impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Exact | Self::Leased | Self::Split => Ok(()),
            Self::Sharded(parts) => write!(f, ", {parts} shards"),
            Self::LeasedWhenHot => f.write_str(", leased when hot"),
            Self::Synced(Synced { every, max_ahead }) => {
                write!(f, " every {}, ", every.span())?;
                match max_ahead {
                    MaxAhead::Tenth => f.write_str("a tenth ahead"),
                    MaxAhead::Tokens(tokens) => write!(f, "{tokens} ahead"),
                    MaxAhead::Unbounded => f.write_str("unbounded"),
                }
            }
        }
    }
}
