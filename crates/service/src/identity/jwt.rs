//! Tokens that say who somebody is, and that nobody else can have made.

use std::borrow::Cow;
use std::path::Path;

use hyper::http::request::Parts;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};
use thiserror::Error;
use tidegate_core::{Span, Timestamp};
use tidegate_limiter::Clock;
use tidegate_limiter::tower::Lookup;

use crate::config_error::ConfigError;
use crate::identity::bearer;
use crate::identity::keys::{KeyRing, KeySource};
use crate::reload::WakeReason;

/// Whose tokens are believed.
#[derive(Debug)]
pub struct JwtConfig {
    /// Keys that sign tokens.
    pub keys: KeySource,
    /// Empty for whatever the keys can do.
    pub algorithms: Vec<Algorithm>,
    /// One of these must have issued a token; empty for anybody who has the key.
    pub issuers: Vec<String>,
    /// A token must be for one of these; empty for tokens for anybody.
    pub audiences: Vec<String>,
    /// By how much clocks may differ.
    pub leeway: Span,
    /// The field of a request that has the token.
    pub place: TokenPlace,
}

/// Where a request has its token.
#[derive(Clone, Debug)]
pub enum TokenPlace {
    /// After `Bearer` in `Authorization`.
    Bearer,
    /// A header or cookie that is the token, after `Bearer` or not.
    Found(Lookup),
}

/// Believes tokens that are signed, in time and meant for us, and nothing else.
#[derive(Debug)]
pub(crate) struct Verifier {
    keys: KeyRing,
    issuers: Vec<String>,
    audiences: Vec<String>,
    leeway: Span,
    place: TokenPlace,
    clock: Clock,
}

impl Verifier {
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

    /// Reads the keys again, if they are in a file: after a change if it has changed, on a reload always.
    pub(crate) fn reload_keys(&self, reason: WakeReason) {
        match reason {
            WakeReason::Change => self.keys.refresh(),
            WakeReason::Reload => self.keys.reload(),
        }
    }

    /// What the token of a request says; `None` without a token, or with one that is not believed.
    pub(crate) fn claims(&self, head: &Parts) -> Option<Claims> {
        let token = match &self.place {
            TokenPlace::Bearer => bearer::token(head)?.into(),
            TokenPlace::Found(lookup) => lookup.read(head)?,
        };
        let token = bearer::strip(&token).unwrap_or(&token);
        let verified = self.verify(token, self.clock.now());
        // Why, and never the token: whoever reads logs could use it.
        verified.map_err(|error| tracing::debug!(%error, "token not believed")).ok()
    }

    fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, Disbelief> {
        let header = decode_header(token)?;
        if header.crit.is_some() {
            return Err(Disbelief::Critical);
        }
        let key = self.keys.find(header.kid.as_deref()).ok_or(Disbelief::Key)?;
        let mut terms = Validation::new(header.alg);
        terms.algorithms.clone_from(&key.algorithms);
        terms.required_spec_claims.clear();
        // Time is ours to compare, by a clock that tests own.
        (terms.validate_exp, terms.validate_nbf) = (false, false);
        terms.validate_aud = !self.audiences.is_empty();
        if !self.issuers.is_empty() {
            terms.set_issuer(&self.issuers);
            terms.required_spec_claims.insert("iss".to_owned());
        }
        if !self.audiences.is_empty() {
            terms.set_audience(&self.audiences);
            terms.required_spec_claims.insert("aud".to_owned());
        }
        let claims = Claims(decode::<Map<String, Value>>(token, &key.decoding, &terms)?.claims);
        let ends = claims.instant("exp")?.ok_or(Disbelief::Endless)?;
        if now >= ends + self.leeway {
            return Err(Disbelief::Expired);
        }
        match claims.instant("nbf")? {
            Some(begins) if now + self.leeway < begins => Err(Disbelief::Early),
            _ => Ok(claims),
        }
    }
}

/// What a believed token says.
#[derive(Debug)]
pub(crate) struct Claims(Map<String, Value>);

impl Claims {
    /// A text, number or truth value as text; `None` for lists and objects.
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.0.get(name)? {
            Value::String(text) => Some(text.into()),
            Value::Number(number) => Some(number.to_string().into()),
            Value::Bool(truth) => Some(if *truth { "true" } else { "false" }.into()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// An instant in seconds, of which fractions are cut off.
    fn instant(&self, name: &'static str) -> Result<Option<Timestamp>, Disbelief> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let seconds = value.as_u64().or_else(|| {
            let whole = value.as_f64()?.trunc();
            format!("{whole:.0}").parse().ok()
        });
        let seconds = seconds.filter(|seconds| *seconds <= Self::FURTHEST);
        seconds.map(|seconds| Some(Timestamp::from_secs(seconds))).ok_or(Disbelief::Instant(name))
    }

    /// The year 9999: later than any token that is meant.
    const FURTHEST: u64 = 253_402_300_799;
}

/// Why a token is not believed.
#[derive(Debug, Error)]
enum Disbelief {
    #[error("it is not signed as it should be: {0}")]
    Unsigned(#[from] jsonwebtoken::errors::Error),
    #[error("it names no key that we have")]
    Key,
    #[error("it wants extensions to be understood that are not")]
    Critical,
    #[error("it never expires, exp is wanted")]
    Endless,
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    Early,
    #[error("{0} is no time in seconds")]
    Instant(&'static str),
}

#[cfg(test)]
mod tests;
