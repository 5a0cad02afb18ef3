//! `tidegate validate`: checks files, and prints the most that each rule admits.

use std::path::{Path, PathBuf};

use clap::Args;
use tidegate_core::Limit;
use tidegate_limiter::Clock;
use tidegate_rules::{
    CallerRefunds, CanonicalRule, Condition, Mode, OnStoreFailure, Override, RuleSet, RuleWarnings,
    WarningContext,
};
use tidegate_service::config_error::{ConfigError, read_file};
use tidegate_service::envoy::{self, EnvoyRules};
use tidegate_service::rules::{NativeRules, ParsedRules};
use tidegate_service::service::internal_rules;

use crate::commands::snippet::SourceTexts;
use crate::commands::{CommandError, CommandOutput, ExitStatus};
use crate::config::{self, ConfigFile, FileKind, GatewaySettings};
use crate::reference::SchemaKind;

/// Validates rules, configurations and files of envoyproxy/ratelimit.
///
/// Prints the limit, the algorithm and the bound of each rule: the most that it admits. For an invalid file, prints
/// each error with its line, except lines that may hold a secret. Valid parts of rules that have no effect are
/// warnings. Exit status: 0 valid, 1 invalid, 2 a file can't be read.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ValidateCommand {
    /// Files of rules, configurations, or directories of envoyproxy/ratelimit files
    #[arg(required_unless_present = "schema", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// Prints the JSON Schema of rules or of configurations instead, for editors
    #[arg(long, value_name = "KIND", conflicts_with = "files")]
    schema: Option<SchemaKind>,

    /// Treats warnings as errors: exit status 1
    #[arg(long, conflicts_with = "schema")]
    strict: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate validate rules.yaml
  tidegate validate tidegate.yaml            with the rules that it refers to
  tidegate validate --strict rules/*.yaml && deploy
  tidegate validate --schema rules > rules.schema.json
  tidegate validate /srv/runtime_data/current/ratelimit/config";

/// Most tiers and most overrides of a rule that are printed.
const MAX_LISTED: usize = 5;

impl ValidateCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        if let Some(subject) = self.schema {
            output.data(subject.schema().to_json().trim_end());
            return Ok(ExitStatus::Success);
        }
        let mut worst_status = ExitStatus::Success;
        let mut sources = SourceTexts::default();
        let context = combined_context(&self.files);
        for path in &self.files {
            match read_validated(path, &context, &mut sources).and_then(ValidatedFile::check_names)
            {
                Ok(file) => {
                    for rule in file.rules.iter().flat_map(RuleSet::rules) {
                        describe(&rule.canonical(), output);
                    }
                    let warnings = sources.render_warnings(&file.warnings);
                    if !warnings.is_empty() {
                        output.note(warnings);
                    }
                    if self.strict && file.warnings.count() > 0 {
                        worst_status = worst_status.max(ExitStatus::Negative);
                    }
                    output.note(format_args!("{}: {}", path.display(), file.summary()));
                }
                Err(error) => {
                    let rendered = sources.render(&error);
                    let error = CommandError::from(error);
                    output.note(rendered.unwrap_or(error.message));
                    worst_status = worst_status.max(error.status);
                }
            }
        }
        Ok(worst_status)
    }
}

/// The rules and routes of a valid file or directory.
struct ValidatedFile {
    /// `None` for a configuration with rules on another machine.
    rules: Option<RuleSet>,
    /// Numbers of upstreams and routes of the gateway.
    gateway: Option<(usize, usize)>,
    warnings: RuleWarnings,
}

/// Returns the attributes of all configurations among the files: rules files beside them may use them. Files that can't
/// be read are reported later.
fn combined_context(files: &[PathBuf]) -> WarningContext {
    let mut combined = WarningContext::default();
    for path in files.iter().filter(|_| files.len() > 1) {
        let text = match path.is_file().then(|| read_file(path, RuleSet::MAX_DOCUMENT_BYTES)) {
            Some(Ok(text)) if config::detect_kind(path, &text) == FileKind::Config => text,
            _ => continue,
        };
        if let Ok(file) = ConfigFile::parse(path, &text) {
            combined.extend(file.warning_context());
        }
    }
    combined
}

/// Reads and parses a file or a directory.
fn read_validated(
    path: &Path,
    context: &WarningContext,
    sources: &mut SourceTexts,
) -> Result<ValidatedFile, ConfigError> {
    let now = Clock::system().now();
    if path.is_dir() {
        let files = envoy::read_folder(path)?;
        return Ok(ParsedRules::parse(&NativeRules::Nothing, Some(&files), context, now)?.into());
    }
    let text = read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?;
    let source = path.display().to_string();
    sources.insert(&source, &text);
    match config::detect_kind(path, &text) {
        FileKind::Rules => {
            let (set, warnings) = RuleSet::parse_with_warnings(&source, &text, &[], context, now)?;
            Ok(ValidatedFile { rules: Some(set), gateway: None, warnings })
        }
        FileKind::Envoy => {
            let limits = EnvoyRules::parse(&[(source, text)])?;
            let set = RuleSet::default().with_named(limits.rules())?;
            Ok(ValidatedFile { rules: Some(set), gateway: None, warnings: RuleWarnings::default() })
        }
        FileKind::Config => {
            let file = ConfigFile::parse(path, &text)?;
            let gateway = file.forwarding.as_ref().map(GatewaySettings::counts);
            let native = match &file.rules {
                // Rules on another machine can change before they are served.
                Some(source) if !source.is_remote() => NativeRules::read(source)?,
                _ if file.envoy.is_none() => {
                    let warnings = RuleWarnings::default();
                    return Ok(ValidatedFile { rules: None, gateway, warnings });
                }
                _ => NativeRules::Nothing,
            };
            let files = file.envoy.as_deref().map(envoy::read_folder).transpose()?;
            let context = file.warning_context();
            let parsed = ParsedRules::parse(&native, files.as_ref(), &context, now)?;
            Ok(ValidatedFile { gateway, ..parsed.into() })
        }
    }
}

impl From<ParsedRules> for ValidatedFile {
    fn from(parsed: ParsedRules) -> Self {
        Self { rules: Some(parsed.set), gateway: None, warnings: parsed.warnings }
    }
}

impl ValidatedFile {
    /// Checks that no rule has the name of an internal rule, which the server would reject.
    fn check_names(self) -> Result<Self, ConfigError> {
        if let Some(rules) = &self.rules {
            rules.clone().with_internal(internal_rules().unwrap_or_default())?;
        }
        Ok(self)
    }

    /// Returns a summary: `4 rules, 2 routes to 1 upstream, valid`.
    fn summary(&self) -> String {
        let count = |count: usize, noun: &str| match count {
            1 => format!("1 {noun}"),
            count => format!("{count} {noun}s"),
        };
        let gateway = self.gateway.filter(|(upstreams, _)| *upstreams > 0);
        let gateway = gateway.map(|(upstreams, routes)| {
            format!("{} to {}, ", count(routes, "route"), count(upstreams, "upstream"))
        });
        let gateway = gateway.unwrap_or_default();
        let warnings = match self.warnings.count() {
            0 => String::new(),
            warnings => format!(", {}", count(warnings, "warning")),
        };
        match &self.rules {
            Some(rules) => {
                format!("{}, {gateway}valid{warnings}", count(rules.rules().len(), "rule"))
            }
            None => format!("{gateway}valid, without rules on this machine"),
        }
    }
}

/// Prints the most that a rule admits. Conditions and `per` do not change it.
fn describe(rule: &CanonicalRule<'_>, output: &mut CommandOutput<'_>) {
    let CanonicalRule {
        name,
        conditions: _,
        per: _,
        limit,
        tiers,
        overrides,
        mode,
        accuracy,
        on_store_failure: _,
        rollout,
        penalty: _,
        caller_refunds,
    } = *rule;
    let note = match mode {
        Mode::Enforce => "",
        Mode::Shadow => ", in shadow mode: counts and never denies",
        Mode::Off => ", but it is off",
    };
    let share = rollout.map(|share| format!(", for {share} of its clients"));
    let share = share.unwrap_or_default();
    output.data(format_args!("{name}: {}{share}{note}", with_bound(limit)));
    if let Some(bound) = accuracy.bound(limit) {
        output.data(format_args!("  {bound}"));
    }
    if let Some(outage) = outage(rule) {
        output.data(format_args!("  without the store: {outage}"));
    }
    if let Some(penalty) = penalty(rule, limit) {
        output.data(format_args!("  penalty: {penalty}"));
    }
    if caller_refunds == CallerRefunds::Allow {
        output.data(format_args!("  refunds: callers may send negative hits"));
    }
    if let Some(tiers) = tiers {
        for (name, limit) in tiers.iter().take(MAX_LISTED) {
            let limit = with_fleet_bound(rule, limit);
            output.data(format_args!("  {} {name:?}: {limit}", tiers.by()));
        }
        print_omitted(tiers.iter().len(), "tiers", output);
    }
    for (index, item) in overrides.iter().enumerate().take(MAX_LISTED) {
        let title = override_title(index, item);
        let limit = match item.limit() {
            Some(limit) => with_fleet_bound(rule, limit),
            None => format!("{}, not counted", Override::EXEMPT_WORD),
        };
        output.data(format_args!("  override {title}: {limit}"));
    }
    print_omitted(overrides.len(), "overrides", output);
}

/// Prints the number of entries that were left out.
fn print_omitted(count: usize, noun: &str, output: &mut CommandOutput<'_>) {
    if count > MAX_LISTED {
        output.data(format_args!("  and {} more {noun}", count - MAX_LISTED));
    }
}

/// Returns a limit with its bound: `100 per 1 s, burst 200 (token_bucket): at most 300 in any 1 s`.
pub(crate) fn with_bound(limit: &Limit) -> String {
    format!("{limit}: {}", limit.bound())
}

/// Returns a tier's or an override's limit with its bound. The bound of the fleet is added if it differs from that of
/// the rule's own limit.
fn with_fleet_bound(rule: &CanonicalRule<'_>, limit: &Limit) -> String {
    let (bound, own) = (rule.accuracy.bound(limit), rule.accuracy.bound(rule.limit));
    match bound.filter(|bound| Some(*bound) != own) {
        Some(bound) => format!("{}; {bound}", with_bound(limit)),
        None => with_bound(limit),
    }
}

/// Returns what nodes admit under `on_store_failure: local` while the store is unavailable.
pub(crate) fn outage(rule: &CanonicalRule<'_>) -> Option<&'static str> {
    let is_local = rule.on_store_failure == OnStoreFailure::Local && rule.mode == Mode::Enforce;
    is_local
        .then_some("each of N nodes admits 1/N of the limit, and as much again after each restart")
}

/// Returns the penalty: `blocks a client for 10 min after 1000 denied requests within 60 s (10 times the limit)`.
pub(crate) fn penalty(rule: &CanonicalRule<'_>, limit: &Limit) -> Option<String> {
    let penalty = rule.penalty?.describe(limit);
    Some(match rule.mode {
        Mode::Enforce => format!("blocks a client for {penalty}"),
        Mode::Shadow | Mode::Off => format!("would block a client for {penalty}"),
    })
}

/// Returns the title of an override: `2 by api_key until 2027-01-01T00:00:00Z for 10% of the clients`.
///
/// The values of its conditions are left out, because they may be secrets.
pub(crate) fn override_title(index: usize, item: &Override) -> String {
    let mut names: Vec<&str> = item.conditions().iter().map(Condition::attribute).collect();
    // `{like: …, not: …}` is two conditions of one attribute.
    names.dedup();
    let mut title = format!("{} by {}", index + 1, names.join(", "));
    let until = item.until().and_then(|until| {
        let micros = i64::try_from(until.as_micros()).ok()?;
        jiff::Timestamp::from_microsecond(micros).ok()
    });
    if let Some(until) = until {
        title.push_str(&format!(" until {until}"));
    }
    if let Some(share) = item.rollout() {
        title.push_str(&format!(" for {share} of the clients"));
    }
    title
}
