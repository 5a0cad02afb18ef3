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

use self::driver::{Driver, Refusal};
pub use self::element::Element;
use self::profile::Profile;
use crate::process::Process;
use crate::tool::Tool;
use crate::wait::{PATIENCE, poll};

/// Most starts of a driver. It takes a free port of IPv6 and then the same port of IPv4, which may be in use.
const DRIVER_STARTS: usize = 10;

/// A Chromium of its own profile, driven as WebDriver says.
///
/// It resolves no names but `localhost` and asks nobody outside of this machine. It ends with this value, and all that it
/// has started; also when the test runner is killed. What can't be done is a panic that says why.
#[derive(Debug)]
pub struct Browser {
    driver: Driver,
    process: Process,
    profile: Profile,
}

/// Starts a driver, and returns its port.
fn start_driver(profile: &Profile) -> (Process, u16) {
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
    /// Without [`Tool::Chromium`] or [`Tool::Chromedriver`], or when they do not start.
    pub fn start() -> Self {
        let chromium = Tool::Chromium.expect_path();
        let profile = Profile::new();
        let (process, port) = start_driver(&profile);
        let driver = Driver::open(port, &profile.capabilities(&chromium))
            .unwrap_or_else(|refusal| panic!("no browser: {refusal}\n{}", process.log_tail()));
        let browser = Self { driver, process, profile };
        browser.resize(1_280, 800);
        browser
    }

    /// Goes to a page, and returns when it is loaded with all that stands in it.
    pub fn open(&self, url: &str) {
        self.must("url", &json!({"url": url}));
    }

    /// Loads the page again.
    pub fn reload(&self) {
        self.must("refresh", &json!({}));
    }

    /// The first element that a CSS selector finds, once there is one.
    pub fn find(&self, css: &str) -> Element<'_> {
        let element = Element::of(self, css);
        element.wait();
        element
    }

    /// The texts of all elements that a CSS selector finds now, as they are shown.
    pub fn texts(&self, css: &str) -> Vec<String> {
        let script = "return [...document.querySelectorAll(arguments[0])].map(e => e.innerText)";
        serde_json::from_value(self.script(script, &[json!(css)])).expect("texts are strings")
    }

    /// What the body of a function returns in the page, or what its promise comes to. `args` are its `arguments`.
    pub fn script(&self, script: &str, args: &[Value]) -> Value {
        self.must("execute/sync", &json!({"script": script, "args": args}))
    }

    /// Returns once an expression is true in the page. `what` is said when that never comes.
    pub fn wait_until(&self, what: &str, expression: &str) {
        let script = format!("return Boolean({expression})");
        let met = poll(|| self.script(&script, &[]).as_bool().filter(|met| *met));
        assert!(met.is_some(), "waited {PATIENCE:?} in vain: {what}\n{}", self.seen());
    }

    /// Presses keys, one after another, in whatever has the focus. Those of [`keys`] that change others stay pressed to the
    /// end: `keys::SHIFT` and `keys::TAB` go one back.
    pub fn keys(&self, text: &str) {
        self.must("actions", &keys::presses(text));
    }

    /// What was wrong in the console since it was last asked: exceptions, errors that scripts wrote, and files that could not
    /// be loaded.
    pub fn console_errors(&self) -> Vec<String> {
        let entries = self.must("se/log", &json!({"type": "browser"}));
        let entries = entries.as_array().into_iter().flatten();
        let severe = entries.filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Gives the page so many pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Whether people prefer dark pages, and nothing that moves.
    pub fn dark(&self, is: bool) {
        let scheme = if is { "dark" } else { "light" };
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Writes what is seen to a file, as PNG.
    pub fn screenshot(&self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        let encoded = self.driver.get("screenshot").unwrap_or_else(|refusal| panic!("{refusal}"));
        let encoded = encoded.as_str().unwrap_or_default();
        let image = STANDARD.decode(encoded).expect("a picture is base64");
        fs::write(path, image).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Calls what only Chromium has.
    fn devtools(&self, command: &str, params: &Value) {
        self.must("goog/cdp/execute", &json!({"cmd": command, "params": params}));
    }

    fn must(&self, path: &str, body: &Value) -> Value {
        self.driver.post(path, body).unwrap_or_else(|refusal| {
            panic!("{path}: {refusal}\n{}", self.process.log_tail());
        })
    }

    /// Where the browser is and the beginning of what it shows, for a message about what went wrong.
    fn seen(&self) -> String {
        let script = "return location.href + '\\n' + document.body.innerText.slice(0, 2000)";
        let seen = self.driver.post("execute/sync", &json!({"script": script, "args": []}));
        seen.map_or_else(|refusal| refusal.to_string(), |seen| seen.as_str().unwrap_or("").into())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It goes with the driver if it does not go by itself.
        let _: Result<Value, Refusal> = self.driver.close();
        self.process.kill();
        self.profile.clear();
    }
}
