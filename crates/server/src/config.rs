//! What to serve and how: `tidegate.yaml`, then the flags, then defaults, as one typed [`Config`].
//!
//! This is the only place that reads the environment.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{MessageFormatter, Spanned, UserMessageFormatter};
use thiserror::Error;
use tidegate::rule::RuleErrors;
use tidegate::{HeaderStyle, Ietf, MemoryStore, Reset, RuleSet};

/// The rules that are enforced when none are given.
pub(crate) const SAMPLE_RULES: &str = include_str!("sample_rules.yaml");
/// What errors call them.
pub(crate) const SAMPLE_NAME: &str = "sample_rules.yaml";

const DEFAULT_HTTP: &str = "127.0.0.1:8080";

/// Everything that `serve` needs to know.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: Listen,
    pub(crate) max_keys: usize,
    pub(crate) rules: RuleSource,
    pub(crate) headers: HeaderStyle,
}

/// Which doors to open, and where.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    pub(crate) http: Door,
    /// Doors that were asked for by name and that this version does not have.
    pub(crate) missing: Vec<&'static str>,
}

/// Where a door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Off,
    /// A host and a port; port 0 takes any that is free.
    At(String),
}

/// Where the rules come from.
#[derive(Debug)]
pub(crate) enum RuleSource {
    Sample,
    File(PathBuf),
    Inline(Box<RuleSet>),
}

/// What the command line says about the configuration; it beats the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    pub(crate) rules: Option<PathBuf>,
    pub(crate) http: Option<Door>,
    pub(crate) grpc: Option<Door>,
    pub(crate) resp: Option<Door>,
    pub(crate) admin: Option<Door>,
    pub(crate) gateway: Option<Door>,
    pub(crate) upstream: Option<String>,
}

impl Config {
    /// Reads the file that the flags name, if any, and lets the flags have the last word.
    ///
    /// # Errors
    /// The file can't be read, or what it says can't be used.
    pub(crate) fn resolve(flags: Flags) -> Result<Self, ConfigError> {
        let file = match &flags.config {
            Some(path) => ConfigFile::read(path)?,
            None => ConfigFile::default(),
        };
        let missing = [
            ("grpc", flags.grpc.or(file.grpc)),
            ("resp", flags.resp.or(file.resp)),
            ("admin", flags.admin.or(file.admin)),
            ("gateway", flags.gateway.or(file.gateway).or(flags.upstream.map(Door::At))),
        ];
        let asked = |(name, door)| matches!(door, Some(Door::At(_))).then_some(name);
        let rules = flags.rules.map(RuleSource::File).or(file.rules);
        let http = flags.http.or(file.http);
        Ok(Self {
            listen: Listen {
                http: http.unwrap_or_else(|| Door::At(DEFAULT_HTTP.to_owned())),
                missing: missing.into_iter().filter_map(asked).collect(),
            },
            max_keys: file.max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS),
            rules: rules.unwrap_or(RuleSource::Sample),
            headers: file.headers,
        })
    }
}

impl RuleSource {
    /// The rules, all of them fit to be enforced.
    ///
    /// # Errors
    /// The file can't be read, or has rules that can't be used.
    pub(crate) fn load(self) -> Result<RuleSet, ConfigError> {
        match self {
            Self::Sample => Ok(RuleSet::parse(SAMPLE_NAME, SAMPLE_RULES)?),
            Self::File(path) => {
                let text = read(&path, RuleSet::MAX_DOCUMENT)?;
                Ok(RuleSet::parse(&path.display().to_string(), &text)?)
            }
            Self::Inline(rules) => Ok(*rules),
        }
    }
}

/// What `TIDEGATE_LOG` asks to be logged: `debug`, `tidegate=trace`; `info` unless it says so.
#[allow(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(crate) fn log_filter() -> String {
    std::env::var("TIDEGATE_LOG").unwrap_or_else(|_| "info".to_owned())
}

impl FromStr for Door {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let host_and_port = text.rsplit_once(':').filter(|(host, port)| {
            let bracketed = host.starts_with('[') && host.ends_with(']');
            !host.is_empty() && (bracketed || !host.contains(':')) && port.parse::<u16>().is_ok()
        });
        match host_and_port {
            Some(_) => Ok(Self::At(text.to_owned())),
            None => Err(format!("must be an address like 127.0.0.1:8080, or off, found {text:?}")),
        }
    }
}

/// A configuration file, read and checked.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    http: Option<Door>,
    grpc: Option<Door>,
    resp: Option<Door>,
    admin: Option<Door>,
    gateway: Option<Door>,
    max_keys: Option<usize>,
    pub(crate) rules: Option<RuleSource>,
    headers: HeaderStyle,
}

/// `tidegate.yaml` as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    listen: RawListen,
    store: RawStore,
    rules: Option<Spanned<RawRules>>,
    headers: RawHeaders,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawListen {
    http: Option<Spanned<String>>,
    grpc: Option<Spanned<String>>,
    resp: Option<Spanned<String>>,
    admin: Option<Spanned<String>>,
    gateway: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawStore {
    memory: RawMemory,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawMemory {
    max_keys: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawRules {
    file: Option<PathBuf>,
    inline: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHeaders {
    reset: Option<Spanned<String>>,
    ietf: Option<Spanned<String>>,
}

impl ConfigFile {
    /// Longest file in bytes: its inline rules may be as long as a file of rules.
    const MAX_LENGTH: usize = RuleSet::MAX_DOCUMENT;

    /// Reads and checks a file. A rules file that it names is not opened.
    ///
    /// # Errors
    /// The file can't be read, or what it says can't be used.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path, Self::MAX_LENGTH)?;
        Self::parse(path, &text)
    }

    /// As [`read`](Self::read), for text that was read already.
    ///
    /// # Errors
    /// What the text says can't be used.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = path.display().to_string();
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! { with_snippet: false };
        let raw: RawConfig =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let message = UserMessageFormatter.format_message(&error).into_owned();
                let line = error.location().map(|location| location.line());
                ConfigError::Invalid(vec![Wrong { source: source.clone(), line, message }])
            })?;
        let mut wrong = Wrongs { source: &source, found: Vec::new() };
        let listen = raw.listen;
        let file = Self {
            http: wrong.parsed("listen.http", listen.http),
            grpc: wrong.parsed("listen.grpc", listen.grpc),
            resp: wrong.parsed("listen.resp", listen.resp),
            admin: wrong.parsed("listen.admin", listen.admin),
            gateway: wrong.parsed("listen.gateway", listen.gateway),
            max_keys: wrong
                .parsed::<MaxKeys>("store.memory.max_keys", raw.store.memory.max_keys)
                .map(|keys| keys.0),
            headers: HeaderStyle {
                reset: wrong.word(
                    "headers.reset",
                    raw.headers.reset,
                    [("delta", Reset::Delta), ("epoch", Reset::Epoch)],
                ),
                ietf: wrong.word(
                    "headers.ietf",
                    raw.headers.ietf,
                    [("11", Ietf::Current), ("6", Ietf::Six), ("off", Ietf::Off)],
                ),
            },
            rules: raw.rules.and_then(|rules| wrong.rules(path, rules)),
        };
        if !wrong.found.is_empty() {
            return Err(ConfigError::Invalid(wrong.found));
        }
        match file.rules {
            Some(RuleSource::Inline(_)) => {
                let rules = RuleSet::parse_at(&source, text, &["rules", "inline"])?;
                Ok(Self { rules: Some(RuleSource::Inline(Box::new(rules))), ..file })
            }
            _ => Ok(file),
        }
    }
}

/// Collects what is wrong with a file.
struct Wrongs<'s> {
    source: &'s str,
    found: Vec<Wrong>,
}

impl Wrongs<'_> {
    fn add(&mut self, line: u64, message: String) {
        self.found.push(Wrong { source: self.source.to_owned(), line: Some(line), message });
    }

    fn parsed<T: FromStr<Err = String>>(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
    ) -> Option<T> {
        let text = text?;
        let parsed = text.value.parse();
        parsed.map_err(|error| self.add(text.referenced.line(), format!("{name} {error}"))).ok()
    }

    fn word<T: Copy + Default, const N: usize>(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        words: [(&str, T); N],
    ) -> T {
        let Some(text) = text else { return T::default() };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return *value;
        }
        let wanted = words.map(|(word, _)| word).join(", ");
        self.add(
            text.referenced.line(),
            format!("{name} must be one of {wanted}, found {:?}", text.value),
        );
        T::default()
    }

    fn rules(&mut self, path: &Path, rules: Spanned<RawRules>) -> Option<RuleSource> {
        match (rules.value.file, rules.value.inline) {
            // A path in a file means the same wherever the process was started.
            (Some(file), None) => {
                Some(RuleSource::File(path.parent().unwrap_or(Path::new("")).join(file)))
            }
            (None, Some(_)) => Some(RuleSource::Inline(Box::default())),
            (found, _) => {
                let found = if found.is_some() { "both" } else { "neither" };
                self.add(
                    rules.referenced.line(),
                    format!("rules must have file or inline, found {found}"),
                );
                None
            }
        }
    }
}

struct MaxKeys(usize);

impl FromStr for MaxKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST: usize = 1_000_000_000;
        let keys = text.replace('_', "").parse().ok();
        keys.filter(|keys| (1..=MOST).contains(keys))
            .map(Self)
            .ok_or_else(|| format!("must be a whole number from 1 to {MOST}, found {text:?}"))
    }
}

/// Reads a text file of at most `most` bytes.
///
/// # Errors
/// It can't be read, or is longer.
pub(crate) fn read(path: &Path, most: usize) -> Result<String, ConfigError> {
    use std::io::Read;
    let unreadable = |reason: String| ConfigError::Unreadable { path: path.to_owned(), reason };
    let file = std::fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    if file.metadata().is_ok_and(|about| about.is_dir()) {
        return Err(unreadable("a file is wanted, found a directory".to_owned()));
    }
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > most {
        return Err(unreadable(format!("at most {most} bytes are wanted, found more")));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("text in UTF-8 is wanted".to_owned()))
}

/// Why there is nothing to serve.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    #[error("{}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{}", lines(.0))]
    Invalid(Vec<Wrong>),
    #[error(transparent)]
    Rules(#[from] RuleErrors),
}

/// One thing that is wrong with a configuration file.
#[derive(Debug)]
pub(crate) struct Wrong {
    source: String,
    line: Option<u64>,
    message: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.source, self.message),
            None => write!(f, "{}: {}", self.source, self.message),
        }
    }
}

fn lines(wrong: &[Wrong]) -> String {
    let lines: Vec<String> = wrong.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
