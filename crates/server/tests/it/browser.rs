//! The dashboard in a real browser.

use tidegate_testkit::{Browser, Tool, lacking};

use crate::kit::Server;

#[test]
fn the_admin_door_is_a_page_in_a_browser() {
    if lacking(&[Tool::Chromium, Tool::Chromedriver]) {
        return;
    }
    let server = Server::with_rules("rules: [{name: api, limit: 1/s}]");
    let browser = Browser::start();
    browser.open(&server.admin_url());
    assert_eq!(browser.find("h1").text(), "Tidegate");
    assert_eq!(browser.script("return document.title", &[]), "Tidegate");
    assert_eq!(browser.console_errors(), [""; 0]);
}
