//! Text that says nothing to the terminal itself.

use std::fmt;

use serde::Deserialize;

/// A text from elsewhere, of which only what can be read is left.
///
/// Whatever moves the cursor, changes colours or turns the direction of writing was taken out when it was made,
/// so it can be shown wherever.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(from = "String")]
pub(crate) struct Plain(String);

impl Plain {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Plain {
    fn from(text: String) -> Self {
        Self(text.chars().map(|letter| if is_seen(letter) { letter } else { '\u{fffd}' }).collect())
    }
}

impl From<&str> for Plain {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Not a control character, and none of those that join, hide or turn around what is beside them.
fn is_seen(letter: char) -> bool {
    let formats = matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !letter.is_control() && !formats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_would_act_upon_is_left() {
        let text = "a\u{1b}[2J\u{9b}31m\r\n\u{7}\u{202e}evil\u{200b}\u{7f}ö";
        let plain = Plain::from(text);
        assert_eq!(
            plain.as_str(),
            "a\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}evil\u{fffd}\u{fffd}ö"
        );
        let read: Plain = serde_json::from_str(r#""x\u001b]0;title\u0007""#).unwrap();
        assert_eq!(read.as_str(), "x\u{fffd}]0;title\u{fffd}");
    }
}
