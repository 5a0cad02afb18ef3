//! The token of the admin listener, and values of clients that contain HTML.

use super::*;

#[test]
fn dashboard_shows_nothing_without_the_token() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let dashboard = DashboardServer::with_config("admin: {token: '0123456789abcdef-right'}\n");
    let browser = Browser::start();
    browser.open(&dashboard.page_url("rules"));
    browser.wait_until("the token dialog is open", "document.querySelector('#lock').open");
    assert_eq!(
        browser.script(
            "return document.querySelectorAll('#page td button, #page tbody th').length",
            &[]
        ),
        0
    );
    assert_eq!(element_text(&browser, "#state"), "connecting");
    browser.find("#token").type_text("0123456789abcdef-wrong\n");
    browser.wait_until("the token dialog reports a wrong token", "document.querySelector('#lock').open && document.querySelector('#lock-message').textContent.includes('Wrong token')");
    browser.find("#token").type_text("0123456789abcdef-right\n");
    browser.wait_until(
        "the dashboard is shown",
        "document.querySelector('#state').textContent.endsWith('is ready')",
    );
    // The token is in no storage that outlives the tab, and in no place that the browser sends by itself.
    let stored = browser
        .script("return document.cookie + JSON.stringify({...localStorage}) + location.href", &[]);
    assert!(!stored.to_string().contains("0123456789abcdef"), "{stored}");
    let shown = browser.script("return document.documentElement.outerHTML", &[]);
    assert!(!shown.to_string().contains("0123456789abcdef"));
}

#[test]
fn untrusted_values_are_shown_as_text() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    const MARKUP: &str = "<img src=x onerror=window.evil=1><script>window.evil=1</script>";
    let dashboard = DashboardServer::start();
    dashboard.push(
        "rules: [{name: by-path, per: [path], limit: 1 per 10 days}, {name: by-ip, per: [ip, path], limit: 1 per 10 days}]",
    );
    for _ in 0..3 {
        let check = json!({"attributes": {"path": MARKUP, "ip": "192.0.2.1"}}).to_string();
        dashboard.server.check(&check);
    }
    let blocked =
        json!({"attribute": "path", "value": MARKUP, "for": "1h", "reason": MARKUP}).to_string();
    let headers = [
        ("if-match", "*"),
        ("tidegate-by", "%3Cimg%20src%3Dx%20onerror%3Dwindow.evil%3D1%3E"),
        ("tidegate-note", "%3Cimg%20src%3Dx%20onerror%3Dwindow.evil%3D1%3E"),
    ];
    let pushed = dashboard.server.request_admin_with("PUT", "/v1/rules", &headers, "rules: [{name: by-path, match: {host: \"<img src=x onerror=window.evil=1>\"}, per: [path], limit: 1 per 10 days}]");
    assert_eq!(pushed.status, 200, "{pushed:?}");
    let browser = Browser::start();
    let assert_markup_is_text = |page: &str| {
        // The logo is the only image, the page has its one script, and no injected code ran.
        let found = browser.script(
            "return [document.images.length, document.scripts.length, window.evil ?? null]",
            &[],
        );
        assert_eq!(found, json!([1, 1, null]), "{page}");
    };
    browser.open(&dashboard.page_url("clients"));
    browser.wait_until(
        "the client is ranked",
        "document.querySelector('[aria-label=\"By traffic\"]')?.textContent.includes('<img src=x')",
    );
    assert_markup_is_text("clients");
    browser.find("[aria-label='By traffic'] tbody button").click();
    browser.wait_until(
        "the client is looked up",
        "document.querySelector('#found')?.textContent.includes('<script>')",
    );
    assert_markup_is_text("looked up");
    browser.find("nav a[href='#/live']").click();
    browser.wait_until("the client is in the list of denials", "document.querySelector('[aria-label^=\"Most denials\"]')?.textContent.includes('<img src=x')");
    assert_markup_is_text("live");
    browser.find("nav a[href='#/rules']").click();
    browser.wait_until("the rule is shown", "document.querySelector('[aria-label=\"Active rules\"]')?.textContent.includes('<img src=x')");
    browser.find("#history summary").click();
    browser.wait_until(
        "the author of the push is shown",
        "document.querySelector('#history')?.textContent.includes('<img src=x')",
    );
    assert_markup_is_text("rules");
    assert_eq!(dashboard.server.request_admin("POST", "/v1/block", &blocked).status, 200);
    browser.find("nav a[href='#/blocks']").click();
    browser.wait_until(
        "the reason is shown",
        "document.querySelector('tbody')?.textContent.includes('<img src=x')",
    );
    assert_markup_is_text("blocks");
    // The policy also prevents that injected markup runs scripts or loads resources.
    let page = dashboard.server.request_admin("GET", "/", "");
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && policy.contains("script-src 'self'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
}
