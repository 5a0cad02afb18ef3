//! One limit of an envoyproxy/ratelimit configuration.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use tidegate_core::{Request, Span};

/// A `rate_limit`, with the settings of its descriptor.
#[derive(Debug)]
pub struct EnvoyLimit {
    /// The name of the native rule that counts it. There is no such rule for an unlimited one.
    pub rule: Arc<str>,
    /// The name under which other limits can replace it.
    pub(crate) name: Option<Box<str>>,
    /// The amount; 0 denies every request, also during a store failure.
    pub(crate) requests_per_unit: u32,
    /// The window; [`Unit::Unknown`] for an unlimited one.
    pub(crate) unit: Unit,
    /// Set if it counts and never denies.
    pub(crate) shadow: bool,
    /// Set if it reports an exceeded limit and never denies. Its rule has the mode shadow: the other limits of a call
    /// are charged although it is exceeded.
    pub(crate) quota: bool,
    /// The names of the limits that it replaces in a call.
    pub(crate) replaces: Box<[Box<str>]>,
    /// The metadata that is sent with a reply.
    pub(crate) metadata: Option<serde_json::Value>,
    /// The path as envoyproxy/ratelimit prints it: `domain.key_value.key`.
    pub(crate) path: Box<str>,
    /// The attribute name of each entry of a descriptor.
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

/// The attribute name of the domain.
pub(crate) const DOMAIN_ATTRIBUTE: &str = "domain";

impl EnvoyLimit {
    /// Returns whether it allows everything.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.unit == Unit::Unknown
    }

    /// Returns the request that its rule and the block list check: the domain and every entry as attributes.
    ///
    /// A value that is too long for an attribute is replaced by its hash. An error instead would allow the request if
    /// Envoy fails open.
    pub(crate) fn request<'a>(
        &'a self,
        domain: &'a str,
        entries: &[(&'a str, &'a str)],
    ) -> Request<'a> {
        let mut request = Request::new();
        let mut add = |name: &'a str, value: Cow<'a, str>| {
            let added = request.insert(name, value);
            debug_assert!(added.is_ok(), "names and depth were checked by the parser");
        };
        add(DOMAIN_ATTRIBUTE, domain.into());
        for (name, (_, value)) in self.attributes.iter().zip(entries) {
            add(name, attribute_value(value));
        }
        request
    }
}

fn attribute_value(value: &str) -> Cow<'_, str> {
    if value.len() <= Request::MAX_VALUE {
        return value.into();
    }
    format!("blake3:{}", blake3::hash(value.as_bytes()).to_hex()).into()
}

/// Prints the line of `/rlconfig`.
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

    /// Returns the unit of this name, in upper or lower case.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, unit)| *unit)
    }

    /// Returns the unit with exactly this window, else [`Unknown`](Self::Unknown).
    pub(crate) fn from_window(window: Span) -> Self {
        let known = Self::NAMES.iter().find(|(_, unit)| unit.window() == Some(window));
        known.map_or(Self::Unknown, |(_, unit)| *unit)
    }

    /// Returns the length of the window; `None` for [`Unknown`](Self::Unknown).
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

/// Prints the name in the protocol, such as `MINUTE`.
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
