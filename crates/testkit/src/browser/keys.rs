//! Keys without a letter, as [`Browser::keys`](super::Browser::keys) and [`Element::type_text`](super::Element::type_text)
//! take them.

use serde_json::{Value, json};

/// To the next field.
pub const TAB: &str = "\u{e004}";
/// Enter.
pub const ENTER: &str = "\u{e007}";
/// Escape.
pub const ESCAPE: &str = "\u{e00c}";
/// Deletes the character before the cursor.
pub const BACKSPACE: &str = "\u{e003}";
/// Deletes the character after the cursor.
pub const DELETE: &str = "\u{e017}";
/// To the end.
pub const END: &str = "\u{e010}";
/// To the beginning.
pub const HOME: &str = "\u{e011}";
/// An arrow.
pub const LEFT: &str = "\u{e012}";
/// An arrow.
pub const UP: &str = "\u{e013}";
/// An arrow.
pub const RIGHT: &str = "\u{e014}";
/// An arrow.
pub const DOWN: &str = "\u{e015}";
/// Held while the keys behind it are pressed.
pub const SHIFT: &str = "\u{e008}";
/// Held while the keys behind it are pressed.
pub const CONTROL: &str = "\u{e009}";

/// Returns the keys of a text, pressed and let go; those that are held are let go at the end.
pub(crate) fn presses(text: &str) -> Value {
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
