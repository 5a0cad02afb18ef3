//! Who may look, and what a stranger's words can do.

use super::*;

#[test]
fn a_listener_with_a_token_shows_nothing_without_it() {
    if lacking(&NEEDED) {
        return;
    }
    let stage = Stage::with("admin: {token: '0123456789abcdef-right'}\n");
    let browser = Browser::start();
    browser.open(&stage.page("rules"));
    browser.wait_until("the token is asked for", "document.querySelector('#lock').open");
    assert_eq!(
        browser.script(
            "return document.querySelectorAll('#page td button, #page tbody th').length",
            &[]
        ),
        0
    );
    assert_eq!(text(&browser, "#state"), "connecting");
    browser.find("#token").type_text("0123456789abcdef-wrong\n");
    browser.wait_until("it is asked for again", "document.querySelector('#lock').open && document.querySelector('#lock-message').textContent.includes('Wrong token')");
    browser.find("#token").type_text("0123456789abcdef-right\n");
    browser.wait_until(
        "it is shown",
        "document.querySelector('#state').textContent.endsWith('is ready')",
    );
    // Nowhere is it written down where it outlives the tab, or where it is sent along by itself.
    let kept = browser
        .script("return document.cookie + JSON.stringify({...localStorage}) + location.href", &[]);
    assert!(!kept.to_string().contains("0123456789abcdef"), "{kept}");
    let shown = browser.script("return document.documentElement.outerHTML", &[]);
    assert!(!shown.to_string().contains("0123456789abcdef"));
}

#[test]
fn words_of_strangers_stay_text() {
    if lacking(&NEEDED) {
        return;
    }
    const EVIL: &str = "<img src=x onerror=window.evil=1><script>window.evil=1</script>";
    let stage = Stage::set();
    stage.push(
        "rules: [{name: by-path, per: [path], limit: 1 per 10 days}, {name: by-ip, per: [ip, path], limit: 1 per 10 days}]",
    );
    for _ in 0..3 {
        let check = json!({"attributes": {"path": EVIL, "ip": "192.0.2.1"}}).to_string();
        stage.server.check(&check);
    }
    let blocked =
        json!({"attribute": "path", "value": EVIL, "for": "1h", "reason": EVIL}).to_string();
    let headers = [
        ("if-match", "*"),
        ("tidegate-by", "%3Cimg%20src%3Dx%20onerror%3Dwindow.evil%3D1%3E"),
        ("tidegate-note", "%3Cimg%20src%3Dx%20onerror%3Dwindow.evil%3D1%3E"),
    ];
    let pushed = stage.server.manage_with("PUT", "/v1/rules", &headers, "rules: [{name: by-path, match: {host: \"<img src=x onerror=window.evil=1>\"}, per: [path], limit: 1 per 10 days}]");
    assert_eq!(pushed.status, 200, "{pushed:?}");
    let browser = Browser::start();
    let harmless = |page: &str| {
        // Only the picture in the corner is one, and nothing ran.
        let found = browser.script(
            "return [document.images.length, document.scripts.length, window.evil ?? null]",
            &[],
        );
        assert_eq!(found, json!([1, 1, null]), "{page}");
    };
    browser.open(&stage.page("clients"));
    browser.wait_until(
        "it is ranked",
        "document.querySelector('[aria-label=\"By traffic\"]')?.textContent.includes('<img src=x')",
    );
    harmless("clients");
    browser.find("[aria-label='By traffic'] tbody button").click();
    browser.wait_until(
        "it is looked up",
        "document.querySelector('#found')?.textContent.includes('<script>')",
    );
    harmless("looked up");
    browser.find("nav a[href='#/live']").click();
    browser.wait_until("it is denied most", "document.querySelector('[aria-label^=\"Most denials\"]')?.textContent.includes('<img src=x')");
    harmless("live");
    browser.find("nav a[href='#/rules']").click();
    browser.wait_until("the rule is shown", "document.querySelector('[aria-label=\"Active rules\"]')?.textContent.includes('<img src=x')");
    browser.find("#history summary").click();
    browser.wait_until(
        "who pushed is shown",
        "document.querySelector('#history')?.textContent.includes('<img src=x')",
    );
    harmless("rules");
    assert_eq!(stage.server.manage("POST", "/v1/block", &blocked).status, 200);
    browser.find("nav a[href='#/blocks']").click();
    browser.wait_until(
        "the reason is shown",
        "document.querySelector('tbody')?.textContent.includes('<img src=x')",
    );
    harmless("blocks");
    // And if there was a way in, the page may not run it or load anything for it.
    let page = stage.server.manage("GET", "/", "");
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("default-src 'none'") && policy.contains("script-src 'self'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe"), "{policy}");
}
