//! `tidegate.v1.RateLimiter/Check`.

use std::error::Error;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::ask::{Ask, filled};
use super::link::{Answer, Lost};
use super::target::Target;
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

/// One connection, and one call at a time on it.
pub(super) struct Link {
    client: RateLimiterClient<Channel>,
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Self, String> {
        let address = target.address().ok_or("it was not looked up")?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|error| error.to_string())?.tcp_nodelay(true);
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| format!("can't connect: {}", innermost(&error)))?;
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
fn innermost<'e>(mut error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}
