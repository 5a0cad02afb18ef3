//! Real NGINX, Caddy and Traefik in front of an application, asking Tidegate by `/v1/authorize`, each with the files that
//! are in `deploy/`.

mod app;
mod client;
mod proxy;

use tidegate_testkit::wait_for;

use self::app::App;
use self::client::{Answer, Client};
use self::proxy::{Kind, Patience, Proxy};
use crate::kit::{Folder, Server};

/// The rules in `deploy/`, but that no test is long enough to see a refill.
const SLOW: &str = "
rules:
  - {name: per-client, per: [ip], limit: 5 per 10 days}
  - {name: login, match: {path: /login, method: POST}, per: [ip], limit: 2 per 10 days}
";

/// An application behind a proxy that asks a Tidegate.
struct Scene {
    proxy: Proxy,
    tidegate: Server,
    app: App,
}

impl Scene {
    /// With the rules in `deploy/`: 5 per minute for each address, 2 for its logins.
    fn new(kind: Kind) -> Self {
        Self::with(kind, Patience::Long, &[])
    }

    /// With rules of the test's.
    fn ruled(kind: Kind, rules: &str, arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let rules = folder.file("rules.yaml", rules);
        Self::with(kind, Patience::Long, &[&["--rules", &rules], arguments].concat())
    }

    fn with(kind: Kind, patience: Patience, arguments: &[&str]) -> Self {
        let config = kind.file("tidegate.yaml");
        let config = ["--config", config.to_str().unwrap(), "--http", "127.0.0.1:0"];
        let tidegate = Server::with_arguments(&[&config, arguments].concat());
        let app = App::start();
        let proxy = Proxy::start(kind, patience, tidegate.address, app.address());
        let scene = Self { proxy, tidegate, app };
        // Whoever asks whether it is there is a client too, but none of those below.
        let probe = scene.client(250);
        wait_for("the proxy passes requests on", || {
            let answer = probe.try_get("/ready")?;
            matches!(answer.status, 200 | 429 | 503).then_some(())
        });
        scene
    }

    /// A client with an address of its own.
    fn client(&self, host: u8) -> Client {
        Client::at(host, self.proxy.address())
    }

    /// A client that has spent all it may, and the answer that told it so.
    fn spent(&self, host: u8) -> (Client, Answer) {
        let client = self.client(host);
        let answer = wait_for("the limit is met", || {
            let answer = client.get("/orders");
            (answer.status != 200).then_some(answer)
        });
        assert_eq!(answer.status, 429, "{answer:?}");
        (client, answer)
    }

    fn freeze(&self) {
        self.tidegate.freeze();
    }
}

fn over_its_share(kind: Kind) {
    let scene = Scene::new(kind);
    let (_, answer) = scene.spent(2);
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{answer:?}");
    assert_eq!(answer.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("0"));
    assert!(answer.header("x-ratelimit-reset").is_some(), "{answer:?}");
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""per-client";q=5;w=60"#));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    assert!(answer.body.contains(r#""status":429"#), "{answer:?}");
    // Of those that pass, the application has seen every one and no other.
    assert!(scene.app.seen("GET /orders") >= 5);
}

fn allowed(kind: Kind) {
    let scene = Scene::new(kind);
    let answer = scene.client(2).get("/orders?page=2");
    assert_eq!((answer.status, answer.body.as_str()), (200, "GET /orders?page=2 "));
    match kind {
        // What ForwardAuth gets to know it can tell the application, but not the client.
        Kind::Traefik => assert_eq!(answer.header("x-ratelimit-limit"), None),
        Kind::Nginx | Kind::Caddy => {
            assert_eq!(answer.header("x-ratelimit-limit"), Some("5"));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some("4"));
        }
    }
}

fn bodies(kind: Kind) {
    let scene = Scene::new(kind);
    let answer = scene.client(2).post("/orders", "two of those", &[]);
    assert_eq!((answer.status, answer.body.as_str()), (200, "POST /orders two of those"));
}

fn own_refusal(kind: Kind) {
    let scene = Scene::new(kind);
    let answer = scene.client(2).get("/forbidden");
    assert_eq!((answer.status, answer.body.as_str()), (403, "GET /forbidden "));
    assert_eq!(answer.header("retry-after"), None);
}

fn two_clients(kind: Kind) {
    let scene = Scene::ruled(kind, SLOW, &[]);
    let (spent, _) = scene.spent(2);
    assert_eq!(scene.client(3).get("/orders").status, 200);
    assert_eq!(spent.get("/orders").status, 429);
}

fn made_up(kind: Kind) {
    let scene = Scene::ruled(kind, SLOW, &[]);
    let (spent, _) = scene.spent(2);
    for address in ["203.0.113.9", "127.0.0.1", "203.0.113.9, 127.0.0.1", "\""] {
        let answer = spent.get_with("/orders", &[("X-Forwarded-For", address)]);
        assert_eq!(answer.status, 429, "{address}");
    }
    // Neither is it somewhere else than where it is, or does something else than it does.
    let elsewhere = [
        ("X-Original-URI", "/free"),
        ("X-Original-Method", "GET"),
        ("X-Forwarded-Uri", "/free"),
        ("X-Forwarded-Method", "GET"),
    ];
    let login = scene.client(3);
    let answer = wait_for("the limit of logins is met", || {
        let answer = login.post("/login", "", &elsewhere);
        (answer.status != 200).then_some(answer)
    });
    assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (429, Some("2")), "{answer:?}");
}

/// A head that Tidegate won't read must not look to the proxy like a Tidegate that is away.
fn long_heads(kind: Kind) {
    let scene = Scene::ruled(kind, SLOW, &[]);
    let (spent, _) = scene.spent(2);
    let filler = "x".repeat(7 * 1024);
    for lines in [1, 2, 3, 4, 5, 8, 16, 40] {
        let names: Vec<String> = (0..lines).map(|line| format!("X-Filler-{line}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), filler.as_str())).collect();
        let seen = scene.app.seen("GET /orders");
        let answer = spent.try_get_with("/orders", &headers);
        assert_ne!(answer.map(|answer| answer.status), Some(200), "{lines} long lines");
        assert_eq!(scene.app.seen("GET /orders"), seen, "{lines} long lines");
    }
    let many: Vec<String> = (0..300).map(|line| format!("X-Many-{line}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "x")).collect();
    let answer = spent.try_get_with("/orders", &many);
    assert_ne!(answer.map(|answer| answer.status), Some(200), "many lines");
}

fn without_tidegate(kind: Kind) {
    let mut scene = Scene::with(kind, Patience::Short, &[]);
    let (spent, _) = scene.spent(2);
    scene.freeze();
    for _ in 0..3 {
        let answer = spent.post("/orders", "one", &[]);
        assert_eq!((answer.status, answer.body.as_str()), (200, "POST /orders one"), "frozen");
    }
    scene.tidegate.signal("KILL");
    scene.tidegate.wait();
    for _ in 0..3 {
        let answer = spent.post("/orders", "one", &[]);
        assert_eq!((answer.status, answer.body.as_str()), (200, "POST /orders one"), "killed");
    }
}

fn fail_closed(kind: Kind) {
    let rules = "rules: [{name: paid, per: [ip], limit: 5 per minute, on_store_failure: deny}]";
    // Nobody listens there, or ever will.
    let scene = Scene::ruled(kind, rules, &["--redis", "redis://127.0.0.1:1"]);
    let answer = scene.client(2).get("/orders");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.body.contains(r#""status":503"#), "{answer:?}");
    assert_eq!(scene.app.seen("GET /orders"), 0);
}

/// The same promises through each proxy.
macro_rules! through {
    ($module:ident, $kind:expr) => {
        mod $module {
            use super::Kind;

            /// Runs a scene, if the proxy is there.
            fn run(scene: fn(Kind)) {
                if !tidegate_testkit::lacking(&[$kind.tool()]) {
                    scene($kind);
                }
            }

            #[test]
            fn a_client_over_its_share_sees_429_and_when_to_come_back() {
                run(super::over_its_share);
            }

            #[test]
            fn an_allowed_request_reaches_the_application_as_it_is() {
                run(super::allowed);
            }

            #[test]
            fn the_body_of_a_request_goes_to_the_application() {
                run(super::bodies);
            }

            #[test]
            fn a_403_of_the_application_stays_403() {
                run(super::own_refusal);
            }

            #[test]
            fn two_clients_have_two_buckets() {
                run(super::two_clients);
            }

            #[test]
            fn what_a_client_makes_up_does_not_help() {
                run(super::made_up);
            }

            #[test]
            fn a_long_head_does_not_help() {
                run(super::long_heads);
            }

            #[test]
            fn with_tidegate_frozen_or_killed_requests_pass() {
                run(super::without_tidegate);
            }

            #[test]
            fn a_rule_that_denies_on_failure_gives_503() {
                run(super::fail_closed);
            }
        }
    };
}

through!(nginx, Kind::Nginx);
through!(caddy, Kind::Caddy);
through!(traefik, Kind::Traefik);
