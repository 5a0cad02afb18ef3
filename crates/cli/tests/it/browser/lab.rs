//! The Lab: sliders, and the numbers that come of them.

use tidegate_testkit::keys::RIGHT;

use super::*;

const NUMBERS: &str = "Results";

/// What was admitted by the limit of this name.
fn admitted(browser: &Browser, name: &str) -> Option<f64> {
    row(browser, NUMBERS, name).map(|cells| number(&cells[2]))
}

fn wait_for_admitted(browser: &Browser, name: &str, wanted: f64) {
    wait_for(&format!("{name} admits {wanted}"), || {
        (admitted(browser, name) == Some(wanted)).then_some(())
    });
}

/// Drags a slider to a value, step by step as a hand does.
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
fn sliders_are_answered_by_the_core() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Server::with_rules(RULES);
    let browser = Browser::start();
    browser.open(&format!("{}/#/lab", server.admin_url()));

    // The boundary attack: twice the limit from a fixed window, and once from a log.
    wait_for_admitted(&browser, "fixed_window", 40.0);
    let cells = row(&browser, NUMBERS, "fixed_window").unwrap();
    assert_eq!(cells[5..7], ["150 ms", "267/s"]);
    wait_for_admitted(&browser, "sliding_log", 20.0);
    drag(&browser, "lab-limit", 50);
    wait_for_admitted(&browser, "fixed_window", 100.0);
    wait_for_admitted(&browser, "sliding_log", 50.0);
    // The earlier the attack, the further apart the two halves are.
    drag(&browser, "lab-attackPercent", 50);
    wait_for("the halves are half a second apart", || {
        (row(&browser, NUMBERS, "fixed_window")?[5] == "500 ms").then_some(())
    });
    // With the keyboard, a step at a time.
    browser.find("#lab-limit").type_text(RIGHT);
    wait_for_admitted(&browser, "fixed_window", 102.0);
    browser.find("#lab-fixed_window").click();
    wait_for("who is not chosen is not shown", || {
        row(&browser, NUMBERS, "fixed_window").is_none().then_some(())
    });

    // Nodes that tell each other late, beside the textbook.
    browser.find("[data-scene='Sync lag']").click();
    let both = |browser: &Browser| {
        let figure = browser.script("const figure = document.querySelector('.sweep'); return figure && [figure.dataset.code, figure.dataset.textbook]", &[]);
        let part = |place: usize| figure[place].as_str()?.parse::<u64>().ok();
        Some((part(0)?, part(1)?))
    };
    let wait_for_both = |wanted| {
        wait_for(&format!("{wanted:?}"), || (both(&browser) == Some(wanted)).then_some(()));
    };
    wait_for_both((108, 108));
    drag(&browser, "lab-syncMillis", 1000);
    wait_for_both((180, 180));
    drag(&browser, "lab-nodes", 1);
    browser.wait_until("one node needs no textbook", "document.querySelector('.sweep') === null");
    let cells = wait_for("one node keeps the limit", || {
        let first = browser.script("return document.querySelector('tbody th')?.textContent", &[]);
        row(&browser, NUMBERS, first.as_str()?).filter(|cells| number(&cells[2]) == 60.0)
    });
    assert!(cells[0].starts_with("fixed_window"), "{cells:?}");

    // A burst of 30 into room for 50.
    browser.find("[data-scene='Burst']").click();
    wait_for_admitted(&browser, "token_bucket", 30.0);
    drag(&browser, "lab-burst", 12);
    wait_for_admitted(&browser, "token_bucket", 12.0);
    assert_eq!(browser.console_errors(), Vec::<String>::new());
}

#[test]
fn every_accuracy_can_be_tried() {
    if lacking(&NEEDED) {
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
        // An answer to an earlier question may still arrive; it has another accuracy.
        let answered = format!("document.querySelector('#took').dataset.accuracy === '{accuracy}'");
        browser.wait_until("it is answered", &answered);
        assert_eq!(text(&browser, "[role=alert]"), "", "{accuracy}");
        let first = text(&browser, "tbody th");
        let cells = row(&browser, NUMBERS, &first).unwrap();
        assert!(
            number(&cells[2]) > 0.0 && number(&cells[1]) >= number(&cells[2]),
            "{accuracy}: {cells:?}"
        );
        // What nodes keep without asking, they keep within the limit; what they tell late, they do not.
        if accuracy != "synced" {
            assert_eq!(cells[7], "0", "{accuracy}: {cells:?}");
        }
    }
}
