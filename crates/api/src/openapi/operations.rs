//! Every operation of the HTTP and the admin listener.

use serde_json::json;

use super::ApiListener::{Admin, Http};
use super::{ApiOperation, BodySchema, TEXT, operation};
use crate::{
    AcquireReply, BatchReply, BatchRequest, BlockEntry, BlockPage, BlockRequest, BlockTarget,
    CheckRequest, ClientRanking, ClientStatus, DecisionBody, DenialBody, FleetReport, InvalidRules,
    LabReport, LabRequest, LiveReport, PushedRules, RateLimitReply, RefundRequest, ReleaseReply,
    RenewReply, RulesDifference, RulesHistory, RulesStatus, RulesView, SlotRequest,
    UnavailableBody, VersionConflict,
};

const ALLOWED_HEADERS: &[&str] = &[
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "RateLimit-Policy",
    "RateLimit",
];
const DENIED_HEADERS: &[&str] = &[
    "Retry-After",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "RateLimit-Policy",
    "RateLimit",
];
const AUTHORIZE_ALLOWED_HEADERS: &[&str] = &[
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "RateLimit-Policy",
    "RateLimit",
    "X-Tidegate-Status",
];
const AUTHORIZE_DENIED_HEADERS: &[&str] = &[
    "Retry-After",
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "RateLimit-Policy",
    "RateLimit",
    "X-Tidegate-Status",
];

const INVALID_CALL: &str = "The call is invalid: where, found, wanted";
const INVALID_SLOT: &str =
    "The call is invalid, or the slot token is not one of this fleet: where, found, wanted";
const INVALID_QUERY: &str = "The query or a header is invalid";
const INVALID_CLIENT: &str = "The client is invalid";
const INVALID_DOCUMENT: &str = "The document has errors; all of them are listed with their lines";
const UNKNOWN_RULE: &str = "The rule does not exist";
const UNKNOWN_VERSION: &str = "A version is not kept";
const OVER_LIMIT: &str = "The client is over its limit, or blocked";
const UNDECIDED: &str =
    "The store does not reply and a rule denies in that case, or the server is overloaded";
const UNCONFIRMED: &str =
    "The store did not confirm the change, or the server is overloaded; the call can be repeated";
const NOT_IN_REDIS: &str =
    "The rules of this server do not come from Redis; change them at their source";
const REDIS_DOWN: &str = "Redis does not reply";
const TOO_LONG: &str = "The body is longer than 64 KiB";
const DOCUMENT_TOO_LONG: &str = "The document is too long";
const COMPRESSED: &str = "The body is compressed";

/// Returns every operation, in the order of the document.
#[must_use]
pub fn operations() -> Vec<ApiOperation> {
    let mut operations = checks();
    operations.extend(probes());
    operations.extend(blocks());
    operations.extend(observation());
    operations.extend(clients());
    operations.extend(rules());
    operations
}

/// Returns an operation of the admin listener. All of them check the token and the origin.
fn admin(method: &'static str, path: &'static str, id: &'static str) -> ApiOperation {
    operation(Admin, method, path, id)
        .problem(401, "The token is missing or wrong")
        .problem(403, "The request comes from a web page of another origin, or names another host")
}

fn checks() -> Vec<ApiOperation> {
    vec![
        operation(Http, "post", "/v1/check", "check")
            .summary("Decides one request, and charges it if it is admitted")
            .description(
                "With `attributes`, every rule that matches them is charged. With `rule` and `client`, only that rule is \
                 charged, regardless of its `match`. A cost of 0 checks a request of cost 1 and spends nothing.",
            )
            .request_body::<CheckRequest>()
            .request_example("attributes", json!({"attributes": {"path": "/v1/orders", "api_key": "alice"}, "cost": 1}))
            .request_example("rule", json!({"rule": "per-key", "client": "alice"}))
            .reply::<DecisionBody>(200, "The request is admitted")
            .reply_headers(ALLOWED_HEADERS)
            .reply_example(json!({
                "allowed": true, "limit": 100, "remaining": 45, "resetTime": 1_699_123_500, "retryAfter": 0, "rule": "per-key",
            }))
            .problem(400, INVALID_CALL)
            .reply_example(json!({
                "type": "about:blank", "title": "Bad Request", "status": 400,
                "detail": "cost: found -1, wanted a whole number from 0", "where": "cost", "found": "-1",
                "wanted": "a whole number from 0",
            }))
            .problem(404, UNKNOWN_RULE)
            .problem(413, TOO_LONG)
            .problem(415, COMPRESSED)
            .problem_with::<DenialBody>(429, OVER_LIMIT)
            .reply_headers(DENIED_HEADERS)
            .reply_example(json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "title": "Too many requests",
                "status": 429, "detail": "over the limit of \"per-key\", try again in 3 seconds",
                "violated-policies": ["per-key"], "allowed": false, "limit": 100, "remaining": 0,
                "resetTime": 1_699_123_500, "retryAfter": 3, "rule": "per-key",
            }))
            .problem_with::<UnavailableBody>(503, UNDECIDED)
            .reply_headers(DENIED_HEADERS),
        operation(Http, "post", "/v1/check/batch", "checkBatch")
            .summary("Decides up to 1,000 requests, each independent of the others")
            .request_body::<BatchRequest>()
            .reply::<BatchReply>(200, "One decision or error for each check, in their order")
            .problem(400, "The batch is invalid")
            .problem(413, "The body is longer than 1 MiB")
            .problem(415, COMPRESSED)
            .problem(503, "The server is reading too many long bodies"),
        operation(Http, "post", "/v1/acquire", "acquire")
            .summary("Decides one request as a check does, for a client that releases the slots in flight that it takes")
            .description(
                "As `/v1/check`. Under rules that limit requests in flight, an admitted request holds a slot of each rule. \
                 `slot` is a token for `/v1/renew` and `/v1/release` on any node. Without `slot` there is nothing to \
                 release. At most 32 such rules apply to one request.",
            )
            .request_body::<CheckRequest>()
            .request_example("rule", json!({"rule": "exports", "client": "alice"}))
            .request_example("attributes", json!({"attributes": {"path": "/exports", "user": "alice"}}))
            .reply::<AcquireReply>(200, "The request is admitted")
            .reply_headers(ALLOWED_HEADERS)
            .reply_example(json!({
                "allowed": true, "limit": 20, "remaining": 19, "resetTime": 1_699_123_500, "retryAfter": 0,
                "rule": "exports", "slot": "AbC-123_x", "holdMillis": 60_000,
            }))
            .problem(400, INVALID_CALL)
            .problem(404, UNKNOWN_RULE)
            .problem(413, TOO_LONG)
            .problem(415, COMPRESSED)
            .problem_with::<DenialBody>(429, OVER_LIMIT)
            .reply_headers(DENIED_HEADERS)
            .problem_with::<UnavailableBody>(503, UNDECIDED)
            .reply_headers(DENIED_HEADERS),
        operation(Http, "post", "/v1/renew", "renew")
            .summary("Renews slots in flight, for another hold")
            .description(
                "For requests that last longer than the hold. Three renewals per hold leave time for a retry. Slots that \
                 expired, or that the store lost, are counted again.",
            )
            .request_body::<SlotRequest>()
            .reply::<RenewReply>(200, "All slots are held")
            .problem(400, INVALID_SLOT)
            .problem(410, "Some or all slots were released; release the remaining ones")
            .problem(413, TOO_LONG)
            .problem(415, COMPRESSED)
            .problem(503, UNCONFIRMED),
        operation(Http, "post", "/v1/release", "release")
            .summary("Releases slots in flight")
            .description(
                "On any node, also on a node with other rules. A second release, or a release after the hold, is no error \
                 and releases nothing.",
            )
            .request_body::<SlotRequest>()
            .reply::<ReleaseReply>(200, "No slot is held")
            .problem(400, INVALID_SLOT)
            .problem(413, TOO_LONG)
            .problem(415, COMPRESSED)
            .problem(503, UNCONFIRMED),
        authorize("get", "authorize"),
        authorize("post", "authorizePost"),
        operation(Http, "post", "/json", "envoyRateLimit")
            .summary("Decides Envoy's RateLimitRequest as proto3 JSON, as envoyproxy/ratelimit does")
            .request_object()
            .request_example("descriptors", json!({"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}))
            .reply::<RateLimitReply>(200, "OK: a RateLimitResponse")
            .problem(400, "With on_invalid_call: error, the call is invalid")
            .problem(413, "With on_invalid_call: error, the body is too long")
            .problem(415, "With on_invalid_call: error, the body is compressed")
            .reply::<RateLimitReply>(429, "OVER_LIMIT, or an invalid call: a RateLimitResponse"),
    ]
}

fn authorize(method: &'static str, id: &'static str) -> ApiOperation {
    operation(Http, method, "/v1/authorize", id)
        .summary("Decides a request that a proxy holds")
        .description(
            "For NGINX's auth_request, Caddy's forward_auth and Traefik's ForwardAuth. The method of this call does not \
             matter, and its body is ignored. Either X-Original-URI and -Method or X-Forwarded-Uri and -Method must be \
             present, and not both.",
        )
        .query_parameter(
            "deny",
            "The status of every denial. NGINX turns every status but 401 and 403 into 500",
            json!({"type": "integer", "enum": [403, 429], "default": 429}),
        )
        .header_parameter("X-Original-URI", "The request target, as NGINX is configured to send it")
        .parameter_example("/v1/orders?page=2")
        .header_parameter("X-Original-Method", "The method of the request, as NGINX is configured to send it")
        .parameter_example("POST")
        .header_parameter("X-Forwarded-Uri", "The request target, as Caddy and Traefik send it")
        .header_parameter("X-Forwarded-Method", "The method of the request, as Caddy and Traefik send it")
        .header_parameter("X-Forwarded-Host", "The host of the request; with X-Original-URI the host is in Host")
        .header_parameter("X-Forwarded-For", "The client's address and the proxies, used as far as they are trusted")
        .reply::<DecisionBody>(200, "The proxy may send the request on")
        .reply_headers(AUTHORIZE_ALLOWED_HEADERS)
        .problem(400, "The headers do not describe the request, or the client sent one of them as well")
        .problem_with::<UnavailableBody>(403, "With deny=403: the request is denied, or the call is invalid. X-Tidegate-Status has 429, 503 or 400")
        .reply_headers(AUTHORIZE_DENIED_HEADERS)
        .problem_with::<DenialBody>(429, OVER_LIMIT)
        .reply_headers(AUTHORIZE_DENIED_HEADERS)
        .problem_with::<DenialBody>(503, "The store does not reply and a rule denies in that case")
        .reply_headers(AUTHORIZE_DENIED_HEADERS)
}

fn probes() -> Vec<ApiOperation> {
    vec![
        operation(Http, "get", "/openapi.json", "openapi")
            .summary("Returns this document")
            .untyped_reply(
                200,
                "The document",
                "application/vnd.oai.openapi+json",
                BodySchema::Object,
            ),
        operation(Http, "get", "/healthz", "health")
            .summary("Reports that the process runs")
            .untyped_reply(200, "The process runs", TEXT, BodySchema::Text),
        operation(Http, "get", "/readyz", "readiness")
            .summary("Reports whether calls should be sent to this node")
            .untyped_reply(200, "The node is ready", TEXT, BodySchema::Text)
            .untyped_reply(
                503,
                "The node is starting or stopping; the body has the reason",
                TEXT,
                BodySchema::Text,
            ),
        operation(Http, "get", "/healthcheck", "envoyHealth")
            .summary(
                "Reports whether calls should be sent to this node, as envoyproxy/ratelimit does",
            )
            .untyped_reply(200, "The node is ready", TEXT, BodySchema::Text)
            .untyped_reply(500, "The node is starting or stopping", TEXT, BodySchema::Text),
    ]
}

fn blocks() -> Vec<ApiOperation> {
    vec![
        admin("get", "/v1/block", "blocked")
            .summary("Lists blocked and allowed clients and networks, with end, origin and reason")
            .query_parameter(
                "format",
                "plain: only the blocked networks, one per line",
                json!({"type": "string", "enum": ["json", "plain"], "default": "json"}),
            )
            .query_parameter("limit", "The most entries to return", json!({"type": "integer", "minimum": 1}))
            .query_parameter("after", "The id after which to continue: `next` of the previous part", json!({"type": "string"}))
            .reply::<BlockPage>(200, "The list")
            .reply_example(json!({
                "entries": [{
                    "id": "192.0.2.0/24", "ip": "192.0.2.0/24", "action": "block", "until": 1_699_123_500, "secondsLeft": 598,
                    "by": "operator", "reason": "scans", "added": 1_699_122_900,
                }],
                "refused": 0, "evicted": 0,
            }))
            .or_body(TEXT, BodySchema::Text)
            .problem(400, "The query is invalid"),
        admin("post", "/v1/block", "block")
            .summary("Blocks or allows a network, an address or a client")
            .request_body::<BlockRequest>()
            .request_example("network", json!({"ip": "192.0.2.0/24", "for": "10m", "reason": "scans"}))
            .request_example("client", json!({"attribute": "user", "value": "mallory", "for": "1 hour"}))
            .request_example("allowed", json!({"ip": "198.51.100.7", "action": "allow", "for": "30 days"}))
            .reply::<BlockEntry>(200, "The entry")
            .problem(400, INVALID_CALL)
            .problem(503, "The list is full"),
        admin("delete", "/v1/block", "unblock")
            .summary("Removes the entry of a network, an address or a client")
            .request_body::<BlockTarget>()
            .request_example("network", json!({"ip": "192.0.2.0/24"}))
            .reply::<BlockEntry>(200, "The entry that was removed")
            .problem(400, INVALID_CALL)
            .problem(404, "The list has no such entry"),
    ]
}

fn observation() -> Vec<ApiOperation> {
    vec![
        operation(Admin, "get", "/", "dashboard")
            .summary("Returns the dashboard")
            .description(
                "A page and its files. They contain no data of the server and are served without a token; the page \
                 requests its data with one.",
            )
            .public()
            .untyped_reply(200, "The page", "text/html; charset=utf-8", BodySchema::Opaque)
            .problem(403, "The request comes from a web page of another origin, or names another host"),
        admin("get", "/metrics", "metrics")
            .summary("Returns counters and histograms for Prometheus")
            .untyped_reply(
                200,
                "The metrics, in the format that Accept prefers",
                "text/plain; version=0.0.4; charset=utf-8",
                BodySchema::Text,
            )
            .or_body("application/openmetrics-text; version=1.0.0; charset=utf-8", BodySchema::Text),
        admin("get", "/rlconfig", "envoyLimits")
            .summary("Lists the limits of envoyproxy/ratelimit files, one per line")
            .untyped_reply(200, "The list", TEXT, BodySchema::Text),
        admin("get", "/v1/live", "live")
            .summary("Returns the activity of the last seconds")
            .description(
                "The server reads its own counters at the end of every second. `p50Micros` and `p99Micros` come from a \
                 histogram, whose buckets are taken to be evenly filled.",
            )
            .query_parameter("since", "Only seconds after this one, in Unix seconds", json!({"type": "integer", "minimum": 0}))
            .reply::<LiveReport>(200, "The last seconds, at most 300")
            .problem(400, "The query is invalid"),
        admin("get", "/v1/fleet", "fleet")
            .summary("Returns the nodes, their store, and the listeners, upstreams and process of this node")
            .reply::<FleetReport>(200, "The state of the fleet"),
        admin("get", "/v1/top", "top")
            .summary("Returns the clients with the most requests, or with the most denials")
            .query_parameter(
                "by",
                "The order of the ranking",
                json!({"type": "string", "enum": ["traffic", "denials"], "default": "traffic"}),
            )
            .query_parameter("rule", "Only clients of this rule", json!({"type": "string"}))
            .query_parameter(
                "limit",
                "The most clients to return",
                json!({"type": "integer", "minimum": 1, "maximum": 1000, "default": 20}),
            )
            .reply::<ClientRanking>(200, "The clients, the busiest first")
            .reply_example(json!({
                "by": "traffic", "since": 1_699_123_200, "seconds": 300, "clients": [{
                    "rule": "login", "id": "192.0.2.7/32", "client": "192.0.2.7", "requests": 120, "atLeast": 118,
                }],
            }))
            .problem(400, "The query is invalid")
            .problem(404, UNKNOWN_RULE),
        admin("post", "/v1/lab", "lab")
            .summary("Simulates limits under traffic, without any effect on the server")
            .request_body::<LabRequest>()
            .request_example("fleet", json!({"traffic": "steady", "nodes": 3, "accuracy": "synced", "syncMillis": 400}))
            .reply::<LabReport>(200, "The report of the simulation")
            .problem(400, "A value is out of range, or the simulation would take too long")
            .problem(413, "The body is too long"),
    ]
}

fn clients() -> Vec<ApiOperation> {
    let status = |operation: ApiOperation| {
        operation
            .path_parameter("rule", "The name of the rule")
            .reply::<ClientStatus>(200, "The state of the client")
            .problem(400, INVALID_CLIENT)
            .problem(404, UNKNOWN_RULE)
            .problem(503, "The store did not reply, or did not confirm the change")
    };
    let one = |operation| {
        status(operation)
            .path_parameter("client", "The value of the attribute that the rule counts by")
    };
    vec![
        one(admin("get", "/v1/clients/{rule}/{client}", "client"))
            .summary("Returns the state of a client under a rule, without charging it"),
        one(admin("delete", "/v1/clients/{rule}/{client}", "resetClient"))
            .summary("Resets the usage of a client under a rule"),
        status(admin("get", "/v1/clients/{rule}", "clientParts")).summary(
            "Returns the state of a client under a rule that counts by several attributes: each is a query parameter",
        ),
        status(admin("delete", "/v1/clients/{rule}", "resetClientParts")).summary(
            "Resets the usage of a client under a rule that counts by several attributes: each is a query parameter",
        ),
        admin("post", "/v1/refund", "refund")
            .summary("Refunds usage to a client, at most the usage that it has")
            .request_body::<RefundRequest>()
            .request_example("rule", json!({"rule": "per-key", "client": "alice", "cost": 3}))
            .reply::<ClientStatus>(200, "The state of the client")
            .problem(400, INVALID_CLIENT)
            .problem(404, UNKNOWN_RULE)
            .problem(503, "The store did not reply, or did not confirm the change"),
    ]
}

fn rules() -> Vec<ApiOperation> {
    let version = || json!({"type": "integer", "minimum": 1});
    let limit = json!({"type": "integer", "minimum": 1, "maximum": 50, "default": 20});
    vec![
        admin("get", "/v1/rules", "rules")
            .summary("Returns the active rules; ETag is their version")
            .header_parameter("If-None-Match", "A version that the client has")
            .header_parameter("Accept", "application/yaml requests the document as it was written")
            .query_parameter("version", "An older version, as it was written", version())
            .reply::<RulesView>(200, "The rules")
            .or_body("application/yaml", BodySchema::Text)
            .empty_reply(304, "If-None-Match names this version")
            .problem(400, INVALID_QUERY)
            .problem(404, "The rules have no document, or that version is not kept")
            .problem(409, NOT_IN_REDIS)
            .problem(503, REDIS_DOWN),
        admin("put", "/v1/rules", "pushRules")
            .summary("Validates a rules document, stores it for all nodes, and activates it")
            .header_parameter("If-Match", "The version to replace, as ETag has it: \"7\", \"0\" if there is none, or * for any")
            .required()
            .header_parameter("Tidegate-By", "The author; escaped as in a URL, at most 200 characters")
            .max_length(1800)
            .header_parameter("Tidegate-Note", "The reason; escaped as in a URL, at most 200 characters")
            .max_length(1800)
            .request_rules()
            .reply::<PushedRules>(200, "The rules are active on this node, and soon on all others")
            .problem(400, INVALID_QUERY)
            .problem(409, NOT_IN_REDIS)
            .problem_with::<VersionConflict>(412, "Another version was pushed before")
            .problem(413, DOCUMENT_TOO_LONG)
            .problem(415, COMPRESSED)
            .problem_with::<InvalidRules>(422, INVALID_DOCUMENT)
            .problem(428, "If-Match is missing")
            .problem(503, "Redis does not reply, or the server is reading other documents"),
        admin("get", "/v1/rules/diff", "diffVersions")
            .summary("Compares two versions of the rules")
            .query_parameter("from", "The number of the old version", version())
            .required()
            .query_parameter("to", "The number of the new version", version())
            .required()
            .reply::<RulesDifference>(200, "The difference")
            .problem(400, INVALID_QUERY)
            .problem(404, UNKNOWN_VERSION)
            .problem(409, NOT_IN_REDIS)
            .problem_with::<InvalidRules>(422, INVALID_DOCUMENT)
            .problem(503, REDIS_DOWN),
        admin("post", "/v1/rules/diff", "diffRules")
            .summary("Compares the active rules with a document")
            .request_rules()
            .reply::<RulesDifference>(200, "The difference")
            .reply_example(json!({
                "added": ["uploads"], "removed": [], "changed": [{
                    "rule": "per-key", "fields": [{"field": "limit", "from": "100 per 1 s", "to": "200 per 1 s"}],
                }],
                "same": 9,
            }))
            .problem(400, INVALID_QUERY)
            .problem(413, DOCUMENT_TOO_LONG)
            .problem(415, COMPRESSED)
            .problem_with::<InvalidRules>(422, INVALID_DOCUMENT)
            .problem(503, "The server is reading other documents"),
        admin("get", "/v1/rules/history", "rulesHistory")
            .summary("Lists the versions that are kept, the latest first")
            .query_parameter("limit", "The most versions to return", limit)
            .reply::<RulesHistory>(200, "The versions")
            .problem(400, INVALID_QUERY)
            .problem(409, NOT_IN_REDIS)
            .problem(503, REDIS_DOWN),
        admin("get", "/v1/rules/status", "rulesStatus")
            .summary("Returns the version of each node")
            .reply::<RulesStatus>(200, "The nodes"),
        admin("get", "/v1/schema/rules.json", "rulesSchema")
            .summary("Returns the JSON Schema of rules")
            .untyped_reply(200, "The schema", "application/schema+json", BodySchema::Object),
        admin("get", "/v1/schema/config.json", "configSchema")
            .summary("Returns the JSON Schema of configurations")
            .untyped_reply(200, "The schema", "application/schema+json", BodySchema::Object),
    ]
}
