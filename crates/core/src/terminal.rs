//! Text that is safe to print on a terminal.

use std::fmt;

use serde::Deserialize;

/// Text from outside, with invisible characters replaced by U+FFFD.
///
/// Characters that move the cursor, change colours or the direction of writing are replaced when it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(from = "String")]
pub struct TerminalSafe(String);

impl TerminalSafe {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for TerminalSafe {
    fn from(text: String) -> Self {
        Self(
            text.chars()
                .map(|character| if is_visible(character) { character } else { '\u{fffd}' })
                .collect(),
        )
    }
}

impl From<&str> for TerminalSafe {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl fmt::Display for TerminalSafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Returns whether a character is visible: no control character, and none that joins, hides or reorders others.
fn is_visible(character: char) -> bool {
    let formats = matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    !character.is_control() && !formats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_format_characters_are_replaced() {
        let text = "a\u{1b}[2J\u{9b}31m\r\n\u{7}\u{202e}evil\u{200b}\u{7f}ö";
        let plain = TerminalSafe::from(text);
        assert_eq!(
            plain.as_str(),
            "a\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}\u{fffd}evil\u{fffd}\u{fffd}ö"
        );
        let read: TerminalSafe = serde_json::from_str(r#""x\u001b]0;title\u0007""#).unwrap();
        assert_eq!(read.as_str(), "x\u{fffd}]0;title\u{fffd}");
    }
}
