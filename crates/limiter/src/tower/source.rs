//! Sources of attributes in HTTP requests.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::header::{COOKIE, HeaderName};
use http::request::Parts;
use percent_encoding::percent_decode_str;
use tidegate_core::{CanonicalError, EncodedSlashes, escape_bytes, escape_text};

use super::canonical;

/// A function that reads one attribute from the head of a request.
pub(crate) type ReadAttribute =
    Arc<dyn for<'r> Fn(&'r Parts) -> Option<Cow<'r, str>> + Send + Sync>;

/// The part of an HTTP request that has an attribute.
#[derive(Clone)]
pub(crate) enum AttributeSource {
    Method,
    Host,
    Path,
    Query(Box<str>),
    Header(HeaderName),
    Cookie(Box<str>),
    /// The peer address in the extensions of the request.
    Peer,
    /// The client's address, read by a function of the caller.
    Address(ReadAttribute),
    /// A function of the caller.
    Custom(ReadAttribute),
}

impl fmt::Debug for AttributeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "Method",
            Self::Host => "Host",
            Self::Path => "Path",
            Self::Query(_) => "Query",
            Self::Header(_) => "Header",
            Self::Cookie(_) => "Cookie",
            Self::Peer => "Peer",
            Self::Address(_) => "Address",
            Self::Custom(_) => "Custom",
        })
    }
}

impl AttributeSource {
    /// Returns the source of an attribute, or `None` if HTTP requests do not have it.
    pub(crate) fn for_attribute(attribute: &str) -> Option<Self> {
        let source = match attribute {
            "method" => Self::Method,
            "host" => Self::Host,
            "path" => Self::Path,
            "ip" => Self::Peer,
            "api_key" => Self::Header(HeaderName::from_static("x-api-key")),
            _ => match attribute.split_once('.')? {
                ("query", name) => Self::Query(name.into()),
                ("header", name) => Self::Header(HeaderName::from_bytes(name.as_bytes()).ok()?),
                ("cookie", name) => Self::Cookie(name.into()),
                _ => return None,
            },
        };
        Some(source)
    }

    /// Returns whether every request must have the value: a request without an address means that the server does not
    /// provide it, and all clients would share one bucket.
    pub(crate) fn is_required(&self) -> bool {
        matches!(self, Self::Peer | Self::Address(_))
    }

    /// Returns whether the value is part of the request line, not of a header.
    pub(crate) fn in_uri(&self) -> bool {
        matches!(self, Self::Path | Self::Query(_))
    }

    /// Returns the canonical value of an attribute.
    ///
    /// # Errors
    /// The method, the host or the path has no canonical form.
    pub(crate) fn read_canonical<'r>(
        &self,
        head: &'r Parts,
        slashes: EncodedSlashes,
    ) -> Result<Option<Cow<'r, str>>, CanonicalError> {
        match self {
            Self::Method => canonical::method(head).map(|method| Some(method.into())),
            Self::Host => canonical::host(head),
            Self::Path => canonical::path(head, slashes).map(Some),
            source => Ok(source.read(head)),
        }
    }

    /// Returns the value of an attribute. The method and the path are read as they are.
    pub(crate) fn read<'r>(&self, head: &'r Parts) -> Option<Cow<'r, str>> {
        match self {
            Self::Method => Some(head.method.as_str().into()),
            Self::Host => canonical::host(head).ok().flatten(),
            Self::Path => Some(head.uri.path().into()),
            Self::Query(name) => query(head.uri.query()?, name),
            Self::Header(name) => Some(escape_bytes(head.headers.get(name)?.as_bytes())),
            Self::Cookie(name) => cookie(head, name),
            Self::Peer => head.extensions.get::<SocketAddr>().map(|peer| network(peer.ip())),
            Self::Address(read) | Self::Custom(read) => read(head),
        }
    }
}

impl AttributeSource {
    /// As [`read`](Self::read), for a source that must have one value. A header must occur once; a cookie or
    /// parameter may occur again with the same value.
    ///
    /// # Errors
    /// The request has several values. Servers differ in the one that they use.
    pub(crate) fn read_unique<'r>(
        &self,
        head: &'r Parts,
    ) -> Result<Option<Cow<'r, str>>, AmbiguousValue> {
        match self {
            Self::Header(name) => {
                let mut values = head.headers.get_all(name).iter();
                let first = values.next();
                match values.next() {
                    None => Ok(first.map(|value| escape_bytes(value.as_bytes()))),
                    Some(_) => Err(AmbiguousValue),
                }
            }
            Self::Query(name) => {
                let pairs = query_pairs(head.uri.query().unwrap_or_default());
                let values = pairs.filter(|(known, _)| decode_form(known) == **name);
                only_value(values.map(|(_, value)| decode_form(value)))
            }
            Self::Cookie(name) => {
                let values = cookies(head).filter(|(known, _)| *known == name.as_bytes());
                let value = only_value(values.map(|(_, value)| value))?;
                Ok(value.map(escape_bytes))
            }
            Self::Method
            | Self::Host
            | Self::Path
            | Self::Peer
            | Self::Address(_)
            | Self::Custom(_) => Ok(self.read(head)),
        }
    }
}

/// A request has several values for one attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmbiguousValue;

/// Returns the one value of an iterator; `None` if it is empty.
fn only_value<T: PartialEq>(
    mut values: impl Iterator<Item = T>,
) -> Result<Option<T>, AmbiguousValue> {
    let Some(first) = values.next() else { return Ok(None) };
    match values.all(|value| value == first) {
        true => Ok(Some(first)),
        false => Err(AmbiguousValue),
    }
}

/// Returns every attribute in a [canonical](super::canonicalize) head, with the values that
/// [`RateLimitLayer`](super::RateLimitLayer) reads. It is for display: the layer itself reads only the
/// attributes that the rules use.
#[must_use]
pub fn attributes(head: &Parts) -> Vec<(String, String)> {
    let mut names: Vec<String> =
        ["method", "host", "path", "ip", "api_key"].map(str::to_owned).into();
    let query = query_pairs(head.uri.query().unwrap_or_default());
    names.extend(query.map(|(name, _)| format!("query.{}", decode_form(name))));
    names.extend(head.headers.keys().map(|name| format!("header.{name}")));
    names.extend(cookies(head).map(|(name, _)| format!("cookie.{}", escape_bytes(name))));
    let mut found: Vec<(String, String)> = Vec::new();
    for name in names {
        let value = AttributeSource::for_attribute(&name)
            .and_then(|source| source.read(head).map(Cow::into_owned));
        if let Some(value) = value.filter(|_| found.iter().all(|(known, _)| *known != name)) {
            found.push((name, value));
        }
    }
    found
}

/// Returns the address of a client: an IPv4 address, or the /64 network of an IPv6 address.
pub(crate) fn network(address: IpAddr) -> Cow<'static, str> {
    let address = match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    };
    address.to_string().into()
}

/// Returns the value of a query parameter, decoded as a form field.
///
/// If it occurs several times, the last value counts, as in services that read parameters into a map. If
/// the first counted, a client could add another value before its own and be limited as another client.
fn query<'r>(query: &'r str, wanted: &str) -> Option<Cow<'r, str>> {
    let pairs = query_pairs(query).filter(|(name, _)| decode_form(name) == wanted);
    pairs.last().map(|(_, value)| decode_form(value))
}

/// Returns the names and values of all parameters as they are written, in the order of the query.
fn query_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Decodes a name or value of a query: `+` is a space, and bytes that are not UTF-8 are escaped.
fn decode_form(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| matches!(byte, b'+' | b'%')) {
        return escape_text(text.into());
    }
    let spaced = text.replace('+', " ");
    let decoded: Vec<u8> = percent_decode_str(&spaced).collect();
    escape_bytes(&decoded).into_owned().into()
}

/// Returns the value of a cookie. If it occurs several times, the last value counts.
fn cookie<'r>(head: &'r Parts, wanted: &str) -> Option<Cow<'r, str>> {
    let values = cookies(head).filter(|(name, _)| *name == wanted.as_bytes());
    values.last().map(|(_, value)| escape_bytes(value))
}

/// Returns the names and values of all cookies, in the order of the request.
fn cookies(head: &Parts) -> impl Iterator<Item = (&[u8], &[u8])> {
    // HTTP/2 may send each cookie as a header of its own.
    let lines = head.headers.get_all(COOKIE).into_iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(|pair| {
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        Some((pair[..equals].trim_ascii(), pair[equals + 1..].trim_ascii()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of one attribute of a request.
    fn read_from(attribute: &str, request: http::request::Builder) -> Option<String> {
        let head = request.body(()).unwrap().into_parts().0;
        AttributeSource::for_attribute(attribute).unwrap().read(&head).map(Cow::into_owned)
    }

    #[test]
    fn host_is_lower_case_without_port_and_final_dot() {
        let from_header = |host| read_from("host", http::Request::get("/").header("host", host));
        for host in ["api.example.com", "API.Example.COM:8080", "api.example.com.:443"] {
            assert_eq!(from_header(host).as_deref(), Some("api.example.com"), "{host}");
        }
        assert_eq!(from_header("[::1]:80").as_deref(), Some("[::1]"));
        assert_eq!(from_header("[::1]").as_deref(), Some("[::1]"));
        assert_eq!(read_from("host", http::Request::get("/")), None);
        assert_eq!(from_header("api.example.com:x"), None);
        let both = http::Request::get("http://a.example:80/").header("host", "b.example");
        assert_eq!(read_from("host", both).as_deref(), Some("a.example"));
    }

    #[test]
    fn query_parameter_is_decoded_and_the_last_one_counts() {
        for query in ["user=al+ice", "user=al%20ice", "us%65r=%61l%20ice", "x&user=b&user=al+ice"] {
            let request = http::Request::get(format!("/?{query}"));
            assert_eq!(read_from("query.user", request).as_deref(), Some("al ice"), "{query}");
        }
        assert_eq!(read_from("query.user", http::Request::get("/?username=a")), None);
        assert_eq!(read_from("query.user", http::Request::get("/")), None);
    }

    #[test]
    fn cookie_is_found_in_every_cookie_header() {
        let cookies = |lines: &[&[u8]]| {
            let request = lines
                .iter()
                .fold(http::Request::get("/"), |request, line| request.header("cookie", *line));
            read_from("cookie.session", request)
        };
        assert_eq!(cookies(&[b"a=1; session=s=1"]).as_deref(), Some("s=1"));
        assert_eq!(cookies(&[b"a=1", b"session=s1"]).as_deref(), Some("s1"));
        assert_eq!(cookies(&[b"session=s0", b"session=s1"]).as_deref(), Some("s1"));
        assert_eq!(cookies(&[b"a=\xff; ;=; session = s1 ;"]).as_deref(), Some("s1"));
        assert_eq!(cookies(&[b"xsession=s1; session"]), None);
    }

    #[test]
    fn unique_value_is_an_error_if_a_request_has_several() {
        let unique = |attribute: &str, request: http::request::Builder| {
            let head = request.body(()).unwrap().into_parts().0;
            let source = AttributeSource::for_attribute(attribute).unwrap();
            source.read_unique(&head).map(|value| value.map(Cow::into_owned))
        };
        let get = |target: &str| http::Request::get(target);
        let one = Ok(Some("a".to_owned()));
        assert_eq!(unique("api_key", get("/").header("x-api-key", "a")), one);
        assert_eq!(unique("api_key", get("/")), Ok(None));
        let twice = get("/").header("x-api-key", "a").header("x-api-key", "a");
        assert_eq!(unique("api_key", twice), Err(AmbiguousValue));
        assert_eq!(unique("cookie.sid", get("/").header("cookie", "sid=a; sid=a; x=1")), one);
        let different = get("/").header("cookie", "sid=a").header("cookie", "sid=b");
        assert_eq!(unique("cookie.sid", different), Err(AmbiguousValue));
        assert_eq!(unique("query.key", get("/?key=a&k%65y=%61")), one);
        assert_eq!(unique("query.key", get("/?key=a&k%65y=b")), Err(AmbiguousValue));
        assert_eq!(unique("query.key", get("/")), Ok(None));
    }

    #[test]
    fn all_attributes_of_a_request_are_listed_with_normalized_values() {
        let head = http::Request::get("/v1/a?q=a+b%26c&q=2&flag")
            .header("host", "API.Example.:8080")
            .header("cookie", "a=1; b = 2 ;c")
            .extension(SocketAddr::from(([192, 0, 2, 7], 5000)))
            .body(())
            .unwrap()
            .into_parts()
            .0;
        let shown: Vec<String> =
            attributes(&head).iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            shown,
            [
                "method=GET",
                "host=api.example",
                "path=/v1/a",
                "ip=192.0.2.7",
                "query.q=2",
                "query.flag=",
                "header.host=API.Example.:8080",
                "header.cookie=a=1; b = 2 ;c",
                "cookie.a=1",
                "cookie.b=2",
            ]
        );
    }

    #[test]
    fn values_that_are_not_utf8_are_escaped() {
        let request = || {
            http::Request::get(r"/?a=1%FF&b=%C3%A9+\xFF&%fe=2")
                .header("x-api-key", &b"\xff1"[..])
                .header("cookie", &b"sid=\xfe"[..])
        };
        for (attribute, value) in [
            ("api_key", r"\xFF1"),
            ("header.x-api-key", r"\xFF1"),
            ("cookie.sid", r"\xFE"),
            ("query.a", r"1\xFF"),
            ("query.b", r"é \x5CxFF"),
            (r"query.\xFE", "2"),
        ] {
            assert_eq!(read_from(attribute, request()).as_deref(), Some(value), "{attribute}");
        }
    }

    #[test]
    fn ipv6_addresses_of_one_64_network_are_one_client() {
        let shown = |address: &str| network(address.parse().unwrap());
        assert_eq!(shown("192.0.2.7"), "192.0.2.7");
        assert_eq!(shown("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(shown("2001:db8:1:2::1"), shown("2001:db8:1:2:ffff::"));
    }
}
