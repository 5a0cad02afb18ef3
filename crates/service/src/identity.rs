//! The identity of a client, and the other attributes of a request that passes through a proxy.
//!
//! An attribute is read only if a rule or the block list uses it. Attributes that a client could forge need the consent
//! of the operator: a forwarded address is used only if the proxy is trusted, a user only if the token is signed.

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

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use tidegate_core::{CallError, Request, escape_text, quote};
use tidegate_limiter::tower::{AmbiguousValue, Lookup, used_attributes};
use tidegate_limiter::{BlockList, Clock};
use tidegate_rules::RuleSet;

pub use self::address::{AddressConfig, AddressReader};
use self::jwt::{Claims, TokenVerifier};
pub use self::jwt::{JwtConfig, TokenPlace};
pub use self::keys::KeySource;
use crate::call::Call;
use crate::config_error::ConfigError;
use crate::reload::WakeReason;

/// The configuration of client identity.
#[derive(Debug, Default)]
pub struct IdentityConfig {
    /// The trusted proxies, and the header with the client address.
    pub address: AddressConfig,
    /// The field of a request with `api_key`; `X-API-Key` if not set.
    pub api_key: Option<Lookup>,
    /// The cookie for `session`, which is its hash.
    pub session: Option<Lookup>,
    /// Verification of bearer tokens, if configured.
    pub jwt: Option<JwtConfig>,
    /// Attributes that the operator defines. They replace built-in attributes of the same name.
    pub attributes: BTreeMap<String, Lookup>,
}

/// Reads the attributes of requests.
#[derive(Debug)]
pub struct Identity {
    addresses: AddressReader,
    api_key: Option<Lookup>,
    session: Option<Lookup>,
    tokens: Option<TokenVerifier>,
    custom: BTreeMap<String, Lookup>,
    blocks: Arc<BlockList>,
}

/// The attributes that rules use, each with its source.
#[derive(Debug, Default)]
pub struct AttributePlan {
    attributes: Vec<(Box<str>, AttributeSource)>,
    /// The headers that the sources read.
    headers: Vec<HeaderName>,
}

/// The peer of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The address of the peer.
    pub address: IpAddr,
    /// The name in its certificate, if that was verified.
    pub service: Option<&'a str>,
    /// The names of the route and the upstream of its request. Only the gateway sets it.
    pub route: Option<(&'a str, &'a str)>,
}

impl<'a> Caller<'a> {
    /// Returns the caller at an address, with the verified name in its certificate.
    pub fn new(address: IpAddr, service: Option<&'a str>) -> Self {
        Self { address, service, route: None }
    }
}

/// Adds the verified name in the caller's certificate to a call, as `service`.
///
/// A call with `service` is not changed: it is made on behalf of another service. Neither is a call that names a rule:
/// it contains the key itself.
pub fn with_peer_identity<'a>(mut call: Call<'a>, caller: Caller<'a>) -> Call<'a> {
    if let Some(service) = caller.service
        && call.rule.is_none()
        && call.request.get("service").is_none()
    {
        // A call with the maximum of attributes is decided without `service`.
        let _ = call.request.insert("service", service);
    }
    call
}

/// The source of an attribute.
#[derive(Clone, Debug)]
enum AttributeSource {
    /// A field of the request.
    Request(Lookup),
    /// The hash of a field of the request, which is a secret.
    Hashed(Lookup),
    Address,
    Service,
    Route,
    Upstream,
    Bearer,
    Claim(Box<str>),
}

impl Identity {
    /// Returns a reader for the attributes that rules and this block list use.
    ///
    /// # Errors
    /// The keys for tokens can't be read.
    pub fn new(
        config: IdentityConfig,
        blocks: Arc<BlockList>,
        clock: Clock,
    ) -> Result<Self, ConfigError> {
        let tokens = config.jwt.map(|jwt| TokenVerifier::new(jwt, clock)).transpose()?;
        Ok(Self {
            addresses: AddressReader::new(config.address),
            api_key: config.api_key,
            session: config.session,
            tokens,
            custom: config.attributes,
            blocks,
        })
    }

    /// Returns the file of the keys for tokens, if they are in one.
    pub fn key_file(&self) -> Option<&Path> {
        self.tokens.as_ref().and_then(TokenVerifier::key_file)
    }

    /// Reads the keys for tokens again: after a change only if their file differs, on a reload always. Invalid keys leave
    /// the old ones active. Blocks on the disk.
    pub fn reload_keys(&self, reason: WakeReason) {
        if let Some(tokens) = &self.tokens {
            tokens.reload_keys(reason);
        }
    }

    /// Returns the attributes that these rules use and that requests can have.
    pub(crate) fn attribute_plan(&self, rules: &RuleSet) -> AttributePlan {
        let names = used_attributes(rules).into_iter();
        let attributes: Vec<(Box<str>, AttributeSource)> =
            names.filter_map(|name| Some((name.into(), self.source(name)?))).collect();
        let headers = attributes.iter().filter_map(|(_, source)| self.header(source).cloned());
        AttributePlan { headers: headers.collect(), attributes }
    }

    /// Returns the header that a source reads, if it reads one.
    fn header<'s>(&'s self, source: &'s AttributeSource) -> Option<&'s HeaderName> {
        match source {
            AttributeSource::Request(lookup) | AttributeSource::Hashed(lookup) => lookup.header(),
            AttributeSource::Bearer => Some(&AUTHORIZATION),
            AttributeSource::Claim(_) => self.tokens.as_ref()?.header(),
            AttributeSource::Address
            | AttributeSource::Service
            | AttributeSource::Route
            | AttributeSource::Upstream => None,
        }
    }

    /// Rejects a request with another spelling of a header that rules read: `X_API_Key` for `X-API-Key`. CGI, WSGI and
    /// similar interfaces read both as one header. `has_underscores` is set if a header of the request has an underscore.
    ///
    /// # Errors
    /// The header and its other spelling.
    pub fn reject_other_spellings(
        &self,
        plan: &AttributePlan,
        head: &Parts,
        has_underscores: bool,
    ) -> Result<(), CallError> {
        let has_underscore = |name: &HeaderName| name.as_str().contains('_');
        if !has_underscores && !plan.headers.iter().any(has_underscore) {
            return Ok(());
        }
        for name in head.headers.keys() {
            if let Some(planned) =
                plan.headers.iter().find(|planned| is_other_spelling(planned, name))
            {
                let found = format!("its other spelling {}", quote(name.as_str()));
                return Err(CallError::invalid(planned.as_str(), found, "only this spelling"));
            }
        }
        Ok(())
    }

    /// Logs the first forwarded address that is ignored because its sender is not trusted.
    pub fn warn_if_ignored(&self, peer: IpAddr, headers: &HeaderMap) {
        self.addresses.warn_if_ignored(peer, headers);
    }

    /// Returns the attributes of a request: those of the plan, and those of the block list.
    ///
    /// # Errors
    /// A value of the plan is too long for an attribute, or an attribute has several values.
    pub fn describe<'r>(
        &'r self,
        plan: &'r AttributePlan,
        head: &'r Parts,
        caller: Caller<'_>,
    ) -> Result<Request<'r>, CallError> {
        let reader = RequestReader { identity: self, head, caller, claims: OnceCell::new() };
        let mut request = Request::new();
        for (name, source) in &plan.attributes {
            if let Some(value) = reader.read(source).map_err(|_| ambiguous_attribute(name))? {
                let rejected = |error| CallError::rejected_attribute(name, &error);
                request.insert(&**name, value).map_err(rejected)?;
            }
        }
        let mut ambiguous = None;
        self.blocks.attributes(|name| {
            if plan.attributes.iter().any(|(planned, _)| **planned == *name)
                || request.get(name).is_some()
            {
                return;
            }
            match self.source(name).map_or(Ok(None), |source| reader.read(&source)) {
                // A value that is too long for an attribute can't be on the block list.
                Ok(value) => drop(value.map(|value| request.insert(name.to_owned(), value))),
                Err(AmbiguousValue) => ambiguous = Some(ambiguous_attribute(name)),
            }
        });
        ambiguous.map_or(Ok(request), Err)
    }

    /// Returns whether this address is a trusted proxy. Only forwarded headers of trusted proxies are used.
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        self.addresses.is_trusted(address.to_canonical())
    }

    /// Returns the source of an attribute; `None` if no request has it.
    fn source(&self, name: &str) -> Option<AttributeSource> {
        if let Some(lookup) = self.custom.get(name) {
            return Some(AttributeSource::Request(lookup.clone()));
        }
        match name {
            "ip" => Some(AttributeSource::Address),
            "service" => Some(AttributeSource::Service),
            "route" => Some(AttributeSource::Route),
            "upstream" => Some(AttributeSource::Upstream),
            "bearer" => Some(AttributeSource::Bearer),
            "session" => self.session.clone().map(AttributeSource::Hashed),
            "api_key" if self.api_key.is_some() => {
                self.api_key.clone().map(AttributeSource::Request)
            }
            "user" => self.tokens.as_ref().map(|_| AttributeSource::Claim("sub".into())),
            _ => match name.strip_prefix("claim.") {
                Some(claim) => self.tokens.as_ref().map(|_| AttributeSource::Claim(claim.into())),
                None => Lookup::named(name).map(AttributeSource::Request),
            },
        }
    }
}

/// Reads the attributes of one request. Its token is verified at most once, and only if a claim is needed.
struct RequestReader<'r, 'c> {
    identity: &'r Identity,
    head: &'r Parts,
    caller: Caller<'c>,
    claims: OnceCell<Result<Option<Claims>, AmbiguousValue>>,
}

impl<'r> RequestReader<'r, '_> {
    /// Returns the value of an attribute, if the request has one.
    ///
    /// # Errors
    /// The request has several values.
    fn read(&self, source: &AttributeSource) -> Result<Option<Cow<'r, str>>, AmbiguousValue> {
        let hashed = |secret: Option<&str>| secret.and_then(hash_secret).map(Cow::from);
        Ok(match source {
            AttributeSource::Request(lookup) => lookup.read_unique(self.head)?,
            AttributeSource::Hashed(lookup) => hashed(lookup.read_unique(self.head)?.as_deref()),
            AttributeSource::Bearer => hashed(bearer::read_token(self.head)?.as_deref()),
            AttributeSource::Service => self.caller.service.map(|name| name.to_owned().into()),
            AttributeSource::Route => self.caller.route.map(|(route, _)| route.to_owned().into()),
            AttributeSource::Upstream => {
                self.caller.route.map(|(_, upstream)| upstream.to_owned().into())
            }
            AttributeSource::Address => {
                let (address, headers) = (self.caller.address, &self.head.headers);
                Some(self.identity.addresses.read(address, headers).into())
            }
            AttributeSource::Claim(name) => {
                let Some(tokens) = self.identity.tokens.as_ref() else { return Ok(None) };
                let claims = self.claims.get_or_init(|| tokens.claims(self.head)).as_ref();
                let claims = claims.map_err(|error| *error)?.as_ref();
                claims.and_then(|claims| Some(escape_text(claims.text(name)?).into_owned().into()))
            }
        })
    }
}

/// Returns the error of a request that has several values for an attribute.
fn ambiguous_attribute(name: &str) -> CallError {
    CallError::invalid(name, "several values", "one value")
}

/// Returns whether two different names are equal except for hyphens and underscores.
fn is_other_spelling(one: &HeaderName, other: &HeaderName) -> bool {
    let hyphenated = |byte| if byte == b'_' { b'-' } else { byte };
    let (one, other) = (one.as_str(), other.as_str());
    one.len() == other.len()
        && one != other
        && one.bytes().map(hyphenated).eq(other.bytes().map(hyphenated))
}

/// Returns the hash of a secret; `None` for an empty one.
fn hash_secret(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| bearer::hash_secret(text))
}

#[cfg(test)]
mod tests;
