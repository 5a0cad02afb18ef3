//! Signed tokens (JWT, RFC 7519) with claims about a user.

use std::borrow::Cow;
use std::path::Path;

use hyper::header::{AUTHORIZATION, HeaderName};
use hyper::http::request::Parts;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};
use thiserror::Error;
use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;
use tidegate_limiter::tower::{AmbiguousValue, Lookup};

use crate::config_error::ConfigError;
use crate::identity::bearer;
use crate::identity::keys::{KeyRing, KeySource};
use crate::reload::WakeReason;

/// The configuration of token verification.
#[derive(Debug)]
pub struct JwtConfig {
    /// The keys that verify signatures.
    pub keys: KeySource,
    /// The accepted algorithms; empty for all algorithms of the keys.
    pub algorithms: Vec<Algorithm>,
    /// The accepted issuers; empty for any issuer.
    pub issuers: Vec<String>,
    /// The accepted audiences; empty for any audience.
    pub audiences: Vec<String>,
    /// Tolerated clock difference between the issuer and this node.
    pub leeway: Span,
    /// The field of a request that has the token.
    pub place: TokenPlace,
}

/// The field of a request that has the token.
#[derive(Clone, Debug)]
pub enum TokenPlace {
    /// `Authorization`, after `Bearer`.
    Bearer,
    /// Another header, a cookie or a query parameter. `Bearer` before the token is optional.
    Field(Lookup),
}

/// Accepts tokens with a valid signature, lifetime, issuer and audience.
#[derive(Debug)]
pub(crate) struct TokenVerifier {
    keys: KeyRing,
    issuers: Vec<String>,
    audiences: Vec<String>,
    leeway: Span,
    place: TokenPlace,
    clock: Clock,
}

impl TokenVerifier {
    /// Returns a verifier with the keys of the configuration.
    ///
    /// # Errors
    /// The keys can't be read.
    pub(crate) fn new(config: JwtConfig, clock: Clock) -> Result<Self, ConfigError> {
        let keys = KeyRing::open(config.keys, config.algorithms)?;
        let JwtConfig { issuers, audiences, leeway, place, .. } = config;
        Ok(Self { keys, issuers, audiences, leeway, place, clock })
    }

    /// Returns the file of the keys, if they are in one.
    pub(crate) fn key_file(&self) -> Option<&Path> {
        self.keys.path()
    }

    /// Reads the keys again, if they are in a file: after a change only if the file differs, on a reload always.
    pub(crate) fn reload_keys(&self, reason: WakeReason) {
        match reason {
            WakeReason::Change => self.keys.refresh(),
            WakeReason::Reload => self.keys.reload(),
        }
    }

    /// Returns the header that has the token; `None` for a cookie or parameter.
    pub(crate) fn header(&self) -> Option<&HeaderName> {
        match &self.place {
            TokenPlace::Bearer => Some(&AUTHORIZATION),
            TokenPlace::Field(lookup) => lookup.header(),
        }
    }

    /// Returns the claims of a request's token; `None` without a token, or if it is rejected.
    ///
    /// # Errors
    /// The request has several tokens. Servers differ in the one that they use.
    pub(crate) fn claims(&self, head: &Parts) -> Result<Option<Claims>, AmbiguousValue> {
        let token = match &self.place {
            TokenPlace::Bearer => bearer::read_token(head)?,
            TokenPlace::Field(lookup) => lookup.read_unique(head)?,
        };
        Ok(token.and_then(|token| self.verified_claims(&token)))
    }

    fn verified_claims(&self, token: &str) -> Option<Claims> {
        let token = bearer::strip_scheme(token).unwrap_or(token);
        let verified = self.verify(token, self.clock.now());
        // The token itself is never logged: a reader of the log could use it.
        verified
            .map_err(|error| tracing::debug!(%error, "token rejected, request has no user"))
            .ok()
    }

    fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, TokenError> {
        let header = decode_header(token)?;
        if header.crit.is_some() {
            return Err(TokenError::CriticalExtension);
        }
        let key = self.keys.find(header.kid.as_deref()).ok_or(TokenError::UnknownKey)?;
        let mut validation = Validation::new(header.alg);
        validation.algorithms.clone_from(&key.algorithms);
        validation.required_spec_claims.clear();
        // `exp` and `nbf` are checked below with `self.clock`, which tests can set.
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        validation.validate_aud = !self.audiences.is_empty();
        if !self.issuers.is_empty() {
            validation.set_issuer(&self.issuers);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        if !self.audiences.is_empty() {
            validation.set_audience(&self.audiences);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        let claims =
            Claims(decode::<Map<String, Value>>(token, &key.decoding, &validation)?.claims);
        let expires_at = claims.time("exp")?.ok_or(TokenError::NoExpiry)?;
        if now >= expires_at + self.leeway {
            return Err(TokenError::Expired);
        }
        match claims.time("nbf")? {
            Some(valid_from) if now + self.leeway < valid_from => Err(TokenError::NotYetValid),
            _ => Ok(claims),
        }
    }
}

/// The claims of a verified token.
#[derive(Debug)]
pub(crate) struct Claims(Map<String, Value>);

impl Claims {
    /// Returns a text, number or boolean as text; `None` for lists and objects.
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.0.get(name)? {
            Value::String(text) => Some(text.into()),
            Value::Number(number) => Some(number.to_string().into()),
            Value::Bool(value) => Some(if *value { "true" } else { "false" }.into()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// Returns a time claim, in whole seconds: fractions are dropped.
    fn time(&self, name: &'static str) -> Result<Option<Timestamp>, TokenError> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let seconds = value.as_u64().or_else(|| {
            let whole = value.as_f64()?.trunc();
            format!("{whole:.0}").parse().ok()
        });
        let seconds = seconds.filter(|seconds| *seconds <= Self::MAX_SECONDS);
        let time = seconds.map(|seconds| Some(Timestamp::from_secs(seconds)));
        time.ok_or(TokenError::InvalidTime(name))
    }

    /// The end of the year 9999. A later time is invalid.
    const MAX_SECONDS: u64 = 253_402_300_799;
}

/// The reason why a token is rejected.
#[derive(Debug, Error)]
enum TokenError {
    #[error("cannot verify the token: {0}")]
    Unverified(#[from] jsonwebtoken::errors::Error),
    #[error("the token names no known key")]
    UnknownKey,
    #[error("the token has critical extensions, none is supported")]
    CriticalExtension,
    #[error("the token never expires, exp is wanted")]
    NoExpiry,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYetValid,
    #[error("{0} is no time in seconds")]
    InvalidTime(&'static str),
}

#[cfg(test)]
mod tests;
