//! The narrow waist: the one place where a call becomes a reply.
//!
//! Every transport decodes its bytes into a [`Call`], hands it over, and encodes the [`Reply`] or
//! [`Fault`] it gets. What a call means, what is logged about it, and which status goes with which
//! ending is settled here once for all of them.

mod books;
pub(crate) mod rls;
mod throttle;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tidegate::rule::{Chain, RuleError};
use tidegate::{Decision, HeaderStyle, Limiter, Request, Rule, RuleSet, Timestamp};
use tidegate_core::Header;

use self::books::{Answered, Books};
use self::rls::Rls;
use crate::metrics::Format;
use crate::rules::envoy::EnvoyRules;
use crate::store::AnyStore;

/// What is asked.
#[derive(Debug, Default)]
pub(crate) struct Call<'a> {
    /// The rule to check alone, whatever its `match` says; without one, every rule that matches.
    pub(crate) rule: Option<Cow<'a, str>>,
    /// Who comes, in the terms of that rule.
    pub(crate) client: Option<Client<'a>>,
    /// Everything else that is known of the request, and what it costs.
    pub(crate) request: Request<'a>,
}

/// Who comes, for a call that names a rule.
#[derive(Debug)]
pub(crate) enum Client<'a> {
    /// The value of the first alternative of the rule's only `per` entry.
    Value(Cow<'a, str>),
    /// Attributes that the rule counts by, one for each `per` entry.
    Parts(Vec<(Cow<'a, str>, Cow<'a, str>)>),
}

/// Which door a call came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    Http,
    Grpc,
    Resp,
}

impl Via {
    pub(crate) const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Resp];

    /// What the door is called.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
        }
    }
}

/// Decides calls. Shared by every transport.
#[derive(Debug)]
pub(crate) struct Service {
    limiter: Limiter<AnyStore>,
    /// Finds the limits of envoyproxy/ratelimit files, if there are any.
    envoy: Option<Arc<EnvoyRules>>,
    style: HeaderStyle,
    rls: Rls,
    books: Books,
    /// Whether the store has ever been there.
    ready: AtomicBool,
    /// Whether no more calls should be sent here.
    draining: AtomicBool,
}

impl Service {
    pub(crate) fn new(limiter: Limiter<AnyStore>, style: HeaderStyle) -> Self {
        let (ready, draining) = (AtomicBool::new(false), AtomicBool::new(false));
        let (books, rls) = (Books::new(&limiter), Rls::default());
        let service = Self { limiter, envoy: None, style, rls, books, ready, draining };
        // What was there at the start counts, also if nobody asks before it goes away.
        let _ = service.unready();
        service
    }

    /// The same service, with what calls of Envoy need.
    pub(crate) fn with_rls(mut self, rls: Rls) -> Self {
        self.rls = rls;
        self
    }

    /// The same service with the limits of envoyproxy/ratelimit files, whose rules the limiter has.
    pub(crate) fn with_envoy(self, envoy: Option<Arc<EnvoyRules>>) -> Self {
        Self { envoy, ..self }
    }

    /// Why calls should not be sent to this node; nothing once it is ready.
    ///
    /// Ready once means ready for good, whatever becomes of the store. It goes away for all nodes of
    /// a fleet at once, and a load balancer that then took them all out would turn every rule that
    /// allows or goes on locally into an outage. Without the store, rules answer as they say.
    pub(crate) fn unready(&self) -> Option<String> {
        if self.draining.load(Ordering::Relaxed) {
            return Some("it is about to stop".to_owned());
        }
        if self.ready.load(Ordering::Relaxed) {
            return None;
        }
        let missing = self.limiter.store().waits_for();
        if missing.is_none() {
            self.ready.store(true, Ordering::Relaxed);
        }
        missing.map(|missing| format!("waiting for {missing}"))
    }

    /// Says from now on that calls should go elsewhere. Those that come are still answered.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether a decision is there as soon as it is asked for, without waiting for another process.
    pub(crate) fn decides_at_once(&self) -> bool {
        matches!(**self.limiter.store(), AnyStore::Memory(_))
    }

    /// Answers calls that have nothing to do with each other, each as [`check`](Self::check) does.
    ///
    /// They are asked in their order and at the same time, so that a store that is far away is waited
    /// for once.
    pub(crate) async fn check_each<'a>(
        &'a self,
        via: Via,
        calls: Vec<Result<Call<'a>, Fault>>,
    ) -> Vec<Result<Reply, Fault>> {
        let decide = async |call: Result<Call<'a>, Fault>| match call {
            Ok(call) => self.check(via, call).await,
            Err(fault) => Err(self.refused(via, fault)),
        };
        join_all(calls.into_iter().map(decide)).await
    }

    /// Answers one call, and charges it if it is admitted.
    ///
    /// # Errors
    /// The call can't be understood, or names a rule that is not there; nothing was charged.
    pub(crate) async fn check<'a>(&'a self, via: Via, call: Call<'a>) -> Result<Reply, Fault> {
        let began = self.limiter.clock().now();
        let (request, decision) = match &call.rule {
            Some(name) => {
                let rule = self.limiter.rules().rule(name).filter(|rule| is_written(rule));
                let Some(rule) = rule else {
                    return Err(self.refused(via, unknown_rule(name, self.limiter.rules())));
                };
                let request = addressed(rule, call.client, call.request);
                let request = request.map_err(|fault| self.refused(via, fault))?;
                let decision = self.limiter.check_rule(rule.name(), &request).await;
                let decision = decision.map_err(|_| unknown_rule(name, self.limiter.rules()))?;
                (request, decision)
            }
            None if call.client.is_some() => {
                let wanted = "the rule that client belongs to";
                return Err(self.refused(via, Fault::invalid("rule", "nothing", wanted)));
            }
            None => {
                let decision = self.limiter.check(&call.request).await;
                (call.request, decision)
            }
        };
        Ok(self.reply(via, began, &request, decision))
    }

    /// The reply to a call that began at `began`, which is entered into the books.
    fn reply(
        &self,
        via: Via,
        began: Timestamp,
        request: &Request<'_>,
        decision: Decision,
    ) -> Reply {
        let at = self.limiter.clock().now();
        let answered = Answered { via, began, at };
        self.books.enter(&self.limiter, answered, [(request, &decision)]);
        let reply = Reply { decision, at, style: self.style };
        reply.log();
        reply
    }

    /// Counts a call that can't be decided, or not even be read.
    pub(crate) fn refused(&self, via: Via, fault: Fault) -> Fault {
        self.books.metrics.refused(via, fault.ending);
        fault
    }

    /// What decides; for the admin door.
    pub(crate) fn limiter(&self) -> &Limiter<AnyStore> {
        &self.limiter
    }

    /// The limits of envoyproxy/ratelimit files; for the admin door.
    pub(crate) fn envoy(&self) -> Option<&EnvoyRules> {
        self.envoy.as_deref()
    }

    /// What was answered so far; for the admin door.
    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    /// The metrics of this moment; for the admin door.
    pub(crate) fn metrics(&self, format: Format) -> String {
        let ready = self.unready().is_none();
        self.books.metrics.write(self.books.sources(&self.limiter, ready), format)
    }
}

/// The request as the rule sees it: its client under the names of the attributes it counts by.
///
/// Naming a client this way meets the same bucket as a request that carries the attributes.
pub(crate) fn addressed<'a>(
    rule: &'a Rule,
    client: Option<Client<'a>>,
    request: Request<'a>,
) -> Result<Request<'a>, Fault> {
    let mut named = Request::new().cost(request.costs());
    match client {
        None if rule.per().is_empty() || request.attributes().next().is_some() => {
            return Ok(request);
        }
        None => return Err(Fault::invalid("client", "nothing", wanted_client(rule))),
        Some(Client::Value(value)) => match rule.per() {
            // One bucket for all: whoever comes, it is the same.
            [] => {}
            [chain] => {
                let first = chain.attributes().next().unwrap_or_default();
                insert(&mut named, "client", first, value)?;
            }
            _ => return Err(Fault::invalid("client", "a text", wanted_client(rule))),
        },
        Some(Client::Parts(parts)) => {
            for (name, value) in parts {
                let known = rule
                    .per()
                    .iter()
                    .any(|chain| chain.attributes().any(|attribute| attribute == name));
                let place = || format!("client.{}", cut(&name));
                if !known {
                    return Err(Fault::invalid(place(), "a value", wanted_client(rule)));
                }
                if named.get(&name).is_some() {
                    return Err(Fault::invalid(place(), "it twice", "it once"));
                }
                let place = place();
                insert(&mut named, &place, name, value)?;
            }
            if rule.per().iter().any(|chain| chain.pick(&named).is_none()) {
                return Err(Fault::invalid("client", "too little", wanted_client(rule)));
            }
        }
    }
    for (name, value) in request.attributes() {
        let place = format!("attributes.{}", cut(name));
        if named.get(name).is_some() {
            return Err(Fault::invalid(place, "another value", "none, because client names it"));
        }
        insert(&mut named, &place, name.to_owned(), value.to_owned())?;
    }
    Ok(named)
}

fn insert<'a>(
    request: &mut Request<'a>,
    place: &str,
    name: impl Into<Cow<'a, str>>,
    value: impl Into<Cow<'a, str>>,
) -> Result<(), Fault> {
    request.insert(name, value).map_err(|error| Fault::refused(place, &error))
}

/// `the value of api_key`, or `an object with values for user | ip and path`.
fn wanted_client(rule: &Rule) -> String {
    match rule.per() {
        [] => format!("none, because rule {:?} has one bucket for all", rule.name()),
        [chain] if chain.attributes().len() == 1 => {
            format!("the value of {chain}, by which rule {:?} counts", rule.name())
        }
        chains => {
            let names: Vec<&str> = chains.iter().map(Chain::as_str).collect();
            let names = names.join(" and ");
            format!("an object with {names}, by which rule {:?} counts", rule.name())
        }
    }
}

/// Most rules that an error lists.
const LISTED: usize = 10;

/// Rules that the doors count by and nobody names: for limits that come with a call.
///
/// # Errors
/// Never; they are rules like any other.
pub(crate) fn internal_rules() -> Result<Vec<Rule>, RuleError> {
    Ok(vec![throttle::rule()?, rls::override_rule()?])
}

/// Whether somebody wrote this rule.
fn is_written(rule: &Rule) -> bool {
    ![throttle::NAME, rls::OVERRIDE].contains(&rule.name())
}

/// The rules that somebody wrote.
pub(crate) fn written(rules: &RuleSet) -> impl Iterator<Item = &Rule> + Clone {
    rules.rules().iter().filter(|rule| is_written(rule))
}

pub(crate) fn unknown_rule(name: &str, rules: &RuleSet) -> Fault {
    let names = written(rules).map(Rule::name);
    let (more, names) = (names.clone().skip(LISTED).count(), names.take(LISTED));
    let names: Vec<&str> = names.collect();
    let wanted = match more {
        0 => format!("one of {}", names.join(", ")),
        more => format!("one of {} and {more} more", names.join(", ")),
    };
    Fault { ending: Ending::UnknownRule, place: "rule".to_owned(), found: quoted(name), wanted }
}

/// How a call ended. The table from endings to what each protocol calls them is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Allowed,
    /// The client is over its share.
    Denied,
    /// A rule that denies when the store fails could not be decided.
    Unavailable,
    /// The call can't be understood.
    Invalid,
    /// The call names a rule that is not there.
    UnknownRule,
}

impl Ending {
    pub(crate) const ALL: [Self; 5] =
        [Self::Allowed, Self::Denied, Self::Unavailable, Self::Invalid, Self::UnknownRule];

    /// What metrics call it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid",
            Self::UnknownRule => "unknown_rule",
        }
    }

    /// The HTTP status.
    pub(crate) const fn http(self) -> u16 {
        match self {
            Self::Allowed => 200,
            Self::Invalid => 400,
            Self::UnknownRule => 404,
            Self::Denied => 429,
            Self::Unavailable => 503,
        }
    }

    /// The gRPC status code, for calls that answer a denial with a message.
    pub(crate) const fn grpc(self) -> i32 {
        match self {
            Self::Allowed | Self::Denied => 0,
            Self::Invalid => 3,
            Self::UnknownRule => 5,
            Self::Unavailable => 14,
        }
    }
}

/// A decision, and what the client is told about it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) decision: Decision,
    /// When it was made.
    pub(crate) at: Timestamp,
    style: HeaderStyle,
}

impl Reply {
    pub(crate) fn ending(&self) -> Ending {
        Ending::of(self.decision.ruling())
    }

    /// The rate-limit headers, names in lower case.
    pub(crate) fn headers(&self) -> Vec<Header> {
        self.style.headers(&self.decision, self.at)
    }

    /// The one line about a call. It never says who came: that may be a secret.
    fn log(&self) {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return;
        }
        let policy = self.decision.decisive();
        tracing::debug!(
            ending = ?self.ending(),
            rule = policy.map(|policy| &*policy.rule),
            remaining = policy.map(|policy| policy.outcome.remaining),
            blocked = self.decision.block().is_some(),
            "checked"
        );
    }
}

/// Why a call was not decided: where, found, wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) ending: Ending,
    /// Where in the call: `checks[3].cost`.
    pub(crate) place: String,
    pub(crate) found: String,
    pub(crate) wanted: String,
}

impl Fault {
    pub(crate) fn invalid(
        place: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
    ) -> Self {
        Self {
            ending: Ending::Invalid,
            place: place.into(),
            found: found.into(),
            wanted: wanted.into(),
        }
    }

    /// An attribute that a [`Request`] does not take.
    pub(crate) fn refused(place: &str, error: &tidegate::RequestError) -> Self {
        use tidegate::RequestError::{Name, TooMany, Value};
        match error {
            Name { found } => Self::invalid(
                place,
                format!("a name of {found} bytes"),
                format!("1 to {} bytes", Request::MAX_NAME),
            ),
            Value { found, .. } => Self::invalid(
                place,
                format!("{found} bytes"),
                format!("at most {} bytes", Request::MAX_VALUE),
            ),
            TooMany => Self::invalid(
                place,
                "one attribute too many",
                format!("at most {} attributes", Request::MAX_ATTRIBUTES),
            ),
            other => Self::invalid(place, other.to_string(), "an attribute"),
        }
    }

    /// The same fault of an item of a larger call: `checks[3]`.
    pub(crate) fn within(mut self, item: &str) -> Self {
        self.place = match self.place.as_str() {
            "body" => item.to_owned(),
            place => format!("{item}.{place}"),
        };
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, wanted {}", self.place, self.found, self.wanted)
    }
}

/// Longest text of a caller that is echoed back, in characters.
const ECHO: usize = 64;

/// The beginning of a text.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(ECHO) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// What a caller wrote, in quotes, cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}
