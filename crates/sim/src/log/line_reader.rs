//! Converts a line to the attributes of its request, with the code that the listeners use.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri};
use tidegate_core::address::{DEFAULT_IPV6_PREFIX, client_network};
use tidegate_core::{EncodedSlashes, Request, check_method};
use tidegate_limiter::tower::{Lookup, canonicalize_path, request_target};

use crate::log::batch::RequestBatch;
use crate::log::common::{self, CombinedHeaders};
use crate::log::field_names::{FieldNames, FieldSlot};
use crate::log::{LineError, LineFields, LogFormat, MAX_LINE_BYTES, json};

/// A reader of the attributes that rules mention.
#[derive(Debug)]
pub(crate) struct LineReader {
    format: LogFormat,
    names: Vec<String>,
    sources: Vec<AttributeSource>,
    headers: Vec<HeaderName>,
    combined: CombinedHeaders,
    json: FieldNames,
    /// The parts of the request line that rules use.
    wants: WantedParts,
    /// The head of the line's request.
    head: Parts,
}

#[derive(Clone, Copy, Debug)]
struct WantedParts {
    target: bool,
    host: bool,
    method: bool,
}

/// The source of an attribute that a line does not have by its own name.
#[derive(Debug)]
enum AttributeSource {
    /// The same for all requests.
    Fixed(String),
    Address,
    User,
    /// The head of the request.
    Head(Lookup),
    /// No other source.
    Line,
}

impl LineReader {
    /// Creates a reader of these attributes. `fixed` have the same value in all requests; `fields` are other names in JSON
    /// lines: an attribute or `time`, and the path to it.
    pub(crate) fn new(
        mentioned: &BTreeSet<&str>,
        fixed: &[(String, String)],
        fields: &[(String, String)],
        format: LogFormat,
    ) -> Self {
        let names: Vec<String> = mentioned.iter().map(|name| (*name).to_owned()).collect();
        let source = |name: &String| match fixed.iter().find(|(known, _)| known == name) {
            Some((_, value)) => AttributeSource::Fixed(value.clone()),
            None => match name.as_str() {
                "ip" => AttributeSource::Address,
                "user" => AttributeSource::User,
                name => Lookup::named(name).map_or(AttributeSource::Line, AttributeSource::Head),
            },
        };
        let sources: Vec<AttributeSource> = names.iter().map(source).collect();
        let mut headers: Vec<HeaderName> = Vec::new();
        for header in names.iter().filter_map(|name| header_of(name)) {
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        let place = |name: &str| headers.iter().position(|header| header == name);
        let combined =
            CombinedHeaders { referer: place("referer"), user_agent: place("user-agent") };
        let has = |wanted: &dyn Fn(&str) -> bool| names.iter().any(|name| wanted(name));
        let wants = WantedParts {
            target: has(&|name| name == "path" || name.starts_with("query.")),
            host: has(&|name| name == "host" || name == "header.host"),
            method: has(&|name| name == "method"),
        };
        // Attributes that are derived from other fields are not looked up by their own name.
        let own = names.iter().enumerate().filter(|(_, name)| part_of(name).is_none());
        let own = own.map(|(place, name)| (place, name.as_str()));
        let known: Vec<&str> = headers.iter().map(HeaderName::as_str).collect();
        let mut json = FieldNames::with_defaults(&known, own);
        for (attribute, path) in fields {
            let header = header_of(attribute).and_then(|header| place(header.as_str()));
            let given = || names.iter().position(|name| name == attribute).map(FieldSlot::Given);
            let slot = part_of(attribute).or(header.map(FieldSlot::Header)).or_else(given);
            // A field that no rule mentions has no effect.
            if let Some(slot) = slot {
                json.prefer(path, slot);
            }
        }
        let head = http::Request::new(()).into_parts().0;
        Self { format, names, sources, headers, combined, json, wants, head }
    }

    /// Returns the names of attributes, in the order of a batch's values.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds the request of a line to a batch.
    ///
    /// # Errors
    /// The line can't be read.
    pub(crate) fn read(&mut self, line: &str, to: &mut RequestBatch) -> Result<(), LineError> {
        if line.len() > MAX_LINE_BYTES {
            return Err(LineError::new(line, format!("a line of at most {MAX_LINE_BYTES} bytes")));
        }
        let is_json = line.starts_with('{');
        let fields = match self.format {
            LogFormat::Json => json::read(line, &self.json)?,
            LogFormat::Auto if is_json => json::read(line, &self.json)?,
            format => common::read(line, format, self.combined)?,
        };
        let Some(at) = fields.at else { return Err(LineError::nothing("a time")) };
        self.take_head(&fields)?;
        let mark = to.mark();
        for (place, (source, name)) in self.sources.iter().zip(&self.names).enumerate() {
            let given = fields.given.iter().find(|(given, _)| *given == place);
            let value = match (given, source) {
                (_, AttributeSource::Fixed(value)) => Some(Cow::from(value)),
                (Some((_, value)), _) => Some(Cow::from(&**value)),
                (None, AttributeSource::Address) => fields.address.as_deref().map(client_address),
                (None, AttributeSource::User) => fields.user.as_deref().map(Cow::from),
                (None, AttributeSource::Head(lookup)) => lookup.read(&self.head),
                (None, AttributeSource::Line) => None,
            };
            if let Some(long) = value.as_ref().filter(|value| value.len() > Request::MAX_VALUE) {
                let flaw =
                    LineError::new(long, format!("{name} of at most {} bytes", Request::MAX_VALUE));
                to.undo(mark);
                return Err(flaw);
            }
            to.value(value.as_deref());
        }
        to.complete(mark, at);
        Ok(())
    }

    /// Fills the head of the request as far as rules use it.
    fn take_head(&mut self, fields: &LineFields<'_>) -> Result<(), LineError> {
        let Self { head, wants, headers, .. } = self;
        if wants.target {
            let wanted = "a target: a path and its query";
            let text = fields.target.as_deref().ok_or_else(|| LineError::nothing(wanted))?;
            let uri: Option<Uri> = request_target(text.as_bytes());
            head.uri = uri.ok_or_else(|| LineError::new(text, wanted))?;
            // Listeners reject other requests without a check. `OPTIONS *` has no path.
            if head.uri.path() != "*" {
                canonicalize_path(head, EncodedSlashes::Keep)
                    .map_err(|_| LineError::new(text, "a path with a canonical form"))?;
            }
        }
        if wants.method {
            let text = fields.method.as_deref().ok_or_else(|| LineError::nothing("a method"))?;
            let method = Method::from_bytes(text.as_bytes()).ok();
            let method = method.filter(|method| check_method(method.as_str()).is_ok());
            head.method = method.ok_or_else(|| LineError::new(text, "a method in upper case"))?;
        }
        if wants.host || !headers.is_empty() {
            head.headers.clear();
            fill(&mut head.headers, headers, fields);
        }
        Ok(())
    }
}

/// Returns the address in the form that the listeners use.
fn client_address(text: &str) -> Cow<'_, str> {
    // An IPv4 address has one spelling only.
    if text.parse::<Ipv4Addr>().is_ok() {
        return text.into();
    }
    let alone = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = alone.parse::<IpAddr>().ok();
    match address.or_else(|| text.parse::<SocketAddr>().ok().map(|peer| peer.ip())) {
        Some(address) => {
            client_network(address.to_canonical(), DEFAULT_IPV6_PREFIX).to_string().into()
        }
        // A server that resolves addresses writes host names.
        None => text.to_ascii_lowercase().into(),
    }
}

fn fill(to: &mut HeaderMap, headers: &[HeaderName], fields: &LineFields<'_>) {
    // A value that no header can have is skipped.
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

/// Returns the header that an attribute is read from.
fn header_of(attribute: &str) -> Option<HeaderName> {
    match attribute.split_once('.') {
        None if attribute == "api_key" => Some(HeaderName::from_static("x-api-key")),
        Some(("cookie", _)) => Some(HeaderName::from_static("cookie")),
        Some(("header", name)) => HeaderName::from_bytes(name.as_bytes()).ok(),
        _ => None,
    }
}

/// Returns the field of an attribute that lines have under other names.
fn part_of(attribute: &str) -> Option<FieldSlot> {
    match attribute {
        "time" => Some(FieldSlot::Time),
        "ip" => Some(FieldSlot::Address),
        "user" => Some(FieldSlot::User),
        "method" => Some(FieldSlot::Method),
        "path" => Some(FieldSlot::Target),
        "host" => Some(FieldSlot::Host),
        _ => None,
    }
}
