//! Special keys, for the texts of [`Browser::keys`](super::Browser::keys) and
//! [`Element::type_text`](super::Element::type_text). The code points are those of WebDriver.

use serde_json::{Value, json};

/// Moves the focus to the next field.
pub const TAB: &str = "\u{e004}";
/// The Enter key.
pub const ENTER: &str = "\u{e007}";
/// The Escape key.
pub const ESCAPE: &str = "\u{e00c}";
/// Deletes the character before the cursor.
pub const BACKSPACE: &str = "\u{e003}";
/// Deletes the character after the cursor.
pub const DELETE: &str = "\u{e017}";
/// Moves the cursor to the end.
pub const END: &str = "\u{e010}";
/// Moves the cursor to the beginning.
pub const HOME: &str = "\u{e011}";
/// The left arrow.
pub const LEFT: &str = "\u{e012}";
/// The up arrow.
pub const UP: &str = "\u{e013}";
/// The right arrow.
pub const RIGHT: &str = "\u{e014}";
/// The down arrow.
pub const DOWN: &str = "\u{e015}";
/// The Shift key, held during the rest of the text.
pub const SHIFT: &str = "\u{e008}";
/// The Control key, held during the rest of the text.
pub const CONTROL: &str = "\u{e009}";

/// Returns the WebDriver actions that type a text: each key is pressed and released, but Shift and Control are released
/// at the end.
pub(crate) fn key_actions(text: &str) -> Value {
    let is_held = |key: &char| [SHIFT, CONTROL].iter().any(|held| held.contains(*key));
    let step = |kind: &str, key: char| json!({"type": kind, "value": key.to_string()});
    let mut steps = Vec::new();
    for key in text.chars() {
        steps.push(step("keyDown", key));
        if !is_held(&key) {
            steps.push(step("keyUp", key));
        }
    }
    steps.extend(text.chars().filter(is_held).map(|key| step("keyUp", key)));
    json!({"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})
}
