//! Polls the admin listener of a server.

use std::time::Duration;

use hyper::Method;
use serde::de::DeserializeOwned;
use tidegate_api::{ClientRanking, FleetReport, LiveReport, ProblemBody};
use tidegate_core::{Span, TerminalSafe};
use tidegate_limiter::Clock;
use tidegate_net::client::HttpClient;
use tidegate_net::token::BearerToken;
use tokio::sync::mpsc;

/// A live report with text that is safe to print.
pub(crate) type SafeLiveReport = LiveReport<TerminalSafe>;
/// A client ranking with text that is safe to print.
pub(crate) type SafeRanking = ClientRanking<TerminalSafe>;
/// A fleet report with text that is safe to print.
pub(crate) type SafeFleetReport = FleetReport<TerminalSafe>;

/// Time between a reply and the next request.
const POLL_INTERVAL: Span = Span::SECOND;
/// Time after which a reply is an error: older figures would mislead the operator.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Most clients in each ranking.
const MAX_CLIENTS: usize = 200;

/// A report of the server, or the error of its request.
#[derive(Debug)]
pub(crate) enum Update {
    Live(Result<SafeLiveReport, TerminalSafe>),
    Clients(Result<ClientRankings, TerminalSafe>),
    Fleet(Result<SafeFleetReport, TerminalSafe>),
}

/// The clients with the most requests, and those with the most denials.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientRankings {
    pub(crate) traffic: SafeRanking,
    pub(crate) denials: SafeRanking,
}

/// Requests reports from one admin listener.
#[derive(Clone, Debug)]
pub(crate) struct AdminPoller {
    server: HttpClient,
    token: Option<BearerToken>,
}

impl AdminPoller {
    pub(crate) fn new(server: HttpClient, token: Option<BearerToken>) -> Self {
        Self { server, token }
    }

    pub(crate) fn address(&self) -> &str {
        self.server.address()
    }

    /// Starts one polling task per report, so that a slow report delays no other. The tasks end when the receiver is
    /// dropped.
    pub(crate) fn start(&self, clock: &Clock, updates: &mpsc::Sender<Update>) {
        let (poller, sender, timer) = (self.clone(), updates.clone(), clock.clone());
        tokio::spawn(async move {
            let mut since = 0;
            loop {
                let live = poller.live(since).await;
                let last = live.as_ref().ok().and_then(|live| live.seconds.last());
                since = last.map_or(since, |second| second.at);
                if sender.send(Update::Live(live)).await.is_err() {
                    return;
                }
                timer.sleep(POLL_INTERVAL).await;
            }
        });
        let (poller, sender, timer) = (self.clone(), updates.clone(), clock.clone());
        tokio::spawn(async move {
            while sender.send(Update::Clients(poller.clients().await)).await.is_ok() {
                timer.sleep(POLL_INTERVAL).await;
            }
        });
        let (poller, sender, timer) = (self.clone(), updates.clone(), clock.clone());
        tokio::spawn(async move {
            while sender.send(Update::Fleet(poller.fleet().await)).await.is_ok() {
                timer.sleep(POLL_INTERVAL).await;
            }
        });
    }

    /// Requests every report once, at the same time.
    pub(crate) async fn fetch_all(&self) -> [Update; 3] {
        let (live, clients, fleet) = tokio::join!(self.live(0), self.clients(), self.fleet());
        [Update::Live(live), Update::Clients(clients), Update::Fleet(fleet)]
    }

    async fn live(&self, since: u64) -> Result<SafeLiveReport, TerminalSafe> {
        self.read(&format!("/v1/live?since={since}")).await
    }

    async fn clients(&self) -> Result<ClientRankings, TerminalSafe> {
        let traffic = self.read(&format!("/v1/top?by=traffic&limit={MAX_CLIENTS}")).await?;
        let denials = self.read(&format!("/v1/top?by=denials&limit={MAX_CLIENTS}")).await?;
        Ok(ClientRankings { traffic, denials })
    }

    async fn fleet(&self) -> Result<SafeFleetReport, TerminalSafe> {
        self.read("/v1/fleet").await
    }

    /// Reads the report at a path. The error is text for the operator.
    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, TerminalSafe> {
        let request = self.server.send_json(Method::GET, path, String::new(), self.token.as_ref());
        let reply = match tokio::time::timeout(REPLY_TIMEOUT, request).await {
            Ok(reply) => reply.map_err(|error| TerminalSafe::from(error.to_string()))?,
            Err(_) => {
                let address = self.server.address();
                return Err(format!("{address}: no reply within {REPLY_TIMEOUT:?}").into());
            }
        };
        if reply.status != 200 {
            return Err(describe_status(reply.status, &reply.body).into());
        }
        serde_json::from_str(&reply.body)
            .map_err(|error| format!("the reply can't be read: {error}").into())
    }
}

/// Returns the detail of an error reply, with the likely fix.
fn describe_status(status: u16, body: &str) -> String {
    let ProblemBody::<String> { detail, .. } = serde_json::from_str(body).unwrap_or_default();
    match status {
        401 => format!("{detail}; set TIDEGATE_TOKEN to the admin token"),
        404 => format!("{detail}; is this the admin listener? Its default port is 9090"),
        _ => format!("{detail} (status {status})"),
    }
}
