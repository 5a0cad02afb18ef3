//! `tidegate.v1.RateLimiter/Check`.

use std::error::Error as StdError;
use std::io::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tidegate_proto::tidegate::v1::CheckRequest;
use tidegate_proto::tidegate::v1::check_request::Named;
use tidegate_proto::tidegate::v1::rate_limiter_client::RateLimiterClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use crate::reply::{ConnectionError, LoadReply};
use crate::request::{LoadRequest, fill_client};
use crate::target::{ByteStream, LoadTarget};

/// A call with placeholders for the name of a client.
pub(crate) struct GrpcMessage(LoadRequest);

impl GrpcMessage {
    pub(crate) fn new(request: &LoadRequest) -> Self {
        Self(request.clone())
    }

    fn call(&self, client: &str) -> CheckRequest {
        let LoadRequest { rule, attributes, cost } = &self.0;
        let named = attributes.is_empty().then(|| Named::Client(client.to_owned()));
        let filled = |(name, value): &(String, String)| (name.clone(), fill_client(value, client));
        CheckRequest {
            rule: rule.clone().unwrap_or_default(),
            named,
            attributes: attributes.iter().map(filled).collect(),
            cost: Some(*cost),
        }
    }
}

/// Connects to the addresses of the target only.
struct TargetConnector(LoadTarget);

impl Service<Uri> for TargetConnector {
    type Response = TokioIo<Box<dyn ByteStream>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let target = self.0.clone();
        Box::pin(async move { target.connect().await.map(TokioIo::new).map_err(Error::other) })
    }
}

/// A connection with one call at a time.
pub(crate) struct GrpcConnection {
    client: RateLimiterClient<Channel>,
}

impl GrpcConnection {
    pub(crate) async fn open(target: &LoadTarget) -> Result<Self, String> {
        // The connector adds TLS.
        let endpoint = Endpoint::from_shared(format!("http://{}", target.authority()));
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let channel = endpoint.connect_with_connector(TargetConnector(target.clone())).await;
        let channel = channel.map_err(|error| innermost(&error).to_string())?;
        Ok(Self { client: RateLimiterClient::new(channel) })
    }

    pub(crate) async fn send(
        &mut self,
        message: &GrpcMessage,
        client: &str,
    ) -> Result<LoadReply, ConnectionError> {
        match self.client.check(message.call(client)).await {
            Ok(reply) if reply.get_ref().allowed => Ok(LoadReply::Allowed),
            Ok(_) => Ok(LoadReply::Denied),
            Err(status) => reply_of_status(&status),
        }
    }
}

/// Converts a status to a reply. A status with a source was made by the client: the connection is lost.
fn reply_of_status(status: &Status) -> Result<LoadReply, ConnectionError> {
    match (status.source(), status.code()) {
        (Some(cause), _) => Err(ConnectionError::broken(innermost(cause))),
        (None, Code::Unavailable) => Ok(LoadReply::Unavailable),
        (None, code) => Ok(LoadReply::Other(format!("{code:?}: {}", status.message()))),
    }
}

/// Returns the first cause of an error.
fn innermost<'e>(mut error: &'e (dyn StdError + 'static)) -> &'e (dyn StdError + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
