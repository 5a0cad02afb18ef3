use hyper::http;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use tidegate_core::Span;
use tidegate_limiter::ManualClock;
use tidegate_limiter::block::{BlockOrigin, Entry, Reason};
use tidegate_redis::Secret;

use super::*;

const SECRET: &str = "a secret that has thirty-two bytes";

const RULES: &str = "
rules:
  - name: everything
    match: {path: {present: true}, method: {present: true}, tenant: {present: true}}
    per: [ip, 'user | session | bearer | api_key', service]
    limit: 1 per second
    tiers: {by: claim.plan, limits: {pro: 2 per second}}
";

/// An identity, and what some rules want to know of it.
struct Asked {
    identity: Identity,
    known: AttributePlan,
}

fn identity(rules: &str, change: impl FnOnce(&mut IdentityConfig)) -> (Asked, ManualClock) {
    let session = Lookup::named("cookie.sid");
    let mut config = IdentityConfig { session, ..IdentityConfig::default() };
    config.attributes.insert("tenant".to_owned(), Lookup::named("header.x-tenant").unwrap());
    config.jwt = Some(JwtConfig {
        keys: KeySource::Secret(Secret::from(SECRET.to_owned())),
        algorithms: Vec::new(),
        issuers: Vec::new(),
        audiences: Vec::new(),
        leeway: Span::ZERO,
        place: TokenPlace::Bearer,
    });
    change(&mut config);
    let time = ManualClock::default();
    let rules = RuleSet::parse("", rules).unwrap();
    let blocks = Arc::new(BlockList::new([7; 32]));
    let identity = Identity::new(config, blocks, time.clock()).unwrap();
    let known = identity.known(&rules);
    (Asked { identity, known }, time)
}

const CALLER: Caller<'_> = Caller {
    address: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    service: Some("billing"),
    way: None,
};

fn head(request: http::request::Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

fn shown(asked: &Asked, head: &Parts) -> Vec<(String, String)> {
    let request = asked.identity.describe(&asked.known, head, CALLER).unwrap();
    request.attributes().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_request_is_described_by_what_rules_mention_and_by_nothing_else() {
    let (identity, time) = identity(RULES, |_| {});
    let claims = json!({"sub": "alice", "plan": "pro", "exp": time.now().as_secs_ceil() + 60});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let token = encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
    let head = head(
        hyper::Request::post("/v1/orders?page=2")
            .header("authorization", format!("Bearer {token}"))
            .header("x-api-key", "k1")
            .header("x-tenant", "acme")
            .header("x-other", "nobody asks")
            .header("cookie", "sid=s3cret; theme=dark"),
    );
    let session = bearer::hashed("s3cret");
    let hashed = bearer::hashed(&token);
    assert_eq!(
        shown(&identity, &head),
        pairs(&[
            ("api_key", "k1"),
            ("bearer", &hashed),
            ("claim.plan", "pro"),
            ("ip", "192.0.2.7"),
            ("method", "POST"),
            ("path", "/v1/orders"),
            ("service", "billing"),
            ("session", &session),
            ("tenant", "acme"),
            ("user", "alice"),
        ])
    );
}

#[test]
fn a_token_that_is_not_believed_gives_no_user_and_no_claims() {
    let (identity, _) = identity(RULES, |_| {});
    let head = head(hyper::Request::get("/").header("authorization", "Bearer e30.e30.e30"));
    let hashed = bearer::hashed("e30.e30.e30");
    assert_eq!(
        shown(&identity, &head),
        pairs(&[
            ("bearer", &hashed),
            ("ip", "192.0.2.7"),
            ("method", "GET"),
            ("path", "/"),
            ("service", "billing"),
        ])
    );
}

#[test]
fn without_keys_nobody_is_a_user() {
    let (identity, _) = identity(RULES, |config| config.jwt = None);
    let head = head(hyper::Request::get("/").header("authorization", "Bearer e30.e30.e30"));
    assert!(shown(&identity, &head).iter().all(|(name, _)| name != "user"));
}

#[test]
fn an_api_key_is_where_the_configuration_says() {
    let rules = "rules: [{name: a, per: [api_key], limit: 1/s}]";
    let head = head(hyper::Request::get("/?key=k2").header("x-api-key", "k1"));
    let (usual, _) = identity(rules, |_| {});
    assert_eq!(shown(&usual, &head), pairs(&[("api_key", "k1")]));
    let (moved, _) = identity(rules, |config| config.api_key = Lookup::named("query.key"));
    assert_eq!(shown(&moved, &head), pairs(&[("api_key", "k2")]));
}

#[test]
fn a_custom_attribute_beats_the_usual_one_of_its_name() {
    let rules = "rules: [{name: a, per: [user], limit: 1/s}]";
    let (identity, _) = identity(rules, |config| {
        config.attributes.insert("user".to_owned(), Lookup::named("header.x-user").unwrap());
    });
    let head = head(hyper::Request::get("/").header("x-user", "bob"));
    assert_eq!(shown(&identity, &head), pairs(&[("user", "bob")]));
}

#[test]
fn an_empty_session_is_none() {
    let rules = "rules: [{name: a, per: [session], limit: 1/s}]";
    let (identity, _) = identity(rules, |_| {});
    let head = head(hyper::Request::get("/").header("cookie", "sid="));
    assert_eq!(shown(&identity, &head), pairs(&[]));
}

#[test]
fn what_somebody_is_blocked_by_is_read_too() {
    let (identity, time) = identity("rules: [{name: a, limit: 1/s}]", |_| {});
    let head = head(hyper::Request::get("/").header("x-tenant", "acme"));
    assert_eq!(shown(&identity, &head), pairs(&[]));
    let entry = Entry {
        subject: identity.identity.blocks.client("tenant", "mallory").unwrap(),
        until: time.now() + Span::HOUR,
        reason: Reason::new("a test").unwrap(),
        origin: BlockOrigin::Operator,
        added: time.now(),
    };
    identity.identity.blocks.add(entry, time.now()).unwrap();
    assert_eq!(shown(&identity, &head), pairs(&[("tenant", "acme")]));
}

#[test]
fn a_value_that_is_too_long_is_refused_by_name() {
    let (identity, _) = identity("rules: [{name: a, per: [tenant], limit: 1/s}]", |_| {});
    let long = "x".repeat(Request::MAX_VALUE + 1);
    let head = head(hyper::Request::get("/").header("x-tenant", &long));
    let fault = identity.identity.describe(&identity.known, &head, CALLER).unwrap_err();
    assert_eq!(fault.to_string(), "tenant: found 8193 bytes, wanted at most 8192 bytes");
}

#[test]
fn a_call_has_the_name_in_its_callers_certificate_unless_it_says_more() {
    let service = |request: Request<'static>, rule: Option<&'static str>| {
        let call = Call { request, rule: rule.map(Cow::from), ..Call::default() };
        vouched(call, CALLER).request.get("service").map(str::to_owned)
    };
    assert_eq!(service(Request::new(), None).as_deref(), Some("billing"));
    let spoken_for = Request::new().with("service", "shop").unwrap();
    assert_eq!(service(spoken_for, None).as_deref(), Some("shop"));
    assert_eq!(service(Request::new(), Some("api")), None);
    let call = vouched(Call::default(), Caller { service: None, ..CALLER });
    assert_eq!(call.request.get("service"), None);
}
