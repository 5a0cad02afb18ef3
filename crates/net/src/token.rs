//! The bearer token of the admin API.

use std::fmt;
use std::str::FromStr;

/// The token that is sent after `Authorization: Bearer`.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(String);

impl BearerToken {
    /// A shorter token could be guessed.
    const MIN_CHARS: usize = 16;
    const MAX_CHARS: usize = 256;

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Parses a token. Errors do not contain the text, because it is a secret.
impl FromStr for BearerToken {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = (Self::MIN_CHARS, Self::MAX_CHARS);
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("must be letters, digits and signs without spaces, found others".to_owned());
        }
        if !(min..=max).contains(&text.len()) {
            let found = text.len();
            return Err(format!("must be {min} to {max} characters long, found {found}"));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Hides the secret.
impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}
