//! From a line to what rules see of it, by the code that reads requests.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Uri};
use tidegate::Request;
use tidegate::tower::Lookup;

use super::batch::Batch;
use super::common::{self, Headers};
use super::names::{Names, Slot};
use super::{Fields, Flaw, LogFormat, MAX_LINE, json};
use crate::identity::{AddressConfig, Addresses};
use crate::transport::http::target;

/// Knows which attributes rules mention, and where lines have them.
#[derive(Debug)]
pub(crate) struct Reading {
    format: LogFormat,
    names: Vec<String>,
    sources: Vec<Source>,
    headers: Vec<HeaderName>,
    combined: Headers,
    json: Names,
    addresses: Addresses,
    /// Whether somebody looks at the target, the host or the method.
    wants: Wants,
    /// The head of the request that a line is about.
    head: Parts,
}

#[derive(Clone, Copy, Debug)]
struct Wants {
    target: bool,
    host: bool,
    method: bool,
}

/// Where an attribute comes from, unless a line has it by its own name.
#[derive(Debug)]
enum Source {
    /// The same for all requests.
    Fixed(String),
    Address,
    User,
    /// As requests have it.
    Head(Lookup),
    /// Nowhere else.
    Line,
}

impl Reading {
    /// Reads these attributes. `fixed` have the same value in all requests; `fields` are where else JSON lines have
    /// things: an attribute or `time`, and the names that lead to it.
    pub(crate) fn new(
        mentioned: &BTreeSet<&str>,
        fixed: &[(String, String)],
        fields: &[(String, String)],
        format: LogFormat,
    ) -> Self {
        let names: Vec<String> = mentioned.iter().map(|name| (*name).to_owned()).collect();
        let source = |name: &String| match fixed.iter().find(|(known, _)| known == name) {
            Some((_, value)) => Source::Fixed(value.clone()),
            None => match name.as_str() {
                "ip" => Source::Address,
                "user" => Source::User,
                name => Lookup::named(name).map_or(Source::Line, Source::Head),
            },
        };
        let sources: Vec<Source> = names.iter().map(source).collect();
        let mut headers: Vec<HeaderName> = Vec::new();
        for header in names.iter().filter_map(|name| header_of(name)) {
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        let place = |name: &str| headers.iter().position(|header| header == name);
        let combined = Headers { referer: place("referer"), user_agent: place("user-agent") };
        let has = |wanted: &dyn Fn(&str) -> bool| names.iter().any(|name| wanted(name));
        let wants = Wants {
            target: has(&|name| name == "path" || name.starts_with("query.")),
            host: has(&|name| name == "host" || name == "header.host"),
            method: has(&|name| name == "method"),
        };
        // What is made of other things of a line is not looked for by its own name.
        let own = names.iter().enumerate().filter(|(_, name)| part_of(name).is_none());
        let own = own.map(|(place, name)| (place, name.as_str()));
        let known: Vec<&str> = headers.iter().map(HeaderName::as_str).collect();
        let mut json = Names::usual(&known, own);
        for (attribute, path) in fields {
            let header = header_of(attribute).and_then(|header| place(header.as_str()));
            let given = || names.iter().position(|name| name == attribute).map(Slot::Given);
            let slot = part_of(attribute).or(header.map(Slot::Header)).or_else(given);
            // What no rule mentions makes no difference.
            if let Some(slot) = slot {
                json.prefer(path, slot);
            }
        }
        let head = hyper::Request::new(()).into_parts().0;
        let addresses = Addresses::new(AddressConfig::default());
        Self { format, names, sources, headers, combined, json, addresses, wants, head }
    }

    /// The names of attributes, in the order in which a batch has their values.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds the request that a line is about.
    ///
    /// # Errors
    /// The line can't be read.
    pub(super) fn read(&mut self, line: &str, to: &mut Batch) -> Result<(), Flaw> {
        if line.len() > MAX_LINE {
            return Err(Flaw::new(line, format!("a line of at most {MAX_LINE} bytes")));
        }
        let is_json = line.starts_with('{');
        let fields = match self.format {
            LogFormat::Json => json::read(line, &self.json)?,
            LogFormat::Auto if is_json => json::read(line, &self.json)?,
            format => common::read(line, format, self.combined)?,
        };
        let Some(at) = fields.at else { return Err(Flaw::nothing("a time")) };
        self.take_head(&fields)?;
        let mark = to.mark();
        for (place, (source, name)) in self.sources.iter().zip(&self.names).enumerate() {
            let given = fields.given.iter().find(|(given, _)| *given == place);
            let value = match (given, source) {
                (_, Source::Fixed(value)) => Some(Cow::from(value)),
                (Some((_, value)), _) => Some(Cow::from(&**value)),
                (None, Source::Address) => fields.address.as_deref().map(|text| self.address(text)),
                (None, Source::User) => fields.user.as_deref().map(Cow::from),
                (None, Source::Head(lookup)) => lookup.read(&self.head),
                (None, Source::Line) => None,
            };
            if let Some(long) = value.as_ref().filter(|value| value.len() > Request::MAX_VALUE) {
                let flaw =
                    Flaw::new(long, format!("{name} of at most {} bytes", Request::MAX_VALUE));
                to.undo(mark);
                return Err(flaw);
            }
            to.value(value.as_deref());
        }
        to.complete(mark, at);
        Ok(())
    }

    /// Makes the head of the request, as far as somebody looks at it.
    fn take_head(&mut self, fields: &Fields<'_>) -> Result<(), Flaw> {
        let Self { head, wants, headers, .. } = self;
        if wants.target {
            let wanted = "a target: a path and its query";
            let text = fields.target.as_deref().ok_or_else(|| Flaw::nothing(wanted))?;
            let uri: Option<Uri> = target(text.as_bytes());
            head.uri = uri.ok_or_else(|| Flaw::new(text, wanted))?;
        }
        if wants.method {
            let text = fields.method.as_deref().ok_or_else(|| Flaw::nothing("a method"))?;
            let method = Method::from_bytes(text.as_bytes());
            head.method = method.map_err(|_| Flaw::new(text, "a method"))?;
        }
        if wants.host || !headers.is_empty() {
            head.headers.clear();
            fill(&mut head.headers, headers, fields);
        }
        Ok(())
    }

    /// The address as the doors count it.
    fn address<'t>(&self, text: &'t str) -> Cow<'t, str> {
        // Such an address has one spelling only.
        if text.parse::<Ipv4Addr>().is_ok() {
            return text.into();
        }
        let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        let address = alone.parse::<IpAddr>().ok();
        match address.or_else(|| text.parse::<SocketAddr>().ok().map(|peer| peer.ip())) {
            Some(address) => self.addresses.read(address, &HeaderMap::new()).into(),
            // A server that looks names up writes those.
            None => text.to_ascii_lowercase().into(),
        }
    }
}

fn fill(to: &mut HeaderMap, headers: &[HeaderName], fields: &Fields<'_>) {
    // What can't be in a header was in none.
    let value = |text: &str| HeaderValue::from_str(text).ok();
    if let Some(host) = fields.host.as_deref().and_then(value) {
        to.insert(HOST, host);
    }
    for (place, text) in &fields.headers {
        if let (Some(name), Some(value)) = (headers.get(*place), value(text)) {
            to.insert(name, value);
        }
    }
}

/// The header that an attribute is read from.
fn header_of(attribute: &str) -> Option<HeaderName> {
    match attribute.split_once('.') {
        None if attribute == "api_key" => Some(HeaderName::from_static("x-api-key")),
        Some(("cookie", _)) => Some(HeaderName::from_static("cookie")),
        Some(("header", name)) => HeaderName::from_bytes(name.as_bytes()).ok(),
        _ => None,
    }
}

/// What a line has apart from headers, and not in the words of a rule.
fn part_of(attribute: &str) -> Option<Slot> {
    match attribute {
        "time" => Some(Slot::Time),
        "ip" => Some(Slot::Address),
        "user" => Some(Slot::User),
        "method" => Some(Slot::Method),
        "path" => Some(Slot::Target),
        "host" => Some(Slot::Host),
        _ => None,
    }
}
