//! A browser: what it shows, what is done to it, and its end.

use std::collections::BTreeSet;
use std::fs;
use std::io::stdin;
use std::path::Path;

use serde_json::json;
use tidegate_testkit::{Browser, Process, Tool, keys, lacking, wait_for};

const TOOLS: [Tool; 2] = [Tool::Chromium, Tool::Chromedriver];

/// A page by itself.
fn page(html: &str) -> String {
    let escaped: String = html.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("data:text/html;charset=utf-8,{escaped}")
}

/// Every other process that was started with a folder in its surroundings.
fn inhabitants(folder: &Path) -> BTreeSet<u32> {
    let folder = folder.to_str().unwrap();
    let lives_there =
        |surroundings: Vec<u8>| String::from_utf8_lossy(&surroundings).contains(folder);
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| fs::read(process.path().join("environ")).is_ok_and(lives_there))
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|process| *process != std::process::id())
        .collect()
}

#[test]
fn browser_reads_and_operates_a_page() {
    if lacking(&TOOLS) {
        return;
    }
    let browser = Browser::start();
    browser.open(&page(
        "<title>tide</title><h1 id=shown>High &amp; low</h1><input id=field value=abc><input type=range id=slider max=10 value=3>
         <button id=button onclick=\"shown.textContent = field.value; shown.className = 'done'\">Go</button>
         <script>setTimeout(() => document.body.append(Object.assign(document.createElement('p'), {id: 'late', innerText: 'here'})), 50)</script>",
    ));
    assert_eq!(browser.find("#shown").text(), "High & low");
    assert_eq!(browser.find("#late").text(), "here");
    let field = browser.find("#field");
    field.type_text("d");
    assert_eq!(field.property("value"), "abcd");
    assert_eq!(field.attribute("value").as_deref(), Some("abc"));
    field.clear();
    field.click();
    browser.keys("42");
    browser.find("#button").click();
    browser.wait_until("the head has changed", "document.querySelector('#shown.done')");
    assert_eq!(browser.texts("h1, p"), ["42", "here"]);
    let slider = browser.find("#slider");
    slider.type_text(keys::RIGHT);
    assert_eq!(slider.property("value"), "4");
    slider.set("9");
    assert_eq!(slider.property("value"), "9");
    browser.keys(&[keys::SHIFT, keys::TAB].concat());
    assert_eq!(browser.script("return document.activeElement.id", &[]), "field");
    assert_eq!(browser.script("return arguments[0] + 1", &[json!(1)]), 2);
    assert_eq!(
        browser.script("return fetch('http://example.com/').then(() => 1, () => 0)", &[]),
        0
    );
}

#[test]
fn browser_applies_size_and_colour_scheme() {
    if lacking(&TOOLS) {
        return;
    }
    let browser = Browser::start();
    browser.open(&page("<body style='background: canvas; color-scheme: light dark'>"));
    let dark = "matchMedia('(prefers-color-scheme: dark)').matches";
    for is in [true, false] {
        browser.dark(is);
        assert_eq!(browser.script(&format!("return {dark}"), &[]), is);
    }
    browser.resize(640, 480);
    assert_eq!(browser.script("return [innerWidth, innerHeight]", &[]), json!([640, 480]));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.png");
    browser.screenshot(&file);
    let image = fs::read(file).unwrap();
    assert!(image.starts_with(b"\x89PNG"));
    // The header chunk of a PNG has width and height behind its name.
    assert_eq!(image[16..24], [0, 0, 2, 128, 0, 0, 1, 224]);
}

#[test]
fn console_errors_are_reported_once() {
    if lacking(&TOOLS) {
        return;
    }
    let browser = Browser::start();
    browser
        .open(&page("<script>console.log('fine'); console.error('not fine'); missing()</script>"));
    let errors = browser.console_errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("not fine") && errors[1].contains("missing is not defined"));
    assert_eq!(browser.console_errors(), [""; 0]);
}

#[test]
fn browser_processes_end_when_the_test_runner_is_killed() {
    if lacking(&TOOLS) || lacking(&[Tool::Setpriv]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Process::command(std::env::current_exe().unwrap());
    command.env("TMPDIR", folder.path());
    command.args(["--ignored", "--exact", "--nocapture", "browser::starts_browsers_and_waits"]);
    let runner = Process::spawn(command);
    runner.stdout().find("one is gone");
    // The runner, the driver, the browser and what it has started.
    assert!(inhabitants(folder.path()).len() > 3);
    runner.kill();
    wait_for("the browser is gone", || inhabitants(folder.path()).is_empty().then_some(()));
}

#[test]
#[ignore = "the runner that another test kills"]
fn starts_browsers_and_waits() {
    let gone = Browser::start();
    let started = inhabitants(&std::env::temp_dir());
    let kept = Browser::start();
    drop(gone);
    let left = inhabitants(&std::env::temp_dir());
    assert!(started.is_disjoint(&left) && !left.is_empty(), "{started:?} {left:?}");
    println!("one is gone");
    stdin().read_line(&mut String::new()).unwrap();
    drop(kept);
}
