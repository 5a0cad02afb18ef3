//! Asks a running server, for the commands that want its answer.

mod tls;

use std::str::FromStr;
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

pub(crate) use self::tls::ClientTls;
use crate::config::{self, Token};

/// How long a server may take, connecting included.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer in bytes: that of a full block list, and then some.
const MAX_ANSWER: usize = 64 * 1024 * 1024;

/// Where a server answers HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Host and port.
    address: String,
    host: String,
    tls: Option<ClientTls>,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("must be a URL like http://127.0.0.1:8080, found {text:?}");
        let uri: Uri = text.parse().map_err(|_| wanted())?;
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wanted());
        }
        Self::of(&uri).map_err(|error| format!("{error}, found {text:?}"))
    }
}

impl Server {
    /// The server of a URL, whatever its path.
    ///
    /// # Errors
    /// It is no URL of HTTP, or the files for TLS can't be had.
    pub(crate) fn of(uri: &Uri) -> Result<Self, String> {
        let wanted = || "must be a URL like http://127.0.0.1:8080".to_owned();
        let (tls, usual) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => (Some(config::client_tls().map_err(|error| error.to_string())?), 443),
            _ => return Err(wanted()),
        };
        let host = uri.host().ok_or_else(wanted)?;
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(usual));
        Ok(Self { address, host: host.to_owned(), tls })
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Posts JSON to a path.
    ///
    /// # Errors
    /// There was no answer.
    pub(crate) async fn post(&self, path: &str, body: String) -> Result<Answer, ClientError> {
        self.ask(Method::POST, path, body, None).await
    }

    /// Sends JSON to a path, with a token if there is one.
    ///
    /// # Errors
    /// There was no answer.
    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: String,
        token: Option<&Token>,
    ) -> Result<Answer, ClientError> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, &self.address);
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.as_str()));
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::from(body));
        let request = request.map_err(|error| self.silent(error.to_string()))?;
        let answer = self.exchange(request, MAX_ANSWER).await?;
        let (status, body) = (answer.status().as_u16(), answer.into_body());
        Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Sends any request, and reads an answer of at most so many bytes.
    ///
    /// # Errors
    /// There was none, or it is longer.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let asked = tokio::time::timeout(PATIENCE, self.send(request, most)).await;
        asked.unwrap_or_else(|_| Err(self.silent(format!("no answer within {PATIENCE:?}"))))
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let stream = TcpStream::connect(&self.address).await.map_err(|error| {
            ClientError::Unreachable { address: self.address.clone(), reason: error.to_string() }
        })?;
        match &self.tls {
            None => self.speak(stream, request, most).await,
            Some(tls) => {
                let stream = tls.connect(&self.host, stream).await;
                self.speak(stream.map_err(|reason| self.silent(reason))?, request, most).await
            }
        }
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Response<Bytes>, ClientError> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.silent(error.to_string()))?;
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| self.silent(error.to_string()))?;
        let (head, body) = response.into_parts();
        let read = Limited::new(body, most).collect().await;
        let body = read.map_err(|error| self.silent(error.to_string()))?.to_bytes();
        Ok(Response::from_parts(head, body))
    }

    fn silent(&self, reason: String) -> ClientError {
        ClientError::Silent { address: self.address.clone(), reason }
    }
}

/// What a server answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error("{address} can't be reached: {reason}")]
    Unreachable { address: String, reason: String },
    #[error("{address} did not answer: {reason}")]
    Silent { address: String, reason: String },
}
