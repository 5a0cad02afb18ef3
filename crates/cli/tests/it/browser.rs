//! The dashboard in a real browser, with a real server under load.

mod accessibility;
#[cfg(feature = "simulate")]
mod lab;
mod pages;
mod rules;
mod screenshots;
mod security;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::{Browser, Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Server, tidegate};

const REQUIRED_TOOLS: [Tool; 3] =
    [Tool::Chromium, Tool::Chromedriver, Tool::Server(Flavour::Redis)];

const RULES: &str = "\
rules:
  - name: per-key
    match: {api_key: {present: true}}
    per: [api_key]
    limit: 5 per 10 days
    algorithm: fixed_window
  - name: per-ip
    per: [ip]
    limit: 1000000 per day
  - name: tried
    per: [ip]
    limit: 1 per day
    mode: shadow
";

/// A server that keeps its rules and counters in its own Redis.
struct DashboardServer {
    server: Server,
    _redis: Redis,
    _folder: Folder,
}

impl DashboardServer {
    fn start() -> Self {
        Self::with_config("")
    }

    /// Starts the server with additional lines of `tidegate.yaml`.
    fn with_config(extra: &str) -> Self {
        let (redis, folder) = (Redis::start(), Folder::new());
        // The timeout is long, because on a busy machine a slow reply must not count as a store failure.
        let config = format!(
            "store: {{redis: {{url: '{}', timeout: 5s}}}}\nrules: {{redis: true}}\n\
             listen: {{http: 127.0.0.1:0}}\n{extra}",
            redis.url()
        );
        let config = folder.file("tidegate.yaml", &config);
        let mut command = tidegate();
        command.args(["serve", "--config", &config]).env("STATE_DIRECTORY", folder.path());
        Self { server: Server::launch_command(command), _redis: redis, _folder: folder }
    }

    /// Pushes rules, and waits until they are active.
    fn push(&self, rules: &str) {
        let pushed =
            self.server.request_admin_with("PUT", "/v1/rules", &[("if-match", "*")], rules);
        assert_eq!(pushed.status, 200, "{pushed:?}");
        let version = pushed.json()["version"].clone();
        wait_for("the pushed rules are active", || {
            let status = self.server.request_admin("GET", "/v1/rules/status", "").json();
            (status["version"] == version).then_some(())
        });
    }

    fn page_url(&self, name: &str) -> String {
        format!("{}/#/{name}", self.server.admin_url())
    }

    /// Runs `work` while another thread sends checks, one after the other.
    fn under_load<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Ends the load if `work` hangs.
        const MAX_CHECKS: usize = 200_000;
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = self.server.connect();
                for number in 0..MAX_CHECKS {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    let check = json!({"attributes": {
                        "api_key": format!("key-{}", number % 3),
                        "ip": format!("192.0.2.{}", number % 7 + 1),
                    }});
                    connection.send("POST", "/v1/check", &check.to_string());
                    connection.receive(false);
                }
            });
            // Stops the load also when `work` panics; otherwise the scope waits for every check.
            let _stop = StopLoadOnDrop(&stopped);
            work()
        })
    }

    /// Runs `work` while another thread sends traffic as in production: few busy and many quiet clients, at a rate
    /// that rises and falls.
    fn under_traffic<T>(&self, work: impl FnOnce() -> T) -> T {
        const MAX_CHECKS: u64 = 60_000;
        let stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = self.server.connect();
                // A linear congruential generator; the quality of its numbers does not matter.
                let mut random: u64 = 1;
                for number in 0..MAX_CHECKS {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let client = 40 / (1 + (random >> 40) % 40);
                    let path = if random >> 63 == 0 { "/search" } else { "/orders" };
                    let check = json!({"attributes": {
                        "api_key": format!("key-{client}"),
                        "ip": format!("192.0.2.{client}"),
                        "path": path,
                    }});
                    connection.send("POST", "/v1/check", &check.to_string());
                    connection.receive(false);
                    pause(4 + number / 500 % 5 * 2);
                }
            });
            let _stop = StopLoadOnDrop(&stopped);
            work()
        })
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "paces the traffic behind a screenshot; no assertion depends on it"
)]
fn pause(millis: u64) {
    thread::sleep(std::time::Duration::from_millis(millis));
}

/// Sets the flag that stops the load when it is dropped.
struct StopLoadOnDrop<'a>(&'a AtomicBool);

impl Drop for StopLoadOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the text of an element; empty if there is none.
fn element_text(browser: &Browser, css: &str) -> String {
    let text = browser
        .script("return document.querySelector(arguments[0])?.innerText ?? ''", &[json!(css)]);
    text.as_str().unwrap_or_default().to_owned()
}

/// Returns the cells of the table row with this text in its first cell, or `None` without such a row.
fn table_row(browser: &Browser, caption: &str, first: &str) -> Option<Vec<String>> {
    const FIND: &str = "\
        const [caption, first] = arguments;
        const table = [...document.querySelectorAll('table')].find((table) => table.caption.textContent === caption);
        const row = [...table?.tBodies[0].rows ?? []].find((row) => row.cells[0].textContent === first);
        return row ? [...row.cells].map((cell) => cell.innerText) : null;";
    match browser.script(FIND, &[json!(caption), json!(first)]) {
        Value::Array(cells) => {
            Some(cells.iter().map(|cell| cell.as_str().unwrap_or_default().to_owned()).collect())
        }
        _ => None,
    }
}

/// Parses a number as the page formats it.
fn parse_number(text: &str) -> f64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}
