//! The rules page: editing, checking and pushing rules.

use super::*;

/// Replaces the text of the editor, with one input event as after a paste.
pub(crate) fn write_document(browser: &Browser, text: &str) {
    const WRITE: &str = "\
        const text = document.querySelector('#document');
        text.value = arguments[0];
        text.dispatchEvent(new Event('input'));";
    browser.script(WRITE, &[json!(text)]);
}

/// Opens the rules page, and waits for its document.
fn open_rules_page(dashboard: &DashboardServer, browser: &Browser) {
    browser.open(&dashboard.page_url("rules"));
    browser.wait_until(
        "the rules document is loaded",
        "document.querySelector('#document')?.value.includes('per-key')",
    );
}

#[test]
fn edited_rule_is_enforced_after_its_push() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let dashboard = DashboardServer::start();
    dashboard.push(RULES);
    let spend = || dashboard.server.check(r#"{"rule":"per-key","client":"alice","cost":6}"#).status;
    assert_eq!(spend(), 429);
    let browser = Browser::start();
    dashboard.under_load(|| {
        open_rules_page(&dashboard, &browser);
        // An error is shown with its line while the text is edited, and disables the push.
        write_document(&browser, &RULES.replace("5 per 10 days", "5 per 10 dys"));
        browser.wait_until("the error is shown", "document.querySelector('#checked').classList.contains('bad')");
        let error = element_text(&browser, "#checked");
        assert!(error.contains("line 5") && error.contains(r#"found "dys""#), "{error}");
        assert_eq!(browser.script("return document.querySelector('#push').disabled", &[]), true);
        browser.find("#checked button").click();
        let selected = browser.script("const text = document.querySelector('#document'); return text.value.slice(text.selectionStart, text.selectionEnd)", &[]);
        assert_eq!(selected, "    limit: 5 per 10 dys");

        // A warning is shown with its line, and does not disable the push.
        write_document(&browser, &RULES.replace("per: [api_key]", "per: [apikey]"));
        browser.wait_until("the warning is shown", "document.querySelector('#warnings') !== null");
        let warning = element_text(&browser, "#warnings");
        assert!(warning.contains("line ") && warning.contains("wanted api_key"), "{warning}");
        assert_eq!(browser.script("return document.querySelector('#push').disabled", &[]), false);

        // The changes are shown before the push.
        write_document(&browser, &RULES.replace("5 per 10 days", "9 per 10 days"));
        browser.wait_until("the summary of the changes is shown", "document.querySelector('#summary')?.innerText.includes('9 per 10 days')");
        let summary = element_text(&browser, "#summary");
        assert!(summary.contains("per-key: limit 5 per 10 days (fixed_window) → 9 per 10 days"), "{summary}");
        let diff = element_text(&browser, ".diff");
        assert!(diff.contains("-     limit: 5 per 10 days") && diff.contains("+     limit: 9 per 10 days"), "{diff}");
        browser.find("#by").type_text("ann");
        browser.find("#note").type_text("more for all");
        assert_eq!(spend(), 429);
        browser.find("#push").click();
        browser.wait_until("the pushed version is active", "document.querySelector('#notice').textContent === 'Version 2 is active.'");
        assert_eq!(spend(), 200);
        wait_for("the table shows the new limit", || {
            (table_row(&browser, "Active rules", "per-key")?[3] == "9 per 10 days (fixed_window)").then_some(())
        });

        // An earlier version can be loaded into the editor.
        browser.find("#history summary").click();
        browser.find("[aria-label='Restore version 1 in the editor']").click();
        browser.wait_until("the earlier version is compared with the active one", "document.querySelector('.diff')?.innerText.includes('+     limit: 5 per 10 days')");
        let versions = element_text(&browser, "#history");
        assert!(versions.contains("ann") && versions.contains("more for all"), "{versions}");
    });
}

#[test]
fn conflicting_push_is_rejected_and_keeps_the_edited_text() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let dashboard = DashboardServer::start();
    dashboard.push(RULES);
    let browser = Browser::start();
    open_rules_page(&dashboard, &browser);
    let edited = RULES.replace("5 per 10 days", "7 per 10 days");
    write_document(&browser, &edited);
    browser.wait_until(
        "the edited text is valid",
        "document.querySelector('#checked').classList.contains('good')",
    );
    dashboard.push(&RULES.replace("5 per 10 days", "6 per 10 days"));
    browser.find("#push").click();
    browser.wait_until("the conflicting version is named", "document.querySelector('.editor .warning:not([hidden])')?.textContent.includes('Version 2 is active')");
    assert_eq!(
        browser.script("return document.querySelector('#document').value", &[]),
        edited.as_str()
    );
    let active = dashboard.server.request_admin("GET", "/v1/rules", "").json();
    assert_eq!(active["version"], 2);
    browser.find(".editor .warning button").click();
    browser.wait_until(
        "the other version is loaded",
        "document.querySelector('#document').value.includes('6 per 10 days')",
    );
}

#[test]
fn rules_from_a_file_can_be_checked_but_not_pushed() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/rules", server.admin_url()));
    browser.wait_until(
        "the rules document is loaded",
        "document.querySelector('#document')?.value.includes('per-key')",
    );
    write_document(&browser, &RULES.replace("5 per 10 days", "9 per 10 days"));
    browser.wait_until(
        "the summary of the changes is shown",
        "document.querySelector('#summary') !== null",
    );
    let hint = element_text(&browser, "#checked");
    assert!(hint.contains("change them there"), "{hint}");
    assert_eq!(browser.script("return document.querySelector('#push').disabled", &[]), true);
}
