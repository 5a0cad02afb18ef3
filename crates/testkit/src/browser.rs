//! A real browser, without a window.

mod driver;
mod element;
pub mod keys;
mod profile;

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use self::driver::{DriverError, DriverSession};
pub use self::element::Element;
use self::profile::BrowserProfile;
use crate::process::Process;
use crate::tool::Tool;
use crate::wait::{WAIT_TIMEOUT, poll};

/// Maximum number of starts of a driver. It binds a free IPv6 port and then the same IPv4 port, which may be in use.
const DRIVER_STARTS: usize = 10;

/// A Chromium with a new profile, controlled through WebDriver.
///
/// It resolves only `localhost` and connects only to this machine. Dropping this value ends it and all its processes,
/// and so does the end of a killed test runner. Failed operations panic with the reason.
#[derive(Debug)]
pub struct Browser {
    driver: DriverSession,
    process: Process,
    profile: BrowserProfile,
}

/// Starts a driver, and returns its port.
fn start_driver(profile: &BrowserProfile) -> (Process, u16) {
    let mut log = Vec::new();
    for _ in 0..DRIVER_STARTS {
        let mut command = Process::command(Tool::Chromedriver.expect_path());
        command.arg("--port=0");
        profile.settle(&mut command);
        let process = Process::spawn(command);
        while let Some(line) = process.stdout().next() {
            let port = line.split_once("started successfully on port ").map(|(_, port)| port);
            if let Some(port) = port.and_then(|port| port.trim_end_matches('.').parse().ok()) {
                return (process, port);
            }
        }
        log = process.stdout().tail(usize::MAX);
        if !log.iter().any(|line| line.contains("port not available")) {
            break;
        }
    }
    panic!("the driver does not start: {log:#?}")
}

impl Browser {
    /// Starts one with an empty page of 1280 x 800 pixels, which takes a second or two.
    ///
    /// # Panics
    /// [`Tool::Chromium`] or [`Tool::Chromedriver`] is missing or does not start.
    pub fn start() -> Self {
        let chromium = Tool::Chromium.expect_path();
        let profile = BrowserProfile::new();
        let (process, port) = start_driver(&profile);
        let driver = DriverSession::open(port, &profile.capabilities(&chromium))
            .unwrap_or_else(|refusal| panic!("no browser: {refusal}\n{}", process.log_tail()));
        let browser = Self { driver, process, profile };
        browser.resize(1_280, 800);
        browser
    }

    /// Opens a page, and returns when it is loaded completely.
    pub fn open(&self, url: &str) {
        self.must("url", &json!({"url": url}));
    }

    /// Loads the page again.
    pub fn reload(&self) {
        self.must("refresh", &json!({}));
    }

    /// Returns the first element that a CSS selector finds, once there is one.
    pub fn find(&self, css: &str) -> Element<'_> {
        let element = Element::of(self, css);
        element.wait();
        element
    }

    /// Returns the texts of all elements that a CSS selector finds now, as they are shown.
    pub fn texts(&self, css: &str) -> Vec<String> {
        let script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)";
        serde_json::from_value(self.script(script, &[json!(css)])).expect("texts are strings")
    }

    /// Runs the body of a function in the page. Returns its result, or that of its promise. `args` are its `arguments`.
    pub fn script(&self, script: &str, args: &[Value]) -> Value {
        self.must("execute/sync", &json!({"script": script, "args": args}))
    }

    /// Returns once an expression is true in the page. The panic on a timeout contains `what`.
    pub fn wait_until(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression})");
        let met = poll(|| self.script(&script, &[]).as_bool().filter(|met| *met));
        assert!(met.is_some(), "timed out after {WAIT_TIMEOUT:?}: {what}\n{}", self.seen());
    }

    /// Presses keys, one after another, in whatever has the focus. Those of [`keys`] that change others stay pressed to the
    /// end: `keys::SHIFT` and `keys::TAB` go one back.
    pub fn keys(&self, text: &str) {
        self.must("actions", &keys::key_actions(text));
    }

    /// Returns the console errors since the last call: exceptions, errors logged by scripts, and failed loads.
    pub fn console_errors(&self) -> Vec<String> {
        let entries = self.must("se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().into_iter().flatten();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Sets the size of the page in pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Returns whether people prefer dark pages, and nothing that moves.
    pub fn dark(&self, is: bool) {
        let scheme = if is { "dark" } else { "light" };
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Writes a screenshot to a PNG file.
    pub fn screenshot(&self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        let encoded = self.driver.get("screenshot").unwrap_or_else(|refusal| panic!("{refusal}"));
        let encoded = encoded.as_str().unwrap_or_default();
        let image = STANDARD.decode(encoded).expect("a picture is base64");
        fs::write(path, image).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Calls a command of the Chrome DevTools protocol.
    fn devtools(&self, command: &str, params: &Value) {
        self.must("goog/cdp/execute", &json!({"cmd": command, "params": params}));
    }

    fn must(&self, path: &str, body: &Value) -> Value {
        self.driver.post(path, body).unwrap_or_else(|refusal| {
            panic!("{path}: {refusal}\n{}", self.process.log_tail());
        })
    }

    /// Returns the URL and the start of the page's text, for a panic message.
    fn seen(&self) -> String {
        let script = "return location.href + '\\n' + document.body.innerText.slice(0, 2000)";
        let seen = self.driver.post("execute/sync", &json!({"script": script, "args": []}));
        seen.map_or_else(|refusal| refusal.to_string(), |seen| seen.as_str().unwrap_or("").into())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of the driver also ends the browser.
        let _: Result<Value, DriverError> = self.driver.close();
        self.process.kill();
        self.profile.clear();
    }
}
