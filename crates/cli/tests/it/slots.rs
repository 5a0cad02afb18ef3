//! Slots of in-flight limits: acquired, renewed and released on any node through any listener.

use serde_json::{Value, json};
use tidegate_proto::tidegate::v1::{
    AcquireResponse, CheckRequest, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};
use tonic::{Code, Status};

use crate::grpc_caller::GrpcCaller;
use crate::kit::{Folder, Response, Server, tidegate};

/// Holds are longer than any test, so that no slot expires.
const RULES: &str = "
rules:
  - {name: exports, match: {path: /exports}, per: [user], limit: 2 in flight, hold: 1h}
  - {name: all-exports, match: {path: /exports}, limit: 5 in flight, hold: 30m}
  - {name: api, per: [user], limit: 100 per 10 days}
";

const ALICE: &str = r#"{"rule":"exports","client":"alice"}"#;

impl Server {
    fn acquire(&self, body: &str) -> Response {
        self.request("POST", "/v1/acquire", body)
    }

    /// Acquires a slot, and panics if the request is denied.
    fn acquire_slot(&self, body: &str) -> String {
        let response = self.acquire(body);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["slot"].as_str().unwrap().to_owned()
    }

    fn renew(&self, slot: &str) -> Response {
        self.request("POST", "/v1/renew", &json!({"slot": slot}).to_string())
    }

    fn release(&self, slot: &str) -> Response {
        self.request("POST", "/v1/release", &json!({"slot": slot}).to_string())
    }

    /// Releases a slot, and returns the number of rules that it was held for.
    fn release_and_count(&self, slot: &str) -> u64 {
        let response = self.release(slot);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["released"].as_u64().unwrap()
    }

    /// Returns how many more exports alice may have in flight.
    fn free_slots(&self) -> u64 {
        let peek = r#"{"rule":"exports","client":"alice","cost":0}"#;
        self.check(peek).json()["remaining"].as_u64().unwrap()
    }
}

impl GrpcCaller {
    fn acquire(&self, user: &str) -> Result<AcquireResponse, Status> {
        let attributes = [("user", user), ("path", "/exports")];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let request = CheckRequest { attributes: attributes.into(), ..CheckRequest::default() };
        self.runtime.block_on(self.native().acquire(request)).map(tonic::Response::into_inner)
    }

    fn renew(&self, slot: &str) -> Result<RenewResponse, Status> {
        let request = RenewRequest { slot: slot.to_owned() };
        self.runtime.block_on(self.native().renew(request)).map(tonic::Response::into_inner)
    }

    fn release(&self, slot: &str) -> Result<ReleaseResponse, Status> {
        let request = ReleaseRequest { slot: slot.to_owned() };
        self.runtime.block_on(self.native().release(request)).map(tonic::Response::into_inner)
    }
}

/// Starts a node with these rules on a shared Redis, and waits until it is ready.
fn start_node(redis: &Redis, folder: &Folder, rules: &str) -> Server {
    let name = format!("rules-{}.yaml", rules.len());
    let (rules, url) = (folder.file(&name, rules), format!("{}?timeout=20s", redis.url()));
    let mut command = tidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", &url]);
    let server = Server::launch_command(command);
    wait_for("the node is ready", || {
        (server.request("GET", "/readyz", "").status == 200).then_some(())
    });
    server
}

#[test]
fn acquire_returns_a_decision_and_a_slot_with_the_shortest_hold() {
    let server = Server::with_rules(RULES);
    let both = r#"{"attributes":{"user":"alice","path":"/exports"}}"#;
    let response = server.acquire(both);
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("x-ratelimit-remaining"), Some("1"));
    let mut json = response.json();
    assert_eq!((&json["allowed"], &json["rule"]), (&json!(true), &json!("exports")));
    assert_eq!(json["holdMillis"], 1_800_000, "the shorter of two holds");
    let slot = json["slot"].take().as_str().unwrap().to_owned();
    assert!(slot.len() < 120, "{slot}");
    assert!(slot.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    let held = server.renew(&slot);
    assert_eq!((held.status, held.json()), (200, json!({"held": 2, "holdMillis": 1_800_000})));
    let other = server.acquire_slot(both);
    let denied = server.acquire(both);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some());
    assert_eq!((&denied.json()["slot"], &denied.json()["rule"]), (&Value::Null, &json!("exports")));
    assert_eq!((server.release_and_count(&slot), server.release_and_count(&slot)), (2, 0));
    assert_eq!(
        (server.free_slots(), server.release_and_count(&other), server.free_slots()),
        (1, 2, 2)
    );
}

#[test]
fn acquire_without_an_in_flight_rule_or_with_zero_cost_returns_no_slot() {
    let server = Server::with_rules(RULES);
    for body in [
        r#"{"attributes":{"user":"alice","path":"/orders"}}"#,
        r#"{"attributes":{}}"#,
        r#"{"rule":"exports","client":"alice","cost":0}"#,
    ] {
        let response = server.acquire(body);
        let json = response.json();
        assert_eq!((response.status, &json["allowed"]), (200, &json!(true)), "{body}");
        assert_eq!((json.get("slot"), json.get("holdMillis")), (None, None), "{body}");
    }
    assert_eq!(server.free_slots(), 2);
}

#[test]
fn check_takes_a_slot_but_returns_no_slot_token() {
    let server = Server::with_rules(RULES);
    let decision = server.check(ALICE).json();
    assert_eq!((&decision["remaining"], decision.get("slot")), (&json!(1), None));
    let two_slots = server.acquire_slot(r#"{"rule":"exports","client":"bob","cost":2}"#);
    let bob = r#"{"rule":"exports","client":"bob"}"#;
    assert_eq!((server.acquire(bob).status, server.release_and_count(&two_slots)), (429, 1));
    assert_eq!((server.acquire(bob).status, server.free_slots()), (200, 1));
}

#[test]
fn slot_of_one_node_counts_on_another_and_can_be_released_there() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let [one, two] = [start_node(&redis, &folder, RULES), start_node(&redis, &folder, RULES)];
    let slots = [one.acquire_slot(ALICE), two.acquire_slot(ALICE)];
    assert_ne!(slots[0], slots[1]);
    assert_eq!((one.acquire(ALICE).status, two.acquire(ALICE).status), (429, 429));
    assert_eq!(two.renew(&slots[0]).json(), json!({"held": 1, "holdMillis": 3_600_000}));
    assert_eq!((two.release_and_count(&slots[0]), one.release_and_count(&slots[0])), (1, 0));
    let third = one.acquire_slot(ALICE);
    assert_eq!(two.acquire(ALICE).status, 429);
    assert_eq!(two.renew(&slots[0]).status, 410, "released is released");
    assert_eq!(
        (one.release_and_count(&slots[1]), two.release_and_count(&third), one.free_slots()),
        (1, 1, 2)
    );
}

#[test]
fn slot_outlives_its_node_and_its_rule() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let first = start_node(&redis, &folder, RULES);
    let slots = [first.acquire_slot(ALICE), first.acquire_slot(ALICE)];
    drop(first);
    let other = start_node(&redis, &folder, "rules: [{name: api, per: [user], limit: 5 per day}]");
    assert_eq!(other.acquire(ALICE).status, 404, "there is no such rule");
    assert_eq!((other.renew(&slots[0]).status, other.release_and_count(&slots[0])), (200, 1));
    let again = start_node(&redis, &folder, RULES);
    assert_eq!(
        (again.free_slots(), again.release_and_count(&slots[1]), again.free_slots()),
        (1, 1, 2)
    );
}

#[test]
fn slot_renewed_after_its_hold_counts_again_and_new_requests_are_denied() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let rules = "rules: [{name: exports, per: [user], limit: 1 in flight, hold: 1s}]";
    let [one, two] = [start_node(&redis, &folder, rules), start_node(&redis, &folder, rules)];
    let expired = one.acquire_slot(ALICE);
    wait_for("the hold ends", || (two.acquire(ALICE).status == 200).then_some(()));
    let renewed = one.renew(&expired);
    assert_eq!((renewed.status, renewed.json()), (200, json!({"held": 1, "holdMillis": 1_000})));
    assert_eq!(two.acquire(ALICE).status, 429);
    one.release(&expired);
    let rejected = two.renew(&expired);
    assert_eq!(rejected.status, 410);
    assert_eq!(rejected.header("content-type"), Some("application/problem+json"));
    assert_eq!(rejected.json()["detail"], "slot: found it released, wanted it held");
}

#[test]
fn slots_renewed_after_the_store_restarted_empty_count_again() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let [one, two] = [start_node(&redis, &folder, RULES), start_node(&redis, &folder, RULES)];
    let slots = [one.acquire_slot(ALICE), two.acquire_slot(ALICE)];
    for _ in 0..3 {
        redis.restart();
        for (node, slot) in [(&two, &slots[0]), (&one, &slots[1])] {
            wait_for("the slot is renewed", || match node.renew(slot).status {
                200 => Some(()),
                503 => None,
                other => panic!("a renewal was answered with {other}"),
            });
        }
        assert_eq!((one.acquire(ALICE).status, two.acquire(ALICE).status), (429, 429));
    }
    redis.restart();
    wait_for("the slot is released", || (one.release(&slots[0]).status == 200).then_some(()));
    wait_for("the store answers", || (two.renew(&slots[0]).status == 410).then_some(()));
    assert_eq!((two.renew(&slots[1]).status, one.free_slots()), (200, 1));
}

#[test]
fn http_and_grpc_share_the_in_flight_count() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let first = caller.acquire("alice").unwrap();
    let decision = first.decision.unwrap();
    assert_eq!((decision.allowed, decision.remaining), (true, Some(1)));
    assert_eq!(first.hold_millis, 1_800_000);
    let second = server.acquire_slot(ALICE);
    let denied = caller.acquire("alice").unwrap();
    assert!(!denied.decision.unwrap().allowed);
    assert_eq!((denied.slot.as_str(), denied.hold_millis), ("", 0));
    // Each slot is renewed and released through the other listener.
    let renewed = caller.renew(&second).unwrap();
    assert_eq!(renewed, RenewResponse { held: 1, hold_millis: 3_600_000 });
    assert_eq!(server.renew(&first.slot).json()["held"], 2);
    assert_eq!(caller.release(&second).unwrap(), ReleaseResponse { released: 1 });
    assert_eq!(server.release_and_count(&first.slot), 2);
    assert_eq!((server.free_slots(), caller.release(&second).unwrap().released), (2, 0));
    assert_eq!(caller.renew(&second).unwrap_err().code(), Code::NotFound);
    let metrics = server.request_admin("GET", "/metrics", "").body;
    let counter = r#"tidegate_checks_total{listener="grpc",answer="gone"} 1"#;
    assert!(metrics.lines().any(|line| line.starts_with(counter)), "{metrics}");
}

#[test]
fn error_of_an_invalid_slot_names_the_field_and_releases_nothing() {
    let server = Server::with_rules(RULES);
    let caller = GrpcCaller::connect(&server);
    let slot = server.acquire_slot(ALICE);
    let tampered =
        format!("{}{}", &slot[..slot.len() - 2], if slot.ends_with("AA") { "BA" } else { "AA" });
    for (body, detail) in [
        (
            json!({"slot": tampered}),
            "bytes that this fleet did not issue, wanted the slot of an acquire",
        ),
        (json!({"slot": "x".repeat(9_000)}), "found a text of 9000 bytes"),
        (json!({"slot": ""}), "slot: found nothing, wanted the slot of an acquire"),
        (json!({"slot": null}), "slot: found nothing, wanted the slot of an acquire"),
        (json!({"slot": 17}), "slot: found 17, wanted a text"),
        (json!({"slots": [slot]}), "slots: found an unknown field, wanted slot"),
        (json!([]), "body: found a list, wanted an object of slot"),
    ] {
        for path in ["/v1/renew", "/v1/release"] {
            let response = server.request("POST", path, &body.to_string());
            assert_eq!(response.status, 400, "{path} {body}");
            let found = response.json()["detail"].as_str().unwrap().to_owned();
            assert!(found.contains(detail), "{path} {body}: {found}");
            assert!(!found.contains(&tampered), "the slot token is not shown: {found}");
        }
    }
    for path in ["/v1/acquire", "/v1/renew", "/v1/release"] {
        assert_eq!(
            server.request("GET", path, "").header("allow"),
            Some("POST, OPTIONS"),
            "{path}"
        );
    }
    let codes =
        [caller.renew(&tampered).unwrap_err().code(), caller.release("").unwrap_err().code()];
    assert_eq!(codes, [Code::InvalidArgument; 2]);
    // A server with a memory store accepts only slots that it has granted itself.
    assert_eq!(Server::with_rules(RULES).release(&slot).status, 400);
    assert_eq!((server.free_slots(), server.release_and_count(&slot)), (1, 1));
}

#[test]
fn renew_and_release_return_503_while_the_store_is_down() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = start_node(&redis, &folder, RULES);
    let caller = GrpcCaller::connect(&server);
    let slot = server.acquire_slot(ALICE);
    redis.kill();
    let (renewed, released) = (server.renew(&slot), server.release(&slot));
    assert_eq!((renewed.status, released.status), (503, 503));
    let detail = "store: found no answer, wanted a confirmed release";
    assert_eq!(released.json()["detail"], detail);
    assert_eq!(caller.release(&slot).unwrap_err().code(), Code::Unavailable);
    // A rule that allows on store failure admits the request without a slot.
    let allowed = server.acquire(ALICE);
    assert_eq!((allowed.status, allowed.json().get("slot")), (200, None));
}

#[test]
fn cancelled_acquire_takes_no_slot() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = start_node(&redis, &folder, RULES);
    let caller = GrpcCaller::connect(&server);
    assert_eq!(server.free_slots(), 2);
    let redis_calls = || {
        let metrics = server.request_admin("GET", "/metrics", "").body;
        let name = "tidegate_redis_calls_total ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        count.unwrap_or(0.0)
    };
    let before: f64 = redis_calls();
    redis.pause();
    let mut client = caller.native();
    let request = CheckRequest {
        rule: "exports".to_owned(),
        attributes: [("user".to_owned(), "alice".to_owned())].into(),
        ..CheckRequest::default()
    };
    let pending = caller.runtime.spawn(async move { client.acquire(request).await });
    wait_for("the store is called", || (redis_calls() > before).then_some(()));
    pending.abort();
    assert!(caller.runtime.block_on(pending).unwrap_err().is_cancelled());
    // A response to a later call on the same connection shows that the server has seen the cancellation.
    let unknown = caller.release("").unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    redis.resume();
    wait_for("the undelivered slot is released", || (server.free_slots() == 2).then_some(()));
}
