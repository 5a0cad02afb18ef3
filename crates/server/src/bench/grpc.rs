//! `tidegate.v1.RateLimiter/Check`.

use std::error::Error as Cause;
use std::io::Error;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use super::ask::{Ask, filled};
use super::link::{Answer, Lost};
use super::target::{Target, Wire};
use crate::proto::tidegate::v1::CheckRequest;
use crate::proto::tidegate::v1::check_request::Named;
use crate::proto::tidegate::v1::rate_limiter_client::RateLimiterClient;

/// A call, with places for the name of a client.
pub(super) struct Message(Ask);

impl Message {
    pub(super) fn new(ask: &Ask) -> Self {
        Self(ask.clone())
    }

    fn call(&self, client: &str) -> CheckRequest {
        let Ask { rule, attributes, cost } = &self.0;
        let named = attributes.is_empty().then(|| Named::Client(client.to_owned()));
        let filled = |(name, value): &(String, String)| (name.clone(), filled(value, client));
        CheckRequest {
            rule: rule.clone().unwrap_or_default(),
            named,
            attributes: attributes.iter().map(filled).collect(),
            cost: Some(*cost),
        }
    }
}

/// Connects where the target says, and nowhere else.
struct Connector(Target);

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Wire>>;
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

/// One connection, and one call at a time on it.
pub(super) struct Link {
    client: RateLimiterClient<Channel>,
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Self, String> {
        // Whether there is TLS is decided below it.
        let endpoint = Endpoint::from_shared(format!("http://{}", target.authority()));
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let channel = endpoint.connect_with_connector(Connector(target.clone())).await;
        let channel = channel.map_err(|error| innermost(&error).to_string())?;
        Ok(Self { client: RateLimiterClient::new(channel) })
    }

    pub(super) async fn ask(&mut self, message: &Message, client: &str) -> Result<Answer, Lost> {
        match self.client.check(message.call(client)).await {
            Ok(answer) if answer.get_ref().allowed => Ok(Answer::Allowed),
            Ok(_) => Ok(Answer::Denied),
            Err(status) => refused(&status),
        }
    }
}

/// What a status means. One that nobody sent has a cause of its own.
fn refused(status: &Status) -> Result<Answer, Lost> {
    match (status.source(), status.code()) {
        (Some(cause), _) => Err(Lost::broken(innermost(cause))),
        (None, Code::Unavailable) => Ok(Answer::Unavailable),
        (None, code) => Ok(Answer::Other(format!("{code:?}: {}", status.message()))),
    }
}

/// What it comes down to.
fn innermost<'e>(mut error: &'e (dyn Cause + 'static)) -> &'e (dyn Cause + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
