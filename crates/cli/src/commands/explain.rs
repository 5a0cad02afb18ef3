//! `tidegate explain`: which rules a request meets, which buckets, which limits, and why.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Uri};
use tidegate_api::{Attributes, CheckRequest, DecisionBody, ProblemBody};
use tidegate_core::{Request, Timestamp};
use tidegate_limiter::Clock;
use tidegate_net::client::HttpClient;
use tidegate_rules::{
    AppliedLimit, AttributeChain, CanonicalRule, LimitOrigin, Mode, Rule, RuleSet,
};
use tidegate_service::rules::{NativeRules, ParsedRules, RuleSource};

use crate::commands::check::post_check;
use crate::commands::validate::{outage, penalty, titled};
use crate::commands::{Ending, Failure, Output};

/// Shows what the rules make of a request, given as for curl.
///
/// For each rule: whether it applies or the first condition that does not hold, the key that is
/// counted, the limit and where it comes from, and what is left of it. Nothing is spent.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// The URL of the request
    #[arg(value_name = "URL")]
    url: String,

    /// Its method
    #[arg(short = 'X', long = "request", value_name = "METHOD", default_value = "GET")]
    method: String,

    /// A header of it
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// An attribute that the request would get elsewhere, or another value for one that it has
    #[arg(short = 'a', long = "attribute", value_name = "NAME=VALUE")]
    attributes: Vec<String>,

    /// The rules; without them, the sample rules of serve
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// What the request costs
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// A running server to ask what is left; it must have rules of the same names
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client)]
    server: Option<HttpClient>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain http://localhost/v1/orders
  tidegate explain --rules rules.yaml -X POST -H 'X-API-Key: k1' http://api.example/v1/orders
  tidegate explain --rules rules.yaml -a ip=192.0.2.7 -a claim.plan=pro /v1/orders
  tidegate explain -H 'X-API-Key: alice' --server http://127.0.0.1:8080 /v1/orders

The attributes of a request: method, host, path, ip (127.0.0.1 unless -a says so), api_key (the
X-API-Key header), query.NAME, header.NAME and cookie.NAME.";

/// The address that a request comes from unless it says otherwise.
const SOMEBODY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Explain {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        if self.rules.is_none() {
            output.note("no --rules, so these are the sample rules of serve");
        }
        let source = self.rules.clone().map_or(RuleSource::Sample, RuleSource::File);
        let rules = ParsedRules::parse(&NativeRules::read(&source)?, None)?.set;
        let attributes = self.seen()?;
        let mut request = Request::new().cost(self.cost);
        for (name, value) in &attributes {
            if request.get(name).is_none() {
                let refused = request.insert(name.as_str(), value.as_str());
                refused.map_err(Failure::failed)?;
            }
        }
        output.data(format_args!("{} {}", self.method, self.url));
        let widest = request.attributes().map(|(name, _)| name.len()).max().unwrap_or_default();
        for (name, value) in request.attributes() {
            output.data(format_args!("  {name:widest$}  {value}"));
        }
        let now = Clock::system().now();
        for rule in rules.rules() {
            output.data("");
            self.explain(rule, &request, now, output)?;
        }
        output.data(format_args!("\n{}", summary(&rules, &request)));
        Ok(Ending::Fine)
    }

    /// The attributes of the request, those that were given by name first.
    fn seen(&self) -> Result<Vec<(String, String)>, Failure> {
        let mut attributes = super::named_values(&self.attributes)?;
        let mut headers = HeaderMap::new();
        for text in &self.headers {
            let header = text.split_once(':').and_then(|(name, value)| {
                let name: HeaderName = name.trim().parse().ok()?;
                Some((name, HeaderValue::from_str(value.trim()).ok()?))
            });
            let (name, value) = header.ok_or_else(|| {
                Failure::failed(format_args!("-H must read like 'Name: value', found {text:?}"))
            })?;
            headers.append(name, value);
        }
        let method: Method = self.method.parse().map_err(|_| {
            Failure::failed(format_args!("-X must be a method, found {:?}", self.method))
        })?;
        // As curl does: without a scheme, it starts with the host.
        let guessed = !self.url.contains("://") && !self.url.starts_with('/');
        let url = if guessed { format!("http://{}", self.url) } else { self.url.clone() };
        let uri: Uri = url.parse().map_err(|_| {
            let url = &self.url;
            Failure::failed(format_args!("a URL or a path is wanted, found {url:?}"))
        })?;
        // As a server gets it: the host in a header, the rest on the request line.
        if let (Some(authority), false) = (uri.authority(), headers.contains_key(HOST)) {
            let host = HeaderValue::from_str(authority.as_str());
            headers.extend(host.ok().map(|host| (HOST, host)));
        }
        let mut request = hyper::Request::new(());
        *request.uri_mut() = uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        request.extensions_mut().insert(SOMEBODY);
        attributes.extend(tidegate_limiter::tower::attributes(&request.into_parts().0));
        Ok(attributes)
    }

    fn explain(
        &self,
        rule: &Rule,
        request: &Request<'_>,
        now: Timestamp,
        output: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let form = rule.canonical();
        let CanonicalRule {
            name,
            conditions: _,
            per,
            limit: _,
            tiers: _,
            overrides: _,
            mode,
            accuracy,
            on_store_failure: _,
            rollout,
            penalty: _,
        } = form;
        if let Err(mismatch) = rule.matches(request) {
            output.data(format_args!("{name} does not apply"));
            output.data(format_args!("  because  {mismatch}"));
            return Ok(());
        }
        let shadow = match mode {
            Mode::Shadow => ", in shadow: it counts and never denies",
            Mode::Enforce | Mode::Off => "",
        };
        let share = rollout.map(|share| format!(", the client is among its {share}"));
        let share = share.unwrap_or_default();
        output.data(format_args!("{name} applies{share}{shadow}"));
        output.data(format_args!("  key      {}", key(per, request)));
        let applied = rule.limit_for(request, now);
        let source = why(&form, &applied, request);
        output.data(format_args!("  limit    {}, {source}", applied.limit));
        output.data(format_args!("  bound    {}", applied.limit.bound()));
        if let Some(bound) = accuracy.bound(applied.limit) {
            output.data(format_args!("  fleet    {bound}"));
        }
        if let Some(outage) = outage(&form) {
            output.data(format_args!("  outage   {outage}"));
        }
        if let Some(penalty) = penalty(&form, applied.limit) {
            output.data(format_args!("  penalty  {penalty}"));
        }
        let (left, now) = match &self.server {
            Some(server) => self.left(server, rule, request)?,
            None => {
                let all = applied.limit.capacity();
                (format!("all {all}, for a client not seen yet"), Some(all))
            }
        };
        output.data(format_args!("  left     {left}"));
        if self.cost != 1 {
            let cost = self.cost;
            let fits = match now {
                _ if cost > applied.limit.capacity() => "more than is ever admitted at once",
                Some(now) if cost > now => "does not fit now",
                Some(_) if cost == 0 => "spends nothing",
                Some(_) => "fits",
                None => "may fit",
            };
            output.data(format_args!("  cost     {cost}, {fits}"));
        }
        Ok(())
    }

    /// What a running server says is left, in words and as a number.
    fn left(
        &self,
        server: &HttpClient,
        rule: &Rule,
        request: &Request<'_>,
    ) -> Result<(String, Option<u64>), Failure> {
        let attributes =
            request.attributes().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let check: CheckRequest = CheckRequest {
            rule: Some(rule.name().to_owned()),
            attributes: Some(Attributes(attributes.collect())),
            cost: Some(0),
            client: None,
        };
        let answer = post_check(server, &check)?;
        let decision: DecisionBody = serde_json::from_str(&answer.body).unwrap_or_default();
        Ok(match (answer.status, decision.remaining, decision.limit) {
            (200, Some(left), Some(limit)) => (format!("{left} of {limit}"), Some(left)),
            (429, Some(left), Some(limit)) => match decision.retry_after.flatten() {
                Some(wait) => (format!("{left} of {limit}, more in {wait} s"), Some(left)),
                None => (format!("{left} of {limit}"), Some(left)),
            },
            (429, ..) if decision.blocked => {
                let wait = decision.retry_after.flatten().unwrap_or_default();
                (format!("nothing, the client is blocked for {wait} s"), Some(0))
            }
            (200, ..) => ("unknown, the server does not enforce the rule".to_owned(), None),
            (404, ..) => ("unknown, the server has no rule of this name".to_owned(), None),
            (status, ..) => {
                let problem: ProblemBody = serde_json::from_str(&answer.body).unwrap_or_default();
                let why = problem.detail;
                (format!("unknown, the server answered {status}: {why}"), None)
            }
        })
    }
}

/// Which attributes name the bucket: `api_key "k1", path "/v1/orders"`.
fn key(per: &[AttributeChain], request: &Request<'_>) -> String {
    let part = |chain: &AttributeChain| match chain.pick(request) {
        Some(picked) if chain.attributes().len() == 1 => {
            format!("{} {:?}", picked.attribute, picked.value)
        }
        Some(picked) => format!("{} {:?}, of {chain}", picked.attribute, picked.value),
        None => format!("{chain} is absent, one bucket for all such requests"),
    };
    match per {
        [] => "none, one bucket for all".to_owned(),
        chains => chains.iter().map(part).collect::<Vec<_>>().join("; "),
    }
}

/// Where the limit comes from.
fn why(rule: &CanonicalRule<'_>, applied: &AppliedLimit<'_>, request: &Request<'_>) -> String {
    match (applied.origin, rule.tiers) {
        (LimitOrigin::Rule, None) => "the rule's own".to_owned(),
        (LimitOrigin::Rule, Some(tiers)) => {
            let by = tiers.by();
            match request.get(by).filter(|value| !value.is_empty()) {
                Some(value) => format!("the rule's own, {by} {value:?} has no tier"),
                None => format!("the rule's own, {by} is absent"),
            }
        }
        (LimitOrigin::Tier(tier), tiers) => {
            format!("tier {tier:?} of {}", tiers.map_or("", |tiers| tiers.by()))
        }
        (LimitOrigin::Override(index), _) => match rule.overrides.get(index) {
            Some(item) => format!("override {}", titled(index, item)),
            None => format!("override {}", index + 1),
        },
    }
}

fn summary(rules: &RuleSet, request: &Request<'_>) -> String {
    match (rules.matching(request).len(), rules.rules().len()) {
        (0, _) => "No rule applies: allowed without a limit.".to_owned(),
        (1, 1) => "The rule applies.".to_owned(),
        (1, all) => format!("1 of {all} rules applies."),
        (some, all) => {
            format!("{some} of {all} rules apply, and each that enforces must admit it.")
        }
    }
}
