//! Builds the descriptor trees, limits and rules from the parsed files. Every error is reported, with its line.

use std::collections::HashMap;

use serde_saphyr::Spanned;
use tidegate_core::{Algorithm, Quota, Request, quote};
use tidegate_rules::{Mode, OnStoreFailure, Rule, SourceRange, did_you_mean};

use crate::config_error::{ConfigError, InvalidEntry, describe_yaml_error, source_range};
use crate::envoy::name::{self, MAX_KEY_BYTES, PathEntry};
use crate::envoy::raw::{self, RawDescriptor, RawLimit};
use crate::envoy::tree::{AddError, DescriptorLevel, DescriptorNode};
use crate::envoy::{EnvoyLimit, EnvoyRules, Unit};

/// Most levels of descriptors.
pub(crate) const MAX_DEPTH: usize = Rule::MAX_PER_ENTRIES;
/// Most errors that are listed.
const MAX_LISTED_ERRORS: usize = 100;
/// Longest domain or value in bytes.
const MAX_TEXT_BYTES: usize = Rule::MAX_VALUE_BYTES;
/// Longest metadata in bytes of JSON.
const MAX_METADATA_BYTES: usize = 16 * 1024;
/// Most names that one limit replaces.
const MAX_REPLACES: usize = 100;

/// Builds trees, limits and rules from files.
pub(crate) fn build_rules(files: &[(String, String)]) -> Result<EnvoyRules, ConfigError> {
    let mut builder = EnvoyBuilder::default();
    let mut domain_files: HashMap<String, &str> = HashMap::new();
    for (source, text) in files {
        builder.source = source;
        let file = match raw::parse(text) {
            Ok(file) => file,
            Err(error) => {
                let at = error.location().map(source_range);
                builder.add_error(at, describe_yaml_error(&error, text));
                continue;
            }
        };
        let Some(domain) = builder.domain(file.domain) else { continue };
        if let Some(first) = domain_files.get(&domain.value) {
            let found = quote(&domain.value);
            let message = format!("domain {found} must be unique, found it in {first} too");
            builder.add_error(source_range(domain.referenced), message);
            continue;
        }
        builder.domain.clone_from(&domain.value);
        let level = builder.level(file.descriptors.as_deref().unwrap_or_default(), &mut Vec::new());
        builder.domains.insert(domain.value.as_str().into(), level);
        domain_files.insert(domain.value, source);
    }
    builder.finish()
}

/// The trees, limits and errors of the files so far.
#[derive(Default)]
struct EnvoyBuilder<'s> {
    source: &'s str,
    domain: String,
    domains: HashMap<Box<str>, DescriptorLevel>,
    drafts: Vec<LimitDraft>,
    errors: Vec<InvalidEntry>,
}

/// A limit before its rule is named.
struct LimitDraft {
    limit: EnvoyLimit,
    /// The attributes that the rule counts by: those of the open values.
    per: Vec<Box<str>>,
    hash: [u8; 32],
    source: String,
    at: SourceRange,
}

/// One entry of the path from the domain to a descriptor.
struct PathStep<'y> {
    entry: PathEntry<'y>,
    /// Set if each value has a counter of its own.
    is_open: bool,
}

impl EnvoyBuilder<'_> {
    fn add_error(&mut self, at: impl Into<Option<SourceRange>>, message: String) {
        if self.errors.len() < MAX_LISTED_ERRORS {
            self.errors.push(InvalidEntry::new(self.source, at.into(), message));
        }
    }

    fn domain(&mut self, domain: Option<Spanned<String>>) -> Option<Spanned<String>> {
        let Some(domain) = domain.filter(|domain| !domain.value.is_empty()) else {
            let message = "domain must be a text, found nothing".to_owned();
            self.add_error(SourceRange::new(1, 1, 0), message);
            return None;
        };
        self.check_length("domain", &domain, MAX_TEXT_BYTES).then_some(domain)
    }

    /// Returns whether a text has at most `max_bytes`. Adds an error if it is longer.
    fn check_length(&mut self, name: &str, text: &Spanned<String>, max_bytes: usize) -> bool {
        let found = text.value.len();
        if found > max_bytes {
            let message = format!("{name} must be at most {max_bytes} bytes long, found {found}");
            self.add_error(source_range(text.referenced), message);
        }
        found <= max_bytes
    }

    fn level<'y>(
        &mut self,
        descriptors: &'y [Spanned<RawDescriptor>],
        path: &mut Vec<PathStep<'y>>,
    ) -> DescriptorLevel {
        let mut level = DescriptorLevel::default();
        if let (MAX_DEPTH, Some(first)) = (path.len(), descriptors.first()) {
            let message = format!("descriptors must be nested at most {MAX_DEPTH} deep");
            self.add_error(source_range(first.referenced), message);
            return level;
        }
        for descriptor in descriptors {
            let (raw, at) = (&descriptor.value, source_range(descriptor.referenced));
            let Some(step) = self.path_step(raw, at) else { continue };
            let (key, value) = step.entry;
            path.push(step);
            let limit = raw.rate_limit.as_ref().and_then(|limit| self.limit(raw, limit, path));
            let below = self.level(raw.descriptors.as_deref().unwrap_or_default(), path);
            let added = level.add(key, value, DescriptorNode { limit, below });
            let entries: Vec<PathEntry<'_>> = path.iter().map(|step| step.entry).collect();
            path.pop();
            match added {
                Ok(()) => {}
                Err(AddError::Duplicate) => {
                    let found = quote(&name::path_text(&self.domain, &entries));
                    let message = format!("descriptor {found} must be unique, found it twice");
                    self.add_error(at, message);
                }
                Err(AddError::TooManyPatterns) => {
                    let (key, most) = (quote(key), DescriptorLevel::MAX_PATTERNS);
                    self.add_error(
                        at,
                        format!("key {key} must have at most {most} values with '*', found more"),
                    );
                }
            }
        }
        level.finish()
    }

    fn path_step<'y>(&mut self, raw: &'y RawDescriptor, at: SourceRange) -> Option<PathStep<'y>> {
        let Some(key) = raw.key.as_ref().filter(|key| !key.value.is_empty()) else {
            self.add_error(at, "key must be a text, found nothing".to_owned());
            return None;
        };
        if !self.check_length("key", key, MAX_KEY_BYTES) {
            return None;
        }
        let value = raw.value.as_ref().filter(|value| !value.value.is_empty());
        if value.is_some_and(|value| !self.check_length("value", value, MAX_TEXT_BYTES)) {
            return None;
        }
        let text = value.map(|value| value.value.as_str());
        let is_pattern = text.is_some_and(|text| text.contains('*'));
        let shared = raw.share_threshold.as_ref().filter(|shared| shared.value);
        if let (Some(shared), false) = (shared, is_pattern) {
            let found = text.map_or_else(|| "nothing".to_owned(), quote);
            let message = format!("share_threshold needs a value with '*', found {found}");
            self.add_error(source_range(shared.referenced), message);
        }
        let is_open = text.is_none() || (is_pattern && shared.is_none());
        Some(PathStep { entry: (&key.value, text), is_open })
    }

    /// Adds a limit, and returns its index. Returns `None` if it is invalid.
    fn limit(
        &mut self,
        raw: &RawDescriptor,
        limit: &Spanned<RawLimit>,
        path: &[PathStep<'_>],
    ) -> Option<usize> {
        let at = source_range(limit.referenced);
        let rate = self.rate(&limit.value, at);
        let name = limit.value.name.as_deref().filter(|name| !name.is_empty());
        let replaces = self.replaces(&limit.value, name);
        let metadata = match &raw.metadata {
            Some(metadata) => Some(self.metadata(metadata)?),
            None => None,
        };
        let ((requests_per_unit, unit), replaces) = (rate?, replaces?);
        let entries: Vec<PathEntry<'_>> = path.iter().map(|step| step.entry).collect();
        let attributes = name::attribute_names(&entries);
        let per = attributes.iter().zip(path).filter(|(_, step)| step.is_open);
        let per = per.map(|(name, _)| name.clone()).collect();
        self.drafts.push(LimitDraft {
            limit: EnvoyLimit {
                rule: "".into(),
                name: name.map(Box::from),
                requests_per_unit,
                unit,
                shadow: raw.shadow_mode.unwrap_or_default(),
                quota: raw.quota_mode.unwrap_or_default(),
                replaces,
                metadata,
                path: name::path_text(&self.domain, &entries).into(),
                attributes: attributes.into(),
            },
            per,
            hash: name::path_hash(&self.domain, &entries),
            source: self.source.to_owned(),
            at,
        });
        Some(self.drafts.len() - 1)
    }

    /// Returns the amount and the unit of a limit.
    fn rate(&mut self, raw: &RawLimit, at: SourceRange) -> Option<(u32, Unit)> {
        let unit = raw.unit.as_ref().filter(|unit| !unit.value.is_empty());
        if raw.unlimited.unwrap_or_default() {
            let Some(unit) = unit else { return Some((0, Unit::Unknown)) };
            let message = format!("unlimited needs no unit, found {}", quote(&unit.value));
            self.add_error(source_range(unit.referenced), message);
            return None;
        }
        let known = unit.and_then(|unit| Unit::from_name(&unit.value));
        if known.is_none() {
            let (found, at) = unit.map_or_else(
                || ("nothing".to_owned(), at),
                |unit| (quote(&unit.value), source_range(unit.referenced)),
            );
            let wanted = Unit::NAMES.map(|(name, _)| name).join(", ");
            let names = Unit::NAMES.map(|(name, _)| name);
            let meant = unit.map(|unit| did_you_mean(&unit.value, names)).unwrap_or_default();
            self.add_error(at, format!("unit must be one of {wanted}, found {found}{meant}"));
        }
        let amount = raw.requests_per_unit.as_ref();
        let number = amount.and_then(|amount| amount.value.replace('_', "").parse::<u32>().ok());
        if number.is_none() {
            let (found, at) = amount.map_or_else(
                || ("nothing".to_owned(), at),
                |amount| (quote(&amount.value), source_range(amount.referenced)),
            );
            let most = u32::MAX;
            self.add_error(
                at,
                format!("requests_per_unit must be a whole number up to {most}, found {found}"),
            );
        }
        Some((number?, known?))
    }

    fn replaces(&mut self, raw: &RawLimit, own: Option<&str>) -> Option<Box<[Box<str>]>> {
        let items = raw.replaces.as_deref().unwrap_or_default();
        if let Some(over) = items.get(MAX_REPLACES) {
            let (at, found) = (source_range(over.referenced), items.len());
            self.add_error(
                at,
                format!("replaces must have at most {MAX_REPLACES} items, found {found}"),
            );
            return None;
        }
        let mut names = Vec::with_capacity(items.len());
        for item in items {
            let at = source_range(item.referenced);
            match item.value.name.as_deref() {
                None | Some("") => {
                    self.add_error(at, "replaces needs a name, found nothing".to_owned());
                    return None;
                }
                name if name == own => {
                    let found = quote(name.unwrap_or_default());
                    self.add_error(
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
        if found > MAX_METADATA_BYTES {
            let message = format!(
                "metadata must be at most {MAX_METADATA_BYTES} bytes long as JSON, found {found}"
            );
            self.add_error(source_range(metadata.referenced), message);
            return None;
        }
        Some(value)
    }

    /// Names and builds the rules.
    fn finish(mut self) -> Result<EnvoyRules, ConfigError> {
        let (most, found) = (EnvoyRules::MAX_LIMITS, self.drafts.len());
        if let Some(over) = self.drafts.get(most) {
            let message = format!("at most {most} limits are allowed in all, found {found}");
            self.errors.push(InvalidEntry::new(&over.source, Some(over.at), message));
        }
        if !self.errors.is_empty() {
            return Err(ConfigError::Invalid(self.errors));
        }
        let paths: Vec<(String, [u8; 32])> =
            self.drafts.iter().map(|draft| (draft.limit.path.to_string(), draft.hash)).collect();
        let mut done = EnvoyRules { domains: self.domains, ..EnvoyRules::default() };
        for (draft, name) in self.drafts.into_iter().zip(name::rule_names(&paths)) {
            let mut limit = draft.limit;
            match build_rule(&name, &limit, &draft.per) {
                Ok(rule) => done.rules.extend(rule),
                Err(error) => {
                    let message = error.to_string();
                    self.errors.push(InvalidEntry::new(&draft.source, Some(draft.at), message));
                }
            }
            limit.rule = name.into();
            done.limits.push(limit);
        }
        if self.errors.is_empty() { Ok(done) } else { Err(ConfigError::Invalid(self.errors)) }
    }
}

/// Builds the native rule of a limit. An unlimited one has none.
fn build_rule(
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
    // A limit of 0 denies without a count, so it denies during a store failure too.
    let always_denies = limit.requests_per_unit == 0;
    let on_failure = if always_denies { OnStoreFailure::Deny } else { OnStoreFailure::Allow };
    Ok(Some(rule.with_mode(mode).with_on_store_failure(on_failure)))
}

// A request has room for the attributes of the deepest path and the domain.
const _: () = assert!(MAX_DEPTH < Request::MAX_ATTRIBUTES);
