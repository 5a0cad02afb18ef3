//! Rules on the web: fetched again and again, and in full only if they are others.

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
use crate::rules::source::Retry;
use crate::rules::{RulesDocument, RulesUrl};

/// Says which version a document is, if its server counts them: a Tidegate does.
pub const NUMBER: &str = "tidegate-rules-version";

/// Asks for the rules once.
pub(crate) async fn first(manager: &Arc<RulesManager>, from: &RulesUrl) -> Result<(), String> {
    Following::new(from)?.look(manager).await
}

pub(crate) async fn follow(
    manager: Arc<RulesManager>,
    from: RulesUrl,
    pace: Duration,
    mut reloads: ReloadSignal,
) {
    let mut following = match Following::new(&from) {
        Ok(following) => following,
        Err(error) => {
            manager.away(&error);
            return;
        }
    };
    let mut retry = Retry::new();
    let mut is_reload = false;
    loop {
        let before = manager.version().number;
        let wait = retry.after(following.look(&manager).await, &manager, pace);
        if is_reload {
            manager.log_reload(before);
        }
        is_reload = timeout(wait, reloads.next()).await.is_ok();
    }
}

/// What is known of a document on the web.
struct Following {
    server: HttpClient,
    from: RulesUrl,
    tag: Option<HeaderValue>,
}

impl Following {
    fn new(from: &RulesUrl) -> Result<Self, String> {
        Ok(Self { server: HttpClient::new(&from.uri, &from.tls)?, from: from.clone(), tag: None })
    }

    /// Takes up what is there, if it is new.
    async fn look(&mut self, manager: &Arc<RulesManager>) -> Result<(), String> {
        let path = self.from.uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path.parse::<Uri>().map_err(|error| error.to_string())?)
            .header(HOST, self.server.address())
            .header(ACCEPT, "application/yaml, */*;q=0.5");
        if let Some(tag) = &self.tag {
            request = request.header(IF_NONE_MATCH, tag);
        }
        if let Some(token) = &self.from.token {
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.reveal()));
        }
        let request = request.body(Full::default()).map_err(|error| error.to_string())?;
        let answer = self.server.exchange(request, RuleSet::MAX_DOCUMENT_BYTES).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 => {}
            304 => {
                manager.unchanged();
                return Ok(());
            }
            status => return Err(format!("status 200 or 304 is wanted, found {status}")),
        }
        let (head, body) = answer.into_parts();
        let text = std::str::from_utf8(&body).map_err(|_| "text in UTF-8 is wanted".to_owned())?;
        let number = head.headers.get(NUMBER).and_then(|number| number.to_str().ok()?.parse().ok());
        let document = RulesDocument { number, ..RulesDocument::new(manager.source(), text) };
        // What is wrong with it was told, and is told until there is another.
        let _ = manager.take(document).await;
        self.tag = head.headers.get(ETAG).cloned();
        manager.update_readiness(true);
        Ok(())
    }
}
