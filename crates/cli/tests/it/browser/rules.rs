//! Rules that are written, checked and pushed in a browser.

use super::*;

/// Puts a text into the editor as if it was pasted.
pub(crate) fn write(browser: &Browser, text: &str) {
    const WRITE: &str = "\
        const text = document.querySelector('#document');
        text.value = arguments[0];
        text.dispatchEvent(new Event('input'));";
    browser.script(WRITE, &[json!(text)]);
}

fn opened(stage: &Stage, browser: &Browser) {
    browser.open(&stage.page("rules"));
    browser.wait_until(
        "the document is there",
        "document.querySelector('#document')?.value.includes('per-key')",
    );
}

#[test]
fn a_rule_that_is_edited_and_pushed_is_enforced() {
    if lacking(&NEEDED) {
        return;
    }
    let stage = Stage::set();
    stage.push(RULES);
    let spend = || stage.server.check(r#"{"rule":"per-key","client":"alice","cost":6}"#).status;
    assert_eq!(spend(), 429);
    let browser = Browser::start();
    stage.under_load(|| {
        opened(&stage, &browser);
        // A mistake is found while it is written, in its line, and can't be pushed.
        write(&browser, &RULES.replace("5 per 10 days", "5 per 10 dys"));
        browser.wait_until("what is wrong is said", "document.querySelector('#checked').classList.contains('bad')");
        let said = text(&browser, "#checked");
        assert!(said.contains("line 5") && said.contains(r#"found "dys""#), "{said}");
        assert_eq!(browser.script("return document.querySelector('#push').disabled", &[]), true);
        browser.find("#checked button").click();
        let chosen = browser.script("const text = document.querySelector('#document'); return text.value.slice(text.selectionStart, text.selectionEnd)", &[]);
        assert_eq!(chosen, "    limit: 5 per 10 dys");

        // What would change is shown before it does.
        write(&browser, &RULES.replace("5 per 10 days", "9 per 10 days"));
        browser.wait_until("what would change is said", "document.querySelector('#summary') !== null");
        let summary = text(&browser, "#summary");
        assert!(summary.contains("per-key: limit 5 per 10 days (fixed_window) → 9 per 10 days"), "{summary}");
        let diff = text(&browser, ".diff");
        assert!(diff.contains("-     limit: 5 per 10 days") && diff.contains("+     limit: 9 per 10 days"), "{diff}");
        browser.find("#by").type_text("ann");
        browser.find("#note").type_text("more for all");
        assert_eq!(spend(), 429);
        browser.find("#push").click();
        browser.wait_until("it is in force", "document.querySelector('#notice').textContent === 'Version 2 is active.'");
        assert_eq!(spend(), 200);
        wait_for("the table has it", || {
            (row(&browser, "Active rules", "per-key")?[3] == "9 per 10 days (fixed_window)").then_some(())
        });

        // The version before can be taken back.
        browser.find("#history summary").click();
        browser.find("[aria-label='Restore version 1 in the editor']").click();
        browser.wait_until("it is compared", "document.querySelector('.diff')?.innerText.includes('+     limit: 5 per 10 days')");
        let versions = text(&browser, "#history");
        assert!(versions.contains("ann") && versions.contains("more for all"), "{versions}");
    });
}

#[test]
fn of_two_who_push_the_second_is_told_and_loses_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    let stage = Stage::set();
    stage.push(RULES);
    let browser = Browser::start();
    opened(&stage, &browser);
    let mine = RULES.replace("5 per 10 days", "7 per 10 days");
    write(&browser, &mine);
    browser
        .wait_until("it is fine", "document.querySelector('#checked').classList.contains('good')");
    stage.push(&RULES.replace("5 per 10 days", "6 per 10 days"));
    browser.find("#push").click();
    browser.wait_until("the other one is named", "document.querySelector('.editor .warning:not([hidden])')?.textContent.includes('Version 2 is active')");
    assert_eq!(
        browser.script("return document.querySelector('#document').value", &[]),
        mine.as_str()
    );
    let now = stage.server.manage("GET", "/v1/rules", "").json();
    assert_eq!(now["version"], 2);
    browser.find(".editor .warning button").click();
    browser.wait_until(
        "it is loaded",
        "document.querySelector('#document').value.includes('6 per 10 days')",
    );
}

#[test]
fn rules_of_a_file_can_be_tried_and_not_pushed() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/rules", server.admin_url()));
    browser.wait_until(
        "the document is there",
        "document.querySelector('#document')?.value.includes('per-key')",
    );
    write(&browser, &RULES.replace("5 per 10 days", "9 per 10 days"));
    browser.wait_until("what would change is said", "document.querySelector('#summary') !== null");
    let said = text(&browser, "#checked");
    assert!(said.contains("change them there"), "{said}");
    assert_eq!(browser.script("return document.querySelector('#push').disabled", &[]), true);
}
