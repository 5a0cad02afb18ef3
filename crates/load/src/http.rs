//! HTTP/1 requests: a check, or a GET of any URL.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tidegate_api::{Attributes, CheckRequest, ProblemBody};

use crate::reply::{ConnectionError, LoadReply};
use crate::request::{LoadRequest, fill_client};
use crate::target::LoadTarget;

/// Bytes of a reply that are kept for the error message.
const MAX_KEPT_BYTES: usize = 4 * 1024;

/// A request with placeholders for the name of a client.
pub(crate) struct HttpMessage {
    path: String,
    authority: String,
    headers: Vec<(String, String)>,
    /// The body of a check.
    body: Option<String>,
}

impl HttpMessage {
    pub(crate) fn check(target: &LoadTarget, request: &LoadRequest) -> Self {
        let has_attributes = !request.attributes.is_empty();
        let check = CheckRequest {
            rule: request.rule.clone(),
            client: (!has_attributes).then_some("{client}"),
            attributes: has_attributes.then(|| Attributes(request.attributes.clone())),
            cost: Some(request.cost),
        };
        let (path, body) = ("/v1/check".to_owned(), serde_json::to_string(&check).ok());
        Self { path, authority: target.authority(), headers: Vec::new(), body }
    }

    pub(crate) fn get(target: &LoadTarget, headers: &[(String, String)]) -> Self {
        let after_scheme = target.url().split_once("://").map_or("", |(_, rest)| rest);
        let path = after_scheme.find(['/', '?']).map_or("", |start| &after_scheme[start..]);
        let path = match path.split('#').next().unwrap_or_default() {
            path if path.starts_with('/') => path.to_owned(),
            query => format!("/{query}"),
        };
        Self { path, authority: target.authority(), headers: headers.to_vec(), body: None }
    }

    fn request(&self, client: &str) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri: Uri = fill_client(&self.path, client).parse()?;
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in &self.headers {
            request = request.header(name, fill_client(value, client));
        }
        let has_header = |request: &http::request::Builder, name| {
            request.headers_ref().is_some_and(|headers| headers.contains_key(name))
        };
        if !has_header(&request, HOST) {
            request = request.header(HOST, &self.authority);
        }
        if !has_header(&request, USER_AGENT) {
            request = request.header(USER_AGENT, "tidegate-bench");
        }
        let body = match &self.body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Full::from(fill_client(body, client))
            }
            None => Full::default(),
        };
        request.body(body)
    }
}

/// A connection with one request at a time.
pub(crate) struct HttpConnection {
    sender: SendRequest<Full<Bytes>>,
}

impl HttpConnection {
    pub(crate) async fn open(target: &LoadTarget) -> Result<Self, String> {
        let stream = TokioIo::new(target.connect().await?);
        let handshake = http1::handshake(stream).await;
        let (sender, connection) = handshake.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    pub(crate) async fn is_ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    pub(crate) async fn send(
        &mut self,
        message: &HttpMessage,
        client: &str,
    ) -> Result<LoadReply, ConnectionError> {
        let request = match message.request(client) {
            Ok(request) => request,
            Err(error) => return Ok(LoadReply::Other(format!("the request is invalid: {error}"))),
        };
        let response = self.sender.send_request(request).await.map_err(ConnectionError::broken)?;
        let status = response.status();
        let start = read(response.into_body()).await.map_err(ConnectionError::broken)?;
        let is_check = message.body.is_some();
        Ok(match status {
            StatusCode::OK if is_check => LoadReply::Allowed,
            StatusCode::TOO_MANY_REQUESTS => LoadReply::Denied,
            StatusCode::SERVICE_UNAVAILABLE => LoadReply::Unavailable,
            _ if !is_check && (status.is_success() || status.is_redirection()) => {
                LoadReply::Allowed
            }
            _ => LoadReply::Other(describe_rejection(status, &start)),
        })
    }
}

/// Reads all of a body, and returns its beginning.
async fn read(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut start = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let room = MAX_KEPT_BYTES.saturating_sub(start.len());
            start.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(start)
}

/// Describes a rejection: `status 404: rule: found "x", wanted …`.
fn describe_rejection(status: StatusCode, start: &[u8]) -> String {
    match serde_json::from_slice(start) {
        Ok(ProblemBody::<String> { detail, .. }) if !detail.is_empty() => {
            format!("status {}: {detail}", status.as_u16())
        }
        _ => format!("status {}", status.as_u16()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get_request(url: &str) -> (String, Request<Full<Bytes>>) {
        let headers = [("X-API-Key".to_owned(), "{client}".to_owned())];
        let message = HttpMessage::get(&LoadTarget::new(url, true).unwrap(), &headers);
        let request = message.request("client-3").unwrap();
        (request.uri().to_string(), request)
    }

    #[test]
    fn get_request_has_the_client_name_in_url_and_headers() {
        let (uri, request) = get_request("http://127.0.0.1:8000/u/{client}?a=b#top");
        assert_eq!(uri, "/u/client-3?a=b");
        assert_eq!(request.headers()["host"], "127.0.0.1:8000");
        assert_eq!(request.headers()["x-api-key"], "client-3");
        assert_eq!(get_request("http://127.0.0.1:8000").0, "/");
        assert_eq!(get_request("http://127.0.0.1:8000?x=1").0, "/?x=1");
    }

    #[test]
    fn rejection_is_described_with_the_detail_of_the_server() {
        let body = br#"{"title":"x","detail":"rule: found \"a\""}"#;
        assert_eq!(
            describe_rejection(StatusCode::NOT_FOUND, body),
            "status 404: rule: found \"a\""
        );
        assert_eq!(describe_rejection(StatusCode::BAD_GATEWAY, b"<html>"), "status 502");
    }
}
