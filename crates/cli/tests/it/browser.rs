//! The dashboard in a real browser, beside a real server under load.

#[cfg(feature = "simulate")]
mod lab;
mod pages;
mod pictures;
mod reach;
mod rules;
mod strangers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use tidegate_testkit::{Browser, Flavour, Redis, Tool, lacking, wait_for};

use crate::kit::{Folder, Server, tidegate};

const NEEDED: [Tool; 3] = [Tool::Chromium, Tool::Chromedriver, Tool::Server(Flavour::Redis)];

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

/// A server whose rules and spending are in a Redis of its own.
struct Stage {
    server: Server,
    _redis: Redis,
    _folder: Folder,
}

impl Stage {
    fn set() -> Self {
        Self::with("")
    }

    /// With more in its configuration.
    fn with(more: &str) -> Self {
        let (redis, folder) = (Redis::start(), Folder::new());
        // Patient, so that a busy machine is not taken for a store that failed.
        let config = format!(
            "store: {{redis: {{url: '{}', timeout: 5s}}}}\nrules: {{redis: true}}\n\
             listen: {{http: 127.0.0.1:0}}\n{more}",
            redis.url()
        );
        let config = folder.file("tidegate.yaml", &config);
        let mut command = tidegate();
        command.args(["serve", "--config", &config]).env("STATE_DIRECTORY", folder.path());
        Self { server: Server::launch_command(command), _redis: redis, _folder: folder }
    }

    fn push(&self, rules: &str) {
        let pushed = self.server.manage_with("PUT", "/v1/rules", &[("if-match", "*")], rules);
        assert_eq!(pushed.status, 200, "{pushed:?}");
        let version = pushed.json()["version"].clone();
        wait_for("the rules are in force", || {
            let status = self.server.manage("GET", "/v1/rules/status", "").json();
            (status["version"] == version).then_some(())
        });
    }

    fn page(&self, name: &str) -> String {
        format!("{}/#/{name}", self.server.admin_url())
    }

    /// Does something while checks come in, one after the other.
    fn under_load<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Even if the work never ends, the load does.
        const MOST: usize = 200_000;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = self.server.connect();
                for number in 0..MOST {
                    if over.load(Ordering::Relaxed) {
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
            // Also when the work panics.
            let _end = End(&over);
            work()
        })
    }
}

impl Stage {
    /// Does something while traffic comes as it might on a day: a few busy clients, many quiet ones, more and
    /// less of it.
    fn under_traffic<T>(&self, work: impl FnOnce() -> T) -> T {
        const MOST: u64 = 60_000;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut connection = self.server.connect();
                // Any sequence that looks like chance will do.
                let mut chance: u64 = 1;
                for number in 0..MOST {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let client = 40 / (1 + (chance >> 40) % 40);
                    let path = if chance >> 63 == 0 { "/search" } else { "/orders" };
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
            let _end = End(&over);
            work()
        })
    }
}

#[allow(clippy::disallowed_methods, reason = "paces the traffic of a picture; nobody waits for it")]
fn pause(millis: u64) {
    thread::sleep(std::time::Duration::from_millis(millis));
}

/// Says that it is over when it is dropped.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The text of an element.
fn text(browser: &Browser, css: &str) -> String {
    let text = browser
        .script("return document.querySelector(arguments[0])?.innerText ?? ''", &[json!(css)]);
    text.as_str().unwrap_or_default().to_owned()
}

/// The cells of a table's row, by the first of them; nothing if there is no such row.
fn row(browser: &Browser, caption: &str, first: &str) -> Option<Vec<String>> {
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

/// A number as the page writes it.
fn number(text: &str) -> f64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("no number: {text:?}"))
}
