//! Accessibility: screen readers and navigation by keyboard.

use tidegate_testkit::keys::{ENTER, LEFT, TAB};

use super::*;

const PAGES: [&str; 6] = ["live", "rules", "clients", "fleet", "blocks", "lab"];

#[test]
fn pages_have_no_accessibility_violations() {
    if lacking(&REQUIRED_TOOLS) || lacking(&[Tool::Axe]) {
        return;
    }
    let axe = Tool::Axe.path().unwrap().join("axe-core/axe.min.js");
    let axe = std::fs::read_to_string(axe).unwrap();
    let dashboard = DashboardServer::start();
    dashboard.push(RULES);
    let browser = Browser::start();
    dashboard.under_load(|| {
        for dark in [false, true] {
            browser.dark(dark);
            for page in PAGES {
                browser.open(&dashboard.page_url(page));
                browser.wait_until("the page has its data", "document.querySelector('#page tbody th, #page tbody .quiet, #pictures svg') !== null && document.querySelector('#state').className === 'good'");
                let violations = accessibility_violations(&browser, &axe);
                assert_eq!(violations, json!([]), "{page}, dark: {dark}");
            }
        }
    });
}

/// Runs axe on the page, and returns each violation with its elements and reasons.
fn accessibility_violations(browser: &Browser, axe: &str) -> Value {
    browser.script(axe, &[]);
    const RUN: &str = "\
        window.found = null;
        axe.run(document).then(
          ({violations}) => { window.found = violations.map(({id, nodes}) => [id, ...nodes.map((node) => `${node.target}: ${node.failureSummary}`)]); },
          (error) => { window.found = [String(error)]; });";
    browser.script(RUN, &[]);
    wait_for("axe has finished", || {
        let found = browser.script("return window.found", &[]);
        (!found.is_null()).then_some(found)
    })
}

#[test]
fn pages_can_be_navigated_with_the_keyboard() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/live", server.admin_url()));
    browser.wait_until("the page is loaded", "document.querySelector('h1') !== null");
    // The first Tab focuses the link that skips the navigation; the next ones focus the links in order.
    let focused = || browser.script("return document.activeElement.textContent.trim()", &[]);
    let mut focus_order = Vec::new();
    for _ in 0..8 {
        browser.keys(TAB);
        focus_order.push(focused().as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(
        focus_order,
        ["Skip to content", "Tidegate", "Live", "Rules", "Clients", "Fleet", "Block list", "Lab"]
    );
    browser.keys(ENTER);
    browser.wait_until("the Lab is open", "document.querySelector('h1').textContent === 'Lab'");
    assert_eq!(browser.script("return document.title", &[]), "Lab – Tidegate");
    // The next Tab focuses the first control of the page.
    assert_eq!(browser.script("return document.activeElement.id", &[]), "page");
    browser.keys(TAB);
    assert_eq!(focused(), "Boundary attack");
    // The focused element has a visible outline.
    let outlined =
        browser.script("return getComputedStyle(document.activeElement).outlineStyle", &[]);
    assert_eq!(outlined, "solid");
    // The arrow keys select one second of a chart.
    browser.open(&format!("{}/#/live", server.admin_url()));
    browser.wait_until("the chart is drawn", "document.querySelector('.chart .line, .chart text') !== null && document.querySelector('#state').className === 'good'");
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
