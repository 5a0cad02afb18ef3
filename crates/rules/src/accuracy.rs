//! The accuracy of a limit where nodes share a store, and the bound that results.

use std::fmt;

use tidegate_core::{Algorithm, Limit, Span};

/// The way in which nodes that share a store enforce a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accuracy {
    /// Every admission is one atomic step in the store.
    #[default]
    Exact,
    /// Exact, with each client's limit in this many parts, so that several servers share the load of one client. A part that
    /// is used up borrows from the others.
    Sharded(u8),
    /// Exact, except that a node takes leases for a client with very many requests.
    LeasedWhenHot,
    /// Nodes take leases, and most checks do not reach the store. The bound is the same.
    Leased,
    /// Nodes decide alone and synchronise periodically. They can admit more than the limit.
    Synced(SyncSettings),
    /// Each live node enforces its part of the limit without the store.
    Split,
}

/// The parameters of [`Accuracy::Synced`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SyncSettings {
    /// The time between two syncs of one client.
    pub every: SyncInterval,
    /// The maximum that a node admits before it reports to the store.
    pub max_ahead: MaxAhead,
}

/// The time between two syncs of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SyncInterval(Span);

/// The maximum that a node admits before it reports to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MaxAhead {
    /// A tenth of the limit's capacity, at least one.
    #[default]
    Tenth,
    /// This number of tokens.
    Tokens(u64),
    /// Everything that is free according to the node's last view of the store.
    Unbounded,
}

impl SyncSettings {
    /// The default.
    pub const DEFAULT: Self = Self { every: SyncInterval::DEFAULT, max_ahead: MaxAhead::Tenth };
}

impl SyncInterval {
    /// The default.
    pub const DEFAULT: Self = Self(Span::from_millis(200));
    /// The shortest and the longest interval.
    pub const RANGE: (Span, Span) = (Span::from_millis(10), Span::MINUTE);

    /// Creates an interval of this length, if it is in [`RANGE`](Self::RANGE).
    #[must_use]
    pub fn new(span: Span) -> Option<Self> {
        let (least, most) = Self::RANGE;
        (least..=most).contains(&span).then_some(Self(span))
    }

    /// Returns the length of the interval.
    #[must_use]
    pub const fn span(self) -> Span {
        self.0
    }
}

impl Default for SyncInterval {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl MaxAhead {
    /// Returns the number of tokens for a limit.
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
    /// Minimum and maximum number of parts of one client's limit.
    pub const SHARD_RANGE: (u8, u8) = (2, 64);

    /// Returns the word in a rules document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact | Self::Sharded(_) | Self::LeasedWhenHot => "exact",
            Self::Leased => "leased",
            Self::Synced(_) => "synced",
            Self::Split => "split",
        }
    }

    /// Checks that the accuracy suits a limit; the error names what is wanted and found.
    ///
    /// # Errors
    /// The algorithm does not support the accuracy, or the limit is too small for the number of shards.
    pub(crate) fn check_limit(self, limit: &Limit) -> Result<(), String> {
        let algorithm = limit.algorithm();
        let lends = limit.supports_leases();
        let queues = matches!(algorithm, Algorithm::LeakyBucket { .. });
        let holds = limit.is_concurrency();
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

    /// Returns the bound of a limit that N nodes enforce together; `None` if it is that of the limit.
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

    /// Returns the maximum that one node admits before it reports to the store.
    fn ahead(self, limit: &Limit) -> u64 {
        match self {
            Self::Synced(synced) => synced.max_ahead.of(limit),
            _ => 0,
        }
    }
}

/// The bound of a limit across a fleet of any number of nodes.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Quota};
/// use tidegate_rules::{Accuracy, MaxAhead, SyncSettings};
///
/// let limit = Limit::new(Algorithm::TokenBucket, Quota::per_second(100))?;
/// let synced = Accuracy::Synced(SyncSettings { max_ahead: MaxAhead::Tokens(20), ..SyncSettings::default() });
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
    /// True if the limit counts by windows that are aligned to the clock.
    windowed: bool,
}

impl FleetBound {
    /// Returns the amount by which this many nodes together can exceed
    /// [`Bound::most`](tidegate_core::algorithm::Bound::most), the bound of any span as long as the window.
    #[must_use]
    pub fn overshoot(&self, nodes: u64) -> u64 {
        self.per_node().saturating_mul(nodes)
    }

    /// Returns the amount by which they can exceed [`Bound::aligned`](tidegate_core::algorithm::Bound::aligned), if
    /// the limit counts by windows.
    #[must_use]
    pub fn aligned_overshoot(&self, nodes: u64) -> Option<u64> {
        self.windowed.then(|| self.ahead.saturating_mul(nodes))
    }

    /// Returns the share of one node in the overshoot over any span: such a span touches two windows, or one bucket.
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
            Accuracy::Synced(SyncSettings { every, .. }) => {
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

/// The accuracy with all parameters: `exact`, `exact, 4 shards`, `synced every 200 ms, 20 ahead`.
impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Exact | Self::Leased | Self::Split => Ok(()),
            Self::Sharded(parts) => write!(f, ", {parts} shards"),
            Self::LeasedWhenHot => f.write_str(", leased when hot"),
            Self::Synced(SyncSettings { every, max_ahead }) => {
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
