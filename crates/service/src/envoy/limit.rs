//! One limit of an envoyproxy/ratelimit configuration.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use tidegate_core::{Request, Span};

/// A `rate_limit` and what the descriptor around it says.
#[derive(Debug)]
pub struct EnvoyLimit {
    /// The native rule that counts it; an unlimited one has only the name.
    pub rule: Arc<str>,
    /// Its own name, by which others can replace it.
    pub(crate) name: Option<Box<str>>,
    /// 0 denies always, also while the store is away.
    pub(crate) requests_per_unit: u32,
    /// [`Unit::Unknown`] for an unlimited one.
    pub(crate) unit: Unit,
    /// Whether it counts and never denies.
    pub(crate) shadow: bool,
    /// Whether it says that it is over and denies nobody. Its rule is one in shadow, so that it does not
    /// keep the rest of a call from being charged.
    pub(crate) quota: bool,
    /// The names of limits that are left out of a call in which this one is found.
    pub(crate) replaces: Box<[Box<str>]>,
    /// What its author wants to be told with an answer.
    pub(crate) metadata: Option<serde_json::Value>,
    /// Its path as envoyproxy/ratelimit spells it: `domain.key_value.key`.
    pub(crate) path: Box<str>,
    /// For each entry of a descriptor, the attribute that its value becomes.
    pub(crate) attributes: Box<[Box<str>]>,
}

/// The window of a limit: fixed, counted from the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// No unit.
    Unknown,
    /// Second.
    Second,
    /// Minute.
    Minute,
    /// Hour.
    Hour,
    /// Day.
    Day,
    /// Week.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

/// What the domain of a call becomes.
pub(crate) const DOMAIN: &str = "domain";

impl EnvoyLimit {
    /// Whether it lets everything pass.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.unit == Unit::Unknown
    }

    /// The call as its rule and the block list see it: the domain and every entry as attributes.
    ///
    /// A value that is too long for an attribute is told apart by its hash: to refuse it would let it
    /// pass through an Envoy that fails open.
    pub(crate) fn request<'a>(
        &'a self,
        domain: &'a str,
        entries: &[(&'a str, &'a str)],
    ) -> Request<'a> {
        let mut request = Request::new();
        let mut add = |name: &'a str, value: Cow<'a, str>| {
            let added = request.insert(name, value);
            debug_assert!(added.is_ok(), "names and depth were checked when they were read");
        };
        add(DOMAIN, domain.into());
        for (name, (_, value)) in self.attributes.iter().zip(entries) {
            add(name, fitting(value));
        }
        request
    }
}

fn fitting(value: &str) -> Cow<'_, str> {
    if value.len() <= Request::MAX_VALUE {
        return value.into();
    }
    format!("blake3:{}", blake3::hash(value.as_bytes()).to_hex()).into()
}

/// The line of `/rlconfig`.
impl fmt::Display for EnvoyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, unit, requests_per_unit, shadow, .. } = self;
        write!(
            f,
            "{path}: unit={unit} requests_per_unit={requests_per_unit}, shadow_mode: {shadow}"
        )
    }
}

impl Unit {
    pub(crate) const NAMES: [(&str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    /// The unit of this name, in any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, unit)| *unit)
    }

    /// The unit whose window is exactly this; [`Unknown`](Self::Unknown) if none is.
    pub(crate) fn of(window: Span) -> Self {
        let known = Self::NAMES.iter().find(|(_, unit)| unit.window() == Some(window));
        known.map_or(Self::Unknown, |(_, unit)| *unit)
    }

    /// How long its window is; `None` for none.
    pub(crate) const fn window(self) -> Option<Span> {
        const DAY: u64 = 24 * 60 * 60;
        let seconds = match self {
            Self::Unknown => return None,
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        };
        Some(Span::from_secs(seconds))
    }
}

/// As the protocol spells it: `MINUTE`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        })
    }
}
