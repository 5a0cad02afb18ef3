//! Output and exit codes of `validate`, `explain`, `check` and `--help`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::kit::{Folder, Server, exit_code_and_output, run, tidegate, without_excerpts};

const RULES: &str = r#"
rules:
  - name: api-per-key
    match: {path: "/v1/**", method: [GET, POST]}
    per: [user | api_key]
    limit: 100 per second
    burst: 200
    tiers: {by: claim.plan, limits: {free: 10 per second, pro: 100 per second}}
    overrides: [{match: {api_key: partner-1}, limit: 5000 per second, until: 2200-01-01T00:00:00Z}]
  - name: login
    match: {path: /login, method: POST}
    per: [ip, path]
    limit: 5 per minute
    algorithm: fixed_window
    penalty: {after: 10x, within: 1m, block: 10m}
  - name: all
    limit: 10 per second
    algorithm: leaky_bucket
    queue: 20
    mode: shadow
  - name: old
    limit: 5/s
    mode: off
"#;

#[test]
fn validate_prints_the_bound_of_each_rule() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let (code, stdout, stderr) = run(&["validate", &rules]);
    assert_eq!((code, stderr), (0, format!("{rules}: 4 rules, valid\n")));
    let expected = "\
api-per-key: 100 per 1 s, burst 200 (token_bucket): at most 300 in any 1 s
  claim.plan \"free\": 10 per 1 s (token_bucket): at most 20 in any 1 s
  claim.plan \"pro\": 100 per 1 s (token_bucket): at most 200 in any 1 s
  override 1 by api_key until 2200-01-01T00:00:00Z: 5000 per 1 s (token_bucket): at most 10000 in any 1 s
login: 5 per 60 s (fixed_window): at most 10 in any 60 s, 5 in each window aligned to the clock
  penalty: blocks a client for 10 min after 50 denied requests within 60 s (10 times the limit)
all: 10 per 1 s, queue 20 (leaky_bucket): at most 11 in any 1 s, in shadow mode: counts and never denies
old: 5 per 1 s (token_bucket): at most 10 in any 1 s, but it is off
";
    assert_eq!(stdout, expected);
    // A configuration is validated together with its rules file.
    let config = folder.file("any-name.yaml", "rules: {file: rules.yaml}\nheaders: {ietf: off}\n");
    let (code, stdout, stderr) = run(&["validate", &config]);
    assert_eq!((code, &*stdout, stderr), (0, expected, format!("{config}: 4 rules, valid\n")));
}

#[test]
fn validate_counts_routes_and_upstreams_of_a_gateway() {
    let folder = Folder::new();
    let upstream = "gateway: {upstreams: [{name: a, servers: ['http://a']}]}\n";
    let inline = "rules: {inline: [{name: a, limit: 1/s}]}\n";
    let rules = "a: 1 per 1 s (token_bucket): at most 2 in any 1 s\n";
    for (text, stdout, summary) in [
        (upstream.to_owned(), "", "1 route to 1 upstream, valid, without rules on this machine"),
        (format!("{upstream}{inline}"), rules, "1 rule, 1 route to 1 upstream, valid"),
        ("gateway: {max_wait: 5s}".to_owned(), "", "valid, without rules on this machine"),
    ] {
        let config = folder.file("any-name.yaml", &text);
        let printed = run(&["validate", &config]);
        assert_eq!(printed, (0, stdout.to_owned(), format!("{config}: {summary}\n")));
    }
    assert_validate_errors(
        "any-name.yaml",
        "gateway:\n  upstreams:\n    - name: api\n      servers: [ftp://a]\n      max_in_flight: lots\n",
        r#"any-name.yaml:4: gateway.upstreams.servers must be a URL like http://127.0.0.1:3000, https:// or h2c://, found "ftp://a"
any-name.yaml:5: gateway.upstreams.max_in_flight must be a whole number from 1 to 1000000, found "lots"
  |
5 |       max_in_flight: lots
  |                      ^^^^
"#,
    );
}

#[test]
fn validate_prints_five_overrides_and_counts_the_rest() {
    let folder = Folder::new();
    let overrides: Vec<String> =
        (0..8).map(|index| format!("{{match: {{user: u{index}}}, limit: 9/s}}")).collect();
    let rules = format!("rules: [{{name: a, limit: 1/s, overrides: [{}]}}]", overrides.join(", "));
    let (code, stdout, _) = run(&["validate", &folder.file("rules.yaml", &rules)]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), 7);
    assert_eq!(lines[5], "  override 5 by user: 9 per 1 s (token_bucket): at most 18 in any 1 s");
    assert_eq!(lines[6], "  and 3 more overrides");
}

#[test]
fn validate_reports_every_error_with_its_line() {
    let folder = Folder::new();
    let good = folder.file("good.yaml", "rules: [{name: a, limit: 1/s}]");
    let bad = folder.file(
        "bad.yaml",
        "rules:\n  - name: login\n    limit: 5 per 0 minutes\n  - name: api\n    limt: 5/s\n",
    );
    let config = folder.file(
        "tidegate.yaml",
        "listen: {http: here}\nstore:\n  memory: {max_keys: 0}\nheaders: {reset: soon}\n",
    );
    let inline = folder.file(
        "inline.yaml",
        "store: {memory: {max_keys: 1_000}}\nrules:\n  inline:\n    - name: api\n      limit: lots\n",
    );
    let (code, stdout, stderr) = run(&["validate", &good, &bad, &config, &inline]);
    assert_eq!(code, 1);
    assert_eq!(stdout, "a: 1 per 1 s (token_bucket): at most 2 in any 1 s\n");
    let stderr = without_excerpts(&stderr);
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(lines[0], format!("{good}: 1 rule, valid"));
    assert!(lines[1].starts_with(&format!("{bad}:3: rule \"login\": window must be")), "{stderr}");
    assert!(lines[2].starts_with(&format!("{bad}:4: rule \"api\": limit is missing")), "{stderr}");
    assert!(lines[3].starts_with(&format!("{bad}:5: rule \"api\": rule has no key")), "{stderr}");
    assert_eq!(
        lines[4..7],
        [
            format!(
                "{config}:1: listen.http must be an address like 127.0.0.1:8080, or off, found \"here\""
            ),
            format!(
                "{config}:3: store.memory.max_keys must be a whole number from 1 to 1000000000, found \"0\""
            ),
            format!("{config}:4: headers.reset must be one of delta, epoch, found \"soon\""),
        ]
    );
    assert!(lines[7].starts_with(&format!("{inline}:5: rule \"api\": limit must")), "{stderr}");
    assert_eq!(lines.len(), 8);
}

#[test]
fn validate_warns_about_rules_without_effect_and_fails_if_strict() {
    let folder = Folder::new();
    let rules = folder.file(
        "rules.yaml",
        "rules:\n  - {name: a, limit: 1/s, per: [apikey]}\n  - {name: b, limit: 1/s, match: {method: get, tenent: t}}\n",
    );
    let found = [
        format!(
            r#"{rules}:2: warning: rule "a": per: found attribute "apikey", which no listener and no configuration sets, wanted api_key"#
        ),
        format!(
            r#"{rules}:3: warning: rule "b": match.method: found "get", which no HTTP request has, wanted "GET""#
        ),
        format!("{rules}: 2 rules, valid, 2 warnings"),
    ];
    for (flags, status) in [(&[][..], 0), (&["--strict"][..], 1)] {
        let (code, stdout, stderr) = run(&[&["validate", &rules], flags].concat());
        assert_eq!((code, stdout.lines().count()), (status, 2), "{stderr}");
        assert_eq!(without_excerpts(&stderr).lines().collect::<Vec<_>>(), found);
    }
    // The configuration defines an attribute that looks like a misspelling, and one that is misspelt.
    let config = folder.file(
        "tidegate.yaml",
        "identity: {attributes: {apikey: header.x-key, tenant: header.x-tenant}}\nrules: {file: rules.yaml}\n",
    );
    for files in [&[&*config][..], &[&*config, &*rules][..]] {
        let (_, _, stderr) = run(&[&["validate"], files].concat());
        assert!(!stderr.contains("apikey") && stderr.contains("wanted tenant"), "{stderr}");
    }
    let good = folder.file("good.yaml", "rules: [{name: a, limit: 1/s, per: [plan]}]");
    assert_eq!(run(&["validate", "--strict", &good]).0, 0);
}

#[test]
fn serve_logs_warnings_of_the_active_rules_and_lists_them() {
    let server = Server::with_rules("rules: [{name: a, limit: 1/s, per: [apikey]}]");
    let line = server.wait_for_log("part of a rule has no effect");
    assert!(line.contains("wanted api_key") && line.contains("line=1"), "{line}");
    let rules = server.request_admin("GET", "/v1/rules", "").json();
    assert_eq!(rules["warnings"][0]["line"], 1);
    let message = rules["warnings"][0]["message"].as_str().unwrap();
    assert!(message.starts_with(r#"rule "a": per: found attribute "apikey""#), "{message}");
}

#[test]
fn validate_rejects_a_reserved_rule_name() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", "rules: [{name: cl.throttle, limit: 1/s}]");
    let (code, _, stderr) = run(&["validate", &rules]);
    assert_eq!(code, 1);
    assert!(stderr.contains("this name is reserved, choose another"), "{stderr}");
}

#[test]
fn validate_reports_the_accepted_values_of_a_setting() {
    let folder = Folder::new();
    for (text, error) in [
        (
            "headers: {rest: delta}",
            "1: there is no key \"rest\", wanted reset, ietf, rls (did you mean reset?)",
        ),
        ("listen: 5", "1: listen must be a map, found \"5\""),
        ("listen:\n  - a", "2: listen must be a map, found a list"),
        ("listen: {http: [a]}", "1: http must be a text, found a list"),
        ("listen: {http: a, http: b}", "1: keys must be unique, found \"http\" twice"),
        ("[a]", "1: the document must be a map, found a list"),
        ("rules: {}", "1: rules must have one of file, redis, url, inline, or envoy, found none"),
        (
            "rules: {file: a, inline: []}",
            "1: rules must have one of file, redis, url, inline, or envoy, found file and inline",
        ),
        ("admin: {token: secret}", "1: admin.token must be 16 to 256 characters long, found 6"),
        (
            "admin:\n  token: not a secret at all",
            "2: admin.token must be letters, digits and signs without spaces, found others",
        ),
        ("tls: {key: k.pem}", "1: tls must have certificate and key, found at most one"),
        (
            "tls: {key: k, certificate: c, listeners: [http, side]}",
            "1: tls.listeners must be some of http, grpc, resp, admin, gateway, found \"side\"",
        ),
        ("drain: {delay: soon}", "1: drain.delay must be a time like 5s or 0s, found \"soon\""),
        ("headers: {ietf: 12}", "1: headers.ietf must be one of 11, 6, off, found \"12\""),
    ] {
        let config = folder.file("tidegate.yaml", text);
        let (code, _, stderr) = run(&["validate", &config]);
        let errors = without_excerpts(&stderr);
        assert_eq!((code, errors), (1, format!("{config}:{error}\n")), "{text}");
    }
}

/// Validates an invalid file, and compares everything that is printed to stderr.
fn assert_validate_errors(name: &str, text: &str, expected: &str) {
    let folder = Folder::new();
    let path = folder.file(name, text);
    let (code, stdout, stderr) = run(&["validate", &path]);
    assert_eq!((code, &*stdout), (1, ""));
    assert_eq!(stderr.replace(&format!("{}/", folder.path()), ""), expected);
}

#[test]
fn validate_shows_each_invalid_line_with_a_suggestion() {
    assert_validate_errors(
        "rules.yaml",
        r#"rules:
  - name: login
    match: {path: /login, api_key: {presnt: true}}
    per: [ip]
    limt: 5 per minute
    mode: enforced
  - name: api
    limit: 100 per fortnight  # too long
    algorithm: token-bucket
    on_store_failure: reject
"#,
        r#"rules.yaml:2: rule "login": limit is missing
  |
2 |   - name: login
  |     ^
rules.yaml:3: rule "login": match.api_key has no key "presnt", wanted like, is, in, present, absent, not or ignore (did you mean present?)
  |
3 |     match: {path: /login, api_key: {presnt: true}}
  |                                     ^^^^^^
rules.yaml:5: rule "login": rule has no key "limt", wanted name, match, per, limit, burst, queue, hold, algorithm, tiers, overrides, accuracy, sync, max_ahead, shards, hot, on_store_failure, mode, rollout, penalty or caller_refunds (did you mean limit?)
  |
5 |     limt: 5 per minute
  |     ^^^^
rules.yaml:6: rule "login": mode must be enforce, shadow or off, found "enforced" (did you mean enforce?)
  |
6 |     mode: enforced
  |           ^^^^^^^^
rules.yaml:8: rule "api": unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "fortnight"
  |
8 |     limit: 100 per fortnight  # too long
  |            ^^^^^^^^^^^^^^^^^
rules.yaml:9: rule "api": algorithm must be token_bucket, leaky_bucket, fixed_window, sliding_window, sliding_log or concurrency, found "token-bucket" (did you mean token_bucket?)
  |
9 |     algorithm: token-bucket
  |                ^^^^^^^^^^^^
rules.yaml:10: rule "api": on_store_failure must be allow, deny or local, found "reject"
   |
10 |     on_store_failure: reject
   |                       ^^^^^^
"#,
    );
    assert_validate_errors(
        "rules.yaml",
        "rules:\n  - name: a: b\n",
        "rules.yaml:2: mapping values are not allowed in this context
  |
2 |   - name: a: b
  |            ^
",
    );
}

#[test]
fn validate_shows_configuration_lines_without_secrets() {
    assert_validate_errors(
        "tidegate.yaml",
        "listen: {http: here}\nheaders:\n  reset: delte\nadmin:\n  token: hunter2\n",
        r#"tidegate.yaml:1: listen.http must be an address like 127.0.0.1:8080, or off, found "here"
  |
1 | listen: {http: here …
  |                ^^^^
tidegate.yaml:5: admin.token must be 16 to 256 characters long, found 7
tidegate.yaml:3: headers.reset must be one of delta, epoch, found "delte" (did you mean delta?)
  |
3 |   reset: delte
  |          ^^^^^
"#,
    );
    assert_validate_errors(
        "tidegate.yaml",
        "listen: {http: off}\nresp:\n  pasword: hunter2\n",
        r#"tidegate.yaml:3: there is no key "pasword", wanted password, password_file (did you mean password?)
  |
3 |   pasword: …
  |   ^^^^^^^
"#,
    );
    assert_validate_errors(
        "tidegate.yaml",
        "lisen: {http: off}\n",
        r#"tidegate.yaml:1: there is no key "lisen", wanted listen, store, rules, headers, on_invalid_call, resp, identity, admin, tls, drain, connections, gateway (did you mean listen?)
  |
1 | lisen: …
  | ^^^^^
"#,
    );
    // A file with a syntax error is recognised as a configuration by its keys. No line is shown, because any line
    // may contain a secret.
    assert_validate_errors(
        "any.yaml",
        "listen: {http: off}\ndrain: {delay: 'hunter2\n",
        "any.yaml:2: unclosed quote\n",
    );
}

#[test]
fn validate_shows_invalid_lines_of_envoy_files() {
    assert_validate_errors(
        "limits.yaml",
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: minutes, requests_per_unit: 5}\n",
        r#"limits.yaml:4: unit must be one of second, minute, hour, day, week, month, year, found "minutes" (did you mean minute?)
  |
4 |     rate_limit: {unit: minutes, requests_per_unit: 5}
  |                        ^^^^^^^
"#,
    );
}

#[test]
fn validate_distinguishes_invalid_from_unreadable_files() {
    let folder = Folder::new();
    let (bad, empty) = (folder.file("bad.yaml", "rules: 5"), Folder::new());
    let (code, _, stderr) = run(&["validate", empty.path(), "no/such/file.yaml", &bad]);
    assert_eq!(code, 2);
    let lines: Vec<&str> = stderr.lines().collect();
    let wanted = "*.yaml or *.yml files are wanted, found none";
    assert_eq!(lines[0], format!("error: {}: {wanted}", empty.path()));
    assert!(lines[1].starts_with("error: no/such/file.yaml: No such file"), "{stderr}");
    assert_eq!(lines[2], format!("{bad}:1: rules must be a list, found \"5\""));
}

#[test]
fn explain_prints_the_canonical_path_of_another_spelling() {
    let folder = Folder::new();
    let rules = "rules: [{name: login, match: {path: {like: /login, ignore: case}}, limit: 1/s}]";
    let rules = folder.file("rules.yaml", rules);
    let explain = |arguments: &[&str]| run(&[&["explain", "--rules", &rules], arguments].concat());
    let (code, stdout, stderr) = explain(&["//x/..//LOGIN?a"]);
    assert_eq!((code, &*stderr), (0, ""));
    assert!(stdout.starts_with("GET //x/..//LOGIN?a\n  canonical path: /LOGIN\n"), "{stdout}");
    assert!(stdout.contains("login applies"), "{stdout}");
    let (_, stdout, _) = explain(&["/login"]);
    assert!(!stdout.contains("canonical path"), "{stdout}");
    let (_, stdout, stderr) = explain(&["/a%2fb"]);
    assert!(stderr.contains("encoded_slashes: keep"), "{stderr}");
    assert!(stdout.contains("  canonical path: /a%2Fb\n"), "{stdout}");
    assert!(stdout.contains("wanted \"/login\" in any case"), "{stdout}");
    for rejected in [&["/a%zz"][..], &["-X", "post", "/login"], &["http://shop.example:x/"]] {
        let (code, _, stderr) = explain(rejected);
        assert_eq!(code, 1, "{rejected:?}: {stderr}");
        assert!(stderr.contains("no canonical form"), "{rejected:?}: {stderr}");
    }
}

#[test]
fn explain_shows_key_limit_and_reason_for_each_rule() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let (code, stdout, stderr) = run(&[
        "explain",
        "--rules",
        &rules,
        "-H",
        "X-API-Key: partner-1",
        "http://API.example:8080/v1/orders?page=2",
        "--cost",
        "3",
    ]);
    assert_eq!((code, &*stderr), (0, ""));
    assert_eq!(
        stdout,
        "\
GET http://API.example:8080/v1/orders?page=2
  method            GET
  host              api.example
  path              /v1/orders
  ip                127.0.0.1
  api_key           partner-1
  query.page        2
  header.x-api-key  partner-1
  header.host       API.example:8080

api-per-key applies
  key      api_key \"partner-1\", of user | api_key
  limit    5000 per 1 s (token_bucket), override 1 by api_key until 2200-01-01T00:00:00Z
  bound    at most 10000 in any 1 s
  left     all 5000, for a new client
  cost     3, fits

login does not apply
  because  path is \"/v1/orders\", wanted \"/login\"

all applies, in shadow mode: it counts and never denies
  key      none, all requests share one bucket
  limit    10 per 1 s, queue 20 (leaky_bucket), the rule's own
  bound    at most 11 in any 1 s
  left     all 21, for a new client
  cost     3, fits

old does not apply
  because  the rule is off

2 of 4 rules apply. Every enforced rule must admit the request.
"
    );
}

#[test]
fn validate_and_explain_show_excluded_values_and_exemptions() {
    let folder = Folder::new();
    let rules = folder.file(
        "rules.yaml",
        "rules: [{name: a, match: {path: {not: [/healthz, '/static/**']}}, limit: 1/s, \
         overrides: [{match: {path: {like: '/v1/**', not: /v1/x}}, limit: exempt}]}]",
    );
    let (code, stdout, _) = run(&["validate", &rules]);
    assert_eq!(code, 0);
    assert!(stdout.ends_with("\n  override 1 by path: exempt, not counted\n"), "{stdout}");
    let explain = |path: &str| run(&["explain", "--rules", &rules, path]).1;
    let excluded =
        "because  path is \"/healthz\", wanted anything but \"/healthz\" or \"/static/**\"";
    let found = explain("/healthz");
    assert!(found.contains(excluded), "{found}");
    let found = explain("/v1/y");
    assert!(found.contains("\n  limit    exempt, override 1 by path\n\n"), "{found}");
    let found = explain("/v1/x");
    assert!(found.contains("\n  limit    1 per 1 s (token_bucket), the rule's own\n"), "{found}");
}

#[test]
fn validate_and_explain_show_the_rollout_percentage() {
    let folder = Folder::new();
    let rules = |share| {
        let item = format!("{{match: {{path: /}}, limit: 9/s, rollout: {share}}}");
        let text = format!(
            "rules: [{{name: a, per: [ip], limit: 1/s, rollout: {share}, overrides: [{item}]}}]"
        );
        folder.file("rules.yaml", &text)
    };
    let (code, stdout, _) = run(&["validate", &rules("0.5%")]);
    assert_eq!(code, 0);
    let wanted = "\
a: 1 per 1 s (token_bucket): at most 2 in any 1 s, for 0.5% of its clients
  override 1 by path for 0.5% of the clients: 9 per 1 s (token_bucket): at most 18 in any 1 s
";
    assert_eq!(stdout, wanted);
    let (_, inside, _) = run(&["explain", "--rules", &rules("100%"), "/"]);
    assert!(inside.contains("\na applies, the client is in its rollout of 100%\n"), "{inside}");
    assert!(inside.contains(", override 1 by path for 100% of the clients\n"), "{inside}");
    let (_, outside, _) = run(&["explain", "--rules", &rules("0%"), "/"]);
    let because = "  because  the client is not among the 0% that the rule is rolled out to\n";
    assert!(outside.contains(&format!("\na does not apply\n{because}")), "{outside}");
}

#[test]
fn explain_accepts_attributes_on_the_command_line() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let explain = |arguments: &[&str]| {
        let (code, stdout, stderr) = run(&[&["explain", "--rules", &rules], arguments].concat());
        assert_eq!(code, 0, "{stderr}");
        stdout
    };
    let tier = explain(&["-a", "claim.plan=pro", "-a", "user=u1", "/v1/orders", "--cost", "201"]);
    assert!(tier.contains("  key      user \"u1\", of user | api_key\n"), "{tier}");
    assert!(tier.contains("  limit    100 per 1 s (token_bucket), tier \"pro\" of claim.plan\n"));
    assert!(tier.contains("  cost     201, more than the limit ever admits at once\n"), "{tier}");
    let none = explain(&["-a", "claim.plan=gold", "/v1/orders"]);
    assert!(none.contains("the rule's own, claim.plan \"gold\" has no tier\n"), "{none}");
    assert!(
        none.contains("  key      user | api_key is absent, all such requests share one bucket\n")
    );
    let login = explain(&["-X", "POST", "-a", "ip=192.0.2.7", "shop.example/login"]);
    assert!(login.contains("  host         shop.example\n"), "{login}");
    assert!(login.contains("  key      ip \"192.0.2.7\"; path \"/login\"\n"), "{login}");
    let penalty = "blocks a client for 10 min after 50 denied requests within 60 s";
    assert!(login.contains(&format!("  penalty  {penalty} (10 times the limit)\n")), "{login}");
    let (code, _, stderr) = run(&["explain", "-H", "nonsense", "/"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("error: -H must read like 'Name: value', found \"nonsense\"\n"));
}

#[test]
fn explain_shows_the_escape_of_values_that_are_not_utf8() {
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let server = Server::with_rules(RULES);
    let mut command = tidegate();
    command.args(["explain", "--rules", &rules, "--server", &server.url(), "-H"]);
    command.arg(OsStr::from_bytes(b"X-API-Key: k\xff")).arg("/v1/orders?page=%fe");
    let (code, stdout, stderr) = exit_code_and_output(command.output().unwrap());
    assert_eq!((code, &*stderr), (0, ""));
    for wanted in [r"  k\xFF", r"  \xFE", r#"api_key "k\\xFF""#, "a value is not UTF-8"] {
        assert!(stdout.contains(wanted), "{wanted}\n{stdout}");
    }
}

#[test]
fn explain_reads_remaining_tokens_from_a_server_without_charging() {
    let rules = "
rules:
  - {name: api, per: [api_key], limit: 5 per 10 days}
  - {name: anyone, limit: 3 per 10 days}
";
    let server = Server::with_rules(rules);
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", &format!("{rules}  - {{name: new, limit: 1/s}}\n"));
    server.check(r#"{"rule":"api","client":"k1","cost":2}"#);
    server.check(r#"{"rule":"anyone","cost":3}"#);
    for _ in 0..3 {
        let (code, stdout, _) = run(&[
            "explain",
            "--rules",
            &rules,
            "--server",
            &server.url(),
            "-H",
            "X-API-Key: k1",
            "/",
        ]);
        assert_eq!(code, 0);
        let left: Vec<&str> = stdout.lines().filter(|line| line.contains("  left ")).collect();
        assert_eq!(left[0], "  left     3 of 5");
        assert!(left[1].starts_with("  left     0 of 3, more in 2"), "{left:?}");
        assert_eq!(left[2], "  left     unknown, the server has no rule of this name");
    }
}

#[test]
fn check_exit_code_is_the_decision() {
    let server = Server::with_rules(
        "
rules:
  - {name: api, per: [user], limit: 2 per 10 days}
  - {name: pair, per: [user, path], limit: 2 per 10 days}
  - {name: anyone, limit: 2 per 10 days}
",
    );
    let check =
        |arguments: &[&str]| run(&[&["check", "--server", &server.url()], arguments].concat());
    let (code, stdout, stderr) = check(&["api", "alice"]);
    assert_eq!((code, &*stderr), (0, "allowed by \"api\", 1 of 2 left\n"));
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&json["allowed"], &json["remaining"]), (&true.into(), &1.into()));
    let (code, _, stderr) = check(&["api", "alice", "--cost", "3"]);
    assert_eq!(
        (code, &*stderr),
        (1, "denied by \"api\", which never admits more than 2 at once\n")
    );
    let (code, stdout, stderr) = check(&["api", "alice", "--cost", "2"]);
    assert_eq!(code, 1);
    assert!(stderr.starts_with("denied by \"api\", 1 of 2 left, try again in 4"), "{stderr}");
    assert!(stdout.contains("\"allowed\":false"), "{stdout}");
    let (code, _, stderr) = check(&["pair", r#"{"user": "alice", "path": "/"}"#]);
    assert_eq!((code, &*stderr), (0, "allowed by \"pair\", 1 of 2 left\n"));
    let (code, _, stderr) = check(&["anyone", "--cost", "0"]);
    assert_eq!((code, &*stderr), (0, "allowed by \"anyone\", 2 of 2 left\n"));
    let (code, stdout, stderr) = check(&["nobody", "alice"]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        "error: rule: found \"nobody\", wanted one of api, pair, anyone (status 404)\n"
    );
}

#[test]
fn check_prints_hints_when_the_server_is_unreachable() {
    // The system does not assign a port that was just closed to another socket.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, stdout, stderr) =
        run(&["check", "api", "alice", "--server", &format!("http://{address}")]);
    assert_eq!((code, &*stdout), (2, ""));
    assert_eq!(
        stderr,
        format!(
            "error: {address} can't be reached: Connection refused (os error 111)\n\
             hint: tidegate serve starts a server\n\
             hint: --server http://HOST:PORT selects another server\n"
        )
    );
    for url in ["127.0.0.1:8080", "ftp://127.0.0.1", "http://127.0.0.1/v1", ""] {
        let (code, _, stderr) = run(&["check", "api", "alice", "--server", url]);
        assert_eq!(code, 2);
        assert!(stderr.contains("must be a URL like http://127.0.0.1:8080"), "{stderr}");
    }
}

#[test]
fn help_has_examples_and_at_most_100_columns() {
    for command in ["serve", "check", "explain", "validate", "simulate", "rules", "block"] {
        if command == "simulate" && !cfg!(feature = "simulate") {
            continue;
        }
        let (code, stdout, _) = run(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(stdout.contains("Examples:\n  tidegate "), "{stdout}");
        let longest = stdout.lines().map(str::len).max().unwrap();
        assert!(longest <= 100, "{command}: {longest}");
    }
    let (code, _, stderr) = exit_code_and_output(tidegate().output().unwrap());
    assert_eq!(code, 2);
    assert!(stderr.contains("tidegate serve"), "{stderr}");
}

#[test]
fn configurations_in_the_guides_are_valid() {
    let pages = [
        include_str!("../../../../docs/guide/http.md"),
        include_str!("../../../../docs/guide/redis.md"),
        include_str!("../../../../docs/guide/blocking.md"),
        include_str!("../../../../docs/guide/operating.md"),
        include_str!("../../../../docs/guide/gateway.md"),
    ];
    let folder = Folder::new();
    folder.file("rules.yaml", "rules: [{name: api, limit: 1/s}]");
    for page in pages {
        let blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let blocks: Vec<&str> = blocks.collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            let config = folder.file("tidegate.yaml", block);
            let (code, _, stderr) = run(&["validate", &config]);
            assert_eq!(code, 0, "{stderr}{block}");
        }
    }
}
