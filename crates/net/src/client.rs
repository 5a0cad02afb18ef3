//! HTTP client of the commands and of rules that are read from a URL.

mod tls;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

pub use self::tls::ClientTls;
use crate::token::BearerToken;

/// Longest time of an exchange, connecting included.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest response of [`HttpClient::send_json`] in bytes: more than a full block list takes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Sends requests to one HTTP server, each on a connection of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpClient {
    /// Host and port.
    address: String,
    host: String,
    tls: Option<ClientTls>,
}

impl HttpClient {
    /// Creates a client of the server of a URL; the path is ignored. `tls` is used for `https`.
    ///
    /// # Errors
    /// The URL is not `http` or `https`.
    pub fn new(uri: &Uri, tls: &ClientTls) -> Result<Self, String> {
        let wanted = || "must be a URL like http://127.0.0.1:8080".to_owned();
        let (tls, default_port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => (Some(tls.clone()), 443),
            _ => return Err(wanted()),
        };
        let host = uri.host().ok_or_else(wanted)?;
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(default_port));
        Ok(Self { address, host: host.to_owned(), tls })
    }

    /// Returns host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Posts JSON to a path.
    ///
    /// # Errors
    /// There was no response.
    pub async fn post(&self, path: &str, body: String) -> Result<ClientResponse, ClientError> {
        self.send_json(Method::POST, path, body, None).await
    }

    /// Sends JSON to a path, with a token if there is one.
    ///
    /// # Errors
    /// There was no response.
    pub async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&BearerToken>,
    ) -> Result<ClientResponse, ClientError> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.as_str()));
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::from(body));
        let request = request.map_err(|error| self.no_response(error.to_string()))?;
        let response = self.exchange(request, MAX_RESPONSE_BYTES).await?;
        let (status, body) = (response.status().as_u16(), response.into_body());
        Ok(ClientResponse { status, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Sends a request, and reads a response of at most `max` bytes.
    ///
    /// # Errors
    /// There was no response, or it is longer.
    pub async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let exchanged =
            tokio::time::timeout(EXCHANGE_TIMEOUT, self.connect_and_send(request, max)).await;
        exchanged.unwrap_or_else(|_| {
            Err(self.no_response(format!("no response within {EXCHANGE_TIMEOUT:?}")))
        })
    }

    async fn connect_and_send(
        &self,
        request: Request<Full<Bytes>>,
        max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let stream = TcpStream::connect(&self.address).await.map_err(|error| {
            ClientError::Unreachable { address: self.address.clone(), reason: error.to_string() }
        })?;
        match &self.tls {
            None => self.exchange_on(stream, request, max).await,
            Some(tls) => {
                let stream = tls.connect(&self.host, stream).await;
                self.exchange_on(stream.map_err(|reason| self.no_response(reason))?, request, max)
                    .await
            }
        }
    }

    async fn exchange_on(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
        max: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.no_response(error.to_string()))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.no_response(error.to_string()))?;
        let (head, body) = response.into_parts();
        let read = Limited::new(body, max).collect().await;
        let body = read.map_err(|error| self.no_response(error.to_string()))?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    fn no_response(&self, reason: String) -> ClientError {
        ClientError::NoResponse { address: self.address.clone(), reason }
    }
}

/// The status and body of a response.
#[derive(Debug)]
pub struct ClientResponse {
    pub status: u16,
    pub body: String,
}

/// The reason why there is no response.
#[derive(Debug, Error)]
pub enum ClientError {
    #[error("{address} can't be reached: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("{address} did not answer: {reason}")]
    NoResponse { address: String, reason: String },
}
