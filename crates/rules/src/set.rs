//! The set of rules that are active together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::condition_index::ConditionIndex;
use crate::error::{ErrorReport, RuleErrors};
use crate::lint::RuleLinter;
use crate::pattern_set::FixedHasher;
use crate::warning::{RuleWarnings, WarningContext};
use crate::{Rule, parse};
use tidegate_core::request::Request;
use tidegate_core::{RuleIndex, Timestamp};

/// An ordered set of rules with different names.
///
/// The lookup of the rules for a request takes about the same time with ten rules and with ten thousand.
///
/// ```
/// use tidegate_core::Request;
/// use tidegate_rules::RuleSet;
///
/// let rules = RuleSet::parse("rules.yaml", "
/// rules:
///   - name: login
///     match: {path: /login, method: POST}
///     per: [ip]
///     limit: 5 per minute
/// ").unwrap();
/// let request = Request::new().with("path", "/login")?.with("method", "POST")?;
/// assert_eq!(rules.matching(&request)[0].name(), "login");
/// # Ok::<(), tidegate_core::RequestError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Box<[Rule]>,
    /// Rules that the service defines for its own counters. No document contains them.
    internal: Box<[Rule]>,
    by_name: HashMap<Arc<str>, usize, FixedHasher>,
    index: ConditionIndex,
}

impl RuleSet {
    /// Maximum size of a document.
    pub const MAX_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;
    /// Maximum number of rules in one set.
    pub const MAX_RULES: usize = 100_000;
    /// Maximum number of overrides of all rules of one set together.
    pub const MAX_OVERRIDES: usize = 1_000_000;

    /// Reads a YAML document; errors contain `source` as its name.
    ///
    /// # Errors
    /// All errors of the document, each with its line. A document that is not YAML has one error, at
    /// the position where the reader stopped.
    pub fn parse(source: &str, yaml: &str) -> Result<Self, RuleErrors> {
        let mut report = ErrorReport::new(source);
        let rules = parse::document(yaml, &mut report, None);
        report.finish()?;
        Ok(Self::indexed(rules))
    }

    /// Reads a list of rules inside a larger YAML document: `path` contains the keys that lead to it.
    /// The rest of the document is ignored.
    ///
    /// # Errors
    /// All errors of the rules, each with its line in the whole document.
    pub fn parse_at(source: &str, yaml: &str, path: &[&str]) -> Result<Self, RuleErrors> {
        let mut report = ErrorReport::new(source);
        let rules = parse::part(yaml, path, &mut report, None);
        report.finish()?;
        Ok(Self::indexed(rules))
    }

    /// As [`parse`](Self::parse), or [`parse_at`](Self::parse_at) with a path that is not empty. Returns also the
    /// warnings: parts of valid rules that have no effect. Ends of overrides are compared with `now`.
    ///
    /// ```
    /// use tidegate_core::Timestamp;
    /// use tidegate_rules::{RuleSet, WarningContext};
    ///
    /// let yaml = "rules: [{name: login, match: {method: post}, limit: 5 per minute}]";
    /// let (context, now) = (WarningContext::default(), Timestamp::from_secs(1_780_000_000));
    /// let (_, warnings) = RuleSet::parse_with_warnings("rules.yaml", yaml, &[], &context, now).unwrap();
    /// assert_eq!(
    ///     warnings.iter().next().unwrap().to_string(),
    ///     r#"rules.yaml:1: warning: rule "login": match.method: found "post", which no HTTP request has, wanted "POST""#
    /// );
    /// ```
    ///
    /// # Errors
    /// All errors of the rules, each with its line.
    pub fn parse_with_warnings(
        source: &str,
        yaml: &str,
        path: &[&str],
        context: &WarningContext,
        now: Timestamp,
    ) -> Result<(Self, RuleWarnings), RuleErrors> {
        let mut report = ErrorReport::new(source);
        let mut linter = RuleLinter::new(source, context, now);
        let rules = match path {
            [] => parse::document(yaml, &mut report, Some(&mut linter)),
            path => parse::part(yaml, path, &mut report, Some(&mut linter)),
        };
        report.finish()?;
        Ok((Self::indexed(rules), linter.finish()))
    }

    /// Creates a set of rules made in code.
    ///
    /// # Errors
    /// Two rules have the same name, or there are too many rules or overrides.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleErrors> {
        let mut report = ErrorReport::new("");
        let overrides = rules.iter().map(|rule| rule.overrides().len()).sum();
        check_size(rules.len(), overrides, &mut report);
        let mut names = HashSet::with_capacity_and_hasher(rules.len(), FixedHasher::default());
        for rule in &rules {
            if !names.insert(rule.name()) {
                report.set_rule(Some(rule.name()));
                report.add(None, "name must be unique, found it twice");
            }
        }
        report.finish()?;
        Ok(Self::indexed(rules))
    }

    /// Returns the same set with more rules after the others, which apply only where they are named: no
    /// request matches them, whatever their conditions.
    ///
    /// # Errors
    /// A name is used twice, or there are too many rules.
    pub fn with_named(self, rules: Vec<Rule>) -> Result<Self, RuleErrors> {
        let mut report = ErrorReport::new("");
        let mut all = self.rules.into_vec();
        let (first_new, mut by_name) = (all.len(), self.by_name);
        let both = || all.iter().chain(&rules);
        let overrides = both().map(|rule| rule.overrides().len()).sum();
        check_size(both().count(), overrides, &mut report);
        for (index, rule) in (first_new..).zip(&rules) {
            report.set_rule(Some(rule.name()));
            match by_name.insert(rule.shared_name(), index) {
                Some(taken) if taken < first_new => {
                    report.add(None, "this name is reserved, choose another");
                }
                Some(_) => report.add(None, "name must be unique, found it twice"),
                None => {}
            }
        }
        report.finish()?;
        all.extend(rules);
        Ok(Self { rules: all.into(), by_name, ..self })
    }

    /// Adds internal rules, which a service defines for its own counters. They apply only to requests that name
    /// them, and [`rules`](Self::rules) does not return them.
    ///
    /// # Errors
    /// A rule of the set has one of their names.
    pub fn with_internal(self, internal: Vec<Rule>) -> Result<Self, RuleErrors> {
        let mut report = ErrorReport::new("");
        for rule in internal.iter().filter(|rule| self.by_name.contains_key(rule.name())) {
            report.set_rule(Some(rule.name()));
            report.add(None, "this name is reserved, choose another");
        }
        report.finish()?;
        Ok(Self { internal: internal.into(), ..self })
    }

    fn indexed(rules: Vec<Rule>) -> Self {
        Self {
            by_name: (0..).zip(&rules).map(|(index, rule)| (rule.shared_name(), index)).collect(),
            index: ConditionIndex::new(rules.iter().map(Rule::conditions)),
            rules: rules.into(),
            internal: Box::default(),
        }
    }

    /// Returns every rule in the order of the document, then those that apply only where they are named;
    /// no internal ones.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the internal rules.
    #[must_use]
    pub fn internal(&self) -> &[Rule] {
        &self.internal
    }

    /// Returns every rule with its index, internal ones last.
    pub fn all(&self) -> impl Iterator<Item = (RuleIndex, &Rule)> {
        (0..).map(RuleIndex).zip(self.rules.iter().chain(&self.internal))
    }

    /// Returns the rule with this index, internal or not.
    #[must_use]
    #[inline]
    pub fn get(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules
            .get(index.0)
            .or_else(|| self.internal.get(index.0.checked_sub(self.rules.len())?))
    }

    /// Returns the rule with this name, internal or not.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.get(self.rule_index(name)?)
    }

    /// Returns the index of the rule with this name, internal or not.
    #[must_use]
    pub fn rule_index(&self, name: &str) -> Option<RuleIndex> {
        self.user_rule_index(name).or_else(|| {
            let index = self.internal.iter().position(|rule| rule.name() == name)?;
            Some(RuleIndex(self.rules.len() + index))
        })
    }

    /// Returns the index of the rule with this name among [`rules`](Self::rules).
    #[must_use]
    pub fn user_rule_index(&self, name: &str) -> Option<RuleIndex> {
        self.by_name.get(name).copied().map(RuleIndex)
    }

    /// Returns the rules that apply to a request, in the order of the document.
    ///
    /// The result is the same as that of [`Rule::matches`] for each rule; the index makes it faster.
    #[must_use]
    pub fn matching(&self, request: &Request<'_>) -> SmallVec<[&Rule; 8]> {
        let indices = self.matching_indices(request);
        indices.into_iter().filter_map(|index| self.get(index)).collect()
    }

    /// Returns the indices of the rules that apply to a request, in their order.
    #[must_use]
    pub fn matching_indices(&self, request: &Request<'_>) -> SmallVec<[RuleIndex; 8]> {
        let mut found: SmallVec<[RuleIndex; 8]> = SmallVec::new();
        self.index.candidates(request, |index, decided| {
            let matches = |rule: &Rule| {
                decided.others_are_satisfied(rule.conditions(), request)
                    && rule.applies_to_client(request)
            };
            if self.rules.get(index).is_some_and(matches) {
                found.push(RuleIndex(index));
            }
        });
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Reports a set with too many rules or overrides.
pub(crate) fn check_size(rules: usize, overrides: usize, report: &mut ErrorReport) {
    if rules > RuleSet::MAX_RULES {
        report
            .add(None, format!("at most {} rules are allowed, found {rules}", RuleSet::MAX_RULES));
    }
    if overrides > RuleSet::MAX_OVERRIDES {
        report.add(
            None,
            format!(
                "at most {} overrides are allowed in all, found {overrides}",
                RuleSet::MAX_OVERRIDES
            ),
        );
    }
}
