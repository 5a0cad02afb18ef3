//! Where the attributes of a request are found: every spelling of one value is that value.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use http::header::{COOKIE, HOST, HeaderName};
use http::request::Parts;

/// Finds one attribute in the head of a request.
pub(crate) type Read = Arc<dyn for<'r> Fn(&'r Parts) -> Option<Cow<'r, str>> + Send + Sync>;

/// Where an attribute is found.
#[derive(Clone)]
pub(crate) enum Source {
    Method,
    Host,
    Path,
    Query(Box<str>),
    Header(HeaderName),
    Cookie(Box<str>),
    Peer,
    Custom(Read),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "Method",
            Self::Host => "Host",
            Self::Path => "Path",
            Self::Query(_) => "Query",
            Self::Header(_) => "Header",
            Self::Cookie(_) => "Cookie",
            Self::Peer => "Peer",
            Self::Custom(_) => "Custom",
        })
    }
}

impl Source {
    /// Where every HTTP request may have this attribute; `None` for one that means nothing to HTTP.
    pub(crate) fn of(attribute: &str) -> Option<Self> {
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

    /// Whether the value comes from the request line, and not from a header.
    pub(crate) fn in_uri(&self) -> bool {
        matches!(self, Self::Path | Self::Query(_))
    }

    pub(crate) fn read<'r>(&self, head: &'r Parts) -> Option<Cow<'r, str>> {
        match self {
            Self::Method => Some(head.method.as_str().into()),
            Self::Host => host(head),
            Self::Path => Some(path(head.uri.path())),
            Self::Query(name) => query(head.uri.query()?, name),
            // A value that is no text is not absent: a rule for who has one still applies.
            Self::Header(name) => Some(String::from_utf8_lossy(head.headers.get(name)?.as_bytes())),
            Self::Cookie(name) => cookie(head, name),
            Self::Peer => head.extensions.get::<SocketAddr>().map(|peer| network(peer.ip())),
            Self::Custom(read) => read(head),
        }
    }
}

/// Every attribute that the head of a request has, as [`RateLimitLayer`](super::RateLimitLayer) reads
/// them, for showing to people: the layer itself reads only what rules ask for.
#[must_use]
pub fn attributes(head: &Parts) -> Vec<(String, String)> {
    let mut names: Vec<String> =
        ["method", "host", "path", "ip", "api_key"].map(str::to_owned).into();
    let query = form_urlencoded::parse(head.uri.query().unwrap_or_default().as_bytes());
    names.extend(query.map(|(name, _)| format!("query.{name}")));
    names.extend(head.headers.keys().map(|name| format!("header.{name}")));
    names
        .extend(cookies(head).map(|(name, _)| format!("cookie.{}", String::from_utf8_lossy(name))));
    let mut found: Vec<(String, String)> = Vec::new();
    for name in names {
        let value = Source::of(&name).and_then(|source| source.read(head).map(Cow::into_owned));
        if let Some(value) = value.filter(|_| found.iter().all(|(known, _)| *known != name)) {
            found.push((name, value));
        }
    }
    found
}

/// The address of a client: an IPv4 address, or the /64 network of an IPv6 address.
pub(crate) fn network(address: IpAddr) -> Cow<'static, str> {
    let address = match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    };
    address.to_string().into()
}

/// The host in lower case, without port and final dot: all spellings of one name are one host.
fn host(head: &Parts) -> Option<Cow<'_, str>> {
    let named = match head.uri.host() {
        Some(host) => host,
        None => without_port(head.headers.get(HOST)?.to_str().ok()?),
    };
    let named = named.strip_suffix('.').unwrap_or(named);
    let lower = !named.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if lower { named.into() } else { named.to_ascii_lowercase().into() })
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => host,
    }
}

/// The path with every character spelled plainly that need not be encoded: `/%76%31` is `/v1`, and no
/// way around a rule for it.
fn path(path: &str) -> Cow<'_, str> {
    if !path.contains('%') {
        return path.into();
    }
    let mut plain = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        plain.push_str(before);
        let digits = after.get(..2).filter(|two| two.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(digits) = digits else {
            plain.push('%');
            rest = after;
            continue;
        };
        match u8::from_str_radix(digits, 16).map(char::from) {
            Ok(c) if c.is_ascii_alphanumeric() || "-._~".contains(c) => plain.push(c),
            _ => {
                plain.push('%');
                plain.push_str(&digits.to_ascii_uppercase());
            }
        }
        rest = &after[2..];
    }
    plain.push_str(rest);
    plain.into()
}

/// The value of a parameter, decoded as a form is.
///
/// Of several the last, which is the one that a map of them keeps: with the first, a client could
/// put another name before its own, and be that for us and itself for the service.
fn query<'r>(query: &'r str, wanted: &str) -> Option<Cow<'r, str>> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    pairs.filter(|(name, _)| name == wanted).last().map(|(_, value)| value)
}

/// The value of a cookie; of several the last, as cookie jars have it.
fn cookie<'r>(head: &'r Parts, wanted: &str) -> Option<Cow<'r, str>> {
    let values = cookies(head).filter(|(name, _)| *name == wanted.as_bytes());
    values.last().map(|(_, value)| String::from_utf8_lossy(value))
}

/// The names and values of all cookies in the order they were sent.
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

    /// The value of one attribute of a request.
    fn seen(attribute: &str, request: http::request::Builder) -> Option<String> {
        let head = request.body(()).unwrap().into_parts().0;
        Source::of(attribute).unwrap().read(&head).map(Cow::into_owned)
    }

    #[test]
    fn every_spelling_of_a_path_is_one_path() {
        let cases = [
            ("/v1/orders", "/v1/orders"),
            ("/%761/%6f%72ders", "/v1/orders"),
            ("/a%2fb%2Fc", "/a%2Fb%2Fc"),
            ("/%7Ealice/%2e%2D%5f", "/~alice/.-_"),
            ("/100%/%zz/%4", "/100%/%zz/%4"),
            ("/%2561", "/%2561"),
            ("/%é1", "/%é1"),
        ];
        for (found, plain) in cases {
            assert_eq!(path(found), plain);
        }
    }

    #[test]
    fn every_spelling_of_a_host_is_one_host() {
        let from_header = |host| seen("host", http::Request::get("/").header("host", host));
        for host in ["api.example.com", "API.Example.COM:8080", "api.example.com.:443"] {
            assert_eq!(from_header(host).as_deref(), Some("api.example.com"), "{host}");
        }
        assert_eq!(from_header("[::1]:80").as_deref(), Some("[::1]"));
        assert_eq!(from_header("[::1]").as_deref(), Some("[::1]"));
        assert_eq!(seen("host", http::Request::get("/")), None);
        let both = http::Request::get("http://a.example:80/").header("host", "b.example");
        assert_eq!(seen("host", both).as_deref(), Some("a.example"));
    }

    #[test]
    fn every_spelling_of_a_parameter_is_one_parameter() {
        for query in ["user=al+ice", "user=al%20ice", "us%65r=%61l%20ice", "x&user=b&user=al+ice"] {
            let request = http::Request::get(format!("/?{query}"));
            assert_eq!(seen("query.user", request).as_deref(), Some("al ice"), "{query}");
        }
        assert_eq!(seen("query.user", http::Request::get("/?username=a")), None);
        assert_eq!(seen("query.user", http::Request::get("/")), None);
    }

    #[test]
    fn a_cookie_is_found_in_any_line_next_to_anything() {
        let cookies = |lines: &[&[u8]]| {
            let request = lines
                .iter()
                .fold(http::Request::get("/"), |request, line| request.header("cookie", *line));
            seen("cookie.session", request)
        };
        assert_eq!(cookies(&[b"a=1; session=s=1"]).as_deref(), Some("s=1"));
        assert_eq!(cookies(&[b"a=1", b"session=s1"]).as_deref(), Some("s1"));
        assert_eq!(cookies(&[b"session=s0", b"session=s1"]).as_deref(), Some("s1"));
        assert_eq!(cookies(&[b"a=\xff; ;=; session = s1 ;"]).as_deref(), Some("s1"));
        assert_eq!(cookies(&[b"xsession=s1; session"]), None);
    }

    #[test]
    fn everything_that_a_request_has_is_listed_as_it_is_read() {
        let head = http::Request::get("/%76%31/a%2fb%zz?q=a+b%26c&q=2&flag")
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
                "path=/v1/a%2Fb%zz",
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
    fn a_header_that_is_no_text_is_still_there() {
        let request = http::Request::get("/").header("x-api-key", &b"\xff1"[..]);
        assert_eq!(seen("api_key", request).as_deref(), Some("\u{fffd}1"));
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let shown = |address: &str| network(address.parse().unwrap());
        assert_eq!(shown("192.0.2.7"), "192.0.2.7");
        assert_eq!(shown("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(shown("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(shown("2001:db8:1:2::1"), shown("2001:db8:1:2:ffff::"));
    }
}
