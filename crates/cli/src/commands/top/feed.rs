//! Asks a server how it does, again and again.

use std::time::Duration;

use hyper::Method;
use serde::de::DeserializeOwned;
use tidegate_api::{ClientRanking, FleetReport, LiveReport, ProblemBody};
use tidegate_core::{Span, TerminalSafe};
use tidegate_limiter::Clock;
use tidegate_net::client::HttpClient;
use tidegate_net::token::BearerToken;
use tokio::sync::mpsc;

/// Reports of a server, with text that is safe to print.
pub(crate) type Live = LiveReport<TerminalSafe>;
pub(crate) type Ranking = ClientRanking<TerminalSafe>;
pub(crate) type Fleet = FleetReport<TerminalSafe>;

const EVERY: Span = Span::SECOND;
/// How long an answer may take: nobody wants to look at what was.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many clients are shown at the most.
const CLIENTS: usize = 200;

/// What was heard.
#[derive(Debug)]
pub(crate) enum News {
    Live(Result<Live, TerminalSafe>),
    Clients(Result<Clients, TerminalSafe>),
    Fleet(Result<Fleet, TerminalSafe>),
}

/// Who comes most, and who is denied most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    pub(crate) traffic: Ranking,
    pub(crate) denials: Ranking,
}

/// The admin listener of a server.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    server: HttpClient,
    token: Option<BearerToken>,
}

impl Feed {
    pub(crate) fn of(server: HttpClient, token: Option<BearerToken>) -> Self {
        Self { server, token }
    }

    pub(crate) fn address(&self) -> &str {
        self.server.address()
    }

    /// Asks every second, each kind of news on its own: one that takes long keeps no other waiting. Ends when
    /// nobody listens.
    pub(crate) fn follow(&self, clock: &Clock, news: &mpsc::Sender<News>) {
        let (feed, told, time) = (self.clone(), news.clone(), clock.clone());
        tokio::spawn(async move {
            let mut since = 0;
            loop {
                let live = feed.live(since).await;
                let last = live.as_ref().ok().and_then(|live| live.seconds.last());
                since = last.map_or(since, |second| second.at);
                if told.send(News::Live(live)).await.is_err() {
                    return;
                }
                time.sleep(EVERY).await;
            }
        });
        let (feed, told, time) = (self.clone(), news.clone(), clock.clone());
        tokio::spawn(async move {
            while told.send(News::Clients(feed.clients().await)).await.is_ok() {
                time.sleep(EVERY).await;
            }
        });
        let (feed, told, time) = (self.clone(), news.clone(), clock.clone());
        tokio::spawn(async move {
            while told.send(News::Fleet(feed.fleet().await)).await.is_ok() {
                time.sleep(EVERY).await;
            }
        });
    }

    /// Asks for everything once.
    pub(crate) async fn everything(&self) -> [News; 3] {
        let (live, clients, fleet) = tokio::join!(self.live(0), self.clients(), self.fleet());
        [News::Live(live), News::Clients(clients), News::Fleet(fleet)]
    }

    async fn live(&self, since: u64) -> Result<Live, TerminalSafe> {
        self.read(&format!("/v1/live?since={since}")).await
    }

    async fn clients(&self) -> Result<Clients, TerminalSafe> {
        let traffic = self.read(&format!("/v1/top?by=traffic&limit={CLIENTS}")).await?;
        let denials = self.read(&format!("/v1/top?by=denials&limit={CLIENTS}")).await?;
        Ok(Clients { traffic, denials })
    }

    async fn fleet(&self) -> Result<Fleet, TerminalSafe> {
        self.read("/v1/fleet").await
    }

    /// What is at a path, or what is wrong, as text for a person.
    async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T, TerminalSafe> {
        let asking = self.server.send_json(Method::GET, path, String::new(), self.token.as_ref());
        let answer = match tokio::time::timeout(PATIENCE, asking).await {
            Ok(answer) => answer.map_err(|error| TerminalSafe::from(error.to_string()))?,
            Err(_) => {
                let address = self.server.address();
                return Err(format!("{address} did not answer within {PATIENCE:?}").into());
            }
        };
        if answer.status != 200 {
            return Err(refusal(answer.status, &answer.body).into());
        }
        serde_json::from_str(&answer.body)
            .map_err(|error| format!("the answer can't be read: {error}").into())
    }
}

/// What it means that the listener did not answer what it was asked.
fn refusal(status: u16, body: &str) -> String {
    let ProblemBody::<String> { detail, .. } = serde_json::from_str(body).unwrap_or_default();
    match status {
        401 => format!("{detail}; TIDEGATE_TOKEN sets the token that is sent"),
        404 => format!("{detail}; is that the admin listener, port 9090 if not told otherwise?"),
        _ => format!("{detail} (status {status})"),
    }
}
