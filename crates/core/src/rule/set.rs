//! All rules that are in force together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::error::{Report, RuleErrors};
use super::matcher::{Hashing, Matcher};
use super::{Rule, parse};
use crate::request::Request;

/// An ordered set of rules with different names.
///
/// Finding the rules for a request costs about the same for ten rules and for ten thousand.
///
/// ```
/// use tidegate_core::{Request, RuleSet};
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
    by_name: HashMap<Arc<str>, usize, Hashing>,
    matcher: Matcher,
}

impl RuleSet {
    /// Longest document in bytes.
    pub const MAX_DOCUMENT: usize = 16 * 1024 * 1024;
    /// Most rules of one set.
    pub const MAX_RULES: usize = 100_000;
    /// Most overrides of all rules of one set together.
    pub const MAX_OVERRIDES: usize = 1_000_000;

    /// Reads a YAML document; `source` says in errors where it came from.
    ///
    /// # Errors
    /// Everything that is wrong with the document, each error with its line. A document that is
    /// no YAML has one error, where the reader had to stop.
    pub fn parse(source: &str, yaml: &str) -> Result<Self, RuleErrors> {
        let mut report = Report::new(source);
        let rules = parse::document(yaml, &mut report);
        report.finish()?;
        Ok(Self::indexed(rules))
    }

    /// As [`parse`](Self::parse), for a list of rules inside a larger document: `path` names the
    /// keys that lead to it. The rest of the document is not looked at.
    ///
    /// # Errors
    /// Everything that is wrong with the rules, each error with its line in the whole document.
    pub fn parse_at(source: &str, yaml: &str, path: &[&str]) -> Result<Self, RuleErrors> {
        let mut report = Report::new(source);
        let rules = parse::part(yaml, path, &mut report);
        report.finish()?;
        Ok(Self::indexed(rules))
    }

    /// A set of rules made in code.
    ///
    /// # Errors
    /// Two rules have the same name, or there are too many rules or overrides.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RuleErrors> {
        let mut report = Report::new("");
        let overrides = rules.iter().map(|rule| rule.overrides().len()).sum();
        check_size(rules.len(), overrides, &mut report);
        let mut names = HashSet::with_capacity_and_hasher(rules.len(), Hashing::default());
        for rule in &rules {
            if !names.insert(rule.name()) {
                report.enter(Some(rule.name()));
                report.add(None, "name must be unique, found it twice");
            }
        }
        report.finish()?;
        Ok(Self::indexed(rules))
    }

    /// The same set with more rules after the others, which apply only where they are named: no
    /// request matches them, whatever their conditions.
    ///
    /// # Errors
    /// A rule of the set, or another of these, has one of their names already; or there are too many.
    pub fn with_named(self, rules: Vec<Rule>) -> Result<Self, RuleErrors> {
        let mut report = Report::new("");
        let mut all = self.rules.into_vec();
        let (written, mut by_name) = (all.len(), self.by_name);
        let both = || all.iter().chain(&rules);
        let overrides = both().map(|rule| rule.overrides().len()).sum();
        check_size(both().count(), overrides, &mut report);
        for (place, rule) in (written..).zip(&rules) {
            report.enter(Some(rule.name()));
            match by_name.insert(rule.shared_name(), place) {
                Some(taken) if taken < written => {
                    report.add(None, "this name is reserved, choose another");
                }
                Some(_) => report.add(None, "name must be unique, found it twice"),
                None => {}
            }
        }
        report.finish()?;
        all.extend(rules);
        Ok(Self { rules: all.into(), by_name, matcher: self.matcher })
    }

    fn indexed(rules: Vec<Rule>) -> Self {
        Self {
            by_name: (0..).zip(&rules).map(|(index, rule)| (rule.shared_name(), index)).collect(),
            matcher: Matcher::new(rules.iter().map(Rule::conditions)),
            rules: rules.into(),
        }
    }

    /// Every rule in the order of the document, then those that apply only where they are named.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule with this name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.get(self.place(name)?)
    }

    /// Where the rule with this name stands among [`rules`](Self::rules).
    #[must_use]
    pub fn place(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The rules that apply to a request, in the order of the document.
    ///
    /// The same as asking every rule of the document whether it [matches](Rule::matches), only faster.
    #[must_use]
    pub fn matching(&self, request: &Request<'_>) -> SmallVec<[&Rule; 8]> {
        let places = self.matching_places(request);
        places.into_iter().filter_map(|index| self.rules.get(index)).collect()
    }

    /// Where the rules that apply to a request stand among [`rules`](Self::rules), in their order.
    #[must_use]
    pub fn matching_places(&self, request: &Request<'_>) -> SmallVec<[usize; 8]> {
        let mut found: SmallVec<[usize; 8]> = SmallVec::new();
        self.matcher.candidates(request, |index, sure| {
            let matches = |rule: &Rule| match sure {
                true => rule.reaches(request),
                false => rule.matches(request).is_ok(),
            };
            if self.rules.get(index).is_some_and(matches) {
                found.push(index);
            }
        });
        found.sort_unstable();
        found.dedup();
        found
    }
}

/// Reports a set that is larger than we are willing to hold.
pub(super) fn check_size(rules: usize, overrides: usize, report: &mut Report) {
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
