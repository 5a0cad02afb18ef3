//! NGINX, Caddy and Traefik with their files from `deploy/`. Each calls `/v1/authorize` of Tidegate before it forwards a
//! request to an application.

mod app;
mod client;
mod proxy;

use tidegate_testkit::wait_for;

use self::app::EchoApp;
use self::client::{LoopbackClient, ProxyResponse};
use self::proxy::{AuthorizeTimeout, Proxy, ProxyKind};
use crate::kit::{Folder, Server};

/// The rules in `deploy/` with limits per 10 days: no token refills during a test.
const RULES_WITHOUT_REFILL: &str = "
rules:
  - {name: per-client, per: [ip], limit: 5 per 10 days}
  - {name: login, match: {path: /login, method: POST}, per: [ip], limit: 2 per 10 days}
";

/// An application behind a proxy that calls Tidegate.
struct ProxySetup {
    proxy: Proxy,
    tidegate: Server,
    app: EchoApp,
}

impl ProxySetup {
    /// Starts with the rules in `deploy/`: 5 per minute for each address, 2 for its logins.
    fn new(kind: ProxyKind) -> Self {
        Self::start(kind, AuthorizeTimeout::Long, &[])
    }

    /// Starts with these rules and arguments of Tidegate.
    fn with_rules(kind: ProxyKind, rules: &str, arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let rules = folder.file("rules.yaml", rules);
        Self::start(kind, AuthorizeTimeout::Long, &[&["--rules", &rules], arguments].concat())
    }

    fn start(kind: ProxyKind, timeout: AuthorizeTimeout, arguments: &[&str]) -> Self {
        let config = kind.file("tidegate.yaml");
        let config = ["--config", config.to_str().unwrap(), "--http", "127.0.0.1:0"];
        let tidegate = Server::with_arguments(&[&config, arguments].concat());
        let app = EchoApp::start();
        let proxy = Proxy::start(kind, timeout, tidegate.address, app.address());
        let setup = Self { proxy, tidegate, app };
        // The readiness probe uses an address of its own, so that it takes no quota of a test's client.
        let probe = setup.client(250);
        wait_for("the proxy forwards requests", || {
            let response = probe.try_get("/ready")?;
            matches!(response.status, 200 | 429 | 503).then_some(())
        });
        setup
    }

    /// Returns a client with the address 127.0.0.`host`.
    fn client(&self, host: u8) -> LoopbackClient {
        LoopbackClient::new(host, self.proxy.address())
    }

    /// Returns a client that has used up its limit, and its first denial.
    fn exhausted_client(&self, host: u8) -> (LoopbackClient, ProxyResponse) {
        let client = self.client(host);
        let response = wait_for("the limit is reached", || {
            let response = client.get("/orders");
            (response.status != 200).then_some(response)
        });
        assert_eq!(response.status, 429, "{response:?}");
        (client, response)
    }

    fn freeze(&self) {
        self.tidegate.freeze();
    }
}

fn assert_denied_client_gets_429(kind: ProxyKind) {
    let setup = ProxySetup::new(kind);
    let (_, response) = setup.exhausted_client(2);
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{response:?}");
    assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    assert!(response.header("x-ratelimit-reset").is_some(), "{response:?}");
    assert_eq!(response.header("ratelimit-policy"), Some(r#""per-client";q=5;w=60"#));
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert!(response.body.contains(r#""status":429"#), "{response:?}");
    // The application has received every allowed request.
    assert!(setup.app.count_received("GET /orders") >= 5);
}

fn assert_allowed_request_is_forwarded(kind: ProxyKind) {
    let setup = ProxySetup::new(kind);
    let response = setup.client(2).get("/orders?page=2");
    assert_eq!((response.status, response.body.as_str()), (200, "GET /orders?page=2 "));
    match kind {
        // ForwardAuth can copy headers of Tidegate to the application, but not to the client.
        ProxyKind::Traefik => assert_eq!(response.header("x-ratelimit-limit"), None),
        ProxyKind::Nginx | ProxyKind::Caddy => {
            assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
            assert_eq!(response.header("x-ratelimit-remaining"), Some("4"));
        }
    }
}

fn assert_body_is_forwarded(kind: ProxyKind) {
    let setup = ProxySetup::new(kind);
    let response = setup.client(2).post("/orders", "two of those", &[]);
    assert_eq!((response.status, response.body.as_str()), (200, "POST /orders two of those"));
}

fn assert_application_403_is_kept(kind: ProxyKind) {
    let setup = ProxySetup::new(kind);
    let response = setup.client(2).get("/forbidden");
    assert_eq!((response.status, response.body.as_str()), (403, "GET /forbidden "));
    assert_eq!(response.header("retry-after"), None);
}

fn assert_buckets_are_separate(kind: ProxyKind) {
    let setup = ProxySetup::with_rules(kind, RULES_WITHOUT_REFILL, &[]);
    let (exhausted, _) = setup.exhausted_client(2);
    assert_eq!(setup.client(3).get("/orders").status, 200);
    assert_eq!(exhausted.get("/orders").status, 429);
}

fn assert_forged_headers_are_ignored(kind: ProxyKind) {
    let setup = ProxySetup::with_rules(kind, RULES_WITHOUT_REFILL, &[]);
    let (exhausted, _) = setup.exhausted_client(2);
    for address in ["203.0.113.9", "127.0.0.1", "203.0.113.9, 127.0.0.1", "\""] {
        let response = exhausted.get_with("/orders", &[("X-Forwarded-For", address)]);
        assert_eq!(response.status, 429, "{address}");
    }
    // Forged headers change neither the path nor the method that Tidegate checks.
    let forged = [
        ("X-Original-URI", "/free"),
        ("X-Original-Method", "GET"),
        ("X-Forwarded-Uri", "/free"),
        ("X-Forwarded-Method", "GET"),
    ];
    let login = setup.client(3);
    let response = wait_for("the limit of logins is reached", || {
        let response = login.post("/login", "", &forged);
        (response.status != 200).then_some(response)
    });
    assert_eq!(
        (response.status, response.header("x-ratelimit-limit")),
        (429, Some("2")),
        "{response:?}"
    );
}

/// A proxy forwards requests while Tidegate is down. It must not forward one that Tidegate rejects as too large.
fn assert_oversized_headers_are_denied(kind: ProxyKind) {
    let setup = ProxySetup::with_rules(kind, RULES_WITHOUT_REFILL, &[]);
    let (exhausted, _) = setup.exhausted_client(2);
    let filler = "x".repeat(7 * 1024);
    for lines in [1, 2, 3, 4, 5, 8, 16, 40] {
        let names: Vec<String> = (0..lines).map(|line| format!("X-Filler-{line}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), filler.as_str())).collect();
        let received = setup.app.count_received("GET /orders");
        let response = exhausted.try_get_with("/orders", &headers);
        assert_ne!(response.map(|response| response.status), Some(200), "{lines} long lines");
        assert_eq!(setup.app.count_received("GET /orders"), received, "{lines} long lines");
    }
    let many: Vec<String> = (0..300).map(|line| format!("X-Many-{line}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    let response = exhausted.try_get_with("/orders", &many);
    assert_ne!(response.map(|response| response.status), Some(200), "many lines");
}

fn assert_spellings_have_one_limit(kind: ProxyKind) {
    let setup = ProxySetup::with_rules(kind, RULES_WITHOUT_REFILL, &[]);
    let client = setup.client(2);
    for _ in 0..2 {
        assert_eq!(client.post("/login", "", &[]).status, 200);
    }
    let received = setup.app.count_received("POST ");
    for path in ["/login", "//login", "/./login", "/x/../login", "/%2e/login", "/l%6fgin"] {
        assert_eq!(client.post(path, "", &[]).status, 429, "{path}");
    }
    // Caddy and Traefik reject some of these, or forward the status of the check.
    for path in ["/%2Flogin", "/x/..%2flogin", "/%zz/../login", "/\\login", "/%00/login"] {
        let status = client.post(path, "", &[]).status;
        assert!(matches!(status, 400 | 404 | 429), "{path}: {status}");
    }
    assert_eq!(setup.app.count_received("POST "), received);
}

fn assert_requests_pass_without_tidegate(kind: ProxyKind) {
    let mut setup = ProxySetup::start(kind, AuthorizeTimeout::Deployed, &[]);
    let (exhausted, _) = setup.exhausted_client(2);
    setup.freeze();
    for _ in 0..3 {
        let response = exhausted.post("/orders", "one", &[]);
        assert_eq!((response.status, response.body.as_str()), (200, "POST /orders one"), "frozen");
    }
    setup.tidegate.signal("KILL");
    setup.tidegate.wait();
    for _ in 0..3 {
        let response = exhausted.post("/orders", "one", &[]);
        assert_eq!((response.status, response.body.as_str()), (200, "POST /orders one"), "killed");
    }
}

fn assert_store_failure_returns_503(kind: ProxyKind) {
    let rules = "rules: [{name: paid, per: [ip], limit: 5 per minute, on_store_failure: deny}]";
    // Nothing listens on port 1.
    let setup = ProxySetup::with_rules(kind, rules, &["--redis", "redis://127.0.0.1:1"]);
    let response = setup.client(2).get("/orders");
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("retry-after"), Some("1"));
    assert!(response.body.contains(r#""status":503"#), "{response:?}");
    assert_eq!(setup.app.count_received("GET /orders"), 0);
}

/// Defines the same tests for each proxy.
macro_rules! proxy_tests {
    ($module:ident, $kind:expr) => {
        mod $module {
            use super::ProxyKind;

            /// Runs a test, if the proxy is installed.
            fn run(test: fn(ProxyKind)) {
                if !tidegate_testkit::lacking(&[$kind.tool()]) {
                    test($kind);
                }
            }

            #[test]
            fn denied_client_gets_429_with_retry_after() {
                run(super::assert_denied_client_gets_429);
            }

            #[test]
            fn allowed_request_reaches_the_application_unchanged() {
                run(super::assert_allowed_request_is_forwarded);
            }

            #[test]
            fn request_body_reaches_the_application() {
                run(super::assert_body_is_forwarded);
            }

            #[test]
            fn application_403_reaches_the_client() {
                run(super::assert_application_403_is_kept);
            }

            #[test]
            fn each_client_address_has_its_own_bucket() {
                run(super::assert_buckets_are_separate);
            }

            #[test]
            fn forged_headers_do_not_bypass_the_limit() {
                run(super::assert_forged_headers_are_ignored);
            }

            #[test]
            fn spellings_of_a_path_do_not_bypass_the_limit() {
                run(super::assert_spellings_have_one_limit);
            }

            #[test]
            fn oversized_headers_do_not_bypass_the_limit() {
                run(super::assert_oversized_headers_are_denied);
            }

            #[test]
            fn requests_pass_while_tidegate_is_frozen_or_killed() {
                run(super::assert_requests_pass_without_tidegate);
            }

            #[test]
            fn rule_that_denies_on_store_failure_returns_503() {
                run(super::assert_store_failure_returns_503);
            }
        }
    };
}

proxy_tests!(nginx, ProxyKind::Nginx);
proxy_tests!(caddy, ProxyKind::Caddy);
proxy_tests!(traefik, ProxyKind::Traefik);
