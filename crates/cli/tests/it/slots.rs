//! Slots in flight over the wire: taken, renewed and released, on any node and through any listener.

use serde_json::{Value, json};
use tidegate_proto::tidegate::v1::{
    AcquireResponse, CheckRequest, ReleaseRequest, ReleaseResponse, RenewRequest, RenewResponse,
};
use tidegate_testkit::{Flavour, Redis, Tool, lacking, wait_for};
use tonic::{Code, Status};

use crate::grpc_caller::Caller;
use crate::kit::{Folder, Response, Server, tidegate};

/// Holds so long that no test is long enough to lose one.
const RULES: &str = "
rules:
  - {name: exports, match: {path: /exports}, per: [user], limit: 2 in flight, hold: 1h}
  - {name: all-exports, match: {path: /exports}, limit: 5 in flight, hold: 30m}
  - {name: api, per: [user], limit: 100 per 10 days}
";

const ALICE: &str = r#"{"rule":"exports","client":"alice"}"#;

impl Server {
    fn acquire(&self, body: &str) -> Response {
        self.ask("POST", "/v1/acquire", body)
    }

    /// The slot of an acquire that is admitted.
    fn slot(&self, body: &str) -> String {
        let response = self.acquire(body);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["slot"].as_str().unwrap().to_owned()
    }

    fn renew(&self, slot: &str) -> Response {
        self.ask("POST", "/v1/renew", &json!({"slot": slot}).to_string())
    }

    fn release(&self, slot: &str) -> Response {
        self.ask("POST", "/v1/release", &json!({"slot": slot}).to_string())
    }

    /// Of how many rules slots were released.
    fn released(&self, slot: &str) -> u64 {
        let response = self.release(slot);
        assert_eq!(response.status, 200, "{response:?}");
        response.json()["released"].as_u64().unwrap()
    }

    /// How many more exports alice may have in flight.
    fn free(&self) -> u64 {
        let look = r#"{"rule":"exports","client":"alice","cost":0}"#;
        self.check(look).json()["remaining"].as_u64().unwrap()
    }
}

impl Caller {
    fn acquire(&self, user: &str) -> Result<AcquireResponse, Status> {
        let attributes = [("user", user), ("path", "/exports")];
        let attributes = attributes.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let asked = CheckRequest { attributes: attributes.into(), ..CheckRequest::default() };
        self.runtime.block_on(self.own().acquire(asked)).map(tonic::Response::into_inner)
    }

    fn renew(&self, slot: &str) -> Result<RenewResponse, Status> {
        let asked = RenewRequest { slot: slot.to_owned() };
        self.runtime.block_on(self.own().renew(asked)).map(tonic::Response::into_inner)
    }

    fn release(&self, slot: &str) -> Result<ReleaseResponse, Status> {
        let asked = ReleaseRequest { slot: slot.to_owned() };
        self.runtime.block_on(self.own().release(asked)).map(tonic::Response::into_inner)
    }
}

/// A node with these rules, which shares a Redis.
fn node(redis: &Redis, folder: &Folder, rules: &str) -> Server {
    let name = format!("rules-{}.yaml", rules.len());
    let (rules, url) = (folder.file(&name, rules), format!("{}?timeout=20s", redis.url()));
    let mut command = tidegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--rules", &rules, "--redis", &url]);
    let server = Server::launch_command(command);
    wait_for("the node is ready", || {
        (server.ask("GET", "/readyz", "").status == 200).then_some(())
    });
    server
}

#[test]
fn an_acquire_is_answered_as_a_check_and_with_what_it_holds() {
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
    let other = server.slot(both);
    let denied = server.acquire(both);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").is_some());
    assert_eq!((&denied.json()["slot"], &denied.json()["rule"]), (&Value::Null, &json!("exports")));
    assert_eq!((server.released(&slot), server.released(&slot)), (2, 0));
    assert_eq!((server.free(), server.released(&other), server.free()), (1, 2, 2));
}

#[test]
fn what_takes_no_slot_has_none_to_release() {
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
    assert_eq!(server.free(), 2);
}

#[test]
fn a_check_holds_its_slot_until_its_hold_ends() {
    let server = Server::with_rules(RULES);
    let checked = server.check(ALICE).json();
    assert_eq!((&checked["remaining"], checked.get("slot")), (&json!(1), None));
    let several = server.slot(r#"{"rule":"exports","client":"bob","cost":2}"#);
    let bob = r#"{"rule":"exports","client":"bob"}"#;
    assert_eq!((server.acquire(bob).status, server.released(&several)), (429, 1));
    assert_eq!((server.acquire(bob).status, server.free()), (200, 1));
}

#[test]
fn a_slot_of_one_node_is_missed_at_another_and_released_there() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let [one, two] = [node(&redis, &folder, RULES), node(&redis, &folder, RULES)];
    let slots = [one.slot(ALICE), two.slot(ALICE)];
    assert_ne!(slots[0], slots[1]);
    assert_eq!((one.acquire(ALICE).status, two.acquire(ALICE).status), (429, 429));
    assert_eq!(two.renew(&slots[0]).json(), json!({"held": 1, "holdMillis": 3_600_000}));
    assert_eq!((two.released(&slots[0]), one.released(&slots[0])), (1, 0));
    let third = one.slot(ALICE);
    assert_eq!(two.acquire(ALICE).status, 429);
    assert_eq!(two.renew(&slots[0]).status, 410, "released is released");
    assert_eq!((one.released(&slots[1]), two.released(&third), one.free()), (1, 1, 2));
}

#[test]
fn a_slot_outlives_the_node_that_gave_it_and_the_rule_that_it_was_for() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let first = node(&redis, &folder, RULES);
    let slots = [first.slot(ALICE), first.slot(ALICE)];
    drop(first);
    let other = node(&redis, &folder, "rules: [{name: api, per: [user], limit: 5 per day}]");
    assert_eq!(other.acquire(ALICE).status, 404, "there is no such rule");
    assert_eq!((other.renew(&slots[0]).status, other.released(&slots[0])), (200, 1));
    let again = node(&redis, &folder, RULES);
    assert_eq!((again.free(), again.released(&slots[1]), again.free()), (1, 1, 2));
}

#[test]
fn a_slot_renewed_after_its_hold_counts_again_and_new_requests_wait_until_it_fits() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let rules = "rules: [{name: exports, per: [user], limit: 1 in flight, hold: 1s}]";
    let [one, two] = [node(&redis, &folder, rules), node(&redis, &folder, rules)];
    let lost = one.slot(ALICE);
    wait_for("the hold ends", || (two.acquire(ALICE).status == 200).then_some(()));
    let renewed = one.renew(&lost);
    assert_eq!((renewed.status, renewed.json()), (200, json!({"held": 1, "holdMillis": 1_000})));
    assert_eq!(two.acquire(ALICE).status, 429);
    one.release(&lost);
    let gone = two.renew(&lost);
    assert_eq!(gone.status, 410);
    assert_eq!(gone.header("content-type"), Some("application/problem+json"));
    assert_eq!(gone.json()["detail"], "slot: found it released, wanted it held");
}

#[test]
fn slots_renewed_after_the_store_restarted_empty_count_again() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let [one, two] = [node(&redis, &folder, RULES), node(&redis, &folder, RULES)];
    let slots = [one.slot(ALICE), two.slot(ALICE)];
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
    assert_eq!((two.renew(&slots[1]).status, one.free()), (200, 1));
}

#[test]
fn callers_of_every_listener_meet_in_the_same_count() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let first = caller.acquire("alice").unwrap();
    let decision = first.decision.unwrap();
    assert_eq!((decision.allowed, decision.remaining), (true, Some(1)));
    assert_eq!(first.hold_millis, 1_800_000);
    let second = server.slot(ALICE);
    let denied = caller.acquire("alice").unwrap();
    assert!(!denied.decision.unwrap().allowed);
    assert_eq!((denied.slot.as_str(), denied.hold_millis), ("", 0));
    // Each through the other's listener.
    let renewed = caller.renew(&second).unwrap();
    assert_eq!(renewed, RenewResponse { held: 1, hold_millis: 3_600_000 });
    assert_eq!(server.renew(&first.slot).json()["held"], 2);
    assert_eq!(caller.release(&second).unwrap(), ReleaseResponse { released: 1 });
    assert_eq!(server.released(&first.slot), 2);
    assert_eq!((server.free(), caller.release(&second).unwrap().released), (2, 0));
    assert_eq!(caller.renew(&second).unwrap_err().code(), Code::NotFound);
    let metrics = server.manage("GET", "/metrics", "").body;
    let gone = r#"tidegate_checks_total{listener="grpc",answer="gone"} 1"#;
    assert!(metrics.lines().any(|line| line.starts_with(gone)), "{metrics}");
}

#[test]
fn what_is_no_slot_is_told_where_and_releases_nothing() {
    let server = Server::with_rules(RULES);
    let caller = Caller::to(&server);
    let slot = server.slot(ALICE);
    let bent =
        format!("{}{}", &slot[..slot.len() - 2], if slot.ends_with("AA") { "BA" } else { "AA" });
    for (body, detail) in [
        (
            json!({"slot": bent}),
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
            let response = server.ask("POST", path, &body.to_string());
            assert_eq!(response.status, 400, "{path} {body}");
            let found = response.json()["detail"].as_str().unwrap().to_owned();
            assert!(found.contains(detail), "{path} {body}: {found}");
            assert!(!found.contains(&bent), "a name is not shown: {found}");
        }
    }
    for path in ["/v1/acquire", "/v1/renew", "/v1/release"] {
        assert_eq!(server.ask("GET", path, "").header("allow"), Some("POST, OPTIONS"), "{path}");
    }
    let codes = [caller.renew(&bent).unwrap_err().code(), caller.release("").unwrap_err().code()];
    assert_eq!(codes, [Code::InvalidArgument; 2]);
    // A server that keeps all in its memory knows only the slots that it has given out itself.
    assert_eq!(Server::with_rules(RULES).release(&slot).status, 400);
    assert_eq!((server.free(), server.released(&slot)), (1, 1));
}

#[test]
fn who_can_not_be_told_what_became_of_its_slot_may_ask_again() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = node(&redis, &folder, RULES);
    let caller = Caller::to(&server);
    let slot = server.slot(ALICE);
    redis.kill();
    let (renewed, released) = (server.renew(&slot), server.release(&slot));
    assert_eq!((renewed.status, released.status), (503, 503));
    let told = "store: found no answer, wanted a confirmed release";
    assert_eq!(released.json()["detail"], told);
    assert_eq!(caller.release(&slot).unwrap_err().code(), Code::Unavailable);
    // Rules that allow without their store let pass, and hold nothing.
    let open = server.acquire(ALICE);
    assert_eq!((open.status, open.json().get("slot")), (200, None));
}

#[test]
fn a_call_that_is_cancelled_takes_no_slot() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let (redis, folder) = (Redis::start(), Folder::new());
    let server = node(&redis, &folder, RULES);
    let caller = Caller::to(&server);
    assert_eq!(server.free(), 2);
    let calls = || {
        let metrics = server.manage("GET", "/metrics", "").body;
        let name = "tidegate_redis_calls_total ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
        count.unwrap_or(0.0)
    };
    let before: f64 = calls();
    redis.pause();
    let mut client = caller.own();
    let asked = CheckRequest {
        rule: "exports".to_owned(),
        attributes: [("user".to_owned(), "alice".to_owned())].into(),
        ..CheckRequest::default()
    };
    let asking = caller.runtime.spawn(async move { client.acquire(asked).await });
    wait_for("the store is asked", || (calls() > before).then_some(()));
    asking.abort();
    assert!(caller.runtime.block_on(asking).unwrap_err().is_cancelled());
    // Whoever is answered on the same connection after it was cancelled after it.
    let unknown = caller.release("").unwrap_err();
    assert_eq!(unknown.code(), Code::InvalidArgument);
    redis.resume();
    wait_for("what nobody has is free", || (server.free() == 2).then_some(()));
}
