//! Rules at a URL, which are requested at intervals and transferred only after a change (`ETag`).

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::header::{ACCEPT, AUTHORIZATION, ETAG, HOST, HeaderValue, IF_NONE_MATCH};
use hyper::{Request, Uri};
use tidegate_net::client::HttpClient;
use tidegate_rules::RuleSet;
use tokio::time::timeout;

use crate::reload::ReloadSignal;
use crate::rules::manager::RulesManager;
use crate::rules::source::RetryBackoff;
use crate::rules::{RulesDocument, RulesUrl};

/// The response header with the version number of a document. Tidegate sends it; other servers may.
pub const RULES_VERSION_HEADER: &str = "tidegate-rules-version";

/// Requests the rules once, for the start of the server.
pub(crate) async fn read_once(manager: &Arc<RulesManager>, url: &RulesUrl) -> Result<(), String> {
    UrlFollower::new(url)?.fetch(manager).await
}

/// Requests the rules on every reload, and after `interval` without one.
pub(crate) async fn follow(
    manager: Arc<RulesManager>,
    url: RulesUrl,
    interval: Duration,
    mut reloads: ReloadSignal,
) {
    let mut follower = match UrlFollower::new(&url) {
        Ok(follower) => follower,
        Err(error) => {
            manager.mark_unreachable(&error);
            return;
        }
    };
    let mut backoff = RetryBackoff::new();
    let mut is_reload = false;
    loop {
        let before = manager.version().number;
        let delay = backoff.next_delay(follower.fetch(&manager).await, &manager, interval);
        if is_reload {
            manager.log_reload(before);
        }
        is_reload = timeout(delay, reloads.next()).await.is_ok();
    }
}

/// A client of one URL, with the entity tag of the last response.
struct UrlFollower {
    client: HttpClient,
    url: RulesUrl,
    entity_tag: Option<HeaderValue>,
}

impl UrlFollower {
    fn new(url: &RulesUrl) -> Result<Self, String> {
        let client = HttpClient::new(&url.uri, &url.tls)?;
        Ok(Self { client, url: url.clone(), entity_tag: None })
    }

    /// Requests the document, and offers it to the manager if it has changed.
    async fn fetch(&mut self, manager: &Arc<RulesManager>) -> Result<(), String> {
        let path = self.url.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path.parse::<Uri>().map_err(|error| error.to_string())?)
            .header(HOST, self.client.address())
            .header(ACCEPT, "application/yaml, */*;q=0.5");
        if let Some(tag) = &self.entity_tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        if let Some(token) = &self.url.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let request = request.body(Full::default()).map_err(|error| error.to_string())?;
        let response = self.client.exchange(request, RuleSet::MAX_DOCUMENT_BYTES).await;
        let response = response.map_err(|error| error.to_string())?;
        match response.status().as_u16() {
            200 => {}
            304 => {
                manager.mark_unchanged();
                return Ok(());
            }
            status => return Err(format!("status 200 or 304 is wanted, found {status}")),
        }
        let (head, body) = response.into_parts();
        let text = std::str::from_utf8(&body).map_err(|_| "text in UTF-8 is wanted".to_owned())?;
        let number = head.headers.get(RULES_VERSION_HEADER);
        let number = number.and_then(|number| number.to_str().ok()?.parse().ok());
        let document = RulesDocument { number, ..RulesDocument::new(manager.source(), text) };
        // The manager logs an invalid document, and reports the error until the document changes.
        let _ = manager.offer(document).await;
        self.entity_tag = head.headers.get(ETAG).cloned();
        manager.update_readiness(true);
        Ok(())
    }
}
