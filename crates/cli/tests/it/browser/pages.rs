//! Navigation through every page, and the actions on clients and blocks.

use super::*;

#[test]
fn every_page_shows_live_data_under_load() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let dashboard = DashboardServer::start();
    dashboard.push(RULES);
    let browser = Browser::start();
    dashboard.under_load(|| {
        browser.open(&dashboard.page_url("live"));
        browser.wait_until(
            "checks are shown",
            "Number(document.querySelector('strong.denied')?.textContent.replace(',', '')) > 0",
        );
        wait_for("the rule is listed", || {
            let cells = table_row(&browser, "Activity by rule", "per-key")?;
            (parse_number(&cells[5]) > 0.0).then_some(())
        });
        assert!(element_text(&browser, "#state").ends_with("is ready"));
        // Both charts have lines, and a label for screen readers.
        let lines = browser.script("return document.querySelectorAll('.chart .line').length", &[]);
        assert!(lines.as_u64() >= Some(3), "{lines}");
        let label = browser.script("return document.querySelector('.chart').getAttribute('aria-label')", &[]);
        assert!(label.as_str().unwrap().contains("denied"), "{label}");

        browser.find("nav a[href='#/rules']").click();
        let cells = wait_for("the rule has denials", || {
            let cells = table_row(&browser, "Active rules", "per-key")?;
            (parse_number(&cells[9]) > 0.0).then_some(cells)
        });
        assert_eq!(cells[3], "5 per 10 days (fixed_window)");
        // The would-be denials of a shadow rule are shown as well.
        wait_for("the shadow rule has denials", || {
            (parse_number(&table_row(&browser, "Active rules", "tried")?[9]) > 0.0).then_some(())
        });

        browser.find("nav a[href='#/clients']").click();
        wait_for("clients are ranked", || table_row(&browser, "By traffic", "192.0.2.1"));
        browser.wait_until("denials are ranked", "document.querySelectorAll('[aria-label=\"By denials\"] tbody button').length > 0");

        browser.find("nav a[href='#/fleet']").click();
        let cells = wait_for("the store is shown", || {
            let server = browser.script("return document.querySelector('[aria-label=\"Redis servers\"] tbody th')?.textContent", &[]);
            table_row(&browser, "Redis servers", server.as_str()?)
        });
        assert_eq!(cells[1], "closed");
        assert!(element_text(&browser, "[aria-label='Nodes and their rules'] tbody").contains("version 1"));

        browser.find("nav a[href='#/blocks']").click();
        browser.wait_until("the block list is shown", "document.querySelector('tbody')?.textContent === 'none'");

        browser.find("nav a[href='#/lab']").click();
        browser.wait_until("the Lab has drawn", "document.querySelectorAll('#pictures svg').length === 4");
    });
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}

#[test]
fn client_can_be_looked_up_reset_blocked_and_unblocked() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let dashboard = DashboardServer::start();
    dashboard.push(&format!(
        "{RULES}  - {{name: twice, per: [api_key], limit: 10 per 10 days, algorithm: fixed_window}}\n"
    ));
    let twice = |_| dashboard.server.check(r#"{"rule":"twice","client":"sk-secret"}"#).status;
    assert_eq!([(); 6].map(twice), [200; 6]);
    let check = || dashboard.server.check(r#"{"rule":"per-key","client":"sk-secret"}"#).status;
    let spent: Vec<u16> = (0..6).map(|_| check()).collect();
    assert_eq!(spent, [200, 200, 200, 200, 200, 429]);
    let browser = Browser::start();
    browser.open(&dashboard.page_url("clients"));
    browser.wait_until("rules are listed", "document.querySelector('#client') !== null");
    browser.find("#client").type_text("sk-secret");
    browser.find("#lookup button").click();
    browser.wait_until(
        "the client is over its limit",
        "document.querySelector('#client-state')?.textContent === 'would be denied'",
    );
    assert!(element_text(&browser, "#found").contains("0 of 5"));

    // Another rule has a bucket for the same API key.
    let cells = table_row(&browser, "Buckets under other rules", "twice").unwrap();
    assert_eq!(cells[1..3], ["4 of 10", "would be allowed"]);

    browser.find("#reset").click();
    browser.wait_until(
        "the usage is reset",
        "document.querySelector('#found').innerText.includes('5 of 5')",
    );
    assert_eq!(check(), 200);

    browser.find("#block").click();
    browser.find("dialog[aria-label=Block] button.main").click();
    browser.wait_until(
        "the client is blocked",
        "document.querySelector('#client-state')?.textContent === 'blocked'",
    );
    assert_ne!(check(), 200);

    browser.find("nav a[href='#/blocks']").click();
    browser.wait_until(
        "the block list has one entry",
        "document.querySelectorAll('tbody button').length === 1",
    );
    // The block list does not show the API key.
    assert!(!element_text(&browser, "main").contains("sk-secret"));
    browser.find("tbody button").click();
    browser.wait_until(
        "the block list is empty",
        "document.querySelector('tbody')?.textContent === 'none'",
    );
    assert_eq!(check(), 200);

    browser.find("#value").type_text("not an address");
    browser.find("form button.main").click();
    browser.wait_until(
        "the error is shown",
        "document.querySelector('[role=alert]').textContent.includes('wanted an address')",
    );
    browser.find("#value").clear();
    browser.find("#value").type_text("198.51.100.0/24");
    browser.find("form button.main").click();
    wait_for("the network is blocked", || {
        let cells = table_row(&browser, "Entries", "198.51.100.0/24")?;
        (cells[1] == "blocked").then_some(())
    });
    let denied = dashboard.server.check(r#"{"attributes":{"ip":"198.51.100.9"}}"#);
    assert_ne!(denied.status, 200, "{denied:?}");

    // The same form allows a client.
    browser.find("#value").type_text("203.0.113.7");
    browser.find("#action option[value=allow]").click();
    browser.find("form button.main").click();
    wait_for("the address is allowed", || {
        let cells = table_row(&browser, "Entries", "203.0.113.7/32")
            .or_else(|| table_row(&browser, "Entries", "203.0.113.7"))?;
        (cells[1] == "allowed").then_some(())
    });
    let allowed = dashboard.server.check(r#"{"attributes":{"ip":"203.0.113.7"}}"#);
    assert_eq!(allowed.json()["allowListed"], true);
}
