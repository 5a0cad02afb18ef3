//! Who a client is, and what else rules may know of a request that passes through a proxy.
//!
//! An attribute is read only if some rule mentions it or somebody is blocked by it. What a client can
//! make up names it only where an operator said so: an address behind a proxy counts if the proxy is
//! trusted, a user if its token is signed.

mod address;
mod bearer;
pub mod forwarded;
mod jwt;
mod keys;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use hyper::http::request::Parts;
use tidegate_core::{CallError, Request};
use tidegate_limiter::tower::{Lookup, used_attributes};
use tidegate_limiter::{BlockList, Clock};
use tidegate_rules::RuleSet;

pub use self::address::{AddressConfig, Addresses};
use self::jwt::{Claims, Verifier};
pub use self::jwt::{JwtConfig, TokenPlace};
pub use self::keys::KeySource;
use crate::call::Call;
use crate::config_error::ConfigError;
use crate::reload::WakeReason;

/// How clients are told apart.
#[derive(Debug, Default)]
pub struct IdentityConfig {
    /// The way to the address of a client.
    pub address: AddressConfig,
    /// Where `api_key` is, unless it is in `X-API-Key`.
    pub api_key: Option<Lookup>,
    /// The cookie that `session` is the hash of.
    pub session: Option<Lookup>,
    /// Verification of bearer tokens, if configured.
    pub jwt: Option<JwtConfig>,
    /// Attributes under names of the operator's; they beat those of the same name.
    pub attributes: BTreeMap<String, Lookup>,
}

/// Tells rules who comes.
#[derive(Debug)]
pub struct Identity {
    addresses: Addresses,
    api_key: Option<Lookup>,
    session: Option<Lookup>,
    tokens: Option<Verifier>,
    custom: BTreeMap<String, Lookup>,
    blocks: Arc<BlockList>,
}

/// What rules mention, and where it is.
#[derive(Debug, Default)]
pub struct AttributePlan(Vec<(Box<str>, Source)>);

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The address of the peer.
    pub address: IpAddr,
    /// The name in its certificate, if that was verified.
    pub service: Option<&'a str>,
    /// The names of the route and the upstream that its request is for, if we know them.
    pub way: Option<(&'a str, &'a str)>,
}

impl<'a> Caller<'a> {
    /// The caller at an address, with the verified name in its certificate.
    pub fn new(address: IpAddr, service: Option<&'a str>) -> Self {
        Self { address, service, way: None }
    }
}

/// The call with the name of the service that makes it, if its certificate says so.
///
/// A call that has `service` already speaks for another, and one that names a rule says itself whom it
/// is about.
pub fn vouched<'a>(mut call: Call<'a>, caller: Caller<'a>) -> Call<'a> {
    if let Some(service) = caller.service
        && call.rule.is_none()
        && call.request.get("service").is_none()
    {
        // A call that is full of attributes has no room for one more, and is decided without.
        let _ = call.request.insert("service", service);
    }
    call
}

/// Where an attribute is found.
#[derive(Clone, Debug)]
enum Source {
    /// In the request, as it is.
    Request(Lookup),
    /// In the request, and nobody's business.
    Hashed(Lookup),
    Address,
    Service,
    Route,
    Upstream,
    Bearer,
    Claim(Box<str>),
}

impl Identity {
    /// Reads what rules mention, and what the list blocks by.
    ///
    /// # Errors
    /// The keys for tokens can't be read.
    pub fn new(
        config: IdentityConfig,
        blocks: Arc<BlockList>,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        let tokens = config.jwt.map(|jwt| Verifier::new(jwt, clock)).transpose()?;
        Ok(Self {
            addresses: Addresses::new(config.address),
            api_key: config.api_key,
            session: config.session,
            tokens,
            custom: config.attributes,
            blocks,
        })
    }

    /// Returns the file of the keys for tokens, if they are in one.
    pub fn key_file(&self) -> Option<&Path> {
        self.tokens.as_ref().and_then(Verifier::key_file)
    }

    /// Reads the keys for tokens again: after a change if their file has changed, on a reload always. Keys that can't be
    /// used leave the old ones active. Blocks on the disk.
    pub fn reload_keys(&self, reason: WakeReason) {
        if let Some(tokens) = &self.tokens {
            tokens.reload_keys(reason);
        }
    }

    /// What these rules mention, as far as a request can have it.
    pub(crate) fn known(&self, rules: &RuleSet) -> AttributePlan {
        let known = used_attributes(rules).into_iter();
        AttributePlan(known.filter_map(|name| Some((name.into(), self.source(name)?))).collect())
    }

    /// What rules that mention `known` see of a request.
    ///
    /// # Errors
    /// A value is longer than rules are shown.
    pub fn describe<'r>(
        &'r self,
        known: &'r AttributePlan,
        head: &'r Parts,
        caller: Caller<'_>,
    ) -> Result<Request<'r>, CallError> {
        let seen = RequestReader { identity: self, head, caller, claims: OnceCell::new() };
        let mut request = Request::new();
        for (name, source) in &known.0 {
            if let Some(value) = seen.read(source) {
                let refused = |error| CallError::rejected_attribute(name, &error);
                request.insert(&**name, value).map_err(refused)?;
            }
        }
        self.blocks.attributes(|name| {
            if known.0.iter().any(|(known, _)| **known == *name) || request.get(name).is_some() {
                return;
            }
            let value = self.source(name).and_then(|source| seen.read(&source));
            // A value that is too long for an attribute is nobody's who could be blocked.
            let _ = value.map(|value| request.insert(name.to_owned(), value));
        });
        Ok(request)
    }

    /// Whether what this address says about its clients is believed.
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.addresses.trusts(address.to_canonical())
    }

    /// Where the attribute of this name is; `None` if no request has it.
    fn source(&self, name: &str) -> Option<Source> {
        if let Some(lookup) = self.custom.get(name) {
            return Some(Source::Request(lookup.clone()));
        }
        match name {
            "ip" => Some(Source::Address),
            "service" => Some(Source::Service),
            "route" => Some(Source::Route),
            "upstream" => Some(Source::Upstream),
            "bearer" => Some(Source::Bearer),
            "session" => self.session.clone().map(Source::Hashed),
            "api_key" if self.api_key.is_some() => self.api_key.clone().map(Source::Request),
            "user" => self.tokens.as_ref().map(|_| Source::Claim("sub".into())),
            _ => match name.strip_prefix("claim.") {
                Some(claim) => self.tokens.as_ref().map(|_| Source::Claim(claim.into())),
                None => Lookup::named(name).map(Source::Request),
            },
        }
    }
}

/// One request while it is being read: its token is verified at most once, and only if it matters.
struct RequestReader<'r, 'c> {
    identity: &'r Identity,
    head: &'r Parts,
    caller: Caller<'c>,
    claims: OnceCell<Option<Claims>>,
}

impl<'r> RequestReader<'r, '_> {
    fn read(&self, source: &Source) -> Option<Cow<'r, str>> {
        match source {
            Source::Request(lookup) => lookup.read(self.head),
            Source::Hashed(lookup) => Some(secret(&lookup.read(self.head)?)?.into()),
            Source::Bearer => Some(secret(bearer::token(self.head)?)?.into()),
            Source::Service => self.caller.service.map(|name| name.to_owned().into()),
            Source::Route => self.caller.way.map(|(route, _)| route.to_owned().into()),
            Source::Upstream => self.caller.way.map(|(_, upstream)| upstream.to_owned().into()),
            Source::Address => {
                let (address, headers) = (self.caller.address, &self.head.headers);
                Some(self.identity.addresses.read(address, headers).into())
            }
            Source::Claim(name) => {
                let tokens = self.identity.tokens.as_ref()?;
                let claims = self.claims.get_or_init(|| tokens.claims(self.head)).as_ref()?;
                claims.text(name).map(|text| text.into_owned().into())
            }
        }
    }
}

/// What a secret hashes to; an empty one is none.
fn secret(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| bearer::hashed(text))
}

#[cfg(test)]
mod tests;
