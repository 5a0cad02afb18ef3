//! An element of a page.

use serde_json::{Value, json};

use super::Browser;
use super::driver::DriverError;
use crate::wait::{WAIT_TIMEOUT, poll};

/// The key of an element's id in WebDriver.
const NAME: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The first element that a CSS selector finds at the time of each operation.
///
/// A page that renders again replaces its elements; this is then the new one. Operations wait until it exists and is
/// usable.
#[derive(Debug)]
pub struct Element<'b> {
    browser: &'b Browser,
    css: String,
}

impl<'b> Element<'b> {
    pub(crate) fn of(browser: &'b Browser, css: &str) -> Self {
        Self { browser, css: css.to_owned() }
    }

    pub(crate) fn wait(&self) {
        self.meet("find", |_| Ok(Value::Null));
    }

    /// Clicks on it.
    pub fn click(&self) {
        self.post("click", &json!({}));
    }

    /// Returns its text as it is shown.
    pub fn text(&self) -> String {
        self.get("text").as_str().unwrap_or_default().to_owned()
    }

    /// Types text after the existing text.
    pub fn type_text(&self, text: &str) {
        self.post("value", &json!({"text": text}));
    }

    /// Empties it.
    pub fn clear(&self) {
        self.post("clear", &json!({}));
    }

    /// Sets the value of a field or a slider, with the events of a user's input.
    pub fn set(&self, value: &str) {
        let script = "const [element, value] = arguments; element.value = value;
            for (const kind of ['input', 'change']) element.dispatchEvent(new Event(kind, {bubbles: true}))";
        self.meet("set", |name| {
            let args = json!([{ NAME: name }, value]);
            self.browser.driver.post("execute/sync", &json!({"script": script, "args": args}))
        });
    }

    /// Returns an attribute as the document has it.
    pub fn attribute(&self, name: &str) -> Option<String> {
        self.get(&format!("attribute/{name}")).as_str().map(str::to_owned)
    }

    /// Returns a property as it is now: the `value` of a field, whether a box is `checked`.
    pub fn property(&self, name: &str) -> Value {
        self.get(&format!("property/{name}"))
    }

    /// Returns whether it can be seen.
    pub fn is_displayed(&self) -> bool {
        self.get("displayed").as_bool().unwrap_or_default()
    }

    fn get(&self, path: &str) -> Value {
        self.meet(path, |name| self.browser.driver.get(&format!("element/{name}/{path}")))
    }

    fn post(&self, path: &str, body: &Value) {
        self.meet(path, |name| self.browser.driver.post(&format!("element/{name}/{path}"), body));
    }

    /// Runs an operation as soon as a usable element exists.
    fn meet(&self, what: &str, act: impl Fn(&str) -> Result<Value, DriverError>) -> Value {
        let mut last = String::new();
        let found = poll(|| {
            let wanted = json!({"using": "css selector", "value": self.css});
            let found = self.browser.driver.post("element", &wanted);
            let done = found.and_then(|found| act(found[NAME].as_str().unwrap_or_default()));
            match done {
                Ok(value) => Some(value),
                Err(refusal) if comes(&refusal.kind) => {
                    last = refusal.to_string();
                    None
                }
                Err(refusal) => panic!("{what} {}: {refusal}", self.css),
            }
        });
        found.unwrap_or_else(|| {
            let (css, seen) = (&self.css, self.browser.seen());
            panic!("timed out after {WAIT_TIMEOUT:?}: {what} {css}: {last}\n{seen}")
        })
    }
}

/// Returns whether what is not possible now may be in a moment.
fn comes(kind: &str) -> bool {
    const PASSING: [&str; 4] = [
        "no such element",
        "stale element reference",
        "element not interactable",
        "element click intercepted",
    ];
    PASSING.contains(&kind)
}
