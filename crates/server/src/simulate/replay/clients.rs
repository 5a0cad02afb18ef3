//! The clients of a rule: how often each came, and of those who were denied, how often and when.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use tidegate::{BlockList, Request, Rule, Timestamp};

use crate::plain::Plain;
use crate::top::{Client, Name};

/// Whom a rule counts as one.
#[derive(Clone, Debug)]
pub(super) enum Who {
    /// A client. What may be a secret has no name here, only a hash.
    Known(Client),
    /// Those without this attribute.
    Without(String),
    /// All of them.
    Everybody,
}

impl Who {
    pub(super) fn of(rule: &Rule, request: &Request<'_>, ids: &BlockList) -> Self {
        match Client::of(rule, request, ids) {
            Some(client) => Self::Known(client),
            None => match rule.per().iter().find(|chain| chain.pick(request).is_none()) {
                Some(chain) => Self::Without(chain.to_string()),
                None => Self::Everybody,
            },
        }
    }

    pub(super) fn name(&self) -> Option<&Name> {
        match self {
            Self::Known(client) => client.name.as_ref(),
            Self::Without(_) | Self::Everybody => None,
        }
    }

    pub(super) fn id(&self) -> Option<String> {
        match self {
            Self::Known(client) => Some(client.id()),
            Self::Without(_) | Self::Everybody => None,
        }
    }
}

/// For people.
impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Without(attribute) => write!(f, "without {attribute}"),
            Self::Everybody => f.write_str("everybody"),
            Self::Known(client) => match &client.name {
                Some(Name::Value(value)) => Plain::from(&**value).fmt(f),
                Some(Name::Parts(parts)) => {
                    let parts = parts
                        .iter()
                        .map(|(name, value)| format!("{name} {}", Plain::from(&**value)));
                    f.write_str(&parts.collect::<Vec<_>>().join(", "))
                }
                None => f.write_str(&client.id()),
            },
        }
    }
}

/// What became of the requests of a client that was denied.
#[derive(Clone, Debug)]
pub(super) struct Denied {
    pub(super) who: Who,
    pub(super) all: Spell,
    /// What this rule decided so, and the other rules admit.
    pub(super) alone: Spell,
}

/// How often something happened, and when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spell {
    pub(super) count: u64,
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl Spell {
    fn note(&mut self, at: Timestamp) {
        if self.count == 0 {
            self.first = at;
        }
        self.count += 1;
        self.last = at;
    }
}

/// One client of a rule.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) offered: u64,
    pub(super) denied: Option<Box<Denied>>,
}

/// All clients of a rule.
#[derive(Debug, Default)]
pub(super) struct Clients(HashMap<u64, Seen, BuildHasherDefault<Taken>>);

/// Takes a hash as it is: clients are known by one already.
#[derive(Debug, Default)]
pub(super) struct Taken(u64);

impl Hasher for Taken {
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

/// What a rule said to a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) denied: bool,
    /// Whether this rule decided so, and the other rules admit it.
    pub(super) alone: bool,
    pub(super) at: Timestamp,
}

impl Clients {
    /// A request of a client, by its hash. `who` is asked when it is denied for the first time.
    pub(super) fn note(&mut self, key: u64, said: Said, who: impl FnOnce() -> Who) {
        let seen = self.0.entry(key).or_default();
        seen.offered += 1;
        if said.denied {
            let denied = seen.denied.get_or_insert_with(|| {
                let (all, alone) = (Spell::default(), Spell::default());
                Box::new(Denied { who: who(), all, alone })
            });
            denied.all.note(said.at);
            if said.alone {
                denied.alone.note(said.at);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those who were denied, with how often they came.
    pub(super) fn denied(&self) -> impl Iterator<Item = (u64, &Denied)> {
        self.0.values().filter_map(|seen| Some((seen.offered, seen.denied.as_deref()?)))
    }
}
