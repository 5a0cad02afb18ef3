use hyper::http;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::json;
use tidegate_core::Span;
use tidegate_limiter::ManualClock;
use tidegate_limiter::block::{BlockAction, BlockOrigin, Entry, Reason};
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

/// An identity, with the attribute plan of some rules.
struct PlannedIdentity {
    identity: Identity,
    plan: AttributePlan,
}

fn identity(
    rules: &str,
    change: impl FnOnce(&mut IdentityConfig),
) -> (PlannedIdentity, ManualClock) {
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
    let plan = identity.attribute_plan(&rules);
    (PlannedIdentity { identity, plan }, time)
}

const CALLER: Caller<'_> = Caller {
    address: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
    service: Some("billing"),
    route: None,
};

fn head(request: http::request::Builder) -> Parts {
    request.body(()).unwrap().into_parts().0
}

fn attributes(planned: &PlannedIdentity, head: &Parts) -> Vec<(String, String)> {
    let request = planned.identity.describe(&planned.plan, head, CALLER).unwrap();
    request.attributes().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn request_has_only_the_attributes_that_rules_use() {
    let (identity, time) = identity(RULES, |_| {});
    let claims = json!({"sub": "alice", "plan": "pro", "exp": time.now().as_secs_ceil() + 60});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let token = encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap();
    let head = head(
        hyper::Request::post("/v1/orders?page=2")
            .header("authorization", format!("Bearer {token}"))
            .header("x-api-key", "k1")
            .header("x-tenant", "acme")
            .header("x-other", "unused")
            .header("cookie", "sid=s3cret; theme=dark"),
    );
    let session = bearer::hash_secret("s3cret");
    let hashed = bearer::hash_secret(&token);
    assert_eq!(
        attributes(&identity, &head),
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
fn rejected_token_gives_no_user_and_no_claims() {
    let (identity, _) = identity(RULES, |_| {});
    let head = head(hyper::Request::get("/").header("authorization", "Bearer e30.e30.e30"));
    let hashed = bearer::hash_secret("e30.e30.e30");
    assert_eq!(
        attributes(&identity, &head),
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
fn without_keys_a_request_has_no_user() {
    let (identity, _) = identity(RULES, |config| config.jwt = None);
    let head = head(hyper::Request::get("/").header("authorization", "Bearer e30.e30.e30"));
    assert!(attributes(&identity, &head).iter().all(|(name, _)| name != "user"));
}

#[test]
fn api_key_is_read_from_the_configured_field() {
    let rules = "rules: [{name: a, per: [api_key], limit: 1/s}]";
    let head = head(hyper::Request::get("/?key=k2").header("x-api-key", "k1"));
    let (default, _) = identity(rules, |_| {});
    assert_eq!(attributes(&default, &head), pairs(&[("api_key", "k1")]));
    let (configured, _) = identity(rules, |config| config.api_key = Lookup::named("query.key"));
    assert_eq!(attributes(&configured, &head), pairs(&[("api_key", "k2")]));
}

#[test]
fn custom_attribute_replaces_the_built_in_one() {
    let rules = "rules: [{name: a, per: [user], limit: 1/s}]";
    let (identity, _) = identity(rules, |config| {
        config.attributes.insert("user".to_owned(), Lookup::named("header.x-user").unwrap());
    });
    let head = head(hyper::Request::get("/").header("x-user", "bob"));
    assert_eq!(attributes(&identity, &head), pairs(&[("user", "bob")]));
}

#[test]
fn empty_session_is_no_attribute() {
    let rules = "rules: [{name: a, per: [session], limit: 1/s}]";
    let (identity, _) = identity(rules, |_| {});
    let head = head(hyper::Request::get("/").header("cookie", "sid="));
    assert_eq!(attributes(&identity, &head), pairs(&[]));
}

#[test]
fn attributes_of_the_block_list_are_read_too() {
    let (identity, time) = identity("rules: [{name: a, limit: 1/s}]", |_| {});
    let head = head(hyper::Request::get("/").header("x-tenant", "acme"));
    assert_eq!(attributes(&identity, &head), pairs(&[]));
    let entry = Entry {
        subject: identity.identity.blocks.client("tenant", "mallory").unwrap(),
        until: time.now() + Span::HOUR,
        reason: Reason::new("a test").unwrap(),
        action: BlockAction::Block,
        origin: BlockOrigin::Operator,
        added: time.now(),
    };
    identity.identity.blocks.add(entry, time.now()).unwrap();
    assert_eq!(attributes(&identity, &head), pairs(&[("tenant", "acme")]));
}

#[test]
fn value_too_long_for_an_attribute_is_an_error_with_its_name() {
    let (identity, _) = identity("rules: [{name: a, per: [tenant], limit: 1/s}]", |_| {});
    let long = "x".repeat(Request::MAX_VALUE + 1);
    let head = head(hyper::Request::get("/").header("x-tenant", &long));
    let error = identity.identity.describe(&identity.plan, &head, CALLER).unwrap_err();
    assert_eq!(error.to_string(), "tenant: found 8193 bytes, wanted at most 8192 bytes");
}

#[test]
fn call_gets_the_service_of_the_certificate_unless_it_has_one_or_names_a_rule() {
    let service = |request: Request<'static>, rule: Option<&'static str>| {
        let call = Call { request, rule: rule.map(Cow::from), ..Call::default() };
        with_peer_identity(call, CALLER).request.get("service").map(str::to_owned)
    };
    assert_eq!(service(Request::new(), None).as_deref(), Some("billing"));
    let with_service = Request::new().with("service", "shop").unwrap();
    assert_eq!(service(with_service, None).as_deref(), Some("shop"));
    assert_eq!(service(Request::new(), Some("api")), None);
    let call = with_peer_identity(Call::default(), Caller { service: None, ..CALLER });
    assert_eq!(call.request.get("service"), None);
}

#[test]
fn several_values_of_a_used_attribute_are_an_error_with_its_name() {
    let error = |rules: &str, request: http::request::Builder| {
        let (identity, _) = identity(rules, |_| {});
        let head = head(request);
        let described = identity.identity.describe(&identity.plan, &head, CALLER);
        described.err().map(|error| error.to_string())
    };
    let per = |attribute: &str| format!("rules: [{{name: a, per: [{attribute}], limit: 1/s}}]");
    let twice = |name: &str| hyper::Request::get("/").header(name, "Bearer a").header(name, "b");
    for (attribute, header) in [
        ("api_key", "x-api-key"),
        ("bearer", "authorization"),
        ("user", "authorization"),
        ("claim.plan", "authorization"),
        ("tenant", "x-tenant"),
    ] {
        let expected = format!("{attribute}: found several values, wanted one value");
        assert_eq!(error(&per(attribute), twice(header)), Some(expected));
        assert_eq!(error(&per("ip"), twice(header)), None);
    }
    let cookies = hyper::Request::get("/").header("cookie", "sid=a; sid=b");
    let expected = "session: found several values, wanted one value".to_owned();
    assert_eq!(error(&per("session"), cookies), Some(expected));
}

#[test]
fn several_values_of_a_blocked_attribute_are_an_error() {
    let (identity, time) = identity("rules: [{name: a, limit: 1/s}]", |_| {});
    let head = head(hyper::Request::get("/").header("x-tenant", "acme").header("x-tenant", "b"));
    assert!(identity.identity.describe(&identity.plan, &head, CALLER).is_ok());
    let entry = Entry {
        subject: identity.identity.blocks.client("tenant", "acme").unwrap(),
        until: time.now() + Span::HOUR,
        reason: Reason::new("a test").unwrap(),
        action: BlockAction::Block,
        origin: BlockOrigin::Operator,
        added: time.now(),
    };
    identity.identity.blocks.add(entry, time.now()).unwrap();
    let error = identity.identity.describe(&identity.plan, &head, CALLER).unwrap_err();
    assert_eq!(error.to_string(), "tenant: found several values, wanted one value");
}

#[test]
fn other_spelling_of_a_used_header_is_rejected() {
    let rejects = |rules: &str, name: &str, has_underscores| {
        let (identity, _) = identity(rules, |_| {});
        let head = head(hyper::Request::get("/").header(name, "a"));
        identity.identity.reject_other_spellings(&identity.plan, &head, has_underscores).is_err()
    };
    let by_key = "rules: [{name: a, per: [api_key], limit: 1/s}]";
    assert!(rejects(by_key, "x_api_key", true));
    assert!(rejects(by_key, "x-api_key", true));
    assert!(!rejects(by_key, "x-api-key", true));
    assert!(!rejects(by_key, "my_header", true));
    assert!(rejects("rules: [{name: a, per: [tenant], limit: 1/s}]", "x_tenant", true));
    assert!(!rejects("rules: [{name: a, per: [ip], limit: 1/s}]", "x_api_key", true));
    // A rule may read a header with an underscore. Then the name with a hyphen is the other spelling.
    let underscore = "rules: [{name: a, per: [header.api_key], limit: 1/s}]";
    assert!(rejects(underscore, "api-key", false));
    assert!(!rejects(underscore, "api_key", true));
}
