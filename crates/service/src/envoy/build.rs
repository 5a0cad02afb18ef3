//! From what was written to trees that can be asked. Whatever is wrong is reported, each with its line.

use std::collections::HashMap;

use serde_saphyr::Spanned;
use tidegate_core::{Algorithm, Quota, Request, quote};
use tidegate_rules::{Mode, OnStoreFailure, Rule, SourceRange, did_you_mean};

use crate::config_error::{ConfigError, InvalidEntry, mark, unreadable};
use crate::envoy::name::{self, MAX_KEY, Step};
use crate::envoy::raw::{self, RawDescriptor, RawLimit};
use crate::envoy::tree::{Level, Node, Refused};
use crate::envoy::{EnvoyLimit, EnvoyRules, Unit};

/// Most levels of descriptors.
pub(crate) const MAX_DEPTH: usize = Rule::MAX_PER_ENTRIES;
/// Most errors that are listed.
const MAX_WRONG: usize = 100;
/// Longest domain, value or name in bytes.
const MAX_TEXT: usize = Rule::MAX_VALUE_BYTES;
/// Longest metadata in bytes of JSON.
const MAX_METADATA: usize = 16 * 1024;
/// Most names that one limit replaces.
const MAX_REPLACES: usize = 100;

/// Reads files into trees, limits and rules.
pub(crate) fn rules(files: &[(String, String)]) -> Result<EnvoyRules, ConfigError> {
    let mut builder = Builder::default();
    let mut homes: HashMap<String, &str> = HashMap::new();
    for (source, text) in files {
        builder.source = source;
        let file = match raw::read(text) {
            Ok(file) => file,
            Err(error) => {
                let at = error.location().map(mark);
                builder.add(at, unreadable(&error, text));
                continue;
            }
        };
        let Some(domain) = builder.domain(file.domain) else { continue };
        if let Some(first) = homes.get(&domain.value) {
            let found = quote(&domain.value);
            let message = format!("domain {found} must be unique, found it in {first} too");
            builder.add(mark(domain.referenced), message);
            continue;
        }
        builder.domain.clone_from(&domain.value);
        let level = builder.level(file.descriptors.as_deref().unwrap_or_default(), &mut Vec::new());
        builder.domains.insert(domain.value.as_str().into(), level);
        homes.insert(domain.value, source);
    }
    builder.finish()
}

/// Collects what is right and what is wrong.
#[derive(Default)]
struct Builder<'s> {
    source: &'s str,
    domain: String,
    domains: HashMap<Box<str>, Level>,
    drafts: Vec<Draft>,
    wrong: Vec<InvalidEntry>,
}

/// A limit whose rule has no name yet.
struct Draft {
    limit: EnvoyLimit,
    /// The attributes whose values the configuration leaves open.
    per: Vec<Box<str>>,
    hash: [u8; 32],
    source: String,
    at: SourceRange,
}

/// One step down a tree.
struct Down<'y> {
    step: Step<'y>,
    /// Whether each value has a counter of its own.
    open: bool,
}

impl Builder<'_> {
    fn add(&mut self, at: impl Into<Option<SourceRange>>, message: String) {
        if self.wrong.len() < MAX_WRONG {
            self.wrong.push(InvalidEntry::new(self.source, at.into(), message));
        }
    }

    fn domain(&mut self, domain: Option<Spanned<String>>) -> Option<Spanned<String>> {
        let Some(domain) = domain.filter(|domain| !domain.value.is_empty()) else {
            self.add(SourceRange::new(1, 1, 0), "domain must be a text, found nothing".to_owned());
            return None;
        };
        self.fits("domain", &domain, MAX_TEXT).then_some(domain)
    }

    /// Whether a text is short enough; says so if not.
    fn fits(&mut self, what: &str, text: &Spanned<String>, most: usize) -> bool {
        let found = text.value.len();
        if found > most {
            let message = format!("{what} must be at most {most} bytes long, found {found}");
            self.add(mark(text.referenced), message);
        }
        found <= most
    }

    fn level<'y>(
        &mut self,
        descriptors: &'y [Spanned<RawDescriptor>],
        path: &mut Vec<Down<'y>>,
    ) -> Level {
        let mut level = Level::default();
        if let (MAX_DEPTH, Some(first)) = (path.len(), descriptors.first()) {
            let message = format!("descriptors must be nested at most {MAX_DEPTH} deep");
            self.add(mark(first.referenced), message);
            return level;
        }
        for descriptor in descriptors {
            let (raw, at) = (&descriptor.value, mark(descriptor.referenced));
            let Some(down) = self.step(raw, at) else { continue };
            let (key, value) = down.step;
            path.push(down);
            let limit = raw.rate_limit.as_ref().and_then(|limit| self.limit(raw, limit, path));
            let below = self.level(raw.descriptors.as_deref().unwrap_or_default(), path);
            let added = level.add(key, value, Node { limit, below });
            let steps: Vec<Step<'_>> = path.iter().map(|down| down.step).collect();
            path.pop();
            match added {
                Ok(()) => {}
                Err(Refused::Twice) => {
                    let spelled = quote(&name::spelled(&self.domain, &steps));
                    self.add(at, format!("descriptor {spelled} must be unique, found it twice"));
                }
                Err(Refused::TooManyPatterns) => {
                    let (key, most) = (quote(key), Level::MAX_PATTERNS);
                    self.add(
                        at,
                        format!("key {key} must have at most {most} values with '*', found more"),
                    );
                }
            }
        }
        level
    }

    fn step<'y>(&mut self, raw: &'y RawDescriptor, at: SourceRange) -> Option<Down<'y>> {
        let Some(key) = raw.key.as_ref().filter(|key| !key.value.is_empty()) else {
            self.add(at, "key must be a text, found nothing".to_owned());
            return None;
        };
        if !self.fits("key", key, MAX_KEY) {
            return None;
        }
        let value = raw.value.as_ref().filter(|value| !value.value.is_empty());
        if value.is_some_and(|value| !self.fits("value", value, MAX_TEXT)) {
            return None;
        }
        let text = value.map(|value| value.value.as_str());
        let pattern = text.is_some_and(|text| text.contains('*'));
        let shared = raw.share_threshold.as_ref().filter(|shared| shared.value);
        if let (Some(shared), false) = (shared, pattern) {
            let found = text.map_or_else(|| "nothing".to_owned(), quote);
            let message = format!("share_threshold needs a value with '*', found {found}");
            self.add(mark(shared.referenced), message);
        }
        let open = text.is_none() || (pattern && shared.is_none());
        Some(Down { step: (&key.value, text), open })
    }

    /// Where the limit stands, if it can be used.
    fn limit(
        &mut self,
        raw: &RawDescriptor,
        limit: &Spanned<RawLimit>,
        path: &[Down<'_>],
    ) -> Option<usize> {
        let at = mark(limit.referenced);
        let rate = self.rate(&limit.value, at);
        let name = limit.value.name.as_deref().filter(|name| !name.is_empty());
        let replaces = self.replaces(&limit.value, name);
        let metadata = match &raw.metadata {
            Some(metadata) => Some(self.metadata(metadata)?),
            None => None,
        };
        let ((requests_per_unit, unit), replaces) = (rate?, replaces?);
        let steps: Vec<Step<'_>> = path.iter().map(|down| down.step).collect();
        let attributes = name::attributes(&steps);
        let per = attributes.iter().zip(path).filter(|(_, down)| down.open);
        let per = per.map(|(name, _)| name.clone()).collect();
        self.drafts.push(Draft {
            limit: EnvoyLimit {
                rule: "".into(),
                name: name.map(Box::from),
                requests_per_unit,
                unit,
                shadow: raw.shadow_mode.unwrap_or_default(),
                quota: raw.quota_mode.unwrap_or_default(),
                replaces,
                metadata,
                path: name::spelled(&self.domain, &steps).into(),
                attributes: attributes.into(),
            },
            per,
            hash: name::hash(&self.domain, &steps),
            source: self.source.to_owned(),
            at,
        });
        Some(self.drafts.len() - 1)
    }

    /// How much, and for how long.
    fn rate(&mut self, raw: &RawLimit, at: SourceRange) -> Option<(u32, Unit)> {
        let unit = raw.unit.as_ref().filter(|unit| !unit.value.is_empty());
        if raw.unlimited.unwrap_or_default() {
            let Some(unit) = unit else { return Some((0, Unit::Unknown)) };
            let message = format!("unlimited needs no unit, found {}", quote(&unit.value));
            self.add(mark(unit.referenced), message);
            return None;
        }
        let known = unit.and_then(|unit| Unit::named(&unit.value));
        if known.is_none() {
            let (found, at) = unit.map_or_else(
                || ("nothing".to_owned(), at),
                |unit| (quote(&unit.value), mark(unit.referenced)),
            );
            let wanted = Unit::NAMES.map(|(name, _)| name).join(", ");
            let names = Unit::NAMES.map(|(name, _)| name);
            let meant = unit.map(|unit| did_you_mean(&unit.value, names)).unwrap_or_default();
            self.add(at, format!("unit must be one of {wanted}, found {found}{meant}"));
        }
        let amount = raw.requests_per_unit.as_ref();
        let number = amount.and_then(|amount| amount.value.replace('_', "").parse::<u32>().ok());
        if number.is_none() {
            let (found, at) = amount.map_or_else(
                || ("nothing".to_owned(), at),
                |amount| (quote(&amount.value), mark(amount.referenced)),
            );
            let most = u32::MAX;
            self.add(
                at,
                format!("requests_per_unit must be a whole number up to {most}, found {found}"),
            );
        }
        Some((number?, known?))
    }

    fn replaces(&mut self, raw: &RawLimit, own: Option<&str>) -> Option<Box<[Box<str>]>> {
        let items = raw.replaces.as_deref().unwrap_or_default();
        if let Some(over) = items.get(MAX_REPLACES) {
            let (at, found) = (mark(over.referenced), items.len());
            self.add(at, format!("replaces must have at most {MAX_REPLACES} items, found {found}"));
            return None;
        }
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            let at = mark(item.referenced);
            match item.value.name.as_deref() {
                None | Some("") => {
                    self.add(at, "replaces needs a name, found nothing".to_owned());
                    return None;
                }
                name if name == own => {
                    let found = quote(name.unwrap_or_default());
                    self.add(
                        at,
                        format!("replaces must name another limit, found its own name {found}"),
                    );
                    return None;
                }
                Some(name) => names.push(name.into()),
            }
        }
        Some(names.into())
    }

    fn metadata(
        &mut self,
        metadata: &Spanned<serde_json::Map<String, serde_json::Value>>,
    ) -> Option<serde_json::Value> {
        let value = serde_json::Value::Object(metadata.value.clone());
        let found = value.to_string().len();
        if found > MAX_METADATA {
            let message = format!(
                "metadata must be at most {MAX_METADATA} bytes long as JSON, found {found}"
            );
            self.add(mark(metadata.referenced), message);
            return None;
        }
        Some(value)
    }

    /// Names the rules and makes them.
    fn finish(mut self) -> Result<EnvoyRules, ConfigError> {
        let (most, found) = (EnvoyRules::MAX_LIMITS, self.drafts.len());
        if let Some(over) = self.drafts.get(most) {
            let message = format!("at most {most} limits are allowed in all, found {found}");
            self.wrong.push(InvalidEntry::new(&over.source, Some(over.at), message));
        }
        if !self.wrong.is_empty() {
            return Err(ConfigError::Invalid(self.wrong));
        }
        let paths: Vec<(String, [u8; 32])> =
            self.drafts.iter().map(|draft| (draft.limit.path.to_string(), draft.hash)).collect();
        let mut done = EnvoyRules { domains: self.domains, ..EnvoyRules::default() };
        for (draft, name) in self.drafts.into_iter().zip(name::rules(&paths)) {
            let mut limit = draft.limit;
            match rule(&name, &limit, &draft.per) {
                Ok(rule) => done.rules.extend(rule),
                Err(error) => {
                    let message = error.to_string();
                    self.wrong.push(InvalidEntry::new(&draft.source, Some(draft.at), message));
                }
            }
            limit.rule = name.into();
            done.limits.push(limit);
        }
        if self.wrong.is_empty() { Ok(done) } else { Err(ConfigError::Invalid(self.wrong)) }
    }
}

/// The native rule of a limit; an unlimited one needs none.
fn rule(
    name: &str,
    limit: &EnvoyLimit,
    per: &[Box<str>],
) -> Result<Option<Rule>, tidegate_rules::RuleError> {
    let Some(window) = limit.unit.window() else { return Ok(None) };
    let quota = Quota::per(limit.requests_per_unit.into(), window);
    let mut rule = Rule::new(name, Algorithm::FixedWindow, quota)?;
    for attribute in per {
        rule = rule.with_per(attribute)?;
    }
    let mode = if limit.shadow || limit.quota { Mode::Shadow } else { Mode::Enforce };
    // What is banned needs no count to stay banned.
    let banned = limit.requests_per_unit == 0;
    let failing = if banned { OnStoreFailure::Deny } else { OnStoreFailure::Allow };
    Ok(Some(rule.with_mode(mode).with_on_store_failure(failing)))
}

// A path has at most as many attributes as a request takes, with room for the domain.
const _: () = assert!(MAX_DEPTH < Request::MAX_ATTRIBUTES);
