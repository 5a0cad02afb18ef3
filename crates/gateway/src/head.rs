//! Heads on their way through: what the other side may see of them, and framed in one way only.

use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, Entry, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, StatusCode, Uri, Version};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const UPGRADES: HeaderValue = HeaderValue::from_static("upgrade");

/// Why a request goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) detail: &'static str,
}

impl Refusal {
    const fn bad(detail: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail }
    }
}

/// Makes a request say in one place whom it is for: one `Host`, and a target that is a path.
///
/// # Errors
/// It says it nowhere, or in two ways.
pub(super) fn settle(head: &mut Parts) -> Result<(), Refusal> {
    if head.method == Method::CONNECT {
        let detail = "method: found CONNECT, wanted any other: this is no forward proxy";
        return Err(Refusal { status: StatusCode::METHOD_NOT_ALLOWED, detail });
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    if another.is_some() {
        return Err(Refusal::bad("host: found it twice, wanted it once"));
    }
    match (head.uri.authority(), host) {
        // What the target says counts, whatever the header does.
        (Some(authority), _) => {
            let host = without_user(authority).ok_or(Refusal::bad(
                "target: found a user before its host, wanted the host alone",
            ))?;
            head.headers.insert(HOST, host);
        }
        (None, Some(host)) if is_authority(host.as_bytes()) => {}
        (None, Some(_)) => return Err(Refusal::bad("host: found no host, wanted one")),
        (None, None) if head.version == Version::HTTP_10 => {}
        (None, None) => return Err(Refusal::bad("host: found none, wanted one")),
    }
    if head.uri.authority().is_some() {
        let line = head.uri.path_and_query().cloned();
        head.uri = Uri::from(line.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    Ok(())
}

fn without_user(authority: &Authority) -> Option<HeaderValue> {
    let text = authority.as_str();
    (!text.contains('@')).then(|| HeaderValue::from_str(text).ok()).flatten()
}

/// Whether this can be a host with or without a port.
fn is_authority(host: &[u8]) -> bool {
    let letter = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':' | b'[' | b']')
    };
    !host.is_empty() && host.iter().all(letter)
}

/// Who sent a request, for the upstream.
#[derive(Debug)]
pub(super) struct Sender {
    /// Its address, as `X-Forwarded-For` has it and as `Forwarded` does.
    plain: HeaderValue,
    node: Bytes,
    /// Whether what it says about who came before it is believed.
    trusted: bool,
    /// Whether it came through TLS.
    secure: bool,
}

impl Sender {
    pub(super) fn new(address: IpAddr, trusted: bool, secure: bool) -> Self {
        let address = address.to_canonical();
        let text = address.to_string();
        let node = match address {
            IpAddr::V4(_) => format!("for={text}"),
            IpAddr::V6(_) => format!("for=\"[{text}]\""),
        };
        let plain = HeaderValue::from_maybe_shared(Bytes::from(text));
        // An address is made of digits and the like.
        let plain = plain.unwrap_or(HeaderValue::from_static("unknown"));
        Self { plain, node: node.into(), trusted, secure }
    }
}

/// Takes off a request what was meant for us alone, and says whom it is from.
///
/// Whether it asks for an upgrade that may be passed on.
pub(super) fn onward(head: &mut Parts, sender: &Sender) -> bool {
    let headers = &mut head.headers;
    let ours = Ours::of(headers);
    let upgrade = match ours.has(Ours::UPGRADE) {
        true => upgrade(headers, head.version),
        false => None,
    };
    let te = ours.has(Ours::TE).then(|| headers.get(TE)).flatten();
    let trailers = te.is_some_and(|te| names(te).any(|name| name == "trailers"));
    // A length is told anew, from how the body really ends. Who waits to be told to go on has been by
    // the time that the body is read.
    ours.take_off(headers);
    if trailers {
        headers.insert(TE, TRAILERS);
    }
    let upgrades = upgrade.is_some();
    if let Some(to) = upgrade {
        headers.insert(CONNECTION, UPGRADES);
        headers.insert(UPGRADE, to);
    }
    head.version = Version::HTTP_11;
    forwarded(headers, sender);
    upgrades
}

/// Which headers there are that are about one connection only, found in one pass.
#[derive(Clone, Copy, Debug)]
struct Ours(u32);

impl Ours {
    const CONNECTION: u32 = 1;
    const TE: u32 = 1 << 1;
    const TRANSFER_ENCODING: u32 = 1 << 2;
    const UPGRADE: u32 = 1 << 3;
    const LENGTH: u32 = 1 << 4;
    const NAMES: [(u32, HeaderName); 10] = [
        (Self::TE, TE),
        (Self::TRANSFER_ENCODING, TRANSFER_ENCODING),
        (Self::UPGRADE, UPGRADE),
        (Self::LENGTH, CONTENT_LENGTH),
        (1 << 5, EXPECT),
        (1 << 6, KEEP_ALIVE),
        (1 << 7, PROXY_AUTHENTICATE),
        (1 << 8, PROXY_AUTHORIZATION),
        (1 << 9, PROXY_CONNECTION),
        (1 << 10, HTTP2_SETTINGS),
    ];

    fn of(headers: &HeaderMap) -> Self {
        let bit = |name: &HeaderName| match name.as_str() {
            "connection" => Self::CONNECTION,
            "te" => Self::TE,
            "transfer-encoding" => Self::TRANSFER_ENCODING,
            "upgrade" => Self::UPGRADE,
            "content-length" => Self::LENGTH,
            "expect" => 1 << 5,
            "keep-alive" => 1 << 6,
            "proxy-authenticate" => 1 << 7,
            "proxy-authorization" => 1 << 8,
            "proxy-connection" => 1 << 9,
            "http2-settings" => 1 << 10,
            _ => 0,
        };
        Self(headers.keys().fold(0, |found, name| found | bit(name)))
    }

    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// The same without some of them.
    fn but(self, bits: u32) -> Self {
        Self(self.0 & !bits)
    }

    /// Takes them off, and what they name.
    fn take_off(self, headers: &mut HeaderMap) {
        if self.has(Self::CONNECTION)
            && let Entry::Occupied(named) = headers.entry(CONNECTION)
        {
            let (_, values) = named.remove_entry_mult();
            // What most say names no header that is there.
            let telling = values.filter(|value| value != "keep-alive" && value != "close");
            let named: Vec<HeaderName> = telling
                .flat_map(|value| names(&value).map(str::to_owned).collect::<Vec<_>>())
                .filter_map(|name| HeaderName::try_from(name).ok())
                .collect();
            // Nobody gets rid of what says whom a request is for.
            for name in named.iter().filter(|name| **name != HOST) {
                headers.remove(name);
            }
        }
        for (bit, name) in &Self::NAMES {
            if self.has(*bit) {
                headers.remove(name);
            }
        }
    }
}

/// What a request wants to go on as. Never HTTP/2: its streams would pass without being looked at.
fn upgrade(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
    if version != Version::HTTP_11 || !names_in(headers, "upgrade") {
        return None;
    }
    let to = headers.get(UPGRADE)?;
    let hidden = names(to).any(|name| name.to_ascii_lowercase().starts_with("h2"));
    (!hidden).then(|| to.clone())
}

/// The words of a list, as they stand there.
fn names(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty())
}

fn names_in(headers: &HeaderMap, wanted: &str) -> bool {
    let values = headers.get_all(CONNECTION).into_iter();
    values.flat_map(names).any(|name| name.eq_ignore_ascii_case(wanted))
}

/// Says who came, by both conventions: after what a trusted sender said, or in its place.
fn forwarded(headers: &mut HeaderMap, sender: &Sender) {
    let host = headers.get(HOST).cloned();
    let proto = HeaderValue::from_static(if sender.secure { "https" } else { "http" });
    let mut line = BytesMut::with_capacity(96);
    if sender.trusted && headers.contains_key(X_FORWARDED_FOR) {
        append(&mut line, headers, &X_FORWARDED_FOR);
        line.extend_from_slice(sender.plain.as_bytes());
        put(headers, X_FORWARDED_FOR, line.split().freeze());
    } else {
        headers.insert(X_FORWARDED_FOR, sender.plain.clone());
    }
    if sender.trusted {
        append(&mut line, headers, &FORWARDED);
    }
    line.extend_from_slice(&sender.node);
    if let Some(host) = &host {
        line.extend_from_slice(b";host=\"");
        line.extend_from_slice(host.as_bytes());
        line.extend_from_slice(b"\"");
    }
    line.extend_from_slice(b";proto=");
    line.extend_from_slice(proto.as_bytes());
    put(headers, FORWARDED, line.freeze());
    let keeps = |headers: &HeaderMap, name| sender.trusted && headers.contains_key(name);
    if !keeps(headers, X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, proto);
    }
    if !keeps(headers, X_FORWARDED_HOST) {
        match host {
            Some(host) => drop(headers.insert(X_FORWARDED_HOST, host)),
            None => drop(headers.remove(X_FORWARDED_HOST)),
        }
    }
}

/// What was said before, and a comma.
fn append(line: &mut BytesMut, headers: &HeaderMap, name: &HeaderName) {
    for value in headers.get_all(name) {
        line.extend_from_slice(value.as_bytes());
        line.extend_from_slice(b", ");
    }
}

fn put(headers: &mut HeaderMap, name: HeaderName, value: Bytes) {
    match HeaderValue::from_maybe_shared(value) {
        Ok(value) => drop(headers.insert(name, value)),
        // Whatever came is never passed on as if it were ours.
        Err(_) => drop(headers.remove(name)),
    }
}

/// The head as HTTP/2 has it: whom it is for is part of the target. A head that says so already stays so.
pub(super) fn for_http2(head: &mut Parts, scheme: Scheme, server: &Authority) {
    // How a body ends is said by its frames.
    head.headers.remove(TRANSFER_ENCODING);
    let host = head.headers.remove(HOST);
    let named = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.scheme = Some(scheme);
    parts.authority = named.or(parts.authority).or_else(|| Some(server.clone()));
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    head.uri = Uri::from_parts(parts).unwrap_or_default();
    head.version = Version::HTTP_2;
}

/// The head as HTTP/1.1 has it, also if it was made for HTTP/2 before: whom it is for is a header.
pub(super) fn for_http1(head: &mut Parts, server: &Authority) {
    if let Some(authority) = head.uri.authority() {
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            head.headers.insert(HOST, host);
        }
        let line = head.uri.path_and_query().cloned();
        head.uri = Uri::from(line.unwrap_or_else(|| PathAndQuery::from_static("/")));
        head.version = Version::HTTP_11;
    } else if !head.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(server.as_str())
    {
        head.headers.insert(HOST, host);
    }
}

/// Takes off an answer what was meant for us alone. `upgraded` answers go on as something else.
pub(super) fn back(headers: &mut HeaderMap, upgraded: bool) {
    let to = upgraded.then(|| headers.get(UPGRADE).cloned()).flatten();
    let ours = Ours::of(headers);
    // Of two ways to say where it ends the encoding is the true one.
    let length = if ours.has(Ours::TRANSFER_ENCODING) { 0 } else { Ours::LENGTH };
    ours.but(length).take_off(headers);
    if let Some(to) = to {
        headers.insert(CONNECTION, UPGRADES);
        headers.insert(UPGRADE, to);
    }
}

/// Whether doing it twice is the same as doing it once.
pub(super) fn is_idempotent(method: &Method) -> bool {
    matches!(
        *method,
        Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE | Method::PUT | Method::DELETE
    )
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use proptest::prelude::*;

    use super::*;

    fn head(target: &str, version: Version, headers: &[(&str, &str)]) -> Parts {
        let request = Request::builder().uri(target).version(version);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap())
        });
        request.body(()).unwrap().into_parts().0
    }

    fn settled(target: &str, version: Version, headers: &[(&str, &str)]) -> String {
        let mut head = head(target, version, headers);
        match settle(&mut head) {
            Ok(()) => {
                let host = head.headers.get(HOST).map_or("-", |host| host.to_str().unwrap());
                format!("{} {host}", head.uri)
            }
            Err(refusal) => format!("{} {}", refusal.status.as_u16(), refusal.detail),
        }
    }

    #[test]
    fn a_request_says_in_one_place_whom_it_is_for() {
        let (ten, eleven, two) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        for (target, version, headers, expected) in [
            ("/a?b", eleven, &[("host", "x:80")][..], "/a?b x:80"),
            ("http://y/a", eleven, &[("host", "x")], "/a y"),
            ("https://y", two, &[], "/ y"),
            ("https://y/", two, &[("host", "x")], "/ y"),
            ("/", ten, &[], "/ -"),
            ("*", eleven, &[("host", "x")], "* x"),
            ("/", eleven, &[], "400 host: found none, wanted one"),
            (
                "/",
                eleven,
                &[("host", "x"), ("host", "x")],
                "400 host: found it twice, wanted it once",
            ),
            ("/", eleven, &[("host", "x/y")], "400 host: found no host, wanted one"),
            ("/", eleven, &[("host", "")], "400 host: found no host, wanted one"),
            (
                "http://u@y/",
                eleven,
                &[("host", "y")],
                "400 target: found a user before its host, wanted the host alone",
            ),
        ] {
            assert_eq!(settled(target, version, headers), expected, "{target} {headers:?}");
        }
    }

    fn sender(trusted: bool) -> Sender {
        Sender::new([192, 0, 2, 7].into(), trusted, true)
    }

    fn passed(headers: &[(&str, &str)], trusted: bool) -> Vec<String> {
        let mut head = head("/", Version::HTTP_11, headers);
        onward(&mut head, &sender(trusted));
        let mut lines: Vec<String> = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    const OURS: [&str; 4] = [
        "forwarded: for=192.0.2.7;host=\"x\";proto=https",
        "x-forwarded-for: 192.0.2.7",
        "x-forwarded-host: x",
        "x-forwarded-proto: https",
    ];

    #[test]
    fn what_is_about_one_connection_is_not_passed_on() {
        let mut expected = Vec::from(OURS.map(str::to_owned));
        expected.extend(["accept: a", "host: x", "te: trailers", "trailer: t"].map(str::to_owned));
        expected.sort();
        let found = passed(
            &[
                ("host", "x"),
                ("accept", "a"),
                ("connection", "close, X-Mine, host, keep-alive"),
                ("x-mine", "1"),
                ("keep-alive", "1"),
                ("proxy-connection", "keep-alive"),
                ("proxy-authorization", "secret"),
                ("te", "gzip, trailers"),
                ("trailer", "t"),
                ("transfer-encoding", "chunked"),
                ("content-length", "5"),
                ("expect", "100-continue"),
                ("upgrade", "websocket"),
                ("http2-settings", "x"),
                ("forwarded", "for=1.1.1.1"),
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-proto", "ftp"),
                ("x-forwarded-host", "elsewhere"),
            ],
            false,
        );
        assert_eq!(found, expected);
    }

    #[test]
    fn what_a_trusted_proxy_said_stays_and_we_say_more() {
        let found = passed(
            &[
                ("host", "x"),
                ("forwarded", "for=1.1.1.1"),
                ("x-forwarded-for", "1.1.1.1"),
                ("x-forwarded-proto", "http"),
                ("x-forwarded-host", "shop"),
            ],
            true,
        );
        assert_eq!(
            found,
            [
                "forwarded: for=1.1.1.1, for=192.0.2.7;host=\"x\";proto=https",
                "host: x",
                "x-forwarded-for: 1.1.1.1, 192.0.2.7",
                "x-forwarded-host: shop",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn an_upgrade_is_passed_on_unless_requests_could_hide_in_it() {
        let asks = |connection, to, version| {
            let headers = [("host", "x"), ("connection", connection), ("upgrade", to)];
            let mut head = head("/", version, &headers);
            let asks = onward(&mut head, &sender(false));
            assert_eq!(asks, head.headers.contains_key(UPGRADE));
            assert_eq!(asks, head.headers.contains_key(CONNECTION));
            asks
        };
        assert!(asks("keep-alive, Upgrade", "websocket", Version::HTTP_11));
        assert!(!asks("keep-alive", "websocket", Version::HTTP_11));
        assert!(!asks("Upgrade", "websocket", Version::HTTP_10));
        assert!(!asks("Upgrade, HTTP2-Settings", "h2c", Version::HTTP_11));
        assert!(!asks("Upgrade", "websocket, H2C", Version::HTTP_11));
    }

    /// Headers as a client could send them, those that matter more often than others.
    fn any_headers() -> impl Strategy<Value = Vec<(String, String)>> {
        let known = [
            "connection",
            "Connection",
            "te",
            "transfer-encoding",
            "content-length",
            "upgrade",
            "expect",
            "keep-alive",
            "proxy-authorization",
            "proxy-connection",
            "forwarded",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "trailer",
            "x-mine",
        ];
        let words = prop_oneof![
            prop::sample::select(known.to_vec()).prop_map(str::to_owned),
            Just("close".to_owned()),
            Just("host".to_owned()),
            Just("trailers".to_owned()),
            Just("websocket".to_owned()),
            "[ -~]{0,12}",
        ];
        let value = prop::collection::vec(words, 0..4).prop_map(|words| words.join(", "));
        let name = prop::sample::select(known.to_vec()).prop_map(str::to_owned);
        prop::collection::vec((name, value), 0..12)
    }

    proptest! {
        #[test]
        fn whatever_is_sent_what_goes_on_is_framed_and_signed_by_us(
            sent in any_headers(),
            trusted in any::<bool>(),
        ) {
            let pairs: Vec<_> = sent.iter().map(|(name, value)| (&**name, &**value)).collect();
            let mut head = head("/", Version::HTTP_11, &pairs);
            head.headers.insert(HOST, HeaderValue::from_static("shop.example"));
            settle(&mut head).unwrap();
            let host = head.headers.get(HOST).cloned();
            let named: Vec<String> = head
                .headers
                .get_all(CONNECTION)
                .iter()
                .flat_map(|value| names(value).map(str::to_ascii_lowercase).collect::<Vec<_>>())
                .collect();
            let upgrades = onward(&mut head, &sender(trusted));
            let headers = &head.headers;
            for gone in [TRANSFER_ENCODING, CONTENT_LENGTH, KEEP_ALIVE, PROXY_CONNECTION, EXPECT] {
                prop_assert!(!headers.contains_key(&gone), "{gone}");
            }
            prop_assert_eq!(headers.get(HOST), host.as_ref());
            prop_assert_eq!(upgrades, headers.contains_key(CONNECTION));
            prop_assert_eq!(upgrades, headers.contains_key(UPGRADE));
            prop_assert!(headers.get(TE).is_none_or(|te| te == "trailers"));
            prop_assert!(!named.contains(&"x-mine".to_owned()) || !headers.contains_key("x-mine"));
            for one in [X_FORWARDED_FOR, FORWARDED, X_FORWARDED_PROTO] {
                let all: Vec<_> = headers.get_all(&one).iter().collect();
                let trusted_proto = trusted && one == X_FORWARDED_PROTO;
                prop_assert!(all.len() == 1 || trusted_proto, "{one}: {all:?}");
            }
            let last = headers[X_FORWARDED_FOR].as_bytes();
            prop_assert!(last.ends_with(b"192.0.2.7"));
            prop_assert!(trusted || last == b"192.0.2.7");
        }
    }

    #[test]
    fn a_request_that_is_tried_again_is_for_whom_it_was_for() {
        let server = Authority::from_static("10.0.0.1:3000");
        let shown = |head: &Parts| {
            let host = head.headers.get(HOST).map_or("-", |host| host.to_str().unwrap());
            format!("{} {host} {:?}", head.uri, head.version)
        };
        let mut head = head("/a?b", Version::HTTP_11, &[("host", "shop.example")]);
        for _ in 0..2 {
            for_http2(&mut head, Scheme::HTTP, &server);
            assert_eq!(shown(&head), "http://shop.example/a?b - HTTP/2.0");
        }
        for _ in 0..2 {
            for_http1(&mut head, &server);
            assert_eq!(shown(&head), "/a?b shop.example HTTP/1.1");
        }
        // Who did not say is for the server.
        head.headers.remove(HOST);
        for_http1(&mut head, &server);
        assert_eq!(shown(&head), "/a?b 10.0.0.1:3000 HTTP/1.1");
    }

    #[test]
    fn an_answer_ends_in_one_way() {
        let mut answer = head(
            "/",
            Version::HTTP_11,
            &[
                ("content-length", "5"),
                ("transfer-encoding", "chunked"),
                ("connection", "x-mine"),
                ("x-mine", "1"),
                ("trailer", "t"),
            ],
        );
        back(&mut answer.headers, false);
        assert_eq!(answer.headers.len(), 1);
        assert!(answer.headers.contains_key("trailer"));
    }
}
