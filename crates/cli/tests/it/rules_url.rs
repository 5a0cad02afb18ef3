//! Rules that a server fetches from a URL.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tidegate_testkit::wait_for;

use crate::kit::{Folder, Server, tidegate, wait_for_rules_copy};

/// The page of a web server, and the requests for it.
#[derive(Default)]
struct PageState {
    status: u16,
    headers: String,
    body: String,
    etag: String,
    requests: Vec<String>,
    full_responses: usize,
}

/// A web server with one page. It runs until the test process ends.
struct RulesSite {
    address: SocketAddr,
    page: Arc<Mutex<PageState>>,
}

impl RulesSite {
    fn start(body: &str) -> Self {
        let listener = tidegate_testkit::listen(0);
        let address = listener.local_addr().unwrap();
        let page = Arc::new(Mutex::new(PageState { status: 200, ..PageState::default() }));
        let site = Self { address, page: Arc::clone(&page) };
        site.publish(body);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> = lines
                    .by_ref()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let mut page = page.lock().unwrap();
                let is_unchanged =
                    head.iter().any(|line| *line == format!("if-none-match: {}", page.etag));
                page.requests.push(head.join("\n"));
                let (status, body) =
                    if is_unchanged { (304, "") } else { (page.status, &*page.body) };
                let PageState { headers, etag, .. } = &*page;
                let length = body.len();
                let response = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\netag: {etag}\r\n{headers}connection: close\r\n\r\n{body}"
                );
                page.full_responses += usize::from(!is_unchanged);
                let _ = (&stream).write_all(response.as_bytes());
            }
        });
        site
    }

    fn publish(&self, body: &str) {
        let mut page = self.page.lock().unwrap();
        page.body = body.to_owned();
        page.etag = format!("\"{}\"", body.len());
    }
}

fn rules_with_limit(limit: u64) -> String {
    format!("rules: [{{name: api, per: [user], limit: {limit} per 10 days}}]\n")
}

fn enforced_limit(server: &Server) -> Option<u64> {
    server.check(r#"{"rule":"api","client":"probe","cost":0}"#).json()["limit"].as_u64()
}

fn rules_status(server: &Server) -> Value {
    server.request_admin("GET", "/v1/rules/status", "").json()
}

fn start_server(folder: &Folder, address: &str) -> Server {
    let config = folder.file(
        "tidegate.yaml",
        &format!("rules: {{url: 'http://{address}/rules.yaml?a=b', poll: 1s}}\nlisten: {{http: 127.0.0.1:0}}\n"),
    );
    let mut command = tidegate();
    command.args(["serve", "--config", &config]);
    command.env("STATE_DIRECTORY", folder.path()).env("TIDEGATE_RULES_TOKEN", "sesame");
    Server::launch_command(command)
}

#[test]
fn document_is_polled_and_sent_in_full_only_after_a_change() {
    let (site, folder) = (RulesSite::start(&rules_with_limit(5)), Folder::new());
    let server = start_server(&folder, &site.address.to_string());
    assert_eq!(enforced_limit(&server), Some(5));
    wait_for("the document is polled", || {
        (site.page.lock().unwrap().requests.len() > 3).then_some(())
    });
    {
        let page = site.page.lock().unwrap();
        assert!(page.full_responses <= 2, "{:?}", page.requests);
        assert!(
            page.requests[0].starts_with("GET /rules.yaml?a=b HTTP/1.1\n"),
            "{:?}",
            page.requests
        );
        assert!(page.requests[0].contains("authorization: Bearer sesame"), "{:?}", page.requests);
    }
    site.publish(&rules_with_limit(66));
    wait_for("the new rules are in force", || (enforced_limit(&server) == Some(66)).then_some(()));
    site.publish("rules: 7");
    wait_for("the node is behind", || (rules_status(&server)["behind"] == true).then_some(()));
    assert_eq!(enforced_limit(&server), Some(66));
    site.page.lock().unwrap().status = 500;
    site.publish("gone");
    wait_for("the failure is counted", || {
        let metrics = server.request_admin("GET", "/metrics", "").body;
        (!metrics.contains("tidegate_rules_source_failures_total 0")).then_some(())
    });
    assert_eq!(enforced_limit(&server), Some(66));
    // Neither the query of the URL nor the token is exposed.
    let exposed =
        format!("{}{}", rules_status(&server), server.request_admin("GET", "/v1/rules", "").body);
    assert!(!exposed.contains("sesame") && !exposed.contains("a=b"), "{exposed}");
}

#[test]
fn version_header_is_used_and_an_older_version_is_rejected() {
    let (site, folder) = (RulesSite::start(&rules_with_limit(5)), Folder::new());
    site.page.lock().unwrap().headers = "tidegate-rules-version: 41\r\n".to_owned();
    let server = start_server(&folder, &site.address.to_string());
    assert_eq!(rules_status(&server)["version"], 41);
    site.page.lock().unwrap().headers = "tidegate-rules-version: 40\r\n".to_owned();
    site.publish(&rules_with_limit(66));
    let problem = wait_for("the older version is reported", || {
        rules_status(&server)["problem"].as_str().map(str::to_owned)
    });
    assert_eq!(problem, "found version 40, wanted 41 or later: versions never decrease");
    assert_eq!(enforced_limit(&server), Some(5));
    site.page.lock().unwrap().headers = "tidegate-rules-version: 42\r\n".to_owned();
    site.publish(&rules_with_limit(777));
    wait_for("the newer version is enforced", || {
        (enforced_limit(&server) == Some(777)).then_some(())
    });
    assert_eq!(rules_status(&server)["problem"], Value::Null);
}

#[test]
fn server_starts_from_its_local_copy_during_an_outage_or_stays_not_ready() {
    let folder = Folder::new();
    let site = RulesSite::start(&rules_with_limit(5));
    let address = site.address.to_string();
    let server = start_server(&folder, &address);
    assert_eq!(enforced_limit(&server), Some(5));
    wait_for_rules_copy(folder.path(), 1);
    drop(server);
    site.page.lock().unwrap().status = 503;
    site.publish("");
    let server = start_server(&folder, &address);
    assert_eq!(enforced_limit(&server), Some(5));
    assert_eq!(server.request("GET", "/readyz", "").status, 200);
    drop(server);
    let empty_folder = Folder::new();
    let server = start_server(&empty_folder, &address);
    let readiness = server.request("GET", "/readyz", "");
    assert_eq!(readiness.status, 503);
    assert!(
        readiness.body.contains(&format!("waiting for rules from http://{address}/rules.yaml"))
    );
    site.page.lock().unwrap().status = 200;
    site.publish(&rules_with_limit(6));
    wait_for("the server is ready", || {
        (server.request("GET", "/readyz", "").status == 200).then_some(())
    });
    assert_eq!(enforced_limit(&server), Some(6));
}
