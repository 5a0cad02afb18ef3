//! HTTP/1: a check, or any URL.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ask::{Ask, filled};
use super::link::{Answer, Lost};
use super::target::Target;

/// So much of an answer is kept to say what was wrong.
const KEPT: usize = 4 * 1024;

/// A request, with places for the name of a client.
pub(super) struct Message {
    path: String,
    authority: String,
    headers: Vec<(String, String)>,
    /// Of a check.
    body: Option<String>,
}

impl Message {
    pub(super) fn check(target: &Target, ask: &Ask) -> Self {
        let mut body = json!({"cost": ask.cost});
        if let Some(rule) = &ask.rule {
            body["rule"] = json!(rule);
        }
        if ask.attributes.is_empty() {
            body["client"] = json!("{client}");
        } else {
            let pairs = ask.attributes.iter();
            let pairs = pairs.map(|(name, value)| (name.clone(), Value::String(value.clone())));
            body["attributes"] = Value::Object(pairs.collect::<Map<_, _>>());
        }
        let (path, body) = ("/v1/check".to_owned(), Some(body.to_string()));
        Self { path, authority: target.authority(), headers: Vec::new(), body }
    }

    pub(super) fn get(target: &Target, headers: &[(String, String)]) -> Self {
        let after_scheme = target.url().split_once("://").map_or("", |(_, rest)| rest);
        let path = after_scheme.find(['/', '?']).map_or("", |start| &after_scheme[start..]);
        let path = match path.split('#').next().unwrap_or_default() {
            path if path.starts_with('/') => path.to_owned(),
            query => format!("/{query}"),
        };
        Self { path, authority: target.authority(), headers: headers.to_vec(), body: None }
    }

    fn request(&self, client: &str) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri: Uri = filled(&self.path, client).parse()?;
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in &self.headers {
            request = request.header(name, filled(value, client));
        }
        let named = |request: &http::request::Builder, name| {
            request.headers_ref().is_some_and(|headers| headers.contains_key(name))
        };
        if !named(&request, HOST) {
            request = request.header(HOST, &self.authority);
        }
        if !named(&request, USER_AGENT) {
            request = request.header(USER_AGENT, "tidegate-bench");
        }
        let body = match &self.body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Full::from(filled(body, client))
            }
            None => Full::default(),
        };
        request.body(body)
    }
}

pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Self, String> {
        let stream = TokioIo::new(target.connect().await?);
        let shaken = http1::handshake(stream).await;
        let (sender, connection) = shaken.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    pub(super) async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    pub(super) async fn ask(&mut self, message: &Message, client: &str) -> Result<Answer, Lost> {
        let request = match message.request(client) {
            Ok(request) => request,
            Err(error) => return Ok(Answer::Other(format!("can't be asked: {error}"))),
        };
        let response = self.sender.send_request(request).await.map_err(Lost::broken)?;
        let status = response.status();
        let start = read(response.into_body()).await.map_err(Lost::broken)?;
        let is_check = message.body.is_some();
        Ok(match status {
            StatusCode::OK if is_check => Answer::Allowed,
            StatusCode::TOO_MANY_REQUESTS => Answer::Denied,
            StatusCode::SERVICE_UNAVAILABLE => Answer::Unavailable,
            _ if !is_check && (status.is_success() || status.is_redirection()) => Answer::Allowed,
            _ => Answer::Other(told(status, &start)),
        })
    }
}

/// Reads all of a body, and keeps how it starts.
async fn read(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut start = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let room = KEPT.saturating_sub(start.len());
            start.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(start)
}

/// `status 404: rule: found "x", wanted …`.
fn told(status: StatusCode, start: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    match serde_json::from_slice(start) {
        Ok(Problem { detail }) => format!("status {}: {detail}", status.as_u16()),
        Err(_) => format!("status {}", status.as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn got(url: &str) -> (String, Request<Full<Bytes>>) {
        let headers = [("X-API-Key".to_owned(), "{client}".to_owned())];
        let message = Message::get(&Target::new(url, true).unwrap(), &headers);
        let request = message.request("client-3").unwrap();
        (request.uri().to_string(), request)
    }

    #[test]
    fn a_url_is_got_with_the_clients_name_in_it() {
        let (uri, request) = got("http://127.0.0.1:8000/u/{client}?a=b#top");
        assert_eq!(uri, "/u/client-3?a=b");
        assert_eq!(request.headers()["host"], "127.0.0.1:8000");
        assert_eq!(request.headers()["x-api-key"], "client-3");
        assert_eq!(got("http://127.0.0.1:8000").0, "/");
        assert_eq!(got("http://127.0.0.1:8000?x=1").0, "/?x=1");
    }

    #[test]
    fn a_refusal_is_told_with_what_the_server_said() {
        let body = br#"{"title":"x","detail":"rule: found \"a\""}"#;
        assert_eq!(told(StatusCode::NOT_FOUND, body), "status 404: rule: found \"a\"");
        assert_eq!(told(StatusCode::BAD_GATEWAY, b"<html>"), "status 502");
    }
}
