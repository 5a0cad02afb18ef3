//! The profile folder of a browser, and its processes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::wait::{WAIT_TIMEOUT, poll};

/// A separate home folder of one browser.
#[derive(Debug)]
pub(crate) struct BrowserProfile {
    home: TempDir,
}

impl BrowserProfile {
    pub(crate) fn new() -> Self {
        Self { home: tempfile::tempdir().expect("a folder for a browser") }
    }

    /// Sets the environment of a driver, and with it of the browser: this home folder, and no proxy.
    pub(crate) fn settle(&self, driver: &mut Command) {
        let home = self.home.path();
        for name in ["HOME", "TMPDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"] {
            driver.env(name, home);
        }
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            driver.env_remove(name).env_remove(name.to_uppercase());
        }
    }

    /// Returns the options of the browser.
    pub(crate) fn capabilities(&self, chromium: &Path) -> Value {
        let mut args = vec![
            "--headless=new",
            // With a pipe, the browser ends when its driver ends.
            "--remote-debugging-pipe",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--no-default-browser-check",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-domain-reliability",
            "--disable-sync",
            "--disable-breakpad",
            "--no-pings",
            "--password-store=basic",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
        ];
        // The sandbox does not work for root.
        if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
            args.push("--no-sandbox");
        }
        let data = format!("--user-data-dir={}", self.home.path().join("data").display());
        args.push(&data);
        let millis = u64::try_from(WAIT_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        json!({
            "browserName": "chrome",
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"binary": chromium, "args": args},
            "timeouts": {"pageLoad": millis, "script": millis},
        })
    }

    /// Waits until no process uses this profile.
    pub(crate) fn clear(&self) {
        if poll(|| self.inhabitants().is_empty().then_some(())).is_none() {
            for process in self.inhabitants() {
                let _ = Command::new("sh").arg("-c").arg(format!("kill -KILL {process}")).status();
            }
        }
    }

    /// Returns every process that was started with this home.
    fn inhabitants(&self) -> Vec<String> {
        let home = self.home.path().as_os_str().as_encoded_bytes();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let lives_here =
            |surroundings: Vec<u8>| surroundings.windows(home.len()).any(|part| part == home);
        processes
            .filter(|process| fs::read(process.path().join("environ")).is_ok_and(lives_here))
            .map(|process| process.file_name().to_string_lossy().into_owned())
            .collect()
    }
}
