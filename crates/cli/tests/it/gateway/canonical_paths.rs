//! One canonical form of a request, between raw clients and upstreams that resolve paths in their own way.

use std::net::SocketAddr;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;
use tidegate_testkit::{Port, Process, RawUpstream, Tool, UpstreamAction, lacking, wait_for};

use super::GatewayServer;
use super::client::{HttpClient, request};
use crate::kit::Folder;

/// A program with `POST /login`, and the condition on the path that the guide recommends for it.
#[derive(Clone, Copy, Debug)]
enum LoginServer {
    Nginx,
    Flask,
    Django,
    Express,
}

impl LoginServer {
    fn tool(self) -> Tool {
        match self {
            Self::Nginx => Tool::Nginx,
            Self::Flask | Self::Django => Tool::PythonWeb,
            Self::Express => Tool::Express,
        }
    }

    fn condition(self) -> &'static str {
        match self {
            Self::Nginx | Self::Django => "/login",
            Self::Flask => "{like: /login, ignore: trailing_slash}",
            Self::Express => "{like: /login, ignore: [case, trailing_slash]}",
        }
    }

    /// Returns the spellings of `POST /login` that the program itself accepts, apart from `/login`.
    fn accepted_spellings(self) -> &'static [&'static str] {
        match self {
            Self::Nginx => {
                &["//login", "/./login", "/x/../login", "/%2e/login", "/%2Flogin", "/l%6Fgin"]
            }
            Self::Flask => &["/login/", "/l%6Fgin"],
            Self::Django => &["/l%6Fgin"],
            Self::Express => &["/login/", "/LOGIN", "/LoGiN/"],
        }
    }

    fn start(self) -> RunningServer {
        let folder = Folder::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/gateway");
        let tool = self.tool().path().unwrap();
        let script = |program: &str, variable: &str, arguments: &[&str]| {
            let mut command = Process::command(program);
            command.env(variable, &tool).env("PYTHONDONTWRITEBYTECODE", "1");
            command.arg(source.join(arguments[0])).args(&arguments[1..]);
            let process = Process::spawn(command);
            let port: u16 = process.stdout().next().unwrap().parse().unwrap();
            (process, SocketAddr::from(([127, 0, 0, 1], port)), None)
        };
        let (process, address, port) = match self {
            Self::Nginx => {
                let port = Port::free();
                let file = folder.file("nginx.conf", &nginx_conf(port.number()));
                let mut command = Process::command(&tool);
                command.args(["-p", folder.path(), "-c", &file]);
                let address = SocketAddr::from(([127, 0, 0, 1], port.number()));
                (Process::spawn(command), address, Some(port))
            }
            Self::Flask => script("python3", "PYTHONPATH", &["login_app.py", "flask"]),
            Self::Django => script("python3", "PYTHONPATH", &["login_app.py", "django"]),
            Self::Express => script("node", "NODE_PATH", &["login_app.js"]),
        };
        wait_for("the upstream accepts connections", || HttpClient::try_connect(address).ok());
        RunningServer { address, _process: process, _port: port, _folder: folder }
    }
}

struct RunningServer {
    address: SocketAddr,
    _process: Process,
    _port: Option<Port>,
    _folder: Folder,
}

impl RunningServer {
    /// Returns whether the program itself treats this request as a login.
    fn accepts(&self, method: &str, target: &str) -> bool {
        send(self.address, method, target).is_some_and(|(_, body)| body == "login")
    }

    /// Starts a gateway in front of the program. Its only client has used up 5 logins.
    fn exhausted_gateway(&self, server: LoginServer) -> GatewayServer {
        let condition = server.condition();
        let rules = format!(
            "rules: [{{name: login, match: {{path: {condition}, method: POST}}, limit: 5 per 10 days}}]"
        );
        let gateway = GatewayServer::with_rules(&format!("http://{}", self.address), &rules);
        for _ in 0..5 {
            let response = send(gateway.address(), "POST", "/login");
            assert_eq!(response, Some((200, "login".to_owned())), "{server:?}");
        }
        assert_eq!(send(gateway.address(), "POST", "/login").unwrap().0, 429, "{server:?}");
        gateway
    }
}

fn nginx_conf(port: u16) -> String {
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ return 404; }}
        location = /login {{ return 200 login; }}
    }}
}}
"
    )
}

/// Sends a request on a new connection. Returns the status and the body; `None` if the server closes instead.
fn send(address: SocketAddr, method: &str, target: &str) -> Option<(u16, String)> {
    let mut client = HttpClient::connect(address);
    let fields = [("Connection", "close"), ("Content-Length", "0")];
    let fields = if method == "POST" { &fields[..1] } else { &fields[..] };
    client.write(request(method, target, fields, ""));
    let response = client.try_receive(method)?;
    Some((response.status, String::from_utf8_lossy(&response.body).into_owned()))
}

/// The spellings that bypassed the limit before requests were canonical.
const BYPASSES: [(&str, &str); 10] = [
    ("POST", "//login"),
    ("POST", "/./login"),
    ("POST", "/x/../login"),
    ("POST", "/%2e/login"),
    ("POST", "/%2Flogin"),
    ("POST", "/login/"),
    ("POST", "/LOGIN"),
    ("POST", "/l%6Fgin"),
    ("POST", "/LoGiN/"),
    ("post", "/login"),
];

fn assert_login_limit_is_not_bypassed(server: LoginServer) {
    if lacking(&[server.tool()]) {
        return;
    }
    let upstream = server.start();
    for spelling in server.accepted_spellings() {
        assert!(upstream.accepts("POST", spelling), "{server:?} no longer accepts {spelling}");
    }
    let gateway = upstream.exhausted_gateway(server);
    for (method, target) in BYPASSES {
        let response = send(gateway.address(), method, target);
        let is_login = response.as_ref().is_some_and(|(_, body)| body == "login");
        assert!(!is_login, "{server:?} {method} {target}: {response:?}");
    }
}

/// Generates spellings of `/login`, some of which an upstream resolves to it.
fn login_spelling() -> impl Strategy<Value = String> {
    let before = ["/", "/.", "/x/..", "/%2e", "/x/%2E%2e", "%2F", "/;a/..", "/x/y/../.."];
    let after = ["/", "/.", "//", "/x/..", "/%2e", "%2F", ";a", "?a=/", "/./", "%5C", "%00", "%20"];
    let letter = |plain: char| {
        let upper = plain.to_ascii_uppercase();
        let escaped = |letter: char| format!("%{:02x}", u32::from(letter));
        prop_oneof![
            8 => Just(plain.to_string()),
            1 => Just(upper.to_string()),
            1 => Just(escaped(plain)),
            1 => Just(escaped(plain).to_ascii_uppercase()),
            1 => Just(escaped(upper)),
        ]
    };
    let word = "login".chars().map(letter).collect::<Vec<_>>();
    let pieces = |pieces: &[&'static str]| {
        proptest::collection::vec(select(pieces.to_vec()), 0..3).prop_map(|pieces| pieces.concat())
    };
    (pieces(&before), word, pieces(&after))
        .prop_map(|(before, word, after)| format!("{before}/{}{after}", word.concat()))
}

/// Checks that every spelling that the program accepts as a login is counted as one.
fn assert_accepted_spellings_are_one_path(server: LoginServer) {
    if lacking(&[server.tool()]) {
        return;
    }
    let upstream = server.start();
    let gateway = upstream.exhausted_gateway(server);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    proptest!(config, |(target in login_spelling())| {
        if upstream.accepts("POST", &target) {
            let status = send(gateway.address(), "POST", &target).map(|(status, _)| status);
            prop_assert!(matches!(status, Some(400 | 429)), "{:?} {}: {:?}", server, target, status);
        }
    });
}

#[test]
fn login_limit_before_nginx_is_not_bypassed_by_spelling() {
    assert_login_limit_is_not_bypassed(LoginServer::Nginx);
}

#[test]
fn login_limit_before_flask_is_not_bypassed_by_spelling() {
    assert_login_limit_is_not_bypassed(LoginServer::Flask);
}

#[test]
fn login_limit_before_django_is_not_bypassed_by_spelling() {
    assert_login_limit_is_not_bypassed(LoginServer::Django);
}

#[test]
fn login_limit_before_express_is_not_bypassed_by_spelling() {
    assert_login_limit_is_not_bypassed(LoginServer::Express);
}

#[test]
fn spellings_that_nginx_accepts_are_one_path() {
    assert_accepted_spellings_are_one_path(LoginServer::Nginx);
}

#[test]
fn spellings_that_flask_accepts_are_one_path() {
    assert_accepted_spellings_are_one_path(LoginServer::Flask);
}

#[test]
fn spellings_that_django_accepts_are_one_path() {
    assert_accepted_spellings_are_one_path(LoginServer::Django);
}

#[test]
fn spellings_that_express_accepts_are_one_path() {
    assert_accepted_spellings_are_one_path(LoginServer::Express);
}

/// Starts an upstream that responds with the target that it received.
fn target_echo() -> RawUpstream {
    RawUpstream::start(|_, head| UpstreamAction::ok(head.split(' ').nth(1).unwrap_or_default()))
}

#[test]
fn upstream_gets_the_canonical_path_and_the_original_query() {
    let upstream = target_echo();
    let gateway = GatewayServer::forward_to(&upstream.url());
    for (target, forwarded) in [
        ("/a/./b//%63?x=//y/../%zz", "/a/b/c?x=//y/../%zz"),
        ("http://other.example//a/../b", "/b"),
        ("/a;v=1/%252e%252e", "/a;v=1/%252e%252e"),
        ("/.well-known/x", "/.well-known/x"),
    ] {
        let response = send(gateway.address(), "GET", target);
        assert_eq!(response, Some((200, forwarded.to_owned())), "{target}");
    }
    let response = send(gateway.address(), "OPTIONS", "*");
    assert_eq!(response, Some((200, "*".to_owned())));
}

#[test]
fn requests_without_a_canonical_form_get_400_and_are_counted() {
    let upstream = target_echo();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let requests = [
        ("GET", "/%zz"),
        ("GET", "/a%2Fb"),
        ("GET", "/a%5cb"),
        ("GET", "/a\\b"),
        ("GET", "/a%00"),
        ("GET", "/a/..;/b"),
        ("post", "/a"),
        ("GET", "*"),
    ];
    for (method, target) in requests {
        let response = send(gateway.address(), method, target);
        assert_eq!(response.map(|(status, _)| status), Some(400), "{method} {target}");
    }
    for host in ["shop.example:x", "shop.example..", ":80:80", "a b", "[::1", "a/b"] {
        let mut client = gateway.connect();
        client.write(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(client.receive("GET").status, 400, "{host}");
    }
    assert!(upstream.received().is_empty());
    let metrics = gateway.server.request_admin("GET", "/metrics", "").body;
    let invalid = r#"tidegate_checks_total{listener="gateway",answer="invalid"} 14"#;
    assert!(metrics.contains(invalid), "{metrics}");
}

/// Returns a configuration with routes in front of one upstream.
fn config_with_routes(upstream: &RawUpstream, routes: &str) -> String {
    let url = upstream.url();
    format!("gateway: {{upstreams: [{{name: app, servers: ['{url}']}}], routes: [{routes}]}}\n")
}

#[test]
fn route_can_keep_encoded_slashes() {
    let upstream = target_echo();
    let routes = "{path: '/v2/**', encoded_slashes: keep}, {}";
    let config = config_with_routes(&upstream, routes);
    let rules =
        "rules: [{name: manifest, match: {path: '/v2/group%2Fproject/*'}, limit: 1 per 10 days}]";
    let gateway = GatewayServer::launch(&[], &config, rules);
    let response = send(gateway.address(), "GET", "/v2//group%2fproject/x");
    assert_eq!(response, Some((200, "/v2/group%2Fproject/x".to_owned())));
    assert_eq!(send(gateway.address(), "GET", "/v2/group%2Fproject/y").unwrap().0, 429);
    // The encoded slash does not hide a dot segment from the choice of the route.
    assert_eq!(send(gateway.address(), "GET", "/v2/../a%2Fb").unwrap().0, 400);
}

#[test]
fn route_can_forward_the_original_path_of_a_signed_url() {
    let upstream = target_echo();
    let routes = "{path: '/files/**', forward_path: original}, {}";
    let config = config_with_routes(&upstream, routes);
    let rules = "rules: [{name: file, match: {path: '/files/a b'}, limit: 1 per 10 days}, \
                 {name: escaped, match: {path: '/files/a%20b'}, limit: 2 per 10 days}]";
    let gateway = GatewayServer::launch(&[], &config, rules);
    for target in ["/files//%61%20b?signature=1", "/x/../files/./a%20b"] {
        let response = send(gateway.address(), "GET", target);
        assert_eq!(response, Some((200, target.to_owned())));
    }
    assert_eq!(send(gateway.address(), "GET", "/files/%61%20b").unwrap().0, 429);
}
