//! Whoever does not see the page or has no mouse.

use tidegate_testkit::keys::{ENTER, LEFT, TAB};

use super::*;

const PAGES: [&str; 6] = ["live", "rules", "clients", "fleet", "blocks", "lab"];

#[test]
fn nothing_on_a_page_keeps_people_out() {
    if lacking(&NEEDED) || lacking(&[Tool::Axe]) {
        return;
    }
    let axe = Tool::Axe.path().unwrap().join("axe-core/axe.min.js");
    let axe = std::fs::read_to_string(axe).unwrap();
    let stage = Stage::set();
    stage.push(RULES);
    let browser = Browser::start();
    stage.under_load(|| {
        for dark in [false, true] {
            browser.dark(dark);
            for page in PAGES {
                browser.open(&stage.page(page));
                browser.wait_until("the page is filled", "document.querySelector('#page tbody th, #page tbody .quiet, #pictures svg') !== null && document.querySelector('#state').className === 'good'");
                let wrong = barriers(&browser, &axe);
                assert_eq!(wrong, json!([]), "{page}, dark: {dark}");
            }
        }
    });
}

/// What axe finds, with where and why.
fn barriers(browser: &Browser, axe: &str) -> Value {
    browser.script(axe, &[]);
    const RUN: &str = "\
        window.found = null;
        axe.run(document).then(
          ({violations}) => { window.found = violations.map(({id, nodes}) => [id, ...nodes.map((node) => `${node.target}: ${node.failureSummary}`)]); },
          (error) => { window.found = [String(error)]; });";
    browser.script(RUN, &[]);
    wait_for("axe is done", || {
        let found = browser.script("return window.found", &[]);
        (!found.is_null()).then_some(found)
    })
}

#[test]
fn pages_are_reached_and_left_with_the_keyboard() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/live", server.admin_url()));
    browser.wait_until("it is there", "document.querySelector('h1') !== null");
    // First comes the way around the links, then the links in their order.
    let focused = || browser.script("return document.activeElement.textContent.trim()", &[]);
    let mut met = Vec::new();
    for _ in 0..8 {
        browser.keys(TAB);
        met.push(focused().as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(
        met,
        ["Skip to content", "Tidegate", "Live", "Rules", "Clients", "Fleet", "Block list", "Lab"]
    );
    browser.keys(ENTER);
    browser.wait_until("the Lab is open", "document.querySelector('h1').textContent === 'Lab'");
    assert_eq!(browser.script("return document.title", &[]), "Lab – Tidegate");
    // What comes next is on the page, and is a control with a name.
    assert_eq!(browser.script("return document.activeElement.id", &[]), "page");
    browser.keys(TAB);
    assert_eq!(focused(), "Boundary attack");
    // Where the focus is can be seen.
    let outlined =
        browser.script("return getComputedStyle(document.activeElement).outlineStyle", &[]);
    assert_eq!(outlined, "solid");
    // A chart is read second by second.
    browser.open(&format!("{}/#/live", server.admin_url()));
    browser.wait_until("seconds are there", "document.querySelector('.chart .line, .chart text') !== null && document.querySelector('#state').className === 'good'");
    server.check(r#"{"attributes":{"ip":"192.0.2.1"}}"#);
    browser
        .wait_until("a check is drawn", "document.querySelector('.chart .line.allowed') !== null");
    browser.script("document.querySelector('.chart').focus()", &[]);
    browser.keys(LEFT);
    browser.wait_until(
        "a second is read out",
        "/^\\d\\d:\\d\\d:\\d\\d: allowed \\d/.test(document.querySelector('.readout').textContent)",
    );
}
