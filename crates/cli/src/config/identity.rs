//! Parses and validates `identity` of `tidegate.yaml`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use hyper::header::HeaderName;
use ipnet::IpNet;
use jsonwebtoken::Algorithm;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_core::Span;
use tidegate_core::quota::window_of;
use tidegate_limiter::tower::Lookup;
use tidegate_redis::Secret;
use tidegate_rules::did_you_mean;
use tidegate_service::identity::forwarded::ForwardedHeader;
use tidegate_service::identity::{AddressConfig, IdentityConfig, JwtConfig, KeySource, TokenPlace};

use super::reader::FieldReader;

/// `identity` before validation. It has no `Debug`, because it may hold a secret.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawIdentity {
    trusted_proxies: Vec<Spanned<String>>,
    forwarded_header: Option<Spanned<String>>,
    ipv6_prefix: Option<Spanned<String>>,
    api_key: Option<Spanned<RawLookup>>,
    session: Option<Spanned<RawLookup>>,
    jwt: Option<Spanned<RawJwt>>,
    attributes: BTreeMap<String, Spanned<String>>,
}

/// The place of a value in a request: a header, a query parameter or a cookie.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLookup {
    header: Option<String>,
    query: Option<String>,
    cookie: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawJwt {
    secret: Option<Spanned<String>>,
    secret_file: Option<PathBuf>,
    public_key: Option<PathBuf>,
    jwks: Option<PathBuf>,
    algorithms: Vec<Spanned<String>>,
    issuer: OneOrMany,
    audience: OneOrMany,
    leeway: Option<Spanned<String>>,
    header: Option<String>,
    cookie: Option<String>,
}

/// A text, or a list of them.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    #[default]
    None,
    One(String),
    More(Vec<String>),
}

impl From<OneOrMany> for Vec<String> {
    fn from(texts: OneOrMany) -> Self {
        match texts {
            OneOrMany::None => Self::new(),
            OneOrMany::One(text) => vec![text],
            OneOrMany::More(texts) => texts,
        }
    }
}

impl RawIdentity {
    /// Returns the resolved form; its errors are added to `reader`. Paths are relative to `folder`.
    pub(crate) fn resolve(self, folder: &Path, reader: &mut FieldReader<'_>) -> IdentityConfig {
        let default = AddressConfig::default();
        let header = self.forwarded_header.and_then(|text| checked(text, reader, forwarded_header));
        let prefix = self.ipv6_prefix.and_then(|text| checked(text, reader, ipv6_prefix));
        let trusted = self.trusted_proxies.into_iter();
        let mut place = |name, raw: Option<Spanned<RawLookup>>, kinds: &[&str]| {
            raw.and_then(|raw| checked(raw, reader, |raw| lookup(name, &raw, kinds)))
        };
        let api_key = place("api_key", self.api_key, &["header", "query", "cookie"]);
        let session = place("session", self.session, &["cookie", "header"]);
        let jwt = self.jwt.and_then(|raw| {
            let at = raw.referenced;
            raw.value.resolve(at, folder, reader)
        });
        IdentityConfig {
            address: AddressConfig {
                trusted: trusted.filter_map(|text| checked(text, reader, network)).collect(),
                header: header.unwrap_or(default.header),
                ipv6_prefix: prefix.unwrap_or(default.ipv6_prefix),
            },
            api_key,
            session,
            jwt,
            attributes: (self.attributes.into_iter())
                .filter_map(|(name, text)| {
                    let found = checked(text, reader, |text| custom_attribute(&name, &text))?;
                    Some((name, found))
                })
                .collect(),
        }
    }
}

impl RawJwt {
    fn resolve(
        self,
        at: Location,
        folder: &Path,
        reader: &mut FieldReader<'_>,
    ) -> Option<JwtConfig> {
        let secret = match self.secret {
            Some(text) => {
                let at = text.referenced;
                let found = text.value.len();
                if found < KeySource::MIN_SECRET_BYTES {
                    let min = KeySource::MIN_SECRET_BYTES;
                    let reason = format!("must be at least {min} bytes long, found {found}");
                    reader.add(at, format!("identity.jwt.secret {reason}"));
                }
                Some(KeySource::Secret(Secret::from(text.value)))
            }
            None => None,
        };
        let file = |path: Option<PathBuf>| path.map(|path| folder.join(path));
        let given = [
            secret,
            file(self.secret_file).map(KeySource::SecretFile),
            file(self.public_key).map(KeySource::PublicKey),
            file(self.jwks).map(KeySource::Jwks),
        ];
        let mut given: Vec<KeySource> = given.into_iter().flatten().collect();
        let keys = given.pop();
        if keys.is_none() || !given.is_empty() {
            let found = if keys.is_none() { "none" } else { "several" };
            let wanted = "one of secret, secret_file, public_key, jwks";
            reader.add(at, format!("identity.jwt must have {wanted}, found {found}"));
        }
        let algorithms: Vec<Algorithm> = self
            .algorithms
            .into_iter()
            .filter_map(|text| checked(text, reader, algorithm))
            .collect();
        let leeway = self.leeway.and_then(|text| checked(text, reader, leeway));
        let place = match (self.header, self.cookie) {
            (None, None) => Ok(TokenPlace::Bearer),
            (Some(name), None) if name.eq_ignore_ascii_case("authorization") => {
                Ok(TokenPlace::Bearer)
            }
            (header, cookie) => {
                let raw = RawLookup { header, cookie, query: None };
                lookup("jwt", &raw, &["header", "cookie"]).map(TokenPlace::Field)
            }
        };
        let place = place.map_err(|reason| reader.add(at, format!("identity.{reason}"))).ok()?;
        let keys = keys?;
        if let Some(reason) = mismatched_algorithm(&keys, &algorithms) {
            reader.add(at, format!("identity.jwt.algorithms {reason}"));
        }
        Some(JwtConfig {
            keys,
            algorithms,
            issuers: self.issuer.into(),
            audiences: self.audience.into(),
            leeway: leeway.unwrap_or(Span::MINUTE),
            place,
        })
    }
}

/// Resolves a value. An error is added to `reader` with the line of the value.
fn checked<T, U>(
    raw: Spanned<T>,
    reader: &mut FieldReader<'_>,
    resolve: impl FnOnce(T) -> Result<U, String>,
) -> Option<U> {
    let at = raw.referenced;
    resolve(raw.value).map_err(|reason| reader.add(at, format!("identity.{reason}"))).ok()
}

fn network(text: String) -> Result<IpNet, String> {
    let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let wanted = "addresses or networks like 10.0.0.0/8";
    network.ok_or_else(|| format!("trusted_proxies must be {wanted}, found {text:?}"))
}

fn forwarded_header(text: String) -> Result<ForwardedHeader, String> {
    match text.to_ascii_lowercase().as_str() {
        "x-forwarded-for" => Ok(ForwardedHeader::XForwardedFor),
        "forwarded" => Ok(ForwardedHeader::Forwarded),
        _ => {
            let meant = did_you_mean(&text, ["x-forwarded-for", "forwarded"]);
            let wanted = "x-forwarded-for or forwarded";
            Err(format!("forwarded_header must be {wanted}, found {text:?}{meant}"))
        }
    }
}

fn ipv6_prefix(text: String) -> Result<u8, String> {
    let bits = text.parse().ok().filter(|bits| (1..=128).contains(bits));
    bits.ok_or_else(|| format!("ipv6_prefix must be a whole number from 1 to 128, found {text:?}"))
}

fn algorithm(text: String) -> Result<Algorithm, String> {
    let wanted = "like RS256, ES256, EdDSA or HS256";
    text.parse().map_err(|_| format!("jwt.algorithms must be {wanted}, found {text:?}"))
}

fn leeway(text: String) -> Result<Span, String> {
    match text.as_str() {
        "0" | "0s" => Ok(Span::ZERO),
        _ => window_of(&text)
            .map_err(|_| format!("jwt.leeway must be a length like 30s, found {text:?}")),
    }
}

/// Resolves a place like `{header: NAME}`. `kinds` are the accepted keys.
fn lookup(name: &str, raw: &RawLookup, kinds: &[&str]) -> Result<Lookup, String> {
    let places = [("header", &raw.header), ("query", &raw.query), ("cookie", &raw.cookie)];
    let mut given = places.into_iter().filter_map(|(kind, place)| Some((kind, place.as_ref()?)));
    let wanted = kinds.join(", ");
    match (given.next(), given.next()) {
        (Some((kind, place)), None) if kinds.contains(&kind) => {
            if place.is_empty() || (kind == "header" && place.parse::<HeaderName>().is_err()) {
                return Err(format!("{name}.{kind} must be a name, found {place:?}"));
            }
            Lookup::named(&format!("{kind}.{place}")).ok_or_else(|| format!("{name}.{kind}"))
        }
        (found, _) => {
            let found = if found.is_none() { "none" } else { "others" };
            Err(format!("{name} must have one of {wanted}, found {found}"))
        }
    }
}

/// Resolves the place of a custom attribute: `header.x-tenant`.
fn custom_attribute(name: &str, place: &str) -> Result<Lookup, String> {
    let kind = place.split_once('.').filter(|(_, name)| !name.is_empty()).map(|(kind, _)| kind);
    let known = kind.is_some_and(|kind| ["header", "query", "cookie"].contains(&kind));
    let found = known.then(|| Lookup::named(place)).flatten();
    let wanted = "header.NAME, query.NAME or cookie.NAME";
    found.ok_or_else(|| format!("attributes.{name} must be {wanted}, found {place:?}"))
}

/// Returns the error if an algorithm does not fit the kind of key. A JWKS file is checked when it is read.
fn mismatched_algorithm(keys: &KeySource, algorithms: &[Algorithm]) -> Option<String> {
    use jsonwebtoken::AlgorithmFamily::Hmac;
    let is_secret = match keys {
        KeySource::Secret(_) | KeySource::SecretFile(_) => true,
        KeySource::PublicKey(_) => false,
        KeySource::Jwks(_) => return None,
    };
    let mismatch = algorithms.iter().find(|found| (found.family() == Hmac) != is_secret)?;
    let wanted = if is_secret { "HS256, HS384 or HS512" } else { "those of a public key" };
    Some(format!("must be {wanted}, found {mismatch:?}"))
}
