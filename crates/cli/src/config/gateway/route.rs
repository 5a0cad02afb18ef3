//! Parses and validates `gateway.routes`.

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::config::reader::FieldReader;
use hyper::Method;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_saphyr::{Location, Spanned};
use tidegate_core::EncodedSlashes;
use tidegate_gateway::{ForwardPath, Priority, RouteConfig, UpstreamConfig};
use tidegate_rules::{ValuePattern, did_you_mean};

use super::{invalid_name, is_repeated};

/// Suggestions for a misspelt method.
const KNOWN_METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE"];

/// One of `gateway.routes` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    name: Option<Spanned<String>>,
    host: Option<Spanned<String>>,
    path: Option<Spanned<String>>,
    method: Option<Spanned<RawMethods>>,
    upstream: Option<Spanned<String>>,
    priority: Option<Spanned<String>>,
    encoded_slashes: Option<Spanned<String>>,
    forward_path: Option<Spanned<String>>,
}

/// A method, or a list of them.
#[derive(Default)]
struct RawMethods(Vec<String>);

impl<'de> Deserialize<'de> for RawMethods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MethodsVisitor;
        impl<'de> Visitor<'de> for MethodsVisitor {
            type Value = RawMethods;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a method or a list of them")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RawMethods, E> {
                Ok(RawMethods(vec![text.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawMethods, A::Error> {
                let mut methods = Vec::new();
                while let Some(method) = items.next_element()? {
                    methods.push(method);
                }
                Ok(RawMethods(methods))
            }
        }
        deserializer.deserialize_any(MethodsVisitor)
    }
}

/// Returns the resolved routes; errors are added to `reader`. `at` is the location of `gateway`.
pub(crate) fn resolve(
    raw: Vec<Spanned<RawRoute>>,
    upstreams: &[UpstreamConfig],
    at: Location,
    reader: &mut FieldReader<'_>,
) -> Vec<RouteConfig> {
    if raw.is_empty() {
        return match upstreams {
            [] => Vec::new(),
            [only] => vec![RouteConfig::catch_all(Arc::clone(&only.name))],
            several => {
                let wanted = "have a route if there are several upstreams";
                let found = format!("none for {} upstreams", several.len());
                reader.add(at, format!("gateway.routes must {wanted}, found {found}"));
                Vec::new()
            }
        };
    }
    let mut names = Vec::new();
    for name in raw.iter().filter_map(|route| route.value.name.as_ref()) {
        if let Some(reason) = invalid_name(&name.value) {
            reader.add(name.referenced, format!("gateway.routes.name {reason}"));
        } else if is_repeated(&mut names, &name.value) {
            let found = format!("{:?} twice", name.value);
            let message = format!("gateway.routes.name must be unique, found {found}");
            reader.add(name.referenced, message);
        }
    }
    raw.into_iter().map(|route| route.value.resolve(route.referenced, upstreams, reader)).collect()
}

impl RawRoute {
    fn resolve(
        self,
        at: Location,
        upstreams: &[UpstreamConfig],
        reader: &mut FieldReader<'_>,
    ) -> RouteConfig {
        let upstream = upstream_index(self.upstream, at, upstreams, reader);
        let default_name =
            || upstreams.get(upstream).map_or_else(|| "".into(), |at| Arc::clone(&at.name));
        let mut pattern = |name: &str, text: Option<Spanned<String>>, parse: ParsePattern| {
            let text = text?;
            parse(&text.value)
                .map_err(|reason| {
                    let found = &text.value;
                    let message =
                        format!("gateway.routes.{name} must be {reason}, found {found:?}");
                    reader.add(text.referenced, message);
                })
                .ok()
        };
        let (host, path) = (pattern("host", self.host, host), pattern("path", self.path, path));
        RouteConfig {
            name: self.name.map_or_else(default_name, |name| name.value.into()),
            host,
            path,
            methods: self.method.map_or_else(Vec::new, |methods| parse_methods(methods, reader)),
            upstream,
            priority: reader.word("gateway.routes.priority", self.priority, Priority::NAMES),
            encoded_slashes: reader.word(
                "gateway.routes.encoded_slashes",
                self.encoded_slashes,
                EncodedSlashes::NAMES,
            ),
            forward_path: reader.word(
                "gateway.routes.forward_path",
                self.forward_path,
                ForwardPath::NAMES,
            ),
        }
    }
}

/// Parses a pattern. The error is the wanted form.
type ParsePattern = fn(&str) -> Result<ValuePattern, &'static str>;

/// Returns the index of the route's upstream, or of the only one.
fn upstream_index(
    name: Option<Spanned<String>>,
    at: Location,
    upstreams: &[UpstreamConfig],
    reader: &mut FieldReader<'_>,
) -> usize {
    let names: Vec<&str> = upstreams.iter().map(|upstream| &*upstream.name).collect();
    let found = match &name {
        None if upstreams.len() == 1 => return 0,
        None => "none".to_owned(),
        Some(name) => match names.iter().position(|known| *known == name.value) {
            Some(index) => return index,
            None => {
                let meant = did_you_mean(&name.value, names.iter().copied());
                format!("{:?}{meant}", name.value)
            }
        },
    };
    let wanted = match names.as_slice() {
        [] => "be one of gateway.upstreams, which has none".to_owned(),
        names => format!("be one of {}", names.join(", ")),
    };
    let at = name.map_or(at, |name| name.referenced);
    reader.add(at, format!("gateway.routes.upstream must {wanted}, found {found}"));
    0
}

/// Parses the pattern of a host, in lower case and without a final dot, as requests are matched.
fn host(text: &str) -> Result<ValuePattern, &'static str> {
    let host = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '*');
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let fits = match bracketed {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.chars().all(letter),
    };
    let wanted = "a host like shop.example.com or *.example.com, without a port";
    if fits { Ok(ValuePattern::like(&host)) } else { Err(wanted) }
}

fn path(text: &str) -> Result<ValuePattern, &'static str> {
    let fits = text.starts_with('/') && !text.contains(['?', '#']) && !text.contains(' ');
    let wanted = "a path like /checkout or /checkout/**, without a query";
    if fits { Ok(ValuePattern::like(text)) } else { Err(wanted) }
}

fn parse_methods(raw: Spanned<RawMethods>, reader: &mut FieldReader<'_>) -> Vec<Method> {
    let at = raw.referenced;
    let RawMethods(texts) = raw.value;
    if texts.is_empty() {
        reader.add(
            at,
            "gateway.routes.method must have a method, or be left out for all, found none".into(),
        );
    }
    let mut methods = Vec::with_capacity(texts.len());
    for text in texts {
        let is_upper = !text.bytes().any(|byte| byte.is_ascii_lowercase());
        match Method::from_bytes(text.as_bytes()) {
            Ok(method) if is_upper => methods.push(method),
            _ => {
                let found = format!("{text:?}{}", did_you_mean(&text, KNOWN_METHODS));
                let wanted = "must be in capitals, like GET or POST";
                reader.add(at, format!("gateway.routes.method {wanted}, found {found}"));
            }
        }
    }
    methods
}
