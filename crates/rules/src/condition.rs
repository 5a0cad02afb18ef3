//! Conditions of a rule's `match`: an attribute and a test of its value.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::Request;

use crate::error::quote;
use crate::glob::Glob;
use crate::ignored::IgnoredDifferences;
use crate::network::NetworkSet;
use crate::pattern_set::{PatternSet, PatternSetBuilder};
use crate::rollout::Rollout;

/// A test of one attribute of a request.
///
/// An attribute with an empty value counts as absent everywhere in a rule: a client that sends
/// an empty `X-API-Key` has no key, and gets no separate bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    attribute: Box<str>,
    test: ValueTest,
}

impl Condition {
    /// Creates a condition that the attribute passes the test.
    #[must_use]
    pub fn new(attribute: &str, test: ValueTest) -> Self {
        Self { attribute: attribute.into(), test }
    }

    /// Returns the attribute.
    #[must_use]
    pub fn attribute(&self) -> &str {
        &self.attribute
    }

    /// Returns the test of its value.
    #[must_use]
    pub fn test(&self) -> &ValueTest {
        &self.test
    }

    /// Returns the wanted value as text; only the number of values if they [may be secrets](may_be_secret).
    ///
    /// ```
    /// use tidegate_rules::{Condition, ValueTest};
    ///
    /// assert_eq!(Condition::new("path", ValueTest::is("/login")).redacted(), r#""/login""#);
    /// assert_eq!(Condition::new("api_key", ValueTest::is("k1")).redacted(), "a value that is not shown");
    /// ```
    #[must_use]
    pub fn redacted(&self) -> String {
        match &self.test {
            test if !may_be_secret(&self.attribute) => test.to_string(),
            ValueTest::Not(test) => format!("{NOT_PHRASE}{}", test.without_values()),
            test => test.without_values(),
        }
    }

    /// Returns the differences between values that the test ignores.
    pub(crate) fn ignored(&self) -> IgnoredDifferences {
        match &self.test {
            ValueTest::OneOf(patterns) => patterns.ignored(),
            ValueTest::In(_) | ValueTest::Present | ValueTest::Absent | ValueTest::Not(_) => {
                IgnoredDifferences::NONE
            }
        }
    }

    /// Returns whether the request satisfies the condition.
    #[must_use]
    pub fn is_satisfied(&self, request: &Request<'_>) -> bool {
        self.test.passes(present(request, &self.attribute))
    }
}

/// Returns whether the values of an attribute may be secrets, or name a person. Only the listed attributes, which
/// name a place or a program, are known not to: `api_key`, `session`, `bearer`, `user`, `cookie.*`, `header.*`,
/// `claim.*` and `query.*` are not among them.
#[must_use]
pub fn may_be_secret(attribute: &str) -> bool {
    const PUBLIC_ATTRIBUTES: [&str; 8] =
        ["ip", "service", "path", "host", "method", "domain", "remote_address", "generic_key"];
    !PUBLIC_ATTRIBUTES.contains(&attribute)
}

/// Returns the value of an attribute that the request has and that is not empty.
#[inline]
pub(crate) fn present<'q>(request: &'q Request<'_>, attribute: &str) -> Option<&'q str> {
    request.get(attribute).filter(|value| !value.is_empty())
}

/// A test of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueTest {
    /// The value equals one of some texts, or matches one of some patterns.
    OneOf(ValuePatterns),
    /// The value is an IP address in one of some networks.
    In(NetworkSet),
    /// The attribute is present and not empty.
    Present,
    /// The attribute is absent or empty.
    Absent,
    /// The test does not pass. An absent attribute passes, unless the test is [`Absent`](Self::Absent): a client
    /// can't avoid a rule by omitting the attribute.
    Not(Box<ValueTest>),
}

impl ValueTest {
    /// Creates a test for a text, or for a pattern if the text has stars: `GET`, `/v1/**`.
    #[must_use]
    pub fn like(pattern: &str) -> Self {
        Self::OneOf(ValuePatterns::new([ValuePattern::like(pattern)]))
    }

    /// Creates a test for exactly this text; a star is an ordinary character.
    #[must_use]
    pub fn is(text: &str) -> Self {
        Self::OneOf(ValuePatterns::new([ValuePattern::Exact(text.into())]))
    }

    /// Creates a test for an address in one of the networks.
    #[must_use]
    pub fn within(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self::In(NetworkSet::new(networks))
    }

    /// Returns whether a value passes; `None` is an attribute that is absent or empty.
    #[must_use]
    pub fn passes(&self, value: Option<&str>) -> bool {
        match (self, value) {
            (Self::Not(test), value) => !test.passes(value),
            (Self::Absent, value) => value.is_none(),
            (_, None) => false,
            (Self::Present, Some(_)) => true,
            (Self::OneOf(patterns), Some(value)) => patterns.match_value(value),
            (Self::In(networks), Some(value)) => networks.contains(value),
        }
    }

    /// Creates the opposite test. It passes if the attribute is absent.
    ///
    /// ```
    /// use tidegate_rules::ValueTest;
    ///
    /// let test = ValueTest::like("/static/**").negated();
    /// assert!(test.passes(Some("/login")) && test.passes(None));
    /// assert!(!test.passes(Some("/static/a.css")));
    /// ```
    #[must_use]
    pub fn negated(self) -> Self {
        match self {
            Self::Present => Self::Absent,
            Self::Absent => Self::Present,
            Self::Not(test) => *test,
            Self::OneOf(_) | Self::In(_) => Self::Not(Box::new(self)),
        }
    }

    /// Returns the wanted value as text, with only the number of texts and patterns.
    fn without_values(&self) -> String {
        match self {
            Self::OneOf(patterns) => match patterns.exact().len() + patterns.globs().len() {
                1 => "a value that is not shown".to_owned(),
                count => format!("one of {count} values that are not shown"),
            },
            test => test.to_string(),
        }
    }
}

/// A text that a value may be equal to, or a pattern that may match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValuePattern {
    /// The value itself.
    Exact(Box<str>),
    /// A pattern with stars.
    Glob(Glob),
}

impl ValuePattern {
    /// Creates a glob if the text has stars, else an exact pattern.
    #[must_use]
    pub fn like(text: &str) -> Self {
        Glob::new(text).map_or_else(|| Self::Exact(text.into()), Self::Glob)
    }

    /// Returns whether a whole value is the text or matches the pattern.
    ///
    /// ```
    /// use tidegate_rules::ValuePattern;
    ///
    /// assert!(ValuePattern::like("/v1/**").matches("/v1/items"));
    /// ```
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => **text == *value,
            Self::Glob(glob) => glob.matches(value),
        }
    }
}

/// Texts and patterns, one of which must match.
#[derive(Clone, Debug)]
pub struct ValuePatterns {
    /// Sorted for binary search: a list may contain ten thousand names.
    exact: Box<[Box<str>]>,
    globs: Box<[Glob]>,
    /// Finds the globs that match, if they are many.
    glob_set: Option<Arc<PatternSet>>,
    /// If it is not empty, texts and patterns are folded, and match folded values.
    ignored: IgnoredDifferences,
}

/// More globs than these are matched together rather than one after another.
const MAX_SEPARATE_GLOBS: usize = 8;

impl ValuePatterns {
    /// Creates a set of alternatives from these patterns.
    #[must_use]
    pub fn new(patterns: impl IntoIterator<Item = ValuePattern>) -> Self {
        let (mut exact, mut globs) = (Vec::new(), Vec::new());
        for pattern in patterns {
            match pattern {
                ValuePattern::Exact(text) => exact.push(text),
                ValuePattern::Glob(glob) => globs.push(glob),
            }
        }
        exact.sort_unstable();
        exact.dedup();
        let glob_set = (globs.len() > MAX_SEPARATE_GLOBS).then(|| {
            let mut builder = PatternSetBuilder::default();
            globs.iter().for_each(|glob| builder.add_glob(glob, 0));
            Arc::new(builder.finish())
        });
        let ignored = IgnoredDifferences::NONE;
        Self { exact: exact.into(), globs: globs.into(), glob_set, ignored }
    }

    /// Creates a set of alternatives that match a value if one of these patterns matches a value that differs from it
    /// only in what is ignored.
    ///
    /// ```
    /// use tidegate_rules::{IgnoredDifferences, ValuePattern, ValuePatterns, ValueTest};
    ///
    /// let ignored = IgnoredDifferences { case: true, trailing_slash: true };
    /// let login = ValuePatterns::ignoring([ValuePattern::like("/login")], ignored);
    /// assert!(ValueTest::OneOf(login).passes(Some("/Login/")));
    /// ```
    #[must_use]
    pub fn ignoring(
        patterns: impl IntoIterator<Item = ValuePattern>,
        ignored: IgnoredDifferences,
    ) -> Self {
        if ignored.is_none() {
            return Self::new(patterns);
        }
        let mut folded = Vec::new();
        for pattern in patterns {
            ignored.fold_pattern(&pattern, &mut folded);
        }
        Self { ignored, ..Self::new(folded) }
    }

    /// Returns the ignored differences.
    #[must_use]
    pub const fn ignored(&self) -> IgnoredDifferences {
        self.ignored
    }

    fn match_value(&self, value: &str) -> bool {
        if self.ignored.is_none() {
            return self.match_folded(value);
        }
        self.match_folded(&self.ignored.fold(value))
    }

    fn match_folded(&self, value: &str) -> bool {
        self.exact.binary_search_by(|text| (**text).cmp(value)).is_ok()
            || match &self.glob_set {
                Some(globs) => globs.first(value).is_some(),
                None => self.globs.iter().any(|glob| glob.matches(value)),
            }
    }

    /// Returns the texts, sorted.
    pub fn exact(&self) -> impl ExactSizeIterator<Item = &str> {
        self.exact.iter().map(|text| &**text)
    }

    /// Returns the patterns with stars.
    pub fn globs(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.globs.iter()
    }
}

/// Alternatives are equal if their patterns are.
impl PartialEq for ValuePatterns {
    fn eq(&self, other: &Self) -> bool {
        self.exact == other.exact && self.globs == other.globs && self.ignored == other.ignored
    }
}

impl Eq for ValuePatterns {}

/// Maximum number of alternatives that the text of a test lists.
const MAX_LISTED_ALTERNATIVES: usize = 5;

/// The start of the phrase of a negated test.
const NOT_PHRASE: &str = "anything but ";

/// The wanted value as a phrase: `"GET" or "POST"`, `an address in 10.0.0.0/8`, `anything but "/healthz"`.
impl fmt::Display for ValueTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneOf(patterns) => {
                // The path `/` without its slash is empty.
                let exact =
                    patterns.exact().map(|text| quote(if text.is_empty() { "/" } else { text }));
                let globs = patterns.globs().map(|glob| quote(&glob.to_string()));
                write_alternatives(f, exact.len() + globs.len(), exact.chain(globs))?;
                write!(f, "{}", patterns.ignored())
            }
            Self::In(networks) => {
                f.write_str("an address in ")?;
                write_alternatives(f, networks.iter().len(), networks.iter())
            }
            Self::Present => f.write_str("any value"),
            Self::Absent => f.write_str("none"),
            Self::Not(test) => write!(f, "{NOT_PHRASE}{test}"),
        }
    }
}

fn write_alternatives<T: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    count: usize,
    items: impl Iterator<Item = T>,
) -> fmt::Result {
    let listed = if count > MAX_LISTED_ALTERNATIVES { MAX_LISTED_ALTERNATIVES - 1 } else { count };
    for (index, item) in items.take(listed).enumerate() {
        match index {
            0 => write!(f, "{item}")?,
            _ if index + 1 == count => write!(f, " or {item}")?,
            _ => write!(f, ", {item}")?,
        }
    }
    match count - listed {
        0 => Ok(()),
        more => write!(f, " or {more} others"),
    }
}

/// The reason why a rule does not apply to a request.
///
/// Prints values of the request: for the output of `explain`, not for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleMismatch<'a> {
    /// The rule is switched off.
    Off,
    /// The first condition that does not hold.
    Condition {
        /// The attribute.
        attribute: &'a str,
        /// The value of the request; `None` if it is absent.
        found: Option<&'a str>,
        /// The test of the rule.
        wanted: &'a ValueTest,
    },
    /// The client is outside the share of the rule's rollout.
    Rollout(Rollout),
}

impl fmt::Display for RuleMismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("the rule is off"),
            Self::Condition { attribute, found, wanted } => {
                let found = found.map_or_else(|| "absent".to_owned(), quote);
                write!(f, "{attribute} is {found}, wanted {wanted}")
            }
            Self::Rollout(share) => {
                write!(f, "the client is not among the {share} that the rule is rolled out to")
            }
        }
    }
}
