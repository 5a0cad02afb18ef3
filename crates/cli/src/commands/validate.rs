//! `tidegate validate`: what each rule admits at the most, or what is wrong with it.

use std::path::{Path, PathBuf};

use clap::Args;
use tidegate_core::Limit;
use tidegate_rules::{CanonicalRule, Condition, Mode, OnStoreFailure, Override, RuleSet};
use tidegate_service::config_error::{ConfigError, read_file};
use tidegate_service::envoy::{self, EnvoyRules};
use tidegate_service::rules::{NativeRules, ParsedRules};
use tidegate_service::service::internal_rules;

use crate::commands::excerpt::Sources;
use crate::commands::{Ending, Failure, Output};
use crate::config::{self, ConfigFile, GatewaySource, Kind};
use crate::reference::Subject;

/// Checks rule files and configurations without serving them, those of envoyproxy/ratelimit too.
///
/// Prints for each rule its limit, its algorithm, and what that admits at the most, or each error with
/// the line that it is about. Lines that may hold a secret are not shown. Exit status: 0 fine, 1 something is wrong, 2 a file can't be read.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Validate {
    /// Rule files, configurations, or directories of envoyproxy/ratelimit files
    #[arg(required_unless_present = "schema", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// Print the JSON Schema of rules or of configurations instead, for editors
    #[arg(long, value_name = "KIND", conflicts_with = "files")]
    schema: Option<Subject>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate validate rules.yaml
  tidegate validate tidegate.yaml            with the rules that it names
  tidegate validate rules/*.yaml && deploy
  tidegate validate --schema rules > rules.schema.json
  tidegate validate /srv/runtime_data/current/ratelimit/config";

/// Most tiers and most overrides of a rule that are spelled out.
const SPELLED: usize = 5;

impl Validate {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        if let Some(subject) = self.schema {
            output.data(subject.schema().to_json().trim_end());
            return Ok(Ending::Fine);
        }
        let mut worst = Ending::Fine;
        let mut sources = Sources::default();
        for path in &self.files {
            match written_in(path, &mut sources).and_then(Written::fit) {
                Ok(written) => {
                    for rule in written.rules.iter().flat_map(RuleSet::rules) {
                        describe(&rule.canonical(), output);
                    }
                    output.note(format_args!("{}: {}", path.display(), written.summary()));
                }
                Err(error) => {
                    let told = sources.told(&error);
                    let failure = Failure::from(error);
                    output.note(told.unwrap_or(failure.message));
                    worst = worst.max(failure.ending);
                }
            }
        }
        Ok(worst)
    }
}

/// What stands in a file or directory.
struct Written {
    /// `None` for a configuration without any on this machine.
    rules: Option<RuleSet>,
    /// Upstreams and routes of a gateway.
    gateway: Option<(usize, usize)>,
}

fn written_in(path: &Path, sources: &mut Sources) -> Result<Written, ConfigError> {
    if path.is_dir() {
        return Ok(ParsedRules::parse(&NativeRules::Nothing, Some(&envoy::read_folder(path)?))?
            .set
            .into());
    }
    let text = read_file(path, RuleSet::MAX_DOCUMENT_BYTES)?;
    let source = path.display().to_string();
    sources.keep(&source, &text);
    match config::kind(path, &text) {
        Kind::Rules => Ok(RuleSet::parse(&source, &text)?.into()),
        Kind::Envoy => {
            let limits = EnvoyRules::parse(&[(source, text)])?;
            Ok(RuleSet::default().with_named(limits.rules())?.into())
        }
        Kind::Config => {
            let file = ConfigFile::parse(path, &text)?;
            let gateway = file.forwarding.as_ref().map(GatewaySource::counts);
            let own = match &file.rules {
                // What is elsewhere may be another by the time it is served.
                Some(source) if !source.is_remote() => NativeRules::read(source)?,
                _ if file.envoy.is_none() => return Ok(Written { rules: None, gateway }),
                _ => NativeRules::Nothing,
            };
            let files = file.envoy.as_deref().map(envoy::read_folder).transpose()?;
            let rules = Some(ParsedRules::parse(&own, files.as_ref())?.set);
            Ok(Written { rules, gateway })
        }
    }
}

impl From<RuleSet> for Written {
    fn from(rules: RuleSet) -> Self {
        Self { rules: Some(rules), gateway: None }
    }
}

impl Written {
    /// The same, if it could be served: the server has rules of its own, whose names are taken.
    fn fit(self) -> Result<Self, ConfigError> {
        if let Some(rules) = &self.rules {
            rules.clone().with_internal(internal_rules().unwrap_or_default())?;
        }
        Ok(self)
    }

    /// `4 rules, 2 routes to 1 upstream, fine`.
    fn summary(&self) -> String {
        let count = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let gateway = self.gateway.filter(|(upstreams, _)| *upstreams > 0);
        let gateway = gateway.map(|(upstreams, routes)| {
            format!("{} to {}, ", count(routes, "route"), count(upstreams, "upstream"))
        });
        let gateway = gateway.unwrap_or_default();
        match &self.rules {
            Some(rules) => format!("{}, {gateway}fine", count(rules.rules().len(), "rule")),
            None => format!("{gateway}fine, names no rules on this machine"),
        }
    }
}

/// Prints what a rule admits. Neither its conditions nor `per` change that.
fn describe(rule: &CanonicalRule<'_>, output: &mut Output<'_>) {
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
    } = *rule;
    let note = match mode {
        Mode::Enforce => "",
        Mode::Shadow => ", in shadow: counts and never denies",
        Mode::Off => ", but it is off",
    };
    let share = rollout.map(|share| format!(", for {share} of its clients"));
    let share = share.unwrap_or_default();
    output.data(format_args!("{name}: {}{share}{note}", bounded(limit)));
    if let Some(bound) = accuracy.bound(limit) {
        output.data(format_args!("  {bound}"));
    }
    if let Some(outage) = outage(rule) {
        output.data(format_args!("  without the store: {outage}"));
    }
    if let Some(penalty) = penalty(rule, limit) {
        output.data(format_args!("  penalty: {penalty}"));
    }
    if let Some(tiers) = tiers {
        for (name, limit) in tiers.iter().take(SPELLED) {
            let limit = kept(rule, limit);
            output.data(format_args!("  {} {name:?}: {limit}", tiers.by()));
        }
        more(tiers.iter().len(), "tiers", output);
    }
    for (index, item) in overrides.iter().enumerate().take(SPELLED) {
        let (title, limit) = (titled(index, item), kept(rule, item.limit()));
        output.data(format_args!("  override {title}: {limit}"));
    }
    more(overrides.len(), "overrides", output);
}

fn more(count: usize, what: &str, output: &mut Output<'_>) {
    if count > SPELLED {
        output.data(format_args!("  and {} more {what}", count - SPELLED));
    }
}

/// `100 per 1 s, burst 200 (token_bucket): at most 300 in any 1 s`.
pub(crate) fn bounded(limit: &Limit) -> String {
    format!("{limit}: {}", limit.bound())
}

/// The same for one of several limits of a rule, with what nodes can admit beyond it if that is not
/// the same for all of them.
fn kept(rule: &CanonicalRule<'_>, limit: &Limit) -> String {
    let (bound, own) = (rule.accuracy.bound(limit), rule.accuracy.bound(rule.limit));
    match bound.filter(|bound| Some(*bound) != own) {
        Some(bound) => format!("{}; {bound}", bounded(limit)),
        None => bounded(limit),
    }
}

/// What nodes admit under `on_store_failure: local` while the store can't be asked.
pub(crate) fn outage(rule: &CanonicalRule<'_>) -> Option<&'static str> {
    let is_local = rule.on_store_failure == OnStoreFailure::Local && rule.mode == Mode::Enforce;
    is_local.then_some(
        "each of N nodes admits an N-th of the limit, and as much again after each restart",
    )
}

/// `blocks a client for 10 min after 1000 denied requests within 60 s (10 times the limit)`.
pub(crate) fn penalty(rule: &CanonicalRule<'_>, limit: &Limit) -> Option<String> {
    let words = rule.penalty?.describe(limit);
    Some(match rule.mode {
        Mode::Enforce => format!("blocks a client for {words}"),
        Mode::Shadow | Mode::Off => format!("would block a client for {words}"),
    })
}

/// `2 by api_key until 2027-01-01T00:00:00Z for 10% of the clients`: whom it is for is not said, that may be a secret.
pub(crate) fn titled(index: usize, item: &Override) -> String {
    let names: Vec<&str> = item.conditions().iter().map(Condition::attribute).collect();
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
