//! What is known of an HTTP request, as the attributes that rules look at.

use std::borrow::Cow;

use hyper::header::{COOKIE, HOST, HeaderMap};
use hyper::{Method, Uri};

/// The attributes of a request in the order they are looked for; the first of a name counts.
///
/// `host` is in lower case without its port, `path` spells plainly what need not be encoded, and a
/// query is decoded as a form is, so that one resource has one name.
pub(crate) fn attributes(
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    ip: &str,
) -> Vec<(String, String)> {
    let mut found = vec![("method".to_owned(), method.to_string())];
    let mut add = |name: String, value: Cow<'_, str>| found.push((name, value.into_owned()));
    let named = headers.get(HOST).and_then(|host| host.to_str().ok());
    if let Some(host) = named.map(without_port).or(uri.host()) {
        let host = host.strip_suffix('.').unwrap_or(host);
        add("host".to_owned(), host.to_ascii_lowercase().into());
    }
    add("path".to_owned(), plain(uri.path()));
    add("ip".to_owned(), ip.into());
    if let Some(key) = headers.get("x-api-key") {
        add("api_key".to_owned(), String::from_utf8_lossy(key.as_bytes()));
    }
    for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        add(format!("query.{}", decoded(name)), decoded(value));
    }
    for (name, value) in headers {
        add(format!("header.{name}"), String::from_utf8_lossy(value.as_bytes()));
    }
    for line in headers.get_all(COOKIE) {
        let line = String::from_utf8_lossy(line.as_bytes());
        for pair in line.split(';') {
            if let Some((name, value)) = pair.split_once('=') {
                add(format!("cookie.{}", name.trim()), value.trim().into());
            }
        }
    }
    found
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => host,
    }
}

/// A path in which only what must be encoded still is: `/%76%31` is `/v1`.
fn plain(path: &str) -> Cow<'_, str> {
    let unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    unescaped(path, |byte, digits, text| match byte {
        byte if unreserved(byte) => text.push(byte),
        _ => {
            text.push(b'%');
            text.extend(digits.to_ascii_uppercase());
        }
    })
}

/// A name or value of a query as it was meant: plus is a space, `%41` an A.
fn decoded(text: &str) -> Cow<'_, str> {
    let spaced = text.replace('+', " ");
    unescaped(&spaced, |byte, _, text| text.push(byte)).into_owned().into()
}

/// The text with each `%41` replaced by what `push` makes of its byte and digits.
fn unescaped(text: &str, push: impl Fn(u8, &[u8], &mut Vec<u8>)) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|two| two.iter().all(u8::is_ascii_hexdigit));
        let byte = digits
            .and_then(|two| std::str::from_utf8(two).ok())
            .and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, digits, byte) {
            (b'%', Some(digits), Some(byte)) => {
                push(byte, digits, &mut bytes);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_resource_has_one_name() {
        let uri: Uri =
            "http://API.Example.:8080/%76%31/a%2fb%zz?q=a+b%26c&q=2&flag".parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, "a=1; b = 2 ;c".parse().unwrap());
        let found = attributes(&Method::GET, &uri, &headers, "192.0.2.7");
        let shown: Vec<String> =
            found.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            shown,
            [
                "method=GET",
                "host=api.example",
                "path=/v1/a%2Fb%zz",
                "ip=192.0.2.7",
                "query.q=a b&c",
                "query.q=2",
                "query.flag=",
                "header.cookie=a=1; b = 2 ;c",
                "cookie.a=1",
                "cookie.b=2",
            ]
        );
    }

    #[test]
    fn the_host_header_says_who_is_meant() {
        let uri: Uri = "http://127.0.0.1:8080/".parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "shop.example:443".parse().unwrap());
        let found = attributes(&Method::GET, &uri, &headers, "::1");
        assert!(found.contains(&("host".to_owned(), "shop.example".to_owned())), "{found:?}");
    }
}
