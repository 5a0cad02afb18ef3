//! An entry of the block list, and its stored form.

use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tidegate_core::{Block, Request, Timestamp};
use tidegate_rules::Rule;

use super::subject::Subject;

/// A subject that is blocked or allowed, with the end and the reason of that.
///
/// Serde writes it as a flat object of strings and whole microseconds. Unknown fields are skipped, so that two
/// releases can share a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "StoredEntry", try_from = "StoredEntry")]
pub struct Entry {
    /// The client or network.
    pub subject: Subject,
    /// The effect on the subject. A penalty always blocks.
    pub action: BlockAction,
    /// The first instant after the entry's end, in Unix time.
    pub until: Timestamp,
    /// The reason, for operators.
    pub reason: Reason,
    /// The origin of the entry.
    pub origin: BlockOrigin,
    /// The time at which the entry was added.
    pub added: Timestamp,
}

/// The effect of an entry on its subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockAction {
    /// Requests are denied before any rule is matched.
    #[default]
    Block,
    /// Requests are allowed: no rule counts or denies them, and penalties do not apply.
    Allow,
}

impl BlockAction {
    /// Returns the word in the admin API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Allow => "allow",
        }
    }
}

/// The origin of an entry in the block list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockOrigin {
    /// The penalty of a rule.
    Penalty {
        /// The rule.
        rule: Arc<str>,
    },
    /// An operator, or a program on behalf of one.
    Operator,
}

impl Entry {
    /// Returns the block to report to the client at `now`; `None` after the block has ended, and for an entry that
    /// allows.
    #[must_use]
    pub fn block(&self, now: Timestamp) -> Option<Block> {
        let rule = match &self.origin {
            BlockOrigin::Penalty { rule } => Some(Arc::clone(rule)),
            BlockOrigin::Operator => None,
        };
        let is_active = now < self.until && self.action == BlockAction::Block;
        is_active.then(|| Block { retry_after: self.until.since(now), rule })
    }

    /// Returns whether the entry exempts the client from all rules at `now`.
    #[must_use]
    pub fn allows(&self, now: Timestamp) -> bool {
        now < self.until && self.action == BlockAction::Allow
    }

    pub(crate) fn is_penalty(&self) -> bool {
        matches!(self.origin, BlockOrigin::Penalty { .. })
    }
}

/// The reason of a block: one line of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason(Box<str>);

impl Reason {
    /// Longest reason in bytes.
    pub const MAX_BYTES: usize = 256;

    /// Creates a reason.
    ///
    /// # Errors
    /// The text is too long, or contains control characters such as line breaks.
    pub fn new(text: &str) -> Result<Self, ReasonError> {
        if text.len() > Self::MAX_BYTES {
            return Err(ReasonError::Long { found: text.len() });
        }
        if text.contains(char::is_control) {
            return Err(ReasonError::Control);
        }
        Ok(Self(text.into()))
    }

    /// Returns the text; empty if no reason was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The error of a text that can't be a reason.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReasonError {
    /// The text is too long.
    #[error("reason must be at most {} bytes long, found {found}", Reason::MAX_BYTES)]
    Long {
        /// Its length in bytes.
        found: usize,
    },
    /// The text contains control characters, such as line breaks.
    #[error("reason must be on one line, found control characters")]
    Control,
}

/// The stored form of an entry.
#[derive(Serialize, Deserialize)]
struct StoredEntry {
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<Vec<Box<str>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    /// The end of an entry that allows. Releases without such entries skip it: to them every entry with `until` blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_until: Option<u64>,
    added: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
}

impl From<Entry> for StoredEntry {
    fn from(entry: Entry) -> Self {
        let (network, attributes, digest) = match entry.subject {
            Subject::Network(network) => (Some(network.to_string()), None, None),
            Subject::Client { attributes, digest } => {
                let digest = format!("{:032x}", u128::from_be_bytes(digest));
                (None, Some(attributes.into_vec()), Some(digest))
            }
        };
        let rule = match entry.origin {
            BlockOrigin::Penalty { rule } => Some(rule.to_string()),
            BlockOrigin::Operator => None,
        };
        let end = Some(entry.until.as_micros());
        let (until, allowed_until) = match entry.action {
            BlockAction::Block => (end, None),
            BlockAction::Allow => (None, end),
        };
        Self {
            network,
            attributes,
            digest,
            until,
            allowed_until,
            added: entry.added.as_micros(),
            reason: entry.reason.as_str().to_owned(),
            rule,
        }
    }
}

impl TryFrom<StoredEntry> for Entry {
    type Error = EntryError;

    fn try_from(stored: StoredEntry) -> Result<Self, EntryError> {
        let subject = match (stored.network, stored.attributes, stored.digest) {
            (Some(network), None, None) => {
                let network: IpNet = network.parse().map_err(|_| EntryError("network"))?;
                Subject::Network(network).canonical()
            }
            (None, Some(attributes), Some(digest)) => {
                let digest = u128::from_str_radix(&digest, 16)
                    .ok()
                    .filter(|_| digest.len() == 32 && !digest.starts_with('+'))
                    .ok_or(EntryError("digest"))?;
                let count = (1..=Subject::MAX_ATTRIBUTES).contains(&attributes.len());
                let mut lengths = attributes.iter().map(|name| name.len());
                let fit = lengths.all(|length| (1..=Request::MAX_NAME).contains(&length));
                let ordered = attributes.is_sorted_by(|one, next| one < next);
                if !count || !ordered || !fit {
                    return Err(EntryError("attributes"));
                }
                Subject::Client { attributes: attributes.into(), digest: digest.to_be_bytes() }
            }
            _ => return Err(EntryError("subject")),
        };
        let origin = match stored.rule {
            Some(rule) if rule.len() <= Rule::MAX_NAME_CHARS => {
                BlockOrigin::Penalty { rule: rule.into() }
            }
            Some(_) => return Err(EntryError("rule")),
            None => BlockOrigin::Operator,
        };
        let (action, until) = match (stored.until, stored.allowed_until) {
            (Some(until), None) => (BlockAction::Block, until),
            (None, Some(until)) if origin == BlockOrigin::Operator => (BlockAction::Allow, until),
            _ => return Err(EntryError("until")),
        };
        Ok(Self {
            subject,
            action,
            until: Timestamp::from_micros(until),
            reason: Reason::new(&stored.reason).map_err(|_| EntryError("reason"))?,
            origin,
            added: Timestamp::from_micros(stored.added),
        })
    }
}

/// The error of stored data that is not an entry: the invalid field. Its value may be secret, so the message does
/// not contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0} of a client on the list can't be read")]
struct EntryError(&'static str);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_entry_is_read_back_unchanged() {
        let at = Timestamp::from_secs(1_780_000_000);
        let client = Subject::Client { attributes: ["user".into()].into(), digest: [0xab; 16] };
        for (subject, origin, text) in [
            (
                Subject::Network("192.0.2.0/24".parse().unwrap()),
                BlockOrigin::Operator,
                r#"{"network":"192.0.2.0/24","until":1780000000000000,"added":1780000000000000,"reason":"scans"}"#,
            ),
            (
                client,
                BlockOrigin::Penalty { rule: "login".into() },
                r#"{"attributes":["user"],"digest":"abababababababababababababababab","until":1780000000000000,"added":1780000000000000,"reason":"scans","rule":"login"}"#,
            ),
        ] {
            let reason = Reason::new("scans").unwrap();
            let action = BlockAction::Block;
            let entry = Entry { subject, action, until: at, reason, origin, added: at };
            assert_eq!(serde_json::to_string(&entry).unwrap(), text);
            assert_eq!(serde_json::from_str::<Entry>(text).unwrap(), entry);
        }
    }

    #[test]
    fn entry_that_allows_has_no_field_by_which_earlier_releases_would_block() {
        let text = r#"{"network":"192.0.2.0/24","allowed_until":1780000000000000,"added":1}"#;
        let entry: Entry = serde_json::from_str(text).unwrap();
        assert_eq!(entry.action, BlockAction::Allow);
        assert_eq!(serde_json::to_string(&entry).unwrap(), text);
        for wrong in [
            r#"{"network":"192.0.2.0/24","added":1}"#,
            r#"{"network":"192.0.2.0/24","until":1,"allowed_until":1,"added":1}"#,
            r#"{"network":"192.0.2.0/24","allowed_until":1,"added":1,"rule":"login"}"#,
        ] {
            let error = serde_json::from_str::<Entry>(wrong).unwrap_err().to_string();
            assert_eq!(error, "until of a client on the list can't be read", "{wrong}");
        }
    }

    #[test]
    fn invalid_fields_are_rejected_and_unknown_fields_skipped() {
        let read = |text: &str| {
            let text = format!(r#"{{{text},"until":1,"added":1}}"#);
            serde_json::from_str::<Entry>(&text).map_err(|error| error.to_string())
        };
        let network = r#""network":"192.0.2.0/24""#;
        assert!(read(&format!(r#"{network},"news":[1]"#)).is_ok());
        let zeros = "0".repeat(32);
        for (text, wrong) in [
            (r#""network":"nowhere""#.to_owned(), "network"),
            (r#""attributes":["a"],"digest":"00""#.to_owned(), "digest"),
            (format!(r#""attributes":["a"],"digest":"+{}""#, "0".repeat(31)), "digest"),
            (format!(r#""attributes":[],"digest":"{zeros}""#), "attributes"),
            (format!(r#""attributes":["b","a"],"digest":"{zeros}""#), "attributes"),
            (format!(r#""attributes":["a","a"],"digest":"{zeros}""#), "attributes"),
            (format!(r#"{network},"digest":"{zeros}""#), "subject"),
            (format!(r#"{network},"reason":"a\nb""#), "reason"),
            (format!(r#"{network},"rule":"{}""#, "x".repeat(65)), "rule"),
        ] {
            let error = read(&text).unwrap_err();
            assert_eq!(error, format!("{wrong} of a client on the list can't be read"), "{text}");
        }
    }
}
