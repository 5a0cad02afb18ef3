//! The screenshots of the README and the guide, taken by `make pictures`.

use std::path::Path;

use super::*;

/// Rules of the screenshots: three limits, of which the traffic exceeds one all the time.
const SCREENSHOT_RULES: &str = "\
rules:
  # A key may burst, and then has ten a second.
  - name: per-key
    match: {api_key: {present: true}}
    per: [api_key]
    limit: 10 per second
    burst: 20

  # Whatever keys an address uses.
  - name: per-ip
    per: [ip]
    limit: 600 per minute
    algorithm: sliding_window

  # Tried in the dark until it is right.
  - name: search
    match: {path: /search}
    per: [ip]
    limit: 30 per minute
    mode: shadow
";

#[test]
#[ignore = "writes to docs/images: make pictures"]
fn screenshots_for_the_docs() {
    let dashboard = DashboardServer::start();
    dashboard.push(SCREENSHOT_RULES);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    std::fs::create_dir_all(&folder).unwrap();
    let browser = Browser::start();
    browser.resize(1200, 900);
    let screenshot = |name: &str| browser.screenshot(folder.join(name));
    dashboard.under_traffic(|| {
        // Waits until the chart shows 80 seconds.
        browser.open(&dashboard.page_url("live"));
        for seconds in [40, 80] {
            let drawn = "(document.querySelector('.chart .line.allowed')?.getAttribute('d') ?? '').split('L').length";
            browser.wait_until("the chart has more points", &format!("{drawn} > {seconds}"));
        }
        for (dark, name) in [(false, "live.png"), (true, "live-dark.png")] {
            browser.dark(dark);
            screenshot(name);
        }
        browser.dark(false);
        browser.open(&dashboard.page_url("rules"));
        browser.wait_until("the rules document is loaded", "document.querySelector('#document')?.value.includes('per-key')");
        rules::write_document(&browser, &SCREENSHOT_RULES.replace("10 per second\n    burst: 20", "20 per second\n    burst: 40"));
        browser.wait_until("the summary of the changes is shown", "document.querySelector('#summary') !== null");
        browser.resize(1200, 1250);
        screenshot("rules.png");
        browser.resize(1200, 900);
        browser.open(&dashboard.page_url("clients"));
        browser.wait_until("clients are ranked", "document.querySelectorAll('tbody button').length > 5");
        screenshot("clients.png");
        browser.open(&dashboard.page_url("fleet"));
        browser.wait_until("the store is shown", "document.querySelector('[aria-label=\"Redis servers\"] tbody th') !== null");
        screenshot("fleet.png");
        for (network, reason) in [("198.51.100.0/24", "credential stuffing"), ("203.0.113.9", "asks too much")] {
            let block = json!({"ip": network, "for": "2h", "reason": reason}).to_string();
            assert_eq!(dashboard.server.request_admin("POST", "/v1/block", &block).status, 200);
        }
        browser.open(&dashboard.page_url("blocks"));
        browser.wait_until("the block list is shown", "document.querySelectorAll('tbody button').length === 2");
        screenshot("blocks.png");
    });
    browser.open(&dashboard.page_url("lab"));
    browser
        .wait_until("the Lab has drawn", "document.querySelectorAll('#pictures svg').length === 4");
    browser.resize(1200, 1250);
    screenshot("lab.png");
    browser.resize(1200, 900);
    browser.find("[data-scene='Sync lag']").click();
    browser.wait_until("the textbook curve is drawn", "document.querySelector('.sweep') !== null");
    for (dark, name) in [(false, "lab-sync.png"), (true, "lab-sync-dark.png")] {
        browser.dark(dark);
        screenshot(name);
    }
}
