//! Request and response heads: hop-by-hop headers, `Forwarded` headers, and one unambiguous framing.

use std::net::IpAddr;

use bytes::{Bytes, BytesMut};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, Entry, FORWARDED, HOST, HeaderMap, HeaderName,
    HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Method, StatusCode, Uri, Version};
use tidegate_core::{CanonicalError, EncodedSlashes};
use tidegate_limiter::tower::canonicalize;

use crate::reserved_headers::{ReservedHeader, remove_headers};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

const TE_TRAILERS: HeaderValue = HeaderValue::from_static("trailers");
const CONNECTION_UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");

/// The reason why a request head is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadError {
    pub(crate) status: StatusCode,
    pub(crate) detail: &'static str,
}

impl HeadError {
    const fn bad_request(detail: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail }
    }
}

impl From<CanonicalError> for HeadError {
    fn from(error: CanonicalError) -> Self {
        Self::bad_request(error.detail())
    }
}

/// Moves the target host of a request into one `Host` header, and reduces its target to the canonical path and the query.
///
/// Returns the original path and query if the path was not canonical. Encoded slashes stay: the route decides whether
/// they are rejected (see [`check_encoded_slashes`]).
///
/// # Errors
/// The request has no host, several, or an invalid one; its path or method has no canonical form; or its method is
/// CONNECT.
pub(crate) fn normalize_request(head: &mut Parts) -> Result<Option<PathAndQuery>, HeadError> {
    if head.method == Method::CONNECT {
        let detail = "method: found CONNECT, wanted another method: this is not a forward proxy";
        return Err(HeadError { status: StatusCode::METHOD_NOT_ALLOWED, detail });
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(HeadError::bad_request("host: found it twice, wanted it once"));
    }
    match (head.uri.authority(), host) {
        // The host of an absolute target overrides the header (RFC 9112, section 3.2.2).
        (Some(authority), _) => {
            let host = host_without_userinfo(authority).ok_or(HeadError::bad_request(
                "target: found a user before the host, wanted only the host",
            ))?;
            head.headers.insert(HOST, host);
        }
        (None, Some(_)) => {}
        (None, None) if head.version == Version::HTTP_10 => {}
        (None, None) => return Err(HeadError::bad_request("host: found none, wanted one")),
    }
    if head.uri.authority().is_some() {
        let path = head.uri.path_and_query().cloned();
        head.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    }
    Ok(canonicalize(head, EncodedSlashes::Keep)?)
}

/// Checks that a canonical path has no encoded slash, unless its route keeps them.
///
/// # Errors
/// The path has `%2F` or `%5C`, and the route rejects them.
pub(crate) fn check_encoded_slashes(
    head: &Parts,
    slashes: EncodedSlashes,
) -> Result<(), HeadError> {
    let path = head.uri.path();
    // A canonical path has escapes in upper case only. Most paths have none.
    let has_slash = || path.contains('%') && (path.contains("%2F") || path.contains("%5C"));
    match slashes {
        EncodedSlashes::Reject if has_slash() => Err(CanonicalError::EncodedSlash.into()),
        EncodedSlashes::Reject | EncodedSlashes::Keep => Ok(()),
    }
}

fn host_without_userinfo(authority: &Authority) -> Option<HeaderValue> {
    let text = authority.as_str();
    (!text.contains('@')).then(|| HeaderValue::from_str(text).ok()).flatten()
}

/// The peer of a client connection, as forwarding headers describe it to the upstream.
#[derive(Debug)]
pub(crate) struct ForwardedClient {
    /// The address in the form of `X-Forwarded-For`.
    address: HeaderValue,
    /// The address as the `for` parameter of `Forwarded`.
    for_parameter: Bytes,
    /// Set for a trusted proxy. Its forwarding headers are kept.
    trusted: bool,
    /// Set if the connection uses TLS.
    secure: bool,
}

impl ForwardedClient {
    pub(crate) fn new(address: IpAddr, trusted: bool, secure: bool) -> Self {
        let address = address.to_canonical();
        let text = address.to_string();
        let for_parameter = match address {
            IpAddr::V4(_) => format!("for={text}"),
            IpAddr::V6(_) => format!("for=\"[{text}]\""),
        };
        // The text of an address is always a valid header value.
        let address = HeaderValue::from_maybe_shared(Bytes::from(text));
        let address = address.unwrap_or(HeaderValue::from_static("unknown"));
        Self { address, for_parameter: for_parameter.into(), trusted, secure }
    }
}

/// Reduces the headers of a request to those that the upstream may get, before identity and rules read them.
///
/// It removes hop-by-hop headers and reserved headers, and joins cookies. `Content-Length` stays until the request is
/// sent, because the upstream gets the same value. `on_reserved` is called before reserved headers are removed.
pub(crate) fn clean_request(
    head: &mut Parts,
    policy: ClientHeaderPolicy,
    on_reserved: impl FnOnce(&HeaderMap),
) -> CleanedRequest {
    let headers = &mut head.headers;
    let found = HopByHopHeaders::of_request(headers);
    let upgrade = match found.has(HopByHopHeaders::UPGRADE) {
        true => allowed_upgrade(headers, head.version),
        false => None,
    };
    let te = found.has(HopByHopHeaders::TE).then(|| headers.get(TE)).flatten();
    let accepts_trailers = te.is_some_and(|te| list_items(te).any(|name| name == b"trailers"));
    // `Transfer-Encoding` overrides `Content-Length`, which is then removed (RFC 9112, section 6.3).
    let kept = match found.has(HopByHopHeaders::TRANSFER_ENCODING) {
        true => 0,
        false => HopByHopHeaders::LENGTH,
    };
    found.without(kept).strip(headers);
    if accepts_trailers {
        headers.insert(TE, TE_TRAILERS);
    }
    let has_upgrade = upgrade.is_some();
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, CONNECTION_UPGRADE);
        headers.insert(UPGRADE, protocol);
    }
    if found.has(HopByHopHeaders::RESERVED) {
        on_reserved(headers);
        policy.remove_reserved(headers);
    }
    if found.has(HopByHopHeaders::COOKIE) {
        join_cookies(headers);
    }
    CleanedRequest { has_upgrade, has_underscores: found.has(HopByHopHeaders::UNDERSCORES) }
}

/// The reserved headers that a client may set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientHeaderPolicy {
    /// Set for a trusted proxy. Its forwarding headers are kept.
    pub(crate) trusted: bool,
    /// Set if the gateway itself sends rate-limit headers to the upstream.
    pub(crate) sets_rate_limit: bool,
}

impl ClientHeaderPolicy {
    fn remove_reserved(self, headers: &mut HeaderMap) {
        remove_headers(headers, |name| match ReservedHeader::of(name.as_str()) {
            Some(ReservedHeader::Forwarding) => !self.trusted,
            Some(ReservedHeader::RateLimit) => self.sets_rate_limit,
            Some(ReservedHeader::Underscores) => true,
            None => false,
        });
    }
}

/// Properties of a request after its headers were cleaned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CleanedRequest {
    /// Set if the request asks for an upgrade that is passed on.
    pub(crate) has_upgrade: bool,
    /// Set if the name of a header has an underscore.
    pub(crate) has_underscores: bool,
}

/// Joins the lines of `Cookie` into one (RFC 9113, section 8.2.3): servers read several lines of HTTP/1.1 differently.
fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else { return };
    let mut joined = BytesMut::from(first.as_bytes());
    for line in std::iter::once(second).chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    set_or_remove(headers, COOKIE, joined.freeze());
}

/// Adds the forwarding headers to a cleaned request that is sent to the upstream.
pub(crate) fn prepare_for_upstream(head: &mut Parts, client: &ForwardedClient) {
    // hyper sets `Content-Length` again from the real body.
    head.headers.remove(CONTENT_LENGTH);
    head.version = Version::HTTP_11;
    set_forwarded(&mut head.headers, client);
}

/// Returns whether a header is for one connection only, or is handled by hyper. Names are in lower case.
pub(crate) fn is_hop_by_hop(name: &str) -> bool {
    HopByHopHeaders::bit(name) != 0
}

/// The hop-by-hop headers of a head as a set of bits, found in one pass. `Content-Length` and `Expect` are in the set
/// too, because hyper handles them for each connection.
#[derive(Clone, Copy, Debug)]
struct HopByHopHeaders(u32);

impl HopByHopHeaders {
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

    /// A `Cookie` header, only in [`of_request`](Self::of_request).
    const COOKIE: u32 = 1 << 11;
    /// A reserved header, only in [`of_request`](Self::of_request).
    const RESERVED: u32 = 1 << 12;
    /// A name with an underscore, only in [`of_request`](Self::of_request).
    const UNDERSCORES: u32 = 1 << 13;

    /// Returns the bit of a name in lower case; 0 for an end-to-end header.
    fn bit(name: &str) -> u32 {
        match name {
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
        }
    }

    fn of(headers: &HeaderMap) -> Self {
        Self(headers.keys().fold(0, |found, name| found | Self::bit(name.as_str())))
    }

    /// As [`of`](Self::of), with the other headers of a request that need more work.
    fn of_request(headers: &HeaderMap) -> Self {
        let bits = |name: &str| match Self::bit(name) {
            0 if name == "cookie" => Self::COOKIE,
            0 => match ReservedHeader::of(name) {
                None if name.contains('_') => Self::UNDERSCORES,
                None => 0,
                Some(_) => Self::RESERVED,
            },
            bit => bit,
        };
        Self(headers.keys().fold(0, |found, name| found | bits(name.as_str())))
    }

    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Returns the set without some headers.
    fn without(self, bits: u32) -> Self {
        Self(self.0 & !bits)
    }

    /// Removes the headers of the set, and those that `Connection` names.
    fn strip(self, headers: &mut HeaderMap) {
        if self.has(Self::CONNECTION)
            && let Entry::Occupied(connection) = headers.entry(CONNECTION)
        {
            let (_, values) = connection.remove_entry_mult();
            // The two most frequent values name no header that needs a lookup.
            let values = values.filter(|value| value != "keep-alive" && value != "close");
            let named: Vec<HeaderName> = values
                .flat_map(|value| {
                    let names = list_items(&value).map(HeaderName::from_bytes);
                    names.filter_map(Result::ok).collect::<Vec<_>>()
                })
                .collect();
            // `Host` stays: without it the request would go to another site. So do forwarding headers: a client could
            // hide its address from a proxy that passes `Connection` on.
            let stays = |name: &HeaderName| {
                *name == HOST
                    || ReservedHeader::of(name.as_str()) == Some(ReservedHeader::Forwarding)
            };
            for name in named.iter().filter(|name| !stays(name)) {
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

/// Returns the protocol of an upgrade that may be passed on. Never HTTP/2: its streams would bypass the rules.
fn allowed_upgrade(headers: &HeaderMap, version: Version) -> Option<HeaderValue> {
    if version != Version::HTTP_11 || !connection_names(headers, b"upgrade") {
        return None;
    }
    let protocol = headers.get(UPGRADE)?;
    let is_http2 = list_items(protocol)
        .any(|name| name.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(b"h2")));
    (!is_http2).then(|| protocol.clone())
}

/// Returns the items of a comma-separated list. An item that is not ASCII does not hide the others.
fn list_items(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let items = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    items.filter(|name| !name.is_empty())
}

/// Returns whether a `Connection` header has an item of this name.
fn connection_names(headers: &HeaderMap, wanted: &[u8]) -> bool {
    let values = headers.get_all(CONNECTION).into_iter();
    values.flat_map(list_items).any(|name| name.eq_ignore_ascii_case(wanted))
}

/// Sets `Forwarded` and the `X-Forwarded-*` headers. It extends those of a trusted proxy, and replaces those of any other
/// client.
fn set_forwarded(headers: &mut HeaderMap, client: &ForwardedClient) {
    let host = headers.get(HOST).cloned();
    let proto = HeaderValue::from_static(if client.secure { "https" } else { "http" });
    let mut value = BytesMut::with_capacity(96);
    if client.trusted && headers.contains_key(X_FORWARDED_FOR) {
        append_list(&mut value, headers, &X_FORWARDED_FOR);
        value.extend_from_slice(client.address.as_bytes());
        set_or_remove(headers, X_FORWARDED_FOR, value.split().freeze());
    } else {
        headers.insert(X_FORWARDED_FOR, client.address.clone());
    }
    if client.trusted {
        append_list(&mut value, headers, &FORWARDED);
    }
    value.extend_from_slice(&client.for_parameter);
    if let Some(host) = &host {
        value.extend_from_slice(b";host=\"");
        value.extend_from_slice(host.as_bytes());
        value.extend_from_slice(b"\"");
    }
    value.extend_from_slice(b";proto=");
    value.extend_from_slice(proto.as_bytes());
    set_or_remove(headers, FORWARDED, value.freeze());
    let is_kept = |headers: &HeaderMap, name| client.trusted && headers.contains_key(name);
    if !is_kept(headers, X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, proto);
    }
    if !is_kept(headers, X_FORWARDED_HOST) {
        match host {
            Some(host) => drop(headers.insert(X_FORWARDED_HOST, host)),
            None => drop(headers.remove(X_FORWARDED_HOST)),
        }
    }
}

/// Appends all values of a header, each with a comma after it.
fn append_list(list: &mut BytesMut, headers: &HeaderMap, name: &HeaderName) {
    for value in headers.get_all(name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
}

/// Sets a header, or removes it if the value is invalid: the upstream must not trust the value of the client.
fn set_or_remove(headers: &mut HeaderMap, name: HeaderName, value: Bytes) {
    match HeaderValue::from_maybe_shared(value) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(_) => drop(headers.remove(name)),
    }
}

/// Converts a head to HTTP/2, with the host in the target. A head that was converted before does not change.
pub(crate) fn for_http2(head: &mut Parts, scheme: Scheme, server: &Authority) {
    // HTTP/2 frames mark the end of a body.
    head.headers.remove(TRANSFER_ENCODING);
    let host = head.headers.remove(HOST);
    let authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.scheme = Some(scheme);
    parts.authority = authority.or(parts.authority).or_else(|| Some(server.clone()));
    parts.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    head.uri = Uri::from_parts(parts).unwrap_or_default();
    head.version = Version::HTTP_2;
}

/// Converts a head to HTTP/1.1, with the host in `Host`. The head may have been converted to HTTP/2 before.
pub(crate) fn for_http1(head: &mut Parts, server: &Authority) {
    if let Some(authority) = head.uri.authority() {
        if let Ok(host) = HeaderValue::from_str(authority.as_str()) {
            head.headers.insert(HOST, host);
        }
        let path = head.uri.path_and_query().cloned();
        head.uri = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        head.version = Version::HTTP_11;
    } else if !head.headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(server.as_str())
    {
        head.headers.insert(HOST, host);
    }
}

/// Removes the hop-by-hop headers of a response. With `upgraded`, it keeps those that announce the new protocol.
pub(crate) fn clean_response(headers: &mut HeaderMap, upgraded: bool) {
    let protocol = upgraded.then(|| headers.get(UPGRADE).cloned()).flatten();
    let hop_by_hop = HopByHopHeaders::of(headers);
    // `Transfer-Encoding` overrides `Content-Length`, which is then removed (RFC 9112, section 6.3).
    let kept = match hop_by_hop.has(HopByHopHeaders::TRANSFER_ENCODING) {
        true => 0,
        false => HopByHopHeaders::LENGTH,
    };
    hop_by_hop.without(kept).strip(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, CONNECTION_UPGRADE);
        headers.insert(UPGRADE, protocol);
    }
}

/// Returns whether a request of this method may be sent twice (RFC 9110, section 9.2.2).
pub(crate) fn is_idempotent(method: &Method) -> bool {
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

    fn normalized(target: &str, version: Version, headers: &[(&str, &str)]) -> String {
        let mut head = head(target, version, headers);
        match normalize_request(&mut head) {
            Ok(_) => {
                let host = head.headers.get(HOST).map_or("-", |host| host.to_str().unwrap());
                format!("{} {host}", head.uri)
            }
            Err(error) => format!("{} {}", error.status.as_u16(), error.detail),
        }
    }

    #[test]
    fn request_host_is_moved_to_one_host_header() {
        let (http10, http11, http2) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        for (target, version, headers, expected) in [
            ("/a?b", http11, &[("host", "x:80")][..], "/a?b x:80"),
            ("http://y/a", http11, &[("host", "x")], "/a y"),
            ("https://y", http2, &[], "/ y"),
            ("https://y/", http2, &[("host", "x")], "/ y"),
            ("/", http10, &[], "/ -"),
            (
                "*",
                http11,
                &[("host", "x")],
                "400 path: found no leading slash, wanted a path like /v1/items",
            ),
            ("/", http11, &[], "400 host: found none, wanted one"),
            (
                "/",
                http11,
                &[("host", "x"), ("host", "x")],
                "400 host: found it twice, wanted it once",
            ),
            (
                "/",
                http11,
                &[("host", "x/y")],
                "400 host: found an invalid host, wanted one like example.com:80",
            ),
            (
                "/",
                http11,
                &[("host", "")],
                "400 host: found an invalid host, wanted one like example.com:80",
            ),
            (
                "http://u@y/",
                http11,
                &[("host", "y")],
                "400 target: found a user before the host, wanted only the host",
            ),
        ] {
            assert_eq!(normalized(target, version, headers), expected, "{target} {headers:?}");
        }
    }

    fn client(trusted: bool) -> ForwardedClient {
        ForwardedClient::new([192, 0, 2, 7].into(), trusted, true)
    }

    fn policy(trusted: bool) -> ClientHeaderPolicy {
        ClientHeaderPolicy { trusted, sets_rate_limit: true }
    }

    fn forwarded_headers(headers: &[(&str, &str)], trusted: bool) -> Vec<String> {
        let mut head = head("/", Version::HTTP_11, headers);
        clean_request(&mut head, policy(trusted), |_| {});
        prepare_for_upstream(&mut head, &client(trusted));
        let mut lines: Vec<String> = head
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines
    }

    const FORWARDING_HEADERS: [&str; 4] = [
        "forwarded: for=192.0.2.7;host=\"x\";proto=https",
        "x-forwarded-for: 192.0.2.7",
        "x-forwarded-host: x",
        "x-forwarded-proto: https",
    ];

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut expected = Vec::from(FORWARDING_HEADERS.map(str::to_owned));
        expected.extend(["accept: a", "host: x", "te: trailers", "trailer: t"].map(str::to_owned));
        expected.sort();
        let found = forwarded_headers(
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
    fn forwarding_headers_of_a_trusted_proxy_are_extended() {
        let found = forwarded_headers(
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
    fn upgrade_is_passed_on_unless_it_is_to_http2() {
        let is_passed_on = |connection: &str, protocol: &[u8], version| {
            let mut head = head("/", version, &[("host", "x"), ("connection", connection)]);
            head.headers.insert(UPGRADE, HeaderValue::from_bytes(protocol).unwrap());
            let is_passed_on = clean_request(&mut head, policy(false), |_| {}).has_upgrade;
            assert_eq!(is_passed_on, head.headers.contains_key(UPGRADE));
            assert_eq!(is_passed_on, head.headers.contains_key(CONNECTION));
            is_passed_on
        };
        assert!(is_passed_on("keep-alive, Upgrade", b"websocket", Version::HTTP_11));
        assert!(!is_passed_on("keep-alive", b"websocket", Version::HTTP_11));
        assert!(!is_passed_on("Upgrade", b"websocket", Version::HTTP_10));
        assert!(!is_passed_on("Upgrade, HTTP2-Settings", b"h2c", Version::HTTP_11));
        assert!(!is_passed_on("Upgrade", b"websocket, H2C", Version::HTTP_11));
        assert!(!is_passed_on("Upgrade", b"h2c, \xff", Version::HTTP_11));
        assert!(!is_passed_on("Upgrade", b"\xff, h2c", Version::HTTP_11));
    }

    #[test]
    fn reserved_headers_are_kept_only_from_a_client_that_may_set_them() {
        let names = |trusted, sets_rate_limit| {
            let sent = [
                ("x-real-ip", "6.6.6.6"),
                ("x-forwarded-port", "1"),
                ("x_forwarded_for", "6.6.6.6"),
                ("x_real-ip", "6.6.6.6"),
                ("x-ratelimit-extra", "9"),
                ("my_header", "1"),
            ];
            let mut head = head("/", Version::HTTP_11, &sent);
            let policy = ClientHeaderPolicy { trusted, sets_rate_limit };
            assert!(clean_request(&mut head, policy, |_| {}).has_underscores);
            let mut names: Vec<String> = head.headers.keys().map(ToString::to_string).collect();
            names.sort();
            names
        };
        assert_eq!(names(false, true), ["my_header"]);
        assert_eq!(names(false, false), ["my_header", "x-ratelimit-extra"]);
        assert_eq!(names(true, true), ["my_header", "x-forwarded-port", "x-real-ip"]);
    }

    #[test]
    fn connection_names_headers_beside_an_invalid_item_but_no_forwarding_headers() {
        let mut head = head(
            "/",
            Version::HTTP_11,
            &[("host", "x"), ("x-api-key", "k"), ("x-forwarded-for", "192.0.2.1")],
        );
        let connection = HeaderValue::from_bytes(b"\xff, X-API-Key, x-forwarded-for").unwrap();
        head.headers.insert(CONNECTION, connection);
        clean_request(&mut head, policy(true), |_| {});
        let mut kept: Vec<_> = head.headers.keys().map(ToString::to_string).collect();
        kept.sort();
        assert_eq!(kept, ["host", "x-forwarded-for"]);
    }

    #[test]
    fn cookie_lines_are_joined_in_order() {
        let cookies = [("cookie", "a=1"), ("cookie", "b=2"), ("cookie", "c=3; d=4")];
        let mut head = head("/", Version::HTTP_2, &cookies);
        clean_request(&mut head, policy(false), |_| {});
        let joined: Vec<_> = head.headers.get_all(COOKIE).iter().collect();
        assert_eq!(joined, ["a=1; b=2; c=3; d=4"]);
    }

    /// Generates headers of a client, mostly those that the gateway treats specially.
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
        fn any_request_is_framed_and_its_client_named_by_the_gateway(
            sent in any_headers(),
            trusted in any::<bool>(),
        ) {
            let pairs: Vec<_> = sent.iter().map(|(name, value)| (&**name, &**value)).collect();
            let mut head = head("/", Version::HTTP_11, &pairs);
            head.headers.insert(HOST, HeaderValue::from_static("shop.example"));
            normalize_request(&mut head).unwrap();
            let host = head.headers.get(HOST).cloned();
            let named: Vec<Vec<u8>> = head
                .headers
                .get_all(CONNECTION)
                .iter()
                .flat_map(|value| list_items(value).map(<[u8]>::to_ascii_lowercase).collect::<Vec<_>>())
                .collect();
            let has_upgrade = clean_request(&mut head, policy(trusted), |_| {}).has_upgrade;
            prepare_for_upstream(&mut head, &client(trusted));
            let headers = &head.headers;
            for removed in [TRANSFER_ENCODING, CONTENT_LENGTH, KEEP_ALIVE, PROXY_CONNECTION, EXPECT] {
                prop_assert!(!headers.contains_key(&removed), "{removed}");
            }
            prop_assert_eq!(headers.get(HOST), host.as_ref());
            prop_assert_eq!(has_upgrade, headers.contains_key(CONNECTION));
            prop_assert_eq!(has_upgrade, headers.contains_key(UPGRADE));
            prop_assert!(headers.get(TE).is_none_or(|te| te == "trailers"));
            prop_assert!(!named.contains(&b"x-mine".to_vec()) || !headers.contains_key("x-mine"));
            for name in [X_FORWARDED_FOR, FORWARDED, X_FORWARDED_PROTO] {
                let all: Vec<_> = headers.get_all(&name).iter().collect();
                let trusted_proto = trusted && name == X_FORWARDED_PROTO;
                prop_assert!(all.len() == 1 || trusted_proto, "{name}: {all:?}");
            }
            let addresses = headers[X_FORWARDED_FOR].as_bytes();
            prop_assert!(addresses.ends_with(b"192.0.2.7"));
            prop_assert!(trusted || addresses == b"192.0.2.7");
        }
    }

    #[test]
    fn retried_request_keeps_its_host_across_http_versions() {
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
        // Without a host, the request gets that of the server.
        head.headers.remove(HOST);
        for_http1(&mut head, &server);
        assert_eq!(shown(&head), "/a?b 10.0.0.1:3000 HTTP/1.1");
    }

    #[test]
    fn transfer_encoding_removes_the_content_length_of_a_response() {
        let mut response = head(
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
        clean_response(&mut response.headers, false);
        assert_eq!(response.headers.len(), 1);
        assert!(response.headers.contains_key("trailer"));
    }
}
