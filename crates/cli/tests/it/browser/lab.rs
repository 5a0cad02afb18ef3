//! The Lab page: sliders and the simulated numbers.

use tidegate_testkit::keys::RIGHT;

use super::*;

/// Caption of the table with the results.
const RESULTS_TABLE: &str = "Results";

/// Returns the number of requests that this algorithm admitted.
fn admitted(browser: &Browser, name: &str) -> Option<f64> {
    table_row(browser, RESULTS_TABLE, name).map(|cells| parse_number(&cells[2]))
}

fn wait_for_admitted(browser: &Browser, name: &str, wanted: f64) {
    wait_for(&format!("{name} admits {wanted}"), || {
        (admitted(browser, name) == Some(wanted)).then_some(())
    });
}

/// Drags a slider to a value in five steps, with one event each.
fn drag(browser: &Browser, slider: &str, to: u64) {
    const DRAG: &str = "\
        const slider = document.getElementById(arguments[0]);
        const [from, to] = [Number(slider.value), arguments[1]];
        for (let part = 1; part <= 5; part += 1) {
          slider.value = from + (to - from) * part / 5;
          slider.dispatchEvent(new Event('input'));
        }
        return Number(slider.value);";
    assert_eq!(browser.script(DRAG, &[json!(slider), json!(to)]).as_f64(), Some(to as f64));
}

#[test]
fn sliders_change_the_simulated_numbers() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/lab", server.admin_url()));

    // Boundary attack: a fixed window admits twice the limit, a sliding log admits the limit.
    wait_for_admitted(&browser, "fixed_window", 40.0);
    let cells = table_row(&browser, RESULTS_TABLE, "fixed_window").unwrap();
    assert_eq!(cells[5..7], ["150 ms", "267/s"]);
    wait_for_admitted(&browser, "sliding_log", 20.0);
    drag(&browser, "lab-limit", 50);
    wait_for_admitted(&browser, "fixed_window", 100.0);
    wait_for_admitted(&browser, "sliding_log", 50.0);
    // An earlier attack increases the time between its two halves.
    drag(&browser, "lab-attackPercent", 50);
    wait_for("the halves are 500 ms apart", || {
        (table_row(&browser, RESULTS_TABLE, "fixed_window")?[5] == "500 ms").then_some(())
    });
    // The keyboard moves the slider by one step.
    browser.find("#lab-limit").type_text(RIGHT);
    wait_for_admitted(&browser, "fixed_window", 102.0);
    browser.find("#lab-fixed_window").click();
    wait_for("a deselected algorithm has no row", || {
        table_row(&browser, RESULTS_TABLE, "fixed_window").is_none().then_some(())
    });

    // Synced nodes: the simulated admissions equal those of the textbook formula.
    browser.find("[data-scene='Sync lag']").click();
    let code_and_textbook = |browser: &Browser| {
        let figure = browser.script("const figure = document.querySelector('.sweep'); return figure && [figure.dataset.code, figure.dataset.textbook]", &[]);
        let attribute = |index: usize| figure[index].as_str()?.parse::<u64>().ok();
        Some((attribute(0)?, attribute(1)?))
    };
    let wait_for_both = |wanted| {
        wait_for(&format!("admissions of code and textbook: {wanted:?}"), || {
            (code_and_textbook(&browser) == Some(wanted)).then_some(())
        });
    };
    wait_for_both((108, 108));
    drag(&browser, "lab-syncMillis", 1000);
    wait_for_both((180, 180));
    drag(&browser, "lab-nodes", 1);
    browser.wait_until(
        "the textbook curve is hidden for one node",
        "document.querySelector('.sweep') === null",
    );
    let cells = wait_for("one node admits the limit", || {
        let first = browser.script("return document.querySelector('tbody th')?.textContent", &[]);
        table_row(&browser, RESULTS_TABLE, first.as_str()?)
            .filter(|cells| parse_number(&cells[2]) == 60.0)
    });
    assert!(cells[0].starts_with("fixed_window"), "{cells:?}");

    // A burst of 30 requests fits a bucket of 50.
    browser.find("[data-scene='Burst']").click();
    wait_for_admitted(&browser, "token_bucket", 30.0);
    drag(&browser, "lab-burst", 12);
    wait_for_admitted(&browser, "token_bucket", 12.0);
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}

#[test]
fn every_accuracy_can_be_simulated() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/lab", server.admin_url()));
    browser.find("[data-scene='Steady traffic']").click();
    drag(&browser, "lab-nodes", 4);
    for accuracy in ["leased", "split", "synced", "exact"] {
        const CHOOSE: &str = "\
            const select = document.querySelector('#lab-accuracy');
            select.value = arguments[0];
            select.dispatchEvent(new Event('change'));";
        browser.script(CHOOSE, &[json!(accuracy)]);
        // The response to an earlier request may arrive late; it has another accuracy.
        let answered = format!("document.querySelector('#took').dataset.accuracy === '{accuracy}'");
        browser.wait_until("the result has the chosen accuracy", &answered);
        assert_eq!(element_text(&browser, "[role=alert]"), "", "{accuracy}");
        let first = element_text(&browser, "tbody th");
        let cells = table_row(&browser, RESULTS_TABLE, &first).unwrap();
        assert!(
            parse_number(&cells[2]) > 0.0 && parse_number(&cells[1]) >= parse_number(&cells[2]),
            "{accuracy}: {cells:?}"
        );
        // Only synced nodes may exceed the limit: they report their admissions late.
        if accuracy != "synced" {
            assert_eq!(cells[7], "0", "{accuracy}: {cells:?}");
        }
    }
}
