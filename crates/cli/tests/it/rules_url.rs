//! Rules on the web.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tidegate_testkit::wait_for;

use crate::kit::{Folder, Server, tidegate, wait_for_copy};

/// What a small web server has, and what it was asked.
#[derive(Default)]
struct Page {
    status: u16,
    headers: String,
    body: String,
    tag: String,
    asked: Vec<String>,
    sent_whole: usize,
}

/// A web server of one page, as long as the test lasts.
struct Site {
    address: SocketAddr,
    page: Arc<Mutex<Page>>,
}

impl Site {
    fn with(body: &str) -> Self {
        let listener = tidegate_testkit::listen(0);
        let address = listener.local_addr().unwrap();
        let page = Arc::new(Mutex::new(Page { status: 200, ..Page::default() }));
        let site = Self { address, page: Arc::clone(&page) };
        site.show(body);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> = lines
                    .by_ref()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let mut page = page.lock().unwrap();
                let known = head.iter().any(|line| *line == format!("if-none-match: {}", page.tag));
                page.asked.push(head.join("\n"));
                let (status, body) = if known { (304, "") } else { (page.status, &*page.body) };
                let Page { headers, tag, .. } = &*page;
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\netag: {tag}\r\n{headers}connection: close\r\n\r\n{body}"
                );
                page.sent_whole += usize::from(!known);
                let _ = (&stream).write_all(answer.as_bytes());
            }
        });
        site
    }

    fn show(&self, body: &str) {
        let mut page = self.page.lock().unwrap();
        page.body = body.to_owned();
        page.tag = format!("\"{}\"", body.len());
    }
}

fn rules(limit: u64) -> String {
    format!("rules: [{{name: api, per: [user], limit: {limit} per 10 days}}]\n")
}

fn limit(server: &Server) -> Option<u64> {
    server.check(r#"{"rule":"api","client":"probe","cost":0}"#).json()["limit"].as_u64()
}

fn status(server: &Server) -> Value {
    server.manage("GET", "/v1/rules/status", "").json()
}

fn serve(folder: &Folder, address: &str) -> Server {
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
fn a_document_is_fetched_again_and_in_full_only_if_it_is_another() {
    let (site, folder) = (Site::with(&rules(5)), Folder::new());
    let server = serve(&folder, &site.address.to_string());
    assert_eq!(limit(&server), Some(5));
    wait_for("it was asked again", || (site.page.lock().unwrap().asked.len() > 3).then_some(()));
    {
        let page = site.page.lock().unwrap();
        assert!(page.sent_whole <= 2, "{:?}", page.asked);
        assert!(page.asked[0].starts_with("GET /rules.yaml?a=b HTTP/1.1\n"), "{:?}", page.asked);
        assert!(page.asked[0].contains("authorization: Bearer sesame"), "{:?}", page.asked);
    }
    site.show(&rules(66));
    wait_for("the new rules are in force", || (limit(&server) == Some(66)).then_some(()));
    site.show("rules: 7");
    wait_for("the node is behind", || (status(&server)["behind"] == true).then_some(()));
    assert_eq!(limit(&server), Some(66));
    site.page.lock().unwrap().status = 500;
    site.show("gone");
    wait_for("the failure is counted", || {
        let metrics = server.manage("GET", "/metrics", "").body;
        (!metrics.contains("tidegate_rules_source_failures_total 0")).then_some(())
    });
    assert_eq!(limit(&server), Some(66));
    // Neither the address's query nor the token is told.
    let told = format!("{}{}", status(&server), server.manage("GET", "/v1/rules", "").body);
    assert!(!told.contains("sesame") && !told.contains("a=b"), "{told}");
}

#[test]
fn a_server_that_counts_versions_is_believed_and_never_followed_back() {
    let (site, folder) = (Site::with(&rules(5)), Folder::new());
    site.page.lock().unwrap().headers = "tidegate-rules-version: 41\r\n".to_owned();
    let server = serve(&folder, &site.address.to_string());
    assert_eq!(status(&server)["version"], 41);
    site.page.lock().unwrap().headers = "tidegate-rules-version: 40\r\n".to_owned();
    site.show(&rules(66));
    let problem = wait_for("the older version is told", || {
        status(&server)["problem"].as_str().map(str::to_owned)
    });
    assert_eq!(problem, "found version 40, wanted 41 or later: versions never decrease");
    assert_eq!(limit(&server), Some(5));
    site.page.lock().unwrap().headers = "tidegate-rules-version: 42\r\n".to_owned();
    site.show(&rules(777));
    wait_for("the newer version is taken", || (limit(&server) == Some(777)).then_some(()));
    assert_eq!(status(&server)["problem"], Value::Null);
}

#[test]
fn without_its_source_a_server_starts_with_the_last_good_rules_or_says_that_it_waits() {
    let folder = Folder::new();
    let site = Site::with(&rules(5));
    let address = site.address.to_string();
    let server = serve(&folder, &address);
    assert_eq!(limit(&server), Some(5));
    wait_for_copy(folder.path(), 1);
    drop(server);
    site.page.lock().unwrap().status = 503;
    site.show("");
    let server = serve(&folder, &address);
    assert_eq!(limit(&server), Some(5));
    assert_eq!(server.ask("GET", "/readyz", "").status, 200);
    drop(server);
    let elsewhere = Folder::new();
    let server = serve(&elsewhere, &address);
    let waits = server.ask("GET", "/readyz", "");
    assert_eq!(waits.status, 503);
    assert!(waits.body.contains(&format!("waiting for rules from http://{address}/rules.yaml")));
    site.page.lock().unwrap().status = 200;
    site.show(&rules(6));
    wait_for("the rules have come", || {
        (server.ask("GET", "/readyz", "").status == 200).then_some(())
    });
    assert_eq!(limit(&server), Some(6));
}
