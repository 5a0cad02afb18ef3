//! Requests parsed from the lines of different servers.

use std::collections::BTreeSet;
use std::io::Cursor;

use proptest::prelude::*;
use tidegate_core::Timestamp;

use super::*;

const ALL: [&str; 8] =
    ["header.user-agent", "host", "ip", "method", "path", "query.page", "tenant", "user"];

/// Returns the requests of a log in the order of time, and the counts of its lines.
fn read_as(log: &str, reading: LineReader) -> (Vec<(Timestamp, String)>, LogSummary) {
    let names = reading.names().to_vec();
    let mut sorted = SortedLog::new(Cursor::new(log.to_owned()), reading);
    let mut all = Vec::new();
    while let Some(batch) = sorted.next(RequestBatch::default()).unwrap() {
        for (at, request) in batch.requests(&names) {
            let request = request.unwrap();
            let shown = request.attributes().map(|(name, value)| format!("{name}={value}"));
            all.push((at, shown.collect::<Vec<_>>().join(" ")));
        }
    }
    (all, sorted.summary())
}

fn read(log: &str) -> (Vec<(Timestamp, String)>, LogSummary) {
    read_as(log, LineReader::new(&BTreeSet::from(ALL), &[], &[], LogFormat::Auto))
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn log_formats_of_all_known_servers_give_the_same_request() {
    let wanted = "header.user-agent=curl/8 host=shop.example ip=192.0.2.7 method=GET \
                  path=/v1/orders query.page=2 user=alice";
    let lines = [
        // Ours.
        r#"{"time":1791640536.25,"ip":"192.0.2.7","method":"GET","path":"/v1/orders?page=2","host":"shop.example",
            "user":"alice","header.user-agent":"curl/8","status":200}"#,
        // NGINX, two of the usual ways to have it write JSON.
        r#"{"time_iso8601":"2026-10-10T13:55:36+00:00","msec":"1791640536.250","remote_addr":"192.0.2.7",
            "request_method":"GET","request_uri":"/v1/orders?page=2","uri":"/index.php","http_host":"Shop.Example:443",
            "remote_user":"alice","http_user_agent":"curl/8"}"#,
        r#"{"time":"10/Oct/2026:13:55:36 +0000","msec":1791640536.25,"remote_addr":"192.0.2.7","host":"shop.example",
            "request":"GET /v1/orders?page=2 HTTP/1.1","remote_user":"alice","http_user_agent":"curl/8"}"#,
        // Caddy.
        r#"{"level":"info","ts":1791640536.25,"logger":"http.log.access","msg":"handled request","request":
            {"remote_ip":"10.0.0.1","remote_port":"1","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET",
             "host":"shop.example","uri":"/v1/orders?page=2","headers":{"User-Agent":["curl/8"],"Accept":["*/*"]},
             "tls":{"resumed":false,"version":772}},"user_id":"alice","duration":0.01,"status":200}"#,
        // Envoy, with the names of its examples.
        r#"{"start_time":"2026-10-10T13:55:36.250Z","method":"GET","path":"/v1/orders?page=2","authority":"shop.example",
            "downstream_remote_address":"192.0.2.7:5555","user":"alice","user_agent":"curl/8","response_code":200}"#,
        // Traefik.
        r#"{"ClientAddr":"192.0.2.7:5555","ClientHost":"192.0.2.7","ClientUsername":"alice","RequestHost":"shop.example",
            "RequestMethod":"GET","RequestPath":"/v1/orders?page=2","StartUTC":"2026-10-10T13:55:36.25Z",
            "request_User-Agent":"curl/8","DownstreamStatus":200}"#,
        // A server with several hosts.
        r#"shop.example:443 192.0.2.7 - alice [10/Oct/2026:13:55:36 +0000] "GET /v1/orders?page=2 HTTP/1.1" 200 5 "-" "curl/8""#,
    ];
    for line in lines {
        let line: String = line.lines().map(str::trim_start).collect();
        let (found, summary) = read(&line);
        assert_eq!(summary.shown, []);
        assert_eq!(found[0].1, wanted, "{line}");
        assert_eq!(found[0].0.as_micros() / 1_000_000, 1_791_640_536, "{line}");
    }
}

#[test]
fn attributes_equal_those_of_the_listeners() {
    let log = r#"2001:DB8:1:2::77 - - [10/Oct/2026:13:55:36 +0000] "GET /%76%31/a%2fb?page=%32&page=3+4 HTTP/1.1" 200 5
{"time":1,"ip":"[2001:db8::1]:443","method":"POST","url":"https://a.example/x y?page=1","host":"A.Example.:8443"}
"#;
    let found: Vec<String> = read(log).0.into_iter().rev().map(|(_, shown)| shown).collect();
    assert_eq!(
        found,
        [
            "ip=2001:db8:1:2:: method=GET path=/v1/a%2Fb query.page=3 4",
            "host=a.example ip=2001:db8:: method=POST path=/x%20y query.page=1",
        ]
    );
}

#[test]
fn paths_are_canonical_and_requests_without_canonical_form_are_bad_lines() {
    let line = |request: &str| {
        format!("192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] \"{request} HTTP/1.1\" 200 5\n")
    };
    let good = ["POST //login", "POST /x/../login", "POST /%2e/login", "OPTIONS *"];
    let bad = ["POST /%zz", "POST /a%00", "post /login"];
    let log: String = good.iter().chain(&bad).map(|request| line(request)).collect();
    let (found, summary) = read(&log);
    let found: Vec<String> = found.into_iter().map(|(_, shown)| shown).collect();
    let login = "ip=192.0.2.7 method=POST path=/login";
    assert_eq!(found, [login, login, login, "ip=192.0.2.7 method=OPTIONS path=*"]);
    assert_eq!(summary.bad, 3);
}

#[test]
fn configured_field_paths_take_precedence() {
    let line = r#"{"when":"2026-10-10T13:55:36Z","tenant":"wrong","req":{"hdr":{"X-Tenant":"acme"},"ip":"192.0.2.7"},
        "path":"/","method":"GET","attributes":{"user":"nobody"}}"#;
    let line: String = line.lines().map(str::trim_start).collect();
    let fields = [("time", "when"), ("tenant", "req.hdr.x-tenant"), ("ip", "req.ip")];
    let fixed = pairs(&[("host", "fixed.example")]);
    let names = BTreeSet::from(["host", "ip", "tenant"]);
    let reading = LineReader::new(&names, &fixed, &pairs(&fields), LogFormat::Auto);
    let (found, summary) = read_as(&line, reading);
    assert_eq!(summary.shown, []);
    assert_eq!(found[0].1, "host=fixed.example ip=192.0.2.7 tenant=acme");
}

#[test]
fn fields_that_no_rule_mentions_are_not_validated() {
    let reading = LineReader::new(&BTreeSet::from(["ip"]), &[], &[], LogFormat::Auto);
    let log = "{\"ts\":1,\"ip\":\"192.0.2.7\",\"uri\":5}\n{\"ts\":2,\"remote_ip\":\"::1\"}\n";
    let (found, summary) = read_as(log, reading);
    assert_eq!((found.len(), summary.bad), (2, 0));
}

#[test]
fn lines_out_of_order_are_sorted_within_the_window() {
    let line = |second: usize| format!("{{\"ts\":{second},\"ip\":\"192.0.2.7\"}}\n");
    // Every twentieth line is late by the maximum that is still sorted.
    let mut order: Vec<usize> = (0..60_000).collect();
    for place in (0..40_000).step_by(20) {
        order.swap(place, place + 7_001);
    }
    let log: String = order.iter().map(|second| line(*second)).collect();
    let (found, summary) =
        read_as(&log, LineReader::new(&BTreeSet::from(["ip"]), &[], &[], LogFormat::Json));
    assert_eq!((found.len(), summary.lines), (60_000, 60_000));
    assert!(found.is_sorted_by_key(|(at, _)| *at));
}

#[test]
fn bad_lines_are_counted_and_the_first_ones_reported() {
    let good = "{\"ts\":1,\"ip\":\"192.0.2.7\",\"method\":\"GET\",\"path\":\"/\"}\n";
    let bad = "nonsense\n\r\n{\"ts\":\"late\"}\n{\"ts\":1,\n{\"ip\":\"::1\"}\n{\"ts\":1}\n[]\n";
    let (found, summary) = read(&format!("{good}{bad}{good}"));
    assert_eq!((found.len(), summary.lines, summary.bad), (2, 9, 6));
    let lines: Vec<String> = summary
        .shown
        .iter()
        .map(|BadLine { line, found, wanted }| format!("{line}: found {found}, wanted {wanted}"))
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn explicit_format_rejects_other_formats() {
    let json = "{\"ts\":1,\"ip\":\"192.0.2.7\"}";
    let common = r#"192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 5"#;
    let log = format!("{json}\n{common}\n");
    let names = BTreeSet::from(["ip"]);
    for (format, read) in [
        (LogFormat::Auto, 2),
        (LogFormat::Json, 1),
        (LogFormat::Common, 1),
        (LogFormat::Combined, 0),
    ] {
        let (found, summary) = read_as(&log, LineReader::new(&names, &[], &[], format));
        assert_eq!((found.len(), summary.bad), (read, 2 - read as u64), "{format:?}");
    }
}

#[test]
fn too_long_line_is_one_bad_line() {
    let good = "{\"ts\":1,\"ip\":\"192.0.2.7\",\"method\":\"GET\",\"path\":\"/\"}\n";
    let long = "x".repeat(1_000_000);
    let (found, summary) = read(&format!("{good}{long}\n{good}"));
    assert_eq!((found.len(), summary.lines, summary.bad), (2, 3, 1));
    assert_eq!(summary.shown[0].wanted, "a line of at most 65536 bytes");
}

proptest! {
    #[test]
    fn arbitrary_lines_never_panic(
        line in r#"(\{"(ts|request|path|headers)":|192\.0\.2\.7 - - \[)?["\\\[\]{}:,. /A-Za-z0-9é%+-]{0,80}"#,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        parse_only(line.as_bytes());
        parse_only(&bytes);
    }
}
