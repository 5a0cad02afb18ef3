//! The pictures of the README and the guide: `make pictures` takes them anew.

use std::path::Path;

use super::*;

/// What the pictures show: three limits, one of which is met all the time.
const SHOWN: &str = "\
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
fn pictures_for_the_readme() {
    let stage = Stage::set();
    stage.push(SHOWN);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
    std::fs::create_dir_all(&folder).unwrap();
    let browser = Browser::start();
    browser.resize(1200, 900);
    let take = |name: &str| browser.screenshot(folder.join(name));
    stage.under_traffic(|| {
        // A chart of a minute or more says something.
        browser.open(&stage.page("live"));
        for seconds in [40, 80] {
            let drawn = "(document.querySelector('.chart .line.allowed')?.getAttribute('d') ?? '').split('L').length";
            browser.wait_until("time goes by", &format!("{drawn} > {seconds}"));
        }
        for (dark, name) in [(false, "live.png"), (true, "live-dark.png")] {
            browser.dark(dark);
            take(name);
        }
        browser.dark(false);
        browser.open(&stage.page("rules"));
        browser.wait_until("the document is there", "document.querySelector('#document')?.value.includes('per-key')");
        rules::write(&browser, &SHOWN.replace("10 per second\n    burst: 20", "20 per second\n    burst: 40"));
        browser.wait_until("what would change is said", "document.querySelector('#summary') !== null");
        browser.resize(1200, 1250);
        take("rules.png");
        browser.resize(1200, 900);
        browser.open(&stage.page("clients"));
        browser.wait_until("clients are ranked", "document.querySelectorAll('tbody button').length > 5");
        take("clients.png");
        browser.open(&stage.page("fleet"));
        browser.wait_until("the store is shown", "document.querySelector('[aria-label=\"Redis servers\"] tbody th') !== null");
        take("fleet.png");
        for (who, reason) in [("198.51.100.0/24", "credential stuffing"), ("203.0.113.9", "asks too much")] {
            let block = json!({"ip": who, "for": "2h", "reason": reason}).to_string();
            assert_eq!(stage.server.manage("POST", "/v1/block", &block).status, 200);
        }
        browser.open(&stage.page("blocks"));
        browser.wait_until("the list is shown", "document.querySelectorAll('tbody button').length === 2");
        take("blocks.png");
    });
    browser.open(&stage.page("lab"));
    browser
        .wait_until("the Lab has drawn", "document.querySelectorAll('#pictures svg').length === 4");
    browser.resize(1200, 1250);
    take("lab.png");
    browser.resize(1200, 900);
    browser.find("[data-scene='Sync lag']").click();
    browser.wait_until("the textbook is drawn", "document.querySelector('.sweep') !== null");
    for (dark, name) in [(false, "lab-sync.png"), (true, "lab-sync-dark.png")] {
        browser.dark(dark);
        take(name);
    }
}
