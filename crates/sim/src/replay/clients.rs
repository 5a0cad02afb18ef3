//! The clients of a rule in a replay: their requests, and their denials with the times.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use tidegate_core::{Request, TerminalSafe, Timestamp};
use tidegate_limiter::BlockList;
use tidegate_limiter::block::Subject;
use tidegate_rules::{ClientName, Rule};

/// The clients that a rule counts as one.
#[derive(Clone, Debug)]
pub(crate) enum RuleClient {
    /// One client. It has no name if the name may be a secret.
    Known(Subject, Option<ClientName>),
    /// All requests without this attribute.
    Without(String),
    /// All requests.
    All,
}

impl RuleClient {
    pub(crate) fn of(rule: &Rule, request: &Request<'_>, ids: &BlockList) -> Self {
        match ids.client_of(rule, request) {
            Some(subject) => Self::Known(subject, ClientName::of(rule, request)),
            None => match rule.per().iter().find(|chain| chain.pick(request).is_none()) {
                Some(chain) => Self::Without(chain.to_string()),
                None => Self::All,
            },
        }
    }

    pub(crate) fn name(&self) -> Option<&ClientName> {
        match self {
            Self::Known(_, name) => name.as_ref(),
            Self::Without(_) | Self::All => None,
        }
    }

    /// Returns the client's id in the block list.
    pub(crate) fn id(&self) -> Option<String> {
        match self {
            Self::Known(subject, _) => Some(subject.to_string()),
            Self::Without(_) | Self::All => None,
        }
    }
}

/// Writes the client for a terminal.
impl std::fmt::Display for RuleClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Without(attribute) => write!(f, "without {attribute}"),
            Self::All => f.write_str("all clients"),
            Self::Known(subject, name) => match name {
                Some(ClientName::Value(value)) => TerminalSafe::from(&**value).fmt(f),
                Some(ClientName::Parts(parts)) => {
                    let parts = parts
                        .iter()
                        .map(|(name, value)| format!("{name} {}", TerminalSafe::from(&**value)));
                    f.write_str(&parts.collect::<Vec<_>>().join(", "))
                }
                None => write!(f, "{subject}"),
            },
        }
    }
}

/// A client that was denied.
#[derive(Clone, Debug)]
pub(crate) struct DeniedClient {
    pub(crate) client: RuleClient,
    /// All denials by this rule.
    pub(crate) all: DenialSpan,
    /// The part of `all` that this rule decided and the other set of rules admits.
    pub(crate) changed: DenialSpan,
}

/// The number of denials, with the times of the first and the last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DenialSpan {
    pub(crate) count: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
}

impl DenialSpan {
    fn record(&mut self, at: Timestamp) {
        if self.count == 0 {
            self.first = at;
        }
        self.count += 1;
        self.last = at;
    }
}

/// The counts of one client of a rule.
#[derive(Debug, Default)]
pub(crate) struct ClientCounts {
    /// Requests, admitted or not.
    pub(crate) offered: u64,
    /// The denials; `None` if there are none.
    pub(crate) denied: Option<Box<DeniedClient>>,
}

/// The counts of all clients of a rule, by the hash of the client.
#[derive(Debug, Default)]
pub(crate) struct RuleClients(HashMap<u64, ClientCounts, BuildHasherDefault<IdentityHasher>>);

/// A hasher that returns its `u64` key unchanged, because the key is a hash already.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The outcome of a request under a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleVerdict {
    pub(crate) denied: bool,
    /// True if this rule decided the denial, and the other set of rules admits the request.
    pub(crate) changed: bool,
    pub(crate) at: Timestamp,
}

impl RuleClients {
    /// Counts a request of the client with the hash `key`. `client` is called at its first denial only.
    pub(crate) fn record(
        &mut self,
        key: u64,
        verdict: RuleVerdict,
        client: impl FnOnce() -> RuleClient,
    ) {
        let counts = self.0.entry(key).or_default();
        counts.offered += 1;
        if verdict.denied {
            let denied = counts.denied.get_or_insert_with(|| {
                let (all, changed) = (DenialSpan::default(), DenialSpan::default());
                Box::new(DeniedClient { client: client(), all, changed })
            });
            denied.all.record(verdict.at);
            if verdict.changed {
                denied.changed.record(verdict.at);
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the clients that were denied, with the number of their requests.
    pub(crate) fn denied(&self) -> impl Iterator<Item = (u64, &DeniedClient)> {
        self.0.values().filter_map(|counts| Some((counts.offered, counts.denied.as_deref()?)))
    }
}
