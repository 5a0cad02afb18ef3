//! `tidegate explain`: the rules that apply to a request, with their buckets and limits.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{HeaderMap, Method, Uri};
use tidegate_api::{Attributes, CheckRequest, DecisionBody, ProblemBody};
use tidegate_core::{CanonicalError, EncodedSlashes, Request, Timestamp, unescape};
use tidegate_limiter::Clock;
use tidegate_limiter::tower::canonicalize;
use tidegate_net::client::HttpClient;
use tidegate_rules::{
    AppliedLimit, AttributeChain, CallerRefunds, CanonicalRule, LimitOrigin, Mode, Override, Rule,
    RuleSet, WarningContext,
};
use tidegate_service::rules::{NativeRules, ParsedRules, RuleSource};

use crate::commands::check::post_check;
use crate::commands::validate::{outage, override_title, penalty};
use crate::commands::{CommandError, CommandOutput, ExitStatus};

/// Explains the decision of each rule for a request. Takes the arguments of curl.
///
/// Prints for each rule whether it applies, or the first condition that does not hold. For a rule that applies:
/// its key, its limit with the origin, and the remaining amount. Nothing is charged.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainCommand {
    /// URL or path of the request
    #[arg(value_name = "URL")]
    url: String,

    /// Method of the request
    #[arg(short = 'X', long = "request", value_name = "METHOD", default_value = "GET")]
    method: String,

    /// Header of the request
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<OsString>,

    /// An additional attribute, or another value for an attribute of the request
    #[arg(short = 'a', long = "attribute", value_name = "NAME=VALUE")]
    attributes: Vec<String>,

    /// File of rules [default: the sample rules of serve]
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,

    /// Cost of the request
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// URL of a running server that reports the remaining amounts. Its rules must have the same names
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client)]
    server: Option<HttpClient>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate explain http://localhost/v1/orders
  tidegate explain --rules rules.yaml -X POST -H 'X-API-Key: k1' http://api.example/v1/orders
  tidegate explain --rules rules.yaml -a ip=192.0.2.7 -a claim.plan=pro /v1/orders
  tidegate explain -H 'X-API-Key: alice' --server http://127.0.0.1:8080 /v1/orders

The attributes of a request: method, host, path, ip (127.0.0.1 unless set by -a), api_key (the
X-API-Key header), query.NAME, header.NAME and cookie.NAME.";

/// A request in its canonical form.
struct ExplainedRequest {
    /// The attributes. Those of `-a` come first and take precedence.
    attributes: Vec<(String, String)>,
    /// The canonical path, if the path of the arguments differs.
    rewritten: Option<String>,
    /// Set if only routes that keep encoded slashes accept the path.
    has_encoded_slash: bool,
}

/// Address of the client, unless `-a ip=` sets another.
const DEFAULT_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl ExplainCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        if self.rules.is_none() {
            output.note("no --rules: the sample rules of serve are explained");
        }
        let source = self.rules.clone().map_or(RuleSource::Sample, RuleSource::File);
        let native = NativeRules::read(&source)?;
        let context = WarningContext::default();
        let rules = ParsedRules::parse(&native, None, &context, Timestamp::EPOCH)?.set;
        let ExplainedRequest { attributes, rewritten, has_encoded_slash } =
            self.explained_request()?;
        if has_encoded_slash {
            output.note(
                "the path has %2F or %5C: only a gateway route with encoded_slashes: keep accepts it",
            );
        }
        let mut request = Request::new().cost(self.cost);
        for (name, value) in &attributes {
            if request.get(name).is_none() {
                let inserted = request.insert(name.as_str(), value.as_str());
                inserted.map_err(CommandError::failed)?;
            }
        }
        output.data(format_args!("{} {}", self.method, self.url));
        if let Some(path) = rewritten {
            output.data(format_args!("  canonical path: {path}"));
        }
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
        Ok(ExitStatus::Success)
    }

    /// Returns the request of the arguments in its canonical form, as listeners check it.
    fn explained_request(&self) -> Result<ExplainedRequest, CommandError> {
        let mut attributes = super::parse_attributes(&self.attributes)?;
        let mut headers = HeaderMap::new();
        for text in &self.headers {
            // A header value is any bytes, also those that are not UTF-8.
            let mut parts = text.as_encoded_bytes().splitn(2, |byte| *byte == b':');
            let header = parts.next().zip(parts.next()).and_then(|(name, value)| {
                let name = HeaderName::from_bytes(name.trim_ascii()).ok()?;
                Some((name, HeaderValue::from_bytes(value.trim_ascii()).ok()?))
            });
            let (name, value) = header.ok_or_else(|| {
                CommandError::failed(format_args!(
                    "-H must read like 'Name: value', found {text:?}"
                ))
            })?;
            headers.append(name, value);
        }
        let method: Method = self.method.parse().map_err(|_| {
            CommandError::failed(format_args!("-X must be a method, found {:?}", self.method))
        })?;
        // Like curl: a URL without a scheme starts with the host.
        let lacks_scheme = !self.url.contains("://") && !self.url.starts_with('/');
        let url = if lacks_scheme { format!("http://{}", self.url) } else { self.url.clone() };
        let uri: Uri = url.parse().map_err(|_| {
            let url = &self.url;
            CommandError::failed(format_args!("a URL or a path is wanted, found {url:?}"))
        })?;
        // A server receives the host in a header, and path and query on the request line.
        if let (Some(authority), false) = (uri.authority(), headers.contains_key(HOST)) {
            let host = HeaderValue::from_str(authority.as_str());
            headers.extend(host.ok().map(|host| (HOST, host)));
        }
        let mut request = hyper::Request::new(());
        *request.uri_mut() = uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        request.extensions_mut().insert(DEFAULT_PEER);
        let mut head = request.into_parts().0;
        let mut canonical = canonicalize(&mut head, EncodedSlashes::Reject);
        let has_encoded_slash = canonical == Err(CanonicalError::EncodedSlash);
        if has_encoded_slash {
            canonical = canonicalize(&mut head, EncodedSlashes::Keep);
        }
        let original = canonical.map_err(|error| {
            CommandError::negative(format_args!(
                "the request has no canonical form, so no listener accepts it: {error}"
            ))
        })?;
        let rewritten = original.map(|_| head.uri.path().to_owned());
        attributes.extend(tidegate_limiter::tower::attributes(&head));
        Ok(ExplainedRequest { attributes, rewritten, has_encoded_slash })
    }

    /// Prints the explanation of one rule.
    fn explain(
        &self,
        rule: &Rule,
        request: &Request<'_>,
        now: Timestamp,
        output: &mut CommandOutput<'_>,
    ) -> Result<(), CommandError> {
        let form = rule.canonical();
        // Lists every field, so that a new one can't be left out by accident.
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
            caller_refunds,
        } = form;
        if let Err(mismatch) = rule.matches(request) {
            output.data(format_args!("{name} does not apply"));
            output.data(format_args!("  because  {mismatch}"));
            return Ok(());
        }
        let shadow = match mode {
            Mode::Shadow => ", in shadow mode: it counts and never denies",
            Mode::Enforce | Mode::Off => "",
        };
        let rollout = rollout.map(|share| format!(", the client is in its rollout of {share}"));
        let rollout = rollout.unwrap_or_default();
        output.data(format_args!("{name} applies{rollout}{shadow}"));
        output.data(format_args!("  key      {}", describe_key(per, request)));
        let applied = rule.limit_for(request, now);
        let origin = limit_origin(&form, &applied, request);
        let Some(limit) = applied.limit else {
            output.data(format_args!("  limit    {}, {origin}", Override::EXEMPT_WORD));
            return Ok(());
        };
        output.data(format_args!("  limit    {limit}, {origin}"));
        output.data(format_args!("  bound    {}", limit.bound()));
        if let Some(bound) = accuracy.bound(limit) {
            output.data(format_args!("  fleet    {bound}"));
        }
        if let Some(outage) = outage(&form) {
            output.data(format_args!("  outage   {outage}"));
        }
        if let Some(penalty) = penalty(&form, limit) {
            output.data(format_args!("  penalty  {penalty}"));
        }
        if caller_refunds == CallerRefunds::Allow {
            output.data(format_args!("  refunds  callers may send negative hits"));
        }
        let (left, remaining) = match &self.server {
            Some(server) => self.fetch_remaining(server, rule, request)?,
            None => {
                let all = limit.capacity();
                (format!("all {all}, for a new client"), Some(all))
            }
        };
        output.data(format_args!("  left     {left}"));
        if self.cost != 1 {
            let cost = self.cost;
            let fits = match remaining {
                _ if cost > limit.capacity() => "more than the limit ever admits at once",
                Some(remaining) if cost > remaining => "does not fit now",
                Some(_) if cost == 0 => "charges nothing",
                Some(_) => "fits",
                None => "may fit",
            };
            output.data(format_args!("  cost     {cost}, {fits}"));
        }
        Ok(())
    }

    /// Reads the remaining amount from a running server, with a check of cost 0. Returns a text and, if it is known, the
    /// number.
    fn fetch_remaining(
        &self,
        server: &HttpClient,
        rule: &Rule,
        request: &Request<'_>,
    ) -> Result<(String, Option<u64>), CommandError> {
        // The server escapes the values of a check, so it gets them unescaped.
        let unescaped = request
            .attributes()
            .map(|(name, value)| Some((name.to_owned(), String::from_utf8(unescape(value)).ok()?)));
        let Some(attributes) = unescaped.collect::<Option<Vec<_>>>() else {
            return Ok((
                "unknown, a value is not UTF-8 and can't be sent as JSON".to_owned(),
                None,
            ));
        };
        let check: CheckRequest = CheckRequest {
            rule: Some(rule.name().to_owned()),
            attributes: Some(Attributes(attributes)),
            cost: Some(0),
            client: None,
        };
        let reply = post_check(server, &check)?;
        let decision: DecisionBody = serde_json::from_str(&reply.body).unwrap_or_default();
        Ok(match (reply.status, decision.remaining, decision.limit) {
            (200, Some(left), Some(limit)) => (format!("{left} of {limit}"), Some(left)),
            (429, Some(left), Some(limit)) => match decision.retry_after.flatten() {
                Some(wait) => (format!("{left} of {limit}, more in {wait} s"), Some(left)),
                None => (format!("{left} of {limit}"), Some(left)),
            },
            (429, ..) if decision.blocked => {
                let wait = decision.retry_after.flatten().unwrap_or_default();
                (format!("nothing, the client is blocked for {wait} s"), Some(0))
            }
            (200, ..) if decision.allow_listed => {
                ("any, the client is on the allow list".to_owned(), None)
            }
            (200, ..) => ("unknown, the rule does not apply on the server".to_owned(), None),
            (404, ..) => ("unknown, the server has no rule of this name".to_owned(), None),
            (status, ..) => {
                let problem: ProblemBody = serde_json::from_str(&reply.body).unwrap_or_default();
                let detail = problem.detail;
                (format!("unknown, the server returned {status}: {detail}"), None)
            }
        })
    }
}

/// Returns the attributes that select the bucket: `api_key "k1"; path "/v1/orders"`.
fn describe_key(per: &[AttributeChain], request: &Request<'_>) -> String {
    let part = |chain: &AttributeChain| match chain.pick(request) {
        Some(picked) if chain.attributes().len() == 1 => {
            format!("{} {:?}", picked.attribute, picked.value)
        }
        Some(picked) => format!("{} {:?}, of {chain}", picked.attribute, picked.value),
        None => format!("{chain} is absent, all such requests share one bucket"),
    };
    match per {
        [] => "none, all requests share one bucket".to_owned(),
        chains => chains.iter().map(part).collect::<Vec<_>>().join("; "),
    }
}

/// Describes the origin of the limit: the rule, a tier or an override.
fn limit_origin(
    rule: &CanonicalRule<'_>,
    applied: &AppliedLimit<'_>,
    request: &Request<'_>,
) -> String {
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
            Some(item) => format!("override {}", override_title(index, item)),
            None => format!("override {}", index + 1),
        },
    }
}

/// Returns a sentence with the number of rules that apply.
fn summary(rules: &RuleSet, request: &Request<'_>) -> String {
    match (rules.matching(request).len(), rules.rules().len()) {
        (0, _) => "No rule applies: allowed without a limit.".to_owned(),
        (1, 1) => "The rule applies.".to_owned(),
        (1, all) => format!("1 of {all} rules applies."),
        (some, all) => {
            format!("{some} of {all} rules apply. Every enforced rule must admit the request.")
        }
    }
}
